"""What a board's controller says: its sensors and its log of events, whichever way it is asked.

Asked through Redfish where the template names a service (``bmc.redfish``), through IPMI over the network
where it names an address (``bmc.ipmi``), else with ipmitool on the machine itself. Both become the same
values here; which of them are faults is the checks' business."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from megatrace.bot.look import Look, Skipped, Unknown
from megatrace.units import NS_PER_S

ASK_S = 45.0
"""For one pass over a controller: ipmitool reads 150 sensors one by one, 0.1 s each."""


class Part(Enum):
    """What a sensor belongs to."""

    FAN = "fan"
    SUPPLY = "power supply"
    TEMPERATURE = "temperature"
    REDUNDANCY = "redundancy"
    LEAK = "leak detector"
    OTHER = "sensor"


class Health(Enum):
    """What the controller itself says of a sensor."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Sensor:
    """``said`` is the controller's own words, with the reading; ``value`` in °C, RPM or W."""

    name: str
    part: Part
    health: Health
    said: str
    value: float | None = None
    serial: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the log; ``time`` ns since the epoch by the controller's clock, None where it had none.

    ``gone`` that the same thing was later taken back."""

    number: int
    time: int | None
    sensor: str
    said: str
    severity: str = ""
    gone: bool = False


def sensors(look: Look) -> tuple[Sensor, ...]:
    """Every sensor. Raises Skipped, Unknown."""

    def read() -> tuple[Sensor, ...]:
        redfish = redfish_answer(look)
        if redfish is not None:
            return tuple(_from_redfish(redfish))
        return tuple(_from_ipmi(_ipmi(look, "sdr", "elist")))

    return look.memo("board sensors", read)


def events(look: Look) -> tuple[Event, ...]:
    """The log, oldest first. Raises Skipped, Unknown."""

    def read() -> tuple[Event, ...]:
        redfish = redfish_answer(look)
        if redfish is not None:
            return tuple(_logged(item) for item in redfish.get("log", ()))
        sensors(look)  # where these gave no answer, the log would wait as long for none
        return _taken_back(_from_sel(_ipmi(look, "sel", "elist")))

    return look.memo("board events", read)


def redfish_answer(look: Look) -> dict[str, Any] | None:
    """What the Redfish service said; None where the template names none. Raises Unknown."""
    url = look.expected("bmc.redfish")
    if not isinstance(url, str):
        return None
    login, insecure = look.expected("bmc.login"), look.expected("bmc.insecure")
    words = ["megatrace-redfish", url, *(["--login", str(login)] if login else [])]
    text = look.output(*words, *(["--insecure"] if insecure else []), timeout_s=ASK_S)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Unknown(f"the answer of {url} is no JSON ({error})") from None
    return found if isinstance(found, dict) else {}


def _ipmi(look: Look, *words: str) -> str:
    address = look.expected("bmc.ipmi")
    if not isinstance(address, str):
        if not look.system.root:
            raise Skipped("ipmitool needs root on the machine itself")
        if not look.system.glob("/dev/ipmi*"):
            raise Skipped("no IPMI device on this machine, and the template names no controller")
        return look.output("ipmitool", *words, timeout_s=ASK_S)
    host, _, port = address.partition(":")
    cipher, user, login = (look.expected(f"bmc.{key}") for key in ("cipher", "user", "password_file"))
    access = ["-I", "lanplus", "-N", "1", "-R", "3", "-H", host, *(["-p", port] if port else [])]
    access += ["-C", str(cipher)] if cipher is not None else []
    access += ["-U", str(user)] if user else []
    access += ["-f", str(login)] if login else []
    return look.output("ipmitool", *access, *words, timeout_s=ASK_S)


# ---- IPMI

_STATES = {"ok": Health.OK, "ns": Health.ABSENT, "na": Health.ABSENT}
_ENTITIES = {29: Part.FAN, 30: Part.FAN, 10: Part.SUPPLY, 21: Part.REDUNDANCY}
"""Entities of IPMI table 43-13: fan, cooling unit, power supply, power unit."""
_LOST = re.compile(
    r"failure detected|ac lost|ac out-of-range|config error|redundancy lost|non-redundant|asserted|fault",
    re.I,
)
_FORETOLD = re.compile(r"predictive failure|redundancy degraded", re.I)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?) (degrees C|RPM|Watts|percent)")


def _from_ipmi(text: str) -> Iterator[Sensor]:
    """Lines of ``ipmitool sdr elist``: name | number | state | entity.instance | reading or states."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5:
            continue
        name, _, state, entity, said = cells
        kind = _ENTITIES.get(int(entity.partition(".")[0]) if entity.partition(".")[0].isdigit() else -1)
        found = _NUMBER.search(said)
        if found and found[2] == "degrees C":
            kind = Part.TEMPERATURE
        elif found and found[2] == "RPM":
            kind = Part.FAN
        health = _STATES.get(state, Health.CRITICAL if state not in ("nc", "lnc", "unc") else Health.WARNING)
        if health is Health.OK and kind in (Part.SUPPLY, Part.REDUNDANCY) and not found:
            health = _discrete(said)
        value = float(found[1]) if found else None
        yield Sensor(name, kind or _by_name(name), health, said, value)


