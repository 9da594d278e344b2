"""What a device did when: compute, communication, both, copies, nothing; per rank and per stream, and why it
idled.

Kernels of several streams run at once, so times are measures of unions of intervals and not sums of
durations. Communication is exposed where no compute kernel runs on any stream of the device. A copy hides no
communication: it needs the same links.

A gap on a stream has one of three reasons. Host wait: the next piece was launched after the one before it had
ended. Kernel wait: it was launched in time and the gap is as short as a device needs between two kernels.
Other: it was launched in time and still came late, so it waited for another stream or for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.profile_stacks import Rows, launches
from megatrace.model.profile import RankProfile, Work
from megatrace.model.profile_result import IdleReason, RankTime, StreamTime

KERNEL_GAP = 30_000
"""ns: a gap shorter than this between two queued kernels is the device's own. Back-to-back kernels start 1 to
5 µs apart, with a cold instruction cache and clocks down up to some 20; HolisticTraceAnalysis takes 30 too.
"""

Intervals = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and ends in ns, ascending, apart from each other."""


def union(start: NDArray[Any], end: NDArray[Any]) -> Intervals:
    """The time that any of the intervals covers. Empty intervals are left out."""
    kept = end > start
    order = np.argsort(start[kept], kind="stable")
    start, end = start[kept][order].astype(np.int64), end[kept][order].astype(np.int64)
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    new = np.flatnonzero(start[1:] > reach[:-1]) + 1
    return start[np.r_[0, new]], reach[np.r_[new - 1, len(reach) - 1]]


def length(intervals: Intervals) -> int:
    """ns in all."""
    return int((intervals[1] - intervals[0]).sum())


def covered(at: NDArray[Any], intervals: Intervals) -> NDArray[np.int64]:
    """int64 ns of the intervals before each time."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(at), np.int64)
    before = np.concatenate(([0], np.cumsum(end - start)))
    place = np.searchsorted(start, at, "right")
    last = np.maximum(place - 1, 0)
    over = np.where(place > 0, np.maximum(end[last] - at, 0), 0)
    inside: NDArray[np.int64] = before[place] - over
    return inside


def common(one: Intervals, other: Intervals) -> int:
    """ns in which both are."""
    return int((covered(one[1], other) - covered(one[0], other)).sum())


def _of(profile: RankProfile, *works: Work) -> Intervals:
    rows = profile.device_rows
    rows = rows[np.isin(profile.work[profile.activities.name[rows]], works)]
    return union(profile.activities.start[rows], profile.activities.end[rows])


def rank_time(profile: RankProfile) -> RankTime | None:
    """The device of one rank between its first start and its last end; None where nothing ran on one."""
    if not len(profile.device_rows):
        return None
    compute, communication = _of(profile, Work.COMPUTE), _of(profile, Work.COMMUNICATION)
    kernels, busy = _of(profile, Work.COMPUTE, Work.COMMUNICATION), _of(profile, *Work)
    rows = profile.device_rows
    first, last = profile.activities.start[rows].min(), profile.activities.end[rows].max()
    overlap = common(compute, communication)
    return RankTime(
        rank=profile.rank,
        span=int(last - first),
        compute=length(compute),
        communication=length(communication),
        overlap=overlap,
        exposed=length(communication) - overlap,
        memory_only=length(busy) - length(kernels),
        idle=int(last - first) - length(busy),
    )


def stream_times(profile: RankProfile) -> tuple[StreamTime, ...]:
    """Every stream of one rank, the busiest first."""
    activities, device = profile.activities, profile.device_rows
    compute = _of(profile, Work.COMPUTE)
    launch = launches(profile)
    launched = np.where(
        launch >= 0, activities.start[launch] if len(activities) else 0, np.iinfo(np.int64).min
    )
    made = []
    for lane in np.unique(activities.lane[device]):
        here = activities.lane[device] == lane
        made.append(_stream(profile, device[here], launched[here], compute))
    return tuple(sorted(made, key=lambda item: -(item.compute + item.communication + item.memory)))


def _stream(profile: RankProfile, rows: Rows, launched: Rows, compute: Intervals) -> StreamTime:
    activities = profile.activities
    start, end = activities.start[rows], activities.end[rows]
    work = profile.work[activities.name[rows]]
    parts = {kind: union(start[work == kind], end[work == kind]) for kind in Work}
    communication = parts[Work.COMMUNICATION]
    return StreamTime(
        rank=profile.rank,
        stream=int(activities.stream[rows[0]]),
        count=len(rows),
        span=int(end.max() - start.min()),
        compute=length(parts[Work.COMPUTE]),
        communication=length(communication),
        memory=length(parts[Work.MEMORY]),
        exposed=length(communication) - common(communication, compute),
        idle=idle_reasons(start, end, launched),
    )


def idle_reasons(start: Rows, end: Rows, launched: Rows) -> tuple[tuple[IdleReason, int], ...]:
    """Idle ns of one stream by reason. Rows ascend by start; ``launched`` is when the host called for each,
    the smallest int64 where nobody knows."""
    before = np.maximum.accumulate(end)[:-1]
    gap = np.maximum(start[1:] - before, 0)
    late = launched[1:] > before
    short = ~late & (gap < KERNEL_GAP)
    times = (gap[late].sum(), gap[short].sum(), gap[~late & ~short].sum())
    return tuple((reason, int(time)) for reason, time in zip(IdleReason, times, strict=True))
