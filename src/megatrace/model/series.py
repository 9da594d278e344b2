"""Values over time that are not calls: queue depth, bandwidth, counters, iteration times, facts from logs.

Kept apart from ``Events`` because they have no operation number and no partner on another rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class SeriesKind(Enum):
    """What a series measures, with its unit."""

    QUEUE_DEPTH = "queue_depth"  # work requests outstanding
    OUTSTANDING_BYTES = "outstanding_bytes"  # bytes posted and not completed
    BANDWIDTH = "bandwidth"  # bytes per second while busy
    COUNTER = "counter"  # monotonic, resets to zero
    ITERATION_TIME = "iteration_time"  # ns


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One measured quantity of one thing: ``times`` int64 ns ascending, ``values`` float64, same length."""

    kind: SeriesKind
    name: str
    rank: int | None
    node: str | None
    device: str | None
    times: NDArray[np.int64]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if len(self.times) != len(self.values):
            raise ValueError(f"series {self.name}: {len(self.times)} times, {len(self.values)} values")
        if len(self.times) > 1 and bool(np.any(np.diff(self.times) < 0)):
            raise ValueError(f"series {self.name}: times are not ascending")


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Intervals from a profiler: start, end int64 ns; ``name`` indexes ``names``; rank, stream int32."""

    rank: NDArray[np.int32]
    stream: NDArray[np.int32]
    name: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    names: tuple[str, ...]


class FactKind(Enum):
    """What a log line states."""

    XID = "xid"
    OUT_OF_MEMORY = "out_of_memory"
    WATCHDOG = "watchdog"
    PROCESS_EXIT = "process_exit"
    NETWORK_ERROR = "network_error"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LogFact:
    """One statement of a log: what, about whom, when (ns since the epoch, None where there is no time)."""

    kind: FactKind
    text: str
    time: int | None = None
    rank: int | None = None
    node: str | None = None
    device: str | None = None
    code: int | None = None