def _discrete(said: str) -> Health:
    if _LOST.search(said):
        return Health.CRITICAL
    return Health.WARNING if _FORETOLD.search(said) else Health.OK


def _by_name(name: str) -> Part:
    if re.search(r"leak", name, re.I):
        return Part.LEAK
    return Part.TEMPERATURE if re.search(r"temp", name, re.I) else Part.OTHER


def _from_sel(text: str) -> list[tuple[Event, bool]]:
    """Lines of ``ipmitool sel elist``, and whether each takes something back."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 4 or not re.fullmatch(r"[0-9a-f]+", cells[0]):
            continue
        time = _sel_time(cells[1], cells[2])
        rest = cells[3:] if time is not None or not cells[2] or ":" in cells[2] else cells[2:]
        if not rest:
            continue
        sensor, said = rest[0], " | ".join(rest[1:])
        back = bool(re.search(r"\bDeasserted\b", said))
        found.append((Event(int(cells[0], 16), time, sensor, said), back))
    return found


def _sel_time(day: str, clock: str) -> int | None:
    """ipmitool prints the controller's clock, which is taken for UTC; no time before its first setting."""
    clock = clock.removesuffix(" UTC")
    for form in ("%m/%d/%Y %H:%M:%S", "%m/%d/%y %H:%M:%S"):
        try:
            found = datetime.strptime(f"{day} {clock}", form).replace(tzinfo=timezone.utc)
        except ValueError:
            continue
        return int(found.timestamp()) * NS_PER_S
    return None


def _taken_back(entries: list[tuple[Event, bool]]) -> tuple[Event, ...]:
    """The assertions, each marked where a later entry takes it back."""
    found: list[Event] = []
    later: set[tuple[str, str]] = set()
    for event, back in reversed(entries):
        key = (event.sensor, re.split(r" \| (?:De)?[Aa]sserted", event.said)[0])
        if back:
            later.add(key)
            continue
        gone = key in later
        later.discard(key)
        found.append(Event(event.number, event.time, event.sensor, event.said, gone=gone))
    return tuple(reversed(found))


# ---- Redfish

_HEALTH = {"OK": Health.OK, "Warning": Health.WARNING, "Critical": Health.CRITICAL}


def _from_redfish(found: dict[str, Any]) -> Iterator[Sensor]:
    kinds = (
        ("fans", Part.FAN, "RPM"),
        ("temperatures", Part.TEMPERATURE, "°C"),
        ("supplies", Part.SUPPLY, "W"),
        ("redundancy", Part.REDUNDANCY, ""),
        ("leaks", Part.LEAK, ""),
    )
    for key, part, unit in kinds:
        for item in found.get(key, ()):
            health = _HEALTH.get(str(item.get("health")), Health.ABSENT)
            if str(item.get("enabled")) in ("Absent", "Disabled", "StandbyOffline"):
                health = Health.ABSENT
            if part is Part.LEAK and str(item.get("state")) in ("Warning", "Critical"):
                health = _HEALTH[str(item["state"])]
            value = item.get("value")
            number = float(value) if isinstance(value, int | float) else None
            reading = f", {number:g} {unit}" if number is not None and unit else ""
            said = f"{item.get('health') or item.get('enabled') or 'no state'}{reading}"
            yield Sensor(str(item["name"]), part, health, said, number, str(item.get("serial") or ""))


def _logged(item: dict[str, Any]) -> Event:
    created = item.get("created")
    time = None
    if isinstance(created, str):
        try:
            moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
        except ValueError:
            moment = None
        if moment is not None:
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            time = int(moment.timestamp()) * NS_PER_S
    number = re.sub(r"\D", "", str(item.get("id"))) or "0"
    sensor = str(item.get("sensor") or item.get("name") or "the board")
    said = " ".join(str(item[key]) for key in ("message", "code") if item.get(key))
    gone = "deassert" in str(item.get("code", "")).lower()
    return Event(int(number), time, sensor, said, str(item.get("severity") or ""), gone)
