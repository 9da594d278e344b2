"""Who ran ahead of everybody: all others stand at one call, and a few went on past it without waiting.

The calls behind it then look late on all but these few, and chains of waiting end at the many. But hosts that
run the same program wait at the same place. One that did not had something else before it: a call left out
moves all that follow forward by one number.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.waits_for import WaitsFor

MANY = 4
"""How many stand for each one that is ahead: of fewer nobody can say who is the odd one."""


def with_those_ahead(graph: WaitsFor, roots: list[Root]) -> list[Root]:
    """The roots, with the few ahead in place of the many who stand and would be named."""
    return [_turned(graph, root) or root for root in roots]


def _turned(graph: WaitsFor, root: Root) -> Root | None:
    if root.kind not in (RootKind.DEATH, RootKind.BEHIND) or len(root.ranks) < MANY:
        return None
    standing = np.asarray(root.ranks, np.int64)
    last = graph.calls.bounds[standing + 1] - 1
    instance = int(graph.calls.instance[last[0]])
    if instance < 0 or (graph.calls.instance[last] != instance).any():
        return None
    comm = int(graph.instances.group[instance])
    if comm >= graph.pairs.base:
        return None
    members = graph.frontier.indices(graph.frontier.members.of_comm(comm))
    ahead = np.setdiff1d(members, standing)
    if not len(ahead) or MANY * len(ahead) > len(standing) or len(graph.finished(instance)):
        return None
    if not (_made(graph, ahead, comm) > int(graph.instances.seq[instance])).all():
        return None
    if not all(_has_equal(graph, int(rank), standing) for rank in ahead):
        return None
    return replace(root, kind=RootKind.AHEAD, ranks=tuple(ahead.tolist()), instances=(instance,))


def _made(graph: WaitsFor, ranks: NDArray[np.int64], comm: int) -> NDArray[np.int64]:
    """int64: the last number that each of these ranks (indices) made on a communicator, −1 for none."""
    frontier = graph.frontier
    mine = (frontier.entry_comm == comm) & np.isin(frontier.entry_rank, ranks)
    made = np.full(len(frontier), -1, np.int64)
    made[frontier.entry_rank[mine]] = frontier.entry_last[mine]
    return made[ranks]


def _has_equal(graph: WaitsFor, rank: int, standing: NDArray[np.int64]) -> bool:
    """Whether one of those who stand shares a smaller communicator with a rank: it runs the same program."""
    frontier = graph.frontier
    sizes = frontier.members.counts()
    own = frontier.entry_comm[frontier.entry_rank == rank]
    small = [int(comm) for comm in own if int(sizes[comm]) <= len(standing)]
    return any(np.isin(frontier.indices(frontier.members.of_comm(c)), standing).any() for c in small)
