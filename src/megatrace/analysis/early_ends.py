"""Ranks whose recording ends long before the job does: cut files, full disks, overwritten tails.

In a synchronous job nobody gets far without anybody: when a rank stops, all others come to stand within the
iteration, because they need its gradients. So a rank whose calls end while the others go through further
iterations cannot have stopped: its recording has. Such ranks are left out where the end of calls is evidence.

Does not judge hangs, and leaves alone what ends within the last iteration: that looks like a hang.
"""

from __future__ import annotations

import numpy as np

from megatrace.analysis.infer_layout import Resolved
from megatrace.units import format_ranks

# Iterations that end elsewhere after a rank's last call. A host runs ahead of its device, so one more
# gradient synchronisation may be enqueued without the rank; for the one after that its gradients must have
# come.
IMPOSSIBLE = 2


def early_ends(resolved: Resolved) -> tuple[int, ...]:
    """Ranks, ascending, after whose last call others went through two more iterations.

    Empty where there are no iterations to count.
    """
    it = resolved.iterations
    if it is None:
        return ()
    ranks, bounds = resolved.trace.events.offsets()
    last_call = resolved.trace.events.enqueue[bounds[1:] - 1]
    times = np.sort(it.times(resolved.trace.events), axis=0)  # NaN last
    seen = np.sum(~np.isnan(times), axis=0)
    middle = times[np.maximum(seen - 1, 0) // 2, np.arange(it.count)]
    ended = np.sort(middle[~np.isnan(middle)])
    passed = len(ended) - np.searchsorted(ended, last_call, "right")
    return tuple(int(rank) for rank in ranks[passed >= IMPOSSIBLE])


def early_note(resolved: Resolved, early: tuple[int, ...]) -> str:
    """One sentence for a person about the ranks that ``early_ends`` found."""
    events = resolved.trace.events
    last = max(int(events.enqueue[events.rows_of(rank).stop - 1]) for rank in early)
    quiet = (int(events.enqueue.max()) - last) / 1e9
    whose = (
        f"the log of rank {early[0]} ends"
        if len(early) == 1
        else f"the logs of ranks {format_ranks(early)} end"
    )
    return f"{whose} {quiet:.1f} s before the others', which went on for iterations: cut, not stopped"
