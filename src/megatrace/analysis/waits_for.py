"""Who waits for whom: the graph over frontiers from which every hang verdict is read.

A rank *waits* at its first call that cannot have completed. What holds that call up is another rank that
has not made it (absent), has it behind an earlier open call of its own (queued), or has not started it on
its device (unstarted). A rank that waits at nothing, and a call that nobody holds up, are where chains
end: roots.

With completion times, an open call is one that has not ended. Without, a call is surely incomplete where a
partner has not made it, or has it behind a call that is itself surely incomplete; that is followed to its
fixed point.

Program order stands for dependence: a training step issues its calls in the order in which they depend on
each other. A Send and the Recv from the same peer right after it are one coalesced exchange and progress
together.

Does not say whether anything hangs: a moving job has such a graph at every moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_PEER, NO_SEQ, Op
from megatrace.model.frontier import ENDED, ENQUEUED, Frontier

I8 = NDArray[np.int64]
Mask = NDArray[np.bool_]

NEVER = int(np.iinfo(np.int64).max)
"""Step of the first open call of a rank that has none."""


class Hold(IntEnum):
    """Why a rank holds up a call."""

    ABSENT = 0
    """It has not made the call."""
    QUEUED = 1
    """It made the call, behind an earlier call that is open."""
    UNSTARTED = 2
    """It made the call and has nothing open before it, but its device did not start it."""
    UNRECORDED = 3
    """Nothing of it was recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The tail calls of all ranks, rank-major. ``rank`` index; ``call`` number within the rank; ``step``
    number of the first call of its exchange; ``group`` communicator, or ``pairs.base + pair`` for P2P, −1
    where no partner is known; ``instance`` index into instances, −1 likewise; ``column`` of the tail.
    ``order``: the rows that have an instance, by instance and then by rank."""

    rank: I8
    call: I8
    step: I8
    column: I8
    group: I8
    seq: I8
    state: NDArray[np.uint8]
    instance: I8
    order: I8


@dataclass(frozen=True, slots=True, eq=False)
class Instances:
    """Calls as their participants share them: one row a collective or one Send with its Recv.

    ``group`` and ``seq`` int64; ``absent`` bool: somebody recorded has not made it; ``unrecorded`` bool:
    somebody who takes part was not recorded.
    """

    group: I8
    seq: I8
    absent: Mask
    unrecorded: Mask


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Ordered pairs of ranks with P2P: global ``src`` and ``dst``, ``sent`` and ``received`` int64 counts
    posted (−1 where that end was not recorded). ``base`` communicators come before them in ``group``."""

    base: int
    src: I8
    dst: I8
    sent: I8
    received: I8


@dataclass(frozen=True, slots=True, eq=False)
class WaitsFor:
    """The graph. ``step`` int64 [R]: step of the first open call, ``NEVER`` where none.

    waits: rank index ``wait_rank`` waits at instance ``wait_instance`` with its call ``wait_row`` (row of
    ``calls``). holds: rank index ``hold_rank`` (−1 − global rank where unrecorded) holds up
    ``hold_instance`` because ``hold_why``. Both ascending by instance.
    """

    frontier: Frontier
    calls: Calls
    instances: Instances
    pairs: Pairs
    step: I8
    wait_rank: I8
    wait_instance: I8
    wait_row: I8
    hold_instance: I8
    hold_rank: I8
    hold_why: NDArray[np.uint8]

    @property
    def waiting(self) -> Mask:
        """bool [R]: ranks with an open call."""
        return np.asarray(self.step != NEVER)

    def holders(self, instance: int) -> list[tuple[int, Hold]]:
        """(rank index, why) of those who hold up one instance."""
        part = slice(*np.searchsorted(self.hold_instance, [instance, instance + 1]))
        return [
            (int(r), Hold(int(w))) for r, w in zip(self.hold_rank[part], self.hold_why[part], strict=True)
        ]

    def waiters(self, instance: int) -> I8:
        """Rank indices that wait at one instance."""
        part = slice(*np.searchsorted(self.wait_instance, [instance, instance + 1]))
        return np.asarray(self.wait_rank[part])

    def held_up(self, ranks: NDArray[Any], instances: NDArray[Any] | None = None) -> Mask:
        """bool [R]: everyone who waits for these ranks or instances, directly or through others,
        themselves excluded."""
        away = self.distance(ranks, instances)
        away[ranks] = 0
        return np.asarray(away > 0)

    def distance(self, ranks: NDArray[Any], instances: NDArray[Any] | None = None) -> I8:
        """int64 [R]: steps from each rank along the chain to the nearest of these, −1 where it does not
        wait for them."""
        hit = np.zeros(len(self.frontier), np.bool_)
        hit[ranks] = True
        away = np.where(hit, 0, -1)
        stuck = np.zeros(len(self.instances.seq), np.bool_)
        if instances is not None:
            stuck[instances] = True
        real = self.hold_rank >= 0
        hold_rank, hold_instance = self.hold_rank[real], self.hold_instance[real]
        count = -1
        while int(hit.sum()) + int(stuck.sum()) != count:
            count = int(hit.sum()) + int(stuck.sum())
            stuck[hold_instance[hit[hold_rank]]] = True
            hit[self.wait_rank[stuck[self.wait_instance]]] = True
            away[hit & (away < 0)] = int(away.max()) + 1
        return away

    def finished(self, instance: int) -> I8:
        """Rank indices that completed an instance: as their calls say, or the counters of those whose call is
        no longer recorded."""
        rows = np.flatnonzero(self.calls.instance == instance)
        done = self.calls.rank[rows[self.calls.state[rows] == ENDED]]
        group, frontier = int(self.instances.group[instance]), self.frontier
        if group >= self.pairs.base:
            return np.asarray(done, np.int64)
        mine = (frontier.entry_comm == group) & (frontier.entry_ended >= self.instances.seq[instance])
        counted = np.setdiff1d(frontier.entry_rank[mine], self.calls.rank[rows])
        return np.union1d(done, counted).astype(np.int64)

    def directly(self, rank: int) -> I8:
        """Instances that a rank (index) holds up by not having made the call."""
        mine = (self.hold_rank == rank) & (self.hold_why == Hold.ABSENT)
        return np.asarray(self.hold_instance[mine])


