"""Answers of NCCL's RAS: what is read from text and JSON, and what is concluded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.errors import TraceError
from megatrace.model.finding import Diagnosis, Kind, Verdict
from megatrace.model.ras import Absence
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace
from tests.unit.ras_cases import HEAD


def text(rows: str, errors: str = "", warnings: str = "") -> str:
    return f"{HEAD}{rows}\n\nErrors\n======\n\n{errors}\nWarnings\n========\n\n{warnings}\n"


def member(rank: int, counts: dict[str, int], **status: Any) -> dict[str, Any]:
    state = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    return {
        "rank": rank, "host": f"10.0.0.{rank // 8}", "pid": 1000 + rank, "cuda_dev": rank % 8,
        "nvml_dev": rank % 8, "status": {**state, **status}, "collective_counts": counts,
    }  # fmt: skip


def answer(*communicators: tuple[str, list[dict[str, Any]], list[dict[str, Any]]], at: str) -> str:
    return json.dumps(
        {
            "nccl_version": "2.29.1",
            "timestamp": at,
            "communicators_count": len(communicators),
            "communicators": [
                {
                    "hash": name, "secondary_hash": "0x1:0x2", "size": len(ranks) + len(gone),
                    "ranks_count": len(ranks), "missing_ranks_count": len(gone), "ranks": ranks,
                    "missing_ranks": gone,
                }
                for name, ranks, gone in communicators
            ],
            "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
        },
        indent=2,
    )  # fmt: skip


def read(tmp_path: Path, *contents: str) -> Trace:
    paths = []
    for i, content in enumerate(contents):
        path = tmp_path / f"ras_{i}"
        path.write_text(content)
        paths.append(path)
    return open_trace(paths)


def judged(tmp_path: Path, *contents: str) -> Diagnosis:
    return diagnose(read(tmp_path, *contents))


@pytest.mark.shared
def test_those_who_are_ahead_are_no_culprits(shared_dir: Path) -> None:
    diagnosis = diagnose(open_trace([shared_dir / "cases" / "C01" / "ncclras.txt"]))
    assert diagnosis.verdict is Verdict.UNDECIDABLE
    assert diagnosis.findings == ()
    assert diagnosis.job.nodes == 4
    assert "ranks 0-11, 14-31 are behind at AllGather #640" in diagnosis.headline.replace("–", "-")
    assert "a lead of one is normal" in diagnosis.headline


@pytest.mark.shared
def test_the_rank_that_does_not_answer_is_the_suspect(shared_dir: Path) -> None:
    diagnosis = diagnose(open_trace([shared_dir / "cases" / "C09" / "ncclras.json"]))
    (finding,) = diagnosis.findings
    assert finding.culprits.ranks == (1,)
    assert "not yet considered dead" in finding.summary
    assert any("has not run a collective yet" in item.text for item in finding.evidence)


def test_a_dead_process_in_text(tmp_path: Path) -> None:
    errors = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 29 -- GPU 5 managed by process 3487984 on node 172.16.64.213

#1-3 (12ab) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 5 managed by process 3487984 on node 172.16.64.213
"""
    warnings = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  5 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
  Rank 4 -- GPU 4 managed by process 483076 on node 172.16.64.210
  Rank 5 -- GPU 5 managed by process 483077 on node 172.16.64.210
"""
    rows = "    0         1         4       7-8        32        31   RUNNING  INCOMPLETE,MISMATCH\n"
    rows += "    1         8         1       3-4         4        31   RUNNING  INCOMPLETE"
    trace = read(tmp_path, text(rows, errors, warnings))
    world = trace.ras[0].communicators[0]
    assert world.missing[0].why is Absence.DEAD
    assert world.tallies[0].ranks == (1, *range(6, 29), 30, 31)
    diagnosis = diagnose(trace)
    (finding,) = diagnosis.findings
    assert finding.kind is Kind.DEAD_RANK
    assert finding.culprits.ranks == (29,)
    assert finding.confidence >= 0.9


def test_an_unresponsive_process_in_text_is_not_called_dead(tmp_path: Path) -> None:
    errors = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 77 on node 10.0.0.9 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 13 -- GPU 5 managed by process 77 on node 10.0.0.9
"""
    rows = "    0         1         4       7-8        32        31   RUNNING  INCOMPLETE"
    diagnosis = judged(tmp_path, text(rows, errors))
    assert diagnosis.findings[0].culprits.ranks == (13,)
    assert "unresponsive" in diagnosis.headline
    assert "not yet considered dead" in diagnosis.headline


