"""How the benchmarks measure: CPU time, interleaved, against a limit of the same run, and where results go.

Machines differ and are shared, so a goal is a ratio to something that the same process measured in the same
minute (reading the input once, a plain implementation). CPU time of this thread rather than wall time,
because other processes share the cores; methods take turns round by round, so that a slow minute hits all of
them alike. Prints nothing.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Timing:
    """CPU seconds of each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round: neither the lucky one nor the one that a page fault hit."""
        return statistics.median(self.seconds)

    def as_json(self) -> dict[str, float]:
        """Smallest, median and largest, in ms."""
        return {
            "min_ms": round(min(self.seconds) * 1e3, 4),
            "median_ms": round(self.median * 1e3, 4),
            "max_ms": round(max(self.seconds) * 1e3, 4),
        }


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of this thread for one call."""
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def interleaved(
    methods: Mapping[str, Callable[[], object]], *, rounds: int = 7, calls: int = 1
) -> dict[str, Timing]:
    """Each method once per round, in turn, after a round that does not count (caches, page faults, imports).

    A turn is ``calls`` calls, of which the mean counts: for methods of a few milliseconds, which would
    otherwise measure how cold the others left the caches.
    """
    taken: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(rounds + 1):
        for name, run in methods.items():
            seconds = [cpu_seconds(run) for _ in range(calls)]
            if turn:
                taken[name].append(sum(seconds) / calls)
    return {name: Timing(tuple(seconds)) for name, seconds in taken.items()}


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio that was measured and what it may be: at most ``limit``, or at least with ``at_least``."""

    name: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value keeps the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        """One line for a person."""
        sign = "≥" if self.at_least else "≤"
        return f"{'ok  ' if self.met else 'MISS'}  {self.name}: {self.value:.2f} (goal {sign} {self.limit:g})"

    def as_json(self) -> dict[str, Any]:
        """The goal as it stands in a result file."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "limit": self.limit,
            "at_least": self.at_least,
            "met": self.met,
        }


def machine() -> dict[str, Any]:
    """What ran it, as far as it matters for a number; nothing that names the machine."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_result(name: str, figures: Mapping[str, Any], goals: list[Goal]) -> Path:
    """Writes ``results/NAME.json`` with machine, date, command, figures and goals; returns its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    module = "benchmarks." + name
    content = {
        "name": name,
        "command": " ".join(["python", "-m", module, *sys.argv[1:]]),
        "date": datetime.now(tz=timezone.utc).strftime("%Y-%m-%d"),
        "machine": machine(),
        "goals": [goal.as_json() for goal in goals],
        "figures": dict(figures),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
