"""What a replay of recorded operations says: how long the steps would have taken if something were equal.

"Equal" means that every operation of a type takes the same, so nobody waits for anybody who is slower. The
difference to the replay with recorded lengths is what stragglers cost; it is then asked of each type of
operation, each worker and each stage how much of it is theirs. Names and formulas are those of Lin et al.
(OSDI 2025); ``analysis.whatif`` computes them.

Holds numbers; the verdict on them is a ``Diagnosis``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class WhatIfResult:
    """Times float64 [K] in seconds, one of each step, steps as the table numbers them (int64 [K]).

    recorded_s  as recorded;  replayed_s  with the recorded lengths and nothing between operations;  equal_s
    if all operations of a type took the same.

    A slowdown is a mean step time against that of ``equal_s``, with the named operations alone as recorded:
    own. ``worker_ranks`` int32 of the same shape.

    Shares of (replayed − equal) that go away where the named operations are made equal, None where there is
    stage, ``last_stage_share`` (M_S), ``compute_share`` of all compute.
    """

    steps: NDArray[np.int64]
    recorded_s: NDArray[np.float64]
    replayed_s: NDArray[np.float64]
    equal_s: NDArray[np.float64]
    by_type: tuple[tuple[str, float], ...]
    by_stage: tuple[tuple[int, float], ...]
    by_replica: tuple[tuple[int, float], ...]
    by_worker: NDArray[np.float64]
    worker_ranks: NDArray[np.int32]
    slowest: tuple[int, ...]
    slowest_share: float | None
    last_stage_share: float | None
    stage_shares: tuple[tuple[int, float], ...] = ()
    compute_share: float | None = None
    operations: int = 0
    micro_batches: int = 0
    notes: tuple[str, ...] = ()

    @property
    def slowdown(self) -> float:
        """S: mean replayed step against mean equal step."""
        return _ratio(self.replayed_s, self.equal_s)

    @property
    def between(self) -> float:
        """Mean recorded step against mean replayed one: what passes between operations."""
        return _ratio(self.recorded_s, self.replayed_s)

    @property
    def lost_s(self) -> float:
        """Seconds of all steps that would not have passed if all were equal."""
        return float((self.replayed_s - self.equal_s).sum())


def _ratio(longer: NDArray[np.float64], shorter: NDArray[np.float64]) -> float:
    """Of the means; 1 where the steps of the divisor take no time."""
    return float(longer.mean() / shorter.mean()) if shorter.mean() > 0 else 1.0
