"""Checks that sleep, flood, crash, eat memory or stand in the kernel: contained, told, and harmless to the
others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatrace.bot.catalogue import CheckInfo, infos, select
from megatrace.bot.check_runner import Switches, WorkerRunner, run_inline
from megatrace.bot.checks import CHECKS
from megatrace.bot.counters import Counters
from megatrace.bot.live_system import LiveSystem
from megatrace.bot.recorded_system import RecordedSystem, Recording
from megatrace.model.check import CheckResult, Outcome
from megatrace.model.finding import Severity
from megatrace.model.system import FileKind, Unreadable, Why
from megatrace.registry import Registry

BAD = """
from __future__ import annotations
import os, signal, sys, time
from megatrace.bot.look import Skipped, Unknown
from bad_checks import check

@check("A-01", summary="sleeps", subject="x", severity="P1", step="A0", timeout_s=0.5)
def sleeps(look):
    look.at("the bed")
    time.sleep(600)
    yield

@check("A-02", summary="hangs where that is the fault", subject="x", severity="P0", step="A5",
       timeout_s=0.5, hang="the driver")
def hangs(look):
    look.at("nvidia-smi -q")
    time.sleep(600)
    yield

@check("B-01", summary="floods", subject="x", severity="P1", step="A0", timeout_s=5)
def floods(look):
    for _ in range(200):
        print("x" * 100_000)
        sys.stderr.write("y" * 100_000)
        os.write(1, b"z" * 100_000)
    look.said = "flooded"
    return
    yield

@check("B-02", summary="finds without end", subject="x", severity="P2", step="A0", timeout_s=5)
def endless(look):
    number = 0
    while True:
        number += 1
        yield look.fail(f"problem {number}")

@check("C-01", summary="crashes", subject="x", severity="P1", step="A0")
def crashes(look):
    yield look.fail("half of it")
    raise ZeroDivisionError("oops")

@check("C-02", summary="crashes at once", subject="x", severity="P1", step="A0")
def crashes_at_once(look):
    raise ZeroDivisionError("oops")
    yield

@check("D-01", summary="eats memory", subject="x", severity="P1", step="A0", timeout_s=10)
def eats(look):
    kept = []
    while True:
        kept.append(bytearray(64 << 20))
    yield

@check("E-01", summary="dies", subject="x", severity="P1", step="A0")
def dies(look):
    os.kill(os.getpid(), signal.SIGSEGV)
    yield

@check("F-01", summary="runs a program that floods", subject="x", severity="P1", step="A0", timeout_s=20)
def program_floods(look):
    look.output("sh", "-c", "yes", timeout_s=15)
    yield

@check("F-02", summary="runs a program that never ends", subject="x", severity="P1", step="A0", timeout_s=10)
def program_hangs(look):
    look.output("sleep", "600", timeout_s=0.3)
    yield

@check("Z-01", summary="is well", subject="x", severity="P1", step="A0")
def well(look):
    growth = look.grown("looks", 7)
    look.said = f"fine {growth}"
    return
    yield
