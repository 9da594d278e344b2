"""Parallel layouts tested against the communicators that the calls show.

A layout is a hypothesis: sizes of the axes in an order. Each communicator with known members either is one
group of an axis that its role allows, or contradicts the hypothesis. The layout that explains the most calls
wins; a declared layout wins only if it explains as much. Members are those seen: a rank whose log is missing
cannot contradict.

Does not look at times; ``coupling`` does where no members are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.roles import AXES, Role
from megatrace.model.layout import DEFAULT_ORDER, Axis, ParallelLayout

ORDERS = (DEFAULT_ORDER, "tp-cp-ep-pp-dp", "tp-ep-dp-cp-pp", "pp-tp-cp-ep-dp", "dp-tp-cp-ep-pp")
"""Orders that launch scripts use; Megatron-LM's default first."""

# Communicators looked at per hypothesis. They are spread over all ranks; a wrong layout fails on the first
# few.
SAMPLE = 96


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator as seen: members ascending (at least two), its role, and how many calls it carried."""

    members: tuple[int, ...]
    role: Role
    calls: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A layout and the share (0..1) of the sampled groups' calls that it explains."""

    layout: ParallelLayout
    score: float
    order_rank: int


def fit_layouts(groups: Sequence[Group], world: int, seen: NDArray[np.int32]) -> list[Fit]:
    """Hypotheses that explain the groups, best first. Empty where nothing speaks for any layout."""
    sample = _sampled(groups)
    if not sample:
        return []
    present = seen_mask(seen)
    fits = [
        Fit(layout, score(layout, sample, present), order_rank)
        for layout, order_rank in _hypotheses(sample, world)
    ]
    # Between equals: the smaller expert and context parallelism (fewer assumptions), then the commoner order.
    fits.sort(key=lambda fit: (-round(fit.score, 6), fit.layout.ep, fit.layout.cp, fit.order_rank))
    return [fit for fit in fits if fit.score > 0]


def seen_mask(ranks: NDArray[np.int32]) -> NDArray[np.bool_]:
    """bool [highest rank + 1]: whether a rank was seen."""
    mask = np.zeros(int(ranks.max(initial=-1)) + 1, np.bool_)
    mask[ranks] = True
    return mask


def score(layout: ParallelLayout, groups: Sequence[Group], present: NDArray[np.bool_]) -> float:
    """Share of calls whose group is a group of an allowed axis. Bookkeeping groups count a little, either
    way."""
    lookup = GroupLookup(layout)
    explained = total = 0.0
    for group in groups:
        weight = float(group.calls) ** 0.5  # a busy tensor group must not drown the few calls of a data group
        if group.role is Role.OTHER:
            weight *= 0.1
        total += weight
        axes = AXES.get(group.role, tuple(Axis))
        if any(lookup.is_group(axis, group.members, present) for axis in axes):
            explained += weight
    return explained / total if total else 0.0


class GroupLookup:
    """Groups of a layout by rank, without building all of them: O(size of the group) a question."""

    def __init__(self, layout: ParallelLayout) -> None:
        self.layout = layout
        self._grid = layout.grid()
        self._expert = layout.expert_grid()
        self._place = self._inverse(self._grid)
        self._expert_place = self._inverse(self._expert)

    @staticmethod
    def _inverse(grid: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32 [world, 4]: the place of each rank in the grid."""
        place = np.empty((grid.size, 4), np.int32)
        place[grid.reshape(-1)] = np.indices(grid.shape).reshape(4, -1).T
        return place

    def members(self, axis: Axis, rank: int) -> NDArray[np.int32]:
        """Ranks of the axis' group that holds ``rank``, in the axis' order."""
        grid = self._grid
        if axis in (Axis.EXPERT, Axis.EXPERT_DATA):
            stage, data, expert, tensor = self._expert_place[rank].tolist()
            group = self._expert[stage, :, expert, tensor]
            return group if axis is Axis.EXPERT_DATA else self._expert[stage, data, :, tensor]
        s, d, c, t = self._place[rank].tolist()
        table: dict[Axis, tuple[Any, ...]] = {
            Axis.TENSOR: (s, d, c),
            Axis.CONTEXT: (s, d, slice(None), t),
            Axis.DATA: (s, slice(None), c, t),
            Axis.PIPELINE: (slice(None), d, c, t),
            Axis.MODEL: (slice(None), d, c),
            Axis.DATA_CONTEXT: (s, slice(None), slice(None), t),
            Axis.WORLD: (),
            Axis.EMBEDDING: ([0, -1] if self.layout.pp > 1 else [0], d, c, t),
        }
        return np.asarray(grid[table[axis]].reshape(-1))

    def is_group(self, axis: Axis, members: tuple[int, ...], present: NDArray[np.bool_]) -> bool:
        """Whether ``members`` are the seen part of one group of the axis; ``present`` as of ``seen_mask``."""
        if members[0] >= self.layout.world_size or members[-1] >= self.layout.world_size:
            return False
        group = self.members(axis, members[0])
        if len(group) < len(members):
            return False
        seen = group[group < len(present)]
        seen = seen[present[seen]]
        return len(seen) == len(members) and bool(np.array_equal(np.sort(seen), members))


def _sampled(groups: Sequence[Group]) -> list[Group]:
    by_role: dict[Role, list[Group]] = {}
    for group in groups:
        if len(group.members) > 1:
            by_role.setdefault(group.role, []).append(group)
    picked: list[Group] = []
    for items in by_role.values():
        step = max(1, len(items) // (SAMPLE // 4))
        picked += items[::step]
    return picked


def _hypotheses(groups: Sequence[Group], world: int) -> Iterator[tuple[ParallelLayout, int]]:
    sizes = {role: _sizes(groups, role) for role in Role}
    tps = sizes[Role.TENSOR] or {1}
    pps = sizes[Role.PIPELINE] | {world // size for size in sizes[Role.DATA] if world % size == 0} | {1}
    cps = sizes[Role.CONTEXT] | {1}
    eps = sizes[Role.EXPERT] | {1}
    for tp, pp, cp, ep in product(sorted(tps), sorted(pps), sorted(cps), sorted(eps)):
        if world % (tp * pp * cp):
            continue
        dp = world // (tp * pp * cp)
        if (dp * cp) % ep:
            continue
        for order_rank, order in enumerate(ORDERS):
            layout = _layout_or_none(tp, pp, dp, cp, ep, order)
            if layout is not None:
                yield layout, order_rank


def _layout_or_none(tp: int, pp: int, dp: int, cp: int, ep: int, order: str) -> ParallelLayout | None:
    try:
        return ParallelLayout(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, order=order)
    except ValueError:
        return None  # this order cannot carry experts


def _sizes(groups: Sequence[Group], role: Role) -> set[int]:
    """The commonest sizes of a role's groups: with ranks missing, some groups look smaller than they are."""
    found = [len(group.members) for group in groups if group.role is role]
    if not found:
        return set()
    values, counts = np.unique(found, return_counts=True)
    return {int(value) for value in values[np.argsort(-counts)][:3]}
