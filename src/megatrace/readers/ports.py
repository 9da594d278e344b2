"""Logs of a node's RDMA ports (``collect.port_log``): what changed while they were watched.

One fact for each port: its state at the beginning and the end, how often it went down, its rate, and by how
much each counter grew, which unlike its value says something about this job. One more for each queue pair
that was found failed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from megatrace.model.series import FactKind, LogFact, Value
from megatrace.model.trace import Trace
from megatrace.readers import registry
from megatrace.readers.source import ReadOptions, Source
from megatrace.readers.statements import Statements
from megatrace.units import NS_PER_S

SCHEMA = "megatrace.ports/1"
WATCHED, FAILED_PAIR = "watched", "failed_queue_pair"
UP = "ACTIVE"
MAX_BYTES = 256 << 20
MAX_PORTS = 4096


@dataclass(slots=True)
class _Port:
    """One port over time."""

    node: str
    device: str
    first: int
    last: int
    states: list[tuple[int, str]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    grown: dict[str, int] = field(default_factory=dict)

    def take(self, time: int, told: dict[str, Any]) -> None:
        """One reading. A counter that fell counts from zero: the driver was loaded anew."""
        self.last = time
        state = str(told["state"])
        if not self.states or self.states[-1][1] != state:
            self.states.append((time, state))
        if isinstance(told.get("rate"), int | float):
            self.rates.append(float(told["rate"]))
        for name, value in told["counters"].items():
            number = int(value)
            before = self.values.get(str(name))
            if before is not None and number != before:
                step = number - before if number > before else number
                self.grown[str(name)] = self.grown.get(str(name), 0) + step
            self.values[str(name)] = number

    def fact(self) -> LogFact:
        """What is to be judged."""
        downs = [
            time
            for (_, before), (time, after) in zip(self.states, self.states[1:], strict=False)
            if before == UP and after != UP
        ]
        fields: list[tuple[str, Value]] = [
            ("first_state", self.states[0][1]),
            ("last_state", self.states[-1][1]),
            ("downs", len(downs)),
            ("seconds", (self.last - self.first) / NS_PER_S),
        ]
        if self.rates:
            fields += [("rate", self.rates[-1])]
        fields += [(f"grown {name}", count) for name, count in sorted(self.grown.items())]
        return LogFact(
            FactKind.PORT_STATE,
            f"{self.node} {self.device}",
            time=downs[0] if downs else self.last,
            node=self.node,
            device=self.device,
            name=WATCHED,
            fields=tuple(fields),
        )


@registry.register("ports", summary="readings of RDMA ports that `megatrace collect` and `run` take")
class PortsReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._statements = Statements("ports")

    def refuses(self, head: bytes) -> str | None:
        """The schema in the first words of the first line."""
        return None if SCHEMA.encode() in head[:100] else "no readings of RDMA ports"

    def add(self, source: Source) -> None:
        """Reads one log; a line that is torn or damaged is left out."""
        ports: dict[tuple[str, str], _Port] = {}
        pairs: dict[tuple[str, str, int], LogFact] = {}
        lines = source.read_whole(self._limit).decode("utf-8", "replace").splitlines()
        bad = sum(not _taken(line, ports, pairs) for line in lines)
        if bad:
            self._statements.notes.append(f"{source.name}: {bad} of {len(lines)} readings are damaged.")
        facts = [*(port.fact() for port in ports.values() if port.states), *pairs.values()]
        self._statements.take(
            source.name, facts, shape="readings of RDMA ports", lines=len(lines), stated=len(facts)
        )

    def finish(self) -> Trace:
        """Facts alone. Raises TraceError where nothing was added."""
        return self._statements.trace("no readings of RDMA ports")


def _taken(
    line: str, ports: dict[tuple[str, str], _Port], pairs: dict[tuple[str, str, int], LogFact]
) -> bool:
    """Takes one reading; False where it is damaged."""
    try:
        _take(json.loads(line), ports, pairs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return False
    return True


def _take(
    told: dict[str, Any], ports: dict[tuple[str, str], _Port], pairs: dict[tuple[str, str, int], LogFact]
) -> None:
    node, time = str(told["host"]), int(told["time_ns"])
    if not 0 <= time < 1 << 63:
        raise ValueError("a time that is none")
    for item in told["ports"][:MAX_PORTS]:
        device = f"{item['device']}/{int(item['port'])}"
        if (node, device) not in ports:
            ports[node, device] = _Port(node, device, time, time)
        ports[node, device].take(time, item)
    for item in told.get("failed_queue_pairs", ())[:MAX_PORTS]:
        device, number = str(item["device"]), int(item["number"])
        fields: list[tuple[str, Value]] = [("number", number), ("state", str(item["state"]))]
        if isinstance(item.get("pid"), int):
            fields.append(("pid", item["pid"]))
        fact = LogFact(
            FactKind.PORT_STATE,
            f"{node} {device} queue pair {number}",
            time=time,
            node=node,
            device=device,
            name=FAILED_PAIR,
            fields=tuple(fields),
        )
        pairs.setdefault((node, device, number), fact)
