"""A switch as SNMP shows it: its ports, and what hangs on each. Asked through ``bot.backends.snmp``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from megatrace.bot.look import Look, Skipped, Unknown

ASK_S = 60.0
"""For all columns: a chassis switch with 800 ports answers 11 columns in about 30 s."""
UP = 1
"""Of ifAdminStatus and ifOperStatus (RFC 2863)."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port; ``speed`` in Mb/s; counters None where the switch has no such column.

    ``peer`` is "machine/port" at the other end of the cable by LLDP, None where nobody announces himself."""

    name: str
    admin_up: bool
    up: bool
    speed: int
    peer: str | None
    in_errors: int | None
    in_discards: int | None
    out_discards: int | None
    pauses_sent: int | None
    pauses_received: int | None


@dataclass(frozen=True, slots=True)
class Switch:
    """``up_s`` is the time since its start."""

    name: str
    up_s: float
    ports: tuple[Port, ...]


def switch(look: Look) -> Switch:
    """The switch that is looked at. Raises Skipped where the template names no address, Unknown."""
    address = look.expected("switch.address")
    if not isinstance(address, str):
        raise Skipped("no switch is named (megatrace inspect --switch NAME=ADDRESS)")

    def read() -> Switch:
        login = look.expected("switch.login")
        words = ["megatrace-snmp", address, *(["--login", str(login)] if login else [])]
        try:
            found = json.loads(look.output(*words, timeout_s=ASK_S))
            ports = tuple(_port(item) for item in found["ports"].values() if item.get("name") is not None)
            return Switch(str(found["name"]), float(found["up_s"]), ports)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unknown(f"the answer of {address} makes no sense ({error!r:.80})") from None

    return look.memo("switch", read)


def _port(item: dict[str, Any]) -> Port:
    peer, far = item.get("peer"), item.get("peer_port")

    def count(key: str) -> int | None:
        value = item.get(key)
        return value if isinstance(value, int) else None

    return Port(
        name=str(item["name"]),
        admin_up=item.get("admin") == UP,
        up=item.get("oper") == UP,
        speed=count("speed") or 0,
        peer=f"{peer}/{far or '?'}" if peer else None,
        in_errors=count("in_errors"),
        in_discards=count("in_discards"),
        out_discards=count("out_discards"),
        pauses_sent=count("pauses_sent"),
        pauses_received=count("pauses_received"),
    )
