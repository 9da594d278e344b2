"""The iteration in which a job came to stand, as a Gantt chart: who had done what when the recording ends.

The tables of work have rows for complete iterations only. Of the one that nobody finished the calls tell how
far each rank came, and that is the picture of a hang: the culprit's pipeline from stage to stage, and beside
the culprit a member of its tensor group that went on.

Blames nobody: it shows what the finding says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.timeline import Known, unfinished
from megatrace.model.events import UNSEEN
from megatrace.model.finding import Finding, Pictures, Verdict
from megatrace.model.layout import Axis, ParallelLayout

CULPRITS = 4
"""Culprits whose pipelines are drawn; more would be a page of lines that look alike."""


def with_standstill(pictures: Pictures, known: Known, findings: Sequence[Finding]) -> Pictures:
    """The pictures with the broken iteration in the place of a complete one, where the first finding is a
    hang of ranks whose calls can be placed in the schedule."""
    layout = known.resolved.layout
    if not findings or findings[0].kind.verdict is not Verdict.HANG or layout is None:
        return pictures
    culprits = [rank for rank in findings[0].culprits.ranks if rank < layout.world_size][:CULPRITS]
    tasks = unfinished(known, _beside(layout, culprits))
    if not len(tasks):
        return pictures
    number = findings[0].where.iteration
    if number is None or not (tasks.iteration == number).any():
        number = int(tasks.iteration.min())
    kept = np.flatnonzero(tasks.iteration == number)
    kept = kept[np.lexsort((tasks.start[kept], tasks.rank[kept], tasks.stage[kept]))]
    end = (tasks.end[kept] - known.t0) / 1e9
    return replace(
        pictures,
        task_iteration=number,
        task_rank=tasks.rank[kept],
        task_stage=tasks.stage[kept],
        task_micro_batch=tasks.micro_batch[kept],
        task_phase=tasks.phase[kept],
        task_start_s=(tasks.start[kept] - known.t0) / 1e9,
        task_end_s=np.where(tasks.end[kept] == UNSEEN, np.nan, end),
        task_wait_s=np.where(tasks.wait[kept] > 0, tasks.wait[kept] / 1e9, np.nan),
        task_critical=tasks.critical[kept],
    )


def _beside(layout: ParallelLayout, culprits: Sequence[int]) -> NDArray[np.int32]:
    """Ranks to draw: the pipelines of the culprits, and next to each one member of its tensor group."""
    ranks: set[int] = set()
    for rank in culprits or (0,):
        ranks.update(layout.group(Axis.PIPELINE, rank))
        others = [member for member in layout.group(Axis.TENSOR, rank) if member not in culprits]
        ranks.update(others[:1])
    return np.asarray(sorted(ranks), np.int32)
