"""Whether the job stands: the difference between a hang and the end of a recording.

At every moment of a healthy job some rank is behind its peers and others wait for it. It is a hang only if
that rank should have gone on long ago. Three things can show it: two frontiers of which the later one is
no further, a time (snapshot, ``now``) up to which nothing more came, or the recording itself, where other
ranks went on for much longer than the silent rank ever needed for its next call. Where none of them does,
the recording may simply have ended, and nobody is accused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from megatrace.analysis.hang_pace import Pace
from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.frontier import Frontier

SECOND = 1_000_000_000
LEAST_APART = SECOND
"""Two frontiers closer than that may both lie between two calls of a healthy rank."""
QUIET_FACTOR = 3
"""Nothing from anybody for this many times the longest pause seen so far: checkpoints and evaluation are
among the pauses seen; one that is three times as long as all before it is not a habit."""
OVERDUE = 3
"""A rank is overdue after this many times its longest usual time to the next call, while that is known
from less than ``WELL_KNOWN`` occasions: heavy-tailed noise doubles single calls."""
WELL_KNOWN = 4
"""Occasions from which the spread of the usual time is known: then its longest, and twice its spread, is
the limit."""
LONG_OVERDUE = 10
"""Multiples of its limit after which a silent rank is the cause even though a few others stopped after it:
they died later, which hides whether they were waiting."""
FEW = 0.25
"""Share of all ranks that may have died later than a rank that is long overdue."""
MANY = 0.5
"""Share of all ranks free to go on, and within their usual time, from which on a job moves: that many do not
stop at once."""
FLOOR = 3_000_000
"""ns. Hosts are descheduled and clocks of nodes differ by up to about a millisecond: shorter silence means
nothing."""
SUSPECTS = 256
"""More silent ranks than this are not looked up one by one: their longest pause stands for their pace."""


class Standing(Enum):
    """Does the job stand?"""

    STANDS = "stands"
    MOVES = "moves"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Stall:
    """``since`` ns: last progress of anybody who matters; ``quiet`` ns of silence seen; ``reason`` a
    sentence."""

    standing: Standing
    since: int
    quiet: int
    reason: str


def _no_node(_: int) -> str | None:
    return None


def judge(
    graph: WaitsFor,
    roots: Sequence[Root],
    *,
    until: int | None,
    earlier: Frontier | None,
    pace: Callable[[int], Pace | None],
    clock_error: int,
    pause: int | None = None,
    node_of: Callable[[int], str | None] = _no_node,
) -> Stall:
    """Whether the job stands. ``until`` ns: nothing more had come by then; None where only the recording
    tells. ``pause`` ns: the longest time between two calls of any rank while the job ran; None unknown.
    ``node_of``: the node of a global rank, None unknown."""
    frontier = graph.frontier
    since = frontier.end
    if earlier is not None and until is not None and earlier.snapshot_at is not None:
        apart = until - earlier.snapshot_at
        moved = frontier.moved_since(earlier)
        if len(moved) == 0 and apart >= LEAST_APART:
            return Stall(Standing.STANDS, since, until - since, f"no rank moved for {_s(apart)}")
        if np.isin(frontier.indices(moved), _ends(roots)).any():
            return Stall(Standing.MOVES, since, 0, "the rank that others wait for moved between two looks")
    end = since if until is None else max(until, since)
    quiet = end - since
    if quiet >= silence_needed(frontier):
        before = _s(_longest_pause(frontier))
        reason = f"nobody made a call for {_s(quiet)}; the longest pause before was {before}"
        return Stall(Standing.STANDS, since, quiet, reason)
    least = SECOND if until is not None else 0
    return _by_overdue(graph, roots, end, _Usual(pace, FLOOR + clock_error, pause), least, node_of)


def _ends(roots: Sequence[Root]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    ranks = [rank for root in roots if root.kind is not RootKind.UNRECORDED for rank in root.ranks]
    return np.asarray(ranks, np.int64)


def silence_needed(frontier: Frontier) -> int:
    """ns of silence of everybody that prove that a job stands."""
    return max(QUIET_FACTOR * _longest_pause(frontier), SECOND)


def _longest_pause(frontier: Frontier) -> int:
    """The pause that all ranks have shared: the median over ranks of their longest one."""
    return int(np.median(frontier.longest_gap)) if len(frontier) else 0


@dataclass(frozen=True, slots=True)
class _Usual:
    """What silence is usual: a rank's own pace at its last call, ``margin`` ns on top of it, and the longest
    pause of any rank."""

    pace: Callable[[int], Pace | None]
    margin: int
    pause: int | None

    def overdue(self, frontier: Frontier, rank: int, end: int, *, look_up: bool = True) -> float:
        """A rank's (index) silence as a multiple of what is usual for it there; from 1 on it is overdue."""
        silence = int(end - frontier.last_call[rank])
        known = self.pace(int(frontier.ranks[rank])) if look_up else None
        if known is None:
            limit = OVERDUE * int(frontier.longest_gap[rank])
        elif known.seen < WELL_KNOWN:
            limit = OVERDUE * known.gap
        else:
            limit = known.gap + 2 * known.spread
        if self.pause is not None:
            limit = min(limit, self.pause)  # nobody ever took longer
        return silence / (limit + self.margin)