def waits_for(frontier: Frontier) -> WaitsFor:
    """The graph of one frontier. Linear in ranks × tail, but for one sort."""
    pairs, pair_key = _pairs(frontier)
    calls, instances = _calls(frontier, pairs, pair_key)
    if frontier.has_end:
        incomplete = (calls.state < ENDED) & (calls.instance >= 0)
        step = _first_steps(frontier, calls, incomplete)
        step = np.minimum(step, _before_tail(frontier, calls))
    else:
        step, incomplete = _fixed_point(frontier, calls, instances)
    rows = np.flatnonzero(incomplete & (calls.step == step[calls.rank]))
    rows = rows[np.argsort(calls.instance[rows], kind="stable")]
    hold_instance, hold_rank, hold_why = _holds(frontier, calls, instances, pairs, step, rows)
    return WaitsFor(
        frontier=frontier,
        calls=calls,
        instances=instances,
        pairs=pairs,
        step=step,
        wait_rank=calls.rank[rows],
        wait_instance=calls.instance[rows],
        wait_row=rows,
        hold_instance=hold_instance,
        hold_rank=hold_rank,
        hold_why=hold_why,
    )


def _pairs(frontier: Frontier) -> tuple[Pairs, I8]:
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


def _calls(frontier: Frontier, pairs: Pairs, pair_key: I8) -> tuple[Calls, Instances]:
    size = frontier.tail
    column = np.arange(size)
    valid = column >= size - frontier.calls[:, None]
    rank, col = np.nonzero(valid)
    call = frontier.calls[rank] - size + col
    op, comm = frontier.tail_op[rank, col], frontier.tail_comm[rank, col]
    peer, seq = frontier.tail_peer[rank, col], frontier.tail_seq[rank, col]
    p2p = (op == Op.SEND) | (op == Op.RECV)
    # A communicator of one rank never counts (its operation number stays 0) and never waits.
    shared = frontier.members.counts() != 1
    group = np.where((comm >= 0) & _of(shared, comm), comm, -1).astype(np.int64)
    group[p2p] = _pair_groups(frontier, pairs, pair_key, rank[p2p], op[p2p], peer[p2p])
    group[seq < 0] = -1
    step = _steps(rank, call, op, peer, frontier.tail_time[rank, col])
    known = np.flatnonzero(group >= 0)
    shift = 2 + int(seq[known].max(initial=0))
    key = group[known] * shift + seq[known]
    order = _order(key)
    key = key[order]
    first = np.diff(key, prepend=-1) > 0
    instance = np.full(len(rank), -1, np.int64)
    order = known[order]
    instance[order] = np.cumsum(first) - 1
    keys = key[first]
    calls = Calls(rank, call, step, col, group, seq, frontier.tail_state[rank, col], instance, order)
    return calls, _instances(frontier, pairs, keys // shift, keys % shift)


def _order(key: I8) -> I8:
    """int64: the order of keys (not negative), equal ones as they come.

    Sorting values is eight times as fast as sorting indices, so the index is put below the key where both fit
    into 63 bits.
    """
    n = len(key)
    bits = max(n - 1, 1).bit_length()
    if not n or int(key.max()).bit_length() + bits > 63:
        return np.argsort(key, kind="stable")
    packed = np.sort((key << bits) | np.arange(n))
    return np.asarray(packed & ((1 << bits) - 1))


def _of(table: Mask, comm: NDArray[np.int32]) -> Mask:
    """``table[comm]``, False where the communicator is not known."""
    known = (comm >= 0) & (comm < len(table))
    found = np.zeros(len(comm), np.bool_)
    found[known] = table[comm[known]]
    return found


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


def _instances(frontier: Frontier, pairs: Pairs, group: I8, seq: I8) -> Instances:
    lowest, unrecorded = _lowest(frontier)
    absent, unseen = np.zeros(len(group), np.bool_), np.zeros(len(group), np.bool_)
    collective = group < pairs.base
    comm = group[collective]
    absent[collective] = seq[collective] > lowest[comm]
    unseen[collective] = unrecorded[comm]
    pair = group[~collective] - pairs.base
    sent, received = pairs.sent[pair], pairs.received[pair]
    wanted = seq[~collective]
    absent[~collective] = ((sent >= 0) & (sent <= wanted)) | ((received >= 0) & (received <= wanted))
    unseen[~collective] = (sent < 0) | (received < 0)
    return Instances(group, seq, absent, unseen)


NEW_COMMUNICATOR_CALLS = 2
"""A member without any call on a communicator is behind only while its peers made at most this many:
beyond that they would not have got on without it, so its calls were lost or it is no member."""


def _lowest(frontier: Frontier) -> tuple[I8, Mask]:
    """Per communicator: the lowest last sequence number among its recorded members, and whether one is
    unrecorded."""
    size = frontier.members.size
    lowest = np.full(size, NEVER, np.int64)
    np.minimum.at(lowest, frontier.entry_comm, frontier.entry_last)
    seen = np.bincount(frontier.entry_comm, minlength=size)
    counts = frontier.members.counts()
    comm_of_member = np.repeat(np.arange(size), counts)
    recorded = frontier.indices(frontier.members.ranks) >= 0
    there = np.bincount(comm_of_member[recorded], minlength=size)
    unrecorded = there < counts
    made = np.zeros(size, np.int64)
    np.maximum.at(made, frontier.entry_comm, frontier.entry_last - frontier.entry_first + 1)
    silent = (seen < there) & (made > 0) & (made <= NEW_COMMUNICATOR_CALLS)
    for comm in np.flatnonzero(silent):
        index = frontier.indices(frontier.members.of_comm(int(comm)))
        mute = np.setdiff1d(index[index >= 0], frontier.entry_rank[frontier.entry_comm == comm])
        if not frontier.lost[mute].all():
            lowest[comm] = NO_SEQ
    return lowest, unrecorded


def _first_steps(frontier: Frontier, calls: Calls, incomplete: Mask) -> I8:
    step = np.full(len(frontier), NEVER, np.int64)
    rows = np.flatnonzero(incomplete)
    if len(rows):
        first = np.flatnonzero(np.diff(calls.rank[rows], prepend=-1))
        step[calls.rank[rows[first]]] = np.minimum.reduceat(calls.step[rows], first)
    return step


def _before_tail(frontier: Frontier, calls: Calls) -> I8:
    """A rank whose oldest open collective lies before its tail waits there: at the call before the tail's
    first."""
    step = np.full(len(frontier), NEVER, np.int64)
    pending = np.flatnonzero(frontier.entry_ended < frontier.entry_last)
    rank = frontier.entry_rank[pending]
    width = max(frontier.members.size, 1)
    rows = np.flatnonzero((calls.group >= 0) & (calls.group < frontier.members.size))
    key = calls.rank[rows] * width + calls.group[rows]
    entry = frontier.entry_rank.astype(np.int64) * width + frontier.entry_comm  # ascending
    slot = np.minimum(np.searchsorted(entry, key), max(len(entry) - 1, 0))
    listed = entry[slot] == key if len(entry) else np.zeros(len(key), np.bool_)
    oldest = np.full(len(entry), NEVER, np.int64)
    oldest[slot[listed][::-1]] = calls.seq[rows][listed][::-1]
    wanted = frontier.entry_ended[pending] + 1
    wanted = np.where(frontier.entry_ended[pending] == NO_SEQ, frontier.entry_first[pending], wanted)
    older = wanted < oldest[pending]
    first = np.maximum(frontier.calls - frontier.tail, 0) - 1
    step[rank[older]] = first[rank[older]]
    return step


def _fixed_point(frontier: Frontier, calls: Calls, instances: Instances) -> tuple[I8, Mask]:
    """Steps of the first surely incomplete calls, and which calls are surely incomplete, without
    completion times."""
    stuck = instances.absent.copy()
    known = calls.instance >= 0
    instance = np.where(known, calls.instance, 0)
    step = np.full(len(frontier), NEVER, np.int64)
    while True:
        incomplete = known & stuck[instance] if len(stuck) else known
        found = _first_steps(frontier, calls, incomplete)
        if bool((found == step).all()):
            return step, incomplete
        step = found
        behind = known & (calls.step > step[calls.rank])
        stuck[instance[behind]] = True


def _holds(
    frontier: Frontier, calls: Calls, instances: Instances, pairs: Pairs, step: I8, rows: I8
) -> tuple[I8, I8, NDArray[np.uint8]]:
    """Holders of every instance at which somebody waits: instance, rank index, why; ascending by instance."""
    wanted = np.unique(calls.instance[rows])
    group = instances.group[wanted]
    collective = group < pairs.base
    counts = (
        np.where(collective, frontier.members.counts()[np.where(collective, group, 0)], 2)
        if len(group)
        else group
    )
    instance = np.repeat(wanted, counts)
    start = np.cumsum(counts) - counts
    nth = np.arange(len(instance)) - np.repeat(start, counts)
    of_collective = np.repeat(collective, counts)
    base = np.repeat(np.where(collective, frontier.members.bounds[np.where(collective, group, 0)], 0), counts)
    member = np.empty(len(instance), np.int64)
    member[of_collective] = frontier.members.ranks[(base + nth)[of_collective]]
    pair = np.repeat(np.where(collective, 0, group - pairs.base), counts)[~of_collective]
    sender = nth[~of_collective] == 0
    member[~of_collective] = np.where(sender, pairs.src[pair], pairs.dst[pair])
    index = frontier.indices(member)
    why = _reasons(frontier, calls, instance, index, step)
    absent = _absent(frontier, instances, instance, index)
    posted = np.where(sender, pairs.sent[pair], pairs.received[pair])
    absent[~of_collective] = (posted >= 0) & (posted <= instances.seq[instance[~of_collective]])
    why[absent] = Hold.ABSENT
    why[index < 0] = Hold.UNRECORDED
    holding = why != _HOLDS_NOT
    rank = np.where(index >= 0, index, -1 - member)
    return instance[holding], rank[holding], why[holding]


_HOLDS_NOT = 255


def _reasons(frontier: Frontier, calls: Calls, instance: I8, index: I8, step: I8) -> NDArray[np.uint8]:
    """Why each (instance, rank index) holds the instance up, of those who made the call."""
    ranks, order = len(frontier), calls.order
    key = calls.instance[order] * ranks + calls.rank[order]
    wanted = instance * ranks + index
    at = np.minimum(np.searchsorted(key, wanted), max(len(order) - 1, 0))
    found = (index >= 0) & (key[at] == wanted) if len(order) else np.zeros(len(instance), np.bool_)
    row = order[at] if len(order) else at
    why = np.full(len(instance), _HOLDS_NOT, np.uint8)
    open_call = found & (calls.state[row] < ENDED)
    if frontier.has_start:
        why[open_call & (calls.state[row] == ENQUEUED)] = Hold.UNSTARTED
    queued = open_call & (calls.step[row] > step[np.maximum(index, 0)])
    if frontier.has_start:
        queued &= calls.state[row] == ENQUEUED
    why[queued] = Hold.QUEUED
    return why


def _absent(frontier: Frontier, instances: Instances, instance: I8, index: I8) -> Mask:
    """Whether a member has not made a collective. A member without entry has made none, unless records
    were lost."""
    width = max(frontier.members.size, 1)
    group, seq = instances.group[instance], instances.seq[instance]
    key = frontier.entry_rank.astype(np.int64) * width + frontier.entry_comm
    wanted = index * width + np.minimum(group, width - 1)
    at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    if not len(key):
        return np.zeros(len(instance), np.bool_)
    found = (key[at] == wanted) & (index >= 0)
    mute = ~found & (index >= 0) & instances.absent[instance] & ~frontier.lost[np.maximum(index, 0)]
    return np.asarray((found & (frontier.entry_last[at] < seq)) | mute)
