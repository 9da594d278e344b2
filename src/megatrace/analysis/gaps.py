"""Stretches of a rank's calls that the recording lost.

Ring overwrite and rolled buffers remove a contiguous stretch, so the operation numbers of several channels
jump at one place. Only channels whose number rises by one with every call can prove it. Gaps are found, never
filled: nothing is interpolated across them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.channels import Channels
from megatrace.model.events import Events
from megatrace.model.trace import Gap


def find_gaps(events: Events, channels: Channels) -> tuple[NDArray[np.int64], tuple[Gap, ...]]:
    """(rows that are the first after a gap, ascending; the gaps in the same order)."""
    order = np.argsort(channels.of_event, kind="stable")
    ordered = channels.of_event[order]
    same = ordered[1:] == ordered[:-1]
    step = np.diff(events.seq[order])
    jump = np.flatnonzero(same & (step > 1) & channels.counted[ordered[1:]])
    before, after, lost = order[jump], order[jump + 1], step[jump] - 1
    by_row = np.argsort(after, kind="stable")
    before, after, lost = before[by_row], after[by_row], lost[by_row]
    rows: list[int] = []
    gaps: list[Gap] = []
    i = 0
    while i < len(after):
        place = int(after[i])
        rank = int(events.rank[place])
        total = 0
        # Every jump over this place belongs to the same gap; jumps are sorted by their later end.
        j = i
        while j < len(after) and before[j] < place and int(events.rank[after[j]]) == rank:
            total += int(lost[j])
            j += 1
        rows.append(place)
        gaps.append(Gap(rank, int(events.enqueue[place - 1]), int(events.enqueue[place]), total))
        i = max(j, i + 1)
    return np.asarray(rows, np.int64), tuple(gaps)
