"""Files of NCCL's Inspector: what is read, and who is found to be late."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.errors import TraceError
from megatrace.model.finding import Kind, Verdict
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace


def line(comm: str, rank: int, size: int, host: str, pid: int, seq: int, time: float, **more: Any) -> str:
    return json.dumps(
        {
            "header": {"id": comm, "rank": rank, "n_ranks": size, "nnodes": 2},
            "metadata": {
                "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
                "dump_timestamp_us": 1_748_030_377_748_202, "hostname": host, "pid": pid,
            },
            "coll_perf": {
                "coll": "AllReduce", "coll_sn": seq, "coll_msg_size_bytes": 17_179_869,
                "coll_exec_time_us": time, "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0,
                "coll_busbw_gbs": 2.0, **more,
            },
        }
    )  # fmt: skip


def job(
    folder: Path,
    *,
    late: int | None = None,
    slow_group: int | None = None,
    calls: int = 40,
    name: str = "0xw",
) -> Trace:
    """8 ranks: the world (communicator ``name``), and four pairs. ``late`` comes 2 ms after the others."""
    rng = random.Random(1)
    folder.mkdir(exist_ok=True)
    for rank in range(8):
        lines = []
        for seq in range(calls):
            wait = 0.0 if late is None or rank == late else 2000.0
            lines.append(
                line(name, rank, 8, f"node{rank // 4}", 100 + rank, seq, 900 + wait + rng.uniform(0, 30))
            )
            pair = 400.0 * (3 if slow_group == rank // 2 else 1) + rng.uniform(0, 20)
            lines.append(line(f"0xp{rank // 2}", rank % 2, 2, f"node{rank // 4}", 100 + rank, seq, pair))
        (folder / f"node{rank // 4}-pid{100 + rank}.log").write_text("\n".join(lines) + "\n")
    return open_trace([folder])


def test_the_rank_that_everybody_waits_for_is_named(tmp_path: Path) -> None:
    diagnosis = diagnose(job(tmp_path, late=5))
    assert diagnosis.verdict is Verdict.SLOW
    (finding,) = diagnosis.findings
    assert finding.culprits.ranks == (5,)
    assert finding.kind is Kind.SLOW_COMPUTE
    assert finding.impact.seconds_lost == pytest.approx(0.08, rel=0.1)
    assert "node1, process 105" in finding.summary


def test_a_group_on_a_slow_path_is_named_without_a_single_culprit(tmp_path: Path) -> None:
    (finding,) = diagnose(job(tmp_path, slow_group=2)).findings
    assert finding.kind is Kind.SLOW_NETWORK
    assert finding.ambiguous
    assert finding.culprits.ranks == (4, 5)
    assert "3.0×" in finding.summary


def test_a_healthy_job_accuses_nobody_and_says_what_is_not_seen(tmp_path: Path) -> None:
    diagnosis = diagnose(job(tmp_path))
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.findings == ()
    assert "a hang does not show" in diagnosis.headline


def test_one_ranks_file_alone_cannot_tell(tmp_path: Path) -> None:
    job(tmp_path, late=5)
    diagnosis = diagnose(open_trace([tmp_path / "node1-pid105.log"]))
    assert diagnosis.verdict is Verdict.UNDECIDABLE
    assert diagnosis.findings == ()


def test_broken_lines_are_counted_and_messages_too(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    good = [line("0xw", rank, 2, "n", rank, seq, 10.0) for rank in range(2) for seq in range(3)]
    p2p = json.dumps({"header": {"id": "0xw", "rank": 0, "n_ranks": 2}, "p2p_perf": {"p2p": "Send"}})
    stats = json.dumps({"header": {"id": "0xw"}, "dump_stats": {"coll": {"dropped_since_last_dump": 7}}})
    cut = good[0][: len(good[0]) // 2]
    path.write_text("\n".join([*good, p2p, stats, "not json", cut]))
    trace = open_trace([path])
    assert trace.inspector is not None
    assert len(trace.inspector) == 6
    assert trace.inspector.messages == 1
    assert trace.inspector.dropped == 7
    assert trace.coverage.bad_lines == 2


def test_lines_without_a_completed_call_are_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(json.dumps({"header": {"id": "0x1"}, "dump_stats": {}}) + "\n")
    with pytest.raises(TraceError, match="no completed collective"):
        open_trace([path])
