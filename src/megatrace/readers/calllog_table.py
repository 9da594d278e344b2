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
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.readers.calllog_line import NO_SEQ, Flag

Columns = dict[str, NDArray[Any]]
Index = NDArray[np.int64]

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
    """Columns that grow block by block, then are joined once."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
        self.rows = 0
        self.file_starts: list[int] = []

    def begin_file(self) -> None:
        """The rows that follow are of another file."""
        self.file_starts.append(self.rows)

    def append(self, block: Columns) -> None:
        """Takes arrays that nobody else changes."""
        for name, parts in self._parts.items():
            parts.append(block[name])
        self.rows += len(block["rank"])

    def last_rank(self) -> int:
        """The rank of the last row."""
        return int(self._parts["rank"][-1][-1])

    def ranks_per_file(self) -> list[int]:
        """How many ranks each file holds."""
        seen: list[set[int]] = [set() for _ in self.file_starts]
        row = 0
        ends = [*self.file_starts[1:], self.rows]
        file = 0
        for part in self._parts["rank"]:
            while row >= ends[file]:
                file += 1
            one = int(part[0])
            seen[file].update((one,) if bool((part == one).all()) else np.unique(part).tolist())
            row += len(part)
        return [len(ranks) for ranks in seen]

    def join(self) -> Columns:
        """All rows in the order read. Frees the blocks column by column, so that nothing is held twice."""
        joined: Columns = {}
        for name in list(self._parts):
            parts = self._parts.pop(name)
            joined[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined


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
    same_rank = rank[1:] == rank[:-1]
    if bool((rank[1:] >= rank[:-1]).all()) and not bool((same_rank & (time[1:] < time[:-1])).any()):
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


def _permuted(columns: Columns, order: Index) -> Columns:
    for name in list(columns):
        columns[name] = columns[name][order]
    return columns


def _drop_earlier_runs(columns: Columns, origin: Index | None, keep: NDArray[np.bool_], done: Tidied) -> None:
    rank, time = columns["rank"], columns["enqueue"]
    if len(rank) < 2:
        return
    pause = (rank[1:] == rank[:-1]) & (time[1:] - time[:-1] >= MIN_RESTART_NS)
    save, flags, seq = columns["save_count"], columns["flags"], columns["seq"]
    counted = (flags & np.uint8(Flag.SAVE_COUNT)) != 0
    restarts = pause & counted[1:] & counted[:-1] & (save[1:] < save[:-1]) & (save[1:] <= 1)
    maybe = np.flatnonzero(pause & ~restarts & ~counted[1:] & (seq[1:] == 0)) + 1
    firsts = [
        *(np.flatnonzero(restarts) + 1).tolist(),
        *(r for r in maybe.tolist() if _counters_restart(columns, r)),
    ]
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
    tie = (rank[1:] == rank[:-1]) & (time[1:] == time[:-1])
    if not tie.any():
        return
    tied = np.zeros(len(rank), np.bool_)
    tied[1:] |= tie
    tied[:-1] |= tie
    rows = np.flatnonzero(tied & keep)
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
