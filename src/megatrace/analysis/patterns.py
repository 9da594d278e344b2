"""Slowness that belongs to nobody: imbalance, jitter, everybody at once.

Looked for before single culprits, because each of them makes many places look guilty:

* sequence-length imbalance: forward and backward of one micro-batch are long together, on all stages of one replica,
  another replica in every step;
* stage imbalance: all replicas of a stage are long, against the other stages or against their own past;
* a job-wide shift (all places slower at once: clocks, storage, a driver) and jitter (all places scattered).

A pattern's share of the work is taken out of what is judged afterwards, so that a culprit inside it still shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs, own_normal
from megatrace.analysis.suspects import COUNTS
from megatrace.model.finding import Kind
from megatrace.model.schedule import Phase, Schedule

F8 = NDArray[np.float64]

# Spread (standard deviation, relative) of a micro-batch's work that is worth a word; kernels alone spread by 1–3 %.
SPREAD = 0.06
# Share of the spread that the common factor of (replica, micro-batch) has to explain: half is far beyond chance.
EXPLAINED = 0.5
# A stage longer than the median stage by this much is imbalance; embedding and loss make up to 15 % in real jobs.
STAGE_LONGER = 1.2
# Share of a stage's (or the job's) places that have to be slow together before it is the stage (or the job).
TOGETHER = 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """One pattern: kind, the stage (imbalance between stages) and lost float64 [K] seconds an iteration."""

    kind: Kind
    stage: int | None
    lost: F8
    detail: str
    ratio: float


def find_patterns(costs: Costs) -> tuple[list[Pattern], Costs]:
    """(patterns found, costs with their share of the work made normal)."""
    found: list[Pattern] = []
    for look in (_sequences, _stages, _everywhere):
        pattern, costs = look(costs)
        found += pattern
    return found, costs


def _sequences(costs: Costs) -> tuple[list[Pattern], Costs]:
    schedule = costs.graph.schedule
    k, s, d, m, t = costs.work.shape
    if s < 2 or schedule.total < 2:
        return [], costs
    deviation = costs.work / np.maximum(own_normal(costs.work), 1e-9)
    by_batch = _by_micro_batch(deviation.mean(axis=3), schedule)  # [K, S, D, phase, batch]
    centred = by_batch - by_batch.mean(axis=-1, keepdims=True)
    common = centred.mean(axis=(1, 3), keepdims=True)
    total, shared = float(centred.var()), float(common.var())
    # Of S · 2 independent spreads, 1/(2 S) of the variance would be common by chance.
    chance = total / (2 * s)
    if shared**0.5 < SPREAD or shared < EXPLAINED * total or shared < 3 * chance:
        return [], costs
    factor = by_batch.mean(axis=(1, 3))  # [K, D, batch]
    work = costs.normal * _spread_over_tasks(factor, schedule, s)[:, :, :, None, :]
    mean = np.broadcast_to(costs.normal * factor.mean(axis=(1, 2))[:, None, None, None, None], work.shape)
    transfer, comm = costs.normal_transfer, costs.normal_comm
    lost = np.maximum(costs.makespan(work, comm, transfer) - costs.makespan(mean, comm, transfer), 0.0)
    detail = "forward and backward of a micro-batch are long together, on all stages, another replica every step"
    pattern = Pattern(Kind.IMBALANCE, None, lost, detail, float(shared**0.5))
    return [pattern], replace(costs, normal=np.minimum(np.maximum(work, costs.normal), np.maximum(costs.work, costs.normal)))


def _by_micro_batch(values: F8, schedule: Schedule) -> F8:
    """[K, S, D, T] → [K, S, D, 2, micro-batches]: mean over chunks; phase 0 forward, 1 backward."""
    k, s, d, _ = values.shape
    result = np.zeros((k, s, d, 2, schedule.micro_batches))
    for stage in range(s):
        for i, task in enumerate(schedule.tasks(stage)):
            result[:, stage, :, int(task.phase is Phase.BACKWARD), task.micro_batch] += values[:, stage, :, i]
    return result / schedule.vpp


def _spread_over_tasks(factor: F8, schedule: Schedule, stages: int) -> F8:
    """[K, D, micro-batches] → [K, S, D, T]."""
    batches = np.asarray([[task.micro_batch for task in schedule.tasks(stage)] for stage in range(stages)])
    return np.moveaxis(factor[:, :, batches], 2, 1)


def _stages(costs: Costs) -> tuple[list[Pattern], Costs]:
    """Stages of which all replicas are long: against their own past, or against the other stages all the time."""
    k, s, d, m, _ = costs.work.shape
    found: list[Pattern] = []
    if s < 2:
        return found, costs
    normal = costs.normal.copy()
    own = np.broadcast_to(own_normal(costs.work), costs.work.shape)
    share = (costs.work - own).sum(axis=-1) / np.maximum(own.sum(axis=-1), 1e-9)
    together = np.mean(share >= COUNTS, axis=(2, 3)) >= TOGETHER  # [K, S]
    everywhere = together.mean(axis=1) >= TOGETHER
    level = np.median(costs.work.sum(axis=-1), axis=(0, 2, 3))  # [S]
    usual = float(np.median(level))
    for stage in range(s):
        chosen = np.zeros(costs.work.shape[1:4], np.bool_)
        chosen[stage] = True
        ratio = float(level[stage] / max(usual, 1e-9))
        if ratio >= STAGE_LONGER and together[:, stage].mean() < 0.5 and d * m > 1:
            scaled = costs.work.copy()
            scaled[:, stage] /= ratio
            lost = costs.makespan(costs.work, costs.comm, costs.transfer) - costs.makespan(
                scaled, costs.comm, costs.transfer
            )
            if np.median(lost) >= COUNTS * costs.usual:
                text = f"all {d * m} places of stage {stage} work {ratio:.2f}× as long as the median stage, in every iteration"
                found.append(Pattern(Kind.IMBALANCE, stage, np.maximum(lost, 0.0), text, ratio))
        mine = together[:, stage] & ~everywhere
        if d > 1 and mine.sum() >= 2:
            lost = np.where(mine, costs.relative_to(own).with_work(chosen) - costs.relative_to(own).ideal(), 0.0)
            if lost.max() >= COUNTS * costs.usual:
                grown = 1 + float(np.median(share[mine][:, stage]))
                text = f"all {d * m} places of stage {stage} became {grown:.2f}× as long together"
                found.append(Pattern(Kind.IMBALANCE, stage, np.maximum(lost, 0.0), text, grown))
                normal[mine, stage] = np.minimum(costs.work, own.clip(min=np.median(costs.work[mine, stage])))[mine, stage]
    return found, replace(costs, normal=normal)


def _everywhere(costs: Costs) -> tuple[list[Pattern], Costs]:
    """Iterations in which most places of most stages are slow at once: jitter if scattered, else a uniform shift."""
    k, s, d, m, t = costs.work.shape
    places = s * d * m
    if places < 3:
        return [], costs
    own = np.broadcast_to(own_normal(costs.work), costs.work.shape)
    share = (costs.work - own).sum(axis=-1) / np.maximum(own.sum(axis=-1), 1e-9)
    together = np.mean(share >= COUNTS / 2, axis=(1, 2, 3)) >= TOGETHER  # [K]
    if together.sum() < 2:
        return [], costs
    relative = costs.relative_to(own)
    lost = np.where(together, relative.makespan(costs.work, costs.comm, costs.transfer) - relative.ideal(), 0.0)
    if lost.max() < COUNTS * costs.usual:
        return [], costs
    ratio = costs.work[together] / np.maximum(own[together], 1e-9)
    scatter = float(np.median(ratio.std(axis=-1)))
    shift = 1 + float(np.median(share[together]))
    kind = Kind.JITTER if scatter >= SPREAD else Kind.SLOW_UNIFORM
    text = (
        f"{100 * np.mean(share[together] >= COUNTS / 2):.0f} % of the places are slower at once, "
        f"single tasks spread by {100 * scatter:.0f} %"
    )
    common = 1 + np.median(share, axis=(1, 2, 3))[:, None, None, None, None]
    normal = np.where(together[:, None, None, None, None], np.fmin(costs.work, own * common), costs.normal)
    return [Pattern(kind, None, np.maximum(lost, 0.0), text, shift)], replace(costs, normal=normal)
