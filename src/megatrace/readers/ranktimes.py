"""A table of times per rank: CSV or TSV with a column "rank" and columns of times, unit in the name."""

from __future__ import annotations

import csv
import math

from megatrace.model.series import FactKind, LogFact
from megatrace.model.trace import Trace
from megatrace.readers import registry
from megatrace.readers.source import ReadOptions, Source
from megatrace.readers.statements import Statements

MAX_BYTES = 256 << 20
MAX_ROWS = 200_000
"""Three times the ranks of the largest job that is analysed."""
_RANK = ("rank", "global_rank", "rank_id", "ranks", "worker", "gpu_rank")
_UNITS = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "seconds": 1000.0, "us": 0.001, "ns": 1e-6}


@registry.register("ranktimes", summary="a table (CSV) of times per rank")
class RankTimesReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._read = Statements("ranktimes")

    def refuses(self, head: bytes) -> str | None:
        """A header with a column of ranks and another one."""
        columns = _columns(head.decode("utf-8-sig", "replace").split("\n")[0])
        if len(columns) > 1 and any(name in _RANK for name in columns):
            return None
        return 'no table with a column "rank"'

    def add(self, source: Source) -> None:
        """Reads one table; a cell that is no number is left out."""
        text = source.read_whole(self._limit).decode("utf-8-sig", "replace")
        lines = text.replace("\x00", "").split("\n")
        columns = _columns(lines[0])
        at = next((i for i, name in enumerate(columns) if name in _RANK), None)
        found: list[LogFact] = []
        bad = 0
        for number, line in enumerate(lines[1 : MAX_ROWS + 1], start=2):
            cells = _cells(line)
            if at is None or len(cells) <= at:
                bad += bool(line.strip())
                continue
            rank = cells[at].strip()
            if not (rank.isascii() and rank.isdigit() and len(rank) < 9):
                bad += 1
                continue
            found += _row(columns, cells, at, int(rank), number)
        if not found:
            self._read.notes.append(f"{source.name} was not read: no row has a rank and a number.")
            return
        ranks, shape = len({fact.rank for fact in found}), "table of times per rank"
        self._read.take(source.name, found, shape=shape, lines=len(lines), stated=len(found), ranks=ranks)
        if bad:
            self._read.notes.append(f"{source.name}: {bad:,} rows without a rank were left out.")

    def finish(self) -> Trace:
        """A Trace of facts. Raises TraceError where no table could be read."""
        return self._read.trace(" ".join(self._read.notes) or "no table was read")


def _cells(line: str) -> list[str]:
    delimiter = "\t" if "\t" in line else ";" if ";" in line and "," not in line else ","
    try:
        return next(csv.reader([line.rstrip("\r")], delimiter=delimiter), [])
    except csv.Error:
        return []


def _columns(line: str) -> list[str]:
    return [cell.strip().lower() for cell in _cells(line)]


def _row(columns: list[str], cells: list[str], at: int, rank: int, line: int) -> list[LogFact]:
    facts = []
    for i, (name, cell) in enumerate(zip(columns, cells, strict=False)):
        stem, _, unit = name.replace("(", "_").replace(")", "").replace(" ", "_").rpartition("_")
        if i == at or unit not in _UNITS or not stem:
            continue
        try:
            number = float(cell)
        except ValueError:
            continue
        if math.isfinite(number) and number >= 0:
            fields = ("timer", stem.strip("_")), ("ms", number * _UNITS[unit])
            facts.append(LogFact(FactKind.RANK_TIME, "", name="table", rank=rank, fields=fields, line=line))
    return facts