def _by_overdue(
    graph: WaitsFor,
    roots: Sequence[Root],
    end: int,
    usual: _Usual,
    least: int,
    node_of: Callable[[int], str | None],
) -> Stall:
    """From the recording alone: are the ends of the chains overdue while others went on?"""
    frontier = graph.frontier
    first = [root for root in roots if root.kind is not RootKind.UNRECORDED]
    free = np.flatnonzero(~graph.waiting)
    ends = np.union1d(free, _ends(roots))
    if not first or not len(ends):
        return Stall(Standing.UNKNOWN, end, 0, "nothing shows who stopped first")
    few = len(ends) <= SUSPECTS
    ratio = {int(rank): usual.overdue(frontier, int(rank), end, look_up=few) for rank in ends}
    leader = min(ratio[rank] for rank in first[0].ranks)
    silence = int(end - frontier.last_call[list(first[0].ranks)].max())
    others = len(set(ratio) - set(first[0].ranks))
    late = leader >= LONG_OVERDUE and others <= FEW * len(frontier)
    # Longer than anybody ever paused: others may have died since, or be on the last of their way.
    beyond = usual.pause is not None and silence > usual.pause + usual.margin
    late |= beyond and others <= MANY * len(frontier)
    if silence >= least and (late or all(value >= 1.0 for value in ratio.values())):
        return Stall(Standing.STANDS, end, silence, f"others went on for {_s(silence)} after it")
    # A call in flight holds all its members, on a moving job as on one that stands.
    largest = max((set(root.ranks) for root in first), key=len)
    # So does one at which all but a few stand, who left something out before it.
    for root in first:
        if root.kind is RootKind.AHEAD:
            largest |= set(graph.calls.rank[graph.rows_of(root.instances[0])].tolist())
    moving = [rank for rank, value in ratio.items() if value < 1.0 and rank not in largest]
    if len(moving) > MANY * len(frontier) and _beyond_one_node(frontier, moving, node_of):
        reason = f"{len(moving)} ranks were free to go on when the recording ended: the job was moving"
        return Stall(Standing.MOVES, end, 0, reason)
    fresh = min(ratio, key=lambda rank: ratio[rank])
    after = _s(int(end - frontier.last_call[fresh]))
    how = "within its usual time to the next call" if ratio[fresh] < 1.0 else "which is too short to tell"
    reason = f"the recording ends {after} after the last call of rank {int(frontier.ranks[fresh])}, {how}"
    return Stall(Standing.UNKNOWN, end, silence, reason)


def _beyond_one_node(frontier: Frontier, moving: Sequence[int], node_of: Callable[[int], str | None]) -> bool:
    """Whether many ranks move also without the node that has most of those that do: a node that died takes
    all of its own with it at once."""
    nodes = [node_of(rank) for rank in frontier.ranks.tolist()]
    node, most = Counter(nodes[rank] for rank in moving).most_common(1)[0]
    outside = len(nodes) - nodes.count(node)
    return node is None or not outside or len(moving) - most > MANY * outside


def _s(ns: int) -> str:
    if ns >= 10 * SECOND:
        return f"{ns / SECOND:.0f} s"
    return f"{ns / SECOND:.1f} s" if ns >= SECOND else f"{ns / 1e6:.1f} ms"
