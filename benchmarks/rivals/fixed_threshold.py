"""One threshold per phase (as MegaScale's heat map of forward and backward times): what takes that much
longer than the phase usually does is slow.

Phases are timed by events around them, collectives included, so the peers of a slow rank show its time; they
end before a job stands, so a hang leaves no mark. Transfers are timed from both sides being ready and named
by their receiver. Whether a longer phase costs the job anything is not asked.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.seen import F8, NOBODY, Named, Seen
from megatrace.analysis.reductions import median


class FixedThreshold:
    """Ranks with a phase that is ``threshold`` seconds longer than its median over ranks and iterations."""

    name = "fixed threshold per phase (MegaScale-like)"
    thresholds = (0.01, 0.03, 0.06, 0.105, 0.2, 0.4)

    def hang(self, seen: Seen) -> Named:
        """Nothing is timed that did not end."""
        del seen
        return NOBODY

    def slow(self, seen: Seen, threshold: float) -> Named:
        """All ranks of the heat map's hot cells."""
        phases, table = seen.phases, seen.table
        if phases is None or table is None or not len(phases):
            return NOBODY
        hot = (phases - _usual(phases) > threshold).any(axis=(0, 4))
        moved = table.transfer[1:]
        late = (moved - _usual(moved) > threshold).any(axis=(0, 4))
        return frozenset(table.grid[hot | late].tolist())


def _usual(values: F8) -> F8:
    """float64 [S, 1, 1, tasks]: medians over iterations, replicas and members."""
    stages, tasks = values.shape[1], values.shape[4]
    return median(np.moveaxis(values, 1, 0).reshape(stages, -1, tasks), axis=1)[:, None, None]
