"""Any log: kernel, system, NCCL, PyTorch, launcher, training; one file may hold all of these.

Each line is cleaned once and shown to every recogniser whose word it has. What a recogniser states is a
`LogFact`; what nobody knows is only counted. A file in which no line is known, and whose lines have no form
of a log, is refused: silence about an unknown text must not look like health.

Does not judge (``analysis.evidence``). Reads lines, not columns: outputs of tools have readers of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice

from megatrace.model.series import FactKind, LogFact
from megatrace.model.trace import Trace
from megatrace.readers import registry
from megatrace.readers.log_clean import clean, unwrapped, wrap_width
from megatrace.readers.log_kernel import kernel
from megatrace.readers.log_launcher import Launcher
from megatrace.readers.log_nccl import Nccl
from megatrace.readers.log_nvidia import nvidia
from megatrace.readers.log_oom import OomKiller
from megatrace.readers.log_pattern import Recogniser
from megatrace.readers.log_python import Python
from megatrace.readers.log_torch import Torch
from megatrace.readers.log_training import Training
from megatrace.readers.source import ReadOptions, Source
from megatrace.readers.statements import Statements

MAX_FACTS = 200_000
"""Of one reading: what a person can be told is a few sentences; more would only fill the memory."""
MAX_SAME = 20_000
"""Facts of one kind and name kept of one file, so that a flood of one sort hides no other."""
MAX_RAW_LINE = 1 << 20
"""Bytes of a line that are kept while its end is looked for."""
BLOCK = 1 << 20
FIRST = 400
"""Lines that show whether a terminal broke them."""
BATCH = 2_000
"""Lines that are searched for words together."""
SHAPED = 50
"""Lines after which the form of a log is known; later ones are looked at only for what they state."""
MAX_RANK = 1 << 20
"""Beyond any job: a larger number where a rank stands is damage, and nothing may be counted up to it."""
MAX_NUMBER = 1 << 63
_BINARY = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_NUMBERED = re.compile(rb"\{\d+\}\[")
_SHAPES = {
    "kernel": "kernel log",
    "syslog": "system log",
    "torch": "torch log",
    "fabricmanager": "fabric manager log",
    "ray": "Ray log",
    "srun": "Slurm log",
    "container": "container log",
    "torchrun": "training log",
    "timed": "log",
    "pdsh": "pdsh log",
}


def recognisers() -> list[Recogniser]:
    """One of each, the most telling first: a line belongs to the first that states a fact."""
    return [nvidia(), OomKiller(), kernel(), Torch(), Nccl(), Launcher(), Python(), Training()]


@registry.register(
    "log",
    summary="kernel, system, NCCL, PyTorch, launcher and training logs: lines that are known",
    fallback=True,
)
class LogReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._read = Statements("log")
        self._refused = ""

    def refuses(self, head: bytes) -> str | None:
        """Text in which a line is known or looks like one of a log. A long text is read to its end first."""
        if _BINARY.search(head[:4096]):
            return "binary, not text"
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        # "{1}[Hardware Error]:" numbers the records of firmware in a kernel log.
        if (text[:1] in (b"{", b"<") and not _NUMBERED.match(text)) or text[:2] == b"[{":
            return "JSON or XML, not lines"
        lines = head.split(b"\n")
        reading = _Reading("", None)
        for fact in reading.facts(iter(lines[:2000])):
            if fact.kind is not FactKind.LINES:
                return None
        if reading.shapes:
            return None
        return f"none of its first {min(len(lines), 2000):,} lines is known, or has the form of a log"

    def add(self, source: Source) -> None:
        """Reads one file to its end."""
        reading = _Reading(source.name, source.modified)
        kept: Counter[tuple[FactKind, str]] = Counter()
        left_out = 0
        found: list[LogFact] = []
        room = MAX_FACTS - len(self._read.facts)
        for fact in reading.facts(_raw_lines(source)):
            key = (fact.kind, fact.name)
            if len(found) < room and kept[key] < MAX_SAME:
                kept[key] += 1
                found.append(fact)
            else:
                left_out += 1
        if left_out:
            self._read.notes.append(
                f"{source.name}: {left_out:,} further lines of the same kinds were only counted."
            )
        if source.damage:
            self._read.notes.append(f"{source.name} {source.damage}: what stands before it was read.")
        shape = reading.shapes.most_common(1)[0][0] if reading.shapes else ""
        stated = sum(kept.values())
        if not stated and not shape:
            self._refused = f"{source.name} was not read: none of its {reading.lines:,} lines is known."
            self._read.notes.append(self._refused)
            return
        self._read.notes.append(
            f"{source.name}: {stated:,} of {reading.lines:,} lines state something known; "
            "the others are no evidence."
        )
        if shape == "syslog":
            self._read.notes.append(
                f"{source.name}: its lines have no year; it is taken from the file's date."
            )
        self._read.take(
            source.name,
            found,
            shape=_SHAPES.get(shape, "log"),
            lines=reading.lines,
            stated=stated,
            ranks=len({fact.rank for fact in found if fact.rank is not None}),
        )

    def finish(self) -> Trace:
        """A Trace of facts. Raises TraceError where no file held a line that is known."""
        return self._read.trace(self._refused or "no line was read")


class _Reading:
    """One file on its way through the recognisers."""

    def __init__(self, source: str, modified: int | None) -> None:
        self.lines = 0
        self.shapes: Counter[str] = Counter()
        self._shaped = 0
        self._source, self._modified = source, modified
        self._recognisers = recognisers()
        found: dict[bytes, list[int]] = {}
        for number, item in enumerate(self._recognisers):
            for needle in item.needles:
                found.setdefault(needle.encode(), []).append(number)
        self._needles = found

    def facts(self, raw: Iterator[bytes]) -> Iterator[LogFact]:
        """All facts, in the order of lines."""
        first = list(islice(raw, FIRST))
        width = wrap_width(first)
        numbered: Iterator[tuple[int, bytes]] = enumerate(chain(first, raw), start=1)
        lines = unwrapped(numbered, width) if width else numbered
        while batch := list(islice(lines, BATCH)):
            # Most words stand in no line of a batch: one search in all of it saves one in each line.
            text = b"\n".join(line for _, line in batch)
            there = [(needle, takers) for needle, takers in self._needles.items() if needle in text]
            for number, line in batch:
                yield from self._line(number, line, there)
        for item in self._recognisers:
            yield from map(_possible, item.flush())

    def _line(self, number: int, raw: bytes, there: list[tuple[bytes, list[int]]]) -> Iterator[LogFact]:
        if not raw.strip():
            return
        self.lines = number
        takers = {taker for needle, known in there if needle in raw for taker in known}
        takers.update(i for i, item in enumerate(self._recognisers) if item.open)
        if not takers and self._shaped >= SHAPED:
            return
        for line in clean(raw, number, self._source, self._modified):
            if line.shape:
                self.shapes[line.shape] += 1
                self._shaped += 1
            for taker in sorted(takers):
                facts = self._recognisers[taker].feed(line)
                if facts:
                    yield from map(_possible, facts)
                    break


def _possible(fact: LogFact) -> LogFact:
    """The same without a rank or a number that cannot be: a damaged line has digits too many."""
    huge = [
        name
        for name, value in fact.fields
        if isinstance(value, int) and abs(value) >= (MAX_RANK if "rank" in name else MAX_NUMBER)
    ]
    if huge:
        fact = replace(fact, fields=tuple(item for item in fact.fields if item[0] not in huge))
    if fact.rank is not None and fact.rank >= MAX_RANK:
        fact = replace(fact, rank=None)
    if fact.local_rank is not None and fact.local_rank >= MAX_RANK:
        fact = replace(fact, local_rank=None)
    return fact


def _raw_lines(source: Source) -> Iterator[bytes]:
    """Lines without their ends; one without an end is cut into pieces rather than held whole."""
    view = memoryview(bytearray(BLOCK))
    rest = b""
    while size := source.readinto(view):
        block = rest + bytes(view[:size])
        if b"\x00" in block[:64] and block.count(b"\x00") > len(block) // 8:
            block = block.replace(b"\x00", b"")
        lines = block.split(b"\n")
        rest = lines.pop()
        yield from lines
        if len(rest) > MAX_RAW_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest
