"""Counters per communicator (as C4 and Aegis keep them): a member that made fewer calls than its peers hangs.

Counts what was launched, so a kernel that never ends looks like its peers; counts collectives, so what stops
between two stages of a pipeline leaves all counters of a communicator equal.
"""

from __future__ import annotations

from benchmarks.rivals.seen import NOBODY, Named, Seen


class Counters:
    """Members behind in a communicator."""

    name = "communicator counters (C4/Aegis-like)"
    thresholds = (0.0,)

    def hang(self, seen: Seen) -> Named:
        """The members that are behind in the communicator that was the first to stand still."""
        first, named = float("inf"), NOBODY
        for comm, counts in seen.made.items():
            most = max(counts.values())
            behind = frozenset(rank for rank, number in counts.items() if number < most)
            if behind and seen.last_call[comm] < first:
                first, named = seen.last_call[comm], behind
        return named

    def slow(self, seen: Seen, threshold: float) -> Named:
        """Counters say nothing about times."""
        del seen, threshold
        return NOBODY
