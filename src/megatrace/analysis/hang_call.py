"""Which call a rank should have made next: read off the peers that made it.

A rank that stopped does not say what it was about to do; a peer in the same role does. Ranks that share a
tensor, data or context group run the same program, so the first call of such a peer that the silent rank
lacks is the missing one. Where there is no such peer, the calls that wait for the rank name it from the
other side: a Send to it wants a Recv.

Does not know schedules or phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.events import NO_COMM, NO_PEER, Op
from megatrace.model.layout import ParallelLayout


@dataclass(frozen=True, slots=True)
class NextCall:
    """A call that a rank did not make. ``peer`` global rank of a Send or Recv; ``seen_at`` (rank index,
    call number) of the call from which it was read: a peer's own, or the one that waits for it.
    ``went_on``: the rank made calls that come later in its peers' order."""

    op: Op
    comm: int
    seq: int
    peer: int | None
    seen_at: tuple[int, int]
    role_peer: bool
    went_on: bool = False


def missing_call(graph: WaitsFor, rank: int, layout: ParallelLayout | None) -> NextCall | None:
    """The first call that a rank (index) lacks, or None where nobody waits for a call of it."""
    held = [int(i) for i in graph.directly(rank) if len(graph.waiters(int(i)))]
    if not held:
        return None
    collectives = [i for i in held if int(graph.instances.group[i]) < graph.pairs.base]
    counts = graph.frontier.members.counts()
    for instance in sorted(collectives, key=lambda i: (int(counts[graph.instances.group[i]]), i)):
        for peer in _role_peers(graph, rank, graph.waiters(instance), layout):
            found = _first_lacking(graph, rank, peer)
            if found is not None:
                return found
    return _from_waiters(graph, rank, held, layout)


TRIED = 4
"""Peers to read a call from: they run the same program, so the next one says nothing that these did not."""


def _role_peers(
    graph: WaitsFor, rank: int, waiters: NDArray[np.int64], layout: ParallelLayout | None
) -> list[int]:
    """Of the ranks (indices) that wait those that run the same program, nearest first: tensor peers are."""
    ranks = graph.frontier.ranks
    own = int(ranks[rank])
    if layout is not None and max(own, int(ranks[waiters].max(initial=0))) < layout.world_size:
        stages = layout.stages()
        waiters = waiters[stages[ranks[waiters]] == stages[own]]
    nearest = np.argsort(np.abs(ranks[waiters].astype(np.int64) - own), kind="stable")[:TRIED]
    return [int(peer) for peer in waiters[nearest]]


