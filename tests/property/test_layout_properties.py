"""The parallel layout in any order of its axes: a bijection, groups that partition, names that lead back."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.model.layout import Axis, ParallelLayout

PARTITIONS = [axis for axis in Axis if axis is not Axis.EMBEDDING]
"""Axes of which every rank belongs to exactly one group; inner stages belong to no embedding group."""


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    """Any valid layout of at most a few hundred ranks, in any order of its axes."""
    tp, pp, dp, cp = (draw(st.integers(1, limit)) for limit in (4, 5, 5, 3))
    ep = draw(st.sampled_from([n for n in range(1, dp * cp + 1) if dp * cp % n == 0]))
    order = "-".join(draw(st.permutations(["tp", "cp", "ep", "dp", "pp"])))
    try:
        return ParallelLayout(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, order=order)
    except ValueError:  # an order in which experts would have other tensor or pipeline groups
        return ParallelLayout(tp=tp, pp=pp, dp=dp, cp=cp, order=order)


@given(layouts())
def test_ranks_and_places_are_a_bijection(layout: ParallelLayout) -> None:
    places = [layout.place(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))
    grid = layout.grid()
    assert grid.shape == (layout.pp, layout.dp, layout.cp, layout.tp)
    assert all(grid[p.stage, p.dp, p.cp, p.tp] == rank for rank, p in enumerate(places))
    assert layout.stages().tolist() == [place.stage for place in places]


@given(layouts())
def test_the_leftmost_axis_of_the_order_moves_fastest(layout: ParallelLayout) -> None:
    names = [name for name in layout.order.split("-") if name != "ep"]
    sizes = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}
    strides = np.cumprod([1, *(sizes[name] for name in names)]).tolist()
    for rank in range(layout.world_size):
        place = layout.place(rank)
        index = {"tp": place.tp, "cp": place.cp, "dp": place.dp, "pp": place.stage}
        assert rank == sum(index[name] * stride for name, stride in zip(names, strides, strict=False))


@given(layouts())
def test_groups_partition_the_ranks(layout: ParallelLayout) -> None:
    for axis in PARTITIONS:
        groups = layout.groups(axis)
        assert groups.shape[1] == layout.size(axis)
        assert sorted(groups.ravel().tolist()) == list(range(layout.world_size)), axis


@given(layouts())
def test_groups_of_different_axes_meet_in_one_rank(layout: ParallelLayout) -> None:
    for first, second in combinations((Axis.TENSOR, Axis.CONTEXT, Axis.DATA, Axis.PIPELINE), 2):
        for group in layout.groups(first):
            for rank in group:
                assert set(layout.group(first, int(rank))) & set(layout.group(second, int(rank))) == {
                    int(rank)
                }
    for group in layout.groups(Axis.EXPERT):
        places = [layout.place(int(rank)) for rank in group]
        assert len({(place.stage, place.tp) for place in places}) == 1
        for rank in group:
            assert set(group.tolist()) & set(layout.group(Axis.EXPERT_DATA, int(rank))) == {int(rank)}


@given(layouts())
def test_the_pipeline_group_has_every_stage_in_order(layout: ParallelLayout) -> None:
    for group in layout.groups(Axis.PIPELINE):
        assert [layout.place(int(rank)).stage for rank in group] == list(range(layout.pp))
    for group in layout.groups(Axis.EMBEDDING):
        ends = [0, layout.pp - 1] if layout.pp > 1 else [0]
        assert [layout.place(int(rank)).stage for rank in group] == ends


@given(layouts())
def test_a_group_is_known_by_its_members(layout: ParallelLayout) -> None:
    for axis in Axis:
        groups = layout.groups(axis)
        names = set()
        for group in groups[:6]:
            members = tuple(int(rank) for rank in group)
            found = layout.axis_of(tuple(reversed(members)))
            if len(members) < 2:
                assert found is None
                continue
            # Two axes can have the same groups (DP and DP-CP without context parallelism): either is right.
            assert found is not None
            assert any(sorted(other.tolist()) == sorted(members) for other in layout.groups(found))
            assert all(set(layout.group(found, rank)) == set(members) for rank in members)
            names.add(layout.name(members))
        assert len(names) == (min(len(groups), 6) if groups.shape[1] > 1 else 0)


@given(layouts())
def test_a_set_that_is_no_group_is_listed(layout: ParallelLayout) -> None:
    assert layout.axis_of((0,)) is None
    assert layout.name((0,)) == "rank 0"
    for axis in PARTITIONS:
        groups = layout.groups(axis)
        if len(groups) > 1 and groups.shape[1] > 2:
            mixed = tuple(sorted({*groups[0, 1:].tolist(), int(groups[1, 0])}))
            if layout.axis_of(mixed) is None:
                assert layout.name(mixed) == "ranks " + ", ".join(str(rank) for rank in mixed)


@given(layouts())
def test_what_lies_outside_is_refused(layout: ParallelLayout) -> None:
    for rank in (-1, layout.world_size):
        with pytest.raises(ValueError, match=f"rank {rank} is outside a world of {layout.world_size}"):
            layout.place(rank)
        with pytest.raises(ValueError, match="is outside a world"):
            layout.group(Axis.TENSOR, rank)
