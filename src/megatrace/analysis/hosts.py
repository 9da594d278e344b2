"""Hosts that are slow at making calls: a starved processor, a busy node.

Inside a block of calls the host runs ahead of its device, so the time per call in such a burst is the host's
own pace, whatever the device does. It is compared with the same rank's past and with all other ranks of the
job (every rank makes the same kind of calls), and a node is accused when its ranks are slow together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.reductions import median
from megatrace.analysis.work import WorkTable
from megatrace.model.schedule import Phase

F8 = NDArray[np.float64]

# Pace of a starved host against the usual one. Burst pace differs by 10–20 % between healthy ranks.
STARVED = 1.6
# The quickest quarter of the job sets the pace: of two nodes a starved one holds half of all ranks.
QUICK = 0.25
# A rank's own pace is that of its quickest fifth of iterations: it may be starved in most of them.
OWN_QUICK = 0.2
# More places than this are no starved node: the usual pace was read wrongly, or the whole job is slow.
ALL_SLOW = 0.6
# Slow iterations of a sick place share it (intersection over union near 1); places drawn by chance share one
# in five at most.
SAME = 0.4
# Iterations of which that is asked lie so many apart: a pause at the end of one makes the next begin late.
APART = 2


@dataclass(frozen=True, slots=True, eq=False)
class SlowHosts:
    """starved bool [K, S, D, M] over the usable iterations; ratio float64 likewise, pace against usual."""

    starved: NDArray[np.bool_]
    ratio: F8


def slow_hosts(table: WorkTable, costs: Costs) -> SlowHosts | None:
    """Hosts that need longer per call than usual, or None where no bursts are seen."""
    pace = median(table.pace[costs.iterations], 4)  # [K, S, D, M]
    if np.isnan(pace).all():
        pace = table.step_pace
        # An iteration begins with the bookkeeping of the one before; its own follows with the next.
        pace = np.fmax(pace, np.concatenate([pace[1:], np.full_like(pace[:1], np.nan)]))[costs.iterations]
    if np.isnan(pace).all():
        return None
    flat = pace.reshape(len(pace), -1)
    everyone = float(np.quantile(flat[~np.isnan(flat)], QUICK))
    # "lower" interpolates nothing: an iteration that was not seen counts as endlessly slow.
    own = np.quantile(np.nan_to_num(flat, nan=np.inf), OWN_QUICK, axis=0, method="lower")
    own = np.where(np.isfinite(own), own, np.nan).reshape(pace.shape[1:])
    # Where hosts wait for everybody's devices, one that was behind has a free queue and catches up: its
    # quickest iterations are not its usual ones.
    waits = not table.by_rank and costs.graph.schedule.total == 1 and table.grid.shape[2] == 1
    usual = np.full_like(own[None], everyone) if waits else np.fmin(everyone, own[None])
    with np.errstate(invalid="ignore"):
        ratio = pace / usual
        starved = ratio >= STARVED
    if bool(starved.mean() > ALL_SLOW):
        return None  # everybody's pace: nobody in particular
    return SlowHosts(np.asarray(starved, np.bool_), np.nan_to_num(ratio, nan=1.0))


def same_places(slow: NDArray[np.bool_]) -> float:
    """How much the slow places of an iteration are those of the last but one: intersection over union, mean.

    ``slow`` bool [iterations, places]. 0 where there is nothing to compare.
    """
    both = (slow[APART:] & slow[:-APART]).sum(axis=1)
    either = (slow[APART:] | slow[:-APART]).sum(axis=1)
    return float(np.sum(both / np.maximum(either, 1)) / max(len(both), 1))


def normal_on_good_hosts(costs: Costs, starved: NDArray[np.bool_]) -> F8:
    """Like ``costs.work``: what places whose hosts are starved all the time would spend on good hosts.

    Their own past shows nothing and their peers may stand on the same node, so other stages speak: the median
    of the same phase over the places that are not starved.
    """
    by_rank = costs.work.shape[3] == starved.shape[2]
    places = np.asarray(starved if by_rank else starved.any(axis=2, keepdims=True))
    normal = np.array(costs.normal)
    good = ~places & (costs.work.sum(axis=(0, -1)) > 0.0)  # a place that was never seen is no yardstick
    if not places.any() or not good.any():
        return normal
    schedule = costs.graph.schedule
    phases = [
        np.asarray([task.phase is Phase.FORWARD for task in schedule.tasks(s)]) for s in range(schedule.pp)
    ]
    for forward in (True, False):
        pool = [costs.work[:, s][:, good[s]][..., phases[s] == forward] for s in range(schedule.pp)]
        values = np.concatenate([part.reshape(len(costs.work), -1) for part in pool], axis=1)
        level = np.median(values, axis=1)
        for s in range(schedule.pp):
            chosen = places[s][None, :, :, None] & (phases[s] == forward)[None, None, None, :]
            normal[:, s] = np.where(
                chosen, np.minimum(normal[:, s], level[:, None, None, None]), normal[:, s]
            )
    return normal
