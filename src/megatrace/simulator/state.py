"""What the engine keeps: the clocks of a stage's ranks, meetings across stages, and what is recorded of a
run.

Apart from the engine so that each stays readable. Nothing here computes times.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megatrace.simulator.cluster import F8
from megatrace.simulator.program import Channel, Program

NEVER = float("inf")
LAUNCH_NS = 5e3
"""From a host's launch to the earliest start on its device."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The calls of one (iteration, stage): float64 [rows, ranks of the stage], ``NEVER`` where it did not
    happen."""

    iteration: int
    program: Program
    enqueue: F8
    start: F8
    end: F8
    counts: NDArray[np.int64] | None
    work: F8
    """[ranks of the stage]: ns of kernels that the program asked of each device"""


@dataclass
class StageState:
    """Clocks of the ranks of one stage, each float64 [dp, cp, tp]."""

    shape: tuple[int, ...]
    host: F8 = field(init=False)
    compute: F8 = field(init=False)
    last_call: F8 = field(init=False)
    p2p: F8 = field(init=False)
    grads: F8 = field(init=False)
    gather: deque[F8] = field(default_factory=lambda: deque(maxlen=2))
    launched: deque[tuple[int, F8]] = field(default_factory=deque)
    kernels: int = 0
    busy: list[tuple[F8, F8, F8]] | None = None
    """Launch, begin and end of what a device computed, where that is to be kept."""
    waits: list[tuple[F8, F8]] = field(default_factory=list)
    """Begin and end of the host's waits for its device, kept with ``busy``."""
    death: F8 | None = None
    out_of_step: dict[Channel, NDArray[np.bool_]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.host = np.zeros(self.shape)
        self.compute = np.zeros(self.shape)
        self.last_call = np.zeros(self.shape)
        self.p2p = np.zeros(self.shape)
        self.grads = np.zeros(self.shape)


@dataclass
class Meeting:
    """A collective across stages: what each stage brought, until all are there."""

    arrivals: dict[int, F8] = field(default_factory=dict)
    deaths: dict[int, F8] = field(default_factory=dict)
