"""Runs the operations of every step again, with other lengths: how long would the step have taken?

Many scenarios are run at once: a scenario says of which workers which operations keep their recorded length;
the others take the length that they would have if all were equal. Operations come in order of dependence,
and each is one numpy expression over all scenarios, steps and replicas.

Compute keeps the length that was recorded. An operation that waits for others holds that waiting in its
recorded length, so it is cut to its transfer: its end after the last participant had started.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.whatif_graph import OpGraph, build
from megatrace.model.optable import OP_TYPES, OpGrid, Unreplayable

F8 = NDArray[np.float64]
Mask = NDArray[np.bool_]

BUDGET = 16 << 20
"""Numbers held at once (128 MiB): more scenarios are run one part after the other."""
SKEW_S = 0.01
"""A transfer that ended this long before its last participant started is none: clocks of hosts or a send
that was buffered. Less may be noise of clocks, and stays, so that it evens out in the median."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A grid ready to be run. ``own`` float64 [N, steps, replicas]: seconds of each operation without
    waiting; ``ideal`` float64 [N]: what it would take if all operations of its type took the same."""

    grid: OpGrid
    graph: OpGraph
    own: F8
    ideal: F8

    @staticmethod
    def of(grid: OpGrid) -> Replay:
        """Raises Unreplayable."""
        graph = build(grid)
        own = transfers(grid, graph)
        if not own.any():
            raise Unreplayable("no operation takes any time")
        ideal = np.empty(len(grid))
        for number, kind in enumerate(OP_TYPES):
            nodes = grid.optype == number
            if nodes.any():
                # Compute differs by what it is given, so its mean is what equal shares would be; a transfer
                # now and then takes many times as long, which a mean would spread over all.
                ideal[nodes] = own[nodes].mean() if kind.computes else np.median(own[nodes])
        return Replay(grid, graph, own, ideal)

    def times(self, kept: Mask) -> F8:
        """float64 [S, steps]: seconds of each step in each scenario; ``kept`` bool [S, N, replicas]: what
        keeps its own length."""
        cells = len(self.grid) * len(self.grid.steps) * len(self.grid.replicas)
        part = max(1, BUDGET // max(cells, 1))
        return np.concatenate([self._times(kept[at : at + part]) for at in range(0, len(kept), part)])

    def _times(self, kept: Mask) -> F8:
        end = self.run(kept)[1]
        return np.asarray(end.max(axis=(0, 3)))

    def run(self, kept: Mask) -> tuple[F8, F8]:
        """(start, end) float64 [N, S, steps, replicas] in seconds after the beginning of the step."""
        shape = (len(self.grid), len(kept), len(self.grid.steps), len(self.grid.replicas))
        start, end = np.zeros(shape), np.empty(shape)
        before = self.graph.before
        for meeting in self.graph.meetings:
            for node in meeting.nodes:
                for other in before[node]:
                    np.maximum(start[node], end[other], out=start[node])
            begin: F8 = start[meeting.nodes[0]]
            for node in meeting.nodes[1:]:
                begin = np.maximum(begin, start[node])
            if meeting.replicas:
                begin = begin.max(axis=2, keepdims=True)
            for node in meeting.nodes:
                own = np.where(kept[:, node, None, :], self.own[node], self.ideal[node])
                np.add(begin, own, out=end[node])
        return start, end


def transfers(grid: OpGrid, graph: OpGraph) -> F8:
    """float64 [N, steps, replicas]: each operation's length without its waiting for others."""
    own = grid.duration.copy()
    for meeting in graph.meetings:
        nodes = list(meeting.nodes)
        if len(nodes) == 1 and not meeting.replicas:
            continue
        axis = (0, 2) if meeting.replicas else 0
        last: F8 = grid.start[nodes].max(axis=axis, keepdims=True)
        took = grid.start[nodes] + grid.duration[nodes] - last
        own[nodes] = np.where(took <= -SKEW_S, 0.0, took)
    return np.asarray(own)
