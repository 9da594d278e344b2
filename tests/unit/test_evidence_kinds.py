"""Inputs of every kind that users bring, one after another of other versions, hosts and causes: who is blamed.

Beside what must be said stands what must not: victims, echoes and lines that only look frightening.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from megatrace.model.finding import Severity
from megatrace.reports.sentences_zh import translated
from tests.unit.log_cases import judged, said, xid


@dataclass(frozen=True)
class Given:
    """Files by name, the verdict, the ranks blamed, what must and must not stand in the report."""

    name: str
    verdict: str
    files: dict[str, str]
    must: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None


def print_of(rank: int, seq: int, op: str, shape: str, dtype: str) -> str:
    return (
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, TensorShape=[{shape}], "
        f"TensorDtypes={dtype}, TensorDeviceTypes=TensorOptions(device=cuda))"
    )


def mismatch(a: str, b: str) -> str:
    return f"RuntimeError: Detected mismatch between collectives on ranks. {a}, but {b}.Collectives differ in the following aspects: x\n"


def waits(rank: int, seq: int, op: str = "ALLREDUCE", numel: int = 640, at: str = "04:20:11.1") -> str:
    return (
        f"[rank{rank}]:[E211 {at} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
        f"SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
    )


def link(second: int, word: str) -> str:
    return f"2026-02-11T04:0{second // 60}:{second % 60:02d}.000000+00:00 fir-5 kernel: mlx5_core 0000:1a:00.0 ens5f0np0: Link {word}\n"


def iteration(step: int, ms: float, loss: str = "2.1000E+00", nan: int = 0) -> str:
    return (
        f" [2026-02-02 10:{step % 60:02d}:00] iteration {step:8d}/ 9000 | elapsed time per iteration (ms): {ms:.1f} | "
        f"throughput per GPU (TFLOP/s/GPU): 400.0 | lm loss: {loss} | number of nan iterations: {nan} |\n"
    )


CASES = (
    Given("a check of fingerprints raises: no hang", "failed", {"train__log": mismatch(print_of(6, 77, "ALLREDUCE", "4096", "Float"), print_of(0, 77, "ALLREDUCE", "4096", "BFloat16"))},
          ("type mismatch at seq 77", "Float", "BFloat16", "precision"), ("sequence length",), ()),
    Given("an uneven split", "failed", {"train__log": mismatch(print_of(3, 0, "ALLGATHER", "2, 1023, 4096", "Half"), print_of(0, 0, "ALLGATHER", "2, 1024, 4096", "Half"))},
          ("very first collective", "dimension 1, by 1"), (), ()),
    Given("who is behind, not who is first", "hang", {"train__log": "".join(
        waits(r, s) + f"[rank{r}]:[E211 04:20:11.2 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected by watchdog at work sequence id: {s} "
        f"PG status: last enqueued work: {e}, last completed work: {s - 1}\n" for r, s, e in ((0, 840, 843), (1, 840, 843), (2, 839, 839)))},
          ("rank 2 never enqueued",), ("suspect rank 0",), (2,)),
    Given("one victim alone", "undecidable", {"train__log": waits(17, 52001, "_ALLGATHER_BASE")}, ("rank 17 waits", "flight-recorder dump"), ("suspect rank 17",), ()),
    Given("only echoes of a watchdog", "undecidable", {"train__log": "[rank3]:[E211 04:14:12.1 ProcessGroupNCCL.cpp:1316] [Rank 3] Some NCCL operations have failed or timed out.\n"
          "[rank3]:[E211 04:14:12.1 ProcessGroupNCCL.cpp:1316] To avoid data inconsistency, we are taking the entire process down.\n"}, ("LOGS_OF_ALL_RANKS", "dmesg"), ("suspect rank",), ()),
    Given("a store that a victim cannot reach", "undecidable", {"train__log": "[rank40]: torch.distributed.DistBackendError: [40] is setting up NCCL communicator and retrieving "
          "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer\n"}, ("rank 0",), ("suspect rank 40",), ()),
    Given("service threads that part at the end", "healthy", {"nccl__log": "n1:10:77 [0] NCCL INFO Using network IB\nn1:10:77 [0] NCCL INFO [Service thread] Connection closed by localRank 0\n"
          "n1:10:10 [0] NCCL INFO comm 0x55b1 rank 0 nranks 16 cudaDev 0 busId 1b000 - Destroy COMPLETE\n"}, (), ("victim", "reset or closed"), ()),
    Given("a message longer than its buffer", "failed", {"nccl__log": "w-3:55:101 [7] NCCL WARN NET/Socket : peer 10.3.0.7<41000> message truncated : receiving 1048576 bytes instead of 262144\n"},
          ("1,048,576", "262,144"), ("not the link.*broken",)),
    Given("CUDA's own word under an NCCL error", "failed", {"train__log": "[rank7]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, NCCL version 2.26.2\n"
          "[rank7]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank7]: Last error:\n[rank7]: Cuda failure 2 'out of memory'\n"}, ("rank 7: out of GPU memory",), ("network between",), (7,)),
    Given("contained errors book a row, too", "failed", {"kern__log": xid(63, text="Row Remapper: New row marked for remapping, reset gpu to activate.") + xid(94, text="Contained: CE User Channel (0x9).")},
          ("Xid 94", "Xid 63"), ("open a replacement",)),
    Given("a second line of one switch error", "failed", {"kern__log": "[120000.100000] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 19084, Fatal, Link 29 AN1 Heartbeat Timeout Error\n"
          "[120000.100001] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 19084, Severity 1 Engine instance 29 Sub-engine instance 00\n"}, ("19084", "port 29", "fatal"), ("non-fatal",)),
    Given("a fabric manager of another version", "failed", {"j__log": "Dec 01 12:00:00 box nv-fabricmanager[3311]: fabric manager NVIDIA GPU driver interface version 565.57 don't match with driver version.\n"
          "Dec 01 12:00:00 box systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE\n"}, ("565.57", "must equal the driver's"), ("RMA",)),
    Given("GSP met by a monitor", "failed", {"kern__log": xid(119, "0000:1b:00", "Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 10 (FREE).")
          + xid(119, "0000:1b:00", "Timeout after 45s of waiting for RPC response from GPU1 GSP!", at=59)}, ("Xid 119 ×2", "GPU 1 by the driver's text", "reset"), ("2 GPUs",)),
    Given("a flapping port before watchdogs", "failed", {"syslog": "".join(link(60 * m + s, w) for m in range(5) for s, w in ((12, "down"), (17, "up"))), "train__log": "".join(waits(r, 77) for r in range(4))},
          ("ens5f0np0 on fir-5 flaps: 5 carrier losses",), ("10 carrier",)),
    Given("a killed process before broken pipes", "failed", {"dmesg": "[Wed Feb 11 04:10:05 2026] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,global_oom,task_memcg=/user,task=python3,pid=44021,uid=1\n"
          "[Wed Feb 11 04:10:05 2026] Out of memory: Killed process 44021 (python3) total-vm:900kB, anon-rss:314572800kB, file-rss:0kB\n",
          "train__log": "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:5, remote process exited or there was a network error, NCCL version 2.21.5\n"
          "BrokenPipeError: [Errno 32] Broken pipe\nRoot Cause (first observed failure):\n[0]:\n  host      : fir-9\n  rank      : 10 (local_rank: 2)\n  exitcode  : -9 (pid: 44021)\n"},
          ("killed python3 \\(pid 44021\\)", "300 GiB", "rank 10"), ("network fault is",)),
    Given("a GPU that is lost while peers wait", "failed", {"kern__log": xid(79, "0000:5d:00", "GPU has fallen off the bus."), "train__log": "".join(waits(r, 77) for r in (0, 1, 2, 4, 5, 6, 7))},
          ("Xid 79", "0000:5d:00", "power-cycle"), ("network fault is",)),
    Given("DeepSpeed's launcher", "failed", {"train__log": "[2026-01-01 01:01:01,111] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 5001\n"
          "[2026-01-01 01:01:02,113] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'ds.py', '--local_rank=1'] exits with return code = -9\n"}, ("local rank 1", "SIGKILL", "dmesg"), ("local rank 0",)),
    Given("a node that Slurm lost", "failed", {"slurm__out": "srun: error: Node failure on cn-0077\nslurmstepd: error: *** JOB 771 ON cn-0001 CANCELLED AT 2026-05-05T05:05:05 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"},
          ("cn-0077 failed",), ("cn-0001 failed",)),
    Given("a checkpoint at the end", "healthy", {"train__log": "".join(iteration(i, 21_000 if i % 20 == 0 else 8_000 + i % 5 * 35) for i in range(101, 181))}, (), ("onset", "slow down")),
    Given("a lasting step in speed", "slow", {"train__log": "".join(iteration(i, 8_000 if i < 30 else 9_400) for i in range(60))}, ("between iterations 29 and 30", "\\+17.5 %"), ("culprit   rank",), ()),
    Given("a loss that is no number", "healthy", {"train__log": "".join(iteration(i, 8_000) for i in range(20)) + "".join(iteration(i, 8_000, "NAN", 1) for i in range(20, 26))}, ("not a number",), ("slow down",)),
    Given("warnings of a run that went well", "healthy", {"train__log": "[rank0]:[W101 01:00:05.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\n"
          "W0101 00:00:01.000000 1 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"}, (), ("victim", "suspect"), ()),
    Given("link errors by link", "healthy", {"nvl__txt": "GPU 1: NVIDIA A100 (UUID: GPU-1)\n\t Link 3: Replay Errors: 7\n\t Link 3: CRC Errors: 904\n"}, ("GPU 1: link 3 Replay 7", "link 3 CRC 904"), ("replace",)),
    Given("an exception that only the launcher's summary quotes", "failed", {"train__log": "Root Cause (first observed failure):\n[1]:\n  host      : fir-2\n  rank      : 12 (local_rank: 4)\n  exitcode  : 1 (pid: 500)\n"
          "  traceback : Traceback (most recent call last):\n    File \"/w/t.py\", line 9, in main\n  RuntimeError: tokenizer missing\n"}, ("rank 12 raised RuntimeError: tokenizer missing",), (), (12,)),
    Given("a kill that an older kernel tells in two lines", "failed", {"syslog": "Jul  9 08:00:00 oak kernel: Memory cgroup out of memory: Kill process 2211 (python) score 990 or sacrifice child\n"
          "Jul  9 08:00:00 oak kernel: Killed process 2211 (python) total-vm:1kB, anon-rss:104857600kB, file-rss:0kB, shmem-rss:0kB\n"}, ("pid 2211", "100 GiB", "cgroup"), ("the whole host ran",)),
    Given("firmware's numbered records", "healthy", {"dmesg": "{1}[Hardware Error]: It has been corrected by h/w and requires no further action\n[12.000001] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 17: dc2040000000011b\n"}, ("kernel log",), ("GPU memory error",)),
    Given("a terminal's lines with carriage returns", "hang", {"train__log": "".join(text[i : i + 80] + "\r\n" for r in (0, 1, 3) for text in [waits(r, 90, numel=1).strip()] for i in range(0, len(text), 80))},
          ("rank 2 never reports",), (), (2,)),
    Given("a checkpoint's exception about another rank", "failed", {"train__log": "[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3])\n[rank3]: OSError: [Errno 122] Disk quota exceeded\n"},
          ("rank 3: a disk",), (), (3,)),
)  # fmt: skip


@pytest.mark.parametrize("given", CASES, ids=lambda given: given.name)
def test_the_cause_is_told_and_nobody_else_is_blamed(tmp_path: Path, given: Given) -> None:
    diagnosis = judged(tmp_path, **given.files)
    report = said(diagnosis).replace(str(tmp_path), "")
    assert diagnosis.verdict.value == given.verdict, report
    assert [word for word in given.must if not re.search(word, report)] == [], report
    assert [word for word in given.never if re.search(word, report)] == []
    if given.ranks is not None:
        serious = [item for item in diagnosis.findings if item.severity <= Severity.P2]
        assert tuple(sorted({rank for item in serious for rank in item.culprits.ranks})) == given.ranks


@pytest.mark.parametrize("given", CASES, ids=lambda given: given.name)
def test_a_verdict_on_texts_is_said_in_chinese(tmp_path: Path, given: Given) -> None:
    diagnosis = judged(tmp_path, **given.files)
    texts = [
        diagnosis.headline,
        *(item.remedy for item in diagnosis.findings),
        *(s.why for s in diagnosis.next_steps),
    ]
    assert [text for text in texts if text and translated(text) is None] == []


def test_groups_with_names_in_brackets_stay_whole_in_chinese() -> None:
    english = "2 groups are stuck at once: ALLGATHER seq 90 of PG GUID 31 (sp) (rank 5) and REDUCE seq 4 of PG GUID 12 (dp) (rank 22); likely an order or concurrency fault between collectives (deadlock)"
    assert "PG GUID 31 (sp) 的 ALLGATHER seq 90（rank 5）" in (translated(english) or "")
