"""A real IPMI controller on the loopback (OpenIPMI's ipmi_sim): sensors read from files, a log of events,
power.

A fault is a number written into a sensor's file; the controller compares it with the sensor's thresholds by
itself and writes its event log, as a board does. Sensor records are built here byte by byte (IPMI 2.0, tables
43-1 and 43-2).
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components.daemons import free_port, installed, running, wait_until

USER, PASSWORD = "admin", "secret"
FAN, TEMPERATURE, SUPPLY = 0x04, 0x01, 0x08
CELSIUS, RPM = 0x01, 0x12
AC_LOST = 0b1001
"""A power supply's state: present, and its input lost."""


@dataclass(frozen=True, slots=True)
class Sensor:
    """``value`` raw; ``factor`` what one step of it is; limits raw, 0 for none; ``entity`` of IPMI table
    43-13."""

    number: int
    name: str
    kind: int
    value: int
    unit: int = 0
    factor: int = 1
    low: int = 0
    high: int = 0
    entity: int = 0x07


SENSORS = (
    Sensor(1, "FAN_5", FAN, 60, RPM, 100, low=10, entity=0x1D),
    Sensor(2, "CPU1 Temp", TEMPERATURE, 45, CELSIUS, high=90, entity=0x03),
    Sensor(3, "Inlet Temp", TEMPERATURE, 24, CELSIUS, high=42, entity=0x37),
    Sensor(16, "PS3 Status", SUPPLY, 1, entity=0x0A),
    Sensor(17, "PS4 Status", SUPPLY, 1, entity=0x0A),
)


def record(sensor: Sensor) -> list[int]:
    """The sensor's data record: full for a reading with thresholds, compact for states."""
    owner = [0x20, 0, sensor.number, sensor.entity, 1]
    name = [0xC0 | len(sensor.name), *sensor.name.encode()]
    if sensor.kind == SUPPLY:
        states = [0x0F, 0, 0x0F, 0, 0x0F, 0]
        body = [*owner, 0x67, 0x40, sensor.kind, 0x6F, *states, 0xC0, 0, 0, 1, *[0] * 7, *name]
        return [0, 0, 0x51, 0x02, len(body), *body]
    readable = (0x02 if sensor.low else 0) | (0x10 if sensor.high else 0)
    factor = [sensor.factor & 0xFF, (sensor.factor >> 8) << 6]
    limits = [0, sensor.high, 0, 0, sensor.low, 0]
    events = [0x95, 0x0A, 0x95, 0x7A, readable, readable]
    scale = [0, sensor.unit, 0, 0, *factor, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0]
    body = [*owner, 0x7F, 0x68, sensor.kind, 0x01, *events, *scale, *limits, 1, 1, 0, 0, 0, *name]
    return [0, 0, 0x51, 0x01, len(body), *body]


def commands(place: Path) -> str:
    """The simulator's script. A line that it does not understand leaves the controller silently off."""
    lines = [
        "mc_setbmc 0x20",
        "mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr",
        "sel_enable 0x20 1000 0x0a",
    ]
    for sensor in SENSORS:
        state = sensor.kind == SUPPLY
        mask = "000000000001111" if state else "000111111111111"
        where = f"0x20 0 {sensor.number}"
        file = place / f"sensor{sensor.number}"
        file.write_text(str(sensor.value))
        lines.append(
            f'sensor_add {where} {sensor.kind:#04x} {0x6F if state else 1:#04x} poll 200 file "{file}"'
        )
        if not state:
            enabled = f"0{int(bool(sensor.high))}00{int(bool(sensor.low))}0"
            limits = f"0 {sensor.high:#04x} 0 0 {sensor.low:#04x} 0"
            lines.append(f"sensor_set_threshold {where} settable {enabled} {limits}")
        lines.append(f"sensor_set_event_support {where} enable scanning per-state {' '.join([mask] * 4)}")
        lines.append(f"main_sdr_add 0x20 {' '.join(f'{byte:#04x}' for byte in record(sensor))}")
    return "\n".join([*lines, "mc_enable 0x20", ""])


