"""RDMA work requests, recorded between a client like NCCL and a libibverbs without hardware."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis.network import diagnose_network
from megatrace.model.finding import Diagnosis, Kind, Verdict
from megatrace.model.series import SeriesKind
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace
from tests.components.native_builds import LIMIT_S, NATIVE, TESTS, VERBS, compiled, library, needs_compiler


@dataclass(frozen=True)
class Built:
    """Where the mock, the client and the library are; ``alone`` holds nothing but our libibverbs.so."""

    folder: Path
    library: Path
    alone: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    needs_compiler()
    return build(tmp_path_factory.mktemp("verbs"))


def build(folder: Path, more: Sequence[str] = ()) -> Built:
    """Everything, with ``more`` flags for all of it."""
    script = [f"-Wl,--version-script={TESTS / 'mock_ibverbs.map'}", "-Wl,-soname,libibverbs.so.1"]
    mock: list[str | Path] = ["-shared", "-fvisibility=hidden", TESTS / "mock_ibverbs.cc", *script]
    compiled(folder / "libibverbs.so.1", *mock, more=more)
    compiled(folder / "client", TESTS / "verbs_client.cc", more=more)
    ours = library(
        folder / "libmegatrace_ibverbs.so",
        VERBS,
        [*more, f"-Wl,--version-script={NATIVE / 'verbs_shim.map'}"],
    )
    alone = folder / "alone"
    alone.mkdir()
    (alone / "libibverbs.so").symlink_to(ours)
    return Built(folder, ours, alone)


def ran(built: Built, rings: Path, route: str, *arguments: str, **more: str) -> dict[str, Any]:
    """What the client said, with our library in its way by one of the routes, or none."""
    environment = {"PATH": os.environ["PATH"], "MEGATRACE_RING_DIR": str(rings), "RANK": "3"}
    environment["LD_LIBRARY_PATH"] = str(built.folder)
    environment["MEGATRACE_SYSFS"] = str(rings / "sys")
    environment |= more
    if route == "preload":
        environment["LD_PRELOAD"] = str(built.library)
    elif route == "named":
        environment["NCCL_IBVERBS_LIB"] = str(built.library)
    elif route == "path":
        environment["LD_LIBRARY_PATH"] = f"{built.alone}:{built.folder}"
    done = subprocess.run(
        [built.folder / "client", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stderr == ""
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def traced(built: Built, rings: Path, *arguments: str) -> Trace:
    """What was recorded of a client whose queue pairs are left open, as those of a killed process are."""
    for port, low in (("mlx5_0", "0a01"), ("mlx5_1", "0a02")):
        gids = rings / "sys" / "class" / "infiniband" / port / "ports" / "1" / "gids"
        gids.mkdir(parents=True)
        (gids / "0").write_text(f"fe80:0000:0000:0000:0000:0000:0000:{low}\n")
    ran(built, rings, "preload", "keep=1", *arguments)
    return open_trace(sorted(rings.glob("*.ring")))


def judged(trace: Trace) -> Diagnosis:
    return diagnose_network(trace, None)


@pytest.mark.parametrize("route", ["preload", "named", "path"])
def test_every_route_counts_two_million_requests_exactly(built: Built, tmp_path: Path, route: str) -> None:
    said = ran(built, tmp_path, route, "requests=2000000", "queues=2", "bytes=4096")
    assert said["posted"] == said["completed"] == 2_000_000
    seen = said["seen"]
    assert (seen["posted"], seen["completed"]) == (2_000_000, 2_000_000)
    assert seen["posted_bytes"] == seen["completed_bytes"] == 2_000_000 * 4096
    assert (seen["errors"], seen["queues"], seen["max_depth"]) == (0, 2, 8)


def test_without_us_nothing_is_seen(built: Built, tmp_path: Path) -> None:
    assert "seen" not in ran(built, tmp_path, "none", "requests=100")
    assert not list(tmp_path.glob("*.ring"))


def test_a_queue_of_which_every_request_asks_for_a_completion_is_counted_too(
    built: Built, tmp_path: Path
) -> None:
    seen = ran(built, tmp_path, "preload", "requests=1000", "signal_all=1")["seen"]
    assert (seen["posted"], seen["completed"]) == (1000, 1000)


def test_healthy_paths_are_named_by_their_ports_and_nothing_is_found(built: Built, tmp_path: Path) -> None:
    trace = traced(built, tmp_path, "requests=3000", "queues=4", "bytes=1000000", "rate=2000000000")
    diagnosis = judged(trace)
    assert diagnosis.verdict is Verdict.HEALTHY, diagnosis.headline
    names = {item.name.partition(" ")[2] for item in trace.series}
    assert names == {f"mlx5_{at % 2}/1 → port 0x0000000000000b{at:02x}" for at in range(4)}
    depth = [item for item in trace.series if item.kind is SeriesKind.QUEUE_DEPTH]
    assert len(depth) == 4
    assert all(item.values.max() <= 8 and item.values[-1] == 0 and item.rank == 3 for item in depth)
    assert {item.device for item in depth} == {"mlx5_0", "mlx5_1"}


def test_bandwidth_counts_only_the_time_in_which_something_was_on_the_way(
    built: Built, tmp_path: Path
) -> None:
    trace = traced(built, tmp_path, "requests=2000", "bytes=1000000", "rate=1000000000")
    (bandwidth,) = [item for item in trace.series if item.kind is SeriesKind.BANDWIDTH]
    known = bandwidth.values[bandwidth.values == bandwidth.values]
    # 8 requests of 1 MB are on the way at 1 GB/s: the path is busy throughout, whatever the client does.
    assert 0.5e9 < sorted(known)[len(known) // 2] < 1.05e9


def test_the_slow_path_is_named_and_the_others_are_not(built: Built, tmp_path: Path) -> None:
    trace = traced(
        built, tmp_path, "requests=800", "queues=4", "bytes=1000000", "rate=400000000", "slow=2:40000000"
    )
    diagnosis = judged(trace)
    assert diagnosis.verdict is Verdict.SLOW, diagnosis.headline
    (finding,) = diagnosis.findings
    assert finding.kind is Kind.SLOW_NETWORK
    (link,) = finding.culprits.links
    assert link.src.device == "mlx5_0/1"
    assert link.src.node == socket.gethostname()
    assert link.dst.device == "port 0x0000000000000b02"
    assert "with data waiting in its queue" in finding.summary


def test_a_queue_that_does_not_drain_stands(built: Built, tmp_path: Path) -> None:
    trace = traced(
        built, tmp_path,
        "requests=6000", "queues=2", "bytes=1000000", "rate=1000000000", "stall=1", "hold_ms=3000",
    )  # fmt: skip
    diagnosis = judged(trace)
    assert diagnosis.verdict is Verdict.HANG, diagnosis.headline
    (finding,) = diagnosis.findings
    assert finding.kind is Kind.HANG_NETWORK
    (link,) = finding.culprits.links
    assert link.dst.device == "port 0x0000000000000b01"
    assert "8 work requests with" in finding.summary
    assert finding.evidence[1].value == 8_000_000


def test_an_empty_queue_is_nobodys_fault(built: Built, tmp_path: Path) -> None:
    """Queue 0 has far less to send than queue 1 and is given nothing more: look upstream, not at the path."""
    trace = traced(built, tmp_path, "requests=400", "queues=2", "bytes=1000000", "slow=1:50000000")
    slow = {link.dst.device for found in judged(trace).findings for link in found.culprits.links}
    assert "port 0x0000000000000b00" not in slow


def test_a_failed_completion_is_named_with_status_and_vendor_code(built: Built, tmp_path: Path) -> None:
    trace = traced(built, tmp_path, "requests=200", "queues=2", "error=1:12:129")
    (fact,) = trace.facts
    assert (fact.code, fact.rank, fact.get("vendor")) == (12, 3, 129)
    diagnosis = judged(trace)
    assert diagnosis.verdict is Verdict.HANG
    assert "transport retry counter exceeded" in diagnosis.headline
    assert "port 0x0000000000000b01" in diagnosis.headline


def test_a_full_place_for_the_ring_leaves_the_job_alone(built: Built, tmp_path: Path) -> None:
    environment = {
        "LD_LIBRARY_PATH": str(built.folder),
        "LD_PRELOAD": str(built.library),
        "MEGATRACE_RING_DIR": "/proc/nowhere",
    }
    done = subprocess.run(
        [built.folder / "client", "requests=1000"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert json.loads(done.stdout)["completed"] == 1000
    assert done.stderr.count("\n") == 1
    assert "work requests are not recorded" in done.stderr


def test_preloaded_where_there_is_no_rdma_it_does_nothing(built: Built, tmp_path: Path) -> None:
    environment = {"LD_PRELOAD": str(built.library), "MEGATRACE_RING_DIR": str(tmp_path)}
    done = subprocess.run(
        ["/bin/echo", "trained"], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert not list(tmp_path.iterdir())
