"""Where chains of waiting end: the few ranks, or the one call, that everybody else waits for.

Does not say that anything hangs (``hang_stall`` does), nor what it is called (``hang``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.call_table import NEVER
from megatrace.analysis.mismatch import Agreed, Mismatch, find_mismatches
from megatrace.analysis.waits_for import Hold, WaitsFor


class RootKind(Enum):
    """What an end of the chains looks like."""

    HOST = "host"
    """A rank has nothing open, and others wait for calls that it has not made."""
    BEHIND = "behind"
    """The same without completion times: nobody holds the rank up as far as can be seen."""
    DEVICE = "device"
    """A rank made the call, has nothing open before it, and its device did not start it, or did not finish
    what a peer finished."""
    CALL = "call"
    """All made and started a call, and nobody completed it."""
    GROUP = "group"
    """All made a call, nobody completed it, and starts cannot be seen."""
    DEATH = "death"
    """A call in flight completed nowhere and the rank's host stopped calling at the same moment."""
    AHEAD = "ahead"
    """A few went on past a call at which all others stand (``hang_ahead``)."""
    MISMATCH = "mismatch"
    CYCLE = "cycle"
    """Ranks wait for each other in a circle."""
    UNRECORDED = "unrecorded"
    """The chains end at ranks of which nothing was recorded."""


@dataclass(frozen=True, slots=True)
class Root:
    """One end of the chains. ``ranks`` are indices (global ranks for UNRECORDED); ``instances`` the calls
    concerned; ``stopped`` ns: last activity of its ranks."""

    kind: RootKind
    ranks: tuple[int, ...]
    instances: tuple[int, ...] = ()
    stopped: int = 0
    mismatch: Mismatch | None = None


def find_roots(graph: WaitsFor, agreed: Agreed | None = None) -> list[Root]:
    """All roots, earliest stop first. ``agreed`` as ``find_mismatches`` takes it."""
    found = find_mismatches(graph) if agreed is None else find_mismatches(graph, agreed)
    roots = [
        Root(RootKind.MISMATCH, item.odd, (item.instance,), _stopped(graph, item.odd), item) for item in found
    ]
    taken = {rank for root in roots for rank in root.ranks}
    broken = {root.instances[0] for root in roots}
    roots += _calls(graph, broken)
    roots += _devices(graph)
    roots += [root for root in _hosts(graph) if not taken & set(root.ranks)]
    ranks = np.asarray([r for root in roots for r in root.ranks], np.int64)
    instances = np.asarray([i for root in roots for i in root.instances], np.int64)
    reached = graph.held_up(ranks, instances)
    reached[ranks] = True
    unknown = _unrecorded(graph, reached)
    if unknown is not None:
        roots.append(unknown)
        reached |= graph.held_up(np.empty(0, np.int64), np.asarray(unknown.instances, np.int64))
    roots += _cycles(graph, reached)
    return sorted(roots, key=lambda root: root.stopped)


def _stopped(graph: WaitsFor, ranks: tuple[int, ...] | NDArray[np.int64]) -> int:
    return int(graph.frontier.last_time[np.asarray(ranks, np.int64)].max()) if len(ranks) else 0


def _calls(graph: WaitsFor, broken: set[int]) -> list[Root]:
    """Calls at which ranks wait and which nobody holds up."""
    held = np.unique(graph.hold_instance)
    free = np.setdiff1d(np.unique(graph.wait_instance), held)
    roots = []
    for instance in free:
        if int(instance) in broken:
            continue
        waiters = tuple(sorted(int(rank) for rank in graph.waiters(int(instance))))
        done = graph.finished(int(instance))
        kind = RootKind.CALL if graph.frontier.has_start else RootKind.GROUP
        if len(done):
            kind = RootKind.DEVICE
        dead = () if len(done) else _fallen_silent(graph, int(instance), waiters)
        if dead:
            kind, waiters = RootKind.DEATH, dead
        roots.append(Root(kind, waiters, (int(instance),), _stopped(graph, waiters)))
    return _separate(roots)


def _separate(roots: list[Root]) -> list[Root]:
    """One death leaves several calls in flight: roots with the same ranks are one."""
    merged: dict[tuple[RootKind, tuple[int, ...]], Root] = {}
    for root in roots:
        key = (root.kind, root.ranks)
        if key in merged:
            both = merged[key].instances + root.instances
            merged[key] = Root(root.kind, root.ranks, both, max(merged[key].stopped, root.stopped))
        else:
            merged[key] = root
    return list(merged.values())


def _fallen_silent(graph: WaitsFor, instance: int, waiters: tuple[int, ...]) -> tuple[int, ...]:
    """Participants of an unfinished call that made fewer later calls than the other participants did.

    A stuck network or kernel lets every host run ahead to its next wait; a dead process does not.
    """
    if len(waiters) < 2 or int(graph.instances.group[instance]) >= graph.pairs.base:
        return ()  # the two ends of a Send run different programs: their leads cannot be compared
    frontier = graph.frontier
    ranks = np.asarray(waiters)
    row = graph.rows_of(instance)
    row = row[np.isin(graph.calls.rank[row], ranks)]
    ahead = np.zeros(len(frontier), np.int64)
    ahead[graph.calls.rank[row]] = frontier.calls[graph.calls.rank[row]] - graph.calls.call[row]
    lead = ahead[ranks]
    behind = ranks[lead < lead.max()]
    lacking = [
        int(rank) for rank in behind if len(graph.directly(int(rank))) or _lacks(graph, int(rank), ranks)
    ]
    return tuple(lacking) if len(lacking) < len(waiters) else ()


