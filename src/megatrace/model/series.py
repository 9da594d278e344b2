"""Values over time that are not calls: queue depth, bandwidth, counters, iteration times, facts from logs.

Kept apart from ``Events`` because they have no operation number and no partner on another rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a node's agent speaks of facts, and does not import numpy for it
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
        if len(self.times) > 1 and bool((self.times[1:] < self.times[:-1]).any()):
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
    """What a line of a log, or an output of a tool, states."""

    XID = "xid"
    SXID = "sxid"
    PCIE = "pcie"
    MEMORY = "memory"  # ECC of the host: MCE, EDAC
    KERNEL = "kernel"  # lock-ups, hung tasks, panics, driver messages
    LINK = "link"  # a port of the network goes up or down, or complains
    STORAGE = "storage"
    OUT_OF_MEMORY = "out_of_memory"
    FABRIC = "fabric"  # fabric manager, peermem
    WATCHDOG = "watchdog"
    FINGERPRINT = "fingerprint"  # two ranks were about to do different collectives
    PROCESS_EXIT = "process_exit"
    EXCEPTION = "exception"
    STORE = "store"  # rendezvous and key-value store of torch.distributed
    NCCL = "nccl"  # a warning or an error of NCCL
    NCCL_CALL = "nccl_call"
    NCCL_SETUP = "nccl_setup"
    NETWORK_ERROR = "network_error"
    ITERATION = "iteration"
    TIMERS = "timers"
    RANK_TIME = "rank_time"
    GPU_STATE = "gpu_state"
    PORT_STATE = "port_state"
    DISK_STATE = "disk_state"
    TOPOLOGY = "topology"
    METRIC = "metric"
    ALERT = "alert"
    LINES = "lines"  # what was read, though nothing is wrong there
    OTHER = "other"


Value = str | int | float
"""What a field of a fact may hold."""


@dataclass(frozen=True, slots=True)
class LogFact:
    """One statement of a log: what, about whom, when (ns since the epoch, None where there is no time).

    ``name`` says which of its kind it is; ``fields`` are the numbers and words of the statement. ``clock``
    tells times that may be compared: "wall", or "boot" for seconds since the start of one machine.
    """

    kind: FactKind
    text: str
    time: int | None = None
    rank: int | None = None
    node: str | None = None
    device: str | None = None
    code: int | None = None
    name: str = ""
    fields: tuple[tuple[str, Value], ...] = ()
    source: str = ""
    line: int = 0
    local_rank: int | None = None
    clock: str = "wall"

    def get(self, key: str) -> Value | None:
        """A field, None where the statement has it not."""
        return next((value for name, value in self.fields if name == key), None)

    def word(self, key: str) -> str:
        """A field as text, "" where the statement has it not."""
        value = self.get(key)
        return "" if value is None else str(value)

    def number(self, key: str) -> float | None:
        """A field as a finite number, None where it is absent or none."""
        value = self.get(key)
        if value is None or isinstance(value, str):
            return None
        try:
            number = float(value)
        except OverflowError:  # a whole number of 400 digits
            return None
        return number if math.isfinite(number) else None
