"""The network where RDMA is out of reach: requests of NCCL's proxy, judged and drawn."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.collect.spool import Spool
from megatrace.commands.main import main
from megatrace.model.finding import Kind, Verdict
from megatrace.model.ringformat import parse_ring
from megatrace.model.series import Series, SeriesKind
from megatrace.readers.opening import open_trace
from tests.components.nccl_jobs import RANKS, Built, Job, assert_complete, judged, rings_of

MESSAGES = 4
"""Of a rank in an iteration, all to one peer."""
REQUESTS = 4
BYTES = 4096 * 4


def ran(built: Built, place: Path, *words: str, **more: str) -> Job:
    job = Job(
        built,
        place,
        {
            "NCCL_PROFILER_PLUGIN": str(built.plugin),
            "MEGATRACE_NCCL_NETWORK": "1",
            "STUB_NET": "20e6",
            **more,
        },
    )
    job.start(*words)
    return job


def paths(series: tuple[Series, ...], kind: SeriesKind) -> dict[tuple[int, int], Series]:
    """(source rank, destination rank) → series."""
    found = {}
    for item in series:
        if item.kind is kind:
            source, _, destination = item.name.partition(" → ")
            found[int(source.rpartition(" ")[2]), int(destination.rpartition(" ")[2])] = item
    return found


@pytest.mark.parametrize("version", [1, 3, 4, 6])
@pytest.mark.parametrize("unpaired", ["", "1"])
def test_every_request_is_counted_and_none_is_left(
    built: Built, tmp_path: Path, version: int, unpaired: str
) -> None:
    """``unpaired``: NCCL does not tell the end of every request."""
    more = {"STUB_NET_UNPAIRED": "1"} if unpaired else {}
    job = ran(built, tmp_path, "iterations=3", STUB_PROFILER=str(version), **more)
    assert job.finish() == ""
    rings = rings_of(tmp_path, "proxy")
    assert [ring.rank for ring in rings] == list(range(RANKS))
    for ring in rings:
        (path,) = ring.kept
        assert (path["flags"], path["nbytes"]) == (0, 0)
        assert path["number"] == 3 * MESSAGES * BYTES
        depth = ring.records["flags"][ring.records["kind"] == 10]
        assert 1 <= depth.max() <= REQUESTS
        assert depth[-1] == 0
    trace = open_trace([job.rings])
    found = paths(trace.series, SeriesKind.QUEUE_DEPTH)
    assert set(found) == {(rank, (rank + 4) % RANKS) for rank in range(RANKS)}
    assert all(item.rank == source and item.device is None for (source, _), item in found.items())
    assert "The queues of ranks 0–7 are those of NCCL's proxy" in " ".join(trace.coverage.notes)
    if version >= 4:
        assert_complete(trace, 3)


def test_without_being_asked_the_proxy_is_left_alone(built: Built, tmp_path: Path) -> None:
    job = ran(built, tmp_path, "iterations=1", MEGATRACE_NCCL_NETWORK="0")
    assert job.finish() == ""
    assert not rings_of(tmp_path, "proxy")


def test_the_control_word_asks_for_it_in_a_running_job(built: Built, tmp_path: Path) -> None:
    job = ran(built, tmp_path, "iterations=60", MEGATRACE_NCCL_NETWORK="0")
    rings: list[Path] = []
    while len(rings) < RANKS:
        rings = [path for path in job.rings.glob("nccl-*.ring") if path.read_bytes()[:8] == b"MTRING\0\1"]
    for path in rings:
        with path.open("r+b") as file:
            file.seek(4080)
            file.write((1 << 4).to_bytes(4, "little"))
    job.finish()
    found = rings_of(tmp_path, "proxy")
    assert len(found) == RANKS
    assert all(int(ring.kept["flags"].sum()) == 0 for ring in found)
    assert_complete(open_trace([job.rings]), 60)


def test_the_slow_path_is_named_and_drawn(built: Built, tmp_path: Path) -> None:
    job = ran(built, tmp_path, "iterations=12", STUB_NET_SLOW="1:4e5")
    assert job.finish() == ""
    report = tmp_path / "report.html"
    assert main(["diagnose", str(job.rings), "--html", str(report)]) == 10
    diagnosis = judged(job.rings)
    sick = [finding for finding in diagnosis.findings if finding.kind is Kind.SLOW_NETWORK]
    links = [(link.src.rank, link.dst.rank) for finding in sick for link in finding.culprits.links]
    assert links == [(1, 5)], [finding.summary for finding in diagnosis.findings]
    drawn = paths(diagnosis.pictures.series, SeriesKind.QUEUE_DEPTH)
    assert drawn[1, 5].values.max() >= 1
    page = report.read_text()
    assert "rank 1 → " in page
    assert "queue_depth" in page
    assert Spool(tmp_path / "spool", 1 << 30).round(sorted(job.rings.glob("*.ring"))) > 0
    kept = [item.summary for item in judged(tmp_path / "spool").findings if item.kind is Kind.SLOW_NETWORK]
    assert kept == [finding.summary for finding in sick]


def test_a_path_that_stands_is_named(built: Built, tmp_path: Path) -> None:
    job = ran(built, tmp_path, "iterations=12", STUB_NET_STALL="1:20")
    job.stand()
    (stuck,) = [ring for ring in rings_of(tmp_path, "proxy") if ring.rank == 1]
    (path,) = stuck.kept
    assert (path["flags"], path["nbytes"]) == (REQUESTS, BYTES)
    assert path["number"] == 20 * BYTES
    diagnosis = diagnose(open_trace([job.rings]), now=time.time_ns() + 10_000_000_000)
    assert diagnosis.verdict is Verdict.HANG, diagnosis.headline
    finding = next(item for item in diagnosis.findings if item.kind is Kind.HANG_NETWORK)
    (link,) = finding.culprits.links
    assert (link.src.rank, link.dst.rank) == (1, 5)
    assert f"{REQUESTS} requests of NCCL's proxy with 16 KiB are posted" in finding.summary


def test_a_rank_whose_work_requests_were_recorded_needs_no_stand_in(built: Built, tmp_path: Path) -> None:
    job = ran(built, tmp_path, "iterations=1")
    assert job.finish() == ""
    (proxy,) = [
        path for path in job.rings.glob("proxy-*.ring") if parse_ring(path.read_bytes(), "").rank == 2
    ]
    data = bytearray(proxy.read_bytes())
    (job.rings / "verbs-2.ring").write_bytes(data.replace(b'"source": "proxy"', b'"source": "verbs"', 1))
    found = paths(
        tuple(item for item in open_trace([job.rings]).series if "queue pair" not in item.name),
        SeriesKind.QUEUE_DEPTH,
    )
    assert {source for source, _ in found} == set(range(RANKS)) - {2}


def test_calls_of_one_group_are_marked(built: Built, tmp_path: Path) -> None:
    for version in ("4", "6"):
        place = tmp_path / version
        place.mkdir()
        job = Job(
            built,
            place,
            {
                "NCCL_PROFILER_PLUGIN": str(built.plugin),
                "MEGATRACE_NCCL_GROUPS": "1",
                "STUB_PROFILER": version,
            },
        )
        job.start("iterations=2", "grouped=1")
        assert job.finish() == ""
        assert_groups(job)


def test_the_preloaded_library_marks_them_too(built: Built, tmp_path: Path) -> None:
    job = Job(built, tmp_path, {"LD_PRELOAD": str(built.preload)})
    job.start("iterations=2", "grouped=1")
    assert job.finish() == ""
    assert_groups(job)


def assert_groups(job: Job) -> None:
    """Both collectives of each of 8 tasks an iteration are one group, and nothing else is."""
    trace = open_trace([job.rings])
    assert_complete(trace, 2)
    events = trace.events
    assert events.flags is not None
    assert events.nbytes is not None
    grouped = events.flags & 1 == 1
    assert (grouped == (events.nbytes == 4096 * 4) & (events.op == 1)).all()
    for path in job.rings.glob("*.ring"):
        records = parse_ring(path.read_bytes(), path.name).records
        groups = records[records["kind"] == 9]
        ends = groups[groups["flags"] == 1]
        assert len(ends) == 2 * 8
        assert set(ends["number"].tolist()) == {2}
        assert (np.diff(groups["time"].astype(np.int64)) >= 0).all()
