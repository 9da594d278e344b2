"""Faults for practice: they begin, they end, and they are undone however the one who makes them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatrace.collect.injection import busy, busy_gpu, delayed, paused, receiving_nothing
from megatrace.errors import UsageError
from megatrace.model.events import Op
from megatrace.model.ringformat import parse_ring

INJECT = [sys.executable, "-m", "megatrace", "inject"]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(pid: int, wanted: str) -> None:
    deadline = time.monotonic() + 60
    while state(pid) != wanted:
        assert time.monotonic() < deadline, f"process {pid} is {state(pid)}, not {wanted}"
        time.sleep(0.01)


@pytest.fixture
def victim() -> Iterator[int]:
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, "MEGATRACE_JOB": "inj", "RANK": "2"}
    ) as process:
        yield process.pid
        process.kill()


def test_a_paused_process_goes_on_afterwards(victim: int) -> None:
    until(victim, "S")
    with paused([victim]):
        until(victim, "T")
    until(victim, "S")


def test_it_goes_on_after_an_error_in_the_block(victim: int) -> None:
    def interrupted() -> None:
        with paused([victim]):
            until(victim, "T")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    until(victim, "S")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_goes_on_however_the_command_is_ended(victim: int, number: signal.Signals) -> None:
    words = [*INJECT, "pause", "--job", "inj", "--rank", "2", "--for", "10m"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline().startswith(f"process {victim} is stopped for 10m")
        until(victim, "T")
        command.send_signal(number)
        command.wait(60)
    until(victim, "S")


def test_processors_are_kept_busy_only_as_long_as_asked() -> None:
    before = children()
    with busy(2, [min(os.sched_getaffinity(0))]):
        made = children() - before
        assert len(made) == 2
    assert children() == before


def children() -> set[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(word) for word in text.split()}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pause", "--for", "1s"], "pause needs a target"),
        (["pause", "--job", "nowhere", "--rank", "1", "--for", "1s"], "has no process of rank 1"),
        (["pause", "--pid", "99999999", "--for", "1s"], "cannot be stopped"),
        (["recv", "--for", "1s"], "recv needs a target"),
        (["recv", "--pid", "2", "--for", "1s"], "has no ring of torch.distributed"),
        (["gpu", "--for", "1s"], "gpu needs --device"),
        (["gpu", "--device", "0", "--python", "/nowhere/python", "--for", "1s"], "cannot be started"),
        (["cpu", "--for", "1s"], "cpu needs --workers"),
        (["cpu", "--workers", "1", "--cpus", "9999", "--for", "1s"], "processors of this machine"),
        (["delay", "--for", "1s"], "delay needs --interface"),
        (["cpu", "--workers", "1", "--for", "2h"], "at most an hour"),
    ],
)
def test_without_a_target_or_a_bound_it_refuses(words: list[str], says: str) -> None:
    done = subprocess.run([*INJECT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_it_does_not_stop_itself_or_its_shell() -> None:
    for pid in (os.getpid(), os.getppid()):
        with pytest.raises(UsageError, match="is no rank"), paused([pid]):
            pytest.fail("the block ran")


def test_an_interface_that_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="tc"), delayed("nosuch0", 5):
        pytest.fail("the block ran")


RANK = """
import sys, time
sys.path[:0] = {paths!r}
from types import ModuleType
from tests.unit.test_torch_hook import Tensor, torch_like
from megatrace.collect import torch_hook
module = torch_like()
torch_hook.install(module)
group = module.ProcessGroup("3", [0, 4])
number = 0
while True:
    group.send([Tensor(4)], 0, 0)
    group.recv([Tensor(4)], 0, 0)
    number += 1
    print(number, flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of a job that posts a Recv all the time, and prints how many there were."""
    environment = {**os.environ, "MEGATRACE_RING_DIR": str(tmp_path), "RANK": "4"}
    code = RANK.format(paths=[*sys.path, str(Path(__file__).resolve().parents[2])])
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process
        process.kill()


def calls(folder: Path) -> list[Op]:
    (path,) = folder.glob("torch-*.ring")
    return [Op(int(op)) for op in parse_ring(path.read_bytes(), path.name).records["op"]]


def test_a_rank_posts_no_recv_until_the_time_is_over(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    with receiving_nothing(rank.pid, 600):
        deadline = time.monotonic() + 60
        before = -1
        while before != len(calls(tmp_path)) and time.monotonic() < deadline:
            before = len(calls(tmp_path))
            time.sleep(0.5)
        made = calls(tmp_path)
        assert made[-1] is Op.SEND, "it stands before its Recv, which is not recorded as made"
        assert made.count(Op.SEND) == made.count(Op.RECV) + 1
    deadline = time.monotonic() + 60
    while len(calls(tmp_path)) < len(made) + 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    after = calls(tmp_path)
    assert after[len(made)] is Op.RECV, "the Recv that was held back is posted: no message is lost"
    assert len(after) >= len(made) + 4


def test_recvs_are_posted_again_when_the_command_is_killed(
    rank: subprocess.Popen[str], tmp_path: Path
) -> None:
    words = [*INJECT, "recv", "--pid", str(rank.pid), "--for", "10m"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline().startswith(f"process {rank.pid} posts no Recv for 10m")
        time.sleep(0.5)
        stood = len(calls(tmp_path))
        command.kill()
    deadline = time.monotonic() + 60
    while len(calls(tmp_path)) < stood + 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(calls(tmp_path)) >= stood + 4


TORCH = """
import os, sys, time
class cuda:
    is_available = staticmethod(lambda: {available})
    device_count = staticmethod(lambda: 1)
    @staticmethod
    def synchronize(device):
        time.sleep(0.01)
class no_grad:
    def __enter__(self): open({seen!r}, "w").write(str(os.getpid()))
    def __exit__(self, *_): pass
class Matrix:
    def __matmul__(self, other): return self
def randn(*shape, device):
    assert device == "cuda:0"
    return Matrix()
"""


def test_a_gpu_is_kept_busy_only_as_long_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "pid"
    (tmp_path / "torch.py").write_text(TORCH.format(available=True, seen=str(seen)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with busy_gpu(0, sys.executable):
        pid = int(seen.read_text())
        assert state(pid) in "RS"
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(UsageError, match="there is no GPU 3; PyTorch sees 1"), busy_gpu(3, sys.executable):
        pytest.fail("the block ran")
    (tmp_path / "torch.py").write_text(TORCH.format(available=False, seen=str(seen)))
    with pytest.raises(UsageError, match="there is no GPU that"), busy_gpu(0, sys.executable):
        pytest.fail("the block ran")


TC = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in *show*) echo "qdisc {there} 0: root refcnt 2";; esac
"""


def test_a_delay_is_added_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, program = tmp_path / "log", tmp_path / "tc"
    program.write_text(TC.format(log=log, there="noqueue"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with delayed("eth7", 20):
        assert log.read_text().splitlines()[-1] == "qdisc add dev eth7 root netem delay 20ms"
    assert log.read_text().splitlines()[-1] == "qdisc del dev eth7 root netem"
    program.write_text(TC.format(log=log, there="htb"))
    with pytest.raises(UsageError, match="discipline of its own"), delayed("eth7", 20):
        pytest.fail("the block ran")
