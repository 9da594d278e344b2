"""Collectives as meetings: moments at which ranks on several clocks were at the same point at the same time.

A collective of which every member needs something of every other cannot end anywhere before the last member
has begun, and it ends nearly at once everywhere. This module lays such calls out per communicator, calls ×
clocks, for ``align`` to compare. A recording has begin and end on the device. A text log has host times
alone: there the begin is the call, the end is the host's *next* call, and that is an end only at calls for
whose result the host waits; whether it does must be proven (``align_proof``).

Reads a small, even sample of the calls. Compares nothing and decides nothing about clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.anchors import LIGHT_COUNT
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.roles import Role
from megatrace.model.events import UNSEEN, Op

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]

# Every member's result depends on every member's data. A Broadcast's root may end before the others begin;
# Reduce, Gather and Scatter are as one-sided.
SYMMETRIC = np.isin(
    np.arange(256), [Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER]
)
# Calls read in all: half a second of sorting. Clocks drift by milliseconds an hour: more samples tell no
# more.
BUDGET = 800_000
# Calls a communicator at most, and at least where the budget is short: a line needs a handful of points.
MOST, FEWEST = 256, 12
# The quickest calls bound the error best. Calls of up to this many times the smallest size are as quick:
# latency, not bandwidth, is their time.
SMALL = 4


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """The sampled calls of one communicator, ascending in time; ns after ``Meetings.t0``; NaN where not seen.

    clocks    int64 [C], indices of the clocks that its members run on, two or more
    position  int64 [I]: which call of the iteration it is (0 throughout where the source counts calls)
    begin     float64 [I, C]: when the last member on a clock was there
    end       float64 [I, C]: when the first member on a clock was through
    cost      float64 [I]: shortest time of a member in the call: the last to come waits for nobody
    own_cost  float64 [I, C]: the same among the members on one clock
    settled   ns from the last arrival at a device to all ends; inf where times show it (``cost``)
    unequal   float64 [C]: how much slower than the quickest a clock's hosts go on after the call, at least 1
    unsteady  ns by which a clock's ends change from call to call
    """

    clocks: I8
    position: I8
    begin: F8
    end: F8
    cost: F8
    own_cost: F8
    settled: float
    unequal: F8
    unsteady: float = 0.0

    @property
    def usual_error(self) -> float:
        """ns: how far apart the quick calls may have ended."""
        quick = float(np.quantile(self.cost, 0.25))
        return quick if self.settled == np.inf else self.settled + self.unsteady


def collect(resolved: Resolved, clock_of: I8, t0: int, completed: bool) -> list[Meeting]:
    """Meetings of all communicators that span clocks. ``clock_of`` int64 [ranks]: the clock of each rank."""
    events, channels = resolved.trace.events, resolved.channels
    if events.comm is None or not len(events):
        return []
    comm_of = events.comm[channels.first_row].astype(np.int64)  # [channels]
    spans = _spanning(comm_of, clock_of[channels.rank])
    usable = spans & (channels.counted | (resolved.iterations is not None))
    if not completed and resolved.iterations is None:
        return []  # without iterations nothing repeats, and only repetition proves that a host waited
    fit = usable[channels.of_event] & SYMMETRIC[events.op]
    if not completed:
        # Hosts read norms, losses and flags, never activations: a wait for those is the device's. Whose group
        # a stream serves was worked out from times where no log names it: then only what all ranks share.
        named = ~channels.by_stream | _of_everybody(resolved, comm_of)
        fit &= (resolved.role == Role.OTHER) | (named[channels.of_event] & (resolved.role == Role.DATA))
        if events.count is not None:
            fit &= events.count <= LIGHT_COUNT
    rows = np.flatnonzero(fit)
    if not len(rows):
        return []
    rows, key, position = _keyed(resolved, rows, completed)
    rows, key, position = _sampled(resolved, comm_of, rows, key, position, completed)
    return _laid_out(resolved, clock_of, t0, completed, rows, key, position)


def _of_everybody(resolved: Resolved, comm_of: I8) -> NDArray[np.bool_]:
    """bool [channels]: every rank seen uses the channel's communicator."""
    users = np.bincount(comm_of + 1)
    return np.asarray((comm_of >= 0) & (users[comm_of + 1] == len(np.unique(resolved.channels.rank))))