@pytest.mark.parametrize("prefix", ["", "[node7] ", "2025-12-19 13:06:53,101 "])
def test_one_rank_alone_is_read_from_its_own_line(tmp_path: Path, prefix: str) -> None:
    warnings = """#0-0 (fa93dae0000b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  31 ranks have launched up to operation 900
  Rank 5 has launched up to operation 320 -- GPU 5 managed by process 5 on node 10.0.0.1
"""
    rows = "    0         1         4         8        32        32   RUNNING  MISMATCH"
    content = "\n".join(prefix + line for line in text(rows, "", warnings).splitlines())
    diagnosis = judged(tmp_path, content)
    assert diagnosis.verdict is Verdict.UNDECIDABLE
    assert "rank 5 (10.0.0.1 GPU 5, process 5) is behind at AllGather #320" in diagnosis.headline


def test_errors_of_nccl_and_who_only_reports_them(tmp_path: Path) -> None:
    errors = """#0-0 (fa93) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 0 -- GPU 0 managed by process 1 on node 10.0.0.1
  Rank 1 -- GPU 1 managed by process 2 on node 10.0.0.1
  Rank 7 reported Unhandled CUDA error -- GPU 7 managed by process 8 on node 10.0.0.1
"""
    rows = "    0         1         4         8        32        32   RUNNING   ERROR"
    diagnosis = judged(tmp_path, text(rows, errors))
    first, second = diagnosis.findings
    assert first.culprits.ranks == (7,)
    assert first.kind is Kind.HANG_DEVICE
    assert second.culprits.ranks == ()
    assert second.victims == (0, 1)


def test_ok_is_not_called_healthy(tmp_path: Path) -> None:
    rows = "    0         1         4         8        32        32   RUNNING      OK"
    diagnosis = judged(tmp_path, text(rows))
    assert diagnosis.verdict is Verdict.UNDECIDABLE
    assert "does not say that they complete" in diagnosis.headline


def level(number: int, ranks: int = 8) -> list[dict[str, Any]]:
    return [member(rank, {"AllReduce": number, "AllGather": 0}) for rank in range(ranks)]


def test_a_difference_that_stays_is_a_hang_and_one_that_moves_is_not(tmp_path: Path) -> None:
    def ranks(base: int) -> list[dict[str, Any]]:
        return [member(rank, {"AllReduce": base + (rank != 3), "AllGather": 2}) for rank in range(8)]

    stands = judged(
        tmp_path, answer(("0xa", ranks(40), []), at="2025-12-19 13:06:53"),
        answer(("0xa", ranks(40), []), at="2025-12-19 13:07:03"),
    )  # fmt: skip
    (finding,) = stands.findings
    assert finding.culprits.ranks == (3,)
    assert finding.kind is Kind.HANG_HOST
    assert "10 s apart" in finding.evidence[0].text
    moves = judged(
        tmp_path, answer(("0xa", ranks(40), []), at="2025-12-19 13:06:53"),
        answer(("0xa", ranks(55), []), at="2025-12-19 13:07:03"),
    )  # fmt: skip
    assert moves.findings == ()
    assert moves.verdict is Verdict.HEALTHY
    once = judged(tmp_path, answer(("0xa", ranks(40), []), at="2025-12-19 13:06:53"))
    assert once.verdict is Verdict.UNDECIDABLE


def test_whoever_waits_in_another_communicator_is_no_culprit(tmp_path: Path) -> None:
    """Rank 1 is behind in the world because it waits for rank 0 in the pair of both."""
    world = [member(rank, {"AllReduce": 10 - (rank < 2)}) for rank in range(8)]
    pair = [dict(member(rank, {"AllGather": 70 + rank})) for rank in range(2)]
    moments = [answer(("0xa", world, []), ("0xb", pair, []), at=f"2025-12-19 13:06:{s}") for s in (10, 20)]
    (finding,) = judged(tmp_path, *moments).findings
    assert finding.culprits.ranks == (0,)


