"""Time-outs (as just-in-time checkpointing uses them): whoever's collective does not end waits for somebody,
and who waits for nobody is the one.

Sees no slowness, and where the culprit's own call is pending too (a kernel that never ends) it names nobody.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.seen import NOBODY, Named, Seen


class Watchdog:
    """Ranks without a pending call in a job in which others have one."""

    name = "watchdog time-out (JIT-like)"
    thresholds = (0.0,)

    def hang(self, seen: Seen) -> Named:
        """Ranks whose watchdog stays silent."""
        if not seen.pending.any():
            return NOBODY
        return frozenset(np.flatnonzero(~seen.pending).tolist())

    def slow(self, seen: Seen, threshold: float) -> Named:
        """A time-out is minutes; nothing here takes as long."""
        del seen, threshold
        return NOBODY
