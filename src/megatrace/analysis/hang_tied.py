"""Groups that stand for one reason because their members met since they last heard from elsewhere.

Without completions a host stands at its next wait, and so do the hosts of all that it met in tensor, context
or expert groups on the way there. Which of these groups the cause lies in, the calls do not tell, unless one
of their members is short of a call.

A message to another stage is where a host waits to hear from elsewhere; one between context peers of a stage
is part of a block like any collective, and ties its two ends as one does.

Does not look at times, but for how long such ranks used to wait where they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.hang_pace import History
from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.events import NO_COMM, Op
from megatrace.model.frontier import Frontier
from megatrace.model.layout import ParallelLayout


class Meetings:
    """Whom ranks met since they last heard from another stage. Without a layout every message is from one."""

    def __init__(self, frontier: Frontier, layout: ParallelLayout | None) -> None:
        self.frontier = frontier
        known = layout is not None and int(frontier.ranks.max(initial=-1)) < layout.world_size
        self._stage: NDArray[np.int32] | None = layout.stages() if layout is not None and known else None

    def after_message(self, rank: int) -> int:
        """Column of the tail after a rank's (index) last Send to or Recv from another stage; its length where
        that is the last call."""
        op, peer = self.frontier.tail_op[rank], self.frontier.tail_peer[rank]
        away = (op == Op.SEND) | (op == Op.RECV)
        if self._stage is not None:
            known = away & (peer >= 0) & (peer < len(self._stage))
            mine = self._stage[int(self.frontier.ranks[rank])]
            away[known] = self._stage[peer[known]] != mine
            # The schedule tells with whom stages exchange: what it does not know then stays within one.
            if away[known].any():
                away &= known
        messages = np.flatnonzero(away)
        return int(messages[-1]) + 1 if len(messages) else 0

    def since_message(self, rank: int) -> set[int]:
        """Communicators on which a rank (index) called after that."""
        return set(self.frontier.tail_comm[rank, self.after_message(rank) :].tolist()) - {NO_COMM}

    def like(self, rank: int) -> NDArray[np.bool_]:
        """bool [R]: ranks that run the same program as a rank (index): those of its stage."""
        if self._stage is None:
            return np.ones(len(self.frontier), np.bool_)
        stage = self._stage[self.frontier.ranks]
        return np.asarray(stage == stage[rank])

    def of(self, ranks: Iterable[int]) -> set[int]:
        """The same for all of these ranks (indices)."""
        return {comm for rank in ranks for comm in self.since_message(rank)}


def not_tied(graph: WaitsFor, met: Meetings, roots: Sequence[Root]) -> list[Root]:
    """The roots without groups that stand level but met with ranks that are short of a call: these hold them
    up."""
    if graph.frontier.has_end or len(roots) < 2 or any(root.kind is not RootKind.BEHIND for root in roots):
        return list(roots)
    level = [len(root.ranks) > 1 and not overtaken(graph, met, root) for root in roots]
    short = {
        comm
        for root, stands in zip(roots, level, strict=True)
        for comm in (() if stands else met.of(root.ranks))
    }
    return [
        root
        for root, stands in zip(roots, level, strict=True)
        if not (stands and any(short & met.since_message(rank) for rank in root.ranks))
    ]


def with_those_tied(
    graph: WaitsFor, met: Meetings, first: Sequence[Root], later: Sequence[Root], past: History | None
) -> list[Root]:
    """The roots that stopped first, and those that met with them since their last message, or made their last
    call before the first ones were to make another.

    Hosts run ahead of their devices and wait there, so which of them came to stand first does not tell on
    which device the reason is.
    """
    if graph.frontier.has_end or not first or not all(_level(graph, met, root) for root in first):
        return list(first)
    common = set.intersection(*(met.of(root.ranks) for root in first))
    mine = {rank for root in first for rank in root.ranks}
    due = min(_due(graph, root, past) for root in first)
    tied = [
        root
        for root in later
        if _level(graph, met, root)
        and (common & met.of(root.ranks) or (root.stopped <= due and not _at_message(graph, root)))
        and not mine & set(root.ranks)
    ]
    return [*first, *tied]


def _due(graph: WaitsFor, root: Root, past: History | None) -> int:
    """ns: until when ranks at a collective used to wait there; their last call where that is not known."""
    if past is None or _at_message(graph, root):
        return root.stopped
    paces = [past.pace(int(graph.frontier.ranks[rank])) for rank in root.ranks]
    return root.stopped + min((pace.gap for pace in paces if pace is not None), default=0)


def _at_message(graph: WaitsFor, root: Root) -> bool:
    """Whether a rank's last call was a Send or a Recv."""
    last = graph.frontier.tail_op[list(root.ranks), -1]
    return bool(((last == Op.SEND) | (last == Op.RECV)).any())


def _level(graph: WaitsFor, met: Meetings, root: Root) -> bool:
    """Whether several ranks made the same calls and none of them is known to have gone on."""
    return root.kind is RootKind.BEHIND and len(root.ranks) > 1 and not overtaken(graph, met, root)


def unconnected(sets: list[set[int]]) -> int:
    """How many of the sets are left when those that share a member are joined: groups that met in a
    communicator since their last message stand for one reason."""
    joined: list[set[int]] = []
    for one in sets:
        apart = [other for other in joined if not other & one]
        joined = [*apart, one.union(*(other for other in joined if other & one))]
    return len(joined)


def overtaken(graph: WaitsFor, met: Meetings, root: Root) -> bool:
    """Whether ranks that stand at one collective were passed by another member that runs the same program:
    then it is no call that held them."""
    if root.kind is not RootKind.BEHIND or len(root.ranks) < 2:
        return False
    frontier, ranks = graph.frontier, list(root.ranks)
    comm, seq, op = frontier.tail_comm[ranks, -1], frontier.tail_seq[ranks, -1], frontier.tail_op[ranks, -1]
    if comm[0] < 0 or (comm != comm[0]).any():
        return False
    if (frontier.entry_last[frontier.entry_comm == comm[0]] > seq.max()).any():
        return True
    if (seq != seq[0]).any() or op[0] in (Op.SEND, Op.RECV):
        return False
    # Or it went on to a call elsewhere.
    there = (frontier.tail_comm[:, :-1] == comm[0]) & (frontier.tail_seq[:, :-1] == seq[0])
    there &= frontier.tail_op[:, :-1] == op[0]
    passed = there.any(axis=1) & met.like(ranks[0])
    passed[ranks] = False
    return bool(passed.any())
