"""Processes of a job from a tree like /proc, and what they wait for from their states and stacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatrace.analysis.standing import Standing, main_thread, where_stands
from megatrace.collect.processes import (
    descendants,
    of_job,
    python_stack,
    ranks_among,
    read_process,
    rings_of,
)

ATTACH = [sys.executable, "-m", "megatrace", "attach"]


def process(root: Path, pid: int, parent: int, state: str = "S", **environment: str) -> None:
    folder = root / str(pid)
    folder.mkdir()
    status = f"Name:\tpython\nState:\t{state} (x)\nPPid:\t{parent}\nThreads:\t{pid % 7}\n"
    (folder / "status").write_text(status)
    (folder / "environ").write_text("\0".join(f"{name}={value}" for name, value in environment.items()))
    (folder / "cmdline").write_text("/usr/bin/python3\0train.py\0")
    (folder / "wchan").write_text("futex_wait_queue")
    ring = "7f00 rw-s 00000000 00:19 5  /dev/shm/megatrace-0/a/torch-n-5.ring"
    (folder / "maps").write_text(f"{ring}\n7f01 r-xp /lib/x.so\n")


def test_a_process_is_read_with_its_rank_and_its_rings(tmp_path: Path) -> None:
    process(tmp_path, 5, 1, "D", RANK="3", LOCAL_RANK="1")
    found = read_process(5, tmp_path)
    assert found is not None
    assert (found.pid, found.parent, found.state, found.rank, found.local_rank) == (5, 1, "D", 3, "1")
    assert found.command == ("/usr/bin/python3", "train.py")
    assert found.says == "in uninterruptible sleep"
    assert rings_of(5, tmp_path) == (f"{tmp_path}/5/root/dev/shm/megatrace-0/a/torch-n-5.ring",)
    assert read_process(6, tmp_path) is None


def test_a_rank_that_a_launcher_set_after_it_forked_is_in_the_file_beside_the_ring(tmp_path: Path) -> None:
    process(tmp_path, 5, 1)
    rings = tmp_path / "5" / "root" / "dev" / "shm" / "megatrace-0" / "a"
    rings.mkdir(parents=True)
    found = read_process(5, tmp_path)
    assert found is not None
    assert found.rank is None
    (rings / "groups-n-5.json").write_text('{"rank": 6}')
    found = read_process(5, tmp_path)
    assert found is not None
    assert found.rank == 6


def test_a_job_is_a_process_and_all_below_it_or_who_carries_its_number(tmp_path: Path) -> None:
    process(tmp_path, 5, 1)
    process(tmp_path, 6, 5, SLURM_JOB_ID="88")
    process(tmp_path, 7, 6, MEGATRACE_JOB="88")
    process(tmp_path, 8, 1, SLURM_JOB_ID="8")
    assert descendants(5, tmp_path) == (5, 6, 7)
    assert of_job("88", tmp_path) == (6, 7)


def test_of_a_launcher_and_its_child_with_the_same_rank_the_child_counts(tmp_path: Path) -> None:
    process(tmp_path, 5, 1, SLURM_PROCID="3")
    process(tmp_path, 6, 5, RANK="3")
    (tmp_path / "5" / "maps").write_text("")
    read = [found for pid in (5, 6) for found in [read_process(pid, tmp_path)] if found is not None]
    assert {rank: found.pid for rank, found in ranks_among(read).items()} == {3: 6}


def test_this_process_is_found_in_the_real_proc() -> None:
    found = read_process(os.getpid())
    assert found is not None
    assert found.parent == os.getppid()
    assert os.getpid() in descendants(os.getppid())


def test_a_missing_pyspy_is_a_reason_and_a_hanging_one_is_ended(tmp_path: Path) -> None:
    assert python_stack(1, str(tmp_path / "none")) == ("", "py-spy is not installed (pip install py-spy)")
    failing = tmp_path / "py-spy"
    failing.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    failing.chmod(0o755)
    assert python_stack(1, str(failing)) == ("", "py-spy: Error: Permission Denied")


LOADER = """Thread 12 (idle): "Thread-3"
    wait (threading.py:320)
