"""Durations as the graph wants them: one value a task and replica.

A tensor (and context) parallel group moves in step, so its members become one replica that is as slow as the
slowest; what a recording lost can be filled from the same task elsewhere. Does not decide what is slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
"""float32 or float64"""

_BLOCK_BYTES = 1 << 18
"""A quarter of the L2 cache of today's server cores: result, index and one member have room in it."""


def reduce_members(work: Floats) -> tuple[Floats, NDArray[np.integer[Any]]]:
    """A tensor and context parallel group moves at the pace of its slowest member: its work, and who that
    was.

    work [pp, dp, cp, tp, tasks] or [B, pp, dp, cp, tp, tasks] -> (duration, member), both [(B,) pp, dp,
    tasks] in the memory layout of ``IterationGraph.empty``; member = cp index · tp + tp index, the lowest on
    a tie. Members whose value is NaN are passed over (their peers speak for the group); where all are NaN, so
    is the duration, and the member is 0. Fastest where the members' axes are outermost in memory.
    """
    array = np.asarray(work)
    if array.ndim not in (5, 6):
        raise ValueError(f"work has {array.ndim} axes, needs [(iterations,) pp, dp, cp, tp, tasks]")
    if array.dtype != np.float32:
        array = array.astype(np.float64, copy=False)
    batch = array.shape[0] if array.ndim == 6 else None
    if array.ndim == 5:
        array = array[None]
    size, pp, dp, cp, tp, tasks = array.shape
    by_member = array.transpose(3, 4, 1, 5, 0, 2)  # [cp, tp, pp, tasks, B, dp]
    duration = np.empty((pp, tasks, size, dp), array.dtype)
    member = np.zeros((pp, tasks, size, dp), np.uint8 if cp * tp <= 256 else np.uint16)
    # Blocks of stages that stay in the cache.
    step = max(1, _BLOCK_BYTES // duration[0].nbytes)
    for first in range(0, pp, step):
        block = slice(first, first + step)
        members = [by_member[c, t, block] for c in range(cp) for t in range(tp)]
        _slowest(members, duration[block], member[block])
    axes = (2, 0, 3, 1)  # [B, pp, dp, tasks]
    if batch is None:
        return duration.transpose(axes)[0], member.transpose(axes)[0]
    return duration.transpose(axes), member.transpose(axes)


def _slowest(members: list[Floats], duration: Floats, member: NDArray[np.integer[Any]]) -> None:
    """Fills duration with the maximum over members and member with its index."""
    np.copyto(duration, members[0])
    later, scale = np.empty(duration.shape, np.bool_), member.dtype
    for index, values in enumerate(members[1:], start=1):
        np.greater(values, duration, out=later)
        np.maximum(duration, values, out=duration)
        # Indices ascend, so the largest index that was ever ahead is the last one: no masked copy needed.
        np.maximum(member, np.multiply(later.view(np.uint8), scale.type(index), dtype=scale), out=member)
    if np.isnan(duration).any():
        stacked = np.stack(members)
        masked = np.where(np.isnan(stacked), -np.inf, stacked)
        member[...] = masked.argmax(axis=0)
        duration[...] = np.where(np.isnan(stacked).all(axis=0), np.nan, masked.max(axis=0))


def fill_unknown(duration: Floats) -> Floats:
    """A copy of duration [(B,) pp, replicas, tasks] with NaN replaced by the same task's median elsewhere.

    Elsewhere = other replicas and iterations of that stage and task; where there is none, the median of the
    stage's tasks; where a stage has no known duration at all, NaN stays.
    """
    array = np.array(duration, copy=True)
    lost = np.isnan(array)
    if not lost.any():
        return array
    batched = array if array.ndim == 4 else array[None]
    holes = lost if array.ndim == 4 else lost[None]
    for stage in np.flatnonzero(holes.any(axis=(0, 2, 3))):
        values = batched[:, stage]
        known = values[~np.isnan(values)]
        if not len(known):
            continue
        for task in np.flatnonzero(holes[:, stage].any(axis=(0, 1))):
            column = values[:, :, task]
            same = column[~np.isnan(column)]
            column[np.isnan(column)] = np.median(same if len(same) else known)
    return array
