"""Clock alignment against the clocks that the simulator gave the nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from megatrace.analysis import align
from megatrace.analysis import phases as phase_tables
from megatrace.analysis.align_fit import fit
from megatrace.analysis.diagnosing import diagnose
from megatrace.analysis.infer_layout import Resolved, resolve
from megatrace.model.events import UNSEEN
from megatrace.model.finding import Kind, Verdict
from megatrace.model.trace import Trace
from megatrace.simulator import DataLoaderStall, Scenario, SlowGpu, SlowHost, observe, simulate
from megatrace.simulator.cluster import Cluster
from megatrace.simulator.effects import clocks

F8 = NDArray[np.float64]

JOB = {
    "tp": 2,
    "pp": 2,
    "dp": 4,
    "ranks_per_node": 4,
    "micro_batches": 4,
    "layers_per_stage": 1,
    "iterations": 8,
}


def job(**changes: object) -> Scenario:
    return Scenario.model_validate({**JOB, **changes})


def resolved_as(scenario: Scenario, source: str) -> Resolved:
    return resolve(observe(simulate(scenario).trace, source))


def with_phases(resolved: Resolved) -> phase_tables.PhaseTable | None:
    slices = phase_tables.cut(resolved)
    found = phase_tables.infer_schedule(resolved, slices) if slices is not None else None
    if slices is None or found is None:
        return None
    return phase_tables.tabulate_phases(resolved, slices, *found)


def wrong_by(scenario: Scenario, trace: Trace, found: align.Alignment) -> F8:
    """float64 [clocks] ns: largest error at the begin or the end of the run, against the reference clock."""
    offset, drift = clocks(Cluster(scenario))
    times = np.asarray([trace.events.enqueue.min(), trace.events.enqueue.max()])
    true = offset[:, None] + drift[:, None] * (times - scenario.start_time_ns)
    said = found.offset_ns[:, None] + found.drift_ppm[:, None] * 1e-6 * (times - found.t0)
    error = said - true
    return np.asarray(np.abs(error - error[found.reference]).max(axis=1))


@pytest.mark.parametrize("offset_us", [100.0, 5_000.0, 50_000.0])
def test_offsets_and_drifts_of_recordings_are_found_within_the_bound(offset_us: float) -> None:
    for seed in range(12):
        scenario = job(seed=seed, clock_offset_us=offset_us, clock_drift_ppm=10.0, iterations=12)
        resolved = resolved_as(scenario, "ring")
        found = align.estimate(resolved)
        assert found.unaligned_nodes == ()
        assert np.all(wrong_by(scenario, resolved.trace, found) <= found.error_ns)
        assert found.error_ns.max() < 200e3


@pytest.mark.parametrize("source", ["text", "text-hash"])
def test_host_times_alone_give_offsets_within_the_bound(source: str) -> None:
    late = 0
    for seed in range(12):
        faults = ((), (SlowGpu(rank=1, factor=2.0),), (SlowHost(node=1, factor=3.0),))[seed % 3]
        scenario = job(seed=seed, clock_offset_us=5_000.0, clock_drift_ppm=5.0, faults=faults)
        resolved = resolved_as(scenario, source)
        found = align.estimate(resolved, with_phases(resolved))
        assert found.unaligned_nodes == ()
        assert np.all(wrong_by(scenario, resolved.trace, found) <= found.error_ns)
        late += int(np.median(found.error_ns[1:]) > 500e3)
    assert late <= 1  # half a millisecond is little beside the 5 ms that clocks are apart


def test_a_straggler_bends_no_clock() -> None:
    plain, slow = (
        job(seed=4, clock_offset_us=2_000.0, faults=faults)
        for faults in ((), (SlowGpu(rank=5, factor=4.0), DataLoaderStall(rank=0, stall_ms=200.0)))
    )
    for scenario in (plain, slow):
        resolved = resolved_as(scenario, "ring")
        found = align.estimate(resolved)
        assert wrong_by(scenario, resolved.trace, found).max() < 5e3


def test_aligned_collectives_begin_nowhere_after_they_end() -> None:
    scenario = job(seed=2, clock_offset_us=20_000.0)
    resolved = resolved_as(scenario, "ring")
    events = resolved.trace.events
    assert events.comm is not None
    chosen = events.comm == next(c.id for c in resolved.trace.communicators if c.name == "world")

    def violations(trace: Trace) -> int:
        start, end = trace.events.start, trace.events.end
        assert start is not None
        assert end is not None
        seq = events.seq[chosen]
        last = np.full(seq.max() + 1, np.iinfo(np.int64).min)
        first = np.full(seq.max() + 1, np.iinfo(np.int64).max)
        np.maximum.at(last, seq, start[chosen])
        np.minimum.at(first, seq, end[chosen])
        return int(np.sum(last > first))

    assert violations(resolved.trace) > 50
    moved = align.apply(resolved.trace, align.estimate(resolved))
    assert violations(moved) == 0
    assert moved.events.enqueue[events.rows_of(0)].tolist() == events.enqueue[events.rows_of(0)].tolist()


def test_what_was_not_seen_stays_unseen() -> None:
    resolved = resolved_as(job(clock_offset_us=5_000.0), "ring")
    events = resolved.trace.events
    assert events.end is not None
    end = events.end.copy()
    end[-3:] = UNSEEN
    trace = replace(resolved.trace, events=events.with_columns(end=end))
    moved = align.apply(trace, align.estimate(replace(resolved, trace=trace)))
    assert moved.events.end is not None
    assert moved.events.end[-3:].tolist() == [UNSEEN] * 3
    assert moved.events.end[-4] != end[-4]


def test_a_node_without_common_calls_is_listed_and_left_alone() -> None:
    resolved = resolved_as(job(clock_offset_us=5_000.0), "ring")
    events = resolved.trace.events
    assert events.comm is not None
    assert events.peer is not None
    members = {c.id: c.members or () for c in resolved.trace.communicators}
    shared = np.asarray([any(m // 4 == 3 for m in members[int(c)]) for c in events.comm])
    crossing = shared & np.asarray([any(m // 4 != 3 for m in members[int(c)]) for c in events.comm])
    assert events.end is not None
    cut = events.with_columns(end=np.where(crossing, UNSEEN, events.end))  # never completed anywhere
    lonely = replace(resolved, trace=replace(resolved.trace, events=cut))
    found = align.estimate(lonely)
    assert found.unaligned_nodes == ("node3",)
    assert found.offset_ns[3] == 0.0
    assert np.isinf(found.error_between(np.asarray([0]), np.asarray([12]))[0])
    assert np.isfinite(found.error_between(np.asarray([0]), np.asarray([4]))[0])


def test_nodes_that_share_only_messages_are_bounded_by_both_directions() -> None:
    scenario = job(tp=1, pp=2, dp=1, ranks_per_node=1, clock_offset_us=3_000.0, iterations=6, seed=3)
    resolved = resolved_as(scenario, "ring")
    events = resolved.trace.events
    assert events.end is not None
    collective = np.asarray(events.peer) < 0
    trace = replace(resolved.trace, events=events.with_columns(end=np.where(collective, UNSEEN, events.end)))
    found = align.estimate(replace(resolved, trace=trace))
    assert found.unaligned_nodes == ()
    wrong = wrong_by(scenario, resolved.trace, found)
    assert wrong[1] <= found.error_ns[1] < 3e6
    assert found.error_ns[1] > 500e3  # a transfer of 50 MB each way lies between the bounds


def test_ranks_on_one_host_have_one_clock() -> None:
    scenario = job(ranks_per_node=16, iterations=6)
    trace = observe(simulate(scenario).trace, "text")
    trace = trace.with_job(replace(trace.job, ranks_per_node=None))  # nobody says where ranks run
    resolved = resolve(trace)
    found = align.estimate(resolved, with_phases(resolved))
    assert len(found.nodes) == 1
    assert align.apply(trace, found) is trace
    assert found.clock_info(7).error_us is None


def test_unknown_hosts_get_clocks_when_nothing_else_explains_the_calls() -> None:
    scenario = job(clock_offset_us=20_000.0, iterations=6, seed=1)
    trace = observe(simulate(scenario).trace, "ring")
    trace = replace(trace, places=(), job=replace(trace.job, ranks_per_node=None))
    found = align.estimate(resolve(trace))
    assert found.nodes[5] == "rank 5"
    offset, _ = clocks(Cluster(scenario))
    np.testing.assert_allclose(found.offset_ns, np.repeat(offset, 4), atol=200e3)


@pytest.mark.parametrize("source", ["ring", "text"])
def test_clocks_that_are_far_off_accuse_nobody(source: str) -> None:
    for seed in range(2):
        exact, off = (
            diagnose(observe(simulate(job(seed=seed, pp=4, layers_per_stage=4, **clock)).trace, source))
            for clock in (
                {"clock_offset_us": 0.0, "clock_drift_ppm": 0.0},
                {"clock_offset_us": 50_000.0, "clock_drift_ppm": 5.0},
            )
        )
        assert off.verdict is exact.verdict is Verdict.HEALTHY, (seed, exact.headline, off.headline)
        assert off.clock.reference == "node0"
        assert off.clock.error_us is not None
        assert off.clock.error_us < 500


def test_a_late_loader_is_found_whatever_the_clocks_say() -> None:
    stall = DataLoaderStall(rank=5, stall_ms=150.0, first_iteration=2)
    scenario = job(seed=3, clock_offset_us=50_000.0, faults=(stall,))
    diagnosis = diagnose(observe(simulate(scenario).trace, "ring"))
    assert [f.kind for f in diagnosis.findings] == [Kind.SLOW_STORAGE]
    assert diagnosis.findings[0].culprits.ranks == (5,)


def test_a_line_is_fitted_through_disturbed_samples() -> None:
    random = np.random.default_rng(5)
    x = np.linspace(0, 6e10, 200)
    y = 3e6 + 7e-6 * x + random.normal(0, 1e3, 200)
    y[random.choice(200, 40, replace=False)] += random.exponential(5e7, 40)  # late records
    lines = fit(x, y[:, None])
    assert lines.slope[0] == pytest.approx(7e-6, rel=0.05)
    assert lines.offset[0] == pytest.approx(3e6, abs=5e3)
