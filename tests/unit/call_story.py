"""A few calls told by hand, for tests of frontiers and hangs: who called what, what started, what ended.

Times are milliseconds on one clock. Every rank calls in the order in which the story tells it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatrace.model.events import NO_PEER, UNSEEN, Events, Op
from megatrace.model.frontier import Frontier
from megatrace.model.trace import Communicator

MS = 1_000_000
T0 = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Told:
    rank: int
    comm: int
    op: Op
    at: float
    seq: int
    count: int
    peer: int
    start: float | None
    end: float | None


@dataclass
class Story:
    """``groups``: members of each communicator. Collectives are numbered per (rank, communicator)."""

    groups: tuple[tuple[int, ...], ...]
    calls: list[Told] = field(default_factory=list)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def call(
        self,
        ranks: int | tuple[int, ...],
        comm: int,
        at: float,
        op: Op = Op.ALL_REDUCE,
        *,
        count: int = 4096,
        start: float | None = None,
        end: float | None = None,
        done: bool = True,
    ) -> Story:
        """One collective on each of the ranks; ``done`` gives it a start and an end of its own."""
        for rank in (ranks,) if isinstance(ranks, int) else ranks:
            seq = self.numbers.get((rank, comm), 0)
            self.numbers[rank, comm] = seq + 1
            begun = at + 0.1 if done else start
            ended = at + 0.5 if done else end
            self.calls.append(Told(rank, comm, op, at, seq, count, NO_PEER, begun, ended))
        return self

    def message(
        self, rank: int, peer: int, comm: int, at: float, op: Op, *, started: bool = True, done: bool = True
    ) -> Story:
        """One Send or Recv."""
        begun, ended = (at + 0.1 if started or done else None), (at + 0.5 if done else None)
        self.calls.append(Told(rank, comm, op, at, 0, 64, peer, begun, ended))
        return self

    def events(self, *, completions: bool = True) -> Events:
        """Columns, rank-major; without ``completions`` what a text log has."""
        told = sorted(self.calls, key=lambda one: one.rank)

        def ns(value: float | None) -> int:
            return UNSEEN if value is None else T0 + int(value * MS)

        events = Events(
            rank=np.array([one.rank for one in told], np.int32),
            op=np.array([one.op for one in told], np.uint8),
            seq=np.array([one.seq for one in told], np.int64),
            enqueue=np.array([ns(one.at) for one in told], np.int64),
            count=np.array([one.count for one in told], np.int64),
            comm=np.array([one.comm for one in told], np.int32),
            peer=np.array([one.peer for one in told], np.int32),
        )
        if not completions:
            return events
        return events.with_columns(
            start=np.array([ns(one.start) for one in told], np.int64),
            end=np.array([ns(one.end) for one in told], np.int64),
        )

    def communicators(self) -> tuple[Communicator, ...]:
        return tuple(Communicator(i, members) for i, members in enumerate(self.groups))

    def frontier(self, *, completions: bool = True, until: float | None = None, tail: int = 64) -> Frontier:
        """Where everybody stands; ``until`` ms is the time of the snapshot."""
        snapshot = None if until is None else T0 + int(until * MS)
        return Frontier.from_events(
            self.events(completions=completions), self.communicators(), snapshot, tail=tail
        )
