"""Iterations: numbered anchors, and the slice of every rank's calls that belongs to each.

Iteration k ends at its k-th anchor. A rank that lost calls keeps the numbers of the iterations it lost where
the operation counter of its busiest channel proves how many there were; else numbering is relative (first
seen = 0) and ranks are aligned by time. A slice that crosses a gap is dropped, never repaired.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.anchors import LIGHT_COUNT
from megatrace.analysis.channels import Channels
from megatrace.model.events import UNSEEN, Events

I8 = NDArray[np.int64]

# Share of the ranks whose counters have to prove where the job's first iteration was.
MAJORITY = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Iterations:
    """Anchors and slices, flat over (rank, iteration), ascending by rank then iteration.

    ranks       int32 [R] ranks that have anchors
    rank        int32 [n] rank of each anchor;  number int64 [n] its iteration;  row int64 [n] its row in
                Events
    start       int64 [n] first row of the iteration's calls; -1 where the slice is incomplete (gap, start of
                the log)
    count       number of iterations, first..last over all ranks
    absolute    iteration 0 is the job's first
    """

    ranks: NDArray[np.int32]
    rank: NDArray[np.int32]
    number: I8
    row: I8
    start: I8
    count: int
    absolute: bool

    @property
    def complete(self) -> NDArray[np.bool_]:
        """bool [n]: slices that no gap and no start of the log cuts."""
        return self.start >= 0

    def times(self, events: Events, rows: I8 | None = None) -> NDArray[np.float64]:
        """float64 [ranks, count]: when each rank's anchor ended on its device, ns; NaN where it is not known.

        Where only host times are recorded, when its host called it: the host may be ahead of the device by
        most of an iteration, but by the same in each. ``rows`` int64 [n]: calls that stand for the anchors.
        """
        table = np.full((len(self.ranks), self.count), np.nan)
        ended = events.enqueue if events.end is None else events.end
        rows = self.row if rows is None else rows
        known = np.where(ended[rows] == UNSEEN, np.nan, ended[rows].astype(np.float64))
        table[np.searchsorted(self.ranks, self.rank), self.number] = known
        return table


def closing_rows(events: Events, anchors: I8) -> I8:
    """int64 [n]: the last of the bookkeeping calls that follow each anchor, before the rank's next heavy
    call."""
    if events.count is None:
        return anchors
    rows = np.arange(len(events))
    ends = np.append(events.rank[1:] != events.rank[:-1], True)
    heavy = events.count > LIGHT_COUNT
    # A row is the last one where a heavy call or another rank follows.
    last = np.where(ends | np.append(heavy[1:], True), rows, len(events))
    following = np.minimum.accumulate(last[::-1])[::-1][anchors]
    # Jobs of light calls only have nothing between two anchors that would end the bookkeeping.
    return np.asarray(np.where(following < np.append(anchors[1:], len(events)), following, anchors), np.int64)


def number_iterations(events: Events, channels: Channels, anchors: I8, gap_rows: I8) -> Iterations | None:
    """Number the anchors of all ranks alike. None where there are none."""
    if not len(anchors):
        return None
    ranks = np.unique(events.rank[anchors])
    numbers: list[I8] = []
    starts: list[I8] = []
    proof: list[bool] = []
    for rank in ranks:
        part = events.rows_of(int(rank))
        rows = anchors[np.searchsorted(anchors, part.start) : np.searchsorted(anchors, part.stop)]
        gaps = gap_rows[np.searchsorted(gap_rows, part.start) : np.searchsorted(gap_rows, part.stop)]
        number, absolute = _numbers_of_rank(events, channels, part, rows, gaps)
        proof.append(absolute)
        numbers.append(number)
        starts.append(_slice_starts(rows, gaps, part.start))
    number = np.concatenate(_aligned(events, anchors, ranks, numbers, proof))
    # Ranks that prove nothing (a log cut after two iterations) follow those that do; a few coincidences do
    # not speak for a job.
    proven = sum(proof) >= MAJORITY * len(proof)
    first = int(number.min())
    if not proven or first < 0:
        number = number - first
        proven = False
    return Iterations(
        ranks=ranks,
        rank=events.rank[anchors],
        number=number,
        row=anchors,
        start=np.concatenate(starts),
        count=int(number.max()) + 1,
        absolute=proven,
    )


def _numbers_of_rank(events: Events, channels: Channels, part: slice, rows: I8, gaps: I8) -> tuple[I8, bool]:
    """(iteration of each anchor of one rank, whether 0 is proven to be the job's first)."""
    counter = _counter_at(events, channels, part, rows)
    step = np.ones(len(rows), np.int64)
    crossed = np.searchsorted(gaps, rows[1:], "right") - np.searchsorted(gaps, rows[:-1], "right")
    if counter is None:
        step[0] = 0
        return np.cumsum(step), not len(gaps) and _starts_at_zero(events, part)
    moved = np.diff(counter)
    clean = moved[crossed == 0]
    period = float(np.median(clean)) if len(clean) else 0.0
    if period > 0:
        step[1:] = np.where(crossed > 0, np.maximum(np.rint(moved / period), 1), 1)
    step[0] = 0
    number = np.cumsum(step)
    if period <= 0:
        return number, False
    passed = (counter[0] + 1) / period
    first = round(passed) - 1
    lost_before = bool(len(gaps)) and gaps[0] <= rows[0]
    if _starts_at_zero(events, part) and not lost_before:
        return number, True
    # Counters of a job's own channels start at 0 with it. A tenth of a period covers what start-up adds.
    return number + max(first, 0), abs(passed - round(passed)) <= 0.1 and first >= 0


def _starts_at_zero(events: Events, part: slice) -> bool:
    return bool(part.stop > part.start and events.seq[part.start] == 0)


def _counter_at(events: Events, channels: Channels, part: slice, rows: I8) -> I8 | None:
    """Operation number of the rank's busiest counted channel at each anchor, or None where nothing counts."""
    of_event = channels.of_event[part]
    own = np.unique(of_event)
    usable = own[channels.counted[own]]
    if not len(usable):
        return None
    busiest = usable[np.argmax(channels.total[usable])]
    where = np.flatnonzero(of_event == busiest) + part.start
    index = np.searchsorted(where, rows, "right") - 1
    if bool(np.any(index < 0)):
        return None
    return np.asarray(events.seq[where[index]])


def _slice_starts(rows: I8, gaps: I8, first_row: int) -> I8:
    """First row of each anchor's slice, -1 where a gap or the start of the log cuts it."""
    previous = np.concatenate([[first_row - 1], rows[:-1]])
    start = previous + 1
    crossed = np.searchsorted(gaps, rows, "right") - np.searchsorted(gaps, previous, "right")
    start[crossed > 0] = -1
    # What stands before the first anchor is start-up plus the first iteration.
    lengths = np.diff(rows)[crossed[1:] == 0]
    usual = int(np.median(lengths)) if len(lengths) else 0
    if usual and start[0] >= 0:
        start[0] = rows[0] + 1 - usual if rows[0] + 1 - usual >= first_row else -1
    elif start[0] >= 0:
        start[0] = -1
    return np.asarray(start, dtype=np.int64)


def _aligned(
    events: Events, anchors: I8, ranks: NDArray[np.int32], numbers: list[I8], proof: list[bool]
) -> list[I8]:
    """Number the ranks that prove nothing so that equal numbers are the same iteration in time."""
    if all(proof) or len(ranks) < 2:
        return numbers
    bounds = np.append(np.searchsorted(events.rank[anchors], ranks, "left"), len(anchors))
    fixed = np.asarray(proof) if sum(proof) >= MAJORITY * len(proof) else np.zeros(len(proof), np.bool_)
    reference = int(np.argmax(np.diff(bounds) * np.where(fixed | ~fixed.any(), 1, 0)))
    ref_time = events.enqueue[anchors[bounds[reference] : bounds[reference + 1]]]
    ref_number = numbers[reference]
    shifted: list[I8] = []
    for i, number in enumerate(numbers):
        if fixed[i]:
            shifted.append(number)
            continue
        time = events.enqueue[anchors[bounds[i] : bounds[i + 1]]]
        nearest = np.clip(np.searchsorted(ref_time, time), 0, len(ref_time) - 1)
        left = np.clip(nearest - 1, 0, None)
        closer = np.abs(ref_time[left] - time) < np.abs(ref_time[nearest] - time)
        nearest = np.where(closer, left, nearest)
        follows = bool(np.all(np.diff(ref_number[nearest]) > 0))
        # Each anchor by its own time, unless two fall to one (another clock): then all by one shift.
        shift = int(np.median(ref_number[nearest] - number))
        shifted.append(ref_number[nearest] if follows else number + shift)
    return shifted
