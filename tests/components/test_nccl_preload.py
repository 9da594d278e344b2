"""NCCL's calls through the preloaded library, alone and beside the plug-in; children of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.model.finding import Verdict
from megatrace.model.ringformat import parse_ring
from megatrace.model.trace import Observable
from megatrace.readers.opening import open_trace
from tests.components.nccl_jobs import RANKS, Built, Job, assert_complete, judged, recorded


@pytest.mark.parametrize("program", ["job", "loader"])
def test_the_preloaded_library_sees_the_same(built: Built, tmp_path: Path, program: str) -> None:
    """Linked with NCCL, and NCCL come in with a library of local scope."""
    job = Job(built, tmp_path, {"LD_PRELOAD": str(built.preload)}, program=program)
    job.start("iterations=3", "split=1")
    assert job.finish() == ""
    trace = open_trace([job.rings])
    assert_complete(trace, 3)
    assert trace.coverage.has(Observable.STREAM, Observable.PEER)
    assert trace.coverage.notes == ()


@pytest.mark.parametrize("program", ["job", "loader"])
def test_a_rank_that_stalls_is_named_by_the_preloaded_library(
    built: Built, tmp_path: Path, program: str
) -> None:
    job = Job(built, tmp_path, {"LD_PRELOAD": str(built.preload)}, program=program)
    job.start("iterations=12", "stall=5:8")
    now = job.stand()
    diagnosis = judged(job.rings, now)
    assert diagnosis.verdict is Verdict.HANG, diagnosis.headline
    assert diagnosis.findings[0].culprits.ranks == (5,)


@pytest.mark.parametrize(
    ("version", "taken"), [("4", "the preloaded library"), ("6", "the profiler plug-in")]
)
def test_what_both_saw_counts_once(built: Built, tmp_path: Path, version: str, taken: str) -> None:
    """Of the plug-in where NCCL tells it the streams, else of the preloaded library."""
    trace = recorded(built, tmp_path, "iterations=3", STUB_PROFILER=version, LD_PRELOAD=str(built.preload))
    assert len(list((tmp_path / "rings").glob("*.ring"))) == 2 * RANKS
    assert_complete(trace, 3)
    assert trace.coverage.has(Observable.STREAM)
    (note,) = trace.coverage.notes
    assert note.endswith(f"once more; those of {taken} are taken.")


@pytest.mark.parametrize("way", ["plugin", "preload"])
def test_a_child_of_a_rank_records_in_a_ring_of_its_own(built: Built, tmp_path: Path, way: str) -> None:
    variable, library = (
        ("NCCL_PROFILER_PLUGIN", built.plugin) if way == "plugin" else ("LD_PRELOAD", built.preload)
    )
    job = Job(built, tmp_path, {variable: str(library)})
    job.start("iterations=2", "fork=1")
    assert job.finish() == ""
    paths = list(job.rings.glob("*.ring"))
    assert len(paths) == 2 * RANKS
    kept = [parse_ring(path.read_bytes(), path.name) for path in paths]
    assert sorted(len(ring.kept) for ring in kept) == [1] * RANKS + [4] * RANKS
    assert sorted(len(ring.records) > 0 for ring in kept) == [False] * RANKS + [True] * RANKS
    assert_complete(open_trace([job.rings]), 2)