"""
INIT = """
from __future__ import annotations
from megatrace.registry import Registry
CHECKS = Registry("check", __name__, decorator="check")
check = CHECKS.register
"""


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, CheckInfo]]:
    """A catalogue of bad checks that the worker can import."""
    folder = tmp_path / "bad_checks"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT, "utf-8")
    (folder / "bad.py").write_text(BAD, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield {item.id: item for item in infos(Registry("check", "bad_checks", decorator="check"))}
    for name in [name for name in sys.modules if name.startswith("bad_checks")]:
        del sys.modules[name]


def _round(runner: WorkerRunner, catalogue: dict[str, CheckInfo], *names: str) -> dict[str, CheckResult]:
    results = runner.round([catalogue[name] for name in names], LiveSystem())
    return {result.check: result for result in results}


@pytest.fixture
def runner(catalogue: dict[str, CheckInfo]) -> Iterator[WorkerRunner]:
    made = WorkerRunner("bad_checks")
    yield made
    made.close()


def test_whatever_checks_do_every_one_has_a_result_and_the_last_one_is_well(
    runner: WorkerRunner, catalogue: dict[str, CheckInfo]
) -> None:
    found = _round(runner, catalogue, *sorted(catalogue))
    assert sorted(found) == sorted(catalogue)
    outcomes = {name: result.outcome for name, result in found.items()}
    assert outcomes == {
        "A-01": Outcome.UNKNOWN,
        "A-02": Outcome.FAIL,
        "B-01": Outcome.OK,
        "B-02": Outcome.FAIL,
        "C-01": Outcome.FAIL,
        "C-02": Outcome.UNKNOWN,
        "D-01": Outcome.UNKNOWN,
        "E-01": Outcome.UNKNOWN,
        "F-01": Outcome.UNKNOWN,
        "F-02": Outcome.UNKNOWN,
        "Z-01": Outcome.OK,
    }
    assert found["A-01"].reason == "did not end within 0.5 s at the bed"
    assert found["A-02"].findings[0].severity is Severity.P0
    assert found["A-02"].findings[0].summary == "the driver hangs (nvidia-smi -q)"
    assert len(found["B-02"].findings) == 64
    assert "ZeroDivisionError: oops" in found["C-02"].reason
    assert "MemoryError" in found["D-01"].reason
    assert "SIGSEGV" in found["E-01"].reason
    assert "printed without end" in found["F-01"].reason
    assert "sleep 600 did not answer within 0 s" in found["F-02"].reason


def test_one_worker_lives_through_rounds_and_counters_through_workers(
    runner: WorkerRunner, catalogue: dict[str, CheckInfo]
) -> None:
    assert _round(runner, catalogue, "Z-01")["Z-01"].reason == "fine None"
    assert "amount=0" in _round(runner, catalogue, "Z-01")["Z-01"].reason
    _round(runner, catalogue, "A-01")
    # The worker was killed; the next one knows what this one had read.
    assert "amount=0" in _round(runner, catalogue, "Z-01")["Z-01"].reason


class Unkillable(WorkerRunner):
    """Stands for one whose worker is in state D: it does not die though it is killed."""

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        pass


def test_a_probe_that_stands_in_the_kernel_is_abandoned_and_not_started_again_until_it_is_gone(
    catalogue: dict[str, CheckInfo],
) -> None:
    runner = Unkillable("bad_checks")
    first = _round(runner, catalogue, "A-02", "Z-01")
    assert "stands in the kernel and cannot be killed" in first["A-02"].reason
    assert first["Z-01"].outcome is Outcome.OK
    (standing,) = runner._standing["A-02"]
    again = _round(runner, catalogue, "A-02")["A-02"]
    assert again.reason.startswith(
        f"not started again: the earlier probe still stands in the kernel (process {standing.pid}"
    )
    assert again.outcome is Outcome.FAIL
    assert again.seconds == 0
    subprocess.run(["kill", "-9", str(standing.pid)], check=True)
    while standing.there:
        pass
    assert _round(runner, catalogue, "A-02")["A-02"].reason.startswith("did not end")
    for item in runner._standing["A-02"]:
        subprocess.run(["kill", "-9", str(item.pid)], check=True)
        while item.there:
            pass


def test_a_check_can_be_switched_off_or_only_observe(
    runner: WorkerRunner, catalogue: dict[str, CheckInfo]
) -> None:
    runner.switches = Switches(off=frozenset({"A-01"}), observe=frozenset({"C-01"}))
    found = _round(runner, catalogue, "A-01", "C-01")
    assert (found["A-01"].outcome, found["A-01"].reason) == (Outcome.SKIPPED, "switched off")
    assert found["C-01"].observed
    assert found["C-01"].findings


def test_what_a_recording_lacks_is_skipped_and_what_a_machine_lacks_is_unknown() -> None:
    (info,) = select(infos(CHECKS), names=("MEM-01",))
    for complete, expected in ((True, Outcome.UNKNOWN), (False, Outcome.SKIPPED)):
        (result,) = run_inline([info], RecordedSystem(Recording(complete=complete)), CHECKS)
        assert result.outcome is expected, result.reason


def test_counters_of_a_recording_come_with_it() -> None:
    (info,) = select(infos(CHECKS), names=("CPU-03",))
    place = "/sys/devices/system/edac/mc/mc0/ue_count"
    counters = Counters()
    recording = Recording(time=10**18, files={place: "1\n"}, refused={"/dev/kmsg": Why.DENIED})
    assert run_inline([info], RecordedSystem(recording), CHECKS, counters=counters)[0].outcome is Outcome.OK
    recording.files[place] = "2\n"
    (result,) = run_inline([info], RecordedSystem(recording), CHECKS, counters=counters)
    assert result.outcome is Outcome.FAIL
    assert "1 uncorrected" in result.findings[0].summary


# ---- the live machine


def test_a_live_machine_reads_lists_and_runs_with_bounds(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "a").write_bytes(b"x" * 100 + b"\xff")
    (tmp_path / "proc" / "b").symlink_to("a")
    system = LiveSystem(str(tmp_path))
    assert system.read("/proc/a", 5) == "xxxxx"
    assert system.glob("/proc/*") == ("/proc/a", "/proc/b")
    assert system.link("/proc/b") == "a"
    assert system.stat("/proc/b").kind is FileKind.LINK
    with pytest.raises(Unreadable) as error:
        system.read("/proc/none")
    assert error.value.why is Why.ABSENT
    assert system.space("/proc").size > 0
    ran = system.run(("sh", "-c", "echo hello; echo no >&2; exit 3"))
    assert (ran.code, ran.output, ran.error, ran.ok) == (3, "hello\n", "no\n", False)
    assert system.run(("no-such-program",)).problem == "no-such-program is not installed"


def test_a_program_that_never_ends_is_killed_with_what_it_started(tmp_path: Path) -> None:
    children = tmp_path / "children"
    script = f"sleep 600 & echo $! >>{children}; (sleep 600 & echo $! >>{children}; wait) & wait"
    ran = LiveSystem().run(("sh", "-c", script), timeout_s=1.0)
    assert ran.why is Why.HUNG
    started = [int(word) for word in children.read_text("ascii").split()]
    assert len(started) == 2
    while any(map(_alive, started)):
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    """A process that nobody waits for is a zombie until the first process of the machine takes it."""
    try:
        return not Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(") ")[2].startswith("Z")
    except OSError:
        return False


def test_what_an_agent_imports_is_light() -> None:
    lines = (
        "import sys, megatrace.bot.check_worker, megatrace.bot.inspecting",
        "from megatrace.bot.checks import CHECKS",
        "CHECKS.available()",
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    heavy = {
        "numpy",
        "pyarrow",
        "pydantic",
        "yaml",
        "typer",
        "rich",
        "jinja2",
        "zstandard",
        "asyncio",
        "pandas",
    }
    assert heavy & set(done.stdout.split()) == set()
