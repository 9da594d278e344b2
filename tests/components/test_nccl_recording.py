"""NCCL's calls through its profiler plug-in, in real processes around a libnccl without GPUs."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from megatrace.collect.spool import Spool
from megatrace.model.events import UNSEEN
from megatrace.model.finding import Verdict
from megatrace.model.ringformat import parse_ring
from megatrace.model.trace import Observable, Trace
from megatrace.readers.opening import open_trace
from tests.components.native_builds import LIMIT_S, TESTS, compiled
from tests.components.nccl_jobs import (
    COLLECTIVES,
    MESSAGES,
    RANKS,
    Built,
    Job,
    assert_complete,
    judged,
    recorded,
)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_every_call_is_recorded_by_every_version_of_the_interface(
    built: Built, tmp_path: Path, version: int
) -> None:
    trace = recorded(built, tmp_path, "iterations=3", STUB_PROFILER=str(version))
    assert_sight(trace, version)
    if (
        version < 4
    ):  # NCCL does not say how many members there are, so the rings can't prove that all are there
        assert {group.members for group in trace.communicators} == {None}
        assert len(trace.events) == RANKS * (1 + 3 * (COLLECTIVES + MESSAGES))
    else:
        assert_complete(trace, 3)


def assert_sight(trace: Trace, version: int) -> None:
    assert trace.coverage.has(Observable.SEQ, Observable.PEER, Observable.GROUP)
    assert trace.coverage.has(Observable.STREAM) == (version >= 5)
    assert not trace.coverage.has(Observable.END)
    if version >= 5:
        assert trace.events.stream is not None
        assert set(trace.events.stream.tolist()) == {0x1000}


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_a_rank_that_stalls_is_named(built: Built, tmp_path: Path, kernels: str) -> None:
    plugin = {"NCCL_PROFILER_PLUGIN": str(built.plugin), "MEGATRACE_NCCL_KERNELS": kernels}
    job = Job(built, tmp_path, plugin)
    job.start("iterations=12", "stall=5:8")
    now = job.stand()
    diagnosis = judged(job.rings, now)
    assert diagnosis.verdict is Verdict.HANG, diagnosis.headline
    finding = diagnosis.findings[0]
    assert finding.culprits.ranks == (5,)
    assert "never posted Recv from rank 1" in finding.summary
    assert (finding.where.stage, finding.where.iteration, finding.where.micro_batch) == (1, 8, 1)
    said = " ".join(item.text for item in finding.evidence)
    assert ("nothing is pending there: its host stopped calling" in said) == (kernels == "1")


def test_a_rank_that_was_killed_is_named_by_what_it_left(built: Built, tmp_path: Path) -> None:
    job = Job(built, tmp_path, {"NCCL_PROFILER_PLUGIN": str(built.plugin)})
    job.start("iterations=12", "kill=2:8")
    now = job.stand()
    diagnosis = judged(job.rings, now)
    assert diagnosis.verdict is Verdict.HANG, diagnosis.headline
    assert diagnosis.findings[0].culprits.ranks == (2,)
    assert "never posted ALL_REDUCE" in diagnosis.findings[0].summary


def test_kernels_are_watched_on_demand(built: Built, tmp_path: Path) -> None:
    trace = recorded(built, tmp_path, "iterations=3", MEGATRACE_NCCL_KERNELS="1")
    assert_complete(trace, 3)
    events = trace.events
    assert trace.coverage.has(Observable.START, Observable.END, Observable.COMPLETION)
    assert events.start is not None
    assert events.end is not None
    assert (events.start != UNSEEN).all()
    assert (events.end >= events.start).all()
    assert (events.start >= events.enqueue).all()


def test_the_control_word_switches_kernels_on_in_a_running_job(built: Built, tmp_path: Path) -> None:
    job = Job(built, tmp_path, {"NCCL_PROFILER_PLUGIN": str(built.plugin)})
    job.start("iterations=60")
    rings: list[Path] = []
    while len(rings) < RANKS:
        rings = [path for path in job.rings.glob("*.ring") if path.read_bytes()[:8] == b"MTRING\0\1"]
    for path in rings:
        with path.open("r+b") as file:
            file.seek(4080)
            file.write((1 << 6).to_bytes(4, "little"))
    job.finish()
    for path in rings:
        records = parse_ring(path.read_bytes(), path.name).records
        calls = records[records["kind"] == 1]
        watched = calls["channel"] == 1
        assert watched[-1]
        assert (np.diff(watched.astype(int)) >= 0).all()
        assert int((records["kind"] == 3).sum()) > 0
    assert_complete(open_trace([job.rings]), 60)


def test_recordings_that_were_spooled_read_the_same(built: Built, tmp_path: Path) -> None:
    trace = recorded(built, tmp_path, "iterations=3")
    spool = Spool(tmp_path / "spool", 1 << 30)
    assert spool.round(sorted((tmp_path / "rings").glob("*.ring"))) > 0
    assert spool.round(sorted((tmp_path / "rings").glob("*.ring"))) == 0
    again = open_trace([tmp_path / "spool"])
    for name, column in trace.events.columns():
        assert (getattr(again.events, name) == column).all(), name


def test_an_archive_takes_an_eighth_of_the_records_and_gives_the_same_verdict(
    built: Built, tmp_path: Path
) -> None:
    job = Job(built, tmp_path, {"NCCL_PROFILER_PLUGIN": str(built.plugin)})
    job.start("iterations=200", "stall=5:70")
    job.stand()
    spool = Spool(tmp_path / "spool", 1 << 30)
    records = spool.round(sorted((tmp_path / "rings").glob("*.ring")))
    assert spool.pack_parts() == RANKS
    files = list((tmp_path / "spool").iterdir())
    assert {path.suffix for path in files} == {".parquet"}
    size = sum(path.stat().st_size for path in files)
    assert size <= records * 64 / 8, f"{size / records:.1f} bytes a record"
    before, after = judged(tmp_path / "rings"), judged(tmp_path / "spool")
    assert before.findings[0].culprits.ranks == (5,)
    assert after.headline == before.headline
    assert after.findings == before.findings


def test_where_there_is_no_place_for_rings_the_job_runs(built: Built, tmp_path: Path) -> None:
    more = {"NCCL_PROFILER_PLUGIN": str(built.plugin), "MEGATRACE_RING_DIR": "/proc/nowhere"}
    job = Job(built, tmp_path, more)
    job.start("iterations=2")
    said = job.finish()
    assert said.count("\n") == RANKS
    assert said.count("megatrace: calls of NCCL are not recorded: cannot open /proc/nowhere") == RANKS


def test_a_clock_that_is_set_while_a_job_runs_bends_no_rank_s_times(built: Built, tmp_path: Path) -> None:
    """All ranks are of one machine, whose clock goes an hour forward."""
    clock = compiled(tmp_path / "clock.so", "-shared", TESTS / "stepped_clock.cc")
    step = tmp_path / "step"
    more = {
        "NCCL_PROFILER_PLUGIN": str(built.plugin),
        "LD_PRELOAD": str(clock),
        "CLOCK_STEP_NS": "3600000000000",
        "CLOCK_STEP_FILE": str(step),
    }
    job = Job(built, tmp_path, more)
    job.start("iterations=150")
    while len(list(job.rings.glob("*.ring"))) < RANKS:
        time.sleep(0.01)
    step.touch()
    job.finish()
    trace = open_trace([job.rings])
    assert_complete(trace, 150)
    (note,) = trace.coverage.notes
    assert "was set by +3,600.000 s while the job ran" in note
    times = trace.events.enqueue
    assert int(times.max() - times.min()) < LIMIT_S * 1_000_000_000
    for rank in range(RANKS):
        assert (np.diff(times[trace.events.rank == rank]) >= 0).all()
