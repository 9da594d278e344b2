"""Groups that stand for one reason because their members met since they last heard from elsewhere.

Without completions a host stands at its next wait, and so do the hosts of all that it met in tensor, context
or expert groups on the way there. Which of these groups the cause lies in, the calls do not tell, unless one
of their members is short of a call.

Does not look at times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.events import NO_COMM, Op
from megatrace.model.frontier import Frontier


def not_tied(graph: WaitsFor, roots: Sequence[Root]) -> list[Root]:
    """The roots without groups that stand level but met with ranks that are short of a call: these hold them
    up."""
    if graph.frontier.has_end or len(roots) < 2 or any(root.kind is not RootKind.BEHIND for root in roots):
        return list(roots)
    level = [len(root.ranks) > 1 and not overtaken(graph, root) for root in roots]
    short = {
        comm
        for root, stands in zip(roots, level, strict=True)
        for rank in root.ranks
        if not stands
        for comm in since_message(graph.frontier, rank)
    }
    return [
        root
        for root, stands in zip(roots, level, strict=True)
        if not (stands and any(short & since_message(graph.frontier, rank) for rank in root.ranks))
    ]


def since_message(frontier: Frontier, rank: int) -> set[int]:
    """Communicators on which a rank (index) called after its last Send or Recv."""
    return set(frontier.tail_comm[rank, after_message(frontier, rank) :].tolist()) - {NO_COMM}


def after_message(frontier: Frontier, rank: int) -> int:
    """Column of the tail after a rank's (index) last Send or Recv; its length where that is the last call."""
    op = frontier.tail_op[rank]
    messages = np.flatnonzero((op == Op.SEND) | (op == Op.RECV))
    return int(messages[-1]) + 1 if len(messages) else 0


def unconnected(sets: list[set[int]]) -> int:
    """How many of the sets are left when those that share a member are joined: groups that met in a
    communicator since their last message stand for one reason."""
    joined: list[set[int]] = []
    for one in sets:
        apart = [other for other in joined if not other & one]
        joined = [*apart, one.union(*(other for other in joined if other & one))]
    return len(joined)


def overtaken(graph: WaitsFor, root: Root) -> bool:
    """Whether ranks that stand at one collective were passed by another member: then it is no call that
    held them."""
    if root.kind is not RootKind.BEHIND or len(root.ranks) < 2:
        return False
    frontier, ranks = graph.frontier, list(root.ranks)
    comm, seq = frontier.tail_comm[ranks, -1], frontier.tail_seq[ranks, -1]
    if comm[0] < 0 or (comm != comm[0]).any():
        return False
    return bool((frontier.entry_last[frontier.entry_comm == comm[0]] > seq.max()).any())
