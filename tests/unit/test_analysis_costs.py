"""What an excess costs, who becomes a suspect, which windows, members and patterns are seen: tables by
hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from megatrace.analysis import costs as cost_tables
from megatrace.analysis.costs import COUNTS, Costs, normal_work, quick_level, tabulate_costs, usual_time
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.member import late_member
from megatrace.analysis.reductions import median
from megatrace.analysis.suspects import Cause, find_suspects
from megatrace.analysis.windows import Span, spans
from megatrace.model.finding import Status
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Phase, Schedule
from tests.unit.analysis_cases import costs_of, steady_work, table_of

PLAIN = Schedule(ScheduleKind.ONE_F_ONE_B, 4, 8)
F8 = NDArray[np.float64]


def place(costs: Costs, stage: int, replica: int = 0, member: int = 0) -> NDArray[np.bool_]:
    chosen = np.zeros(costs.work.shape[1:4], np.bool_)
    chosen[stage, replica, member] = True
    return chosen


# --- counterfactuals ---


def test_one_slow_place_costs_its_excess_and_its_share_of_the_bubble() -> None:
    work = steady_work(PLAIN, 20)
    work[8:14, 1] *= 2
    costs = costs_of(PLAIN, work)
    lost = costs.with_work(place(costs, 1)) - costs.ideal()
    np.testing.assert_allclose(lost[:8], 0.0, atol=1e-12)
    # Eight forwards and backwards of 30 ms more each, less what its bubbles take up.
    assert costs.excess[8, 1, 0, 0] == pytest.approx(8 * 0.030)
    np.testing.assert_allclose(lost[8:14], 0.200, rtol=1e-9)
    # It is all that happened: put alone into a normal pipeline it makes the iteration as long as it was.
    np.testing.assert_allclose(costs.with_work(place(costs, 1)), costs.measured, rtol=1e-12)
    assert costs.with_work(place(costs, 2)) == pytest.approx(costs.ideal())


def test_a_delay_that_a_bubble_absorbs_costs_nothing() -> None:
    """The first backward of stage 0 waits for all other stages: its first forwards have time to spare."""
    work = steady_work(PLAIN, 20)
    warm_up = PLAIN.warm_up(0)
    last_warm = warm_up - 1
    work[10, 0, 0, 0, last_warm] += 0.010
    costs = costs_of(PLAIN, work)
    assert costs.excess[10, 0, 0, 0] == pytest.approx(0.010)
    assert costs.with_work(place(costs, 0))[10] == pytest.approx(costs.ideal()[10])
    assert find_suspects(costs) == []


def test_two_slow_places_of_one_replica_do_not_add_up() -> None:
    """Stages wait for the slower of the two: naming both with their full cost would count twice."""
    work = steady_work(PLAIN, 20)
    work[10:, 1] *= 2.0
    work[10:, 2] *= 1.5
    costs = costs_of(PLAIN, work)
    both = place(costs, 1) | place(costs, 2)
    first, second, together = (
        (costs.with_work(chosen) - costs.ideal())[15] for chosen in (place(costs, 1), place(costs, 2), both)
    )
    assert first > second > 0
    assert together < first + second - 0.05


def test_transfers_and_collectives_cost_by_themselves() -> None:
    work = steady_work(PLAIN, 20)
    transfer = np.zeros(work.shape)
    transfer[12, 2, 0, 0, 0] = 0.004  # into the first forward of stage 2: everything later shifts
    comm = np.zeros((20, 4, 1, 16))
    comm[13, 1] = 0.002
    costs = costs_of(PLAIN, work, transfer=transfer, comm=comm)
    chosen = np.zeros(work.shape[1:], np.bool_)
    chosen[2, 0, 0] = True
    assert (costs.with_transfer(chosen) - costs.ideal())[12] == pytest.approx(0.004)
    lost = costs.with_comm(np.array([[False], [True], [False], [False]])) - costs.ideal()
    longer = work.copy()
    longer[13, 1] += 0.002  # the pipeline does not mind whether a task computes or communicates
    assert lost[13] == pytest.approx(costs_of(PLAIN, longer).measured[13] - costs.ideal()[13])
    assert 8 * 0.002 < lost[13] < 16 * 0.002
    assert lost[12] == pytest.approx(0.0)


# --- what is normal ---


def test_the_usual_iteration_is_the_undisturbed_one() -> None:
    """Even when most iterations are slow."""
    times = np.array([1.0, 1.01, 1.02, 1.0, *[2.0] * 12])
    assert usual_time(times) == pytest.approx(1.005, abs=0.006)
    assert np.isnan(usual_time(np.array([np.nan])))


def test_own_past_and_peers_are_both_asked() -> None:
    work = steady_work(PLAIN, 10, replicas=4)
    work[6:, 1, 2] *= 2  # its own past knows better
    work[:, 3, 1] *= 2  # always slow: only the peers know
    normal = normal_work(work)
    np.testing.assert_allclose(normal[8, 1, 2], work[0, 1, 2])
    np.testing.assert_allclose(normal[8, 3, 1], work[8, 3, 0])
    # A lone place that was always slow is normal to itself: nothing tells otherwise.
    lone = steady_work(PLAIN, 10)
    lone[:, 3] *= 2
    np.testing.assert_allclose(normal_work(lone), lone)


def test_levels_do_not_mind_what_was_not_seen() -> None:
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan], [2.0, 5.0]])
    level = quick_level(values)
    assert level[0, 0] == 1.0
    assert level[0, 1] == 5.0
    np.testing.assert_array_equal(median(values, 0), [2.0, 5.0])
    assert np.isnan(median(np.full((3, 1), np.nan), 0)).all()


def test_iterations_of_which_little_was_seen_are_left_out() -> None:
    work = steady_work(PLAIN, 10)
    table = table_of(work)
    group = table.group.copy()
    group[3] = np.nan
    group[4, 0] = np.nan  # one stage of four: the others still speak
    iteration = table.iteration.copy()
    iteration[7] = np.nan
    costs = tabulate_costs(replace(table, group=group, iteration=iteration), PLAIN)
    assert costs is not None
    assert costs.iterations.tolist() == [0, 1, 2, 4, 5, 6, 8, 9]
    assert not np.isnan(costs.work).any()
    assert costs.excess[3].max() == pytest.approx(0.0)  # what was not seen counts as normal
    assert tabulate_costs(replace(table, group=np.full_like(group, np.nan)), PLAIN) is None


def test_a_place_that_was_never_seen_whole_has_no_excess() -> None:
    """As where a tensor peer's log is missing: tasks are not told apart, so nothing is their normal."""
    table = table_of(steady_work(PLAIN, 10))
    group = table.group.copy()
    group[:, 3, :, 1::2] = np.nan
    group[6, 3, :, 0] *= 3
    costs = tabulate_costs(replace(table, group=group), PLAIN)
    assert costs is not None
    assert costs.excess[:, 3].max() == 0.0
    assert costs.work[6, 3].max() > 2 * costs.work[5, 3].max()  # the graph still knows how long it took


