"""What a rival method is given of a run: more than most of them had, so that no idea loses for want of data.

Every method sees start and end of every call on one exact clock, the true layout and the schedule's labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.diagnosing import analyse
from megatrace.analysis.work import WorkTable
from megatrace.model.events import UNSEEN, Op
from megatrace.model.finding import Diagnosis
from megatrace.model.layout import ParallelLayout
from megatrace.model.trace import Trace

F8: TypeAlias = NDArray[np.float64]
I8: TypeAlias = NDArray[np.int64]
Named: TypeAlias = frozenset[int]
"""Ranks that a method names; empty where it names nobody."""

NOBODY: Named = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """Collectives that all members completed, in order of their communicator and number.

    rank       int32 [members of all]: who, collective by collective
    first      int64 [n]: where the members of each begin in ``rank``
    start      float64 like ``rank``: seconds; end the same
    signature  int64 [n]: equal for the same call of every iteration of one communicator
    turn       int64 [n]: how often that signature came before
    """

    rank: NDArray[np.int32]
    first: I8
    start: F8
    end: F8
    signature: I8
    turn: I8

    def last(self) -> NDArray[np.int32]:
        """int32 [n]: the member that came last to each."""
        order = np.lexsort((self.start, self.of))
        ends = np.append(self.first[1:], len(self.rank)) - 1
        return np.asarray(self.rank[order[ends]], np.int32)

    @property
    def of(self) -> I8:
        """int64 like ``rank``: which collective each member belongs to."""
        lengths = np.diff(np.append(self.first, len(self.rank)))
        return np.repeat(np.arange(len(self.first)), lengths)


@dataclass(frozen=True, eq=False)
class Seen:
    """One run. ``trace`` with start and end; ``layout`` as the job had it."""

    trace: Trace
    layout: ParallelLayout
    now: int | None = None

    @cached_property
    def _analysis(self) -> tuple[WorkTable | None, Diagnosis]:
        analysis = analyse(self.trace, now=self.now)
        return analysis.table, analysis.diagnosis

    @property
    def table(self) -> WorkTable | None:
        """Begin and end of every forward and backward, as a framework's own timers would have them."""
        return self._analysis[0]

    @property
    def diagnosis(self) -> Diagnosis:
        """What MegaTrace says."""
        return self._analysis[1]

    @cached_property
    def phases(self) -> F8 | None:
        """float64 [iterations, S, D, M, tasks]: seconds from a task's input to its output, start-up left
        out."""
        table = self.table
        return None if table is None else (table.end - table.begin)[1:]

    @cached_property
    def pending(self) -> NDArray[np.bool_]:
        """bool [world]: ranks with a call that was made and did not complete."""
        events = self.trace.events
        assert events.end is not None
        open_calls = (events.end == UNSEEN) & (events.op != Op.UNKNOWN)
        found = np.zeros(self.layout.world_size, bool)
        found[events.rank[open_calls]] = True
        return found

    @cached_property
    def made(self) -> dict[int, dict[int, int]]:
        """Calls per rank, by communicator of collectives."""
        events = self.trace.events
        assert events.comm is not None
        shared = np.flatnonzero((events.op != Op.SEND) & (events.op != Op.RECV) & (events.comm >= 0))
        width = self.layout.world_size
        keys, calls = np.unique(
            events.comm[shared].astype(np.int64) * width + events.rank[shared], return_counts=True
        )
        counts: dict[int, dict[int, int]] = {}
        for key, number in zip(keys.tolist(), calls.tolist(), strict=True):
            counts.setdefault(key // width, {})[key % width] = number
        return counts

    @cached_property
    def last_call(self) -> dict[int, int]:
        """When the last call was made, by communicator; ns since the epoch."""
        events = self.trace.events
        assert events.comm is not None
        latest = np.zeros(len(self.trace.communicators), np.int64)
        known = events.comm >= 0
        np.maximum.at(latest, events.comm[known], events.enqueue[known])
        return dict(enumerate(latest.tolist()))

    @cached_property
    def meetings(self) -> Meetings:
        """All completed collectives."""
        events = self.trace.events
        assert events.comm is not None
        assert events.start is not None
        assert events.end is not None
        shared = (events.op != Op.SEND) & (events.op != Op.RECV) & (events.comm >= 0)
        rows = np.flatnonzero(shared & (events.start != UNSEEN) & (events.end != UNSEEN))
        rows = rows[np.lexsort((events.rank[rows], events.seq[rows], events.comm[rows]))]
        comm, seq = events.comm[rows].astype(np.int64), events.seq[rows]
        fresh = np.flatnonzero(np.diff(comm, prepend=-1).astype(bool) | np.diff(seq, prepend=-1).astype(bool))
        t0 = int(events.enqueue.min())
        iterations = len(self.table.iteration) if self.table is not None else 1
        signature, turn = _signatures(comm[fresh], max(iterations, 1))
        return Meetings(
            events.rank[rows],
            fresh,
            (events.start[rows] - t0) / 1e9,
            (events.end[rows] - t0) / 1e9,
            signature,
            turn,
        )

    def tensor_group(self, rank: int) -> Named:
        """A rank and its tensor peers."""
        size = self.layout.tp
        return frozenset(range(rank // size * size, rank // size * size + size))


def _signatures(comm: I8, iterations: int) -> tuple[I8, I8]:
    """The k-th of the calls that a communicator makes in each iteration has one signature."""
    bounds = np.append(np.flatnonzero(np.diff(comm, prepend=-1)), len(comm))
    signature, turn = np.zeros(len(comm), np.int64), np.zeros(len(comm), np.int64)
    used = 0
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        period = max((end - begin) // iterations, 1)
        at = np.arange(end - begin)
        signature[begin:end] = used + at % period
        turn[begin:end] = at // period
        used += period
    return signature, turn


class Rival(Protocol):
    """A published method. ``thresholds`` are tried on tuning seeds; the best is used on all others."""

    @property
    def name(self) -> str:
        """How tables call it."""

    @property
    def thresholds(self) -> tuple[float, ...]:
        """What is tried."""

    def hang(self, seen: Seen) -> Named:
        """Whom it names in a job that stands."""

    def slow(self, seen: Seen, threshold: float) -> Named:
        """Whom it names in a job that runs."""