Thread 11 (idle): "MainThread"
    poll (multiprocessing/connection.py:257)
    _try_get_data (torch/utils/data/dataloader.py:1131)
    train (train.py:88)
"""
SAVING = "    save_checkpoint (megatron/training/checkpointing.py:1)\n"
REDUCING = "    all_reduce (torch/distributed/distributed_c10d.py:2)\n"
FORWARD = "    forward (train.py:7)\n"


@pytest.mark.parametrize(
    ("state", "channel", "kernel", "python", "standing", "says"),
    [
        ("Z", "", "", "", Standing.DEAD, "is dead"),
        ("T", "do_signal_stop", "", LOADER, Standing.STOPPED, "is stopped by a signal"),
        ("D", "rpc_wait_bit_killable", "", "", Standing.STORAGE, "a network file system"),
        ("D", "", "[<0>] io_schedule+0x12\n[<0>] ext4_sync_file", "", Standing.STORAGE, "a disk"),
        ("D", "", "", "", Standing.UNKNOWN, "in the kernel"),
        ("S", "ep_poll", "", LOADER, Standing.DATA_LOADER, "waits for its data loader"),
        ("S", "", "", SAVING, Standing.CHECKPOINT, "a checkpoint"),
        ("S", "", "", REDUCING, Standing.COLLECTIVE, "communication"),
        ("S", "hrtimer_nanosleep", "", FORWARD, Standing.SLEEPING, "sleeps in forward (train.py:7)"),
        ("R", "", "", "    tokenize (data.py:3)\n", Standing.RUNNING, "runs in tokenize (data.py:3)"),
        ("R", "", "", "", Standing.RUNNING, "runs on a processor"),
        ("S", "futex_wait_queue", "", "", Standing.UNKNOWN, "nothing tells for what"),
    ],
)  # fmt: skip
def test_where_a_process_stands(
    state: str, channel: str, kernel: str, python: str, standing: Standing, says: str
) -> None:
    found = where_stands(state, channel, kernel, python)
    assert found.standing is standing
    assert says in found.says
    assert found.evidence


def test_what_another_thread_does_is_not_where_the_rank_stands() -> None:
    assert "threading.py" not in main_thread(LOADER)
    background = (
        LOADER.replace("Thread-3", "X").replace("MainThread", "Thread-3").replace('"X"', '"MainThread"')
    )
    assert where_stands("S", "", "", background).standing is Standing.UNKNOWN


def test_a_stopped_rank_of_a_live_job_is_found(tmp_path: Path) -> None:
    """Two ranks with rings; one is stopped by a signal, as a debugger or a batch system would."""
    code = (
        "import os, sys, time\n"
        "from megatrace.collect import torch_ring\n"
        "ring = torch_ring.open_ring()\n"
        "ring.put(torch_ring.tail_of(1, 7), b'12345678', 0, 4, -1)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    ranks = []
    try:
        for rank in (0, 1):
            environment = {**os.environ, "RANK": str(rank), "MEGATRACE_RING_DIR": str(tmp_path / "shm")}
            environment["MEGATRACE_JOB"] = f"attach-{os.getpid()}"
            started = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
            ranks.append(started)
            assert started.stdout is not None
            assert started.stdout.readline() == b"ready\n"
        os.kill(ranks[1].pid, 19)
        done = subprocess.run(
            [*ATTACH, f"attach-{os.getpid()}", "--out", str(tmp_path / "e"), "--ras", "localhost:1"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        for started in ranks:
            started.kill()
            started.communicate()
    assert f"rank 1, process {ranks[1].pid} is stopped by a signal" in done.stdout
    assert "evidence of 2 processes" in done.stdout
    assert "no answer of NCCL's RAS" in done.stderr
    assert len(list((tmp_path / "e" / "rings").glob("torch-*.ring"))) == 2
    assert (tmp_path / "e" / "processes.json").exists()


def test_a_job_that_is_not_here_is_a_usage_error() -> None:
    done = subprocess.run([*ATTACH, "no-such-job"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no process here is no-such-job" in done.stderr
