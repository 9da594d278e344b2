"""The iteration graph on cases small enough to work out by hand, and its special values."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.model.durations import fill_unknown, reduce_members
from megatrace.model.graph import IterationGraph, Node
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Schedule

TWO_BY_TWO = Schedule(ScheduleKind.ONE_F_ONE_B, pp=2, micro_batches=2)
# Stage 0 runs F0 F1 B0 B1, stage 1 runs F0 B0 F1 B1.


def work(replicas: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Forwards take 1, backwards 2."""
    stage0, stage1 = [1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 1.0, 2.0]
    return np.repeat(np.array([stage0, stage1])[:, None, :], replicas, axis=1)


def test_two_stages_two_micro_batches_by_hand() -> None:
    # stage 0: F0 0–1, F1 1–2, B0 4–6, B1 7–9        stage 1: F0 1–2, B0 2–4, F1 4–5, B1 5–7
    solution = IterationGraph.of(TWO_BY_TWO).solve(work())
    assert solution.start[:, 0].tolist() == [[0, 1, 4, 7], [1, 2, 4, 5]]
    assert solution.finish[:, 0].tolist() == [[1, 2, 6, 9], [2, 4, 5, 7]]
    assert solution.slack[:, 0].tolist() == [[0, 2, 1, 0], [0, 0, 0, 0]]
    assert float(solution.makespan) == 9
    path = IterationGraph.of(TWO_BY_TWO).critical_path(solution)
    assert path == [(0, 0, 0), (1, 0, 0), (1, 0, 1), (1, 0, 2), (1, 0, 3), (0, 0, 3)]
    assert IterationGraph.of(TWO_BY_TWO).blame(solution).tolist() == [[3.0], [6.0]]


def test_transfers_and_sync_by_hand() -> None:
    # Each of the two transfers on the path takes 0.5; the sync of stage 1 outlasts that of stage 0 by far.
    solution = IterationGraph.of(TWO_BY_TWO).solve(work(), p2p_delay=0.5, sync=[1.0, 4.0])
    assert float(solution.replica_makespan[0]) == 10
    assert solution.sync_start.tolist() == [10, 7.5]
    assert solution.sync_finish.tolist() == [11, 11.5]
    assert float(solution.makespan) == 11.5
    assert solution.slack[0, 0, 3] == 0.5


def test_the_slow_replica_is_on_the_path_and_the_others_have_slack() -> None:
    durations = work(replicas=3)
    durations[1, 2, 1] += 1.0
    graph = IterationGraph.of(TWO_BY_TWO)
    solution = graph.solve(durations)
    assert solution.replica_makespan.tolist() == [9, 9, 10]
    assert {node.replica for node in graph.critical_path(solution)} == {2}
    assert solution.slack[:, :2].min() == 1
    assert graph.blame(solution)[1].tolist() == [0, 0, 7]


def test_what_if_gives_the_time_that_a_slow_task_cost() -> None:
    durations = work(replicas=2)
    durations[1, 1, 1] += 3.0
    durations[0, 0, 1] += 0.5  # has slack: costs nothing
    graph = IterationGraph.of(TWO_BY_TWO)
    slow = np.zeros(durations.shape, bool)
    slow[1, 1, 1] = True
    assert float(graph.what_if(durations, slow, 2.0)) == 3
    slow[:] = False
    slow[0, 0, 1] = True
    assert float(graph.what_if(durations, slow, work(2))) == 0
    twice = np.stack([durations, work(2)])
    assert graph.what_if(twice, np.ones(twice.shape, bool), work(2)).tolist() == [3, 0]


def test_a_lost_duration_leaves_what_depends_on_it_unknown() -> None:
    durations = work(replicas=2)
    durations[0, 0, 1] = np.nan
    graph = IterationGraph.of(TWO_BY_TWO)
    solution = graph.solve(durations)
    assert solution.start[0, 0, 1] == 1
    assert np.isnan(solution.finish[0, 0, 1:]).all()
    assert solution.finish[1, 0, :2].tolist() == [2, 4]
    assert np.isnan(solution.finish[1, 0, 2:]).all()
    assert np.isfinite(solution.finish[:, 1]).all()
    assert np.isnan(solution.makespan)
    assert np.isnan(solution.slack).all()
    assert np.isnan(graph.blame(solution)).all()
    assert not solution.critical.any()
    with pytest.raises(ValueError, match="fill_unknown"):
        graph.critical_path(solution)


