"""Which stretch of a job, and which of its ranks, are worth looking at call by call.

A viewer opens some hundred thousand calls at once, a job makes a hundred million. The stretch is chosen
around the first finding and grows as far as the calls of all ranks fit; where not even a short one fits, the
ranks nearest to the culprit are kept: itself, its tensor and context group, its pipeline, its data group.

Chooses only; what is in the stretch is gathered by ``timeline``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.infer_layout import Resolved
from megatrace.model.events import Events
from megatrace.model.finding import Finding, Verdict
from megatrace.model.layout import ParallelLayout
from megatrace.units import format_count

I8 = NDArray[np.int64]

# Perfetto opens a million slices within seconds; with phases and transfers this many calls stay below that.
MAX_CALLS = 250_000
# Iterations shown on either side of a finding that is long: what is usual is seen beside what is not.
BESIDE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """``start``, ``end`` ns inclusive; ``ranks`` int32 ascending; ``note`` says what is not shown."""

    start: int
    end: int
    ranks: NDArray[np.int32]
    note: str


def choose(
    resolved: Resolved, ends: I8, findings: Sequence[Finding], limit: int = MAX_CALLS, t0: int = 0
) -> Cut:
    """The stretch to show. ``ends`` int64 [K + 1]: when iterations begin and end, ns, ascending."""
    events = resolved.trace.events
    ranks = events.ranks()
    first, last = int(events.enqueue.min()), int(events.enqueue.max())
    start, end = first, last
    for start, end in _windows(first, last, ends, findings):
        if _calls(events, start, end) <= limit:
            return Cut(start, end, ranks, _note(events, start, end, len(ranks), len(ranks), t0))
    kept = _nearest(resolved, events, ranks, findings, start, end, limit)
    return Cut(start, end, kept, _note(events, start, end, len(kept), len(ranks), t0))


def _windows(first: int, last: int, ends: I8, findings: Sequence[Finding]) -> Iterator[tuple[int, int]]:
    """Stretches from the widest to the narrowest."""
    yield first, last
    finding = findings[0] if findings else None
    window = None if finding is None else finding.window
    if len(ends) < 2:
        return
    if finding is None or window is None or finding.kind.verdict is Verdict.HANG:
        # What stands is at the end, and without a finding the end is what somebody wants to see.
        for back in (8, 4, 2):
            if len(ends) > back:
                yield int(ends[-1 - back]), last
        return
    inside = np.flatnonzero((ends[1:] > window.start) & (ends[:-1] < (window.end or last)))
    if not len(inside):
        return
    a, b = int(inside[0]), int(inside[-1])
    for before, until in ((BESIDE, b + BESIDE), (1, a + 3), (1, a + 1), (1, a)):
        low, high = max(a - before, 0), min(until, len(ends) - 2)
        yield int(ends[low]), int(ends[high + 1])


def _calls(events: Events, start: int, end: int) -> int:
    return int(np.count_nonzero((events.enqueue >= start) & (events.enqueue <= end)))


def _nearest(
    resolved: Resolved,
    events: Events,
    ranks: NDArray[np.int32],
    findings: Sequence[Finding],
    start: int,
    end: int,
    limit: int,
) -> NDArray[np.int32]:
    """As many ranks as fit, those nearest to the culprit first; at least one."""
    inside = (events.enqueue >= start) & (events.enqueue <= end)
    calls = np.bincount(events.rank[inside], minlength=int(ranks[-1]) + 1)[ranks]
    order = np.argsort(_distance(resolved.layout, ranks, findings), kind="stable")
    fitting = max(int(np.searchsorted(np.cumsum(calls[order]), limit, "right")), 1)
    return np.sort(ranks[order[:fitting]])


def _distance(
    layout: ParallelLayout | None, ranks: NDArray[np.int32], findings: Sequence[Finding]
) -> NDArray[np.int64]:
    """0 a culprit, 1 its tensor and context group, 2 its pipeline, 3 its data group, 4 the others."""
    culprits = [rank for finding in findings[:1] for rank in finding.culprits.ranks]
    distance = np.full(len(ranks), 4, np.int64)
    if layout is not None:
        inside = [rank for rank in culprits if rank < layout.world_size] or [0]
        places = [layout.place(rank) for rank in inside[:64]]
        for i, rank in enumerate(ranks.tolist()):
            if rank >= layout.world_size:
                continue
            own = layout.place(rank)
            for place in places:
                same = (own.stage == place.stage, own.dp == place.dp)
                near = 1 if all(same) else 2 if same[1] else 3 if same[0] and own.tp == place.tp else 4
                distance[i] = min(distance[i], near)
    distance[np.isin(ranks, culprits)] = 0
    return distance


def _note(events: Events, start: int, end: int, kept: int, ranks: int, t0: int) -> str:
    parts = []
    if start > int(events.enqueue.min()) or end < int(events.enqueue.max()):
        parts.append(f"calls of t = {(start - t0) / 1e9:.1f}–{(end - t0) / 1e9:.1f} s")
    if kept < ranks:
        parts.append(f"{format_count(kept)} of {format_count(ranks)} ranks, those nearest to the culprit")
    return f"cut to what a viewer can open: {'; '.join(parts)}" if parts else ""
