"""What is concluded from flight-recorder dumps: real ones with a known fault, and small ones made here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.model.finding import Diagnosis, Kind, Verdict
from megatrace.readers.opening import open_trace
from tests.unit.flight_recorder_cases import MS, T0, Recorder, world, write


def judged(*paths: Path, now: int | None = None) -> Diagnosis:
    return diagnose(open_trace(list(paths)), now=now)


def told(diagnosis: Diagnosis) -> str:
    """Everything that the findings say."""
    parts = [diagnosis.headline]
    for finding in diagnosis.findings:
        parts += [finding.summary, finding.remedy, *finding.exonerated, *finding.chain]
        parts += [item.text for item in finding.evidence]
    return "\n".join(parts)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("case", "culprits", "seen"),
    [
        ("C04", (9, 14), "EXPERT_MODEL_PARALLEL_GROUP 72 (ranks 8–15) ranks 9, 14 are at #44,790"),
        ("C07", (10, 15), "EXPERT_MODEL_PARALLEL_GROUP 74 (ranks 12–15) rank 15 is at #20,946"),
    ],
)
def test_injected_faults_are_found_and_nobody_else_is_named(
    shared_dir: Path, case: str, culprits: tuple[int, ...], seen: str
) -> None:
    diagnosis = judged(shared_dir / "cases" / case)
    assert diagnosis.verdict is Verdict.HANG
    (finding,) = diagnosis.findings
    assert finding.culprits.ranks == culprits
    assert finding.kind in (Kind.HANG_DEVICE, Kind.HANG_HOST)
    assert finding.culprits.devices == ()
    text = told(diagnosis).replace("-", "–")
    assert seen in text
    assert "all_to_all [" in text
    for word in ("hardware", "Xid", "ECC"):
        assert word not in text


@pytest.mark.shared
def test_file_names_do_not_matter(shared_dir: Path, tmp_path: Path) -> None:
    for i, path in enumerate(sorted((shared_dir / "cases" / "C07").glob("_dump_*"))):
        shutil.copyfile(path, tmp_path / f"host{97 - i}.pickle")
    assert judged(tmp_path).findings[0].culprits.ranks == (10, 15)


def test_the_rank_that_did_not_call_is_named(tmp_path: Path) -> None:
    recorders = [Recorder(rank, world(4)) for rank in range(4)]
    for step in range(5):
        for recorder in recorders:
            recorder.call("0", "all_reduce", at=10 * step)
    for recorder in recorders[:2] + recorders[3:]:
        recorder.call("0", "all_reduce", "scheduled", at=60)
    (finding,) = judged(write(tmp_path, recorders)).findings
    assert finding.culprits.ranks == (2,)
    assert finding.kind is Kind.HANG_HOST
    assert finding.where.seq == 6


@pytest.mark.parametrize("counters", [True, False])
def test_an_empty_dump_is_evidence_and_differs_from_a_missing_one(tmp_path: Path, counters: bool) -> None:
    recorders = [Recorder(rank, world(8)) for rank in range(8)]
    for recorder in recorders[:5] + recorders[6:]:
        recorder.seqs["0"] = 40
        recorder.call("0", "all_reduce", "scheduled", at=60)
    empty = judged(write(tmp_path / "empty", recorders, status=counters))
    assert empty.findings[0].culprits.ranks == (5,)
    assert empty.findings[0].kind is Kind.HANG_HOST
    assert "the dump of rank 5 is there, and empty" in told(empty)
    missing = judged(write(tmp_path / "missing", recorders[:5] + recorders[6:]))
    assert missing.findings[0].culprits.ranks == (5,)
    assert missing.findings[0].kind is Kind.DEAD_RANK
    assert missing.findings[0].confidence < empty.findings[0].confidence
    assert "wrote no dump" in missing.headline


def test_counters_at_nothing_do_not_make_an_empty_dump_one_of_another_moment(tmp_path: Path) -> None:
    """Peers completed calls of a group of all: the rank was there, whatever its new counters say."""
    recorders = [Recorder(rank, world(4)) for rank in range(4)]
    for recorder in recorders[:2] + recorders[3:]:
        recorder.call("0", "all_reduce", at=0).call("0", "all_reduce", "scheduled", at=60)
    (finding,) = judged(write(tmp_path, recorders, status=True)).findings
    assert finding.culprits.ranks == (2,)
    assert "the dump of rank 2 is there, and empty" in told(judged(tmp_path))


def test_dumps_written_right_after_the_last_call_accuse_nobody(tmp_path: Path) -> None:
    recorders = [Recorder(rank, world(4)) for rank in range(4)]
    for recorder in recorders[1:]:
        recorder.call("0", "all_reduce", at=0).call("0", "all_reduce", "scheduled", at=60)
    recorders[0].call("0", "all_reduce", at=0)
    folder = write(tmp_path, recorders)
    for path in folder.iterdir():
        os.utime(path, ns=(T0 + 100 * MS, T0 + 100 * MS))
    diagnosis = judged(folder)
    assert diagnosis.findings == ()
    assert diagnosis.verdict is Verdict.UNDECIDABLE
    later = judged(folder, now=T0 + 700_000 * MS)
    assert later.findings[0].culprits.ranks == (0,)


@pytest.mark.parametrize(
    ("minutes", "verdict"), [(None, Verdict.UNDECIDABLE), (11, Verdict.HANG), (9_000, Verdict.UNDECIDABLE)]
)
def test_one_call_under_way_everywhere_is_a_hang_only_where_a_watchdog_wrote(
    tmp_path: Path, minutes: int | None, verdict: Verdict
) -> None:
    """Without start times every running job looks like that; 10 minutes are the timeout in the dumps."""
    recorders = [Recorder(rank, world(8)) for rank in range(8)]
    for recorder in recorders:
        recorder.call("0", "all_reduce", at=0).call("0", "all_reduce", "scheduled", at=60)
    folder = write(tmp_path, recorders)
    if minutes is not None:
        for path in folder.iterdir():
            os.utime(path, ns=(T0 + minutes * 60_000 * MS, T0 + minutes * 60_000 * MS))
    diagnosis = judged(folder)
    assert diagnosis.verdict is verdict
    if verdict is Verdict.UNDECIDABLE:
        assert "one call was under way on all 8 ranks" in diagnosis.headline
        assert any("--now" in step.command for step in diagnosis.next_steps)
    assert judged(folder, now=T0 + 700_000 * MS).verdict is Verdict.HANG


def test_a_watchdog_in_a_log_beside_the_dumps_says_that_the_job_stood(tmp_path: Path) -> None:
    recorders = [Recorder(rank, world(8)) for rank in range(8)]
    for recorder in recorders:
        recorder.call("0", "all_reduce", at=0).call("0", "all_reduce", "scheduled", at=60)
    folder = write(tmp_path, recorders)
    assert judged(folder).verdict is Verdict.UNDECIDABLE
    line = (
        "[rank3]:[E922 22:39:15.000000000 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=10485760, NumelOut=10485760, "
        "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )
    (folder / "job.out").write_text(line)
    diagnosis = judged(folder)
    assert diagnosis.verdict is Verdict.HANG
    assert diagnosis.findings[0].kind is Kind.HANG_GROUP


def test_dumps_of_different_moments_accuse_nobody(tmp_path: Path) -> None:
    recorders = [Recorder(rank, world(4)) for rank in range(4)]
    for recorder in recorders:
        recorder.call("0", "all_reduce", at=0)
    for recorder in recorders[1:]:
        recorder.call("0", "all_reduce", at=20).call("0", "all_reduce", "scheduled", at=60)
    diagnosis = judged(write(tmp_path, recorders))
    assert diagnosis.findings == ()
    assert "different moments" in diagnosis.headline


def test_completed_dumps_are_healthy(tmp_path: Path) -> None:
    recorders = [Recorder(rank, world(2)).call("0", "all_reduce", at=0) for rank in range(2)]
    diagnosis = judged(write(tmp_path, recorders))
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.findings == ()


def test_sizes_that_differ_are_a_mismatch_and_the_line_is_shown(tmp_path: Path) -> None:
    frames = [
        {"name": "all_reduce", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 2707},
        {"name": "sync_buffers", "filename": "/app/model/splatting.py", "line": 650},
    ]
    recorders = [Recorder(rank, world(4)) for rank in range(4)]
    for recorder in recorders:
        size = (7,) if recorder.rank == 3 else (9,)
        recorder.call("0", "all_reduce", "scheduled", at=1, sizes=[size], frames=frames)
    diagnosis = judged(write(tmp_path, recorders))
    (finding,) = diagnosis.findings
    assert finding.kind is Kind.MISMATCH
    assert finding.culprits.ranks == (3,)
    assert "sync_buffers (splatting.py:650)" in told(diagnosis)


def test_messages_in_a_group_of_four_are_paired_by_their_ends(tmp_path: Path) -> None:
    """A pipeline of four in one group: stage 2 never posts its Recv; record ids and numbers are unrelated."""
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "9": ("PIPELINE_MODEL_PARALLEL_GROUP", [0, 1, 2, 3])}
    ranks = [Recorder(rank, groups) for rank in range(4)]
    for step in range(3):
        at = 10.0 * step
        ranks[0].send("9", 1, at=at)
        ranks[1].recv("9", 0, at=at + 1).send("9", 2, at=at + 2)
        ranks[2].recv("9", 1, at=at + 3).send("9", 3, at=at + 4)
        ranks[3].recv("9", 2, at=at + 5)
    ranks[0].send("9", 1, at=40).send("9", 1, "scheduled", at=50)
    ranks[1].recv("9", 0, at=41).send("9", 2, "scheduled", at=42)
    ranks[3].recv("9", 2, "scheduled", at=45)
    for recorder in ranks:
        recorder.entries = [
            {**entry, "record_id": entry["record_id"] + 100 * recorder.rank} for entry in recorder.entries
        ]
    diagnosis = judged(write(tmp_path, ranks))
    (finding,) = diagnosis.findings
    assert finding.culprits.ranks == (2,)
    assert finding.kind is Kind.MISSING_CALL
    assert "never posted Recv from rank 1" in finding.summary


def test_a_coalesced_exchange_has_the_state_of_its_end(tmp_path: Path) -> None:
    """Calls inside a coalesced group are never "completed" themselves."""
    groups = {"0": ("default_pg", [0, 1])}
    ranks = [Recorder(rank, groups) for rank in range(2)]
    for rank, recorder in enumerate(ranks):
        recorder.send("0", 1 - rank, "scheduled", at=1)
        recorder.recv("0", 1 - rank, "scheduled", at=1, bump=False)
        recorder.coalesced("0", "completed", at=1)
    assert judged(write(tmp_path / "done", ranks)).verdict is Verdict.HEALTHY
    ranks[0].send("0", 1, "scheduled", at=9).recv("0", 1, "scheduled", at=9, bump=False)
    ranks[0].coalesced("0", "scheduled", at=9)
    diagnosis = judged(write(tmp_path / "open", ranks))
    assert diagnosis.findings[0].culprits.ranks == (1,)


REPORT = """[rank0] 2024-09-25 INFO Not all ranks joining collective: sequence number: 12
internal record id: 11
group info: 0:default_pg
collective: nccl:all_reduce
missing ranks: {missing}
input sizes: [[4096]]
output sizes: [[4096]]
world size: 8
expected ranks: {{0, 1, 2, 3, 4, 5, 6, 7}}
collective state: scheduled
collective stack trace:
 all_reduce at /x/torch/distributed/distributed_c10d.py:2707
