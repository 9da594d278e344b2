"""Time in which a whole group waits for each other in turn: jitter from one collective to the next.

A group with a slow member has one that never waits; where every member waits for another one each time, the
group takes longer than any of its members works. Experts tie replicas together: who waits for the slow member
of another replica only waits for it, and that is no jitter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.reductions import median
from megatrace.model.layout import Axis, ParallelLayout

F8 = NDArray[np.float64]


def stagger(layout: ParallelLayout, grid: NDArray[np.int32], total: F8, own: F8, comm: F8) -> F8:
    """[K, S, D, T]: time of a task in which no member of a group, nor of those tied to it, worked.

    ``total``, ``own`` and ``comm`` [K, S, D, M, T]: a task's length, own work, collectives. The least length
    counts: who began last waited for nobody to begin.
    """
    tied = _tied(layout, grid)
    least = _over_tied(np.fmin, np.fmin.reduce(total, axis=3) - median(comm, 3), tied)
    return np.asarray(np.maximum(least - _over_tied(np.fmax, np.fmax.reduce(own, axis=3), tied), 0.0))


def group_work(layout: ParallelLayout, grid: NDArray[np.int32], total: F8) -> F8:
    """[K, S, D, T]: work of each tensor group, from how long the tasks of its members are.

    ``total`` [K, S, D, M, T]. Who came earlier only waited for the last, inside its group and for those
    whose experts it needs.
    """
    return _over_tied(np.fmin, np.fmin.reduce(total, axis=3), _tied(layout, grid))


def _tied(layout: ParallelLayout, grid: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [S, D], as ``tied_replicas``, by the layout's experts."""
    if layout.ep > 1:
        return tied_replicas(grid, layout.groups(Axis.EXPERT))
    return np.asarray(np.broadcast_to(np.arange(grid.shape[1]), grid.shape[:2]))


def _over_tied(reduce: np.ufunc, values: F8, tied: NDArray[np.int64]) -> F8:
    """[K, S, D, T]: every replica's value reduced over those that it is tied to."""
    result = np.array(values)
    for stage, replicas in enumerate(tied):
        for number in np.unique(replicas):
            at = replicas == number
            result[:, stage, at] = reduce.reduce(values[:, stage, at], axis=1, keepdims=True)
    return result


def tied_replicas(grid: NDArray[np.int32], groups: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [S, D]: a number for each replica of each stage, equal where groups tie replicas together.

    ``grid`` int32 [S, D, M]: the rank at each place. ``groups`` int32 [groups, members]: ranks that exchange
    data.
    """
    replica = np.empty(grid.size, np.int64)
    replica[grid] = np.arange(grid.shape[0] * grid.shape[1]).reshape(grid.shape[0], grid.shape[1], 1)
    number = np.arange(grid.shape[0] * grid.shape[1])
    members = replica[groups]
    while True:
        least = number[members].min(axis=1, keepdims=True)
        if (number[members] == least).all():
            return number.reshape(grid.shape[:2])
        np.minimum.at(number, members, np.broadcast_to(least, members.shape))
