"""The environment of a recorded job, and a command run as if nobody watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatrace.collect.launch import STARTUP, Parts, Wanted, environment_of, parallel
from megatrace.collect.supervise import supervise
from megatrace.errors import UsageError
from megatrace.model.job import JobConfig, Sourced

FULL = Parts(Path("/l/r.so"), Path("/l/preload.so"), Path("/l/plugin.so"), Path("/l/verbs.so"))
NONE = Parts(Path("/l/r.so"), None, None, None)


def test_ours_come_first_and_what_stood_there_stays() -> None:
    before = {"LD_PRELOAD": "/a.so /b.so", "NCCL_PROFILER_PLUGIN": "inspector", "PYTHONPATH": "/p:"}
    change, notes = environment_of(before, FULL, Wanted(), {"MEGATRACE_JOB": "7"})
    assert notes == ()
    assert change == {
        "MEGATRACE_JOB": "7",
        "LD_PRELOAD": "/l/preload.so:/a.so:/b.so",
        "NCCL_PROFILER_PLUGIN": "/l/plugin.so",
        "MEGATRACE_CHAIN_PROFILER": "inspector",
        "PYTHONPATH": f"{STARTUP}:/p:",  # an empty entry means the current folder: it must not get lost
    }


def test_a_launcher_inside_a_launcher_changes_nothing_more() -> None:
    once, _ = environment_of({"NCCL_PROFILER_PLUGIN": "none"}, FULL, Wanted(verbs=True), {})
    twice, _ = environment_of(once, FULL, Wanted(verbs=True), {})
    assert {**once, **twice} == once
    assert "MEGATRACE_CHAIN_PROFILER" not in once, "none means that there is nothing to chain"


def test_a_part_that_is_not_wanted_leaves_its_variable_alone() -> None:
    change, notes = environment_of({}, FULL, Wanted(preload=False, plugin=False, torch=False), {})
    assert (change, notes) == ({}, ())


def test_a_part_that_is_not_installed_is_said_and_the_rest_is_set() -> None:
    change, notes = environment_of({}, NONE, Wanted(verbs=True), {})
    assert list(change) == ["PYTHONPATH"]
    assert len(notes) == 3


def test_without_the_native_part_the_hook_of_torch_is_left() -> None:
    nothing = Parts(None, None, None, None)
    change, notes = environment_of({}, nothing, Wanted(verbs=True), {"MEGATRACE_JOB": "7"})
    assert change == {"MEGATRACE_JOB": "7", "PYTHONPATH": str(STARTUP)}
    assert len(notes) == 1
    assert notes[0].startswith("only torch.distributed is recorded")


def test_a_path_that_the_loader_would_split_is_not_preloaded() -> None:
    parts = Parts(FULL.recorder, Path("/my tools/p.so"), None, None)
    change, notes = environment_of({}, parts, Wanted(plugin=False), {})
    assert "LD_PRELOAD" not in change
    assert "blank" in notes[0]


def test_kernels_are_watched_only_when_asked_for() -> None:
    change, _ = environment_of({}, FULL, Wanted(kernels=True), {})
    assert change["MEGATRACE_NCCL_KERNELS"] == "1"
    assert "MEGATRACE_NCCL_KERNELS" not in environment_of({}, NONE, Wanted(kernels=True), {})[0]


def test_the_proxy_is_watched_only_when_asked_for() -> None:
    assert environment_of({}, FULL, Wanted(network=True), {})[0]["MEGATRACE_NCCL_NETWORK"] == "1"
    assert "MEGATRACE_NCCL_NETWORK" not in environment_of({}, FULL, Wanted(), {})[0]


def test_rings_carry_the_sizes_that_are_known() -> None:
    job = JobConfig(tensor=Sourced(2, "argument"), pipeline=Sourced(4, "argument"))
    assert (parallel(job), parallel(JobConfig())) == ("tp=2,pp=4", "")


def test_work_requests_are_recorded_only_when_asked_for() -> None:
    change, _ = environment_of({}, FULL, Wanted(verbs=True), {})
    assert change["LD_PRELOAD"] == "/l/preload.so:/l/verbs.so"
    assert change["NCCL_IBVERBS_LIB"] == "/l/verbs.so"
    theirs, _ = environment_of({"NCCL_IBVERBS_LIB": "/x.so"}, FULL, Wanted(verbs=True), {})
    assert "NCCL_IBVERBS_LIB" not in theirs, "a library that somebody chose is not replaced"


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_commands_own(script: str, code: int) -> None:
    before = signal.getsignal(signal.SIGCHLD), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert supervise(["sh", "-c", script], os.environ) == code
    assert (signal.getsignal(signal.SIGCHLD), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before


def test_a_command_that_cannot_be_started_is_said() -> None:
    with pytest.raises(UsageError, match="/nonexistent/train cannot be started: No such file or directory"):
        supervise(["/nonexistent/train"], {})


def _until(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_that_somebody_sends_reaches_the_job(tmp_path: Path, number: signal.Signals) -> None:
    ready, got = tmp_path / "ready", tmp_path / "got"
    script = f"trap 'echo x > {got}; exit 9' {number.value}; echo > {ready}; while :; do sleep 0.02; done"
    code = "import os\nfrom megatrace.collect.supervise import supervise\n"
    code += f"raise SystemExit(supervise(['sh', '-c', {script!r}], os.environ))"

    def heeded() -> None:
        """A shell cannot trap what it was told to ignore, as jobs in the background are of SIGINT."""
        signal.signal(number, signal.SIG_DFL)

    with subprocess.Popen([sys.executable, "-c", code], preexec_fn=heeded) as launcher:
        try:
            _until(ready)
            launcher.send_signal(number)
            assert launcher.wait(60) == 9
        finally:
            launcher.kill()
    assert got.read_text() == "x\n"
