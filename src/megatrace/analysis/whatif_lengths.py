"""How long the compute of a worker is, and whether micro-batches decide it: lengths as recorded, nothing
replayed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.model.optable import OpGrid, OpType

F8 = NDArray[np.float64]

COMPUTE = (OpType.FORWARD, OpType.BACKWARD)
"""What a worker does with a micro-batch."""
UNEVEN = 0.05
"""Spread of the micro-batches of a worker in a step, against their mean, below which their lengths are
alike."""


def own_compute(grid: OpGrid) -> F8:
    """float64 [stages, replicas, steps]: seconds of forward and backward of each worker in each step."""
    own = np.zeros((len(grid.stages), len(grid.replicas), len(grid.steps)))
    nodes = grid.nodes(*COMPUTE)
    for stage in range(len(grid.stages)):
        own[stage] = grid.duration[nodes[grid.stage[nodes] == stage]].sum(axis=0).T
    return own


def forward_backward(grid: OpGrid) -> float | None:
    """Correlation of the forward and backward lengths of micro-batches, each against the mean of its worker
    in its step; None where micro-batches are too few or alike."""
    pairs: dict[tuple[int, int, int], list[int]] = {}
    for node in np.concatenate([grid.nodes(kind) for kind in COMPUTE]).tolist():
        batch = int(grid.micro_batch[node])
        key = (int(grid.stage[node]), int(grid.chunk[node]), int(grid.seq[node]) if batch < 0 else batch)
        pairs.setdefault(key, []).append(node)
    both = np.array([nodes for nodes in pairs.values() if len(nodes) == 2], np.intp).reshape(-1, 2)
    level = np.zeros((2, len(both), *grid.duration.shape[1:]))
    for place in set(zip(grid.stage[both[:, 0]].tolist(), grid.chunk[both[:, 0]].tolist(), strict=True)):
        mine = (grid.stage[both[:, 0]] == place[0]) & (grid.chunk[both[:, 0]] == place[1])
        for side in range(2):
            took = grid.duration[both[mine, side]]
            mean = took.mean(axis=0)
            level[side, mine] = (took - mean) / np.maximum(mean, 1e-9)
    spread = level.std(axis=(1, 2, 3)) if len(both) else np.zeros(2)
    if spread.min() < UNEVEN:
        return None
    return float((level[0] * level[1]).mean() / spread.prod())
