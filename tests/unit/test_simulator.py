"""The physics of the simulator: what a healthy job looks like, and what slow parts cost."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from megatrace.model.events import UNSEEN, Events, Op
from megatrace.model.finding import Kind, Verdict
from megatrace.model.schedule import Phase
from megatrace.model.trace import Observable
from megatrace.simulator import (
    Capture,
    CheckpointStall,
    DataLoaderStall,
    Delay,
    DelayedMessage,
    GcPauses,
    Jitter,
    Scenario,
    SlowGpu,
    SlowHost,
    SlowLink,
    SlowNic,
    StageImbalance,
    iteration_times,
    observe,
    simulate,
    with_counterfactual,
)
from megatrace.simulator.faults import Fault

QUIET = {
    "compute_noise": 0.0,
    "host_noise": 0.0,
    "outlier_share": 0.0,
    "clock_offset_us": 0.0,
    "clock_drift_ppm": 0.0,
}
"""A job without noise on exact clocks, for which times can be worked out by hand."""
SMALL = {"tp": 2, "pp": 3, "dp": 2, "micro_batches": 4, "layers_per_stage": 2, "iterations": 5, "seed": 3}


def job(*faults: Fault, **changes: object) -> Scenario:
    return Scenario.model_validate({**SMALL, "faults": faults, **changes})


def rows(events: Events, rank: int, op: Op | None = None) -> np.ndarray:
    inside = events.rows_of(rank)
    chosen = np.arange(inside.start, inside.stop)
    return chosen if op is None else chosen[events.op[chosen] == op]


def test_a_pipeline_takes_the_textbook_time() -> None:
    # (micro-batches + stages − 1) · (forward + backward), communication and host made negligible.
    scenario = job(
        **QUIET, tp=1, pp=4, dp=1, micro_batches=8, layers_per_stage=4, host_call_ms=0.001, host_step_ms=0.0,
        loss_ms=0.0, optimizer_ms=0.0, node_bandwidth=1e6, node_latency_us=0.0,
    )  # fmt: skip
    forward, backward = 4 * scenario.layer_forward_ms, 4 * scenario.layer_backward_ms
    expected = (8 + 4 - 1) * (forward + backward)
    assert simulate(scenario).truth.iteration_ms[2] == pytest.approx(expected, rel=0.01)


def test_a_slow_gpu_costs_its_extra_work_where_there_are_no_bubbles() -> None:
    fault = SlowGpu(rank=1, factor=3.0, first_iteration=2, last_iteration=2)
    truth = simulate(job(fault, **QUIET, pp=1, dp=1)).truth
    own = truth.work_ms[0, 2]
    assert truth.work_ms[1, 2] == pytest.approx(3 * own, rel=1e-5)
    # Every kernel of one stage is on the critical path: the iteration grows by the other two thirds.
    grown = truth.iteration_ms[2] - truth.iteration_ms[1]
    assert grown == pytest.approx(2 * own, rel=0.03)
    assert truth.iteration_ms[3] == pytest.approx(truth.iteration_ms[1], rel=1e-9)


def test_a_slow_replica_slows_every_replica_and_nobody_elses_work() -> None:
    fault = SlowGpu(rank=1, factor=2.0, first_iteration=2)
    run = simulate(job(fault, **QUIET))
    others = np.delete(run.truth.work_ms, 1, axis=0)
    np.testing.assert_allclose(others[:, 3], others[:, 1], rtol=1e-6)
    events = run.trace.events
    # The last call of the iteration is made by all replicas at the same time, after the world all-gathers.
    gathers = [events.enqueue[rows(events, rank, Op.ALL_GATHER)[-1]] for rank in range(12)]
    assert max(gathers) - min(gathers) < 20e6
    assert run.truth.iteration_ms[3] > 1.2 * run.truth.iteration_ms[1]


def test_a_slow_gpu_shows_as_in_a_real_log() -> None:
    """Features read from the log of a real job of this shape, in which one GPU of stage 1 was slowed."""
    fault = SlowGpu(rank=2, factor=2.75, first_iteration=4, last_iteration=6)
    scenario = Scenario(
        tp=2, pp=4, micro_batches=8, layers_per_stage=12, iterations=8, seed=1, faults=(fault,)
    )
    run = simulate(scenario)
    trace = observe(run.trace, "text")
    ends = np.nancumsum(run.truth.iteration_ms) * 1e6 + scenario.start_time_ns
    normal, slow = (ends[1], ends[3]), (ends[3], ends[6])

    # Blocks from the first tensor-parallel call to the next P2P call grow in stage 1 only …
    assert _block_ms(trace.events, 2, slow) > 2.2 * _block_ms(trace.events, 2, normal)
    assert _block_ms(trace.events, 4, slow) == pytest.approx(_block_ms(trace.events, 4, normal), rel=0.05)
    # … while the calls inside a block follow each other as before: the host runs ahead.
    spans = [_block_ms(trace.events, 2, window, calls_only=True) for window in (normal, slow)]
    assert spans[1] == pytest.approx(spans[0], rel=0.1)
    assert spans[0] < 20.0
    # The rank carries one offset against its tensor-parallel peer through a block, none before.
    assert np.median(_lateness_ms(trace.events, 2, 3, slow)) > 1.5
    assert abs(np.median(_lateness_ms(trace.events, 2, 3, normal))) < 0.2
    assert np.median(np.abs(np.diff(_lateness_ms(trace.events, 2, 3, slow)))) < 0.2
    # Bubbles grow elsewhere and shrink before the slow stage.
    assert _wait_ms(trace.events, 0, slow) > 2 * _wait_ms(trace.events, 0, normal)
    assert _wait_ms(trace.events, 6, slow) > 2 * _wait_ms(trace.events, 6, normal)
    assert _wait_ms(trace.events, 2, slow) < _wait_ms(trace.events, 2, normal)


def _inside(events: Events, rank: int, window: tuple[float, float]) -> np.ndarray:
    chosen = rows(events, rank)
    times = events.enqueue[chosen]
    return np.asarray(chosen[(times > window[0]) & (times < window[1])])


def _block_ms(events: Events, rank: int, window: tuple[float, float], calls_only: bool = False) -> float:
    chosen = _inside(events, rank, window)
    assert events.count is not None
    activation = (events.op[chosen] == Op.ALL_REDUCE) & (events.count[chosen] > 1e6)
    p2p = np.isin(events.op[chosen], (Op.SEND, Op.RECV))
    lengths: list[float] = []
    first = last = None
    for row, call, edge in zip(chosen, activation, p2p, strict=True):
        if call:
            first, last = (row if first is None else first), row
        elif edge and first is not None and last is not None:
            until = last if calls_only else row
            lengths.append(float(events.enqueue[until] - events.enqueue[first]) / 1e6)
            first = None
    return float(np.mean(lengths))


def _lateness_ms(events: Events, rank: int, peer: int, window: tuple[float, float]) -> np.ndarray:
    """Of the activations' all-reduces, matched by operation number."""
    assert events.count is not None
    mine, theirs = (
        {
            int(events.seq[row]): int(events.enqueue[row])
            for row in _inside(events, who, window)
            if events.op[row] == Op.ALL_REDUCE and events.count[row] > 1e6
        }
        for who in (rank, peer)
    )
    return np.array([mine[seq] - theirs[seq] for seq in mine if seq in theirs]) / 1e6


