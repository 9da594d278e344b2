"""Longest paths through a graph without cycles: when each node can be reached at the earliest.

One order of the nodes serves every question, so it is made once. Where damaged times make a cycle, the edges
that lead back in it are left out; nothing recorded by a profiler has one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Edges sorted by the place of their target in an order in which every source comes before its target.

    edge  int64 index into the edges as they were given
    src   source node of each, ``dst`` its target
    """

    edge: Rows
    src: list[int]
    dst: list[int]

    @staticmethod
    def of(nodes: int, src: Rows, dst: Rows) -> Order:
        """The order of a graph with so many nodes."""
        place = _places(nodes, src, dst)
        kept = np.flatnonzero(place[src] < place[dst])
        edge = kept[np.argsort(place[dst[kept]], kind="stable")]
        return Order(edge, src[edge].tolist(), dst[edge].tolist())


def _places(nodes: int, src: Rows, dst: Rows) -> Rows:
    """The place of each node in the order; nodes of a cycle come last."""
    order = np.argsort(src, kind="stable")
    targets = dst[order].tolist()
    first = np.searchsorted(src[order], np.arange(nodes + 1)).tolist()
    open_inputs = np.bincount(dst, minlength=nodes).tolist()
    ready = [node for node, count in enumerate(open_inputs) if not count]
    for node in ready:  # grows while it is read
        for target in targets[first[node] : first[node + 1]]:
            open_inputs[target] -= 1
            if not open_inputs[target]:
                ready.append(target)
    place = np.full(nodes, nodes, np.int64)
    place[ready] = np.arange(len(ready))
    return place


def farthest(order: Order, length: Rows, base: Rows) -> Rows:
    """int64 [nodes]: the longest sum of lengths that leads to each node, at least its ``base``."""
    reached = base.tolist()
    for src, dst, step in zip(order.src, order.dst, length[order.edge].tolist(), strict=True):
        came = reached[src] + step
        if came > reached[dst]:
            reached[dst] = came
    return np.array(reached, np.int64)