def _spanning(comm: I8, clock: I8) -> NDArray[np.bool_]:
    """bool [channels]: the channel's communicator has members on two clocks."""
    size = int(comm.max(initial=-1)) + 2
    low, high = np.full(size, np.iinfo(np.int64).max), np.full(size, -1)
    np.minimum.at(low, comm, clock)  # comm −1 falls into the last place
    np.maximum.at(high, comm, clock)
    return np.asarray((comm >= 0) & (low[comm] < high[comm]), dtype=np.bool_)


def _keyed(resolved: Resolved, rows: I8, completed: bool) -> tuple[I8, I8, I8]:
    """(rows, key, position): equal keys on one communicator are the same call on every rank."""
    channels, events, it = resolved.channels, resolved.trace.events, resolved.iterations
    counted = channels.counted[channels.of_event[rows]]
    if completed and bool(counted.all()):
        return rows, events.seq[rows], np.zeros(len(rows), np.int64)
    if it is None:
        rows = rows[counted]
        return rows, events.seq[rows], np.zeros(len(rows), np.int64)
    # Counted from the start of the iteration, whose number is right on every rank even after a gap.
    index = np.minimum(np.searchsorted(it.row, rows, "left"), len(it.row) - 1)
    inside = (it.rank[index] == events.rank[rows]) & (it.start[index] >= 0) & (rows >= it.start[index])
    rows, index = rows[inside & (rows <= it.row[index])], index[inside & (rows <= it.row[index])]
    channel = channels.of_event[rows].astype(np.int64)
    order = np.argsort(channel * (len(it.row) + 1) + index, kind="stable")
    group = (channel * (len(it.row) + 1) + index)[order]
    first = np.flatnonzero(np.diff(group, prepend=-1))
    position = np.empty(len(rows), np.int64)
    position[order] = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
    width = int(position.max(initial=0)) + 1
    return rows, it.number[index] * width + position, position


