"""Whether a whole node stopped at once, and whether that came first.

A job that stands gets killed, node by node, by watchdogs and by people; what brings a job to a stand does not
come of dead nodes. So where a node died at about the time at which something else came to a stand by itself,
the node is one of the victims.

A dead node takes all its ranks with it, in the middle of what they were doing; a stuck rank leaves its
neighbours running on to their next wait. So a node died if all its ranks could have been cut off at one
moment, and at least two of them stopped where nothing held them up.

Does not know why a node died: kernel logs do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from megatrace.analysis.hang_pace import History
from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.hang_tied import Meetings, overtaken, unconnected
from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.events import Op
from megatrace.model.frontier import Frontier
from megatrace.model.trace import RankPlace

SLACK = 1.5
"""A rank's next call would have come within this multiple of its usual longest time."""
TOLERANCE = 1_000_000
"""ns: one call of a host."""

LOOSE = 5_000_000
"""ns: more than two that nothing held up do not stop as close to each other as that by themselves."""
_CUT = (RootKind.HOST, RootKind.BEHIND, RootKind.DEATH, RootKind.DEVICE, RootKind.CALL, RootKind.GROUP)


def dead_node(
    graph: WaitsFor,
    met: Meetings,
    first: Sequence[Root],
    roots: Sequence[Root],
    place_of: Callable[[int], RankPlace],
    past: History | None,
) -> tuple[str, tuple[int, ...]] | None:
    """(node, its rank indices) of the node that stopped first, or None. ``first``: the roots that stopped
    first."""
    if past is None or not first or any(root.kind not in _CUT for root in first):
        return None
    ranks = graph.frontier.ranks
    nodes = {place_of(int(ranks[rank])).node for root in first for rank in root.ranks}
    for node in sorted(node for node in nodes if node is not None):
        here = tuple(i for i, rank in enumerate(ranks.tolist()) if place_of(rank).node == node)
        across = [root for root in first if not set(root.ranks) <= set(here)]
        if any(root.kind is not RootKind.CALL and not _message(graph, root) for root in across):
            continue  # only a message in flight reaches beyond the node that died
        if len(here) < 2 or not _cut_at_once(graph, here, past, LOOSE):
            continue
        if not graph.frontier.has_end and _most_of(here, first):
            return node, here
        unheld = _unheld(graph, met, here, roots, past)
        if unheld > 1 and (unheld > 2 or _cut_at_once(graph, here, past)):
            return node, here
    return None


def _most_of(here: tuple[int, ...], first: Sequence[Root]) -> bool:
    """Whether three ends or more, one of them a rank by itself, are most of a node and nothing else."""
    mine = {rank for root in first for rank in root.ranks}
    alone = any(len(root.ranks) == 1 for root in first)
    return alone and len(first) > 2 and mine <= set(here) and 2 * len(mine) > len(here)


def aftermath(
    graph: WaitsFor,
    met: Meetings,
    roots: Sequence[Root],
    place_of: Callable[[int], RankPlace],
    past: History | None,
) -> set[int]:
    """Rank indices of nodes that died and need not have died before something else came to a stand; empty
    where only nodes died."""
    ranks = graph.frontier.ranks
    if past is None or len(roots) < 2 or any(root.kind not in _CUT for root in roots):
        return set()
    node_of = {rank: place_of(int(ranks[rank])).node for root in roots for rank in root.ranks}
    dead: dict[str, tuple[int, ...]] = {}
    for node in sorted({node for node in node_of.values() if node is not None})[:NODES]:
        here = tuple(i for i, rank in enumerate(ranks.tolist()) if place_of(rank).node == node)
        if len(here) > 1 and _cut_at_once(graph, here, past) and _unheld(graph, met, here, roots, past) > 1:
            dead[node] = here
    gone = [rank for here in dead.values() for rank in here]
    others = [
        root
        for root in roots
        if not any(node_of[rank] in dead for rank in root.ranks) and not _awaits(graph, root, gone)
    ]
    others = [root for root in others if not _explained(graph, root, dead)]
    if not dead:
        dead, others = _level_nodes(graph, roots, place_of, past)
    if not dead or not others:
        return set()
    stood = min(_stood(graph, met, root, past) for root in others)
    return {rank for here in dead.values() if stood <= _latest_end(graph, here, past) for rank in here}