def _lacks(graph: WaitsFor, rank: int, peers: NDArray[np.int64]) -> bool:
    """Whether a rank has not made a collective that one of the peers has made on a communicator of both."""
    frontier = graph.frontier
    mine = frontier.entry_rank == rank
    for comm, last in zip(frontier.entry_comm[mine], frontier.entry_last[mine], strict=True):
        there = (frontier.entry_comm == comm) & np.isin(frontier.entry_rank, peers)
        if bool((frontier.entry_last[there] > last).any()):
            return True
    return False


def _devices(graph: WaitsFor) -> list[Root]:
    unstarted = graph.hold_why == Hold.UNSTARTED
    ranks = np.unique(graph.hold_rank[unstarted])
    roots = []
    for rank in ranks:
        own = graph.wait_instance[graph.wait_rank == rank]
        mine = np.intersect1d(own, graph.hold_instance[unstarted & (graph.hold_rank == rank)])
        if len(mine):
            one = (int(rank),)
            kind = RootKind.HOST if _half_posted(graph, int(rank), mine) else RootKind.DEVICE
            roots.append(Root(kind, one, tuple(int(i) for i in mine), _stopped(graph, one)))
    return roots


def _half_posted(graph: WaitsFor, rank: int, instances: NDArray[np.int64]) -> bool:
    """Whether the calls that did not start are part of an exchange that the host never finished posting.

    A coalesced group starts once its last call was made, so a Send without its Recv never starts.
    """
    p2p = graph.instances.group >= graph.pairs.base
    awaited = graph.directly(rank)
    return bool(p2p[instances].all() and len(awaited) and p2p[awaited].any())


def _hosts(graph: WaitsFor) -> list[Root]:
    """Ranks with nothing open for which others wait; without completion times, sets that cannot be
    separated."""
    absent = graph.hold_why == Hold.ABSENT
    holders = np.unique(graph.hold_rank[absent])
    free = holders[(holders >= 0) & (graph.step[holders] == NEVER)]
    if graph.frontier.has_end:
        return [Root(RootKind.HOST, (int(r),), stopped=_stopped(graph, (int(r),))) for r in free]
    return [Root(RootKind.BEHIND, ranks, stopped=_stopped(graph, ranks)) for ranks in _clusters(graph, free)]


EXCHANGE = 4
"""Calls of the largest exchange: a Send and a Recv with either neighbour."""


def _clusters(graph: WaitsFor, free: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Free ranks joined where they stand at the same call: any of them may hold that call up.

    A rank that stopped before a call stands apart from its peers, who made it and wait; ranks whose last
    calls are one call that all its participants made stand together.
    """
    calls = graph.calls
    label = {int(rank): int(rank) for rank in free}

    def root(rank: int) -> int:
        while label[rank] != rank:
            rank = label[rank]
        return rank

    last = calls.of_ranks(free)
    last = last[calls.call[last] >= graph.frontier.calls[calls.rank[last]] - EXCHANGE]
    last_step = np.full(len(graph.frontier), -1, np.int64)
    np.maximum.at(last_step, calls.rank[last], calls.step[last])
    last = last[(calls.step[last] == last_step[calls.rank[last]]) & (calls.instance[last] >= 0)]
    order = last[np.argsort(calls.instance[last], kind="stable")]
    for a, b in pairwise(order.tolist()):
        if calls.instance[a] == calls.instance[b]:
            label[root(int(calls.rank[b]))] = root(int(calls.rank[a]))
    groups: dict[int, list[int]] = {}
    for rank in label:
        groups.setdefault(root(rank), []).append(rank)
    return [tuple(sorted(group)) for group in groups.values()]


def _unrecorded(graph: WaitsFor, reached: NDArray[np.bool_]) -> Root | None:
    gone = graph.hold_rank < 0
    stuck = graph.wait_instance[~reached[graph.wait_rank]]
    mine = gone & np.isin(graph.hold_instance, stuck)
    if not mine.any():
        return None
    ranks = tuple(sorted({int(-1 - rank) for rank in graph.hold_rank[mine]}))
    instances = tuple(int(i) for i in np.unique(graph.hold_instance[mine]))
    return Root(RootKind.UNRECORDED, ranks, instances)


def _cycles(graph: WaitsFor, reached: NDArray[np.bool_]) -> list[Root]:
    """Circles among ranks from which no other root can be reached."""
    roots: list[Root] = []
    left = graph.waiting & ~reached
    while left.any():
        path: list[int] = []
        instances: list[int] = []
        rank = int(np.flatnonzero(left)[0])
        while rank not in path:
            step = _next(graph, rank, left)
            if step is None:
                break
            path.append(rank)
            instances.append(step[0])
            rank = step[1]
        if rank not in path:
            return roots
        start = path.index(rank)
        ranks = tuple(path[start:])
        roots.append(Root(RootKind.CYCLE, ranks, tuple(instances[start:]), _stopped(graph, ranks)))
        inside = np.asarray(ranks)
        left &= ~graph.held_up(inside)
        left[inside] = False
    return roots


def _next(graph: WaitsFor, rank: int, left: NDArray[np.bool_]) -> tuple[int, int] | None:
    """(instance, holder) of one step along the chain among the ranks that are left; absent holders first."""
    best: tuple[int, int, int] | None = None
    for instance in graph.wait_instance[graph.wait_rank == rank]:
        for holder, why in graph.holders(int(instance)):
            if holder >= 0 and left[holder] and (best is None or (int(why), holder) < (best[2], best[1])):
                best = (int(instance), holder, int(why))
    return None if best is None else (best[0], best[1])
