"""A switch through SNMP: its ports with state, speed, errors, pauses, and who sits at the other end of each
cable.

Read by walking columns of public MIBs, which every managed switch has: IF-MIB (RFC 2863), LLDP-MIB (IEEE
802.1AB) and, where there is one, IEEE8021-PFC-MIB. What a column lacks is null. Reads only."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from pysnmp.hlapi.v3arch.asyncio import (
    CommunityData,
    ContextData,
    ObjectIdentity,
    ObjectType,
    SnmpEngine,
    UdpTransportTarget,
    bulk_walk_cmd,
    get_cmd,
)

from megatrace.bot.backends.login import read_login
from megatrace.errors import MegatraceError, sentence

TIMEOUT_S = 2.0
RETRIES = 1
"""A switch whose processor is busy answers late; two tries of 2 s each are 4 s for a dead one."""
ROWS = 25
"""Rows of one answer: 25 counters fit one packet."""
MOST_ROWS = 4096
"""Rows of a column: a chassis switch has 800 ports and some thousand interfaces."""
NAME, UP_TIME = "1.3.6.1.2.1.1.5.0", "1.3.6.1.2.1.1.3.0"
COLUMNS = {
    "name": "1.3.6.1.2.1.31.1.1.1.1",
    "speed": "1.3.6.1.2.1.31.1.1.1.15",
    "admin": "1.3.6.1.2.1.2.2.1.7",
    "oper": "1.3.6.1.2.1.2.2.1.8",
    "in_errors": "1.3.6.1.2.1.2.2.1.14",
    "in_discards": "1.3.6.1.2.1.2.2.1.13",
    "out_discards": "1.3.6.1.2.1.2.2.1.19",
    "pauses_sent": "1.3.111.2.802.1.1.21.1.1.1.2",
    "pauses_received": "1.3.111.2.802.1.1.21.1.1.1.3",
}
"""By interface index: ifName, ifHighSpeed (Mb/s), ifAdminStatus, ifOperStatus (1 up), ifInErrors,
ifInDiscards, ifOutDiscards, ieee8021PfcRequests, ieee8021PfcIndications."""
NEIGHBOURS = {"peer": "1.0.8802.1.1.2.1.4.1.1.9", "peer_port": "1.0.8802.1.1.2.1.4.1.1.7"}
"""By (time, local port, index): lldpRemSysName, lldpRemPortId."""


class NoAnswer(Exception):
    """The switch gave none; the words say why."""


class Session:
    """Requests to one switch."""

    def __init__(self, address: str, community: str) -> None:
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "161")
        self._to = (host, int(port))
        self._engine = SnmpEngine()
        self._community = CommunityData(community, mpModel=1)
        self._target: Any = None

    async def open(self) -> None:
        """Looks the switch up."""
        self._target = await UdpTransportTarget.create(self._to, timeout=TIMEOUT_S, retries=RETRIES)

    async def get(self, *names: str) -> list[Any]:
        """Values of single objects. Raises NoAnswer."""
        wanted = [ObjectType(ObjectIdentity(name)) for name in names]
        said, status, _, values = await get_cmd(
            self._engine, self._community, self._target, ContextData(), *wanted, lookupMib=False
        )
        if said or status:
            raise NoAnswer(str(said or status.prettyPrint()))
        return [value[1] for value in values]

    async def column(self, base: str) -> dict[tuple[int, ...], Any]:
        """One column by index; empty where the switch has it not. Raises NoAnswer."""
        rows: dict[tuple[int, ...], Any] = {}
        prefix = tuple(map(int, base.split(".")))
        walk = bulk_walk_cmd(
            self._engine, self._community, self._target, ContextData(), 0, ROWS,
            ObjectType(ObjectIdentity(base)), lexicographicMode=False, lookupMib=False,
        )  # fmt: skip
        async for said, status, _, values in walk:
            if said:
                raise NoAnswer(str(said))
            if status or len(rows) >= MOST_ROWS:
                break
            for name, value in values:
                index = tuple(name.asTuple())
                if index[: len(prefix)] == prefix and type(value).__name__ not in (
                    "EndOfMibView",
                    "NoSuchObject",
                ):
                    rows[index[len(prefix) :]] = value
        return rows

    def close(self) -> None:
        """Ends the engine's timers."""
        self._engine.close_dispatcher()


async def read_switch(address: str, community: str) -> dict[str, Any]:
    """Ports by interface index, and the switch's name and time since its start. Raises NoAnswer."""
    session = Session(address, community)
    try:
        await session.open()
        name, up_time = await session.get(NAME, UP_TIME)
        ports: dict[int, dict[str, Any]] = {}
        for key, base in COLUMNS.items():
            for index, value in (await session.column(base)).items():
                ports.setdefault(index[0], dict.fromkeys((*COLUMNS, *NEIGHBOURS)))[key] = _plain(value)
        for key, base in NEIGHBOURS.items():
            for index, value in (await session.column(base)).items():
                if len(index) > 1 and index[1] in ports:
                    ports[index[1]][key] = _plain(value)
    finally:
        session.close()
    seconds = int(up_time) / 100
    return {"name": str(name), "up_s": seconds, "ports": {str(index): port for index, port in ports.items()}}


def _plain(value: Any) -> int | str:
    """A number as one, everything else as text."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return bytes(value).decode("utf-8", "replace") if hasattr(value, "asOctets") else str(value)


def main(arguments: list[str] | None = None) -> int:
    """0 with JSON on the output, 1 with a sentence where the switch gave no answer."""
    parser = argparse.ArgumentParser(prog="megatrace-snmp", description=__doc__)
    parser.add_argument("address", help="host or host:port")
    parser.add_argument("--login", type=Path, help="file with community:")
    given = parser.parse_args(arguments)
    try:
        community = read_login(given.login).get("community", "public")
        found = asyncio.run(read_switch(given.address, community))
    except MegatraceError as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    except (NoAnswer, OSError, ValueError) as error:
        print(sentence("no answer through SNMP", where=given.address, found=str(error)), file=sys.stderr)  # noqa: T201
        return 1
    print(json.dumps(found, indent=1))  # noqa: T201 - this is a program
    return 0


if __name__ == "__main__":
    sys.exit(main())
