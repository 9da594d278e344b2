"""Stages with one tensor group only, slow from the first step on: only other stages can be compared with.

Without replicas a group has no peers, and a fault that was always there leaves it no past. Host times still
show a member that comes late to every block. Where there is one, the other stages' pace is taken as normal,
so that the member is judged like any other; where there is none, a long stage is just a long stage.
"""

from __future__ import annotations

import numpy as np

from megatrace.analysis.costs import Costs
from megatrace.analysis.hosts import normal_on_good_hosts
from megatrace.analysis.member import late_member
from megatrace.analysis.work import WorkTable

# A stage's work against the median stage's from which a late member is looked for; ends of healthy pipelines
# reach 1.15 (embedding, loss).
LONGER = 1.2


def with_lone_groups(table: WorkTable, costs: Costs) -> Costs:
    """The costs with other stages' work as the normal of long lone groups that have a late member."""
    _, _, replicas, places, _ = costs.work.shape
    members = table.grid.shape[2]
    level = np.median(costs.work.sum(axis=-1), axis=(0, 2, 3))
    seen = level > 0.0  # stages whose logs are missing are nobody's measure
    if table.by_rank or replicas * places > 1 or seen.sum() < 3 or members < 2:
        return costs
    long = level >= LONGER * np.median(level[seen])
    chosen = np.zeros(table.grid.shape, np.bool_)
    for stage in np.flatnonzero(long):
        if late_member(table, int(stage), 0, costs.iterations).index is not None:
            chosen[stage] = True
    return costs.relative_to(normal_on_good_hosts(costs, chosen)) if chosen.any() else costs
