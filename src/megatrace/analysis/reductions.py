"""Times of many calls made into one number a group or a task: medians, sums, the host's pace.

Calls of a stage stand in tables [ranks, calls]; unseen ones are NaN and count for nothing. Knows nothing of
what the numbers mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.model.layout import Axis, ParallelLayout

F8 = NDArray[np.float64]

PACE_CALLS = 6
"""Gaps between calls that a task must have: a handful of gradient buckets shows no pace."""
PACE_KEPT = 0.8
"""Share of the gaps, shortest first, whose mean is the pace: the longest are waits for the device."""


def median(values: F8, axis: int) -> F8:
    """nanmedian without the warning for all-NaN slices."""
    if values.shape[axis] == 1:
        return np.asarray(np.take(values, 0, axis=axis))
    unknown = np.isnan(values)
    ordered = np.sort(values, axis=axis)
    count = np.sum(~unknown, axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0), axis=axis)
    high = np.take_along_axis(ordered, np.maximum(count // 2, 0), axis=axis)
    middle = np.where(count > 0, (low + high) / 2, np.nan)
    return np.asarray(np.squeeze(middle, axis=axis))


def least_of_members(values: F8, comm: NDArray[np.int32]) -> F8:
    """[ranks, calls]: the least value among the members of each call's communicator.

    Calls stand at the same position on all ranks; columns with the same communicators are reduced together.
    """
    result = np.empty_like(values)
    patterns, pattern = np.unique(comm, axis=1, return_inverse=True)
    for i in range(patterns.shape[1]):
        columns = np.flatnonzero(pattern.reshape(-1) == i)
        _, group = np.unique(patterns[:, i], return_inverse=True)
        result[:, columns] = by_group(np.fmin, values[:, columns], group)
    return result


def group_index(layout: ParallelLayout, axis: Axis, grid: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [ranks of the stage]: number of the group of each, in the order of ``grid`` flattened."""
    number = np.full(layout.world_size, -1, np.int64)
    groups = layout.groups(axis)
    number[groups] = np.arange(len(groups))[:, None]
    _, index = np.unique(number[grid.reshape(-1)], return_inverse=True)
    return index.astype(np.int64)


def by_group(reduce: np.ufunc, values: F8, groups: NDArray[np.int64]) -> F8:
    """Reduce rows [ranks, calls] over each group and give every member its group's value."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    return np.asarray(reduce.reduceat(values[order], starts, axis=0)[groups])


def distinct(start: F8, length: F8) -> F8:
    """[ranks, calls]: the part of each interval that no call before it covers; NaN where it is unknown.

    A Send and a Recv of one batch wait for the same peer at the same time.
    """
    known = ~np.isnan(start + length)
    end = np.maximum.accumulate(np.where(known, start + length, -np.inf), axis=1)
    covered = np.concatenate([np.full((len(start), 1), -np.inf), end[:, :-1]], axis=1)
    return np.where(known, np.maximum(end - np.maximum(start, covered), 0.0), np.nan)


def sum_by_task(values: F8, tasks: NDArray[np.int64], n_tasks: int) -> F8:
    """[ranks, calls] → [ranks, tasks]: tasks ascend along the calls."""
    result = np.zeros((len(values), n_tasks))
    present, starts = np.unique(tasks, return_index=True)
    order = np.argsort(tasks, kind="stable")
    starts = np.searchsorted(tasks[order], present)
    result[:, present] = np.add.reduceat(values[:, order], starts, axis=1)
    return result


def pace_by_task(gaps: F8, tasks: NDArray[np.int64], n_tasks: int) -> F8:
    """[ranks, gaps] → [ranks, tasks]: mean of the shorter gaps. A mean, because gaps come in a few sizes."""
    result = np.full((len(gaps), n_tasks), np.nan)
    for task in np.unique(tasks):
        own = np.sort(gaps[:, tasks == task], axis=1)
        if own.shape[1] >= PACE_CALLS:
            result[:, task] = own[:, : max(1, int(PACE_KEPT * own.shape[1]))].mean(axis=1)
    return result


def median_by_task(values: F8, tasks: NDArray[np.int64], n_tasks: int) -> F8:
    """[ranks, calls] → [ranks, tasks]; NaN for tasks without a call."""
    result = np.full((len(values), n_tasks), np.nan)
    for task in np.unique(tasks):
        result[:, task] = median(values[:, tasks == task], 1)
    return result
