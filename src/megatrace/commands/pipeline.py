"""From paths to a diagnosis, the same way for every verb that diagnoses: read, declare, analyse.

Shared by ``diagnose`` and ``demo``, so that the demonstration shows what a user will get. Shows a progress
bar on stderr, and only on a terminal. Reads what it is told to read; it writes and prints nothing else.

Is no verb. What a report looks like is ``reports``' business.
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import BinaryIO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from megatrace.analysis.baseline import EarlierRun
from megatrace.analysis.diagnosing import diagnose
from megatrace.collect.bundle import Packed, read_packed
from megatrace.collect.jobconfig import read_hostfile, read_job_config
from megatrace.commands.earlier import read_earlier_run
from megatrace.errors import UsageError
from megatrace.model.finding import Diagnosis
from megatrace.model.job import JobConfig, Sourced
from megatrace.model.trace import Trace
from megatrace.readers.archive import is_archive, stream
from megatrace.readers.opening import Ahead, open_trace
from megatrace.readers.source import ReadOptions, Source
from megatrace.units import NS_PER_S

MAX_EPOCH_S = Decimal(2**63 // NS_PER_S)
"""Later times do not fit int64 nanoseconds (the year 2262)."""

Say = Callable[[int, int, str], None]
"""(done, total, what): one step of a progress bar; total 0 where nobody knows it."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What the user says about the job, beyond its recordings. Paths to files, None where not given."""

    config: Path | None = None
    ranks_per_node: int | None = None
    hostfile: Path | None = None
    baseline: Path | None = None
    """The diagnosis (JSON) of an earlier run of the same configuration."""

    def job(self) -> JobConfig | None:
        """The declared configuration, None where nothing was declared. Raises ConfigError, UsageError."""
        if self.config is None and self.ranks_per_node is None and self.hostfile is None:
            return None
        job = JobConfig() if self.config is None else read_job_config(self.config)
        if self.hostfile is not None:
            hosts, per_node = read_hostfile(self.hostfile)
            job = replace(job, hosts=hosts)
            if per_node is not None:
                job = replace(job, ranks_per_node=Sourced(per_node, str(self.hostfile)))
        if self.ranks_per_node is not None:
            job = replace(job, ranks_per_node=Sourced(self.ranks_per_node, "--ranks-per-node"))
        if job.hosts and job.ranks_per_node is None:
            raise UsageError(f"{self.hostfile} has no slots=N: add --ranks-per-node N to say who runs where")
        return job

    def command(self, paths: Sequence[Path | str], now: str | None = None) -> str:
        """The command line that gives the same diagnosis again, for a shell."""
        words = ["megatrace", "diagnose", *map(str, paths)]
        given = (
            ("--config", self.config),
            ("--ranks-per-node", self.ranks_per_node),
            ("--hostfile", self.hostfile),
            ("--baseline", self.baseline),
            ("--now", now),
        )
        for option, value in given:
            if value is not None:
                words += [option, str(value)]
        return shlex.join(words)


def diagnose_paths(
    paths: Sequence[Path | str],
    declared: Declared,
    now: int | None = None,
    say: Say | None = None,
    *,
    timeline: bool = False,
    ahead: Ahead | None = None,
) -> Diagnosis:
    """The diagnosis of everything that the paths name as one job; ``ahead`` reads call logs elsewhere.

    ``now`` in ns since the epoch, None where nobody said how long the job has been standing; ``timeline``
    keeps the calls around the first finding. Raises what ``open_trace`` and the configuration raise.
    """
    job = declared.job()  # before the recordings: a slip in job.yaml should not cost the time of reading
    earlier = None if declared.baseline is None else read_earlier_run(declared.baseline)
    packed = packed_with(paths)
    if packed is not None:
        job, now = job or packed.job, packed.now if now is None else now
    trace = open_trace(paths, options=ReadOptions(progress=_reading(say)), ahead=ahead)
    if job is not None:
        trace = trace.with_job(job)
    return diagnose_trace(trace, now, say, earlier, timeline=timeline)


def packed_with(paths: Sequence[Path | str]) -> Packed | None:
    """What a bundle says about its job, None where the paths are no single bundle. Raises UsageError."""
    path = Path(paths[0]) if len(paths) == 1 else None
    if path is None or not path.is_file():
        return None
    try:
        raw = io.FileIO(path)
    except OSError:
        return None  # the readers say so
    with raw:
        source = Source(str(path), cast(BinaryIO, raw), packed_size=path.stat().st_size)
        return read_packed(stream(source), str(path)) if is_archive(source.head) else None


def diagnose_trace(
    trace: Trace,
    now: int | None = None,
    say: Say | None = None,
    earlier: EarlierRun | None = None,
    *,
    timeline: bool = False,
) -> Diagnosis:
    """The diagnosis of a trace in memory."""

    def step(what: str) -> None:
        if say is not None:
            say(0, 0, f"analysing: {what}")

    return diagnose(trace, now=now, progress=step, earlier=earlier, timeline=timeline)


def _reading(say: Say | None) -> Say | None:
    if say is None:
        return None

    def step(done: int, total: int, path: str) -> None:
        say(done, total, f"reading {Path(path).name}")

    return step


@contextmanager
def progress() -> Iterator[Say | None]:
    """A progress bar on stderr for the time of the block; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None, count="")

        def say(done: int, total: int, what: str) -> None:
            count = f"{done:,}/{total:,}" if total else ""
            bars.update(task, completed=done, description=what, count=count)
            bars.tasks[0].total = total or None  # update() takes None for "as before"

        yield say


def parse_now(text: str, clock: int) -> int:
    """ "now", seconds since 1970, or an ISO time (UTC where it names no zone) as ns. Raises UsageError."""
    word = text.strip()
    if word == "now":
        return clock
    try:
        seconds = Decimal(word)
    except InvalidOperation:
        return _parse_iso(word)
    if not seconds.is_finite() or not 0 <= seconds <= MAX_EPOCH_S:
        raise UsageError(f"--now {text}: no time; give seconds since 1970, an ISO time, or now")
    return int(seconds * NS_PER_S)


def _parse_iso(word: str) -> int:
    try:
        # Python 3.10 does not read the Z that every other tool writes.
        moment = datetime.fromisoformat(word.removesuffix("Z") + ("+00:00" if word.endswith("Z") else ""))
    except ValueError:
        raise UsageError(
            f"--now {word!r} is no time; give 2026-11-30T02:20:00Z, seconds since 1970, or now"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1_000
