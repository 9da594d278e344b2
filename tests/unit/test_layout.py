"""The parallel layout on the reference job (TP2 PP4) and where its groups have names."""

from __future__ import annotations

import pytest

from megatrace.model.layout import Axis, ParallelLayout, Place


def test_megatron_order_of_a_small_job() -> None:
    layout = ParallelLayout(tp=2, pp=2, dp=2)
    assert layout.groups(Axis.TENSOR).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups(Axis.DATA).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups(Axis.PIPELINE).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert sorted(layout.groups(Axis.MODEL)[0].tolist()) == [0, 1, 4, 5]


def test_experts_cut_the_ranks_of_a_stage_across_data_and_context() -> None:
    # Megatron's second generator: rank = etp + TP · (ep + EP · edp) within a stage.
    layout = ParallelLayout(tp=2, dp=4, ep=2)
    assert sorted(layout.groups(Axis.EXPERT).tolist()) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sorted(layout.groups(Axis.EXPERT_DATA).tolist()) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    with_context = ParallelLayout(cp=2, dp=2, ep=4)
    assert with_context.groups(Axis.EXPERT).tolist() == [[0, 1, 2, 3]]
    # With DP before EP in the order, the copies of an expert are neighbours instead.
    data_first = ParallelLayout(tp=2, dp=4, ep=2, order="tp-cp-dp-ep-pp")
    assert sorted(data_first.groups(Axis.EXPERT).tolist()) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_experts_may_not_change_the_pipeline_groups() -> None:
    with pytest.raises(ValueError, match="gives experts other tp or pp groups"):
        ParallelLayout(cp=2, pp=2, dp=2, ep=2, order="tp-cp-pp-ep-dp")


def test_names_say_axis_and_stage() -> None:
    layout = ParallelLayout(tp=8, pp=5, dp=87)
    assert layout.world_size == 3480
    assert layout.place(1505) == Place(tp=1, cp=0, dp=14, stage=2)
    assert layout.name(tuple(range(1504, 1512))) == "TP group 188 of stage 2"
    assert layout.name(layout.group(Axis.PIPELINE, 1505)) == "PP group 113"
    assert layout.name((3, 0)) == "ranks 0, 3"
    assert layout.name(tuple(range(3480))) == "the world group"


def test_an_inner_stage_belongs_to_no_embedding_group() -> None:
    layout = ParallelLayout(tp=1, pp=4)
    assert layout.group(Axis.EMBEDDING, 1) == (1,)
    assert layout.group(Axis.EMBEDDING, 0) == (0, 3)


def test_the_narrowest_axis_names_a_group() -> None:
    assert ParallelLayout(dp=4).axis_of((0, 1, 2, 3)) is Axis.DATA
    assert ParallelLayout(tp=2).axis_of((0, 1)) is Axis.TENSOR
    assert ParallelLayout(tp=2, dp=2).axis_of((0, 1, 2, 3)) is Axis.WORLD
    assert ParallelLayout(pp=2).axis_of((0, 1)) is Axis.PIPELINE


@pytest.mark.parametrize(
    ("tp", "dp", "ep", "sentence"),
    [(0, 1, 1, "tp must be at least 1, is 0"), (1, 3, 2, "ep 2 does not divide dp · cp = 3")],
)
def test_impossible_sizes_are_refused(tp: int, dp: int, ep: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ParallelLayout(tp=tp, dp=dp, ep=ep)


@pytest.mark.parametrize("order", ["tp-dp-pp", "tp-cp-ep-dp-pp-tp", "tp-cp-ep-dp-xx", ""])
def test_an_order_names_each_axis_once(order: str) -> None:
    with pytest.raises(ValueError, match="must name tp, cp, ep, dp and pp once each"):
        ParallelLayout(order=order)
