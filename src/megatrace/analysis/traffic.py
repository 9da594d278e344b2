"""Gradient traffic of a job whose ranks all reduce together: nothing in the recording to compare it with.

A slow group of many shows against the others, one that became slow against its own past. Where the only group
is slow from the first step to the last, its traffic is just a large part of every iteration, as it also is in
a healthy job on a modest network. So it is noted, with what would tell.
"""

from __future__ import annotations

import numpy as np

from megatrace.analysis import sentences, slow_scene
from megatrace.analysis.slow_scene import SlowContext
from megatrace.analysis.windows import Span
from megatrace.model.finding import Culprits, Evidence, Finding, Kind, Severity, Status, Where
from megatrace.model.schedule import Phase

# Traffic that takes half of an iteration is what makes the job as slow as it is.
HALF = 0.5


def traffic_of_all(context: SlowContext) -> Finding | None:
    """The note, where the gradient collectives of one group of all ranks take much of every iteration."""
    costs, grid = context.costs, context.table.grid
    if costs.quiet is None or grid.shape[2] > 1 or grid.size < 2:
        return None
    share = float(np.median(costs.sync.reshape(len(costs.sync), -1).max(axis=1) / costs.measured))
    if share < HALF:
        return None
    last = len(costs.iterations) - 1
    whole = Span(0, last, last + 1, Status.ONGOING)
    share = min(share, 1.0)
    text = f"data-parallel collectives of all {grid.size} ranks were under way in {100 * share:.0f} % of the "
    text += (
        "time, with every member there; no other group to compare with: only an earlier run, or the links' "
    )
    text += "rated speed, tells whether a path is slow"
    return Finding(
        kind=Kind.SLOW_NETWORK,
        severity=Severity.P3,
        status=Status.ONGOING,
        summary=text,
        confidence=0.5,
        ambiguous=True,
        culprits=Culprits(ranks=tuple(sorted(int(rank) for rank in grid.reshape(-1)))),
        where=Where(iteration=int(costs.iterations[0]), phase=Phase.SYNC),
        window=slow_scene.window(context, whole),
        evidence=(Evidence("share of an iteration in data-parallel collectives", round(share, 3), None),),
        remedy=sentences.remedy(Kind.SLOW_NETWORK),
    )