def _wait_ms(events: Events, rank: int, window: tuple[float, float]) -> float:
    chosen = _inside(events, rank, window)
    gaps = np.diff(events.enqueue[chosen])
    return float(gaps[events.op[chosen][:-1] == Op.RECV].sum() / (window[1] - window[0]))


def test_a_starved_host_stretches_small_calls_of_all_its_ranks() -> None:
    fault = SlowHost(node=1, factor=6.0, first_iteration=2)
    run = simulate(job(fault, **QUIET, ranks_per_node=2))
    events = run.trace.events
    gaps = {}
    for rank in (2, 3, 4):
        chosen = rows(events, rank, Op.ALL_REDUCE)
        small = chosen[events.count[chosen] == 1] if events.count is not None else chosen
        gaps[rank] = float(np.median(np.diff(events.enqueue[small[-6:]])))
    assert run.truth.faults[0].ranks == (2, 3)
    assert run.truth.iteration_ms[3] > 1.3 * run.truth.iteration_ms[1]
    np.testing.assert_allclose(run.truth.work_ms[:, 3], run.truth.work_ms[:, 1], rtol=1e-6)


def test_a_slow_link_stretches_transfers_of_its_pair_only() -> None:
    fault = SlowLink(src=1, dst=5, factor=40.0, first_iteration=2)
    scenario = job(fault, **QUIET, ranks_per_node=4)
    events = simulate(scenario).trace.events
    assert events.peer is not None
    assert events.start is not None
    assert events.end is not None
    recv = events.op == Op.RECV
    for rank, peer, slow in ((5, 1, True), (4, 0, False), (7, 3, False)):
        chosen = np.flatnonzero((events.rank == rank) & recv & (events.peer == peer))
        sends = np.flatnonzero((events.rank == peer) & (events.op == Op.SEND) & (events.peer == rank))
        ready = np.maximum(events.start[chosen], events.start[sends])
        transfer = (events.end[chosen] - ready) / 1e6
        expected = 2 * scenario.hidden * scenario.sequence_length / scenario.network_bandwidth / 1e6
        assert transfer[-1] == pytest.approx(expected * (40 if slow else 1), rel=0.05)
        assert transfer[0] == pytest.approx(expected, rel=0.05)


