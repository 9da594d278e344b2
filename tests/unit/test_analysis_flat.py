"""Jobs without a pipeline: what is waiting, which iterations count, who is slow when; coalesced exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from megatrace.analysis import flat
from megatrace.analysis.costs import Costs, tabulate_costs
from megatrace.analysis.exchanges import all_posted
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.hosts import same_places
from megatrace.analysis.iterations import closing_rows
from megatrace.analysis.pauses import find_pauses
from megatrace.model.events import Op
from megatrace.model.finding import Kind, Severity
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Phase, Schedule, Task
from tests.unit.analysis_cases import NORM, REDUCE, costs_of, events_of, table_of


def test_overlapping_waits_count_once() -> None:
    start = np.array([[0.0, 1.0, 5.0], [3.0, 0.0, np.nan]])
    wait = np.array([[2.0, 3.0, 1.0], [1.0, 1.0, 9.0]])
    assert flat._union(start, wait).tolist() == [5.0, 2.0]


def test_only_a_lone_long_iteration_is_a_checkpoint() -> None:
    own = np.ones((12, 1, 4, 1))
    own[3] = 3.0
    own[7:9] = 2.0
    excess = flat._lone_excess(own).reshape(-1)
    assert excess[3] == pytest.approx(2.0)
    assert np.flatnonzero(excess).tolist() == [3]


def test_a_sick_rank_is_slow_again_and_pauses_change_places() -> None:
    random = np.random.default_rng(3)
    sick, pauses = np.zeros((20, 16)), np.zeros((20, 16))
    sick[:, 5] = 1.0
    pauses[np.arange(20), random.integers(0, 16, 20)] = 1.0
    assert same_places(sick > 0) == 1.0
    assert same_places(pauses > 0) < 0.2


def test_a_pause_that_two_iterations_saw_is_no_sick_rank() -> None:
    """Who stands still at the end of one iteration begins the next late."""
    pauses = np.zeros((20, 8), np.bool_)
    for first in range(0, 19, 2):
        pauses[first : first + 2, first % 8] = True
    assert same_places(pauses) < 0.2
    assert same_places(pauses[:2]) == 0.0


def test_an_iteration_is_over_with_the_bookkeeping_after_its_anchor() -> None:
    """The host is long ahead of its device when it enqueues the anchor of a data-parallel job."""
    events = events_of({0: [REDUCE, NORM, NORM, REDUCE, REDUCE, NORM], 1: [REDUCE, NORM, REDUCE, NORM, NORM]})
    anchors = np.flatnonzero((events.op == Op.ALL_REDUCE) & (events.count == 1))[[0, 2, 3, 4]]
    assert anchors.tolist() == [1, 5, 7, 9]
    assert closing_rows(events, anchors).tolist() == [2, 5, 7, 10]


def test_an_iteration_of_light_calls_ends_with_its_anchor() -> None:
    events = events_of({0: [NORM] * 6})
    assert closing_rows(events, np.array([1, 3, 5])).tolist() == [1, 3, 5]


def late_hosts(rows: Sequence[int], seconds: float, longer: float) -> Costs:
    """Twelve iterations of four ranks of which the second comes late in some, and how much longer they
    take."""
    entry = np.zeros((12, 1, 4, 1))
    iteration = np.ones(12)
    entry[list(rows), 0, 1, 0], iteration[list(rows)] = seconds, 1.0 + longer
    work = np.full((12, 1, 4, 1, 2), 0.2)
    costs = tabulate_costs(table_of(work, entry=entry, iteration=iteration), ONE_TASK)
    assert costs is not None
    return costs


def test_a_host_that_stays_ahead_of_its_device_costs_nothing() -> None:
    assert late_hosts([3, 4], 0.3, 0.0).entry.max() == 0.0
    assert late_hosts([3, 4], 0.3, 0.1).entry.max() == pytest.approx(0.1)


def test_a_host_that_is_always_late_has_no_iteration_to_compare_with() -> None:
    assert late_hosts(range(12), 0.3, 0.0).entry.max() == pytest.approx(0.3)


def test_ranks_leave_a_pause_one_after_another() -> None:
    times = np.ones(12)
    times[[3, 8]], times[[4, 9]] = 6.0, 1.3
    assert [pattern.severity for pattern in find_pauses(flat_costs(12, 4), times)] == [Severity.P2]
    times[[4, 9]] = 2.0
    assert not find_pauses(flat_costs(12, 4), times)


def flat_costs(iterations: int, ranks: int) -> Costs:
    work = np.zeros((iterations, 1, ranks, 1, 2))
    work[..., 0] = 1.0
    return costs_of(ONE_TASK, work)


def test_a_pause_of_seconds_is_nobodys_and_storages() -> None:
    costs = flat_costs(12, 4)
    times = np.ones(12)
    times[[3, 8]] = 6.0
    (pattern,) = find_pauses(costs, times)
    assert (pattern.kind, pattern.severity) == (Kind.SLOW_STORAGE, Severity.P2)
    assert np.flatnonzero(pattern.lost).tolist() == [3, 8]
    assert pattern.lost[3] == pytest.approx(5.0)


@pytest.mark.parametrize(("seconds", "noted"), [(1.8, 0), (2.2, 1), (4.4, 1)])
def test_what_a_checkpoint_may_cost_is_noted_at_most(seconds: float, noted: int) -> None:
    times = np.ones(12)
    times[[3, 8]] = seconds
    found = find_pauses(flat_costs(12, 4), times)
    assert [pattern.severity for pattern in found] == [Severity.P3] * noted


def test_a_late_rank_explains_a_pause() -> None:
    costs = flat_costs(12, 4)
    times = np.ones(12)
    times[[3, 8]] = 6.0
    costs.entry[[3, 8], 0, 2, 0] = 4.5
    assert not find_pauses(costs, times)


def test_a_transfer_waits_for_everybody_in_its_batch() -> None:
    schedule = Schedule(ScheduleKind.INTERLEAVED, 4, 8, 2)
    tasks = {task: i for i, task in enumerate(schedule.tasks(1))}
    shape = (1, 4, 1, 1, len(tasks))
    send, recv = np.zeros(shape), np.zeros(shape)
    # Stage 1 sends its first forward to stage 2 in the exchange in which it asks for its second.
    later = list(schedule.tasks(2)).index(Task(Phase.FORWARD, 0, 0))
    recv[0, 2, 0, 0, later] = 7.0
    posted = all_posted(schedule, send, recv)
    assert posted[0, 1, 0, 0, tasks[Task(Phase.FORWARD, 1, 0)]] == 7.0
    assert posted[0, 1, 0, 0, tasks[Task(Phase.FORWARD, 2, 0)]] == 0.0
