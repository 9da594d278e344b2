"""The first cause among cascading errors, and what stays undecided."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from megatrace.analysis.evidence_joined import with_evidence
from megatrace.model.finding import Diagnosis, Finding, Kind, Severity, Verdict
from megatrace.readers.opening import open_trace
from tests.unit.log_cases import judged, position, said, timeout, xid
from tests.unit.report_cases import hang

DIST = "[rank2]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error\n"


def serious(diagnosis: Diagnosis) -> list[Finding]:
    return [item for item in diagnosis.findings if item.severity <= Severity.P2]


# ---- chains of several artefacts


def test_an_xid_before_the_errors_of_the_job_is_the_cause_and_the_rest_follows(tmp_path: Path) -> None:
    train = (
        "2025-01-06 01:12:09 "
        + timeout(13, 216, at="01:12:09.000001").replace("E1017", "E0106")
        + "2025-01-06 01:12:10 "
        + DIST
    )
    diagnosis = judged(tmp_path, kernel__log=xid(79, text="GPU has fallen off the bus."), train__log=train)
    (cause,) = serious(diagnosis)
    assert (diagnosis.verdict, cause.kind) == (Verdict.FAILED, Kind.HARDWARE)
    assert cause.culprits.devices[0].node == "gpu-1"
    assert {item.caused_by for item in diagnosis.findings[1:]} == {("f1",)}


def test_of_the_drivers_rate_limit_its_share_is_told(tmp_path: Path) -> None:
    limit = (
        xid(119).split("NVRM")[0]
        + "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  "
        "The GPU likely needs to be reset.\n"
    )
    (found,) = serious(judged(tmp_path, kernel__log=xid(119) + limit))
    (told,) = (item.text for item in found.evidence if "rate-limits" in item.text)
    assert "these lines (printing 1 of every 30): the real count" in told


def test_an_xid_of_another_day_is_no_cause_of_a_timeout(tmp_path: Path) -> None:
    train = "".join(
        "2025-03-06 01:12:09 " + timeout(r, 216, at="01:12:09.000001").replace("E1017", "E0306")
        for r in (0, 1)
    )
    diagnosis = judged(tmp_path, kernel__log=xid(79), train__log=train)
    assert all(not item.caused_by for item in diagnosis.findings)


def test_a_killed_process_is_named_by_its_rank_where_the_job_knows_its_number(tmp_path: Path) -> None:
    oom = "[Sun Jun  1 10:00:01 2025] Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:503560340kB, file-rss:0kB, shmem-rss:0kB\n"
    exits = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 4242) of binary: python\n"
    diagnosis = judged(tmp_path, dmesg=oom, train__log=exits)
    (cause,) = serious(diagnosis)
    assert cause.kind is Kind.RESOURCE
    assert any("4242 is local rank 3" in item.text for item in cause.evidence)


def test_an_exception_comes_before_the_timeouts_of_those_who_wait_for_its_rank(tmp_path: Path) -> None:
    train = (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/app/data.py", line 77, in __getitem__\n[rank3]:     return self.items[i]\n'
        "[rank3]: IndexError: list index out of range\n" + timeout(0, 12) + DIST
    )
    diagnosis = judged(tmp_path, train__log=train)
    (cause,) = serious(diagnosis)
    assert (cause.culprits.ranks, cause.kind) == ((3,), Kind.SOFTWARE)
    assert "data.py:77 in __getitem__" in cause.summary


def test_interleaved_tracebacks_belong_to_their_ranks(tmp_path: Path) -> None:
    train = (
        "[rank0]: Traceback (most recent call last):\n[rank3]: Traceback (most recent call last):\n"
        '[rank0]:   File "/app/train.py", line 10, in step\n[rank3]:   File "/app/data.py", line 77, in load\n'
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:2\n[rank3]: KeyError: 'x'\n"
    )
    (cause,) = serious(judged(tmp_path, train__log=train))
    assert "data.py:77 in load" in cause.summary
    assert cause.culprits.ranks == (3,)


# ---- watchdogs


def test_a_rank_that_never_enqueued_what_others_wait_in_is_the_culprit_not_the_first_to_time_out(
    tmp_path: Path,
) -> None:
    text = timeout(2, 1422) + position(2, 1422, 1425, 1421) + timeout(5, 1422) + position(5, 1422, 1421, 1421)
    (finding,) = serious(judged(tmp_path, train__log=text))
    assert (finding.kind, finding.culprits.ranks, finding.victims) == (Kind.MISSING_CALL, (5,), (2,))


def test_the_one_rank_of_the_default_group_that_is_silent_is_suspected(tmp_path: Path) -> None:
    text = "".join(timeout(r, 19) + position(r, 19, 19, 18) for r in (1, 2, 3))
    diagnosis = judged(tmp_path, train__log=text)
    assert diagnosis.findings[0].culprits.ranks == (0,)
    assert "rank 0 never reports" in diagnosis.headline
    assert "rank 0 is the only one without a watchdog line: it does not wait" in said(diagnosis)


def waiting(*ranks: int) -> str:
    return "".join(timeout(r, 19) + position(r, 19, 19, 18) for r in ranks)


def test_a_node_whose_file_is_missing_is_not_accused(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, node0__log=waiting(*range(4)), node2__log=waiting(*range(8, 12)))
    (finding,) = diagnosis.findings
    assert (finding.kind, finding.culprits.ranks, finding.ambiguous) == (Kind.HANG_GROUP, (), True)
    assert "the log of ranks 4–7 is missing: who did not come is not known" in diagnosis.headline
    assert diagnosis.next_steps[0].why == "with the log of ranks 4–7 added"


def test_silent_ranks_of_files_that_were_read_are_suspected(tmp_path: Path) -> None:
    for name, logs in (
        ("some of a node", {"node0__log": waiting(0, 1, 2), "node1__log": waiting(4, 5, 7)}),
        ("one file of all", {"train__log": waiting(0, 1, 2, 3, *range(8, 16))}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        diagnosis = judged(folder, **logs)
        silent = (3, 6) if name == "some of a node" else (4, 5, 6, 7)
        assert diagnosis.findings[0].culprits.ranks == silent, name
        who = "ranks 3, 6" if name == "some of a node" else "ranks 4–7"
        assert f"{who} are the only ones without a watchdog line: they do not wait" in said(diagnosis)


def test_two_groups_that_block_at_once_name_nobody(tmp_path: Path) -> None:
    text = timeout(13, 216, "ALLTOALL_BASE", own=1) + position(13, 216, 220, 215, "PG ID 11 PG GUID 119")
    text += timeout(15, 57, own=1, at="08:02:19.131000") + position(15, 57, 57, 56, "PG ID 11 PG GUID 112")
    diagnosis = judged(tmp_path, train__log=text)
    (finding,) = serious(diagnosis)
    assert (finding.culprits.ranks, finding.ambiguous) == ((), True)
    assert Kind.DEADLOCK in finding.kind_alternatives
    assert finding.victims == (13, 15)


def test_a_watchdog_of_1_13_is_read_and_alone_decides_nothing(tmp_path: Path) -> None:
    text = "[E ProcessGroupNCCL.cpp:737] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1804406 milliseconds before timing out.\n"
    diagnosis = judged(tmp_path, train__log=text)
    assert diagnosis.verdict is Verdict.UNDECIDABLE
    assert diagnosis.exit_code == 11
    assert diagnosis.findings[0].victims == (3,)
    assert diagnosis.next_steps


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("   - [1, 6] finished collective #4, but didn't join collective #5 (count from 1)\n", (1, 6)),
        ("RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms\n", (1,)),
    ],
    ids=["desync", "monitored-barrier"],
)
def test_reports_that_name_who_is_absent_are_believed(
    tmp_path: Path, text: str, ranks: tuple[int, ...]
) -> None:
    diagnosis = judged(tmp_path, train__log=text)
    assert (diagnosis.verdict, diagnosis.findings[0].culprits.ranks) == (Verdict.HANG, ranks)


# ---- fingerprints


def print_of(rank: int, text: str) -> str:
    return f"Rank {rank} is running collective: CollectiveFingerPrint({text})"


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[100], TensorDtypes=Float", "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[200], TensorDtypes=Float", "size mismatch at seq 7"),
        ("SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[100], TensorDtypes=Float", "SequenceNumber=7, OpType=BROADCAST, TensorShape=[100], TensorDtypes=Float", "order mismatch"),
        ("SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[100], TensorDtypes=Float", "SequenceNumber=8, OpType=ALLREDUCE, TensorShape=[100], TensorDtypes=Float", "sequence mismatch"),
        ("SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[100], TensorDtypes=Float", "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[100], TensorDtypes=Half", "type mismatch"),
    ],
    ids=["size", "order", "sequence", "type"],
)  # fmt: skip
def test_how_two_fingerprints_differ_is_said_and_nobody_is_voted_out(
    tmp_path: Path, a: str, b: str, words: str
) -> None:
    diagnosis = judged(
        tmp_path,
        log=f"RuntimeError: Detected mismatch between collectives on ranks. {print_of(0, a)}, but {print_of(1, b)}.\n",
    )
    assert words in diagnosis.headline
    assert diagnosis.findings[0].culprits.ranks == ()
    assert "no hardware" in said(diagnosis)


def test_a_fingerprint_of_zeros_comes_from_a_rank_that_was_going_down(tmp_path: Path) -> None:
    whole = print_of(1, "SequenceNumber=101, OpType=ALLGATHER, TensorShape=[1], TensorDtypes=Long")
    text = f"RuntimeError: Detected mismatch between collectives on ranks. {whole}, but {print_of(7, 'SequenceNumber=0OpType=REDUCE')}.\n"
    (finding,) = serious(judged(tmp_path, log=text))
    assert finding.culprits.ranks == (7,)


# ---- failures


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Kind.HARDWARE, "ECC"),
        ("RuntimeError: CUDA error: device-side assert triggered", Kind.SOFTWARE, "index out of range"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Kind.SOFTWARE, "illegal access"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Kind.RESOURCE, "out of GPU memory"),
        ("h:1:2 [3] transport/p2p.cc:275 NCCL WARN Cuda failure 2 'out of memory'", Kind.RESOURCE, "out of GPU memory"),
        ("OSError: [Errno 28] No space left on device", Kind.RESOURCE, "no space left"),
        ("OSError: [Errno 116] Stale file handle: '/mnt/a'", Kind.RESOURCE, "stale file handle"),
        ("OSError: [Errno 5] Input/output error", Kind.HARDWARE, "storage failed"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", Kind.RESOURCE, "data loader worker"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=81234.0.", Kind.RESOURCE, "out of host memory"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", Kind.RESOURCE, "out of host memory"),
        ("h:1:2 [0] init.cc:934 NCCL WARN Mismatched NCCL version detected : rank 0 version 21803 rank 1 version 22005", Kind.CONFIGURATION, "different versions"),
        ("h:1:2 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", Kind.CONFIGURATION, "same GPU"),
        ("h:1:2 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", Kind.CONFIGURATION, "registration"),
        ("ModuleNotFoundError: No module named 'flash_attn'", Kind.SOFTWARE, "flash_attn"),
    ],
)  # fmt: skip
def test_the_kind_of_a_failure_is_told_by_its_message(
    tmp_path: Path, text: str, kind: Kind, words: str
) -> None:
    diagnosis = judged(tmp_path, train__log=text + "\n")
    assert (diagnosis.verdict, diagnosis.findings[0].kind) == (Verdict.FAILED, kind)
    assert words in diagnosis.headline


def test_one_cuda_error_met_by_many_is_one_failure(tmp_path: Path) -> None:
    text = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    text += "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
    diagnosis = judged(tmp_path, train__log=text)
    (finding,) = diagnosis.findings
    assert finding.culprits.ranks == (1,)


def test_the_first_failure_of_a_summary_counts_and_its_signals_are_understood(tmp_path: Path) -> None:
    summary = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \nFailures:\n[1]:\n  host      : n12\n  rank      : 19 (local_rank: 3)\n"
        "  exitcode  : -6 (pid: 4243)\nRoot Cause (first observed failure):\n[0]:\n  host      : n12\n  rank      : 18 (local_rank: 2)\n  exitcode  : -9 (pid: 4242)\n"
    )
    (finding,) = serious(judged(tmp_path, train__log=summary))
    assert (finding.culprits.ranks, finding.culprits.nodes, finding.kind) == ((18,), ("n12",), Kind.RESOURCE)
    assert "SIGKILL" in finding.summary


def test_a_reset_connection_accuses_nobody(tmp_path: Path) -> None:
    text = DIST + "socketProgressOpt: Call to recv from 172....<33759> failed : Connection reset by peer\n"
    diagnosis = judged(tmp_path, train__log=text)
    assert diagnosis.verdict is Verdict.UNDECIDABLE
    assert not any(item.culprits.ranks or item.culprits.nodes for item in diagnosis.findings)
    assert "172....<33759>" in said(diagnosis)
    assert len(diagnosis.alternatives) == 2


def test_a_loss_that_is_no_number_is_no_hardware(tmp_path: Path) -> None:
    text = " iteration 100/ 1000 | elapsed time per iteration (ms): 1000.0 | lm loss: nan | number of nan iterations: 1 |\n"
    diagnosis = judged(tmp_path, train__log=text)
    assert diagnosis.verdict is Verdict.HEALTHY
    assert "no hardware fault" in said(diagnosis)


def test_errors_that_tell_no_cause_are_not_called_healthy(tmp_path: Path) -> None:
    diagnosis = judged(tmp_path, log="h:1:2 [3] NCCL INFO transport/net.cc:1132 -> 6\n")
    assert diagnosis.verdict is Verdict.UNDECIDABLE


# ---- beside recordings


def beside(folder: Path, seen: Diagnosis, shift: int) -> Diagnosis:
    """A diagnosis of recordings together with an Xid that was logged ``shift`` ns after its first finding."""
    window = seen.findings[0].window
    assert window is not None
    at = datetime.fromtimestamp((window.start + shift) // 1_000_000_000, timezone.utc)
    stamp = f"{at:%Y-%m-%dT%H:%M:%S}+00:00"
    text = xid(79, text="GPU has fallen off the bus.").replace("2025-01-06T01:02:03.000000+00:00", stamp)
    (folder / "kernel.log").write_text(text, encoding="utf-8")
    return with_evidence(seen, open_trace([folder]))


def test_a_cause_in_a_kernel_log_comes_before_the_hang_that_recordings_show(tmp_path: Path) -> None:
    seen = hang()
    both = beside(tmp_path, seen, -5_000_000_000)
    assert (seen.verdict, both.verdict) == (Verdict.HANG, Verdict.FAILED)
    assert "Xid 79" in both.headline
    assert (both.findings[1].summary, both.findings[1].caused_by) == (seen.findings[0].summary, ("f1",))
    assert [item.id for item in both.findings] == [f"f{i + 1}" for i in range(len(both.findings))]


def test_an_xid_of_another_year_changes_no_verdict_of_recordings(tmp_path: Path) -> None:
    seen = hang()
    old = beside(tmp_path, seen, -400 * 86_400_000_000_000)
    assert (old.verdict, old.headline) == (seen.verdict, seen.headline)
    assert old.findings[-1].severity is Severity.P3


def test_the_hint_on_logging_names_the_function_that_the_stack_shows(tmp_path: Path) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/app/train.py", line 9, in training_step\n    self.log_dict(metrics)\n'
        '  File "/app/metrics.py", line 3, in log_dict\n    dist.all_reduce(value)\n'
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[1]), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=1, OpType=BROADCAST, TensorShape=[8]).\n"
    )
    report = said(judged(tmp_path, train__log=text))
    assert "log_dict reduces logged metrics" in report
    assert "_sync_ddp" not in report
