"""Communication calls of all ranks as columns.

One row is one call that one rank made on one communicator. Rows are kept *rank-major*: the rows of a rank are
contiguous and in the order in which its host made the calls, so a rank is a slice and never a mask. A column
that the source cannot observe is ``None``; a value that one row lacks is a sentinel (``UNSEEN``, ``NO_SEQ``,
``NO_COUNT``, ``NO_PEER``, ``NO_COMM``). There are no row objects: ten thousand ranks make a hundred million
rows.

Does not interpret anything: which communicator is which parallel axis is ``analysis.infer_layout``'s
business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int64]
I4 = NDArray[np.int32]
U8 = NDArray[np.uint64]
U1 = NDArray[np.uint8]

UNSEEN = int(np.iinfo(np.int64).min)
"""A time that was not observed, or that had not come when the recording stopped."""
NO_SEQ = -1
NO_COUNT = -1
NO_PEER = -1
NO_COMM = -1


class Op(IntEnum):
    """What a call does. Values are stable: they stand in recordings (``native/format.h``)."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    REDUCE = 5
    SEND = 6
    RECV = 7
    ALL_TO_ALL = 8
    GATHER = 9
    SCATTER = 10
    BARRIER = 11

    @property
    def is_p2p(self) -> bool:
        """A Send or a Recv."""
        return self in (Op.SEND, Op.RECV)


class EventFlag(IntFlag):
    """Bits of the ``flags`` column."""

    NONE = 0
    COALESCED = 1
    """One of several calls inside one NCCL group."""
    FAILED = 2
    """The call returned an error or its request completed with one."""
    HASH_CUT = 4
    """The log line was cut at its size limit: its group hash was not trusted."""


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Calls as a structure of arrays, all of length n, rank-major.

    rank     int32, global rank that made the call
    op       uint8, an ``Op``
    seq      int64, operation number within (rank, communicator) as the source counts it; ``NO_SEQ`` for none
    enqueue  int64 ns since the epoch: when the host made the call
    count    int64 elements as passed by the caller, or None
    stream   uint64 stream handle (a pointer, comparable only within one rank), or None
    comm     int32 index into ``Trace.communicators``, ``NO_COMM`` where unknown; None if the source has none
    start    int64 ns when the kernel started on this rank's device, or None; ``UNSEEN`` where it had not
    end      int64 ns when it completed on this rank's device, or None; ``UNSEEN`` where it had not
    nbytes   int64 payload bytes, or None
    peer     int32 global rank of the other end of a Send or Recv, or None
    flags    uint8, ``EventFlag`` bits, or None
    """

    rank: I4
    op: U1
    seq: I8
    enqueue: I8
    count: I8 | None = None
    stream: U8 | None = None
    comm: I4 | None = None
    start: I8 | None = None
    end: I8 | None = None
    nbytes: I8 | None = None
    peer: I4 | None = None
    flags: U1 | None = None

    def __post_init__(self) -> None:
        n = len(self.rank)
        for name, column in self.columns():
            if len(column) != n:
                raise ValueError(f"column {name} has {len(column)} rows, rank has {n}")
        if n and bool(np.any(np.diff(self.rank) < 0)):
            raise ValueError("events are not rank-major: sort them with Events.rank_major()")

    def __len__(self) -> int:
        return len(self.rank)

    def columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """(name, array) of every column that the source has."""
        for field in fields(self):
            column = getattr(self, field.name)
            if column is not None:
                yield field.name, column

    @staticmethod
    def empty() -> Events:
        """No calls."""
        return Events(
            rank=np.empty(0, np.int32),
            op=np.empty(0, np.uint8),
            seq=np.empty(0, np.int64),
            enqueue=np.empty(0, np.int64),
        )

    def ranks(self) -> I4:
        """Ranks that made at least one call, ascending."""
        if not len(self):
            return np.empty(0, np.int32)
        first = np.flatnonzero(np.diff(self.rank, prepend=self.rank[0] - 1))
        return self.rank[first]

    def rows_of(self, rank: int) -> slice:
        """The rows of one rank (an empty slice for a rank that is not there)."""
        wanted = np.int32(rank)  # of the column's own type: else the whole column is copied to int64 first
        first = int(np.searchsorted(self.rank, wanted, "left"))
        return slice(first, int(np.searchsorted(self.rank, wanted, "right")))

    def offsets(self) -> tuple[I4, I8]:
        """(ranks, bounds): rank ``ranks[i]`` owns rows ``bounds[i]:bounds[i + 1]``."""
        ranks = self.ranks()
        bounds = np.append(np.searchsorted(self.rank, ranks, "left"), len(self)).astype(np.int64)
        return ranks, bounds

    def take(self, rows: NDArray[Any] | slice) -> Events:
        """The given rows (mask, ascending indices or slice), still rank-major."""
        return Events(**{name: column[rows] for name, column in self.columns()})

    def with_columns(self, **columns: NDArray[Any] | None) -> Events:
        """A copy with columns added, replaced or (None) dropped."""
        values: dict[str, Any] = dict(columns)
        return replace(self, **values)

    @staticmethod
    def concatenate(parts: Sequence[Events]) -> Events:
        """All rows of parts, in ascending, disjoint order of rank; a column absent in one is filled."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return Events.empty()
        if len(parts) == 1:
            return parts[0]
        names = {name for part in parts for name, _ in part.columns()}
        return Events(**{name: np.concatenate([_column(part, name) for part in parts]) for name in names})

    @staticmethod
    def rank_major(columns: Iterable[tuple[str, NDArray[Any]]]) -> Events:
        """Sort rows by rank, keeping the order within a rank."""
        named = dict(columns)
        order = np.argsort(named["rank"], kind="stable")
        return Events(**{name: column[order] for name, column in named.items()})


_FILL: dict[str, tuple[int, type[np.generic]]] = {
    "count": (NO_COUNT, np.int64),
    "stream": (0, np.uint64),
    "comm": (NO_COMM, np.int32),
    "start": (UNSEEN, np.int64),
    "end": (UNSEEN, np.int64),
    "nbytes": (NO_COUNT, np.int64),
    "peer": (NO_PEER, np.int32),
    "flags": (0, np.uint8),
}


def _column(part: Events, name: str) -> NDArray[Any]:
    column: NDArray[Any] | None = getattr(part, name)
    if column is not None:
        return column
    fill, dtype = _FILL[name]
    return np.full(len(part), fill, dtype)