def test_an_unfinished_task_stops_what_waits_for_it() -> None:
    durations = work(replicas=2)
    durations[1, 0, 1] = np.inf
    graph = IterationGraph.of(TWO_BY_TWO)
    solution = graph.solve(durations)
    assert np.argwhere(solution.stuck).tolist() == [[1, 0, 1]]
    assert solution.start[1, 0, 1] == 2
    assert np.isposinf(solution.start[0, 0, 2:]).all()
    assert solution.finish[0, 0, :2].tolist() == [1, 2]
    assert np.isfinite(solution.finish[:, 1]).all()
    assert np.isposinf(solution.makespan)
    assert np.isnan(solution.slack).all()
    assert Node(1, 0, 1) in graph.critical_path(solution)
    assert np.isposinf(graph.blame(solution)[1, 0])


def test_the_fast_memory_layout_gives_the_same_and_is_not_copied() -> None:
    graph = IterationGraph.of(TWO_BY_TWO)
    fast = graph.empty(3, batch=2)
    assert fast.shape == (2, 2, 3, 4)
    fast[:] = work(3)
    assert np.shares_memory(graph._columns(fast), fast)
    assert np.array_equal(graph.solve(fast).finish, graph.solve(np.ascontiguousarray(fast)).finish)
    assert graph.empty(3, dtype=np.float32).shape == (2, 3, 4)


def test_a_graph_is_built_once() -> None:
    assert IterationGraph.of(TWO_BY_TWO) is IterationGraph.of(Schedule(ScheduleKind.ONE_F_ONE_B, 2, 2))


@pytest.mark.parametrize("shape", [(2, 4), (2, 1, 3), (1, 1, 4), (2, 0, 4), (1, 1, 2, 1, 4)])
def test_durations_of_another_schedule_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"needs \[pp 2, replicas, tasks 4\]"):
        IterationGraph.of(TWO_BY_TWO).solve(np.ones(shape))


def test_a_group_is_as_slow_as_its_slowest_member() -> None:
    rng = np.random.default_rng(7)
    members = rng.random((3, 2, 5, 2, 4, 6))  # iterations, stages, replicas, cp, tp, tasks
    duration, member = reduce_members(members)
    flat = members.reshape(3, 2, 5, 8, 6)
    assert np.array_equal(duration, flat.max(axis=3))
    assert np.array_equal(member, flat.argmax(axis=3))
    one, who = reduce_members(members[1])
    assert np.array_equal(one, duration[1])
    assert np.array_equal(who, member[1])


def test_the_first_of_equal_members_is_named() -> None:
    _, member = reduce_members(np.ones((1, 1, 1, 3, 2)))
    assert (member == 0).all()


def test_members_without_a_value_are_passed_over() -> None:
    members = np.array([np.nan, 2.0, 5.0, 1.0]).reshape(1, 1, 1, 4, 1)
    duration, member = reduce_members(members)
    assert (duration.item(), member.item()) == (5.0, 2)
    duration, member = reduce_members(np.full((1, 1, 2, 2, 1), np.nan))
    assert np.isnan(duration.item())
    assert member.item() == 0


def test_more_members_than_a_byte_can_number() -> None:
    members = np.zeros((1, 1, 1, 300, 1))
    members[0, 0, 0, 299, 0] = 1.0
    assert reduce_members(members)[1].item() == 299


def test_work_without_members_is_refused() -> None:
    with pytest.raises(ValueError, match="work has 3 axes"):
        reduce_members(np.ones((2, 1, 4)))


def test_unknown_durations_are_filled_from_the_same_task_elsewhere() -> None:
    durations = np.stack([work(2), work(2) + 2])
    durations[0, 1, 0, 2] = np.nan
    filled = fill_unknown(durations)
    assert filled[0, 1, 0, 2] == 3  # of 1, 3 and 3
    assert np.isnan(durations[0, 1, 0, 2])
    durations[:, 1, :, 2] = np.nan  # lost everywhere: the stage's other tasks speak
    assert fill_unknown(durations)[1, 1, 1, 2] == np.nanmedian(durations[:, 1])
    durations[:, 1] = np.nan
    assert np.isnan(fill_unknown(durations)[:, 1]).all()
    assert not np.isnan(fill_unknown(durations)[:, 0]).any()
