"""`megatrace demo`: a simulated job with one fault, its logs on disk, and the diagnosis of those logs.

The first thing that somebody new runs. It takes the way of every real job: the simulator writes text logs,
and the same code as in ``diagnose`` reads them and knows nothing else. What was broken is said before the
report, so that the reader can judge the verdict; the exit code is 0 if the verdict names it. The default is
the large job: finding one rank of thousands is what the tool is for.

The diagnosis never sees the simulator's own knowledge. The logs are kept, so that the reader can look at
them and diagnose them again; how to remove them is said.
"""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from megatrace.clock import SystemClock
from megatrace.commands import command, output, pipeline
from megatrace.errors import EXIT_CANNOT_TELL, EXIT_OK, UsageError
from megatrace.model.finding import Diagnosis, Severity
from megatrace.reports import ReportOptions
from megatrace.simulator import Scenario, Simulation, SlowGpu, flagship, simulate
from megatrace.simulator.emit import free_space, write_text
from megatrace.units import format_size

SOURCE = "text"
"""The simulator's word for what a text log can show; it decides which answer is right."""
LINE_BYTES = 160
"""An upper bound of a line, for asking whether the disk has room (a line here has about 110)."""


class Job(str, Enum):
    """The jobs to choose from."""

    small = "small"
    flagship = "flagship"


class Language(str, Enum):
    """Languages of the text report."""

    en = "en"
    zh = "zh"


def small() -> Scenario:
    """16 GPUs (tensor 2, pipeline 4, data 2): rank 5's GPU computes 2.5× slower in iterations 12–19 of 30."""
    slow = SlowGpu(rank=5, factor=2.5, first_iteration=12, last_iteration=19)
    return Scenario(
        name="demo",
        description=small.__doc__ or "",
        seed=5,
        tp=2,
        pp=4,
        dp=2,
        ranks_per_node=8,
        micro_batches=8,
        iterations=30,
        layers_per_stage=4,
        faults=(slow,),
    )


JOBS = {Job.small: small, Job.flagship: flagship}


@command(
    "demo",
    summary="makes the logs of a job with a fault, and diagnoses them",
    examples=["megatrace demo", "megatrace demo --job small --out /tmp/demo-job --lang zh"],
    order=15,
)
def demo(
    job: Annotated[
        Job, typer.Option(help="flagship: 3,480 GPUs, one misses a Recv; small: 16 GPUs, one is slow.")
    ] = Job.flagship,
    out: Annotated[
        Path | None, typer.Option(help="Where the logs go (default: a new temporary one).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the page with pictures.")] = None,
    lang: Annotated[Language, typer.Option(help="Language of the report.")] = Language.en,
    verbose: Annotated[bool, typer.Option("--verbose", help="All evidence.")] = False,
) -> int:
    """Simulates a job, writes its logs, and diagnoses them as `megatrace diagnose` does.

    The exit code is 0 if the diagnosis names the fault that was put in.
    """
    scenario = JOBS[job]()
    folder = _folder(out)
    logs = folder / "logs"
    print(f"A simulated job of {scenario.description}")
    begin = time.monotonic()
    with pipeline.progress() as say:
        if say is not None:
            say(0, 0, f"simulating {scenario.world_size:,} ranks")
        run = simulate(scenario)
        _room(len(run.trace.events), folder)
        lines = write_text(
            run.trace, logs, progress=None if say is None else lambda done, of: say(done, of, "writing logs")
        )
        output.write_whole(folder / "truth.json", json.dumps(run.truth.as_json(), indent=1) + "\n")
        written = time.monotonic()
        declared = pipeline.Declared(ranks_per_node=scenario.ranks_per_node)
        diagnosis = pipeline.diagnose_paths([logs], declared, say=say)
    done = time.monotonic()
    print(
        f"{lines:,} calls written to {logs} in {written - begin:.1f} s, "
        f"diagnosed in {done - written:.1f} s.\n"
    )
    options = ReportOptions(
        verbose=verbose, lang=lang.value, generated_at=SystemClock().now(), command=declared.command([logs])
    )
    output.show(diagnosis, "text", options)
    if html is not None:
        print(f"\nThe page with pictures: {output.write_report(diagnosis, 'html', html, options)}")
    return _conclude(run, diagnosis, logs, logs if out else folder)


def _folder(out: Path | None) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="megatrace-demo-"))
    if (out / "logs").exists() and any((out / "logs").iterdir()):
        raise UsageError(f"{out / 'logs'} is not empty: its files would be diagnosed too; name another --out")
    return out


def _room(lines: int, folder: Path) -> None:
    """Raises UsageError where the logs do not fit on the disk."""
    needed, free = lines * LINE_BYTES, free_space(folder)
    if needed > free:
        raise UsageError(
            f"{folder}: the logs need up to {format_size(needed)}, {format_size(free)} are free; "
            "name a folder on a larger disk with --out"
        )


def _conclude(run: Simulation, diagnosis: Diagnosis, logs: Path, made: Path) -> int:
    per_node = run.scenario.ranks_per_node
    where, taken = shlex.quote(str(logs)), sum(path.stat().st_size for path in logs.iterdir())
    print("\nTry next:")
    print(f"  megatrace diagnose {where} --ranks-per-node {per_node} --verbose")
    print(f"  megatrace diagnose {where} --ranks-per-node {per_node} --html report.html")
    print(f"The logs take {format_size(taken)} and stay; to remove them: rm -r {shlex.quote(str(made))}")
    if named(run, diagnosis):
        return EXIT_OK
    print(f"\nThis verdict does not name what was broken ({logs.parent / 'truth.json'}); please report it.")
    return EXIT_CANNOT_TELL


def named(run: Simulation, diagnosis: Diagnosis) -> bool:
    """Whether the findings name every fault: its ranks, or the smallest set that a text log can separate."""
    said = [(item.kind, item.culprits.ranks) for item in diagnosis.findings if item.severity <= Severity.P2]
    return all(
        any(
            kind in (fault.kind, *fault.answers[SOURCE].kinds)
            and sorted(ranks) in (sorted(fault.ranks), sorted(fault.answers[SOURCE].ranks))
            for kind, ranks in said
        )
        for fault in run.truth.faults
    )
