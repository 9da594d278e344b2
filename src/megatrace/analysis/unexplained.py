"""Iterations that were long although nothing that was seen explains it.

"Healthy" would be a lie then: in an enqueue-only log of a data-parallel job every host waits equally long,
whoever is slow. Single long iterations are checkpoints, evaluations and logging; several in a row are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import usual_time
from megatrace.model.finding import Finding, Severity

# Longer than usual by this share, for at least so many iterations in a row: (share, iterations). A checkpoint
# and an evaluation may follow each other.
STEPS = ((0.3, 3), (0.1, 5))


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Iterations first..last took ``factor`` times the usual time."""

    first: int
    last: int
    factor: float
    usual_s: float


def find_unexplained(times: NDArray[np.float64], findings: Sequence[Finding]) -> Unexplained | None:
    """The longest such stretch of iteration times (seconds, NaN unknown) outside all findings' windows."""
    if np.sum(~np.isnan(times)) < 4:
        return None
    usual = usual_time(times[1:])
    open_ = ~np.isnan(times)
    open_[0] = False  # the first iteration allocates, compiles and warms up
    for finding in findings:
        window = finding.window
        if window is None or window.first_iteration is None or finding.severity > Severity.P2:
            continue
        last = len(times) - 1 if window.last_iteration is None else window.last_iteration
        open_[window.first_iteration : last + 2] = False
    for share, least in STEPS:
        slow = open_ & (np.nan_to_num(times, nan=0.0) >= (1 + share) * usual)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], slow, [False]])))
        runs = [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        long = [run for run in runs if run[1] - run[0] + 1 >= least]
        if long:
            first, last = max(long, key=lambda run: run[1] - run[0])
            return Unexplained(first, last, float(np.median(times[first : last + 1]) / usual), usual)
    return None
