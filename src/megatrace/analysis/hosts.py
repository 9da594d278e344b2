"""Hosts that are slow at making calls: a starved processor, a busy node.

Inside a block of calls the host runs ahead of its device, so the time per call in such a burst is the host's own pace,
whatever the device does. It is compared with the same rank's past and with all other ranks of the job (every rank
makes the same kind of calls), and a node is accused when its ranks are slow together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.work import WorkTable, median

F8 = NDArray[np.float64]

# Pace of a starved host against the usual one. Burst pace differs by 10–20 % between healthy ranks.
STARVED = 1.6
# Bursts of fewer calls say nothing about pace.
CALLS = 4
ALL_SLOW = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class SlowHosts:
    """starved bool [K, S, D, M] over the usable iterations; ratio float64 likewise, pace against usual."""

    starved: NDArray[np.bool_]
    ratio: F8


def slow_hosts(table: WorkTable, costs: Costs) -> SlowHosts | None:
    """Hosts that need longer per call than usual, or None where no bursts are seen."""
    calls = table.burst_calls
    bursts = np.where(calls[costs.iterations] >= CALLS, table.burst[costs.iterations], np.nan)
    pace = median(bursts / np.maximum(calls[costs.iterations] - 1, 1), 4)  # [K, S, D, M]
    if np.isnan(pace).all():
        return None
    flat = pace.reshape(len(pace), -1)
    everyone = float(np.median(median(flat, 1)[~np.isnan(flat).all(axis=1)]))
    own = np.quantile(np.nan_to_num(flat, nan=np.inf), 0.2, axis=0)
    own = np.where(np.isfinite(own), own, np.nan).reshape(pace.shape[1:])
    usual = np.fmin(everyone, own[None])
    with np.errstate(invalid="ignore"):
        ratio = pace / usual
        starved = ratio >= STARVED
    if bool(starved.mean() > ALL_SLOW):
        return None  # everybody's pace: nobody in particular
    return SlowHosts(np.asarray(starved, np.bool_), np.nan_to_num(ratio, nan=1.0))
