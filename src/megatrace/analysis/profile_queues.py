"""How much launched work waited on each stream, and what the device's memory did.

A queue that runs empty says that the host was too slow; one that is full (some 1,024 launches) blocks the
host. Lengths are weighted by time: a queue that was empty for a second and held a hundred for a millisecond
was empty.
"""

from __future__ import annotations

import numpy as np

from megatrace.analysis.profile_overlap import length, union
from megatrace.analysis.profile_stacks import Rows, launches
from megatrace.model.profile import NONE, RankProfile
from megatrace.model.profile_result import MemoryUse, QueueLength

FULL = 1_024
"""Launches that a stream takes before the next one blocks the host (measured by many for CUDA 11 and 12;
HolisticTraceAnalysis takes the same)."""


def queues(profile: RankProfile) -> tuple[QueueLength, ...]:
    """The queue of every stream whose launches were recorded, the longest on average first."""
    activities, device = profile.activities, profile.device_rows
    launch = launches(profile)
    known = launch != NONE
    device, launch = device[known], launch[known]
    made = []
    for lane in np.unique(activities.lane[device]):
        here = activities.lane[device] == lane
        made.append(_queue(profile, device[here], activities.start[launch[here]]))
    return tuple(sorted(made, key=lambda queue: -queue.mean))


def _queue(profile: RankProfile, rows: Rows, launched: Rows) -> QueueLength:
    activities = profile.activities
    start, end = activities.start[rows], activities.end[rows]
    launched = np.minimum(launched, start)  # clocks of host and device differ by a µs
    time = np.concatenate((launched, start))
    step = np.concatenate((np.ones(len(rows), np.int64), np.full(len(rows), -1, np.int64)))
    order = np.lexsort((step, time))
    level = np.cumsum(step[order])
    lasted = np.diff(time[order], append=time[order[-1]])
    whole = int(lasted.sum())
    first, last = int(launched.min()), int(end.max())
    by_level = np.argsort(level, kind="stable")
    passed = np.cumsum(lasted[by_level])
    middle = int(level[by_level[min(int(np.searchsorted(passed, whole / 2)), len(level) - 1)]])
    return QueueLength(
        rank=profile.rank,
        stream=int(activities.stream[rows[0]]),
        mean=float((level * lasted).sum() / whole) if whole else 0.0,
        p50=middle,
        longest=int(level.max()),
        empty=last - first - length(union(launched, end)),
        full=int(lasted[level >= FULL].sum()),
        launches=len(rows),
    )


def memory(profile: RankProfile) -> tuple[MemoryUse, ...]:
    """Every device whose allocations were recorded, ascending."""
    events = profile.memory
    if events is None:
        return ()
    made = []
    for device in np.unique(events.device).tolist():
        here = events.device == device
        allocated, reserved, change = events.allocated[here], events.reserved[here], events.change[here]
        known = allocated >= 0
        top = int(np.argmax(allocated)) if known.any() else NONE
        made.append(
            MemoryUse(
                rank=profile.rank,
                device=device,
                peak=int(allocated[top]) if top != NONE else None,
                reserved_peak=int(reserved.max()) if (reserved >= 0).any() else None,
                last=int(allocated[known][-1]) if known.any() else None,
                allocations=int((change > 0).sum()),
                frees=int((change < 0).sum()),
                peak_at=int(events.time[here][top]) if top != NONE else None,
            )
        )
    return tuple(made)