step at /app/train.py:12
"""


@pytest.mark.shared
def test_a_majority_that_is_missing_is_not_voted_down(shared_dir: Path) -> None:
    diagnosis = judged(shared_dir / "cases" / "C10" / "fr_trace.txt")
    (finding,) = diagnosis.findings
    assert finding.ambiguous
    assert finding.culprits.ranks == (3, 4, 5, 6, 7)
    assert "ranks 0–2 made a call" in finding.summary.replace("-", "–")
    assert "sync_buffers (gaussian_splatting.py:650)" in told(diagnosis)


def test_the_report_of_the_analyzer_names_the_one_that_did_not_join(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(REPORT.format(missing="{5}"))
    diagnosis = judged(path)
    assert diagnosis.findings[0].culprits.ranks == (5,)
    assert diagnosis.findings[0].where.seq == 12
    assert "step (train.py:12)" in told(diagnosis)


def test_dumps_in_which_most_ranks_lack_a_call_are_ambiguous(tmp_path: Path) -> None:
    recorders = [Recorder(rank, world(8)).call("0", "all_reduce", at=0) for rank in range(8)]
    for recorder in recorders[:3]:
        recorder.call("0", "all_reduce", "scheduled", at=60)
    (finding,) = judged(write(tmp_path, recorders)).findings
    assert finding.ambiguous
    assert finding.kind is Kind.MISSING_CALL
    assert finding.culprits.ranks == (3, 4, 5, 6, 7)


def test_call_logs_beside_dumps_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    recorders = [Recorder(rank, world(4)).call("0", "all_reduce", at=0) for rank in range(4)]
    for recorder in recorders[1:]:
        recorder.call("0", "all_reduce", "scheduled", at=60)
    folder = write(tmp_path, recorders)
    line = "[1758580155.{:09d}] [Rank {}] Fun AllReduce Data 1024 stream 0x7f0000000000 opCount {}\n"
    for rank in range(6):
        lines = [line.format(1_000_000 * i, rank, i) for i in range(5)]
        (folder / f"rank_{rank}.log").write_text("".join(lines))
    diagnosis = judged(folder)
    assert diagnosis.findings[0].culprits.ranks == (0,)
    assert any("were left out" in note for note in diagnosis.coverage.notes)
