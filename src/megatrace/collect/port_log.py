"""Readings of a node's RDMA ports over time, in a file beside the rings.

Where work requests are not intercepted, what the cards count is all there is to see of the network: errors
that grow, a port that goes down, a queue pair that failed. A reading is one line of JSON; after the first
only the counters that changed stand in it. A node without RDMA gets no file.

Reads sysfs and asks ``rdma`` (``sysfs``); judges nothing.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatrace.collect.sysfs import SYSFS, Port, QueuePair, read_ports, read_queue_pairs
from megatrace.errors import CollectError

SCHEMA = "megatrace.ports/1"
MAX_BYTES = 64 << 20
"""Of one file: a week of a node with 16 ports at a reading every ten seconds. Then the log begins anew."""


@dataclass(slots=True)
class PortLog:
    """The log of one node in ``folder``. ``root`` stands for /sys."""

    folder: Path
    root: Path = SYSFS
    program: str = "rdma"
    before: dict[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"ports-{socket.gethostname()}.jsonl"

    def write(self, now: int) -> int:
        """Appends one reading of the time ``now``, ns since the epoch; the number of ports. Raises
        CollectError."""
        ports = read_ports(now, self.root)
        if not ports:
            return 0
        pairs, why = read_queue_pairs(self.program) if self._asks() else ((), "")
        told = {
            "schema": SCHEMA,
            "host": socket.gethostname(),
            "time_ns": now,
            "ports": [self._told(port) for port in ports],
            "failed_queue_pairs": [_pair(pair) for pair in pairs if pair.state in ("ERR", "SQE")],
        }
        if why:
            told["note"] = why
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(told, separators=(",", ":")) + "\n")
                full = file.tell() > MAX_BYTES
            if full:
                self.path.replace(self.path.with_suffix(".1.jsonl"))
                self.before.clear()
        except OSError as error:
            raise CollectError(f"{self.path} cannot be written: {error.strerror}") from None
        return len(ports)

    def _asks(self) -> bool:
        return shutil.which(self.program) is not None

    def _told(self, port: Port) -> dict[str, Any]:
        known = self.before.get(port.name)
        changed = {
            name: value for name, value in port.counters.items() if known is None or known.get(name) != value
        }
        self.before[port.name] = port.counters
        return {
            "device": port.device,
            "port": port.port,
            "state": port.state,
            "rate": port.rate,
            "counters": changed,
        }


def _pair(pair: QueuePair) -> dict[str, Any]:
    return {
        "device": pair.device,
        "number": pair.number,
        "remote": pair.remote,
        "state": pair.state,
        "pid": pair.pid,
    }
