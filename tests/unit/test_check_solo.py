"""A suspected GPU tried alone: what confirms, what refutes, what says nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.recorded_system import Recording
from megatrace.bot.solo import job as solo_job
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import machine
from megatrace.model.check import CheckResult, Cost, Outcome
from megatrace.model.finding import Kind
from megatrace.model.system import Ran, Why

PROGRAM = str(Path(solo_job.__file__).resolve())
APPS = ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,process_name", "--format=csv,noheader")
DONE = {"done": True, "wrong": 0, "seconds": 58.0}
STEPS = [
    {"stage": "start", "seconds": 0.0},
    {"stage": "products", "seconds": 30.0, "tflops": 640.5, "wrong": 0},
]


def sick(
    *steps: Mapping[str, object], code: int | None = 0, why: Why | None = None, gpu: str = "1", apps: str = ""
) -> CheckResult:
    """The check on an H100 machine on which the job prints the steps and ends so."""
    made = written(machine("h100-ib"))
    uuid = _uuid(made, 1)
    argv = ("python3", PROGRAM, "--gpu", uuid, "--seconds", "60")
    text = "".join(json.dumps(step) + "\n" for step in steps)
    made.commands[argv] = Ran(argv, code, text, "", why, 60.0)
    made.answer(APPS, apps.format(uuid=uuid))
    wanted = select(catalogue(), costs=(Cost.INTRUSIVE,), names=("SOLO-01",))
    (result,) = inspect_recording(made, wanted, template={"suspect.gpu": gpu}).results
    return result


def _uuid(made: Recording, index: int) -> str:
    text = next(ran.output for argv, ran in made.commands.items() if argv[:2] == ("nvidia-smi", "-q"))
    return text.split("<uuid>")[index + 1].split("</uuid>")[0]


def test_a_gpu_that_passes_is_refuted() -> None:
    result = sick(*STEPS, DONE)
    assert result.outcome is Outcome.OK
    assert "ran alone for 60 s without a hang, an error or a wrong result, 640.5 TFLOP/s" in result.reason
    assert result.measured == {"solo.tflops": 640.5}


@pytest.mark.parametrize(
    ("steps", "code", "why", "kind", "said"),
    [
        (({"stalled": "products", "seconds": 41.0},), solo_job.STALLED, None, Kind.HANG_DEVICE,
         "hung alone in matrix products"),
        (STEPS[:1], None, Why.HUNG, Kind.HANG_DEVICE, "hung alone while it was started"),
        (({"error": "AcceleratorError: CUDA error: uncorrectable ECC error", "at": "memory"},),
         solo_job.FAILED, None, Kind.HARDWARE, "failed alone while its memory was written and read back"),
        (({"done": True, "wrong": 3},), solo_job.WRONG, None, Kind.HARDWARE, "miscomputes alone: 3 results"),
        (STEPS[:1], -11, None, Kind.HARDWARE, "ended with -11 while it was started"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_sick_alone_is_confirmed(
    steps: tuple[Mapping[str, object], ...], code: int | None, why: Why | None, kind: Kind, said: str
) -> None:
    result = sick(*steps, code=code, why=why)
    (finding,) = result.findings
    assert result.outcome is Outcome.FAIL
    assert finding.kind is kind
    assert said in finding.summary
    assert [device.device for device in finding.culprits.devices] == [machine("h100-ib").gpu_places[1]]


@pytest.mark.parametrize(
    ("steps", "more", "said"),
    [
        (({"missing": "No module named 'torch'"},), {"code": solo_job.MISSING}, "--solo-python"),
        (
            ({"error": "OutOfMemoryError: 2 GiB", "at": "memory"},),
            {"code": solo_job.BUSY},
            "too little free memory",
        ),
        ((), {"apps": "4711, {uuid}, python3\n"}, "in use by python3 (pid 4711): drain the node first"),
        ((), {"gpu": "17"}, "there is no GPU 17 here"),
    ],
    ids=["no torch", "no memory", "in use", "unknown"],
)
def test_what_says_nothing_of_the_gpu_is_unknown(
    steps: tuple[Mapping[str, object], ...], more: Mapping[str, Any], said: str
) -> None:
    result = sick(*steps, **more)
    assert result.outcome is Outcome.UNKNOWN
    assert said in result.reason


def test_a_gpu_is_named_by_any_of_its_names() -> None:
    place = machine("h100-ib").gpu_places[1]
    assert sick(*STEPS, DONE, gpu=place).outcome is Outcome.OK
    assert sick(*STEPS, DONE, gpu=place.removesuffix(".0")).outcome is Outcome.OK


def test_a_suspect_on_a_machine_without_gpus_is_not_well() -> None:
    wanted = select(catalogue(), costs=(Cost.INTRUSIVE,), names=("SOLO-01",))
    found = inspect_recording(written(machine("cpu-ib")), wanted, template={"suspect.gpu": "0"})
    assert found.exit_code == 11


def test_nobody_is_tried_who_is_not_suspected() -> None:
    made = written(machine("h100-ib"))
    wanted = select(catalogue(), costs=(Cost.INTRUSIVE,), names=("SOLO-01",))
    (result,) = inspect_recording(made, wanted).results
    assert result.outcome is Outcome.SKIPPED


def job(folder: Path, torch: str | None, *more: str, **variables: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and steps of the real program, with a module of that text as PyTorch, or none."""
    if torch is not None:
        (folder / "torch.py").write_text(torch)
    words = [sys.executable, PROGRAM, "--gpu", "GPU-x", "--seconds", "1", *more]
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_the_program_says_when_it_hangs_and_ends_itself(tmp_path: Path) -> None:
    hanging = (
        "import time\nclass cuda:\n    @staticmethod\n    def is_available():\n        time.sleep(600)\n"
    )
    code, steps = job(tmp_path, hanging, MEGATRACE_SOLO_STALL_S="0.5")
    assert code == solo_job.STALLED
    assert steps[-1]["stalled"] == "start"


def test_the_program_says_what_went_wrong(tmp_path: Path) -> None:
    failing = (
        "class cuda:\n    is_available = staticmethod(lambda: True)\n"
        "def device(name):\n    raise RuntimeError('CUDA error: uncorrectable ECC error')\n"
    )
    code, steps = job(tmp_path, failing)
    assert code == solo_job.FAILED
    assert steps[-1] == {"error": "RuntimeError: CUDA error: uncorrectable ECC error", "at": "start"}


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="there is a PyTorch here")
def test_the_program_says_that_there_is_no_pytorch(tmp_path: Path) -> None:
    code, steps = job(tmp_path, None)
    assert code == solo_job.MISSING
    assert steps[-1] == {"missing": "No module named 'torch'"}


def test_the_program_has_no_neighbours_that_hide_the_standard_library() -> None:
    here = {path.stem for path in Path(PROGRAM).parent.glob("*.py")}
    assert here == {"__init__", "job"}
