"""Jobs without a pipeline in which another rank is the slowest every step: jitter, pauses, uneven input.

There is one task an iteration, so micro-batches cannot be compared with each other (``scatter`` does that for
pipelines). What shows instead is who is slow when: a sick rank is the slowest iteration after iteration,
while pauses and jitter change places. They cost what an iteration is longer than the median rank's own work.
What a rank spends more in *most* of the iterations stays in the costs: a culprit inside the noise still
shows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.flat import EXPLAINS, host_lateness
from megatrace.analysis.hosts import SAME, same_places
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.patterns import Pattern
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.work import WorkTable, iteration_times
from megatrace.model.finding import Kind

F8 = NDArray[np.float64]

# Share of the iterations that must be longer for it.
OFTEN = 0.15
# A place is slow in an iteration where it is late by this share of the latest one's excess.
SLOW = 0.5
# What a place spends more in all but this share of the iterations is no part of it.
MOSTLY = 0.2


def find_unsteady(
    resolved: Resolved, phases: PhaseTable, table: WorkTable, costs: Costs, told: NDArray[np.bool_]
) -> tuple[list[Pattern], Costs]:
    """(the pattern if there is one, costs without it), for costs of a job without a pipeline.

    ``told`` bool [K]: iterations of which is known why they are long.
    """
    k = len(costs.iterations)
    if table.by_rank:
        total = costs.work.sum(axis=-1) + costs.entry
        typical = np.median(total.reshape(k, -1), axis=1)
        late = (total - typical[:, None, None, None]).reshape(k, -1)
        # Ranks that save a checkpoint do not end together: nothing is to be read from such an iteration.
        times, _ = iteration_times(resolved, table.t0)
        paused = (times - table.iteration)[costs.iterations] > costs.counts
        traffic = np.median((costs.sync - costs.normal_sync).reshape(k, -1), axis=1)
        lost = np.where(paused, 0.0, np.maximum(costs.measured - typical - traffic, 0.0))
    else:
        _, most = host_lateness(resolved, phases, table.grid)
        late = np.nan_to_num(most[costs.iterations]).reshape(k, -1)
        longer = costs.measured - costs.usual
        # A checkpoint of all lengthens an iteration by more than anybody's lateness.
        lost = np.where(late.max(axis=1) >= EXPLAINS * longer, np.clip(longer, 0.0, late.max(axis=1)), 0.0)
    lost = np.where(told, 0.0, lost)
    hit = np.flatnonzero(lost >= costs.counts)
    if late.shape[1] < 3 or len(hit) < max(3, OFTEN * k):
        return [], costs
    if same_places(late[hit] >= SLOW * late[hit].max(axis=1, keepdims=True)) >= SAME:
        return [], costs
    slowest = len(np.unique(late[hit].argmax(axis=1)))
    text = f"another rank is the slowest every step ({slowest} ranks in {len(hit)} iterations)"
    ratio = float(np.median(1 + lost[hit] / costs.usual))
    excess = np.maximum(costs.work - costs.normal, 0.0)
    work = np.minimum(costs.work, costs.normal + np.quantile(excess, MOSTLY, axis=0))
    entry = np.minimum(costs.entry, np.maximum(np.quantile(costs.entry, MOSTLY, axis=0), 0.0))
    pattern = Pattern(Kind.JITTER, None, lost, text, ratio)
    return [pattern], replace(costs, work=work, entry=entry)