def test_a_task_that_never_shows_does_not_hide_the_places_own_past() -> None:
    """No Send ends the last backward of a first stage without tensor groups; if all its places become slow
    together, only their past tells."""
    work = steady_work(PLAIN, 10, replicas=4)
    work[4:8, 0] *= 3
    group = work[:, :, :, 0].copy()
    group[:, 0, :, -1] = np.nan
    costs = tabulate_costs(replace(table_of(work), group=group), PLAIN)
    assert costs is not None
    assert costs.excess_share[4:8, 0].min() > 1.9
    assert abs(costs.excess_share[:4]).max() < 0.01


def test_work_of_who_waits_for_a_slow_rank_is_no_measure_for_it() -> None:
    """Their traffic is hidden meanwhile: of 280 ms half is left, and the slow one would be thrice as slow."""
    work = np.full((20, 1, 8, 1, 2), 0.0)
    work[..., 0] = 0.28
    work[8:, ..., 0] = 0.15
    work[8:, 0, 3, 0, 0] = 0.43
    quiet = np.arange(20) < 8
    normal = normal_work(work, quiet)
    assert normal[8:, 0, 3].sum(axis=-1) == pytest.approx(0.28)
    always = normal_work(work[8:], np.ones(12, np.bool_))
    assert always[:, 0, 3].sum(axis=-1) == pytest.approx(0.15)


def test_clocks_that_make_a_transfer_negative_do_not_make_time() -> None:
    table = table_of(steady_work(PLAIN, 10))
    transfer = np.full(table.transfer.shape, -0.003)
    costs = tabulate_costs(replace(table, transfer=transfer), PLAIN)
    assert costs is not None
    assert costs.transfer.min() == costs.transfer.max() == 0.0
    assert cost_tables.NORMAL_BAND > 1


