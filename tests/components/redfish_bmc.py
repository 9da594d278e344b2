"""Real Redfish services on the loopback: sushy-tools' emulator for power, its static server for a board's
sensors.

The emulator has no power supplies and no event log, so those come from a mock-up: a folder of JSON in the
layout of DMTF's mock-ups, whose values a test changes in the files.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.components.daemons import emulator, free_port, running

SYSTEM = "11111111-2222-3333-4444-555555555555"
GOOD = {"State": "Enabled", "Health": "OK"}
ROOT = "/redfish/v1"
CHASSIS = f"{ROOT}/Chassis/1"
LOG = f"{ROOT}/Managers/1/LogServices/Sel"


@dataclass(frozen=True, slots=True)
class Service:
    """A Redfish service; ``place`` holds the mock-up of one that serves files."""

    url: str
    place: Path

    def ask(self, path: str) -> dict[str, Any]:
        """One resource."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return dict(json.load(answer))

    def change(self, path: str, resource: dict[str, Any]) -> None:
        """Puts a resource in the place of what the mock-up has."""
        file = self.place / path.removeprefix(f"{ROOT}/") / "index.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"@odata.id": path, **resource}, indent=1))


def members(*paths: str) -> dict[str, Any]:
    """A collection."""
    return {"Members": [{"@odata.id": path} for path in paths], "Members@odata.count": len(paths)}


def board() -> dict[str, dict[str, Any]]:
    """A healthy board with eight fans, four power supplies, its inlet, a log and two firmwares."""
    fans = [
        {"Name": f"FAN_{number}", "Reading": 8000 + 10 * number, "ReadingUnits": "RPM", "Status": GOOD}
        for number in range(1, 9)
    ]
    inlet = {"Name": "Inlet Temp", "ReadingCelsius": 24, "PhysicalContext": "Intake", "Status": GOOD}
    supplies = [
        {"Name": f"PSU {number}", "SerialNumber": f"PS{number:04}", "Status": GOOD, "PowerInputWatts": 1500}
        for number in range(1, 5)
    ]
    firmware = f"{ROOT}/UpdateService/FirmwareInventory"
    parts = ("Systems", "Chassis", "Managers", "UpdateService")
    node = {"Id": "1", "Name": "node188", "PowerState": "On", "SerialNumber": "SN188", "Status": GOOD}
    logs = f"{ROOT}/Managers/1/LogServices"
    return {
        f"{ROOT}/": {"Id": "RootService", "RedfishVersion": "1.11.0", "Name": "Root", "UUID": SYSTEM}
        | {name: {"@odata.id": f"{ROOT}/{name}"} for name in parts},
        f"{ROOT}/Systems": members(f"{ROOT}/Systems/1"),
        f"{ROOT}/Systems/1": node,
        f"{ROOT}/Chassis": members(CHASSIS),
        CHASSIS: {"Id": "1", "Name": "Chassis", "Thermal": {"@odata.id": f"{CHASSIS}/Thermal"},
                  "Power": {"@odata.id": f"{CHASSIS}/Power"}, "Status": GOOD},
        f"{CHASSIS}/Thermal": {"Id": "Thermal", "Name": "Thermal", "Fans": fans, "Temperatures": [inlet]},
        f"{CHASSIS}/Power": {"Id": "Power", "Name": "Power", "PowerSupplies": supplies,
                             "Redundancy": [{"Name": "PSU redundancy", "Mode": "N+m", "Status": GOOD}]},
        f"{ROOT}/Managers": members(f"{ROOT}/Managers/1"),
        f"{ROOT}/Managers/1": {"Id": "1", "Name": "BMC", "FirmwareVersion": "2.14",
                               "LogServices": {"@odata.id": logs}, "Status": GOOD},
        logs: members(LOG),
        LOG: {"Id": "Sel", "Name": "System event log", "Entries": {"@odata.id": f"{LOG}/Entries"}},
        f"{LOG}/Entries": members(),
        f"{ROOT}/UpdateService": {"Id": "UpdateService", "FirmwareInventory": {"@odata.id": firmware}},
        firmware: members(f"{firmware}/BMC", f"{firmware}/BIOS"),
        f"{firmware}/BMC": {"Id": "BMC", "Name": "BMC", "Version": "2.14"},
        f"{firmware}/BIOS": {"Id": "BIOS", "Name": "BIOS", "Version": "1.7.2"},
    }  # fmt: skip


def answers(url: str) -> bool:
    """Whether the service speaks Redfish yet."""
    address = f"{url}{ROOT}/"
    with suppress(OSError, ValueError), urllib.request.urlopen(address, timeout=1) as answer:
        return "RedfishVersion" in json.load(answer)
    return False


@pytest.fixture(scope="session")
def redfish_power(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A system whose power can be switched; like a real one it takes seconds to follow."""
    program = emulator("sushy-emulator", package="sushy-tools")
    place = tmp_path_factory.mktemp("redfish")
    port = free_port()
    (place / "state").mkdir()
    systems = [{"uuid": SYSTEM, "name": "node188", "power_state": "On",
                "nics": [{"mac": "02:00:00:00:00:01", "ip": "127.0.0.2"}]}]  # fmt: skip
    (place / "emulator.conf").write_text(
        f"SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {port}\n"
        f"SUSHY_EMULATOR_STATE_DIR = {str(place / 'state')!r}\nSUSHY_EMULATOR_FAKE_SYSTEMS = {systems!r}\n"
    )
    url = f"http://127.0.0.1:{port}"
    argv = [program, "--config", str(place / "emulator.conf"), "--fake"]
    with running(argv, lambda: answers(url), place / "emulator.log"):
        yield Service(url, place)


@pytest.fixture
def redfish_board(tmp_path: Path) -> Iterator[Service]:
    """A healthy board of its own for each test, since a test breaks it."""
    program = emulator("sushy-static", package="sushy-tools")
    port = free_port()
    found = Service(f"http://127.0.0.1:{port}", tmp_path / "mockup")
    for path, resource in board().items():
        found.change(path, resource)
    argv = [program, "--interface", "127.0.0.1", "--port", str(port), "--mockup-files", str(found.place)]
    with running(argv, lambda: answers(found.url), tmp_path / "static.log"):
        yield found
