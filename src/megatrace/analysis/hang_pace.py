"""What a rank usually does next, and how soon, from its own past: the measure of an overdue or a missing
call.

A training job repeats itself, so the calls that a rank made last have been made before, and what followed
them then is what should follow now. Silence beyond the usual time is a stall; a call that differs from all
the past at a place where the past never varied is a step that went wrong. Only the few ranks under
suspicion are looked up.

Does not compare ranks with each other, and says nothing where a rank's past never looked like its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_PEER, NO_SEQ, UNSEEN, Events, Op

I8 = NDArray[np.int64]
U8 = NDArray[np.uint64]

CONTEXTS = (48, 24, 12, 6)
"""Calls that must agree, longest first: 48 tell most places of an iteration apart, 6 still tell a burst
from its end."""
ENOUGH = 2
"""Times that a context must have been seen: one may have been a pause."""
CONSTANT = 3
"""Times that a context must have been followed by the same call before another call there is remarkable."""
LOOK_BACK = 64
"""Calls before the end in which a step that went wrong is looked for: hosts run ahead by less than that."""
RUN = 3.0
"""A usual time to the next call within this multiple of the rank's median belongs to a run of calls."""
PAUSE = 5.0
"""A host that runs ahead pauses at the end of a run; its 95th percentile is then this multiple of its
median or more."""
_PRIME = np.uint64(0x100000001B3)


@dataclass(frozen=True, slots=True)
class Pace:
    """What followed the last calls of a rank in its past.

    ``gap`` ns: longest time to the next call; ``spread`` ns between the middle and the longest; ``seen``
    times.
    """

    gap: int
    spread: int
    seen: int


@dataclass(frozen=True, slots=True)
class Deviation:
    """A call that differs from what followed the same calls before: number of the call, what always came
    there, and on which communicator with which number (−1 where that is not known)."""

    call: int
    expected: Op
    made: Op
    comm: int
    seq: int


