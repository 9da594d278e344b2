"""Groups of any layout lead back to it, and lookups agree with the layout's own groups."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from megatrace.analysis.groups import ORDERS, Group, GroupLookup, fit_layouts, score
from megatrace.analysis.roles import Role
from megatrace.model.layout import Axis, ParallelLayout

LOOKED_UP = [axis for axis in Axis if axis is not Axis.EMBEDDING]


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    """Layouts that launch scripts use."""
    tp, pp, dp, cp = draw(st.sampled_from([1, 2, 4])), *(draw(st.integers(1, limit)) for limit in (4, 5, 2))
    ep = draw(st.sampled_from([n for n in range(1, dp * cp + 1) if dp * cp % n == 0]))
    order = draw(st.sampled_from(ORDERS))
    try:
        return ParallelLayout(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, order=order)
    except ValueError:
        return ParallelLayout(tp=tp, pp=pp, dp=dp, cp=cp, order=order)


def seen_groups(layout: ParallelLayout, present: frozenset[int]) -> list[Group]:
    """What the calls of the ranks present show: tensor, pipeline, context, expert and gradient groups."""
    wanted = [
        (Axis.TENSOR, Role.TENSOR, 4000),
        (Axis.PIPELINE, Role.PIPELINE, 500),
        (Axis.CONTEXT, Role.CONTEXT, 900),
        (Axis.DATA_CONTEXT, Role.DATA, 20),
    ]
    if layout.ep > 1:
        wanted.append((Axis.EXPERT, Role.EXPERT, 900))
    found = []
    for axis, role, calls in wanted:
        for group in layout.groups(axis):
            members = tuple(sorted({int(rank) for rank in group} & present))
            if len(members) > 1:
                found.append(Group(members, role, calls))
    return found


@settings(max_examples=80)
@given(layouts())
def test_lookups_are_the_groups_of_the_layout(layout: ParallelLayout) -> None:
    lookup = GroupLookup(layout)
    everybody = np.ones(layout.world_size, np.bool_)
    for axis in LOOKED_UP:
        for group in layout.groups(axis):
            for rank in group:
                assert sorted(lookup.members(axis, int(rank))) == sorted(group), axis
            assert lookup.is_group(axis, tuple(sorted(int(rank) for rank in group)), everybody)


@settings(max_examples=40)
@given(layouts())
def test_the_layout_is_found_from_its_groups(layout: ParallelLayout) -> None:
    ranks = np.arange(layout.world_size, dtype=np.int32)
    groups = seen_groups(layout, frozenset(ranks.tolist()))
    assume(groups)
    best = fit_layouts(groups, layout.world_size, ranks)[0]
    assert best.score == 1.0
    found = best.layout
    assert (found.tp, found.pp, found.dp * found.cp) == (layout.tp, layout.pp, layout.dp * layout.cp)
    for axis in (Axis.TENSOR, Axis.PIPELINE, Axis.CONTEXT, Axis.DATA_CONTEXT):
        mine, its = ({tuple(sorted(g.tolist())) for g in it.groups(axis)} for it in (layout, found))
        assert mine == its, axis


@settings(max_examples=80)
@given(layouts(), st.integers(0, 10_000))
def test_missing_ranks_cannot_contradict(layout: ParallelLayout, drawn: int) -> None:
    """Groups look smaller where logs are missing; the true layout still explains all of them."""
    rng = np.random.default_rng(drawn)
    ranks = np.arange(layout.world_size, dtype=np.int32)
    kept = np.sort(rng.choice(ranks, max(1, int(0.7 * len(ranks))), replace=False))
    present = frozenset(int(rank) for rank in kept)
    groups = seen_groups(layout, present)
    assume(groups)
    assert score(layout, groups, np.isin(ranks, kept)) == 1.0


@settings(max_examples=80)
@given(layouts())
def test_another_layout_explains_less(layout: ParallelLayout) -> None:
    everybody = frozenset(range(layout.world_size))
    groups = [g for g in seen_groups(layout, everybody) if g.role in (Role.TENSOR, Role.PIPELINE)]
    assume(layout.tp > 1 and layout.pp > 1)
    turned = ParallelLayout(tp=layout.tp, pp=layout.pp, dp=layout.dp, cp=layout.cp, order="pp-tp-cp-ep-dp")
    same = all(
        {tuple(sorted(g.tolist())) for g in turned.groups(axis)}
        == {tuple(sorted(g.tolist())) for g in layout.groups(axis)}
        for axis in (Axis.TENSOR, Axis.PIPELINE)
    )
    assert (score(turned, groups, np.ones(layout.world_size, np.bool_)) == 1.0) is same
