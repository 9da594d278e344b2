"""Whether a whole node stopped at once.

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
from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.events import NO_COMM, Op
from megatrace.model.frontier import Frontier
from megatrace.model.trace import RankPlace

SLACK = 1.5
"""A rank's next call would have come within this multiple of its usual longest time."""
TOLERANCE = 1_000_000
"""ns: one call of a host."""

_CUT = (RootKind.HOST, RootKind.BEHIND, RootKind.DEATH, RootKind.DEVICE, RootKind.CALL, RootKind.GROUP)


def dead_node(
    graph: WaitsFor,
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
        if any(root.kind is not RootKind.CALL for root in across):
            continue  # only a message in flight reaches beyond the node that died
        if len(here) > 1 and _cut_at_once(graph, here, past) and _unheld(graph, here, roots, past) > 1:
            return node, here
    return None


def _cut_at_once(graph: WaitsFor, here: tuple[int, ...], past: History) -> bool:
    """Whether no rank made its last call after another one should have made its next."""
    frontier = graph.frontier
    last = frontier.last_call[list(here)]
    for index, time in zip(here, last, strict=True):
        pace = past.pace(int(frontier.ranks[index]))
        gap = int(frontier.longest_gap[index]) if pace is None else pace.gap
        if time + SLACK * gap + TOLERANCE < last.max():
            return False
    return True


def _unheld(graph: WaitsFor, here: tuple[int, ...], roots: Sequence[Root], past: History) -> int:
    """How many ranks, or sets that cannot be separated, of the node stopped although nothing outside them
    held them up."""
    inside = set(here)
    frontier = graph.frontier
    open_calls = np.where(graph.waiting, frontier.calls - graph.step, 0)

    def short(rank: int) -> bool:
        return past.stopped_short(int(frontier.ranks[rank]), int(open_calls[rank]))

    cut = {i for i in here if not Op(int(frontier.tail_op[i, -1])).is_p2p and short(i)}
    # Where ranks elsewhere stand at the same call, and never used to wait there either, it is the call.
    cut -= {i for i in cut if any(short(int(peer)) for peer in _beside(graph, i, inside))}
    apart, standing = 0, []
    for root in roots:
        mine = set(root.ranks) & inside
        if not mine or mine & cut or root.kind in (RootKind.CALL, RootKind.GROUP):
            continue
        if len(mine) > 1 and not _overtaken(graph, root):
            standing.append({comm for rank in mine for comm in _since_message(frontier, rank)})
        else:
            apart += len(mine)
    apart += _unconnected(standing)
    if frontier.has_end and len(cut) < 2 and apart < 2:
        return 0
    return len(cut) + apart


BESIDE = 4
"""Ranks elsewhere that are looked at: what is true of the call is true of each of them."""


def _beside(graph: WaitsFor, rank: int, inside: set[int]) -> list[int]:
    """Rank indices outside the node whose last call is that of a rank (index) of it."""
    frontier = graph.frontier
    comm, seq = int(frontier.tail_comm[rank, -1]), int(frontier.tail_seq[rank, -1])
    same = np.flatnonzero((frontier.tail_comm[:, -1] == comm) & (frontier.tail_seq[:, -1] == seq))
    return [int(peer) for peer in same if int(peer) not in inside][:BESIDE] if comm >= 0 else []


def _since_message(frontier: Frontier, rank: int) -> set[int]:
    """Communicators on which a rank (index) called after its last Send or Recv."""
    op = frontier.tail_op[rank]
    messages = np.flatnonzero((op == Op.SEND) | (op == Op.RECV))
    since = int(messages[-1]) + 1 if len(messages) else 0
    return set(frontier.tail_comm[rank, since:].tolist()) - {NO_COMM}


def _unconnected(sets: list[set[int]]) -> int:
    """How many of the sets are left when those that share a member are joined: groups that met in a
    communicator since their last message stand for one reason."""
    joined: list[set[int]] = []
    for one in sets:
        apart = [other for other in joined if not other & one]
        joined = [*apart, one.union(*(other for other in joined if other & one))]
    return len(joined)


def _overtaken(graph: WaitsFor, root: Root) -> bool:
    """Whether ranks that stand at one collective were passed by another member: then it is no call that
    held them."""
    if root.kind is not RootKind.BEHIND or len(root.ranks) < 2:
        return False
    frontier, ranks = graph.frontier, list(root.ranks)
    comm, seq = frontier.tail_comm[ranks, -1], frontier.tail_seq[ranks, -1]
    if comm[0] < 0 or (comm != comm[0]).any():
        return False
    return bool((frontier.entry_last[frontier.entry_comm == comm[0]] > seq.max()).any())
