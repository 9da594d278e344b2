"""Which rank plays which part: the bijection between a global rank and its place on the parallel axes.

Megatron-LM's order ``tp-cp-ep-dp-pp`` (leftmost fastest): rank = t + TP·(c + CP·(d + DP·s)). Expert
parallelism does not add an axis to the attention layout (its generator has EP = 1 there): experts re-cut the
ranks of one stage as (etp, ep, edp) with etp = TP, so an expert group strides over CP × DP.

Does not guess anything: ``analysis.infer_layout`` makes one of these from what the calls show.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

DEFAULT_ORDER = "tp-cp-ep-dp-pp"


class Axis(Enum):
    """A parallel axis, or a group made of several."""

    TENSOR = "tp"
    CONTEXT = "cp"
    EXPERT = "ep"
    DATA = "dp"
    PIPELINE = "pp"
    WORLD = "world"
    EMBEDDING = "embedding"
    MODEL = "model"
    """tensor × pipeline: all ranks that hold one replica of the model (per CP index)."""
    DATA_CONTEXT = "dp-cp"
    """data × context: the ranks that reduce the same gradients."""
    EXPERT_DATA = "edp"
    """the ranks that hold the same experts."""


_BASE = (Axis.TENSOR, Axis.CONTEXT, Axis.DATA, Axis.PIPELINE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands: its index on every axis, all counted from 0."""

    tp: int
    cp: int
    dp: int
    stage: int


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Sizes of the axes and their order. ``world_size`` = tp · cp · dp · pp; ``ep`` divides cp · dp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "ep", "vpp"):
            if getattr(self, name) < 1:
                raise ValueError(f"layout: {name} must be at least 1, is {getattr(self, name)}")
        if (self.dp * self.cp) % self.ep:
            raise ValueError(f"layout: ep {self.ep} does not divide dp · cp = {self.dp * self.cp}")
        if sorted(self.order.split("-")) != ["cp", "dp", "ep", "pp", "tp"]:
            raise ValueError(f"layout: order {self.order!r} must name tp, cp, ep, dp and pp once each")
        if self.ep > 1 and any(
            self._strides()[axis] != self._strides(experts=True)[axis]
            for axis in (Axis.PIPELINE, Axis.TENSOR)
            if self.size(axis) > 1
        ):
            raise ValueError(f"layout: order {self.order!r} gives experts other tp or pp groups")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def _strides(self, *, experts: bool = False) -> dict[Axis, int]:
        """Distance in ranks between neighbours on each axis, or on each axis of the expert layout."""
        sizes = {axis: self.size(axis) for axis in _BASE}
        if experts:
            sizes = {
                Axis.TENSOR: self.tp,
                Axis.EXPERT: self.ep,
                Axis.DATA: self.size(Axis.EXPERT_DATA),
                Axis.PIPELINE: self.pp,
            }
        strides: dict[Axis, int] = {}
        step = 1
        for axis in map(Axis, self.order.split("-")):
            if axis in sizes:
                strides[axis] = step
                step *= sizes[axis]
        return strides

    def size(self, axis: Axis) -> int:
        """Members of one group of the axis."""
        sizes = {
            Axis.TENSOR: self.tp,
            Axis.CONTEXT: self.cp,
            Axis.EXPERT: self.ep,
            Axis.DATA: self.dp,
            Axis.PIPELINE: self.pp,
            Axis.WORLD: self.world_size,
            Axis.EMBEDDING: min(self.pp, 2),
            Axis.MODEL: self.tp * self.pp,
            Axis.DATA_CONTEXT: self.dp * self.cp,
            Axis.EXPERT_DATA: self.dp * self.cp // self.ep,
        }
        return sizes[axis]

    def place(self, rank: int) -> Place:
        """Indices of a rank. ``ValueError`` outside 0 ≤ rank < world_size."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside a world of {self.world_size}")
        strides = self._strides()
        index = {axis: rank // strides[axis] % self.size(axis) for axis in _BASE}
        return Place(index[Axis.TENSOR], index[Axis.CONTEXT], index[Axis.DATA], index[Axis.PIPELINE])

    def rank(self, place: Place) -> int:
        """The inverse of ``place``."""
        strides = self._strides()
        values = (place.tp, place.cp, place.dp, place.stage)
        for axis, value in zip(_BASE, values, strict=True):
            if not 0 <= value < self.size(axis):
                raise ValueError(f"{axis.value} index {value} is outside 0..{self.size(axis) - 1}")
        return sum(strides[axis] * value for axis, value in zip(_BASE, values, strict=True))

    def grid(self) -> NDArray[np.int32]:
        """int32 [pp, dp, cp, tp]: the rank at each place."""
        return self._grid((Axis.PIPELINE, Axis.DATA, Axis.CONTEXT, Axis.TENSOR), self._strides())

    def expert_grid(self) -> NDArray[np.int32]:
        """int32 [pp, edp, ep, tp]: the same ranks as the experts cut them."""
        return self._grid((Axis.PIPELINE, Axis.DATA, Axis.EXPERT, Axis.TENSOR), self._strides(experts=True))

    def _grid(self, axes: tuple[Axis, ...], strides: dict[Axis, int]) -> NDArray[np.int32]:
        experts = Axis.EXPERT in axes
        shape = [self.size(Axis.EXPERT_DATA if experts and axis is Axis.DATA else axis) for axis in axes]
        index = np.indices(shape)
        total = sum(index[i] * strides[axis] for i, axis in enumerate(axes))
        return np.asarray(total, dtype=np.int32)

    def stages(self) -> NDArray[np.int32]:
        """int32 [world_size]: the pipeline stage of each rank."""
        ranks = np.arange(self.world_size)
        return np.asarray(ranks // self._strides()[Axis.PIPELINE] % self.pp, dtype=np.int32)

    def groups(self, axis: Axis) -> NDArray[np.int32]:
        """int32 [number of groups, members], read-only: every group, members ascending along the axis."""
        return _groups(self, axis)

    def group(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """The ranks that share the axis' group with a rank, itself included."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside a world of {self.world_size}")
        row = int(_group_of(self, axis)[rank])
        if row < 0:
            return (rank,)  # an inner stage belongs to no embedding group
        return tuple(self.groups(axis)[row].tolist())

    def axis_of(self, ranks: tuple[int, ...]) -> Axis | None:
        """The narrowest axis of which these ranks (two or more) are exactly one group, or None."""
        wanted = sorted(ranks)
        if len(wanted) < 2:
            return None
        for axis in Axis:
            if self.size(axis) != len(wanted) or axis is Axis.WORLD:
                continue
            if sorted(self.group(axis, wanted[0])) == wanted:
                return axis
        return Axis.WORLD if wanted == list(range(self.world_size)) else None

    def name(self, ranks: tuple[int, ...]) -> str:
        """A group in the field's words: "TP group 188 of stage 2", or "ranks 0, 3" where it is no group."""
        axis = self.axis_of(ranks)
        if axis is None:
            return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in sorted(ranks))
        if axis is Axis.WORLD:
            return "the world group"
        label = f"{axis.value.upper()} group {int(_group_of(self, axis)[ranks[0]])}"
        stages = set(self.stages()[list(ranks)].tolist())
        return f"{label} of stage {stages.pop()}" if len(stages) == 1 and self.pp > 1 else label