def test_a_delay_lengthens_one_task_of_its_rank_once_an_iteration() -> None:
    fault = Delay(
        rank=5, delay_ms=70.0, micro_batch=2, phase=Phase.BACKWARD, first_iteration=2, last_iteration=3
    )
    with_it, without = (simulate(job(*faults)).truth for faults in ((fault,), ()))
    more = with_it.work_ms - without.work_ms
    expected = np.zeros_like(more)
    expected[5, 2:4] = 70.0
    np.testing.assert_allclose(more, expected, atol=1e-3)
    assert with_it.iteration_ms[2] > without.iteration_ms[2] + 10
    assert with_it.faults[0].answers["ring"].ranks == (5,)
    assert with_it.faults[0].answers["text"].ranks == (4, 5)


def test_a_delayed_message_is_late_once_an_iteration_on_its_path() -> None:
    fault = DelayedMessage(rank=5, delay_ms=70.0, micro_batch=2, first_iteration=2, last_iteration=3)
    taken = {}
    for name, faults in (("late", (fault,)), ("usual", ())):
        events = simulate(job(*faults, **QUIET)).trace.events
        assert events.peer is not None
        assert events.start is not None
        assert events.end is not None
        recv = np.flatnonzero((events.rank == 9) & (events.op == Op.RECV) & (events.peer == 5))
        send = np.flatnonzero((events.rank == 5) & (events.op == Op.SEND) & (events.peer == 9))
        taken[name] = (events.end[recv] - np.maximum(events.start[recv], events.start[send])) / 1e6
    more = (taken["late"] - taken["usual"]).reshape(5, 4)
    expected = np.zeros((5, 4))
    expected[2:4, 2] = 70.0
    np.testing.assert_allclose(more, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (DelayedMessage(rank=11, delay_ms=1.0), "forward of stage 2 has nobody to send to"),
        (DelayedMessage(rank=0, delay_ms=1.0, phase=Phase.BACKWARD), "backward of stage 0 has nobody"),
        (Delay(rank=0, delay_ms=1.0, phase=Phase.SYNC), "phase is sync: forward or backward"),
    ],
    ids=("last", "first", "phase"),
)
def test_a_delay_that_no_rank_can_have_is_refused(fault: Fault, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        job(fault)


@pytest.mark.parametrize(
    "fault",
    [
        Delay(rank=5, delay_ms=90.0),
        DelayedMessage(rank=5, delay_ms=90.0),
        SlowNic(rank=5, factor=40.0),
        DataLoaderStall(rank=1),
        StageImbalance(stage=1, factor=2.0),
        CheckpointStall(every=2),
        GcPauses(),
        Jitter(sigma=0.5),
        SlowGpu(rank=5, drift=0.4, factor=1.0),
        SlowGpu(rank=5, factor=2.0, duty=0.5),
    ],
    ids=lambda fault: fault.fault,
)
def test_faults_that_slow_a_job_are_positive_by_their_counterfactual(fault: Fault) -> None:
    run = with_counterfactual(simulate(job(fault, ranks_per_node=2, iterations=8)))
    told = run.truth.faults[0]
    assert run.truth.verdict is Verdict.SLOW
    assert told.positive
    assert told.slowdown is not None
    assert told.slowdown > 1 / 0.95
    assert told.affected
    assert run.truth.counterfactual_ms is not None
    np.testing.assert_array_equal(
        run.truth.counterfactual_ms, iteration_times(run.scenario.without_faults()) / 1e6
    )


def test_a_delay_that_bubbles_absorb_is_not_positive() -> None:
    fault = SlowGpu(rank=5, factor=1.02)
    told = with_counterfactual(simulate(job(fault))).truth.faults[0]
    assert told.positive is False
    assert told.slowdown == 1.0


def test_noise_is_the_same_with_and_without_a_fault() -> None:
    fault = SlowGpu(rank=5, factor=2.0, first_iteration=3)
    faulty, plain = simulate(job(fault)), simulate(job(fault).without_faults())
    np.testing.assert_array_equal(faulty.truth.iteration_ms[:3], plain.truth.iteration_ms[:3])
    others = np.arange(12) != 5
    np.testing.assert_array_equal(faulty.truth.work_ms[others], plain.truth.work_ms[others])
    np.testing.assert_allclose(faulty.truth.work_ms[5, 3:], 2 * plain.truth.work_ms[5, 3:], rtol=1e-6)


def test_removing_one_fault_leaves_the_draws_of_the_others() -> None:
    pauses, slow = GcPauses(), SlowGpu(rank=5, first_iteration=4)
    both, alone = simulate(job(slow, pauses)), simulate(job(slow, pauses).without_fault(0))
    np.testing.assert_array_equal(both.truth.iteration_ms[:4], alone.truth.iteration_ms[:4])


def test_the_seed_decides_everything() -> None:
    one, again, other = (simulate(job(seed=seed)).trace.events for seed in (3, 3, 4))
    for (name, column), (_, same) in zip(one.columns(), again.columns(), strict=True):
        np.testing.assert_array_equal(column, same, err_msg=name)
    assert (one.enqueue != other.enqueue).any()
    np.testing.assert_array_equal(one.op, other.op)


def test_a_communicator_of_one_rank_never_counts() -> None:
    events = simulate(job(dp=1)).trace.events
    gathers = rows(events, 0, Op.REDUCE_SCATTER)
    assert len(gathers) == 5
    assert (events.seq[gathers] == 0).all()


def test_a_coalesced_send_and_recv_share_their_number() -> None:
    run = simulate(job())
    events = run.trace.events
    assert events.flags is not None
    assert events.peer is not None
    pairs = [
        row
        for row in rows(events, 4, Op.SEND)
        if events.flags[row] and events.op[row + 1] == Op.RECV and events.seq[row] == events.seq[row + 1]
    ]
    # Stage 1 of 3 with 4 micro-batches: 3 steady forwards and 2 of their backwards exchange both ways.
    assert len(pairs) == 5 * 5
    assert {int(events.peer[row]) for row in pairs} == {0, 8}


def test_clocks_of_nodes_differ_and_node_0_is_exact() -> None:
    skewed = simulate(job(clock_offset_us=5000.0, clock_drift_ppm=0.0, ranks_per_node=4)).trace.events
    exact = simulate(job(clock_offset_us=0.0, clock_drift_ppm=0.0, ranks_per_node=4)).trace.events
    shift = skewed.enqueue - exact.enqueue
    for node in range(3):
        inside = skewed.rank // 4 == node
        assert len(np.unique(shift[inside] // 10)) <= 2  # one constant, rounding apart
    assert (shift[skewed.rank < 4] == 0).all()
    assert (shift[skewed.rank >= 4] != 0).all()


def test_observing_as_text_hides_what_a_text_log_lacks() -> None:
    trace = simulate(job()).trace
    text = observe(trace, "text")
    names = {name for name, _ in text.events.columns()}
    assert names == {"rank", "op", "seq", "enqueue", "count", "stream"}
    assert text.communicators == ()
    assert not text.coverage.has(Observable.END)
    hashed = observe(trace, "text-hash")
    assert hashed.communicators[0].members is None
    assert hashed.communicators[0].hash == trace.communicators[0].hash
    assert (observe(trace, "bare").events.seq == -1).all()
    assert observe(trace, "ring").coverage.has(Observable.START, Observable.END, Observable.PEER)


def test_a_ring_keeps_the_last_calls_and_says_what_it_lost() -> None:
    whole = simulate(job()).trace.events
    run = simulate(job(capture=Capture(last_records=100, missing_ranks=(7,), torn_tails=(2,))))
    events, coverage = run.trace.events, run.trace.coverage
    kept = whole.enqueue[whole.rows_of(0)]
    np.testing.assert_array_equal(events.enqueue[events.rows_of(0)], kept[-100:])
    gap = next(gap for gap in coverage.gaps if gap.rank == 0)
    assert gap.records_lost == len(kept) - 100
    assert gap.end == kept[-100]
    assert coverage.ranks_missing == (7,)
    assert 7 not in events.ranks()
    assert coverage.torn_tails == (2,)


def test_a_snapshot_of_a_moving_job_ends_in_the_middle_of_calls() -> None:
    scenario = job(capture=Capture(cut_at_s=1.5), clock_offset_us=0.0, clock_drift_ppm=0.0)
    run = simulate(scenario)
    cut = scenario.start_time_ns + 1_500_000_000
    assert run.trace.snapshot_at == cut
    assert run.truth.verdict is Verdict.HEALTHY
    assert run.trace.events.enqueue.max() <= cut
    assert run.trace.events.end is not None
    assert (run.trace.events.end == UNSEEN).any()
    assert run.trace.events.end.max() <= cut


def test_evaluation_iterations_have_no_backward_and_checkpoints_pause() -> None:
    scenario = job(evaluate_every=3, checkpoint_every=4, checkpoint_ms=900.0, iterations=6)
    run = simulate(scenario)
    reductions = rows(run.trace.events, 0, Op.REDUCE_SCATTER)
    assert len(reductions) == 4  # of six iterations, two evaluate
    assert run.truth.iteration_ms[3] > 900 + run.truth.iteration_ms[1] * 0.9


@pytest.mark.parametrize("pattern", ["ddp", "fsdp", "zero3"])
def test_sharded_patterns_gather_and_reduce_as_they_should(pattern: str) -> None:
    fault = SlowGpu(rank=2, factor=2.0, first_iteration=3)
    scenario = Scenario.model_validate(
        {
            "pattern": pattern,
            "dp": 4,
            "micro_batches": 2,
            "layers_per_stage": 4,
            "iterations": 5,
            "hidden": 1024,
            "faults": [fault],
        }
    )
    run = simulate(scenario)
    events = run.trace.events
    gathers = len(rows(events, 0, Op.ALL_GATHER)) - 5  # one an iteration is logging
    per_iteration = {"ddp": 0, "fsdp": 2 * 2 * 4, "zero3": 2 * 2 * 8}[pattern]
    assert gathers == 5 * per_iteration
    reductions = len(rows(events, 0, Op.REDUCE_SCATTER))
    assert reductions == 5 * {"ddp": 0, "fsdp": 2 * 4, "zero3": 2 * 8}[pattern]
    assert run.truth.iteration_ms[4] > 1.3 * run.truth.iteration_ms[1]
    assert run.truth.faults[0].answers["text"].undecidable
    assert run.truth.faults[0].answers["ring"].kinds == (Kind.SLOW_COMPUTE,)


def test_overlapped_gradients_run_beside_the_backward() -> None:
    plain, overlapped = (
        simulate(job(**QUIET, overlap_grad_reduce=overlap, layers_per_stage=6, network_bandwidth=2.0))
        for overlap in (False, True)
    )
    events = overlapped.trace.events
    buckets = rows(events, 0, Op.REDUCE_SCATTER)
    assert len(buckets) == 5 * 6
    assert len(rows(plain.trace.events, 0, Op.REDUCE_SCATTER)) == 5
    assert overlapped.truth.iteration_ms[2] < plain.truth.iteration_ms[2]


def test_sixteen_thousand_ranks_need_no_loop_over_ranks() -> None:
    scenario = Scenario(tp=8, pp=8, dp=256, micro_batches=2, layers_per_stage=1, iterations=1, startup=False)
    run = simulate(scenario)
    assert scenario.world_size == 16_384
    assert len(run.trace.events.ranks()) == 16_384
    assert np.isfinite(run.truth.iteration_ms).all()
