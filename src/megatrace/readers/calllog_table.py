"""The rows of all call logs as one table, put into the order of `Events`: by rank, then as the host made
the calls.

Files come in any order; a rank may be spread over several files and a file may hold several ranks. Lines
that stand out of order in time (threads of one process race for the writer) are sorted; lines that stand
twice (a ring dumped twice, a file given twice) are kept once; of several runs appended to one file the
last is kept.

Works on columns only and says what it did as numbers; sentences are made in ``calllog_notes``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from megatrace.readers.calllog_line import NO_SEQ, Flag

Columns = dict[str, NDArray[Any]]
Index = NDArray[np.int64]

_FIRST_ROWS = 1 << 18
_STRETCH = 1 << 16
_GROWTH = 4
"""Room beyond the rows is address space, not memory: pages are touched when rows arrive. Growing fourfold
copies each row a third of a time on average; doubling would copy it once."""
MIN_RESTART_NS = 1_000_000_000
"""A training process that starts again loads Python, PyTorch and NCCL first: never under a second. Two
neighbouring lines of one run that were written in the other order are microseconds apart."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Rows ``first:last`` (in the order read, both inclusive, as row numbers) of a rank that an earlier
    run wrote."""

    rank: int
    first: int
    last: int
    rows: int
    restart: int
    """The row with which the last run begins."""


@dataclass(slots=True)
class Tidied:
    """What was done to the rows."""

    out_of_order: dict[int, int] = field(default_factory=dict)
    """rank -> lines that stood before an earlier one of the same file"""
    duplicates: dict[int, int] = field(default_factory=dict)
    earlier_runs: list[EarlierRun] = field(default_factory=list)


class Table:
    """Columns that grow as rows arrive, one at a time when they must move, so that little is held twice."""

    def __init__(self, dtypes: Mapping[str, DTypeLike]) -> None:
        self._columns: Columns = {name: np.empty(_FIRST_ROWS, dtype) for name, dtype in dtypes.items()}
        self._capacity = _FIRST_ROWS
        self.rows = 0
        self.file_starts: list[int] = []

    def begin_file(self) -> None:
        """The rows that follow are of another file."""
        self.file_starts.append(self.rows)

    def append(self, block: Columns, rows: int) -> None:
        """Copies the first ``rows`` values of every column."""
        begin, end = self.rows, self.rows + rows
        if end > self._capacity:
            self._grow(max(end, self._capacity * _GROWTH))
        for name, column in self._columns.items():
            column[begin:end] = block[name][:rows]
        self.rows = end

    def _grow(self, capacity: int) -> None:
        for name, column in self._columns.items():
            self._columns[name] = np.empty(capacity, column.dtype)
            self._columns[name][: self.rows] = column[: self.rows]
        self._capacity = capacity

    def last_rank(self) -> int:
        """The rank of the last row."""
        return int(self._columns["rank"][self.rows - 1])

    def ranks_per_file(self) -> list[int]:
        """How many ranks each file holds."""
        rank = self._columns["rank"]
        found = []
        for begin, end in itertools.pairwise([*self.file_starts, self.rows]):
            mine = rank[begin:end]
            one = len(mine) and int(mine[0]) == int(mine[-1]) and bool((mine == mine[0]).all())
            found.append(1 if one else len(np.unique(mine)))
        return found

    def join(self) -> Columns:
        """All rows in the order read. The table is empty afterwards."""
        columns, self._columns, self._capacity = self._columns, {}, 0
        for column in columns.values():
            column.resize(self.rows, refcheck=False)  # gives the room back; nobody else has a view
        return columns


def tidy(columns: Columns, file_starts: list[int]) -> tuple[Columns, Tidied]:
    """Rows in the order of `Events`, each call once, the last run only."""
    done = Tidied()
    columns, origin = _order(columns, file_starts, done)
    keep = np.ones(len(columns["rank"]), np.bool_)
    _drop_earlier_runs(columns, origin, keep, done)
    _drop_duplicates(columns, keep, done)
    if not keep.all():
        columns = {name: column[keep] for name, column in columns.items()}
    return columns, done


def _order(columns: Columns, file_starts: list[int], done: Tidied) -> tuple[Columns, Index | None]:
    """Sorted columns, and for each row its number in the order read (None: unchanged)."""
    rank, time = columns["rank"], columns["enqueue"]
    if all(_in_order(rank[rows], time[rows]) for rows in _stretches(len(rank))):
        return columns, None
    by_rank = np.argsort(rank, kind="stable")
    sorted_rank, sorted_time = rank[by_rank], time[by_rank]
    late = (sorted_rank[1:] == sorted_rank[:-1]) & (sorted_time[1:] < sorted_time[:-1])
    if not late.any():
        return _permuted(columns, by_rank), by_rank
    file_of = np.searchsorted(np.asarray(file_starts), by_rank, side="right")
    within = np.flatnonzero(late & (file_of[1:] == file_of[:-1]))
    for value, count in zip(*np.unique(sorted_rank[within], return_counts=True), strict=True):
        done.out_of_order[int(value)] = int(count)
    order = np.lexsort((time, rank))
    return _permuted(columns, order), order


def _stretches(rows: int) -> Iterator[slice]:
    """Slices of all rows, each beginning with the last row of the one before: temporary arrays stay small."""
    for begin in range(0, max(rows - 1, 1), _STRETCH):
        yield slice(begin, min(begin + _STRETCH + 1, rows))


def _in_order(rank: NDArray[np.int32], time: Index) -> bool:
    rises = rank[1:] > rank[:-1]
    return bool((rises | ((rank[1:] == rank[:-1]) & (time[1:] >= time[:-1]))).all())


def _permuted(columns: Columns, order: Index) -> Columns:
    for name in list(columns):
        columns[name] = columns[name][order]
    return columns


def _drop_earlier_runs(columns: Columns, origin: Index | None, keep: NDArray[np.bool_], done: Tidied) -> None:
    rank, time = columns["rank"], columns["enqueue"]
    if len(rank) < 2:
        return
    pauses = [
        np.flatnonzero((rank[rows][1:] == rank[rows][:-1]) & (np.diff(time[rows]) >= MIN_RESTART_NS))
        + (rows.start + 1)
        for rows in _stretches(len(rank))
    ]
    after = np.concatenate(pauses)
    before = after - 1
    save, flags, seq = columns["save_count"], columns["flags"], columns["seq"]
    counted = (flags[after] & flags[before] & np.uint8(Flag.SAVE_COUNT)) != 0
    restarts = counted & (save[after] < save[before]) & (save[after] <= 1)
    maybe = after[~counted & (seq[after] == 0)].tolist()
    firsts = [*after[restarts].tolist(), *(row for row in maybe if _counters_restart(columns, row))]
    last_of_rank: dict[int, int] = {}
    for row in sorted(firsts):
        last_of_rank[int(rank[row])] = row
    for value, row in last_of_rank.items():
        begin = int(np.searchsorted(rank, value, "left"))
        keep[begin:row] = False
        rows = np.arange(begin, row) if origin is None else origin[begin:row]
        restart = row if origin is None else int(origin[row])
        done.earlier_runs.append(EarlierRun(value, int(rows.min()), int(rows.max()), row - begin, restart))


def _counters_restart(columns: Columns, row: int) -> bool:
    """Whether every stream that was used before this row counts from 0 again, and one of them had counted on.

    Without a save_count this is the only sign of a new process. A pause alone is not (a checkpoint), and
    a new communicator's counter is not either (it counts from 0 on a stream of its own while the others
    go on).
    """
    rank = columns["rank"]
    begin = int(np.searchsorted(rank, rank[row], "left"))
    end = int(np.searchsorted(rank, rank[row], "right"))
    stream, seq = columns["stream"], columns["seq"]
    had_counted = False
    for value in np.unique(stream[begin:row]).tolist():
        before = seq[begin:row][stream[begin:row] == value]
        after = seq[row:end][stream[row:end] == value]
        if not len(after) or int(before.max()) == NO_SEQ:
            continue
        if int(after[0]) > 1:
            return False
        had_counted |= int(before.max()) > 1
    return had_counted


def _drop_duplicates(columns: Columns, keep: NDArray[np.bool_], done: Tidied) -> None:
    """Of rows equal in every column but save_count, the first stays."""
    rank, time = columns["rank"], columns["enqueue"]
    ties = [
        np.flatnonzero((rank[rows][1:] == rank[rows][:-1]) & (time[rows][1:] == time[rows][:-1])) + rows.start
        for rows in _stretches(len(rank))
    ]
    first = np.concatenate(ties)
    if not len(first):
        return
    rows = np.union1d(first, first + 1)
    rows = rows[keep[rows]]
    names = ("rank", "enqueue", "stream", "seq", "op", "count", "group")
    # lexsort is stable: within equal rows the first in host order leads.
    order = rows[np.lexsort([columns[name][rows] for name in names])]
    equal = np.ones(len(order) - 1, np.bool_) if len(order) else np.empty(0, np.bool_)
    for name in names:
        values = columns[name][order]
        equal &= values[1:] == values[:-1]
    again = order[1:][equal] if len(order) else order
    keep[again] = False
    for value, count in zip(*np.unique(rank[again], return_counts=True), strict=True):
        done.duplicates[int(value)] = int(count)


def rank_slices(rank: NDArray[np.int32]) -> list[tuple[int, slice]]:
    """(rank, its rows) of rank-major rows."""
    if not len(rank):
        return []
    bounds = [0, *(np.flatnonzero(np.diff(rank)) + 1).tolist(), len(rank)]
    return [(int(rank[a]), slice(a, b)) for a, b in itertools.pairwise(bounds)]
