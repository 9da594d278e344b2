"""Two faults for every ★ check of what is no node, or needs a template: boards, switches, versions.

The rest of the regression matrix comes from ``bot.specimens``; these have another shape: a machine that is
asked, or a template that says what to expect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatrace.bot.catalogue import select
from megatrace.bot.counters import Counters
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.recorded_system import Recording
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import NOW, machine
from megatrace.model.check import Scope
from megatrace.model.finding import Finding
from megatrace.units import NS_PER_S

SINFO = ("sinfo", "-N", "-h", "-o", "%N|%T|%H|%u|%E")
NODES = ("kubectl", "get", "nodes", "-o", "json")


def other_machine(name: str, row: Mapping[str, Any]) -> tuple[Recording, str]:
    """A board, a switch or a scheduler with the fault, as its tools answer, and what has to be named."""
    recording = Recording(
        name={"switch_port_down": "leaf4", "slurm_down": "controller"}.get(name, "node188"), time=NOW
    )
    recording.files["/dev/ipmi0"] = ""
    sensors = {f"FAN_{number}": f"{7900 + number} RPM" for number in range(1, 9)}
    supplies = {f"PSU {number}": "Presence detected" for number in range(1, 5)}
    states = dict.fromkeys((*sensors, *supplies), "ok")
    log = " 1 | 05/01/2026 | 08:00:00 | System Event #0x01 | OEM System boot event | Asserted\n"
    named = str(row.get("unit") or row.get("node") or "")
    if name == "psu_lost":
        supplies[named] = "Presence detected, Power Supply AC lost"
    elif name == "fan_failed":
        sensors[named], states[named] = "0 RPM", "cr"
    elif name == "sel":
        named, line = {
            "psu_failed": ("PS4 Status", "Power Supply PS4 Status | Failure detected | Asserted"),
            "thermal_trip": ("CPU1 Temp", "Processor CPU1 Temp | Thermal Trip | Asserted"),
        }[row["record"]]
        log += f" 2 | 05/28/2026 | 20:21:03 | {line}\n"
    elif name == "switch_port_down":
        named = f"swp{row['port']}"
        recording.answer(("megatrace-snmp", "leaf4"), switch(row["port"], oper=2))
    elif name == "slurm_down":
        lines = [f"node{number}|allocated|Unknown|Unknown|none" for number in range(180, 188)]
        lines.append(f"{named}|down*|2026-05-28T20:00:00|slurm|Not responding [slurm@2026-05-28T20:00:00]")
        recording.answer(("sinfo", "-N", "-h", "-o", "%N|%T|%H|%u|%E"), "\n".join(lines) + "\n")
    rows = [
        (item, states[item], entity, said)
        for entity, group in ((29, sensors), (10, supplies))
        for item, said in group.items()
    ]
    text = "".join(f"{item:<16} | {n:02X}h | {state:<3} | {entity}.{n % 9 + 1} | {said}\n"
                   for n, (item, state, entity, said) in enumerate(rows, 48))  # fmt: skip
    recording.answer(("ipmitool", "sdr", "elist"), text)
    recording.answer(("ipmitool", "sel", "elist"), log)
    return recording, named


def switch(number: int = 0, **changed: int) -> str:
    """What a leaf switch of 32 ports answers, one of its ports changed."""
    usual = {"speed": 400_000, "admin": 1, "oper": 1, "in_errors": 0, "in_discards": 0, "out_discards": 0,
             "pauses_sent": None, "pauses_received": 0, "peer_port": "mlx5_3"}  # fmt: skip
    ports = {
        str(port): {
            **usual,
            "name": f"swp{port}",
            "peer": f"node{176 + port}",
            **(changed if port == number else {}),
        }
        for port in range(1, 33)
    }
    return json.dumps({"name": "leaf4", "up_s": 8_640_000.0, "ports": ports})


@dataclass(frozen=True, slots=True)
class Around:
    """One fault: what is looked at, one recording a look, what must be named by which check."""

    check: str
    about: str
    looks: tuple[Recording, ...]
    named: str
    template: Mapping[str, object] = field(default_factory=dict)

    def tried(self) -> tuple[bool, bool]:
        """Whether it is found, and whether what is at fault is named."""
        wanted = select(catalogue(), scopes=tuple(Scope), names=(self.check,))
        counters = Counters()
        for recording in self.looks:
            last = inspect_recording(recording, wanted, counters=counters, template=self.template)
        mine = [finding for result in last.results for finding in result.findings]
        return bool(mine), any(self.named in _words(finding) for finding in mine)


def _words(finding: Finding) -> str:
    who = finding.culprits
    return " ".join([*who.nodes, *(item.device or "" for item in who.devices), finding.summary])


def faults() -> Iterator[Around]:
    """Every fault."""
    for check, name, row in (
        ("BMC-01", "psu_lost", {"unit": "PSU 3"}),
        ("BMC-01", "fan_failed", {"unit": "FAN_5"}),
        ("BMC-02", "sel", {"record": "psu_failed"}),
        ("BMC-02", "sel", {"record": "thermal_trip"}),
        ("SLM-01", "slurm_down", {"node": "node188"}),
    ):
        recording, named = other_machine(name, row)
        yield Around(check, f"{name} {' '.join(map(str, row.values()))}", (recording,), named)
    yield _asked(
        "SLM-01",
        "a node with fewer GPUs than configured",
        SINFO,
        "node7|inval|Unknown|root|gres/gpu count low",
        "node7",
    )
    yield from _switches()
    yield from _kubernetes()
    yield from _configured()


def _asked(check: str, about: str, argv: tuple[str, ...], answer: str, named: str) -> Around:
    recording = Recording(name="controller", time=NOW)
    recording.answer(argv, answer)
    return Around(check, about, (recording,), named)


def _switches() -> Iterator[Around]:
    for check, about, number, changed in (
        ("SW-01", "a port that is down", 12, {"oper": 2}),
        ("SW-01", "a port at a quarter of its speed", 7, {"speed": 100_000}),
        ("SW-02", "a port with broken frames", 3, {"in_errors": 4_000}),
        ("SW-02", "a port that drops frames", 9, {"out_discards": 90_000}),
        ("SW-03", "a port that is told to pause", 20, {"pauses_received": 900_000}),
        ("SW-03", "another one", 31, {"pauses_received": 5_000_000}),
    ):
        before, after = (Recording(name="leaf4", time=NOW + second * NS_PER_S) for second in (0, 60))
        before.answer(("megatrace-snmp", "leaf4"), switch())
        after.answer(("megatrace-snmp", "leaf4"), switch(number, **changed))
        yield Around(check, about, (before, after), f"swp{number}", {"switch.address": "leaf4"})


def _kubernetes() -> Iterator[Around]:
    for about, ready, usable in (
        ("a node that is not ready", "False", 8),
        ("a node that lost a GPU", "True", 7),
    ):
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-05-28T19:00:00Z"}
        amount = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": str(usable)}}
        node = {"metadata": {"name": "gpu-9"}, "status": {"conditions": [condition], **amount}}
        yield _asked("K8S-01", about, NODES, json.dumps({"items": [node]}), "gpu-9")


def _configured() -> Iterator[Around]:
    def made(**files: str) -> Recording:
        recording = written(machine("h100-roce"))
        driver = machine("h100-roce").kind.driver
        recording.files |= {
            "/sys/module/nvidia/version": f"{driver}\n",
            "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5": "",
        }
        for number in range(8):
            place = f"/sys/class/infiniband/mlx5_{number}/tc/1/traffic_class"
            recording.files[place] = f"Global tclass={files.get(f'mlx5_{number}', '106')}\n"
        return recording

    yield Around("VER-01", "another driver", (made(),), "versions.driver", {"versions.driver": "575.57.08"})
    yield Around("VER-01", "another NCCL", (made(),), "versions.nccl", {"versions.nccl": "2.27.3"})
    for about, said in (
        ("an upgraded library", "Failed to initialize NVML: Driver/library version mismatch"),
        ("a library of another version", "Failed to initialize NVML: Unknown Error"),
    ):
        recording = made()
        recording.files["/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.57.08"] = ""
        for argv in (("nvidia-smi", "-q", "-x"), ("nvidia-smi", "-q")):
            recording.answer(argv, said, 18)
        yield Around("VER-02", about, (recording,), "575.57.08")
    yield Around("IB-10", "a port outside the lossless class", (made(mlx5_2="0"),), "mlx5_2")
    wanted = {f"roce.traffic_class.mlx5_{number}": 106 for number in range(8)}
    yield Around("IB-10", "a port that differs from the template", (made(mlx5_5="96"),), "mlx5_5", wanted)
