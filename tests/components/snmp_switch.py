"""A leaf switch that speaks SNMP (snmpsim): 16 ports with their states, speeds, errors and neighbours.

Every value may be written, so a test breaks a port as it happens, by SET. The object identifiers are those of
IF-MIB (RFC 2863) and LLDP-MIB (IEEE 802.1AB).
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.components.daemons import emulator, free_port, installed, running

PORTS = 16
COMMUNITY = "leaf1"
IF = "1.3.6.1.2.1.2.2.1"
IFX = "1.3.6.1.2.1.31.1.1.1"
LLDP_NAME, LLDP_PORT = "1.0.8802.1.1.2.1.4.1.1.9", "1.0.8802.1.1.2.1.4.1.1.7"
ADMIN, OPER, IN_ERRORS, IN_DISCARDS, OUT_DISCARDS = (f"{IF}.{column}" for column in (7, 8, 14, 13, 19))
NAME, SPEED = f"{IFX}.1", f"{IFX}.15"
INTEGER, STRING, GAUGE, TICKS = 2, 4, 66, 67


def recording() -> str:
    """What a healthy switch answers; snmpsim wants it in the order of the identifiers."""
    rows: list[tuple[str, int, object]] = [
        ("1.3.6.1.2.1.1.1.0", STRING, "leaf switch, 64 x 400G"),
        ("1.3.6.1.2.1.1.3.0", TICKS, 8_640_000),
        ("1.3.6.1.2.1.1.5.0", STRING, "leaf1"),
    ]
    for port in range(1, PORTS + 1):
        rows += [(f"{column}.{port}", INTEGER, 1) for column in (ADMIN, OPER)]
        rows += [(f"{column}.{port}", GAUGE, 0) for column in (IN_ERRORS, IN_DISCARDS, OUT_DISCARDS)]
        rows += [(f"{NAME}.{port}", STRING, f"swp{port}"), (f"{SPEED}.{port}", GAUGE, 400_000)]
        # LLDP counts (time mark, local port, index): who sits at the other end of the cable.
        rows += [(f"{LLDP_PORT}.0.{port}.1", STRING, f"mlx5_{port % 8}"), (f"{LLDP_NAME}.0.{port}.1", STRING,
                  f"node{176 + port}")]  # fmt: skip
    rows.sort(key=lambda row: [int(part) for part in row[0].split(".")])
    return "".join(f"{oid}|{kind}:writecache|value={value}\n" for oid, kind, value in rows)


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch at a UDP port of the loopback."""

    port: int
    community: str = COMMUNITY

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def get(self, oid: str) -> str:
        """One value, as net-snmp prints it."""
        return self._run("snmpget", "-Oqv", oid).strip('"')

    def set(self, column: str, port: int, kind: str, value: int) -> None:
        """Changes a value of a port; ``kind`` i integer, u unsigned.

        Counters are served as gauges, because snmpset cannot write a counter; a reader sees no difference."""
        self._run("snmpset", "-Oqv", f"{column}.{port}", kind, str(value))

    def _run(self, program: str, form: str, *words: str) -> str:
        argv = [
            installed(program, package="snmp"),
            "-v2c",
            "-c",
            self.community,
            "-t",
            "5",
            form,
            self.address,
            *words,
        ]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture(scope="session")
def snmp_switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switch]:
    """A healthy leaf switch; a test that breaks it puts it right again."""
    program = emulator("snmpsim-command-responder", package="snmpsim pysmi")
    installed("snmpget", package="snmp")
    place = tmp_path_factory.mktemp("snmp")
    (place / "data").mkdir()
    (place / "data" / f"{COMMUNITY}.snmprec").write_text(recording())
    found = Switch(free_port(socket.SOCK_DGRAM))
    who = [
        f"--process-user={pwd.getpwuid(os.getuid()).pw_name}",
        f"--process-group={grp.getgrgid(os.getgid()).gr_name}",
    ]
    argv = [program, f"--data-dir={place / 'data'}", f"--agent-udpv4-endpoint={found.address}", *who,
            f"--cache-dir={place / 'cache'}"]  # fmt: skip
    get = ["snmpget", "-v2c", "-c", COMMUNITY, "-t", "1", "-r", "0", found.address, "1.3.6.1.2.1.1.5.0"]

    def answers() -> bool:
        return subprocess.run(get, capture_output=True, timeout=30).returncode == 0

    with running(argv, answers, place / "snmpsim.log"):
        yield found
