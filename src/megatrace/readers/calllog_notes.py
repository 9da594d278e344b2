"""What a person is told about a call log that was not perfect: one sentence per thing, worst first.

Numbers in, sentences out. Lines count from 1, as an editor counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megatrace.readers.calllog_line import Defect
from megatrace.readers.calllog_table import Tidied
from megatrace.units import say_ranks

MAX_FILES_NAMED = 3
"""A sentence that lists more is not read; the others are counted."""
MAX_REFUSED_KEPT = 100_000
"""Line numbers of refused lines kept per file, for saying where a row stood. More are only counted."""


@dataclass(slots=True)
class FileReport:
    """One file as it was read."""

    name: str
    first_row: int
    label: str = ""
    """The name without its directory, where that is unique; set by `label_files`."""
    rows: int = 0
    lines: int = 0
    size: int = 0
    defects: dict[Defect, int] = field(default_factory=dict)
    first_line: dict[Defect, int] = field(default_factory=dict)
    refused: list[NDArray[np.int64]] = field(default_factory=list)
    refused_kept: int = 0
    layouts: set[int] = field(default_factory=set)
    torn_rank: int | None = None
    damage: str = ""

    def refuse(self, defect: Defect, line: int) -> None:
        """Counts a line (0 = first) that is no call."""
        self.defects[defect] = self.defects.get(defect, 0) + 1
        self.first_line.setdefault(defect, line + 1)

    def keep_refused(self, lines: NDArray[np.int64]) -> None:
        """Remembers which lines are no rows, up to a limit."""
        if self.refused_kept < MAX_REFUSED_KEPT:
            self.refused.append(lines.copy())
            self.refused_kept += len(lines)

    @property
    def bad_lines(self) -> int:
        """Lines that should have been calls; blank ones do no harm."""
        return sum(count for defect, count in self.defects.items() if defect is not Defect.BLANK)

    def line_of(self, row: int) -> int:
        """The line (from 1) of a row of this file, given its number among all rows."""
        place = row - self.first_row
        if self.refused:
            lines = np.concatenate(self.refused)
            place += int(np.searchsorted(lines - np.arange(len(lines)), place, side="right"))
        return place + 1


def label_files(files: Sequence[FileReport]) -> None:
    """Gives each file the shortest name that tells it from the others."""
    count = Counter(f.name.rpartition("/")[2] for f in files)
    for report in files:
        short = report.name.rpartition("/")[2]
        report.label = short if count[short] == 1 else report.name


def file_notes(files: Sequence[FileReport]) -> list[str]:
    """Sentences about single files; the same thing in many files becomes one sentence."""
    notes: list[str] = []
    # Of thousands of files most are without a flaw: look at them once.
    files = [f for f in files if f.defects or f.damage or not f.rows or len(f.layouts) > 1]
    notes += _torn(files)
    damaged = [(f, f"{f.label} {f.damage}; {_read(f)}.") for f in files if f.damage]
    notes += _some(damaged, "files could not be read to their end")
    for defect, text in _DEFECT_TEXT.items():
        found = [
            (f, f"{f.label} has {_lines(f.defects[defect], text)}{_first(f, defect)}; skipped.")
            for f in files
            if defect in f.defects
        ]
        notes += _some(found, f"files have {text[1]}")
    silent = [(f, f"{f.label} holds no whole call line.") for f in files if f.lines and not f.rows]
    notes += _some(silent, "files hold no whole call line")
    mixed = [
        (f, f"{f.label} mixes {len(f.layouts)} line layouts; all of them are read.")
        for f in files
        if len(f.layouts) > 1
    ]
    notes += _some(mixed, "files mix line layouts; all of them are read")
    return notes


_DEFECT_TEXT: Mapping[Defect, tuple[str, str]] = {
    Defect.BROKEN: ("broken line", "broken lines"),
    Defect.NUL: (
        "line of NUL bytes",
        "lines of NUL bytes (the machine went down before the data reached the disk)",
    ),
    Defect.BINARY: ("line that is not text", "lines that are not text"),
    Defect.TOO_LONG: ("line longer than any call", "lines longer than any call"),
    Defect.FOREIGN: ("line that is not a call", "lines that are not calls"),
}


def _torn(files: Sequence[FileReport]) -> list[str]:
    killed = "is cut off (the process was killed while writing)"
    torn = [
        (f, f"{f.label} line {f.first_line[Defect.TORN]:,} {killed}; {_read(f)}.")
        for f in files
        if Defect.TORN in f.defects
    ]
    return _some(torn, "files end in the middle of a line (the processes were killed while writing)")


def _read(report: FileReport) -> str:
    return f"{report.rows:,} line{'' if report.rows == 1 else 's'} read"


def _lines(count: int, text: tuple[str, str]) -> str:
    return f"1 {text[0]}" if count == 1 else f"{count:,} {text[1]}"


def _first(report: FileReport, defect: Defect) -> str:
    word = "line" if report.defects[defect] == 1 else "first: line"
    return f" ({word} {report.first_line[defect]:,})"


def _some(found: Sequence[tuple[FileReport, str]], many: str) -> list[str]:
    """The sentences themselves where they are few, else one that names the first files."""
    if len(found) <= MAX_FILES_NAMED:
        return [text for _, text in found]
    named = ", ".join(report.label for report, _ in found[:MAX_FILES_NAMED])
    return [f"{len(found):,} {many}: {named} and {len(found) - MAX_FILES_NAMED:,} more."]


def table_notes(tidied: Tidied, files: Sequence[FileReport]) -> list[str]:
    """Sentences about what was done to the order of rows."""
    notes: list[str] = []
    if tidied.earlier_runs:
        notes += _earlier_runs(tidied, files)
    for counts, text in (
        (tidied.out_of_order, "stood out of order in time and {were} sorted"),
        (tidied.duplicates, "stood twice and {were} taken once"),
    ):
        total = sum(counts.values())
        if total:
            lines, were = ("1 line", "was") if total == 1 else (f"{total:,} lines", "were")
            notes.append(f"{lines} of {say_ranks(counts)} {text.format(were=were)}.")
    return notes


def _earlier_runs(tidied: Tidied, files: Sequence[FileReport]) -> list[str]:
    starts = np.array([f.first_row for f in files])
    found: list[tuple[FileReport, str]] = []
    for run in tidied.earlier_runs:
        rows = (run.first, run.last, run.restart)
        first, last, again = (files[int(np.searchsorted(starts, row, "right")) - 1] for row in rows)
        begin, end, restart = (f"{f.line_of(r):,}" for f, r in zip((first, last, again), rows, strict=True))
        where = f"lines {begin} to {end}" if first is last else f"line {begin} to {last.label} line {end}"
        there = f"line {restart}" if again is last else f"{again.label} line {restart}"
        text = (
            f"{first.label} {where} ({run.rows:,} calls of rank {run.rank}) are of an earlier run, left out"
        )
        found.append((first, f"{text}: the counters start again at {there}."))
    return _some(found, "files begin with an earlier run, left out (the counters start again)")


def hash_notes(resolved: int, unknown: int) -> list[str]:
    """Sentences about hashes that the writer cut."""
    total = resolved + unknown
    if not total:
        return []
    lines = "1 line was" if total == 1 else f"{total:,} lines were"
    text = f"{lines} cut at the writer's limit of 128 characters, in the group hash"
    if not unknown:
        return [f"{text}; whole lines of the same stream tell which it was."]
    return [f"{text}; {resolved:,} could be told by whole lines, {unknown:,} without a communicator remain."]


def op_notes(unknown: int) -> list[str]:
    """Sentence about calls with a name that this release does not know."""
    return (
        [f"{unknown:,} calls have a name that this release does not know; they are kept as UNKNOWN."]
        if unknown
        else []
    )


def missing_ranks(ranks: Iterable[int], limit: int = 1 << 20) -> tuple[int, ...]:
    """Ranks below the highest that was seen which wrote nothing. Empty where the numbers are no
    plausible ranks."""
    seen = set(ranks)
    top = max(seen, default=-1)
    return tuple(rank for rank in range(top) if rank not in seen) if top < limit else ()