def network(place: Path, port: int) -> str:
    """Its configuration: one LAN channel, one administrator, power by a script."""
    allowed = "".join(
        f"    allowed_auths_{who} none md2 md5 straight\n"
        for who in ("callback", "user", "operator", "admin")
    )
    power = place / "chassis.sh"
    lines = (
        'name "node188"',
        "set_working_mc 0x20",
        "  startlan 1",
        f"    addr 127.0.0.1 {port}",
        f"    priv_limit admin\n{allowed}    guid a123456789abcdefa123456789abcdef",
        "  endlan",
        f'  chassis_control "{power} 0x20"',
        '  user 1 true "" "test" user 10 none md2 md5 straight',
        f'  user 2 true "{USER}" "{PASSWORD}" admin 10 none md2 md5 straight',
    )
    return "\n".join([*lines, ""])


CHASSIS = """#!/bin/sh
place=$(dirname "$0")
case "$2 $3" in
"get power") echo "power:$(cat "$place/power")" ;;
"set power") echo "$4" >"$place/power" ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Controller:
    """A BMC at ``port``; ``place`` holds its sensors' values and its power state."""

    port: int
    place: Path
    tool: str

    def argv(self, *words: str) -> list[str]:
        """A command line of ipmitool. The password stands in a file: an argument is seen by every user."""
        access = ["-I", "lanplus", "-C", "3", "-N", "1", "-R", "2", "-H", "127.0.0.1", "-p", str(self.port)]
        return [self.tool, *access, "-U", USER, "-f", str(self.place / "password"), *words]

    def ask(self, *words: str) -> str:
        """What ipmitool prints."""
        return subprocess.run(
            self.argv(*words), check=True, capture_output=True, text=True, timeout=30
        ).stdout

    def set(self, name: str, value: int) -> None:
        """Puts a raw value on a sensor."""
        number = next(sensor.number for sensor in SENSORS if sensor.name == name)
        (self.place / f"sensor{number}").write_text(str(value))

    def shows(self, name: str, word: str) -> None:
        """Waits until the controller itself says so of a sensor."""
        wait_until(lambda: any(word in line for line in self.lines(name)), f"{word} at {name}")

    def lines(self, name: str) -> Sequence[str]:
        """The line of a sensor."""
        return [line for line in self.ask("sdr", "elist").splitlines() if line.startswith(name)]

    def heal(self) -> None:
        """Every sensor as it was, and an empty log."""
        for sensor in SENSORS:
            self.set(sensor.name, sensor.value)
        wait_until(
            lambda: "lost" not in self.ask("sdr", "elist") and "| lcr |" not in self.ask("sdr", "elist"),
            "peace",
        )
        self.ask("sel", "clear")


@pytest.fixture(scope="session")
def ipmi_bmc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A healthy board's controller."""
    simulator = installed("ipmi_sim", package="openipmi")
    tool = installed("ipmitool", package="ipmitool")
    place = tmp_path_factory.mktemp("ipmi")
    port = free_port(socket.SOCK_DGRAM)
    (place / "state").mkdir()
    (place / "power").write_text("1")
    (place / "password").write_text(f"{PASSWORD}\n")
    (place / "chassis.sh").write_text(CHASSIS)
    (place / "chassis.sh").chmod(0o755)
    (place / "lan.conf").write_text(network(place, port))
    (place / "node.emu").write_text(commands(place))
    found = Controller(port, place, tool)
    argv = [
        simulator,
        "-c",
        str(place / "lan.conf"),
        "-f",
        str(place / "node.emu"),
        "-s",
        str(place / "state"),
        "-n",
    ]

    def answers() -> bool:
        asked = subprocess.run(found.argv("power", "status"), capture_output=True, text=True, timeout=30)
        return asked.returncode == 0

    with running(argv, answers, place / "ipmi_sim.log"):
        found.ask("sel", "time", "set", "now")
        yield found
