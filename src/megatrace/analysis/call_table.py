"""The calls at the end of every rank's recording, and which of them are one call of several ranks.

What the graph of waiting is built from: a row a call, and for each the number of the collective, or of the
Send with its Recv, that it is a part of. Numbers of a communicator rise by one, so a call finds its place by
arithmetic: nothing is sorted.

Does not say which call has completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COMM, NO_PEER, NO_SEQ, Op
from megatrace.model.frontier import Frontier

I8 = NDArray[np.int64]
Mask = NDArray[np.bool_]

NEVER = int(np.iinfo(np.int64).max)
"""A number that no call has."""


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The tail calls of all ranks, rank-major. ``rank`` index; ``call`` number within the rank; ``step``
    number of the first call of its exchange; ``group`` communicator, or ``pairs.base + pair`` for P2P, −1
    where no partner is known; ``instance`` index into instances, −1 likewise; ``column`` of the tail.
    ``bounds`` int64 [R + 1]: the rows of each rank."""

    rank: I8
    call: I8
    step: I8
    column: NDArray[np.int32]
    group: I8
    seq: I8
    state: NDArray[np.uint8]
    instance: I8
    bounds: I8

    def of_ranks(self, ranks: NDArray[Any]) -> I8:
        """int64: the rows of these ranks (indices), in their order."""
        return runs(self.bounds[ranks], self.bounds[ranks + 1])


