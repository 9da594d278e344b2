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
    short = {i for i in here if past.stopped_short(int(frontier.ranks[i]), int(open_calls[i]))}
    apart = 0
    for root in roots:
        mine = set(root.ranks) & inside
        if not mine or mine & short or root.kind in (RootKind.CALL, RootKind.GROUP):
            continue
        apart += len(mine) if _overtaken(graph, root) else 1
    if frontier.has_end and len(short) < 2 and apart < 2:
        return 0
    return len(short) + apart


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
