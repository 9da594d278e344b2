"""Standstills: who is stuck, who waits, and how far every host got follows from the physics."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.errors import ConfigError
from megatrace.model.events import UNSEEN, Events, Op
from megatrace.model.finding import Kind, Severity, Verdict
from megatrace.model.schedule import Phase
from megatrace.simulator import (
    CommDeadlock,
    DeadLink,
    DeadNode,
    DeadRank,
    LateDeaths,
    MissingRecv,
    MissingSend,
    OrderMismatch,
    Scenario,
    Simulation,
    SizeMismatch,
    SkippedCollective,
    SlowGpu,
    StuckHost,
    StuckInside,
    StuckKernelBefore,
    flagship,
    flagship_late_deaths,
    simulate,
)
from megatrace.simulator.faults import Fault

SMALL = {"tp": 2, "pp": 3, "dp": 2, "micro_batches": 4, "layers_per_stage": 2, "iterations": 5, "seed": 3}
CULPRIT = 5
"""Stage 1, replica 0, second tensor index; its peer is 4, its pipeline neighbours are 1 and 9."""


def run_of(*faults: Fault, **changes: object) -> Simulation:
    return simulate(Scenario.model_validate({**SMALL, "ranks_per_node": 2, "faults": faults, **changes}))


def rows(events: Events, rank: int) -> np.ndarray:
    chosen = events.rows_of(rank)
    return np.arange(chosen.start, chosen.stop)


def pending(events: Events, rank: int) -> np.ndarray:
    chosen = rows(events, rank)
    assert events.end is not None
    return np.asarray(chosen[events.end[chosen] == UNSEEN])


def started(events: Events, row: int) -> bool:
    assert events.start is not None
    return bool(events.start[row] != UNSEEN)


EVERYWHERE: list[Fault] = [
    StuckHost(rank=CULPRIT, iteration=3, micro_batch=1, phase=Phase.BACKWARD),
    StuckKernelBefore(rank=CULPRIT, iteration=3, micro_batch=1),
    StuckInside(rank=CULPRIT, iteration=3, micro_batch=1),
    MissingRecv(rank=CULPRIT, iteration=3, micro_batch=1),
    MissingSend(rank=CULPRIT, iteration=3, micro_batch=1),
    SkippedCollective(rank=CULPRIT, iteration=3, micro_batch=1),
    OrderMismatch(rank=CULPRIT, iteration=3),
    SizeMismatch(rank=CULPRIT, iteration=3, micro_batch=1),
    CommDeadlock(rank=CULPRIT, iteration=3),
    DeadRank(rank=CULPRIT, iteration=3, micro_batch=1),
    DeadNode(node=2, iteration=3, micro_batch=1),
    DeadLink(src=1, dst=CULPRIT, iteration=3, micro_batch=1),
]


@pytest.mark.parametrize("fault", EVERYWHERE, ids=lambda fault: fault.fault)
def test_every_standstill_stops_the_whole_job(fault: Fault) -> None:
    run = run_of(fault)
    events, truth = run.trace.events, run.truth
    healthy = run_of().trace.events
    assert truth.verdict is Verdict.HANG
    assert np.isfinite(truth.iteration_ms[:3]).all()
    assert np.isnan(truth.iteration_ms[3:]).all()
    told = truth.faults[0]
    assert told.severity is Severity.P0
    assert told.first_iteration == 3
    assert told.start_s is not None
    assert truth.iteration_ms[:3].sum() / 1e3 < told.start_s < truth.iteration_ms[:3].sum() / 1e3 + 0.5
    assert CULPRIT in told.ranks
    for rank in range(12):
        # What was done before the standstill is what the healthy job did; nobody gets to the next iteration.
        mine, theirs = rows(events, rank), rows(healthy, rank)
        assert len(mine) < 0.9 * len(theirs)
        if rank not in told.ranks:
            assert len(pending(events, rank)) > 0
            done = len(mine) - len(pending(events, rank))
            np.testing.assert_array_equal(events.op[mine[:done]], healthy.op[theirs[:done]])


def test_a_stuck_host_has_nothing_pending_and_one_call_less_than_its_peer() -> None:
    events = run_of(EVERYWHERE[0]).trace.events
    assert len(pending(events, CULPRIT)) == 0
    missing = events.op[pending(events, 4)[0]]
    assert missing == Op.ALL_REDUCE
    assert run_of(EVERYWHERE[0]).truth.faults[0].seq == events.seq[pending(events, 4)[0]]
    last = rows(events, CULPRIT)[-1]
    assert events.seq[last] == events.seq[pending(events, 4)[0]] - 1


def test_a_stuck_kernel_lets_the_host_run_to_its_next_wait() -> None:
    events = run_of(EVERYWHERE[1]).trace.events
    mine, peers = pending(events, CULPRIT), pending(events, 4)
    np.testing.assert_array_equal(events.seq[mine], events.seq[peers])
    assert not any(started(events, row) for row in mine)
    assert started(events, peers[0])
    assert not started(events, peers[1])
    assert len(rows(events, 4)) == len(rows(events, CULPRIT))


def test_a_stall_inside_a_collective_looks_the_same_on_all_members() -> None:
    run = run_of(EVERYWHERE[2])
    events = run.trace.events
    for rank in (4, CULPRIT):
        assert started(events, pending(events, rank)[0])
    assert run.truth.faults[0].ranks == (4, CULPRIT)
    assert run.truth.faults[0].answers["ring"].ranks == (4, CULPRIT)


def test_a_missing_recv_leaves_the_sender_alone() -> None:
    run = run_of(EVERYWHERE[3])
    events = run.trace.events
    assert events.peer is not None
    send = pending(events, 1)[0]
    assert events.op[send] == Op.SEND
    assert events.peer[send] == CULPRIT
    assert len(pending(events, CULPRIT)) == 0
    # Its tensor peer got its own Recv and stands in the first all-reduce of the block.
    assert events.op[pending(events, 4)[0]] == Op.ALL_REDUCE
    assert events.op[pending(events, 4)[0] - 1] == Op.RECV
    told = run.truth.faults[0]
    assert (told.kind, told.op, told.peer, told.micro_batch, told.stage) == (
        Kind.MISSING_CALL,
        "RECV",
        1,
        1,
        1,
    )


def test_a_missing_send_leaves_the_receiver_alone() -> None:
    events = run_of(EVERYWHERE[4]).trace.events
    assert events.peer is not None
    recv = [row for row in pending(events, 9) if events.op[row] == Op.RECV]
    assert [int(events.peer[row]) for row in recv] == [CULPRIT]


def test_a_missing_recv_inside_a_group_still_shows_the_send_before_it() -> None:
    # In the steady phase Send (backward) and Recv (forward) are issued as one group, the Send first.
    fault = MissingRecv(rank=CULPRIT, iteration=3, micro_batch=3)
    events = run_of(fault).trace.events
    assert events.peer is not None
    send = pending(events, CULPRIT)
    assert [Op(int(events.op[row])) for row in send] == [Op.SEND]
    assert not started(events, send[0])


def test_a_skipped_collective_shifts_the_numbers_of_its_rank() -> None:
    events = run_of(EVERYWHERE[5]).trace.events
    peers, mine = pending(events, 4), pending(events, CULPRIT)
    assert len(mine) == len(peers) - 1
    assert events.seq[peers[0]] == events.seq[mine[0]]
    assert int(events.seq[rows(events, 4)].max()) == int(events.seq[rows(events, CULPRIT)].max()) + 1


def test_mismatches_differ_in_kind_or_size_at_one_number() -> None:
    order = run_of(EVERYWHERE[6]).trace.events
    mine, peer = pending(order, CULPRIT)[0], pending(order, 7)[0]
    assert order.comm is not None
    assert order.count is not None
    assert (order.comm[mine], order.seq[mine]) == (order.comm[peer], order.seq[peer])
    assert order.op[mine] != order.op[peer]
    size = run_of(EVERYWHERE[7]).trace.events
    mine, peer = pending(size, CULPRIT)[0], pending(size, 4)[0]
    assert size.count is not None
    assert size.seq[mine] == size.seq[peer]
    assert size.count[mine] * 2 == size.count[peer]


def test_a_size_mismatch_of_one_element_is_still_one() -> None:
    fault = SizeMismatch(rank=CULPRIT, iteration=3, phase=Phase.SYNC, call=2)
    events = run_of(fault).trace.events
    assert events.count is not None
    struck = [int(events.count[pending(events, rank)[0]]) for rank in range(12)]
    assert struck[CULPRIT] != struck[0]
    assert len(set(struck)) == 2


def test_a_deadlock_is_a_cycle_over_two_communicators() -> None:
    events = run_of(EVERYWHERE[8]).trace.events
    assert events.comm is not None
    mine = pending(events, CULPRIT)
    theirs = [pending(events, rank) for rank in range(12) if rank != CULPRIT]
    assert len(mine) == 1
    assert {int(events.comm[row[0]]) for row in theirs} == {int(events.comm[theirs[0][0]])}
    assert events.comm[mine[0]] != events.comm[theirs[0][0]]
    assert started(events, mine[0])


def test_the_dead_of_a_node_end_together() -> None:
    run = run_of(EVERYWHERE[10])
    events = run.trace.events
    told = run.truth.faults[0]
    assert told.ranks == (4, 5)
    assert told.nodes == (2,)
    assert told.start_s is not None
    death = run.scenario.start_time_ns + told.start_s * 1e9
    slack = 1e6  # clocks of nodes
    for rank in told.ranks:
        assert events.enqueue[rows(events, rank)].max() <= death + slack
        assert events.end is not None
        assert events.end[rows(events, rank)].max() <= death + slack


def test_a_dead_link_stops_one_pair_and_not_their_peers() -> None:
    events = run_of(EVERYWHERE[11]).trace.events
    assert events.peer is not None
    send, recv = pending(events, 1)[0], pending(events, CULPRIT)[0]
    assert (events.op[send], events.peer[send]) == (Op.SEND, CULPRIT)
    assert (events.op[recv], events.peer[recv]) == (Op.RECV, 1)
    assert started(events, send)
    assert started(events, recv)
    assert events.op[pending(events, 4)[0]] == Op.ALL_REDUCE


def test_late_deaths_end_logs_after_the_hang_and_before_their_peers() -> None:
    fault = StuckKernelBefore(rank=CULPRIT, iteration=3, micro_batch=1)
    plain = run_of(fault)
    run = run_of(fault, LateDeaths(count=2))
    dead = sorted({rank // 2 for rank in run.truth.late_deaths_s})
    assert len(dead) == 2
    assert 2 not in dead
    stop = plain.truth.faults[0].start_s
    assert stop is not None
    for rank, time in run.truth.late_deaths_s.items():
        assert time > stop
        mine = rows(run.trace.events, rank)
        assert len(mine) <= len(rows(plain.trace.events, rank))
        assert run.trace.events.enqueue[mine].max() <= run.scenario.start_time_ns + time * 1e9 + 1e6
    assert run.truth.culprits() == (CULPRIT,)
    # Who hangs first has not changed.
    np.testing.assert_array_equal(
        run.trace.events.seq[pending(run.trace.events, CULPRIT)],
        plain.trace.events.seq[pending(plain.trace.events, CULPRIT)],
    )


def test_several_faults_have_each_their_truth() -> None:
    slow = SlowGpu(rank=1, factor=2.5, first_iteration=1, last_iteration=2)
    run = run_of(slow, EVERYWHERE[1])
    assert [fault.kind for fault in run.truth.faults] == [Kind.SLOW_COMPUTE, Kind.HANG_DEVICE]
    assert run.truth.verdict is Verdict.HANG
    assert run.truth.iteration_ms[2] > 1.2 * run_of().truth.iteration_ms[2]


def test_a_fault_at_a_call_that_its_rank_never_makes_is_refused() -> None:
    with pytest.raises(ConfigError, match="missing_recv"):
        run_of(MissingRecv(rank=0, iteration=1, micro_batch=1))
    with pytest.raises(ConfigError, match="neighbour"):
        run_of(DeadLink(src=0, dst=11, iteration=1))
    with pytest.raises(ConfigError, match="late_deaths"):
        run_of(LateDeaths())


def test_the_flagship_is_the_story_that_is_told() -> None:
    scenario = flagship()
    assert (scenario.world_size, scenario.nodes) == (3480, 435)
    run = simulate(scenario)
    told, events = run.truth.faults[0], run.trace.events
    assert (told.ranks, told.op, told.stage, told.micro_batch) == ((1505,), "RECV", 2, 2)
    assert told.phase is Phase.FORWARD
    assert len(pending(events, 1505)) == 0
    assert len(events.ranks()) == 3480
    waiting = sum(len(pending(events, rank)) > 0 for rank in range(3480))
    assert waiting == 3479
    sender = told.peer
    assert sender == 1505 - 8 * 87
    assert events.peer is not None
    assert events.peer[pending(events, sender)[0]] == 1505


@pytest.mark.slow
def test_the_second_flagship_has_three_innocent_dead_nodes() -> None:
    run = simulate(flagship_late_deaths())
    assert run.truth.culprits() == (1505,)
    nodes = {rank // 8 for rank in run.truth.late_deaths_s}
    assert len(nodes) == 3
    assert 188 not in nodes
    assert len(run.truth.late_deaths_s) == 24
