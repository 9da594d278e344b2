"""The library in the place of NVIDIA's, through NVIDIA's own Python binding in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.components.daemons import emulator
from tests.components.fake_nvml import ADDRESSES, FakeNvml

pytestmark = [pytest.mark.nvml, pytest.mark.xdist_group("nvml")]

LOOK = """
import json, pynvml as n
try:
    n.nvmlInit()
except n.NVMLError as error:
    print(json.dumps({"init": error.value}))
    raise SystemExit
found = []
for index in range(n.nvmlDeviceGetCount()):
    try:
        gpu = n.nvmlDeviceGetHandleByIndex(index)
        field = n.nvmlDeviceGetFieldValues(gpu, [230])[0]
        found.append({
            "address": n.nvmlDeviceGetPciInfo(gpu).busId, "name": n.nvmlDeviceGetName(gpu),
            "uuid": n.nvmlDeviceGetUUID(gpu), "celsius": n.nvmlDeviceGetTemperature(gpu, 0),
            "rows": list(n.nvmlDeviceGetRemappedRows(gpu)), "action": field.value.uiVal,
            "links": sum(n.nvmlDeviceGetNvLinkState(gpu, link) for link in range(18)),
            "ecc": n.nvmlDeviceGetTotalEccErrors(gpu, 1, 0), "used": n.nvmlDeviceGetMemoryInfo(gpu).used,
        })
    except n.NVMLError as error:
        found.append({"error": error.value})
print(json.dumps({"gpus": found}))
"""
WATCH = """
import sys, pynvml as n
n.nvmlInit()
events = n.nvmlEventSetCreate()
for index in range(n.nvmlDeviceGetCount()):
    n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(index), n.nvmlEventTypeXidCriticalError, events)
print("watching", flush=True)
seen = n.nvmlEventSetWait_v2(events, 60000)
print(n.nvmlDeviceGetIndex(seen.device), seen.eventData, flush=True)
"""


def python() -> str:
    """The interpreter that has NVIDIA's binding."""
    return emulator("python", package="nvidia-ml-py")


def look(nvml: FakeNvml) -> dict[str, Any]:
    """What a monitoring program sees."""
    environment = {**os.environ, **nvml.environment}
    done = subprocess.run([python(), "-c", LOOK], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_eight_healthy_gpus(fake_nvml: FakeNvml) -> None:
    gpus = look(fake_nvml)["gpus"]
    assert [f"0000:{gpu['address'][9:].lower()}" for gpu in gpus] == list(ADDRESSES)
    assert {gpu["name"] for gpu in gpus} == {"NVIDIA H100 80GB HBM3"}
    assert len({gpu["uuid"] for gpu in gpus}) == 8
    assert {(gpu["links"], gpu["action"], gpu["ecc"]) for gpu in gpus} == {(18, 0, 0)}


def test_faults_are_seen_where_they_are(fake_nvml: FakeNvml) -> None:
    fake_nvml.broken(
        "gpu 3 lost 1", "gpu 5 pending 1", "gpu 6 link7 0", "gpu 2 temperature 91", "gpu 0 action 1"
    )
    gpus = look(fake_nvml)["gpus"]
    assert gpus[3] == {"error": 15}
    assert gpus[5]["rows"] == [0, 0, 1, 0]
    assert gpus[6]["links"] == 17
    assert gpus[2]["celsius"] == 91
    assert gpus[0]["action"] == 1
    assert gpus[7]["rows"] == [0, 0, 0, 0]


def test_a_driver_of_another_version(fake_nvml: FakeNvml) -> None:
    fake_nvml.broken("mismatch 1")
    assert look(fake_nvml) == {"init": 18}


def test_a_gpu_that_is_not_listed(fake_nvml: FakeNvml) -> None:
    fake_nvml.broken("count 7")
    assert len(look(fake_nvml)["gpus"]) == 7


def test_a_call_that_never_returns_ends_with_its_fault(fake_nvml: FakeNvml) -> None:
    fake_nvml.broken("hang 1")
    environment = {**os.environ, **fake_nvml.environment}
    process = subprocess.Popen([python(), "-c", LOOK], stdout=subprocess.PIPE, text=True, env=environment)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=1.5)
    fake_nvml.healthy()
    output, _ = process.communicate(timeout=60)
    assert len(json.loads(output)["gpus"]) == 8


def test_an_event_reaches_who_waits_for_it(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    environment = {**os.environ, **fake_nvml.environment}
    process = subprocess.Popen([python(), "-c", WATCH], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "watching\n"
    time.sleep(0.3)
    fake_nvml.also("xid 3 79")
    assert process.communicate(timeout=60)[0] == "3 79\n"