def _tail(graph: WaitsFor, rank: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of ``calls`` of one rank."""
    return np.arange(graph.calls.bounds[rank], graph.calls.bounds[rank + 1])


def _first_lacking(graph: WaitsFor, rank: int, peer: int) -> NextCall | None:
    """The first call of ``peer`` after the last collective that both made together, which ``rank`` lacks."""
    mine, theirs = _tail(graph, rank), _tail(graph, peer)
    group, instance = graph.calls.group, graph.calls.instance
    common = (group[mine] >= 0) & (group[mine] < graph.pairs.base) & np.isin(instance[mine], instance[theirs])
    if not common.any():
        return None
    last = int(np.flatnonzero(common)[-1])
    own = mine[last + 1 :]
    other = theirs[np.flatnonzero(instance[theirs] == instance[mine[last]])[0] + 1 :]
    own_keys = [_kind(graph, int(row)) for row in own]
    at = 0
    for row in other:
        if at < len(own_keys) and own_keys[at] == _kind(graph, int(row)):
            at += 1
            continue
        went_on = at < len(own_keys)
        return _named(graph, rank, int(row), went_on)
    return None


def _kind(graph: WaitsFor, row: int) -> tuple[int, int]:
    """What a call is, comparably between ranks: operation and group size (P2P: operation alone)."""
    rank, column = graph.calls.rank[row], graph.calls.column[row]
    op, comm = int(graph.frontier.tail_op[rank, column]), int(graph.frontier.tail_comm[rank, column])
    counts = graph.frontier.members.counts()
    return op, 0 if Op(op).is_p2p or comm == NO_COMM else int(counts[comm])


def _named(graph: WaitsFor, rank: int, row: int, went_on: bool) -> NextCall:
    """The call of a peer as the rank itself would have made it."""
    frontier, calls = graph.frontier, graph.calls
    peer_rank, column = int(calls.rank[row]), int(calls.column[row])
    op = Op(int(frontier.tail_op[peer_rank, column]))
    seen = (peer_rank, int(calls.call[row]))
    if not op.is_p2p:
        comm, seq = _own_group(graph, rank, int(frontier.tail_comm[peer_rank, column]), int(calls.seq[row]))
        return NextCall(op, comm, seq, None, seen, True, went_on)
    offset = int(frontier.tail_peer[peer_rank, column]) - int(frontier.ranks[peer_rank])
    known = frontier.tail_peer[peer_rank, column] != NO_PEER
    peer = int(frontier.ranks[rank]) + offset if known else None
    waiting = _p2p_waiters(graph, rank, op)
    if waiting and peer not in waiting:
        peer = waiting[0]
    return NextCall(op, NO_COMM, -1, peer, seen, True, went_on)


def _own_group(graph: WaitsFor, rank: int, comm: int, seq: int) -> tuple[int, int]:
    """The communicator on which a rank would have made its peer's call, and the number it would have had
    there.

    Peers of another tensor group call on a group of their own; the rank's is the one of the same size on
    which its numbers are nearest.
    """
    frontier = graph.frontier
    if int(frontier.ranks[rank]) in frontier.members.of_comm(comm).tolist():
        return comm, seq
    sizes = frontier.members.counts()
    mine = np.flatnonzero(frontier.entry_rank == rank)
    mine = mine[sizes[frontier.entry_comm[mine]] == sizes[comm]]
    if not len(mine):
        return NO_COMM, seq
    nearest = mine[np.argmin(np.abs(frontier.entry_last[mine] + 1 - seq))]
    return int(frontier.entry_comm[nearest]), int(frontier.entry_last[nearest]) + 1


def _p2p_waiters(graph: WaitsFor, rank: int, op: Op) -> list[int]:
    """The global ranks whose Sends (or Recvs) wait for this rank's Recvs (or Sends)."""
    own = int(graph.frontier.ranks[rank])
    found = []
    for instance in graph.directly(rank):
        pair = int(graph.instances.group[instance]) - graph.pairs.base
        if pair < 0:
            continue
        src, dst = int(graph.pairs.src[pair]), int(graph.pairs.dst[pair])
        if op is Op.RECV and dst == own:
            found.append(src)
        if op is Op.SEND and src == own:
            found.append(dst)
    return found


def _from_waiters(graph: WaitsFor, rank: int, held: list[int], layout: ParallelLayout | None) -> NextCall:
    """From the call that has waited longest for the rank, or the one that comes before it in its program."""
    frontier = graph.frontier

    def since(instance: int) -> int:
        rows = graph.wait_row[graph.wait_instance == instance]
        return int(frontier.tail_time[graph.calls.rank[rows], graph.calls.column[rows]].min())

    instance = _earlier(graph, rank, min(held, key=since), held, layout)
    row = int(graph.wait_row[graph.wait_instance == instance][0])
    waiter, group = int(graph.calls.rank[row]), int(graph.instances.group[instance])
    seen = (waiter, int(graph.calls.call[row]))
    if group < graph.pairs.base:
        op = Op(int(frontier.tail_op[waiter, graph.calls.column[row]]))
        return NextCall(op, group, int(graph.instances.seq[instance]), None, seen, False)
    pair = group - graph.pairs.base
    own = int(frontier.ranks[rank])
    src, dst = int(graph.pairs.src[pair]), int(graph.pairs.dst[pair])
    op, peer = (Op.SEND, dst) if src == own else (Op.RECV, src)
    return NextCall(op, NO_COMM, -1, peer, seen, False)


def _earlier(graph: WaitsFor, rank: int, longest: int, held: list[int], layout: ParallelLayout | None) -> int:
    """Of a Send and a Recv that a rank both lacks the one that it would have made first.

    What a stage received it computes on and sends on: of a Recv from one side and the Send to the other the
    Send comes first if more was received than sent on. A Send and a Recv of one neighbour belong to one
    exchange, or the Send, of what it was computing, comes first. Virtual stages pass their data round and are
    counted by nobody here.
    """
    base, pairs = graph.pairs.base, graph.pairs
    own = int(graph.frontier.ranks[rank])
    p2p = [i for i in held if int(graph.instances.group[i]) >= base]
    if longest not in p2p or (layout is not None and layout.vpp > 1):
        return longest

    def ends(instance: int) -> tuple[int, int, int]:
        pair = int(graph.instances.group[instance]) - base
        return int(pairs.src[pair]), int(pairs.dst[pair]), int(graph.instances.seq[instance])

    src, dst, number = ends(longest)
    answers: list[int] = []
    for other in p2p:
        from_, to, count = ends(other)
        if dst == own and from_ == own and to == src:
            answers.append(other)
        elif (dst == own and from_ == own and count < number) or (
            src == own and to == own and from_ != dst and count <= number
        ):
            return other
    return answers[0] if answers else longest
