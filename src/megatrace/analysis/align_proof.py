"""Which calls hosts wait for, seen from host times alone.

A log of host times does not say when a call was through, and a host may run ahead of its device. But where
hosts wait for a collective's result they go on together, however far apart they came: the call makes them
equal. Calls that are seen to do so serve ``align`` as meetings.

Proves waiting, not the absence of it: a call at which everybody is together before and after shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.align_fit import fit, nanmedian
from megatrace.analysis.align_meetings import Meeting

F8 = NDArray[np.float64]

# Times on one clock are taken to be good to this: two reads of it, and the rounding of device clocks to the
# host's.
RESOLUTION_NS = 2e3
# The host waits for a call's result where it evens out what came before it by this factor: begins spread,
# ends do not.
EVENED = 3.0
# ... and where ends are this close; hosts need tens of microseconds to go on.
EVEN_NS = 5e5
# A small all-reduce goes up a tree and down again; a hop over a network of InfiniBand or RoCE takes 2 to 15
# µs, so that 20 are more than it needs.
HOP_NS = 20e3
# Calls at one position of the iteration from which a host's waiting can be read.
TIMES = 2


def host_pace(items: Sequence[Meeting], clocks: int) -> F8:
    """float64 [clocks] ns: the shortest time from a call to the next one that hosts on a clock showed; NaN if
    none.
    """
    pace = np.full(clocks, np.nan)
    for item in items:
        pace[item.clocks] = np.fmin(pace[item.clocks], np.fmin.reduce(item.own_cost, axis=0))
    return pace


def waited_for(item: Meeting, ranks: int, pace: F8) -> Meeting | None:
    """The calls at the one position whose result all hosts are seen to wait for, where they go on most alike.

    The time from a host's call to its next one includes waiting for its own device, so it bounds little; that
    the call is small bounds more: ``ranks`` members are through within a few hops, and go on at their hosts'
    pace (``host_pace``).
    """
    pace = pace[item.clocks]
    quickest = float(np.fmin.reduce(pace))
    settled = 2 * np.ceil(np.log2(max(ranks, 2))) * HOP_NS + quickest
    best: tuple[float, Meeting] | None = None
    for position in np.unique(item.position):
        rows = item.position == position
        part = replace(
            item,
            **{name: getattr(item, name)[rows] for name in ("position", "begin", "end", "cost", "own_cost")},
            settled=float(settled),
            # Between two calls hosts may do more than call, so that slow ones differ by more than a call
            # shows.
            unequal=np.maximum(np.nan_to_num(pace / quickest, nan=1.0), 1.0) ** 2,
        )
        if not evens_out(part.begin, part.end):
            continue
        unsteady = _unsteady(part.end)
        if best is None or unsteady < best[0]:
            best = unsteady, replace(part, unsteady=unsteady)
    return best[1] if best else None


def evens_out(begin: F8, end: F8) -> bool:
    """Whether calls make hosts equal: they come at different times and go on at the same.

    Two ways to see it, both blind to constant offsets or small beside them: over the repetitions (what varies
    before the call no longer varies after it), and over the clocks within one call.
    """
    both = np.sum(~np.isnan(begin) & ~np.isnan(end), axis=1) > 1  # of one clock nothing shows
    if both.sum() < TIMES:
        return False
    begin, end = begin[both], end[both]
    before, after = _unsteady(begin), _unsteady(end)
    across_before, across_after = _apart(begin), _apart(end)
    if not after <= EVEN_NS:
        return False
    return before >= EVENED * max(after, RESOLUTION_NS) or across_before >= EVENED * across_after


def _unsteady(times: F8) -> float:
    """How much a clock's time against the others' changes from call to call, drift apart, ns."""
    middle = nanmedian(times.T)
    relative = times - middle[:, None]
    relative = relative - fit(middle, relative).at(middle)
    return float(np.nanmedian(nanmedian(np.abs(relative))))


def _apart(times: F8) -> float:
    """How far clocks lie from each other in a call, ns."""
    return float(np.nanmedian(np.abs(times - nanmedian(times.T)[:, None])))