def test_waiting_that_is_thought_longer_than_the_iteration_makes_no_negative_work() -> None:
    """Two tasks share their time as they usually do: shares of less than none were of any size."""
    work = np.zeros((10, 1, 4, 1, 2))
    work[..., 0] = 0.05
    work[:, :, :2, :, 0] = -0.3
    work[7, :, :2, :, 0] = 0.06
    longer = np.where(np.arange(10) == 7, 1.1, 1.0)
    costs = tabulate_costs(table_of(work, iteration=longer), ONE_TASK)
    assert costs is not None
    assert costs.work.min() == 0.0
    assert costs.work.max() == pytest.approx(0.06)
    assert costs.usual == 1.0


# --- suspects ---


def test_the_slow_place_is_the_first_suspect() -> None:
    work = steady_work(PLAIN, 20, replicas=2, members=2, noise=0.01)
    work[5:12, 2, 1, 0] *= 1.5
    suspects = find_suspects(costs_of(PLAIN, work))
    lead = suspects[0]
    assert (lead.cause, lead.stage, lead.replica, lead.member) == (Cause.WORK, 2, 1, 0)
    assert np.flatnonzero(lead.affected(0.35)).tolist() == list(range(5, 12))
    assert all(other.lost.max() < COUNTS * 0.35 for other in suspects[1:])


def paths_late(*late: tuple[int, int]) -> Costs:
    """An interleaved job of four stages in which the inputs of ``late`` (stage, from stage) are late from the
    fifth iteration on."""
    schedule = Schedule(ScheduleKind.INTERLEAVED, 4, 8, 2)
    costs = costs_of(schedule, steady_work(schedule, 12))
    tasks = costs.graph.tasks
    feeder = costs.graph.sender.reshape(4, tasks) // tasks
    transfer = np.zeros(costs.transfer.shape)
    for stage, source in late:
        chosen = (costs.graph.sender.reshape(4, tasks)[stage] >= 0) & (feeder[stage] == source)
        transfer[5:, stage, 0, 0, chosen] = 0.02
    return replace(costs, transfer=transfer)


def test_what_shares_a_batch_with_a_slow_path_is_not_slow() -> None:
    """Both ends of the path between stages 1 and 2 also take their other inputs late."""
    costs = paths_late((2, 1), (1, 2), (1, 0), (2, 3))
    plain = {(s.stage, s.feeder) for s in find_suspects(costs) if s.cause is Cause.TRANSFER}
    batched = {(s.stage, s.feeder) for s in find_suspects(costs, True) if s.cause is Cause.TRANSFER}
    assert plain == {(2, 1), (1, 2), (1, 0), (2, 3)}
    assert batched == {(2, 1), (1, 2)}


def test_a_late_input_of_one_side_only_stays() -> None:
    paths = {(s.stage, s.feeder) for s in find_suspects(paths_late((2, 1)), True)}
    assert paths == {(2, 1)}


def test_a_group_whose_members_are_not_seen_is_suspected_as_one() -> None:
    work = steady_work(PLAIN, 20)
    work[5:12, 2] *= 1.5
    assert find_suspects(costs_of(PLAIN, work))[0].member is None


def test_a_slow_path_names_both_ends() -> None:
    work = steady_work(PLAIN, 20, replicas=2, noise=0.005)
    transfer = np.zeros(work.shape)
    forward = np.array([task.phase is Phase.FORWARD for task in PLAIN.tasks(2)])
    transfer[4:, 2, 1, 0, forward] = 0.008
    lead = find_suspects(costs_of(PLAIN, work, transfer=transfer))[0]
    assert (lead.cause, lead.stage, lead.replica, lead.feeder) == (Cause.TRANSFER, 2, 1, 1)


def test_a_late_loader_is_suspected_of_its_entry() -> None:
    work = steady_work(PLAIN, 20, members=2)
    entry = np.zeros(work.shape[:4])
    entry[::3, 0, 0, 1] = 0.1
    lead = find_suspects(costs_of(PLAIN, work, entry=entry))[0]
    assert (lead.cause, lead.stage, lead.member) == (Cause.ENTRY, 0, 1)
    assert np.flatnonzero(lead.affected(0.35)).tolist() == list(range(0, 20, 3))


def test_noise_makes_no_suspect_worth_a_word() -> None:
    for seed in range(5):
        costs = costs_of(PLAIN, steady_work(PLAIN, 20, replicas=4, members=2, noise=0.02, seed=seed))
        assert all(suspect.lost.max() < costs.counts for suspect in find_suspects(costs))


def test_what_a_host_waits_for_its_turn_counts_nowhere() -> None:
    work = steady_work(PLAIN, 20)
    usual, quick = costs_of(PLAIN, work), costs_of(PLAIN, work / 100)
    assert usual.counts == COUNTS * usual.usual > 0.01
    assert quick.counts == 0.003 > COUNTS * quick.usual


# --- windows ---


