"""Hangs that look alike: who left its path, told by what others did in the same place."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.analysis.hang import HangResult, Hints, find_hangs
from megatrace.analysis.hang_tied import Meetings
from megatrace.analysis.waits_for import waits_for
from megatrace.model.events import Op
from megatrace.model.finding import Finding, Kind
from megatrace.model.frontier import Frontier
from megatrace.model.layout import ParallelLayout
from megatrace.model.trace import Communicator
from tests.unit.call_story import Story

LONG = 60_000.0
PAIRS, WORLD = ((0, 1), (2, 3), (4, 5)), 3
EVERYBODY = (0, 1, 2, 3, 4, 5)


def only(result: HangResult) -> Finding:
    assert len(result.findings) == 1, result.reason
    return result.findings[0]


def judge(story: Story) -> Finding:
    return only(find_hangs(story.frontier(until=LONG), hints=Hints(ended_normally=False)))


def pairs_and_world() -> Story:
    story = Story((*PAIRS, EVERYBODY))
    for at in (0.0, 10.0):
        for comm, pair in enumerate(PAIRS):
            story.call(pair, comm, at)
        story.call(EVERYBODY, WORLD, at + 1)
    return story


def test_who_left_out_the_call_of_all_is_early_in_its_pair() -> None:
    story = pairs_and_world()
    story.call((0, 2, 3, 4, 5), WORLD, 20.0, done=False, start=20.1)
    story.call(1, 0, 20.0, done=False, start=20.1).call(1, WORLD, 21.0, done=False)
    finding = judge(story)
    assert finding.kind is Kind.DEADLOCK
    assert finding.culprits.ranks == (1,)
    assert finding.summary.startswith(
        "deadlock: rank 1 entered ALL_REDUCE #2 of the group of ranks 0, 1 before ALL_REDUCE #2 of the group "
        "of ranks 0–5, the others the other way round"
    )


def test_who_entered_the_call_of_all_before_that_of_its_pair_is_odd_where_other_pairs_made_theirs() -> None:
    story = pairs_and_world()
    for comm in (1, 2):
        story.call(PAIRS[comm], comm, 20.0)
    story.call((1, 2, 3, 4, 5), WORLD, 21.0, done=False, start=21.1)
    story.call(0, 0, 20.0, done=False, start=20.1)
    finding = judge(story)
    assert finding.kind is Kind.DEADLOCK
    assert finding.culprits.ranks == (1,)
    assert "rank 1 entered ALL_REDUCE #2 of the group of ranks 0–5 before" in finding.summary


def even(times: int) -> Story:
    story = Story(((0, 1, 2),))
    for at in range(times):
        story.call((0, 1, 2), 0, float(at), Op.ALL_TO_ALL, count=600)
    story.call((0, 2), 0, 9.0, Op.ALL_TO_ALL, count=600, done=False, start=9.1)
    story.call(1, 0, 9.0, Op.ALL_TO_ALL, count=500, done=False, start=9.1)
    return story


def test_the_size_of_an_all_to_all_counts_where_all_passed_the_same_every_time() -> None:
    finding = judge(even(4))
    assert finding.kind is Kind.MISMATCH
    assert finding.culprits.ranks == (1,)
    assert "rank 1 passed 500 elements where the others passed 600, as ALL_TO_ALL #4" in finding.summary


def test_two_equal_all_to_alls_are_no_habit_and_the_report_says_that_sizes_were_not_compared() -> None:
    finding = judge(even(2))
    assert finding.kind is Kind.HANG_NETWORK
    assert any("sizes were not compared" in line.text for line in finding.evidence)


def test_an_uneven_past_makes_any_size_legal() -> None:
    story = Story(((0, 1, 2),))
    for rank in range(3):
        story.call(rank, 0, -1.0, Op.ALL_TO_ALL, count=100 + rank)
    later = even(5)
    for told in later.calls:
        story.call(
            told.rank, 0, told.at, told.op, count=told.count, done=told.end is not None, start=told.start
        )
    assert judge(story).kind is Kind.HANG_NETWORK


def test_another_operation_among_uneven_all_to_alls_names_one_rank() -> None:
    story = Story(((0, 1, 2, 3),))
    for rank in range(4):
        story.call(rank, 0, 1.0, Op.ALL_TO_ALL, count=100 + rank)
        op = Op.ALL_REDUCE if rank == 2 else Op.ALL_TO_ALL
        story.call(rank, 0, 2.0, op, count=100 + rank, done=False, start=2.1)
    finding = judge(story)
    assert finding.culprits.ranks == (2,)
    assert "called ALL_REDUCE of 102 elements where the others called ALL_TO_ALL, as" in finding.summary


def test_one_of_two_alike_calls_left_out_is_not_a_swap() -> None:
    """Broadcasts of a small, a large and a small message: without the first, large and small look swapped."""
    story = Story(((0, 1), (2, 3)))
    for at in (0.0, 10.0, 20.0):
        for rank in range(4):
            if at == 20.0 and rank == 0:
                continue
            for i, count in enumerate((64, 4096, 64)):
                open_ = at == 20.0 and rank < 2
                story.call(rank, rank // 2, at + i, Op.BROADCAST, count=count, done=not open_)
            story.call(rank, rank // 2, at + 5, count=9000, done=not (at == 20.0 and rank < 2))
    for i, count in enumerate((4096, 64)):
        story.call(0, 0, 21.0 + i, Op.BROADCAST, count=count, done=False)
    story.call(0, 0, 25.0, count=9000, done=False)
    finding = judge(story)
    assert finding.kind is Kind.MISSING_CALL
    assert finding.culprits.ranks == (0,)
    assert "left out BROADCAST #8" in finding.summary


def test_messages_within_a_stage_do_not_part_what_was_called_before_them() -> None:
    """Ranks 0 and 2 are context peers: their exchange is a part of the block; one with rank 4 is not."""
    layout = ParallelLayout(tp=2, cp=2, pp=2)
    groups = ((0, 1), (0, 2), (0, 4))
    story = Story(groups)
    story.call(0, 0, 1.0).message(0, 4, 2, 2.0, Op.RECV).call(0, 0, 3.0)
    story.message(0, 2, 1, 4.0, Op.SEND).message(0, 2, 1, 4.01, Op.RECV).call(0, 0, 5.0)
    members = tuple(Communicator(i, group) for i, group in enumerate(groups))
    frontier = Frontier.from_events(story.events(), members)
    index = int(np.flatnonzero(frontier.ranks == 0)[0])
    assert Meetings(frontier, layout).since_message(index) == {0, 1}
    assert Meetings(frontier, None).since_message(index) == {0}


@pytest.mark.parametrize("apart", [8, 10**9])
def test_who_waits_for_whom_does_not_depend_on_how_far_numbers_lie_apart(apart: int) -> None:
    """Far apart, numbers have no row each in the table of calls."""
    story = Story(((0, 1, 2), (0, 1, 2)))
    story.call((0, 1, 2), 1, 0.0)
    for rank, number in ((0, apart), (1, apart), (2, 0)):
        story.numbers[rank, 0] = number
        story.call(rank, 0, 1.0, done=False, start=1.1)
    graph = waits_for(story.frontier(completions=False))
    waits = [
        (int(rank), int(graph.instances.group[i]), int(graph.instances.seq[i]))
        for rank, i in zip(graph.wait_rank, graph.wait_instance, strict=True)
    ]
    assert waits == [(0, 0, apart), (1, 0, apart)]
    assert {(int(rank), int(why)) for rank, why in zip(graph.hold_rank, graph.hold_why, strict=True)} == {
        (2, 0)
    }
    (instance,) = set(graph.wait_instance.tolist())
    assert graph.calls.rank[graph.rows_of(instance)].tolist() == [0, 1]
    assert graph.waiters(instance).tolist() == [0, 1]


def ahead(*those: int, pairs: bool = True) -> Story:
    """All call the world's third number and stand; ``those`` went on to its fifth."""
    story = pairs_and_world() if pairs else Story((EVERYBODY,))
    world = WORLD if pairs else 0
    if not pairs:
        story.call(EVERYBODY, world, 1.0)
    story.call(EVERYBODY, world, 20.0, done=False, start=20.1)
    for rank in those:
        for at in (20.5, 20.6):
            story.call(rank, world, at, done=False)
    return story


def test_one_ahead_of_all_who_stand_left_a_call_out() -> None:
    finding = judge(ahead(3))
    assert finding.kind is Kind.MISSING_CALL
    assert finding.culprits.ranks == (3,)
    assert finding.summary.startswith(
        "rank 3 left out a call of the group of ranks 0–5 and went on without it"
    )
    assert finding.victims == (0, 1, 2, 4, 5)


@pytest.mark.parametrize(
    "story",
    [ahead(2, 3), ahead(3, pairs=False)],
    ids=("too many ahead", "nobody runs the same program"),
)
def test_who_is_ahead_is_not_accused_where_the_odd_one_is_not_known(story: Story) -> None:
    assert 3 not in judge(story).culprits.ranks
