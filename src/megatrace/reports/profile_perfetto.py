"""A profile as a trace for ui.perfetto.dev: the critical path on top, then every rank's threads and streams.

PyTorch's own files open there, too, but one rank at a time and without the path. Here all ranks share one
time axis, the critical path has a track of its own with what its time was spent on, and names are written
once, which makes the file a fraction of the JSON.

Where a rank has more activities than a viewer keeps smooth the shortest are left out, and its track says so.
Chooses nothing else and computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatrace.model.profile import Activity, RankProfile
from megatrace.model.profile_result import CriticalPath, ProfileResult
from megatrace.reports.perfetto_bytes import TraceWriter
from megatrace.reports.wording import EARLIEST_WALL_TIME, plain
from megatrace.units import format_duration, format_percent

MAX_SLICES = 300_000
"""Activities of one rank: a viewer in a browser keeps some millions smooth, and jobs have eight ranks a
node."""
_SHOWN = (
    Activity.OPERATOR,
    Activity.FUNCTION,
    Activity.ANNOTATION,
    Activity.RUNTIME,
    Activity.KERNEL,
    Activity.MEMCPY,
    Activity.MEMSET,
    Activity.DEVICE_ANNOTATION,
)
"""Waiting and the profiler's own work are left to the critical path."""


def render(result: ProfileResult, profiles: Sequence[RankProfile]) -> bytes:
    """The trace. ``profiles`` are those that ``result`` was made from; with none there are only the paths."""
    zero = _zero(result, profiles)
    epoch = next((one.epoch for one in profiles if one.epoch), 0) + zero
    writer = TraceWriter(epoch if epoch >= EARLIEST_WALL_TIME else 0)
    for path in (*filter(None, [result.job_path]), *result.paths):
        _path(writer, path, zero)
    for one in profiles:
        _rank(writer, one, zero)
    return writer.encoded()


def _zero(result: ProfileResult, profiles: Sequence[RankProfile]) -> int:
    starts = [int(one.activities.start.min()) for one in profiles if len(one.activities)]
    starts += [path.start for path in result.paths]
    return min(starts, default=0)


def _path(writer: TraceWriter, path: CriticalPath, zero: int) -> None:
    whose = "all ranks" if path.rank < 0 else f"rank {path.rank}"
    shares = [
        f"{kind.value} {format_percent(time / path.length)}" for kind, time in path.by_kind if path.length
    ]
    said = f"{plain(path.window)}: {format_duration(path.length)}, {', '.join(shares)}"
    track = writer.track(f"critical path, {whose}", description=said)
    for piece in path.pieces:
        name = plain(piece.name) or piece.kind.value
        writer.slice(
            track,
            piece.start - zero,
            piece.end - zero,
            name,
            {"spent on": piece.kind.value, "where": f"rank {piece.rank}, {plain(piece.lane)}"},
        )


def _rank(writer: TraceWriter, one: RankProfile, zero: int) -> None:
    activities = one.activities
    rows = np.flatnonzero(np.isin(activities.kind, _SHOWN))
    left = len(rows) - MAX_SLICES
    if left > 0:
        longest = np.argpartition(activities.duration[rows], left)[left:]
        rows = rows[np.sort(longest)]
    note = f"{left:,} of the shortest activities are left out" if left > 0 else ""
    top = writer.track(f"rank {one.rank}", description=note)
    for number in np.unique(activities.lane[rows]).tolist():
        track = writer.track(plain(one.lanes[number].title), top)
        _lane(writer, track, one, rows[activities.lane[rows] == number], zero)


def _lane(writer: TraceWriter, track: int, one: RankProfile, rows: NDArray[np.intp], zero: int) -> None:
    """Slices within slices: rows ascend by start, the longer first, so a stack of ends keeps their order."""
    starts = (one.activities.start[rows] - zero).tolist()
    ends = (one.activities.end[rows] - zero).tolist()
    names = one.activities.name[rows].tolist()
    open_: list[int] = []
    for start, end, name in zip(starts, ends, names, strict=True):
        while open_ and open_[-1] <= start:
            writer.end(track, open_.pop())
        # One that outlasts what it began in is cut there: slices of a track cannot cross.
        end = min(end, open_[-1]) if open_ else end
        writer.begin(track, start, plain(one.names[name]))
        open_.append(end)
    while open_:
        writer.end(track, open_.pop())