# Analyses ask for the group of each of ten thousand ranks: that must not cut the grid each time.
@lru_cache(maxsize=64)
def _groups(layout: ParallelLayout, axis: Axis) -> NDArray[np.int32]:
    groups = np.ascontiguousarray(_cut(layout, axis), dtype=np.int32)
    groups.flags.writeable = False
    return groups


@lru_cache(maxsize=64)
def _group_of(layout: ParallelLayout, axis: Axis) -> NDArray[np.int32]:
    """int32 [world_size]: the row of ``groups`` that a rank is in, −1 for none."""
    groups = _groups(layout, axis)
    rows = np.full(layout.world_size, -1, np.int32)
    rows[groups] = np.arange(len(groups), dtype=np.int32)[:, None]
    rows.flags.writeable = False
    return rows


def _cut(layout: ParallelLayout, axis: Axis) -> NDArray[np.int32]:
    grid = layout.grid()
    if axis is Axis.WORLD:
        return np.sort(grid.reshape(1, -1), axis=1)
    if axis is Axis.EMBEDDING:
        ends = grid[[0, -1]] if layout.pp > 1 else grid[:1]
        return np.moveaxis(ends, 0, -1).reshape(-1, len(ends))
    if axis in (Axis.EXPERT, Axis.EXPERT_DATA):
        moved = np.moveaxis(layout.expert_grid(), 2 if axis is Axis.EXPERT else 1, -1)
        return moved.reshape(-1, moved.shape[-1])
    inner = {
        Axis.TENSOR: (3,),
        Axis.CONTEXT: (2,),
        Axis.DATA: (1,),
        Axis.PIPELINE: (0,),
        Axis.MODEL: (0, 3),
        Axis.DATA_CONTEXT: (1, 2),
    }[axis]
    outer = tuple(i for i in range(4) if i not in inner)
    size = prod(grid.shape[i] for i in inner)
    return np.transpose(grid, outer + inner).reshape(-1, size)