def _awaits(graph: WaitsFor, root: Root, gone: Sequence[int]) -> bool:
    """Without completions: whether a lone rank stands at a message whose other end was the last call of one
    of these ranks (indices), which may have died before it passed."""
    frontier = graph.frontier
    if frontier.has_end or root.kind is not RootKind.BEHIND or len(root.ranks) > 1:
        return False
    rank = root.ranks[0]
    back = {Op.SEND: Op.RECV, Op.RECV: Op.SEND}.get(Op(int(frontier.tail_op[rank, -1])))
    peers = [one for one in gone if frontier.ranks[one] == frontier.tail_peer[rank, -1]]
    return any(
        frontier.tail_op[one, -1] == back and frontier.tail_peer[one, -1] == frontier.ranks[rank]
        for one in peers
    )


def _level_nodes(
    graph: WaitsFor, roots: Sequence[Root], place_of: Callable[[int], RankPlace], past: History
) -> tuple[dict[str, tuple[int, ...]], list[Root]]:
    """Without completions: nodes all of whose ranks stand at one wait, and the roots that are no such node,
    where these stopped alone.

    Such a node may have died there long after its last call as well as have come to a stand; a rank that
    stopped while its neighbours on the node went on did not die with a node.
    """
    of_node: dict[str, list[int]] = {}
    for index, rank in enumerate(graph.frontier.ranks.tolist()):
        of_node.setdefault(place_of(rank).node or "", []).append(index)
    here = {tuple(ranks): node for node, ranks in of_node.items() if node and len(ranks) > 1}
    level = {
        here[root.ranks]: root.ranks for root in roots if root.kind is RootKind.BEHIND and root.ranks in here
    }
    others = [root for root in roots if root.ranks not in here]
    nodes = {node for node, ranks in of_node.items() for root in others if set(ranks) & set(root.ranks)}
    if any(not node or _cut_at_once(graph, tuple(of_node[node]), past) for node in nodes):
        return {}, others
    return level, others


def _stood(graph: WaitsFor, met: Meetings, root: Root, past: History) -> int:
    """ns: when a root came to a stand, at the earliest.

    Of a device, whose host may have called for longer, its own time; of a group at a wait, without
    completions, when it began to run ahead to that.
    """
    frontier = graph.frontier
    if root.kind is RootKind.BEHIND and len(root.ranks) > 1:
        columns = [min(met.after_message(rank), frontier.tail - 1) for rank in root.ranks]
        return int(frontier.tail_time[list(root.ranks), columns].min())
    if root.kind not in (RootKind.DEVICE, RootKind.CALL):
        return root.stopped
    seen = [past.device_stopped(int(graph.frontier.ranks[rank])) for rank in root.ranks]
    return max((time for time in seen if time is not None), default=root.stopped)


NODES = 64
"""Nodes looked at, of those where something came to a stand."""


def _latest_end(graph: WaitsFor, here: tuple[int, ...], past: History) -> int:
    """ns: by when a node had died: when the first of its ranks should have made another call."""
    last = graph.frontier.last_call[list(here)]
    return int(min(time + SLACK * _pause(graph, rank, past) for rank, time in zip(here, last, strict=True)))


def _pause(graph: WaitsFor, rank: int, past: History) -> int:
    """ns until the next call of a rank (index), at most, as it used to be."""
    pace = past.pace(int(graph.frontier.ranks[rank]))
    return int(graph.frontier.longest_gap[rank]) if pace is None else pace.gap