def _sampled(
    resolved: Resolved, comm_of: I8, rows: I8, key: I8, position: I8, completed: bool
) -> tuple[I8, I8, I8]:
    """A sample that is the same on all ranks of a communicator, even over the run, of small calls."""
    events, channels = resolved.trace.events, resolved.channels
    channel = channels.of_event[rows]
    each = max(FEWEST, min(MOST, BUDGET // max(len(np.unique(channel)), 1)))
    comm = comm_of[channel]
    narrow = comm.astype(np.int16) if int(comm.max(initial=0)) < 2**15 else comm  # radix sort
    order = np.argsort(narrow, kind="stable")
    bounds = np.flatnonzero(np.diff(comm[order], prepend=-1, append=-2))
    kept = np.zeros(len(rows), np.bool_)
    for low, high in pairwise(bounds):
        part = order[low:high]
        speaker = part[_longest_run(channel[part])]  # one member's calls stand for all
        calls, at = key[speaker], position[speaker]
        if completed and events.count is not None:
            size = events.count[rows[speaker]]
            calls = calls[size <= SMALL * max(int(size.min()), 1)]
        if completed:
            chosen = calls[_even(len(calls), each)]
        else:
            iteration = np.unique(calls - at)
            wanted = iteration[_even(len(iteration), max(each // (int(at.max()) + 1), FEWEST))]
            chosen = calls[np.isin(calls - at, wanted)]
        chosen = np.sort(chosen)
        found = np.minimum(np.searchsorted(chosen, key[part]), len(chosen) - 1)
        kept[part] = chosen[found] == key[part]
    return rows[kept], key[kept], position[kept]


def _longest_run(values: NDArray[np.int32]) -> slice:
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    length = np.diff(np.append(first, len(values)))
    best = int(np.argmax(length))
    return slice(int(first[best]), int(first[best] + length[best]))


def _even(n: int, most: int) -> I8:
    """Indices of at most ``most`` of n things, even over them, first and last included."""
    return np.arange(n) if n <= most else np.unique(np.linspace(0, n - 1, most).round().astype(np.int64))


def _laid_out(
    resolved: Resolved, clock_of: I8, t0: int, completed: bool, rows: I8, key: I8, position: I8
) -> list[Meeting]:
    """Rows [n] → per communicator [calls, clocks]."""
    events = resolved.trace.events
    assert events.comm is not None  # the caller has looked
    begin, end = _times(resolved, t0, completed, rows, position)
    seen = ~np.isnan(begin) & ~np.isnan(end)
    rows, key, position, begin, end = rows[seen], key[seen], position[seen], begin[seen], end[seen]
    if not len(rows):
        return []
    comm, clock = events.comm[rows].astype(np.int64), clock_of[events.rank[rows]]
    order = np.lexsort((clock, key, comm))
    comm, key, clock, position = comm[order], key[order], clock[order], position[order]
    begin, end = begin[order], end[order]
    call = _changes(comm) | _changes(key)
    group = np.flatnonzero(call | _changes(clock))
    late, early = np.maximum.reduceat(begin, group), np.minimum.reduceat(end, group)
    cost = np.minimum.reduceat(end - begin, group)
    number = np.cumsum(call) - 1  # of the call, over all communicators
    result = []
    starts = np.flatnonzero(_changes(comm[group]))
    for low, high in zip(starts, np.append(starts[1:], len(group)), strict=True):
        own = group[low:high]
        clocks, column = np.unique(clock[own], return_inverse=True)
        if len(clocks) < 2:
            continue
        line = number[own] - number[own[0]]
        shape = (int(line[-1]) + 1, len(clocks))
        tables = [np.full(shape, np.nan) for _ in range(3)]
        for table, values in zip(tables, (late, early, cost), strict=True):
            table[line, column] = values[low:high]
        at = np.zeros(shape[0], np.int64)
        at[line] = position[own]
        result.append(
            Meeting(
                clocks=clocks,
                position=at,
                begin=tables[0],
                end=tables[1],
                cost=np.fmin.reduce(tables[2], axis=1),
                own_cost=tables[2],
                settled=np.inf,
                unequal=np.ones(len(clocks)),
            )
        )
    return result


def _changes(values: I8) -> NDArray[np.bool_]:
    return np.concatenate([[True], values[1:] != values[:-1]])


def _times(resolved: Resolved, t0: int, completed: bool, rows: I8, position: I8) -> tuple[F8, F8]:
    """(begin, end) of each row, ns after t0; NaN where not seen."""
    events = resolved.trace.events
    if completed:
        start, stop = (
            np.where(column[rows] == UNSEEN, np.nan, column[rows] - t0)
            for column in (events.start, events.end)
            if column is not None
        )
        return start, stop
    assert events.comm is not None  # collect has looked
    after = np.minimum(rows + 1, len(events) - 1)
    follows = (events.rank[after] == events.rank[rows]) & (after > rows) & ~np.isin(after, resolved.gap_rows)
    # Ranks whose next call is of another kind may have had other work to do before it: only the usual kind
    # counts.
    kind = np.where(follows, events.op[after], len(Op)).astype(np.int64)
    width = int(position.max(initial=0)) + 1
    call = events.comm[rows].astype(np.int64) * width + position
    kinds = len(Op) + 1
    votes = np.bincount(call * kinds + kind, minlength=(int(call.max()) + 1) * kinds).reshape(-1, kinds)
    follows &= kind == votes[:, : len(Op)].argmax(axis=1)[call]
    begin = (events.enqueue[rows] - t0).astype(np.float64)
    return begin, np.where(follows, events.enqueue[after] - t0, np.nan)