def test_ranks_of_a_small_communicator_are_named_by_the_job(tmp_path: Path) -> None:
    gone = [
        {
            "rank": 1,
            "host": "10.0.0.0",
            "pid": 1005,
            "cuda_dev": 5,
            "nvml_dev": 5,
            "status": {"considered_dead": True},
        }
    ]
    part = [{**member(4, {"AllReduce": 1}), "rank": 0}]
    diagnosis = judged(tmp_path, answer(("0xa", level(3), []), ("0xb", part, gone), at="2025-12-19 13:06:53"))
    assert diagnosis.findings[0].culprits.ranks == (5,)


def test_events_of_the_monitor(tmp_path: Path) -> None:
    event = {"timestamp": "x", "group": "LIFECYCLE", "event": "PEER_DEAD"}
    event["peer"] = {"host": "10.1.1.1", "pid": 42, "cuda_devs": [3], "nvml_devs": [3]}  # type: ignore[assignment]
    diagnosis = judged(tmp_path, json.dumps(event) + "\n")
    assert diagnosis.findings[0].culprits.nodes == ("10.1.1.1",)
    assert diagnosis.findings[0].kind is Kind.DEAD_RANK


def test_nonsense_of_a_known_defect_names_nobody(tmp_path: Path) -> None:
    """NCCL 2.27.3 printed sizes from memory that it had not initialised."""
    rows = "    0         4         0         0         0         0    NOCOMM  INCOMPLETE,MISMATCH"
    errors = """#0-0 (93d7000200000001) INCOMPLETE
  Missing communicator data from 255 ranks
  Rank 1057455228 -- [process information not found]
"""
    diagnosis = judged(tmp_path, text(rows, errors))
    assert all(finding.culprits.ranks == () for finding in diagnosis.findings)
    assert "cannot be as printed" in diagnosis.coverage.notes[0]


def test_a_cut_answer_is_refused_with_a_sentence(tmp_path: Path) -> None:
    whole = answer(("0xa", level(3), []), at="2025-12-19 13:06:53")
    with pytest.raises(TraceError, match="cut or damaged"):
        read(tmp_path, whole[: len(whole) // 2])


def test_a_watchdog_beside_an_answer_that_is_ok(tmp_path: Path) -> None:
    rows = "    0         1        32         8       256       256   RUNNING      OK"
    line = (
        "[rank118]:[E603 17:48:01.005271823 ProcessGroupNCCL.cpp:632] [Rank 118] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=2398459, OpType=ALLREDUCE, NumelIn=8652160, NumelOut=8652160, "
        "Timeout(ms)=1800000) ran for 1800068 milliseconds before timing out."
    )
    diagnosis = judged(tmp_path, text(rows) + line + "\n")
    (finding,) = diagnosis.findings
    assert finding.kind is Kind.HANG_GROUP
    assert finding.culprits.ranks == ()
    assert finding.victims == (118,)
    assert "ALLREDUCE #2,398,459" in finding.summary


@pytest.mark.parametrize(("seconds", "hangs"), [(0, False), (20, True)])
def test_text_answers_are_told_apart_by_when_they_were_written(
    tmp_path: Path, seconds: int, hangs: bool
) -> None:
    warnings = """#0-0 (fa93dae0000b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  31 ranks have launched up to operation 900
  Rank 5 has launched up to operation 899 -- GPU 5 managed by process 5 on node 10.0.0.1
"""
    rows = "    0         1         4         8        32        32   RUNNING  MISMATCH"
    for i in range(2):
        path = tmp_path / f"ras_{i}.txt"
        path.write_text(text(rows, "", warnings))
        os.utime(path, (1_766_149_613 + i * seconds,) * 2)
    diagnosis = diagnose(open_trace([tmp_path]))
    assert [finding.culprits.ranks for finding in diagnosis.findings] == ([(5,)] if hangs else [])