class History:
    """The past of a trace, looked up one rank at a time."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._found: dict[int, I8] = {}

    def pace(self, rank: int) -> Pace | None:
        """The pace of a global rank at its last call, or None where its past never looked like its end."""
        rows, found = self._events.rows_of(rank), self._like_the_end(rank)
        if not len(found):
            return None
        time = self._events.enqueue[rows]
        gaps = time[found + 1] - time[found]
        return Pace(int(gaps.max()), int(gaps.max() - np.median(gaps)), len(found))

    def stopped_short(self, rank: int, open_calls: int) -> bool:
        """Whether a rank's host stopped where it never used to wait: in the middle of a run of calls.

        ``open_calls``: calls from its first open one to its last. With completion times: it used to go on
        while the call that is open now was still open. Without: it used to go on as soon as within a run, and
        it is a host that runs ahead at all (one that waits for every call has no runs).
        """
        events, rows, found = self._events, self._events.rows_of(rank), self._like_the_end(rank)
        if not len(found) or len(np.unique(self._keys(rows)[found + 1])) > 1:
            return False  # never seen, or so little of it that it fits the end of a run as well
        time = events.enqueue[rows]
        if events.end is not None:
            known = found[found >= open_calls - 1] if open_calls else found[:0]
            if not len(known):
                return False
            return bool((time[known + 1] < events.end[rows][known - open_calls + 1]).mean() > 0.5)
        steps = np.diff(time)
        median = float(np.median(steps))
        usual = float(np.median(time[found + 1] - time[found]))
        return usual <= RUN * median and float(np.percentile(steps, 95)) >= PAUSE * median

    def deviation(
        self, rank: int, least: int = CONSTANT, size: int = CONTEXTS[0], *, always: bool = True
    ) -> Deviation | None:
        """The first of a rank's last calls that its past contradicts, or None.

        ``least``: times that the same must have followed before; ``size``: calls that must agree. ``always``:
        only where one and the same call followed; else where any others did, but never this one.
        """
        rows = self._events.rows_of(rank)
        key = self._keys(rows)
        n = len(key)
        if n < size + least:
            return None
        context = _contexts(key, size)  # context[i] covers key[i:i + size]
        for call in range(max(n - LOOK_BACK, size + 1), n):
            before = call - size
            found = np.flatnonzero(context[:before] == context[before]) + size
            following, times = np.unique(key[found], return_counts=True)
            if len(found) < least or key[call] in following or (always and len(following) > 1):
                continue
            usual = found[key[found] == following[np.argmax(times)]]
            return self._deviation(rows, call, int(usual[0]))
        return None

    def _deviation(self, rows: slice, call: int, usual: int) -> Deviation:
        """The ``call``-th call of a rank, where the ``usual``-th shows what should have come."""
        op, comm = self._events.op[rows], -1
        seq = -1
        if self._events.comm is not None:
            of_rank = self._events.comm[rows]
            comm = int(of_rank[usual])
            before = np.flatnonzero(of_rank[:call] == comm)
            seq = int(self._events.seq[rows][before[-1]]) + 1 if comm >= 0 and len(before) else -1
        return Deviation(call, Op(int(op[usual])), Op(int(op[call])), comm, seq)

    def device_stopped(self, rank: int) -> int | None:
        """ns: the last start or end on a global rank's device, None where none was seen."""
        rows = self._events.rows_of(rank)
        seen = [column[rows].max() for column in (self._events.start, self._events.end) if column is not None]
        last = int(max(seen, default=UNSEEN))
        return None if last == UNSEEN else last

    def longest_pause(self, start: int) -> int | None:
        """ns: the longest time between two calls of a rank, both after ``start`` ns; None where there are
        none."""
        events = self._events
        gaps = np.diff(events.enqueue)
        inside = (np.diff(events.rank) == 0) & (events.enqueue[:-1] > start)
        return int(gaps[inside].max()) if inside.any() else None

    def agreed(self, comm: int, ranks: tuple[int, int], before: int) -> bool:
        """Whether all calls below a number that two global ranks made on a communicator fit each other.

        True where they have none in common.
        """
        events, past = self._events, []
        if events.comm is None:
            return True
        for rank in ranks:
            part = events.rows_of(rank)
            rows = part.start + np.flatnonzero((events.comm[part] == comm) & (events.seq[part] < before))
            rows = rows[events.seq[rows] != NO_SEQ]
            past.append(rows[(events.op[rows] != Op.SEND) & (events.op[rows] != Op.RECV)])
        _, mine, theirs = np.intersect1d(*(events.seq[rows] for rows in past), return_indices=True)
        a, b = past[0][mine], past[1][theirs]
        fits = events.op[a] == events.op[b]
        if events.count is not None:
            fits &= (events.count[a] == events.count[b]) | (events.op[a] == Op.ALL_TO_ALL)
        return bool(fits.all())

    def _keys(self, rows: slice) -> U8:
        """What each call of a rank is, as one number; not which number it has.

        All-to-all has another size every time.
        """
        events = self._events
        key = events.op[rows].astype(np.uint64)
        parts: list[NDArray[np.generic]] = []
        where = events.stream if events.comm is None else events.comm
        if where is not None:
            parts.append(where[rows])
        if events.count is not None:
            parts.append(np.where(events.op[rows] == Op.ALL_TO_ALL, 0, events.count[rows]))
        if events.peer is not None:
            parts.append(np.where(events.peer[rows] == NO_PEER, -1, events.peer[rows]))
        for column in parts:
            key = (key * _PRIME) ^ column.astype(np.int64).astype(np.uint64)
        return np.asarray((key * _PRIME) ^ (key >> np.uint64(31)), dtype=np.uint64)

    def _like_the_end(self, rank: int) -> I8:
        """Positions within a rank's rows at which its calls so far ended as they end now; empty where
        never."""
        if rank not in self._found:
            key = self._keys(self._events.rows_of(rank))
            self._found[rank] = np.empty(0, np.int64)
            for size in CONTEXTS:
                if len(key) < size + 2:
                    continue
                context = _contexts(key, size)
                found = np.flatnonzero(context[:-1] == context[-1]) + size - 1
                if len(found) >= ENOUGH:
                    self._found[rank] = found
                    break
        return self._found[rank]


def _contexts(key: U8, size: int) -> U8:
    """uint64 [n − size + 1]: a hash of every ``size`` consecutive keys, in order."""
    n = len(key)
    out = np.zeros(n - size + 1, np.uint64)
    for i in range(size):
        out = out * _PRIME + key[i : n - size + 1 + i]
    return out
