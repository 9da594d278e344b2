"""Who comes last (as the original MegaTrace script counts it): a rank that is last to collectives by more
than the interquartile range allows is slow.

Lateness is counted per collective, so a rank that comes a millisecond late to thousands of them outweighs one
that once comes late by seconds, and a rank whose place in the job makes it last is named as well.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.seen import NOBODY, Named, Seen


class LastArrival:
    """Outliers of the time that peers waited for a rank as the last."""

    name = "last arrivals and IQR (the original tool)"
    thresholds = (1.5, 3.0, 6.0, 12.0, 24.0)

    def hang(self, seen: Seen) -> Named:
        """Looks at completed collectives only."""
        del seen
        return NOBODY

    def slow(self, seen: Seen, threshold: float) -> Named:
        """Ranks beyond the upper quartile by ``threshold`` interquartile ranges."""
        meetings = seen.meetings
        lateness = np.zeros(seen.layout.world_size)
        first = np.minimum.reduceat(meetings.start, meetings.first)
        last = np.maximum.reduceat(meetings.start, meetings.first)
        np.add.at(lateness, meetings.last(), last - first)
        low, high = np.quantile(lateness, (0.25, 0.75))
        limit = high + threshold * max(high - low, 1e-6)
        return frozenset(np.flatnonzero(lateness > limit).tolist())
