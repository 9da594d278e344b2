"""Abnormal operators and a vote (as Holmes): communication operators that take far longer than the same
operator usually does are abnormal; in each iteration the first of the worst names its last member (a transfer
its receiver); the rank that is named in most of the abnormal iterations is the culprit.

Works on durations of operators, so waiting in a collective that somebody else's lateness caused looks
abnormal as well; the order in time and the vote have to tell them apart.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from benchmarks.rivals.seen import F8, I8, NOBODY, Meetings, Named, Seen
from megatrace.analysis.reductions import median

VOTES = 2
"""Iterations in which a rank must be named: one may be chance."""


class OperatorVote:
    """Abnormal by ``threshold`` times the usual duration (and a millisecond, which is noise)."""

    name = "operator graph and vote (Holmes-like)"
    thresholds = (1.0, 3.0, 10.0, 30.0)

    def hang(self, seen: Seen) -> Named:
        """Operators that do not end have no duration."""
        del seen
        return NOBODY

    def slow(self, seen: Seen, threshold: float) -> Named:
        """The rank with most votes."""
        meetings = seen.meetings
        if not len(meetings.first):
            return NOBODY
        begin = np.minimum.reduceat(meetings.start, meetings.first)
        end = np.maximum.reduceat(meetings.end, meetings.first)
        taken = end - begin
        usual = _usual(taken, meetings)
        abnormal = taken - usual > np.maximum(threshold * usual, 1e-3)
        abnormal &= meetings.turn > 0
        last = meetings.last()
        late = taken - usual
        found: dict[int, list[tuple[float, float, int]]] = {}
        for n in np.flatnonzero(abnormal).tolist():
            found.setdefault(int(meetings.turn[n]), []).append(
                (float(begin[n]), float(late[n]), int(last[n]))
            )
        for turn, at, excess, rank in _slow_transfers(seen, threshold):
            found.setdefault(turn, []).append((at, excess, rank))
        votes = Counter(_culprit(operators) for operators in found.values())
        if not votes:
            return NOBODY
        (rank, number), *_ = votes.most_common(1)
        return frozenset({rank}) if number >= VOTES else NOBODY


def _culprit(operators: list[tuple[float, float, int]]) -> int:
    """Of (begin, excess, rank): the first of those that are about as abnormal as the worst."""
    worst = max(excess for _, excess, _ in operators)
    return min((begin, rank) for begin, excess, rank in operators if excess >= worst / 2)[1]


def _slow_transfers(seen: Seen, threshold: float) -> list[tuple[int, float, float, int]]:
    """(iteration, when it came, excess, receiver) of transfers that are abnormal in themselves."""
    table = seen.table
    if table is None:
        return []
    moved = table.transfer
    usual = median(moved, axis=0)
    excess = moved - usual
    slow = excess > np.maximum(threshold * usual, 1e-3)
    slow[0] = False
    places = np.argwhere(slow).tolist()
    return [
        (at[0], float(table.begin[tuple(at)]), float(excess[tuple(at)]), int(table.grid[tuple(at[1:4])]))
        for at in places
    ]


def _usual(taken: F8, meetings: Meetings) -> F8:
    """Per collective: the median of its signature over the iterations."""
    order = np.lexsort((taken, meetings.signature))
    signature: I8 = meetings.signature[order]
    first = np.flatnonzero(np.diff(signature, prepend=-1))
    sizes = np.diff(np.append(first, len(signature)))
    medians = taken[order][first + sizes // 2]
    values = np.empty(len(taken))
    values[order] = np.repeat(medians, sizes)
    return values
