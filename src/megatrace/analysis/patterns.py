"""Slowness that belongs to nobody: imbalance, jitter, everybody at once.

Looked for before single culprits, because each of them makes many places look guilty:

* uneven micro-batches and jitter (``scatter``);
* stage imbalance: all places of a stage are long, against the other stages or against their own past;
* a job-wide shift: all places are slower at once (clocks, storage, a driver).

A pattern's share of the work is taken out of what is judged afterwards, so that a culprit inside it still
shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import COUNTS, Costs, own_normal
from megatrace.analysis.scatter import find_scatter
from megatrace.model.finding import Kind, Severity

F8 = NDArray[np.float64]

# A first or last stage longer than the median stage by this much is imbalance; embedding and loss
# make up to 15 % in real jobs.
STAGE_LONGER = 1.2
# Stages between the ends have neither and are alike; each is measured against the median of the others.
MIDDLE_LONGER = 1.1
# Share of a stage's (or the job's) places that have to be slow together before it is the stage (or the job).
TOGETHER = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """One pattern: kind, the stage (imbalance between stages), lost float64 [K] seconds an iteration.

    ``severity`` P3 where healthy jobs may look the same.
    """

    kind: Kind
    stage: int | None
    lost: F8
    detail: str
    ratio: float
    severity: Severity = Severity.P2


def find_patterns(costs: Costs) -> tuple[list[Pattern], Costs]:
    """(patterns found, costs with their share of the work made normal)."""
    found: list[Pattern] = []
    scatter, costs = find_scatter(costs)
    if scatter is not None:
        found.append(Pattern(scatter.kind, None, scatter.lost, scatter.detail, 1 + scatter.spread))
    # Uneven micro-batches also move whole iterations, on one replica or on all; jitter slows everybody.
    looks = {None: (_grown_stages, _long_stages, _everywhere), Kind.JITTER: (_long_stages, _everywhere)}
    for look in looks.get(scatter.kind if scatter is not None else None, (_long_stages,)):
        patterns, costs = look(costs)
        if scatter is not None and look is _everywhere:
            continue  # said already
        known = {pattern.stage for pattern in found} - {None}
        # A stage that grew early is also long in most iterations: once is enough.
        found += [pattern for pattern in patterns if pattern.stage not in known]
    return found, costs


def _own_share(costs: Costs) -> tuple[F8, F8]:
    """(own normal like work, [K, S, D, M] excess over it as a share)."""
    own = np.broadcast_to(own_normal(costs.work, costs.quiet), costs.work.shape)
    return own, (costs.work - own).sum(axis=-1) / np.maximum(own.sum(axis=-1), 1e-9)


def _grown_stages(costs: Costs) -> tuple[list[Pattern], Costs]:
    """Stages whose places all grew together against their own past, while other stages did not."""
    _, s, d, m, _ = costs.work.shape
    if s < 2 or d < 2:
        return [], costs
    own, share = _own_share(costs)
    together = np.mean(share >= COUNTS, axis=(2, 3)) >= TOGETHER  # [K, S]
    everywhere = together.mean(axis=1) >= TOGETHER
    found: list[Pattern] = []
    normal = costs.normal
    for stage in range(s):
        mine = together[:, stage] & ~everywhere
        if mine.sum() < 2:
            continue
        chosen = np.zeros(costs.work.shape[1:4], np.bool_)
        chosen[stage] = True
        relative = costs.relative_to(np.array(own))
        lost = np.where(mine, relative.with_work(chosen) - relative.ideal(), 0.0)
        if lost.max() < costs.counts:
            continue
        grown = 1 + float(np.median(share[mine, stage]))
        text = f"all {d * m} places of stage {stage} became {grown:.2f}× as long together"
        found.append(Pattern(Kind.IMBALANCE, stage, np.maximum(lost, 0.0), text, grown))
        normal = normal.copy()
        shift = 1 + np.median(share[:, stage], axis=(1, 2))[:, None, None, None]
        normal[:, stage] = np.where(mine[:, None, None, None], own[:, stage] * shift, normal[:, stage])
    return found, replace(costs, normal=normal)


def _long_stages(costs: Costs) -> tuple[list[Pattern], Costs]:
    """Stages that are long all the time, in every one of their places, against the median stage."""
    _, s, d, m, _ = costs.work.shape
    if s < 2:
        return [], costs
    # The quickest place speaks for its stage: a stage is long only if all its places are.
    level = np.median(costs.work.sum(axis=-1), axis=0).reshape(s, -1).min(axis=1)
    found: list[Pattern] = []
    for stage in range(s):
        middle = 0 < stage < s - 1
        rest = np.delete(level, stage)
        usual = float(np.median(rest if middle or s == 2 else level))
        ratio = float(level[stage] / max(usual, 1e-9))
        already = float(np.median(costs.excess[:, stage]))  # on its way to be judged as a place's own
        if ratio < (MIDDLE_LONGER if middle else STAGE_LONGER) or already >= costs.counts:
            continue
        scaled = costs.work.copy()
        scaled[:, stage] /= ratio
        actual = costs.makespan(costs.work, costs.comm, costs.transfer)
        lost = np.maximum(actual - costs.makespan(scaled, costs.comm, costs.transfer), 0.0)
        if np.median(lost) >= costs.counts:
            places = f"all {d * m} places of stage {stage} work" if d * m > 1 else f"stage {stage} works"
            text = f"{places} {ratio:.2f}× as long as the median stage"
            text += ", in every iteration"
            found.append(Pattern(Kind.IMBALANCE, stage, lost, text, ratio))
    return found, costs


def _everywhere(costs: Costs) -> tuple[list[Pattern], Costs]:
    """Iterations in which most places of all stages are slow at once."""
    _, s, d, m, _ = costs.work.shape
    if s * d * m < 3:
        return [], costs
    own, share = _own_share(costs)
    together = np.mean(share >= COUNTS / 2, axis=(1, 2, 3)) >= TOGETHER  # [K]
    if together.sum() < 2:
        return [], costs
    relative = costs.relative_to(np.array(own))
    lost = np.where(
        together, relative.makespan(costs.work, costs.comm, costs.transfer) - relative.ideal(), 0.0
    )
    if lost.max() < costs.counts:
        return [], costs
    part = float(np.mean(share[together] >= COUNTS / 2))
    text = f"{100 * part:.0f} % of the places are slower at once"
    shift = 1 + np.median(share, axis=(1, 2, 3))[:, None, None, None, None]
    normal = np.where(together[:, None, None, None, None], own * shift, costs.normal)
    ratio = 1 + float(np.median(share[together]))
    return [Pattern(Kind.SLOW_UNIFORM, None, np.maximum(lost, 0.0), text, ratio)], replace(
        costs, normal=normal
    )
