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

from megatrace.collect.injection import busy, delayed, paused
from megatrace.errors import UsageError

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
