"""What the network cards of a node say of themselves, without intercepting anything.

Counters of every RDMA port from sysfs (``/sys/class/infiniband``; another root for tests and containers), and
the queue pairs that ``rdma -j resource show qp`` lists. Names of counters differ between drivers, so what is
there is read and what is not is absent. Counters only ever grow until the driver is loaded anew; rates are
differences of two readings, and a counter that fell counts from zero.

Costs some tens of microseconds a port; a reading a second is plenty.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
WORDS = ("port_xmit_data", "port_rcv_data")
"""Counted in units of four bytes (InfiniBand architecture, 16.1.3.5)."""
WORD_BYTES = 4
MAX_TEXT = 4096
"""Bytes of one file of sysfs: it has at most a page."""
RDMA_TIMEOUT_S = 10.0
MAX_QUEUES = 1 << 20


@dataclass(frozen=True, slots=True)
class Port:
    """One port at one time. ``counters`` by name, data in bytes; ``rate`` in Gb/s, None where unknown."""

    device: str
    port: int
    time: int
    state: str
    rate: float | None
    gid: str | None
    counters: Mapping[str, int]

    @property
    def name(self) -> str:
        """As messages call it, ``mlx5_0/1``."""
        return f"{self.device}/{self.port}"


@dataclass(frozen=True, slots=True)
class QueuePair:
    """One queue pair of ``rdma resource show qp``; ``sent`` is the sequence number of its last packet."""

    device: str
    number: int
    remote: int | None
    state: str
    sent: int | None
    pid: int | None


def read_ports(now: int, root: Path = SYSFS) -> tuple[Port, ...]:
    """Every RDMA port of the node, in order of name; none where there is no RDMA. ``now`` is their time."""
    found = []
    for device in _entries(root / "class" / "infiniband"):
        places = (place for place in _entries(device / "ports") if place.name.isdigit())
        found += [_port(device.name, place, now) for place in places]
    return tuple(found)


def _port(device: str, place: Path, now: int) -> Port:
    counters: dict[str, int] = {}
    for folder in ("counters", "hw_counters"):
        for path in _entries(place / folder):
            value = _text(path)
            if value.isdigit():
                factor = WORD_BYTES if path.name in WORDS else 1
                counters[path.name] = int(value) * factor
    # "4: ACTIVE", "400 Gb/sec (4X NDR)"
    state = _text(place / "state").partition(":")[2].strip()
    rate = _text(place / "rate").partition(" ")[0]
    gid = _text(place / "gids" / "0")
    try:
        speed: float | None = float(rate)
    except ValueError:
        speed = None
    return Port(device, int(place.name), now, state, speed, gid or None, counters)


def rates(before: Port, after: Port) -> dict[str, float]:
    """Change per second of every counter that both readings have. Raises ValueError for readings of
    different ports or in the wrong order."""
    if before.name != after.name or after.time <= before.time:
        raise ValueError(f"{before.name} at {before.time} and {after.name} at {after.time} make no rate")
    seconds = (after.time - before.time) / 1e9
    found = {}
    for name, value in after.counters.items():
        earlier = before.counters.get(name)
        if earlier is not None:
            found[name] = (value - earlier if value >= earlier else value) / seconds
    return found


def queue_pairs(text: str) -> tuple[QueuePair, ...]:
    """The queue pairs in the JSON of ``rdma -j resource show qp``. Raises ValueError where it is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("rdma printed no JSON") from None
    if not isinstance(values, list):
        raise ValueError("rdma printed no list of queue pairs")
    found = []
    for item in values[:MAX_QUEUES]:
        number = _number(item, "lqpn") if isinstance(item, dict) else None
        if number is not None:
            found.append(
                QueuePair(
                    str(item.get("ifname", "")),
                    number,
                    _number(item, "rqpn"),
                    str(item.get("state", "")),
                    _number(item, "sq-psn"),
                    _number(item, "pid"),
                )
            )
    return tuple(found)


def frozen(before: Sequence[QueuePair], after: Sequence[QueuePair]) -> tuple[QueuePair, ...]:
    """Connected queue pairs whose packets did not move between two readings. Idle ones are among them: only
    together with requests on the way does that mean that a path stands."""
    earlier = {(pair.device, pair.number): pair for pair in before}
    found = []
    for pair in after:
        then = earlier.get((pair.device, pair.number))
        if then is not None and pair.state == "RTS" and pair.sent is not None and pair.sent == then.sent:
            found.append(pair)
    return tuple(found)


def read_queue_pairs(program: str = "rdma") -> tuple[tuple[QueuePair, ...], str]:
    """(queue pairs, '') or ((), why there are none to be had)."""
    try:
        done = subprocess.run(
            [program, "-j", "resource", "show", "qp"],
            capture_output=True,
            text=True,
            timeout=RDMA_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            return (), f"rdma: {done.stderr.strip().splitlines()[0] if done.stderr.strip() else 'failed'}"
        return queue_pairs(done.stdout), ""
    except FileNotFoundError:
        return (), "rdma is not installed (package iproute2 or rdma)"
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return (), f"rdma: {error}"


def _number(item: Mapping[str, object], key: str) -> int | None:
    value = item.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """The text of a small file; '' where it cannot be read (some counters refuse while a port is down)."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT).decode("ascii", "replace").strip()
    except OSError:
        return ""
