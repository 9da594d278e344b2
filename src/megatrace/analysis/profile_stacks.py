"""Which activity of a host thread contains which, and which launch a piece of device work came from.

A profiler records intervals, not calls. On one thread they nest, so the call that an activity stands in is
the last one that began before it and has not ended. Everything that is asked of a profile (own time, device
time of an operator, the flame view, the critical path) stands on this.

Rounding of the recorder lets a child end some hundred ns after its parent: it stays a child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.profile import NONE, Activity, RankProfile

Rows = NDArray[np.int64]
HOST_KINDS = (Activity.OPERATOR, Activity.FUNCTION, Activity.ANNOTATION, Activity.RUNTIME)


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """Activities of host threads with what contains them; arrays of one length, sorted as the profile is.

    row    int64 row of the profile
    parent int64 index into these arrays, −1 for the outermost
    depth  int64, 0 for the outermost
    order  int64 [2n]: 2·i where activity i begins, 2·i + 1 where it ends, thread by thread in order of time
    """

    row: Rows
    parent: Rows
    depth: Rows
    order: Rows


def stacks(profile: RankProfile, rows: Rows) -> Stacks:
    """The nesting of some rows of a profile, ascending, all on host threads."""
    activities = profile.activities
    lane = activities.lane[rows].tolist()
    start, end = activities.start[rows].tolist(), activities.end[rows].tolist()
    parent, depth, order = _nest(lane, start, end)
    return Stacks(rows, np.array(parent, np.int64), np.array(depth, np.int64), np.array(order, np.int64))


def _nest(
    lane: Sequence[int], start: Sequence[int], end: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    parent, depth, order = [NONE] * len(lane), [0] * len(lane), []
    opened: list[int] = []
    on = NONE
    for at, begin in enumerate(start):
        if lane[at] != on:
            on = lane[at]
            order += [2 * one + 1 for one in reversed(opened)]
            opened = []
        while opened and end[opened[-1]] <= begin:
            order.append(2 * opened.pop() + 1)
        if opened:
            parent[at], depth[at] = opened[-1], len(opened)
        opened.append(at)
        order.append(2 * at)
    order += [2 * one + 1 for one in reversed(opened)]
    return parent, depth, order


def host_rows(profile: RankProfile, kinds: Sequence[int] = HOST_KINDS) -> Rows:
    """The rows of host threads of these kinds."""
    return np.flatnonzero(np.isin(profile.activities.kind, kinds)).astype(np.int64)


def summed(values: NDArray[Any], stack: Stacks) -> Rows:
    """For every activity the sum of ``values`` over it and all that it contains."""
    total = values.astype(np.int64)
    for level in range(int(stack.depth.max(initial=0)), 0, -1):
        at = np.flatnonzero(stack.depth == level)
        np.add.at(total, stack.parent[at], total[at])
    return total


def own_time(profile: RankProfile, stack: Stacks) -> Rows:
    """int64 ns: how long each activity lasted without those that stand directly in it."""
    duration = profile.activities.duration[stack.row]
    inner = np.zeros(len(duration), np.int64)
    inside = stack.parent >= 0
    np.add.at(inner, stack.parent[inside], duration[inside])
    own: Rows = np.maximum(duration - inner, 0)
    return own


def outermost_of_name(names: NDArray[Any], stack: Stacks) -> NDArray[np.bool_]:
    """Activities that stand in none of the same name: their durations add up without counting time twice."""
    outer = np.ones(len(names), np.bool_)
    at = np.flatnonzero(stack.parent >= 0)
    above = stack.parent[at]
    while len(at):
        outer[at[names[above] == names[at]]] = False
        above = stack.parent[above]
        at, above = at[above >= 0], above[above >= 0]
    return outer


def launches(profile: RankProfile) -> Rows:
    """int64 [device rows]: the row of the runtime call that launched each piece of device work, or ``NONE``.

    Many kernels have one launch where a CUDA graph was launched.
    """
    activities = profile.activities
    calls = np.flatnonzero((activities.kind == Activity.RUNTIME) & (activities.correlation > 0))
    calls = calls[np.argsort(activities.correlation[calls], kind="stable")]
    known = activities.correlation[calls]
    wanted = activities.correlation[profile.device_rows]
    at = np.searchsorted(known, wanted)
    found = np.full(len(wanted), NONE, np.int64)
    hit = (at < len(known)) & (wanted > 0)
    hit[hit] = known[at[hit]] == wanted[hit]
    found[hit] = calls[at[hit]]
    return found


def places(rows: Rows, wanted: Rows) -> Rows:
    """Where each wanted row stands in ``rows`` (ascending), ``NONE`` where it does not."""
    at = np.searchsorted(rows, wanted)
    found = np.full(len(wanted), NONE, np.int64)
    inside = at < len(rows)
    hit = np.flatnonzero(inside)[rows[at[inside]] == wanted[inside]]
    found[hit] = at[hit]
    return found
