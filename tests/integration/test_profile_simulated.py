"""A simulated job of 64 ranks, whose overlap and bubbles are known: what a profile of it says is that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from megatrace.analysis.profile_recording import profile_recording, readable
from megatrace.analysis.profiling import profile
from megatrace.commands.main import main
from megatrace.errors import EXIT_OK
from megatrace.model.events import Op
from megatrace.model.profile_result import ProfileResult, TimeKind
from megatrace.readers.kineto import open_profiles
from megatrace.simulator import Scenario, Simulation, simulate
from megatrace.simulator.emit_kineto import write_profiles

WITHIN = 0.02
MS = 1e6
STEP = 10e3
JOB = {
    "tp": 2,
    "pp": 4,
    "dp": 8,
    "micro_batches": 4,
    "layers_per_stage": 2,
    "iterations": 2,
    "startup": False,
    "log_every": None,
    "overlap_grad_reduce": True,
    "loss_ms": 0,
    "optimizer_ms": 5,
    "host_call_ms": 0.1,
    "compute_noise": 0.02,
    "clock_offset_us": 0,
    "clock_drift_ppm": 0,
    "seed": 3,
}


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return simulate(Scenario.model_validate(JOB), kernels=True)


@pytest.fixture(scope="module")
def profiled(simulation: Simulation, tmp_path_factory: pytest.TempPathFactory) -> ProfileResult:
    folder = tmp_path_factory.mktemp("profiles")
    write_profiles(simulation, folder)
    profiles, notes = open_profiles([folder])
    assert notes == ()
    assert len(profiles) == 64
    return profile(profiles, notes)


def pixels(start: NDArray[np.float64], end: NDArray[np.float64], until: float) -> NDArray[np.bool_]:
    """Whether anything ran, in steps of 10 µs: slow, simple, and nothing like what is tested."""
    line = np.zeros(int(until / STEP) + 2, np.bool_)
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        line[round(a / STEP) : round(b / STEP)] = True
    return line


def test_computing_is_what_the_simulator_asked_for(simulation: Simulation, profiled: ProfileResult) -> None:
    asked = simulation.truth.work_ms.sum(axis=1)
    found = np.array([time.compute for time in profiled.ranks]) / MS
    assert found == pytest.approx(asked, rel=WITHIN)
    spans = np.array([time.span for time in profiled.ranks]) / MS
    assert spans == pytest.approx(np.full(64, simulation.truth.iteration_ms.sum()), rel=WITHIN)


def test_overlap_and_exposure_are_those_of_the_timeline(
    simulation: Simulation, profiled: ProfileResult
) -> None:
    events, base = simulation.trace.events, simulation.scenario.start_time_ns
    assert events.start is not None
    assert events.end is not None
    assert simulation.kernels is not None
    until = simulation.truth.iteration_ms.sum() * MS * 1.01
    for rank in range(0, 64, 9):
        rows = events.rows_of(rank)
        start = (events.start[rows] - base).astype(np.float64)
        end = (events.end[rows] - base).astype(np.float64)
        exchange = np.isin(events.op[rows], (Op.SEND, Op.RECV))
        talks, exchanges = pixels(start, end, until), pixels(start[exchange], end[exchange], until)
        works = pixels(simulation.kernels[rank][:, 1], simulation.kernels[rank][:, 2], until)
        time = profiled.ranks[rank]
        assert time.overlap / STEP == pytest.approx((talks & works).sum(), rel=WITHIN)
        assert time.exposed / STEP == pytest.approx((talks & ~works).sum(), rel=WITHIN)
        assert time.bubble is not None
        assert time.bubble / STEP == pytest.approx((exchanges & ~works).sum(), rel=WITHIN)
        assert time.overlap > 0.05 * time.communication


def test_bubbles_are_those_of_the_schedule() -> None:
    """1F1B: of m + p − 1 turns every stage works in m. The first stage ends last, so that all of its p − 1
    turns of waiting are in exchanges; a later one waits for it at the gradient sync, a backward more for
    each."""
    plain = {**JOB, "tp": 1, "dp": 16, "overlap_grad_reduce": False, "compute_noise": 0, "host_noise": 0}
    plain |= {"outlier_share": 0, "optimizer_ms": 0, "host_call_ms": 0, "host_step_ms": 0}
    plain |= {"hidden": 64, "vocabulary": 64, "network_latency_us": 0, "node_latency_us": 0}
    run = simulate(Scenario.model_validate(plain))
    times = profile_recording(run.trace).ranks
    forward, backward = 2 * run.scenario.layer_forward_ms, 2 * run.scenario.layer_backward_ms
    bubbles = [time.bubble / MS for time in times if time.bubble is not None]
    iterations, turns = 2, 3
    assert bubbles[:16] == pytest.approx([iterations * turns * (forward + backward)] * 16, rel=WITHIN)
    assert bubbles[0] - bubbles[-1] == pytest.approx(iterations * turns * backward, rel=0.1)


def test_recordings_of_communication_alone_say_the_same() -> None:
    job = {**JOB, "tp": 1, "dp": 16, "overlap_grad_reduce": False, "host_call_ms": 0.01, "host_step_ms": 0.05}
    # A recording begins with a call: what was computed before it is not seen, and counts the less the longer
    # it is.
    job |= {"micro_batches": 8, "iterations": 5}
    run = simulate(Scenario.model_validate(job))
    assert readable(run.trace)
    result = profile_recording(run.trace)
    found = np.array([time.compute for time in result.ranks]) / MS
    assert found == pytest.approx(run.truth.work_ms.sum(axis=1), rel=WITHIN)
    for time in result.ranks:
        assert time.compute + time.exposed + time.idle == time.span
    assert any("Only communication was recorded" in note for note in result.notes)


def test_bandwidth_and_paths_are_there(simulation: Simulation, profiled: ProfileResult) -> None:
    tensor = [one for one in profiled.collectives if one.op is Op.ALL_REDUCE and one.group_size == 2]
    bandwidth = simulation.scenario.node_bandwidth * 1e9
    best = max(one.bus for one in tensor if one.bus is not None)
    assert 0.5 * bandwidth < best <= bandwidth * 1.01
    path = profiled.paths[0]
    assert sum(time for _, time in path.by_kind) == path.length
    assert {TimeKind.COMPUTE, TimeKind.COMMUNICATION} <= {kind for kind, _ in path.by_kind[:3]}
    job = profiled.job_path
    assert job is not None
    assert job.length / MS == pytest.approx(simulation.truth.iteration_ms.sum(), rel=WITHIN)
    assert sum(time for _, time in job.by_kind) == job.length
    # Across ranks the path goes on where the last comer computes: less of it is communication.
    assert dict(job.by_kind)[TimeKind.COMMUNICATION] < dict(path.by_kind)[TimeKind.COMMUNICATION]
    assert len({piece.rank for piece in job.pieces}) > 3
    assert [step.name for step in profiled.steps[:2]] == ["ProfilerStep#0", "ProfilerStep#1"]


def test_the_command_writes_and_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "job.yaml"
    scenario.write_text("name: small\ntp: 2\npp: 2\niterations: 2\nstartup: false\n")
    out = tmp_path / "profiles"
    assert main(["simulate", str(scenario), "--out", str(out), "--dialect", "kineto"]) == EXIT_OK
    assert f"Next: megatrace profile {out}" in capsys.readouterr().out
    assert main(["profile", str(out)]) == EXIT_OK
    assert capsys.readouterr().out.startswith("PROFILE  ranks 0–3: ")
