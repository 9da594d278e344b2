"""``ibstat``, ``ibstatus`` and ``perfquery``: state, rate and error counters of InfiniBand and RoCE ports."""

from __future__ import annotations

import re

from megatrace.model.series import FactKind, LogFact, Value
from megatrace.readers.log_pattern import value

_STATUS = re.compile(r"Infiniband device '([\w.-]+)' port (\d+) status:", re.IGNORECASE)
_CA = re.compile(r"^\s*CA '([\w.-]+)'")
_PORT = re.compile(r"^\s*Port (\d+):\s*$")
_PAIR = re.compile(r"^\s*([A-Za-z][\w ]*?):\s+(.*?)\s*$")
_COUNTER = re.compile(r"^([A-Za-z0-9]+):\.*\s*(\S+)\s*$", re.ASCII)
_HEAD = re.compile(r"^# .*?[Ll]id (\d+) port (\d+)", re.ASCII)
_KEYS = {
    "state": "state",
    "phys state": "phys",
    "physical state": "phys",
    "rate": "rate",
    "link layer": "layer",
    "base lid": "lid",
}


def is_ports(text: str) -> bool:
    """ibstatus' or ibstat's headings."""
    head = text[:20_000]
    return bool(_STATUS.search(head)) or bool(re.search(r"^\s*CA '[\w.-]+'", head, re.MULTILINE))


def read_ports(text: str) -> list[LogFact]:
    """One PORT_STATE fact a port."""
    facts: list[LogFact] = []
    device, port = "", ""
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        whole, adapter, number = _STATUS.search(line), _CA.match(line), _PORT.match(line)
        if whole is not None or adapter is not None or number is not None:
            facts += _port(device, port, fields)
            fields = {}
            if whole is not None:
                device, port = whole[1], whole[2]
            elif adapter is not None:
                device, port = adapter[1], ""
            elif number is not None:
                port = number[1]
            continue
        pair = _PAIR.match(line)
        if pair is not None and port:
            key = _KEYS.get(pair[1].strip().lower().replace("_", " "))
            if key is not None:
                fields[key] = pair[2]
    return facts + _port(device, port, fields)


def _port(device: str, port: str, fields: dict[str, str]) -> list[LogFact]:
    if not device or not fields:
        return []
    found: list[tuple[str, Value]] = [("port", int(port or 1))]
    for key, said in fields.items():
        if key == "rate":
            number = re.match(r"[\d.]+", said)
            found.append(
                (
                    "rate",
                    float(number[0]) if number and number[0].strip(".") and number[0].count(".") < 2 else 0.0,
                )
            )
            found.append(("rate_text", said))
        else:
            found.append((key, re.sub(r"^\d+: *", "", said)))
    return [
        LogFact(
            FactKind.PORT_STATE, f"{device} port {port}", device=device, name="state", fields=tuple(found)
        )
    ]


def is_perfquery(text: str) -> bool:
    """Counters with dots between name and number."""
    return bool(
        re.search(r"^(?:PortXmitData|SymbolErrorCounter|PortSelect):\.{2,}", text[:20_000], re.MULTILINE)
    )


def read_perfquery(text: str) -> list[LogFact]:
    """One PORT_STATE fact for each block of counters."""
    facts: list[LogFact] = []
    lid, port = "", ""
    fields: dict[str, Value] = {}
    for line in text.split("\n"):
        head = _HEAD.match(line)
        if head is not None:
            facts += _counters(lid, port, fields)
            lid, port, fields = head[1], head[2], {}
            continue
        pair = _COUNTER.match(line.strip())
        if pair is not None:
            if pair[1] == "PortSelect" and not port:
                port = pair[2]
            fields[pair[1]] = value(pair[2])
    return facts + _counters(lid, port, fields)


def _counters(lid: str, port: str, fields: dict[str, Value]) -> list[LogFact]:
    if not fields:
        return []
    numbers = tuple((key, said) for key, said in fields.items() if isinstance(said, int | float))
    name = f"LID {lid} port {port}" if lid else f"port {port or '?'}"
    return [
        LogFact(
            FactKind.PORT_STATE,
            name,
            device=name,
            name="counters",
            fields=(("lid", lid), ("port", port), *numbers),
        )
    ]
