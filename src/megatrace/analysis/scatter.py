"""Tasks of one place that differ from each other within an iteration: uneven input, jitter, pauses.

A place does the same forward once for every micro-batch; how much these differ is its irregularity. What it
costs is the counterfactual in which every task takes its place's median of that iteration. Where forward and
backward of a micro-batch are long together on all stages of a replica the input is uneven (sequence lengths);
where the excess sits anywhere it is jitter; where one place has most of it, that place is a suspect and no
pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs, normal_work, own_normal
from megatrace.analysis.reductions import median
from megatrace.analysis.restless import find_restless
from megatrace.model.finding import Kind
from megatrace.model.schedule import Phase, Schedule

F8 = NDArray[np.float64]

# Spread of a micro-batch's work (standard deviation, relative) worth a word; kernels alone spread by 1–3 %.
SPREAD = 0.06
# Share of the spread that the common factor of (replica, micro-batch) has to explain: half is far beyond
# chance.
EXPLAINED = 0.5
# Chance at which some place is so often the longest of all; rarer, and it is a culprit of its own.
LUCK = 0.05
# Share of the iterations in which jitter that was always there costs enough.
ALWAYS = 0.75
# Seconds below which a task does no work: nothing can be relative to it.
NOTHING_S = 1e-6
# Iterations that the irregularity must lengthen: pauses hit some, jitter hits all.
OFTEN = 0.15


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """kind IMBALANCE or JITTER, lost float64 [K] seconds, and the numbers for the sentence."""

    kind: Kind
    lost: F8
    detail: str
    spread: float


def find_scatter(costs: Costs) -> tuple[Scatter | None, Costs]:
    """The irregularity of a job, if it costs enough, and the costs without it."""
    schedule = costs.graph.schedule
    if schedule.total < 3:
        # Traffic hidden behind kernels makes work long or short through no kernel's doing.
        return _restless(costs) if costs.quiet is None else (None, costs)
    typical = _typical(costs.work, schedule)
    staggered = _staggered(costs)
    if staggered is not None:
        return staggered, replace(costs, work=np.minimum(costs.work, np.maximum(typical, costs.normal)))
    seen = _without_loading(costs.work, typical)
    ratio = np.where(typical > NOTHING_S, seen / np.maximum(typical, NOTHING_S), 1.0)
    actual = costs.makespan(seen, costs.normal_comm, costs.normal_transfer)
    # A task that is long in every iteration is so by its place in the schedule.
    regular = np.maximum(typical, costs.normal)
    lost = np.maximum(actual - costs.makespan(regular, costs.normal_comm, costs.normal_transfer), 0.0)
    hit = lost >= costs.counts
    if hit.mean() < OFTEN or hit.sum() < 2:
        return _restless(costs)
    uneven = _common_share(ratio, schedule)
    if uneven is None and _concentrated(seen[hit] - regular[hit]):
        return None, costs
    spread = float(ratio.std())
    if uneven is not None:
        even = _levelled(_evened(costs.work, schedule))
        levelled = replace(costs, work=even, normal=np.minimum(even, normal_work(even)))
        text = "forward and backward of a micro-batch are long together on all stages, another replica every "
        text += f"step; they spread by {100 * uneven:.0f} %"
        return Scatter(Kind.IMBALANCE, lost, text, uneven), levelled
    text = f"forwards and backwards of one rank spread by {100 * spread:.0f} %, on no rank in particular"
    return Scatter(Kind.JITTER, lost, text, spread), replace(costs, work=np.minimum(costs.work, regular))


def _restless(costs: Costs) -> tuple[Scatter | None, Costs]:
    """Jitter without an undisturbed iteration."""
    found = find_restless(costs)
    if found is None:
        return None, costs
    lost, spread = found
    if np.mean(lost >= costs.counts) < ALWAYS:
        return None, costs
    text = f"the same task takes another time every iteration, by {100 * spread:.1f} %, on most places"
    return Scatter(Kind.JITTER, lost, text, spread), costs


def _staggered(costs: Costs) -> Scatter | None:
    """Jitter from one collective to the next: every member of a tensor group waits for another one each time.

    A group with a slow member has one that never waits; here the group takes longer than any of its members
    works.
    """
    ideal = costs.ideal()
    lost = np.maximum(
        costs.makespan(costs.normal, costs.normal_comm + costs.stagger, costs.normal_transfer) - ideal, 0.0
    )
    hit = lost >= costs.counts
    if hit.mean() < OFTEN or hit.sum() < 2:
        return None
    share = float(
        np.median(
            costs.stagger[hit].sum(axis=-1) / np.maximum(costs.work[hit].max(axis=3).sum(axis=-1), 1e-9)
        )
    )
    text = "every member of a tensor group waits for another one at each collective, "
    text += f"{100 * share:.0f} % of its work"
    return Scatter(Kind.JITTER, lost, text, share)


def _without_loading(work: F8, typical: F8) -> F8:
    """``work`` with the first task of the first and the last stage as usual: loading data is no jitter."""
    seen = work.copy()
    for stage in {0, work.shape[1] - 1}:
        seen[:, stage, :, :, 0] = np.minimum(work[:, stage, :, :, 0], typical[:, stage, :, :, 0])
    return np.asarray(seen)


def _evened(work: F8, schedule: Schedule) -> F8:
    """Like ``work``: without the length of each micro-batch, which all stages of its replica share.

    A micro-batch's length is the median over stages and phases of its work against what is usual there, so
    that one slow place does not make it long.
    """
    usual = np.median(_typical(work, schedule), axis=(0, 2, 3))  # [S, T]
    ratio = (work / np.maximum(usual[None, :, None, None, :], 1e-9)).mean(axis=3)  # [K, S, D, T]
    of_task = np.asarray([[task.micro_batch for task in schedule.tasks(s)] for s in range(work.shape[1])])
    even = np.empty_like(work)
    for micro_batch in range(schedule.micro_batches):
        stage, task = np.nonzero(of_task == micro_batch)
        length = np.median(ratio[:, stage, :, task], axis=0)  # [K, D]
        even[:, stage, :, :, task] = work[:, stage, :, :, task] / np.maximum(length, 1e-9)[None, :, :, None]
    return even


def _levelled(work: F8) -> F8:
    """Like ``work``: every task of a place as much longer than usual as most of its tasks in that iteration.

    Lengths of micro-batches are never taken out exactly: on the host two tasks without a Send between show as
    one. A sick place is slow in all its tasks, what is left of an uneven input is long in some.
    """
    usual = np.broadcast_to(own_normal(work), work.shape)
    ratio = np.where(usual > NOTHING_S, work / np.maximum(usual, NOTHING_S), np.nan)
    return np.asarray(usual * np.nan_to_num(median(ratio, 4), nan=1.0)[..., None])


def _typical(work: F8, schedule: Schedule) -> F8:
    """Like ``work``: the place's median over the micro-batches of the same phase and chunk, in that
    iteration."""
    typical = np.empty_like(work)
    for stage in range(work.shape[1]):
        keys = np.asarray(
            [(task.phase is Phase.BACKWARD) * schedule.vpp + task.chunk for task in schedule.tasks(stage)]
        )
        for key in np.unique(keys):
            chosen = keys == key
            typical[:, stage][..., chosen] = np.median(work[:, stage][..., chosen], axis=-1, keepdims=True)
    return typical


def _concentrated(excess: F8) -> bool:
    """Whether one place is the longest one more often than chance would have it.

    ``excess`` [hits, S, D, M, T] over what is typical. Pauses show most on a last stage, so that a place may
    be the longest twice as often as its share.
    """
    by_place = np.maximum(excess, 0.0).sum(axis=-1).reshape(len(excess), -1)
    places = by_place.shape[1]
    if places <= 2:
        return False
    often = int(np.bincount(by_place.argmax(axis=1)).max())
    n, chance = len(excess), 2.0 / places
    tail = sum(comb(n, i) * chance**i * (1.0 - chance) ** (n - i) for i in range(often, n + 1))
    return bool(places * tail < LUCK)


def _common_share(ratio: F8, schedule: Schedule) -> float | None:
    """Spread of the factor that all stages share by (replica, micro-batch), if it explains most of the
    spread."""
    k, s, d, _, _ = ratio.shape
    if s < 2:
        return None
    table = np.zeros((k, s, d, 2, schedule.micro_batches))
    by_task = ratio.mean(axis=3)
    for stage in range(s):
        for i, task in enumerate(schedule.tasks(stage)):
            table[:, stage, :, int(task.phase is Phase.BACKWARD), task.micro_batch] += (
                by_task[:, stage, :, i] / schedule.vpp
            )
    table -= table.mean(axis=-1, keepdims=True)
    common = table.mean(axis=(1, 3))
    shared, total = float(common.var()), float(table.var())
    return shared**0.5 if shared**0.5 >= SPREAD and shared >= EXPLAINED * total else None
