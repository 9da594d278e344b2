"""Whole columns at once: how far every rank is behind its peers, and where members of a communicator
differ.

The cheapest questions that can be asked of a trace, for traces of ten million calls: a few passes over the
columns, block by block so that intermediate arrays stay in the cache. ``Frontier`` answers more and costs
more.

Does not look at P2P, at completions, or at what a lag means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COUNT, NO_SEQ, Events, Op
from megatrace.model.frontier_index import Members, slots_of

I8 = NDArray[np.int64]
I4 = NDArray[np.int32]

BLOCK = 1 << 16
"""Rows a block: its three or four intermediate columns stay within a megabyte of cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Lags:
    """One entry a (rank, communicator): global rank and communicator int32, last sequence number int64,
    and by how many calls the rank is behind the foremost member, int64."""

    rank: I4
    comm: I4
    last: I8
    behind: I8


def lags(events: Events, members: Members) -> Lags:
    """Positions from collective calls that carry a communicator and a sequence number.

    Read from the end: a rank's last calls hold its position on all its communicators but the rare ones,
    for which more of it is read. Calls on a communicator of which the rank is no member are not looked at.
    Raises ValueError where the members of a communicator are not known: ``Frontier`` copes with that.
    """
    ranks, bounds = events.offsets()
    slots = slots_of(members, ranks)
    if slots is None or events.comm is None:
        raise ValueError("lags: the members of every communicator must be known")
    width = int(slots.max(initial=0)) + 1
    own = np.full((len(ranks), width), -1, np.int64)
    index = np.searchsorted(ranks, members.ranks)
    comm_of = np.repeat(np.arange(members.size), members.counts())
    seen = ranks[np.minimum(index, len(ranks) - 1)] == members.ranks
    own[index[seen], slots[comm_of[seen]]] = comm_of[seen]
    last = np.full((len(ranks), width), NO_SEQ, np.int64)
    left, reach = np.arange(len(ranks)), FIRST_LOOK
    while len(left):
        _look_back(events, bounds, left, reach, slots, last)
        longer = bounds[left + 1] - bounds[left] > reach
        left = left[longer & ((own[left] >= 0) & (last[left] == NO_SEQ)).any(axis=1)]
        reach *= 8
    row, slot = np.nonzero((own >= 0) & (last > NO_SEQ))
    comm, position = own[row, slot].astype(np.int32), last[row, slot]
    foremost = np.full(members.size, NO_SEQ, np.int64)
    np.maximum.at(foremost, comm, position)
    return Lags(ranks[row], comm, position, foremost[comm] - position)


FIRST_LOOK = 32
"""Calls of each rank that are read first, about a micro-batch; then eight times as many of those ranks
that need more."""


def _look_back(events: Events, bounds: I8, left: I8, reach: int, slots: I8, last: I8) -> None:
    """Sets ``last`` of the given ranks (indices) from their last ``reach`` calls, block by block."""
    assert events.comm is not None
    step = max(BLOCK // reach, 1)
    for at in range(0, len(left), step):
        part = left[at : at + step]
        rows = bounds[part + 1][:, None] - np.arange(reach, 0, -1)
        inside = rows >= bounds[part][:, None]
        rank = np.broadcast_to(part[:, None], rows.shape)[inside]
        rows = rows[inside]
        slot = slots.take(events.comm.take(rows))
        last[rank, slot] = events.seq.take(rows)  # of repeated indices the last stays


def differing_rows(events: Events, members: Members) -> I8:
    """int64: rows whose operation or size differs from another member's call of the same number, ascending.

    Collectives only; all-to-all is exempt from sizes. Which of the members is the odd one is not decided.
    """
    if events.comm is None or not len(events) or not members.size:
        return np.empty(0, np.int64)
    found = lags(events, members)
    highest = np.full(members.size, NO_SEQ, np.int64)
    np.maximum.at(highest, found.comm, found.last)
    span = highest + 1
    base = np.cumsum(span) - span
    table = np.zeros(int(span.sum()), np.int64)
    for rows in _blocks(len(events)):
        at = _cells(events, base, rows)
        table[at] = _signatures(events, rows)
    odd: list[I8] = []
    for rows in _blocks(len(events)):
        at = _cells(events, base, rows)
        different = np.flatnonzero(table.take(at) != _signatures(events, rows))
        if len(different):
            odd.append(np.unique(at[different]))
    if not odd:
        return np.empty(0, np.int64)
    cells = np.unique(np.concatenate(odd))
    comm = np.searchsorted(base, cells, "right") - 1
    near = np.flatnonzero(np.isin(events.comm, comm))
    return near[np.isin(base[events.comm[near]] + events.seq[near], cells)]


def _cells(events: Events, base: I8, rows: slice) -> I8:
    """The cell of each row in a table of (communicator, number)."""
    assert events.comm is not None
    at = base.take(events.comm[rows])
    at += events.seq[rows]
    return at


def _signatures(events: Events, rows: slice) -> I8:
    op = events.op[rows]
    out = op.astype(np.int64)
    out <<= 56
    if events.count is not None:
        count = events.count[rows]
        uneven = op == Op.ALL_TO_ALL
        out ^= np.where(uneven, NO_COUNT, count) if uneven.any() else count
    return out


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK):
        yield slice(start, min(start + BLOCK, rows))
