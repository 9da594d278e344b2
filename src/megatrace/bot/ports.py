"""The RDMA ports and network interfaces of a machine, read once a round, and what is at the far end of a
cable.

From sysfs, whatever the driver; counters that a driver lacks are absent. A link has two ends, and the fault
may sit at either; the far end is taken from the template (what was cabled), else from LLDP or the subnet's
answer (what is seen), else from what was seen at an earlier look (a dark port sees nobody)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from megatrace.bot.look import Look, Skipped
from megatrace.bot.numbers import number
from megatrace.model.system import Unreadable

ROOT = "/sys/class/infiniband"
MAX_PORTS = 64
LLDP = ("lldpctl", "-f", "keyvalue")


@dataclass(frozen=True, slots=True)
class Port:
    """One RDMA port. ``rate`` Gb/s; ``place`` its PCI address; ``interfaces`` the network devices on it."""

    device: str
    number: int
    state: str
    physical: str
    rate: float | None
    width: str
    layer: str
    place: str
    board: str
    firmware: str
    virtual: bool
    interfaces: tuple[str, ...]
    counters: Mapping[str, float] = field(repr=False)

    @property
    def name(self) -> str:
        """As findings call it."""
        return f"{self.device}/{self.number}"

    @property
    def up(self) -> bool:
        """Whether it carries traffic."""
        return self.state == "ACTIVE" and self.physical in ("LinkUp", "")

    @property
    def ethernet(self) -> bool:
        """RoCE rather than InfiniBand."""
        return self.layer == "Ethernet"


def ports(look: Look) -> tuple[Port, ...]:
    """Every RDMA port in order of name. Raises Skipped where there is none."""
    found = look.memo("rdma ports", lambda: _ports(look))
    if not found:
        raise Skipped("no RDMA port in this machine")
    return found


def _ports(look: Look) -> tuple[Port, ...]:
    return tuple(_port(look, path) for path in look.system.glob(f"{ROOT}/*/ports/[0-9]*")[:MAX_PORTS])


def _port(look: Look, path: str) -> Port:
    folder, _, place_of_port = path.rpartition("/ports/")
    rate = look.text(f"{path}/rate") or ""
    speed = re.match(r"([\d.]+)", rate)
    width = re.search(r"\((\d+X[^)]*)\)", rate)
    counters = {}
    for kind in ("counters", "hw_counters"):
        for file in look.system.glob(f"{path}/{kind}/*"):
            value = look.number(file)
            if value is not None:
                counters[file.rpartition("/")[2]] = value
    place = ""
    with suppress(Unreadable):
        place = look.system.link(f"{folder}/device").rpartition("/")[2]
    return Port(
        device=folder.rpartition("/")[2],
        number=int(place_of_port) if place_of_port.isdecimal() else 0,
        state=(look.text(f"{path}/state") or "").partition(":")[2].strip(),
        physical=(look.text(f"{path}/phys_state") or "").partition(":")[2].strip(),
        rate=number(speed[1]) if speed else None,
        width=width[1] if width else "",
        layer=look.text(f"{path}/link_layer") or "",
        place=place,
        board=look.text(f"{folder}/board_id") or "",
        firmware=look.text(f"{folder}/fw_ver") or "",
        virtual=bool(look.system.glob(f"{folder}/device/physfn")),
        interfaces=tuple(item.rpartition("/")[2] for item in look.system.glob(f"{folder}/device/net/*")),
        counters=counters,
    )


def far_end(look: Look, port: Port) -> str | None:
    """ "leaf4/Ethernet12", or None where nobody knows."""
    known = look.expected(f"cabling.{port.name}")
    if isinstance(known, str):
        return known
    seen = look.memo("lldp neighbours", lambda: _neighbours(look))
    end = next((seen[name] for name in port.interfaces if name in seen), None)
    return end or look.counters.noted(f"cabling.{port.name}")


def remember_far_ends(look: Look) -> None:
    """Keeps what the cables of the ports that are up lead to, for the day on which one is dark."""
    for port in ports(look):
        if port.up:
            end = far_end(look, port)
            if end is not None and end != look.counters.noted(f"cabling.{port.name}"):
                look.note(f"cabling.{port.name}", end)


def _neighbours(look: Look) -> dict[str, str]:
    """Interface → "switch/port" as LLDP tells it."""
    ran = look.run(*LLDP)
    parts: dict[str, dict[str, str]] = {}
    for line in ran.output.splitlines() if ran.ok else ():
        found = re.match(r"lldp\.([\w.-]+?)\.(chassis\.name|port\.(?:ifname|descr|local))=(.+)", line)
        if found is not None:
            parts.setdefault(found[1], {}).setdefault(found[2], found[3].strip())
    ends = {}
    for name, said in parts.items():
        port = said.get("port.ifname") or said.get("port.local") or said.get("port.descr")
        if said.get("chassis.name") and port:
            ends[name] = f"{said['chassis.name']}/{port}"
    return ends


def usual(values: Sequence[str]) -> str:
    """The most frequent one, where it is that of more than half; else ""."""
    counts = Counter(value for value in values if value).most_common(1)
    return counts[0][0] if counts and counts[0][1] * 2 > len(values) else ""


def statistics(look: Look, interface: str) -> dict[str, float]:
    """What ``ethtool -S`` counts on a network device; none where it cannot be asked."""
    return look.memo(f"ethtool {interface}", lambda: _statistics(look, interface))


def _statistics(look: Look, interface: str) -> dict[str, float]:
    ran = look.run("ethtool", "-S", interface)
    found = {}
    for line in ran.output.splitlines() if ran.ok else ():
        name, colon, value = line.strip().partition(": ")
        if colon and value.strip().isdecimal() and value.isascii():
            found[name] = float(value)
    return found
