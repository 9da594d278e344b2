"""Jitter that is there from the first step to the last: no iteration shows what the job takes without it.

What shows is that the same task of the same place takes another time every iteration, on most places. A
kernel may be late but never early, so that one which spreads is late by at least its spread, on average. A
task is a row of kernels, each followed by a collective, and the spreads of n independent ones grow with the
square root of n while what they lose grows with n. So a task loses its spread times √n: little in a job whose
kernels spread by a per cent, a tenth of it in one whose tasks spread by three.

Shifts of a whole iteration are no spread of its tasks: who is slow from some iteration on is somebody else's
business.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.reductions import median

F8 = NDArray[np.float64]

# Spread of the same task from which the kernels are restless; tasks of quiet jobs spread by a few tenths of a
# per cent, those of noisy ones by half of one.
RESTLESS = 0.012
# An iteration as one task averages over all its micro-batches, eight or more.
RESTLESS_WHOLE = 0.007
# A spread is the interquartile range over 1.35, as for a normal distribution.
QUARTILES = 1.35
# Tasks an iteration that show what all of them have in common.
SEVERAL = 3
# What is lost is no larger part of a task than this: one-sided noise of a normal kernel's length.
MOST = 0.5
# Iterations that make a spread.
ENOUGH = 6
# Seconds below which a task does no work: nothing can be relative to it.
NOTHING_S = 1e-6


def find_restless(costs: Costs) -> tuple[F8, float] | None:
    """(seconds lost [K], spread of a task as a share of it), None where tasks are steady."""
    work = costs.work
    k, stages, _, _, tasks = work.shape
    typical = np.median(work, axis=0)
    known = typical > NOTHING_S
    if k < ENOUGH or not known.any():
        return None
    ratio = np.where(known, work / np.maximum(typical, NOTHING_S), np.nan)
    with np.errstate(invalid="ignore"):  # nothing over nothing: a rank of which an iteration was not seen
        if tasks >= SEVERAL:
            ratio = ratio / median(ratio, 4)[..., None]
        else:
            ratio = ratio / median(ratio.reshape(k, -1), 1)[:, None, None, None, None]
    low, high = np.quantile(np.nan_to_num(ratio, nan=1.0), (0.25, 0.75), axis=0)  # [S, D, M, T]
    spread = np.where(known, (high - low) / QUARTILES, np.nan)
    usual = float(np.median(spread[known]))
    if usual < (RESTLESS if tasks >= SEVERAL else RESTLESS_WHOLE):
        return None
    by_task = np.nan_to_num(median(spread.reshape(stages, -1, tasks), 1))  # [S, T]
    share = np.minimum(by_task * np.sqrt(np.maximum(costs.calls, 1)), MOST)
    quick = np.minimum(work, (typical * (1.0 - share[:, None, None, :]))[None])
    actual = costs.makespan(work, costs.normal_comm, costs.normal_transfer)
    lost = actual - costs.makespan(quick, costs.normal_comm, costs.normal_transfer)
    return np.maximum(lost, 0.0), usual