@dataclass(frozen=True, slots=True, eq=False)
class Instances:
    """Calls as their participants share them: a row for each number of a communicator or pair that a tail may
    hold, so that a call finds its row without a search; numbers that nobody called have rows as well.

    ``group`` and ``seq`` int64, ascending; ``absent`` bool: somebody recorded has not made it. ``made`` int64
    a group: the last number that all who are recorded have made.
    """

    group: I8
    seq: I8
    absent: Mask
    made: I8


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Ordered pairs of ranks with P2P: global ``src`` and ``dst``, ``sent`` and ``received`` int64 counts
    posted (−1 where that end was not recorded). ``base`` communicators come before them in ``group``."""

    base: int
    src: I8
    dst: I8
    sent: I8
    received: I8


def ordered_pairs(frontier: Frontier) -> tuple[Pairs, I8]:
    """The ordered pairs, and their sorted keys src · width + dst."""
    own = frontier.ranks[frontier.pair_rank].astype(np.int64)
    peer = frontier.pair_peer.astype(np.int64)
    width = int(max(frontier.ranks.max(initial=0), peer.max(initial=0))) + 1
    src, dst = np.where(frontier.pair_send, own, peer), np.where(frontier.pair_send, peer, own)
    keys, inverse = np.unique(src * width + dst, return_inverse=True)
    size = len(keys)
    sent, received = np.zeros(size, np.int64), np.zeros(size, np.int64)
    sent[inverse[frontier.pair_send]] = frontier.pair_posted[frontier.pair_send]
    received[inverse[~frontier.pair_send]] = frontier.pair_posted[~frontier.pair_send]
    src, dst = keys // width, keys % width
    sent[frontier.indices(src) < 0] = -1
    received[frontier.indices(dst) < 0] = -1
    return Pairs(frontier.members.size, src, dst, sent, received), keys


def tabulate_calls(frontier: Frontier, pairs: Pairs, pair_key: I8) -> tuple[Calls, Instances]:
    """All calls of the tails, and what they are calls of. ``pairs`` and ``pair_key`` as ``ordered_pairs`` has
    them."""
    size, ranks = frontier.tail, len(frontier)
    kept = np.minimum(frontier.calls, size)
    bounds = np.concatenate([[0], np.cumsum(kept)])
    valid = np.arange(size) >= size - kept[:, None] if int(kept.sum()) < ranks * size else None

    def flat(column: NDArray[Any]) -> NDArray[Any]:
        return column.reshape(-1) if valid is None else column[valid]

    rank = np.repeat(np.arange(ranks), kept)
    column = flat(np.broadcast_to(np.arange(size, dtype=np.int32), (ranks, size)))
    call = flat((frontier.calls - size)[:, None] + np.arange(size))
    op, seq = flat(frontier.tail_op), flat(frontier.tail_seq)
    group = _groups(frontier, flat(frontier.tail_comm))
    step, peer = call, flat(frontier.tail_peer)
    p2p = np.flatnonzero((op == Op.SEND) | (op == Op.RECV))
    if len(p2p):
        group[p2p] = _pair_groups(frontier, pairs, pair_key, rank[p2p], op[p2p], peer[p2p])
        step = _steps(rank, call, op, peer, flat(frontier.tail_time))
    if int(seq.min(initial=0)) < 0:
        group[seq < 0] = -1
    instance, instances = _instances(frontier, pairs, group, seq)
    return Calls(rank, call, step, column, group, seq, flat(frontier.tail_state), instance, bounds), instances


def _groups(frontier: Frontier, comm: NDArray[np.int32]) -> I8:
    """int64: the communicator of each call where it is known and others are in it, else −1.

    A communicator of one rank never counts (its operation number stays 0) and never waits.
    """
    size = frontier.members.size
    table = np.arange(size + 1)
    table[:-1][frontier.members.counts() == 1] = -1
    table[-1] = -1  # found by a communicator that is not known, −1
    if len(comm) and not (int(comm.min()) >= -1 and int(comm.max()) < size):
        comm = np.where((comm < 0) | (comm >= size), NO_COMM, comm)
    return np.asarray(table.take(comm))


def _pair_groups(
    frontier: Frontier, pairs: Pairs, pair_key: I8, rank: I8, op: NDArray[np.uint8], peer: NDArray[np.int32]
) -> I8:
    if not len(pair_key):
        return np.full(len(rank), -1, np.int64)
    width = int(max(frontier.ranks.max(initial=0), frontier.pair_peer.max(initial=0))) + 1
    own = frontier.ranks[rank].astype(np.int64)
    key = np.where(op == Op.SEND, own * width + peer, peer.astype(np.int64) * width + own)
    at = np.minimum(np.searchsorted(pair_key, key), len(pair_key) - 1)
    return np.where((peer != NO_PEER) & (pair_key[at] == key), pairs.base + at, -1)


EXCHANGE_NS = 50_000
"""Calls of one coalesced group follow each other within microseconds; between a Recv and the Send of what
was computed from it lie the launches of a forward, hundreds of microseconds."""


def _steps(rank: I8, call: I8, op: NDArray[np.uint8], peer: NDArray[np.int32], time: I8) -> I8:
    """Calls of one exchange share the number of its first: a Send and at once the Recv from the same peer,
    or Sends and Recvs made at the same time."""
    if len(rank) < 2:
        return call
    p2p = (op == Op.SEND) | (op == Op.RECV)
    both = p2p[1:] & p2p[:-1] & (rank[1:] == rank[:-1])
    answer = (op[1:] == Op.RECV) & (op[:-1] == Op.SEND) & (peer[1:] == peer[:-1]) & (peer[1:] != NO_PEER)
    joined = np.concatenate([[False], both & (answer | (np.diff(time) <= EXCHANGE_NS))])
    row = np.arange(len(rank))
    first = np.maximum.accumulate(np.where(joined, 0, row))
    return np.asarray(call - (row - first))


MOST_ROWS = 4
"""Rows of instances for each call of a tail: more, where numbers lie far apart, are counted without gaps."""


def _instances(frontier: Frontier, pairs: Pairs, group: I8, seq: I8) -> tuple[I8, Instances]:
    """The instance of each call, and all of them."""
    made = np.concatenate([_lowest(frontier), _posted(pairs)])
    low, width = _range(frontier, pairs, made)
    if len(made) * width <= MOST_ROWS * max(len(group), MOST_ROWS * frontier.tail):
        nth = np.append(low, 0).take(group)
        np.subtract(seq, nth, out=nth)
        unknown = np.flatnonzero(group < 0) if int(group.min(initial=0)) < 0 else np.empty(0, np.int64)
        nth[unknown] = 0
        if int(nth.view(np.uint64).max(initial=0)) < width:  # as unsigned, numbers below 0 are large
            instance = group * width
            instance += nth
            instance[unknown] = -1
            numbers = low[:, None] + np.arange(width)
            groups = np.repeat(np.arange(len(made)), width)
            absent = numbers > made[:, None]
            return instance, Instances(groups, numbers.reshape(-1), absent.reshape(-1), made)
    known_rows = np.flatnonzero(group >= 0)
    shift = 2 + int(seq[known_rows].max(initial=0))
    keys, at = np.unique(group[known_rows] * shift + seq[known_rows], return_inverse=True)
    instance = np.full(len(group), -1, np.int64)
    instance[known_rows] = at
    groups, numbers = keys // shift, keys % shift
    return instance, Instances(groups, numbers, numbers > made[groups], made)


def _range(frontier: Frontier, pairs: Pairs, made: I8) -> tuple[I8, int]:
    """The lowest number of each group that a tail may hold, where numbers rise by one, and how many there
    are."""
    last = np.full(len(made), -1, np.int64)
    np.maximum.at(last, frontier.entry_comm, frontier.entry_last)
    last[pairs.base :] = np.maximum(pairs.sent, pairs.received) - 1
    least = np.full(len(made), NEVER, np.int64)
    np.minimum.at(least, frontier.entry_comm, frontier.entry_last)
    ends = np.where(
        pairs.sent < 0,
        pairs.received,
        np.where(pairs.received < 0, pairs.sent, np.minimum(pairs.sent, pairs.received)),
    )
    least[pairs.base :] = ends - 1
    low = np.maximum(np.minimum(least, last) - frontier.tail + 1, 0)
    return low, int((last - low).max(initial=0)) + 1


def _posted(pairs: Pairs) -> I8:
    """Per pair: the last number that both ends have posted; an end that was not recorded has no say."""
    sent = np.where(pairs.sent < 0, NEVER, pairs.sent - 1)
    received = np.where(pairs.received < 0, NEVER, pairs.received - 1)
    return np.asarray(np.minimum(sent, received))


NEW_COMMUNICATOR_CALLS = 2
"""A member without any call on a communicator is behind only while its peers made at most this many:
beyond that they would not have got on without it, so its calls were lost or it is no member."""


def _lowest(frontier: Frontier) -> I8:
    """Per communicator: the lowest last sequence number among its recorded members."""
    size = frontier.members.size
    lowest = np.full(size, NEVER, np.int64)
    np.minimum.at(lowest, frontier.entry_comm, frontier.entry_last)
    seen = np.bincount(frontier.entry_comm, minlength=size)
    counts = frontier.members.counts()
    comm_of_member = np.repeat(np.arange(size), counts)
    recorded = frontier.indices(frontier.members.ranks) >= 0
    there = np.bincount(comm_of_member[recorded], minlength=size)
    made = np.zeros(size, np.int64)
    np.maximum.at(made, frontier.entry_comm, frontier.entry_last - frontier.entry_first + 1)
    silent = (seen < there) & (made > 0) & (made <= NEW_COMMUNICATOR_CALLS)
    for comm in np.flatnonzero(silent):
        index = frontier.indices(frontier.members.of_comm(int(comm)))
        mute = np.setdiff1d(index[index >= 0], frontier.entry_rank[frontier.entry_comm == comm])
        if not frontier.lost[mute].all():
            lowest[comm] = NO_SEQ
    return lowest


def runs(start: I8, stop: I8) -> I8:
    """int64: all numbers from each start up to before its stop."""
    size = stop - start
    shift = start - (np.cumsum(size) - size)
    return np.asarray(np.repeat(shift, size) + np.arange(int(size.sum())))