def at(n: int, *indices: int) -> NDArray[np.bool_]:
    series = np.zeros(n, np.bool_)
    series[list(indices)] = True
    return series


@pytest.mark.parametrize(
    ("affected", "expected"),
    [
        (at(40), []),
        (at(40, *range(21, 32)), [Span(21, 31, 11, Status.RECOVERED)]),
        (at(40, *range(21, 40)), [Span(21, 39, 19, Status.ONGOING)]),
        (at(40, *range(21, 39)), [Span(21, 38, 18, Status.ONGOING)]),  # one quiet iteration proves nothing
        (at(40, *range(21, 38)), [Span(21, 37, 17, Status.RECOVERED)]),
        (at(40, 5, 6, 8, 9, 10), [Span(5, 10, 5, Status.RECOVERED)]),  # one iteration was not quite as bad
        (at(40, 5), [Span(5, 5, 1, Status.RECOVERED)]),
        (
            at(40, *range(3, 8), *range(20, 26)),
            [Span(3, 7, 5, Status.RECOVERED), Span(20, 25, 6, Status.RECOVERED)],
        ),
        (at(40, 3, 11, 17, 30), [Span(3, 30, 4, Status.INTERMITTENT)]),
        (at(40, 4, 8), [Span(4, 8, 2, Status.INTERMITTENT)]),
        (at(40, 2, 3, 10), [Span(2, 10, 3, Status.INTERMITTENT)]),
        (at(40, 2, 3, 4, 10), [Span(2, 4, 3, Status.RECOVERED), Span(10, 10, 1, Status.RECOVERED)]),
        (at(40, 3, 6, 9, 12, 15), [Span(3, 15, 5, Status.INTERMITTENT)]),
        (at(59, 25, 42, 44, 46, 48), [Span(25, 48, 5, Status.INTERMITTENT)]),  # no piece is a window
    ],
)  # fmt: skip
def test_windows(affected: NDArray[np.bool_], expected: list[Span]) -> None:
    assert spans(affected) == expected


# --- the member of a group ---


def offsets(late: dict[int, float], members: int = 4, noise: float = 30e-6) -> F8:
    """[K, S, D, M, T] seconds behind the first, with members ``late`` in iterations 10 to 19."""
    shape = (30, 4, 1, members, 16)
    values = np.abs(np.random.default_rng(1).normal(0, noise, shape))
    for member, seconds in late.items():
        values[10:20, 1, 0, member] += seconds
    return np.asarray(values - values.min(axis=3, keepdims=True))


def member_of(offset: F8, iterations: NDArray[np.int64] | None = None) -> tuple[int | None, int]:
    table = table_of(np.ones(offset.shape), offset=offset)
    found = late_member(table, 1, 0, np.arange(10, 20) if iterations is None else iterations)
    return found.index, found.blocks


def test_the_member_that_carries_an_offset_is_named() -> None:
    assert member_of(offsets({2: 0.0045})) == (2, 160)
    table = table_of(np.ones((30, 4, 1, 4, 16)), offset=offsets({2: 0.0045}))
    found = late_member(table, 1, 0, np.arange(10, 20))
    assert found.offset_s == pytest.approx(0.0045, rel=0.02)
    assert found.share == 1.0
    assert found.normal_s < 100e-6


def test_no_member_is_named_when_the_group_cannot_be_separated() -> None:
    assert member_of(offsets({}))[0] is None  # nobody is late
    assert member_of(offsets({1: 0.004, 2: 0.004}))[0] is None  # two are
    assert member_of(offsets({2: 60e-6}))[0] is None  # below what hosts differ by
    assert member_of(offsets({2: 0.0045}), np.arange(0))[0] is None  # no block was seen


def test_a_member_that_is_always_late_by_as_much_is_not_the_cause() -> None:
    offset = offsets({})
    offset[:, 1, 0, 3] += 0.002
    assert member_of(offset)[0] is None
    offset[10:20, 1, 0, 3] += 0.004
    assert member_of(offset)[0] == 3


def test_half_of_the_blocks_are_enough_if_they_agree() -> None:
    """An offset shows only in blocks before which the host waited for its device."""
    offset = offsets({})
    offset[10:20, 1, 0, 3, ::2] += 0.004
    assert member_of(offset) == (3, 80)
    offset[10:20, 1, 0, 1, 1::2] += 0.004  # as often another member
    assert member_of(offset)[0] is None


def test_a_few_late_blocks_are_noise() -> None:
    offset = offsets({})
    offset[10:20, 1, 0, 3, :2] += 0.004  # 2 of 16 blocks
    assert member_of(offset)[0] is None