def _explained(graph: WaitsFor, root: Root, dead: dict[str, tuple[int, ...]]) -> bool:
    """Without completions: whether a rank stands at a message whose other end is on a node that died."""
    frontier = graph.frontier
    if frontier.has_end or root.kind is not RootKind.BEHIND or len(root.ranks) != 1:
        return False
    rank = root.ranks[0]
    peer = int(frontier.tail_peer[rank, -1])
    away = {int(frontier.ranks[other]) for here in dead.values() for other in here}
    return Op(int(frontier.tail_op[rank, -1])).is_p2p and peer in away


def _message(graph: WaitsFor, root: Root) -> bool:
    """Whether two ranks stand at a message between them: either of them may hold it up."""
    last = graph.frontier.tail_op[list(root.ranks), -1]
    return len(root.ranks) == 2 and bool(((last == Op.SEND) | (last == Op.RECV)).all())


def _cut_at_once(graph: WaitsFor, here: tuple[int, ...], past: History, tolerance: int = TOLERANCE) -> bool:
    """Whether no rank made its last call after another one should have made its next."""
    frontier = graph.frontier
    last = frontier.last_call[list(here)]
    for index, time in zip(here, last, strict=True):
        if time + SLACK * _pause(graph, index, past) + tolerance < last.max():
            return False
    return True


def _unheld(
    graph: WaitsFor, met: Meetings, here: tuple[int, ...], roots: Sequence[Root], past: History
) -> int:
    """How many ranks, or sets that cannot be separated, of the node stopped although nothing outside them
    held them up."""
    inside = set(here)
    frontier = graph.frontier
    unknown = {rank for rank in here if _peers_unknown(frontier, rank)}  # nor is it known who holds them up
    open_calls = np.where(graph.waiting, frontier.calls - graph.step, 0)

    def short(rank: int) -> bool:
        return past.stopped_short(int(frontier.ranks[rank]), int(open_calls[rank]))

    cut = {i for i in here if not Op(int(frontier.tail_op[i, -1])).is_p2p and short(i)} - unknown
    # Where ranks elsewhere stand at the same call, and never used to wait there either, it is the call.
    cut -= {i for i in cut if any(short(int(peer)) for peer in _beside(graph, i, inside))}
    apart, standing, alone = 0, [], set[int]()
    for root in roots:
        mine = (set(root.ranks) & inside) - unknown
        # A collective of a group on this node that does not move is one more thing that stopped there.
        apart += frontier.has_end and root.kind is RootKind.CALL and 2 < len(root.ranks) == len(mine)
        if not mine or mine & cut or root.kind in (RootKind.CALL, RootKind.GROUP) or _message(graph, root):
            continue
        here_met = met.of(mine)
        if len(mine) > 1 and root.kind is not RootKind.DEATH and not overtaken(graph, met, root):
            standing.append(here_met)
        else:
            apart += len(mine)
            alone |= here_met
    apart += unconnected([one for one in standing if not one & alone])
    if frontier.has_end and len(cut) < 2 and apart < 2:
        return 0
    return len(cut) + apart


def _peers_unknown(frontier: Frontier, rank: int) -> bool:
    """Whether a rank (index) stands at a collective of which a log without completions names no member but
    the rank itself."""
    comm = int(frontier.tail_comm[rank, -1])
    return not frontier.has_end and comm >= 0 and len(frontier.members.of_comm(comm)) == 1


BESIDE = 4
"""Ranks elsewhere that are looked at: what is true of the call is true of each of them."""


def _beside(graph: WaitsFor, rank: int, inside: set[int]) -> list[int]:
    """Rank indices outside the node whose last call is that of a rank (index) of it."""
    frontier = graph.frontier
    comm, seq = int(frontier.tail_comm[rank, -1]), int(frontier.tail_seq[rank, -1])
    same = np.flatnonzero((frontier.tail_comm[:, -1] == comm) & (frontier.tail_seq[:, -1] == seq))
    return [int(peer) for peer in same if int(peer) not in inside][:BESIDE] if comm >= 0 else []
