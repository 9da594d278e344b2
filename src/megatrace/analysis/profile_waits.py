"""What each begin and end in a profile waited for, as far as the recorder says or the times show.

``Waits`` is the raw material of ``profile_graph``: launches, the work before on a stream, events of other
streams, and host calls that waited for the device. It decides nothing about time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.profile_overlap import KERNEL_GAP
from megatrace.analysis.profile_stacks import Rows, places
from megatrace.model.profile import NONE, Activity, RankProfile

WAITING_CALLS = frozenset(
    f"{prefix}{call}"
    for prefix in ("cuda", "hip")
    for call in (
        "DeviceSynchronize",
        "StreamSynchronize",
        "EventSynchronize",
        "EventQuery",
        "Memcpy",
        "MemcpyAsync",
        "MemcpyWithStream",
    )
)
"""Calls whose time is waiting. An asynchronous copy from pageable memory waits as well (CUDA's documentation,
"API synchronization behavior"); an event query polls in a loop."""
_COPIES = ("Memcpy", "MemcpyAsync", "MemcpyWithStream")
_ROUNDING = 1_000
"""ns by which work may seem to begin before the end of what it waited for: older recordings have whole µs."""
_SLACK = 2_000
"""ns by which the recorder's device clock and host clock may differ: kernels have been seen to start 1 µs
before their launch."""
MIN_LAUNCHES = 0.01
"""Share of all launches that a thread makes to be one that drives the device: main and backward thread have
far more, a thread that pins memory less."""


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """``hosts`` host activities come first in the graph, then the device's; indices count within their own
    kind.

    blocking          bool [hosts + devices]: a call that waits
    handed            int64 [hosts]: whose end a begin after a gap followed on another thread, or ``NONE``
    launch            int64 [devices]: the host activity that launched it, or ``NONE``
    before            int64 [devices]: the work before it on its stream, or ``NONE``
    event, guess      int64 [devices]: work on another stream whose event it waited for, recorded or guessed
    sync_from         int64 [syncs]: work on the device
    sync_to           int64 [syncs]: the host call that waited for it
    sync_guessed      bool [syncs]: no record says so
    """

    hosts: int
    blocking: NDArray[np.bool_]
    handed: Rows
    launch: Rows
    before: Rows
    event: Rows
    guess: Rows
    sync_from: Rows
    sync_to: Rows
    sync_guessed: NDArray[np.bool_]


def waits(profile: RankProfile, host: Rows, device: Rows, launched_by: Rows) -> Waits:
    """The waits of these host rows (ascending) and device rows, launched by the rows given (``NONE``:
    unknown).
    """
    activities = profile.activities
    waiting = np.array([name in WAITING_CALLS for name in profile.names], np.bool_)
    blocking = waiting[activities.name[host]] & (activities.kind[host] == Activity.RUNTIME)
    before = _before(profile, device)
    launch = places(host, launched_by)
    sync_rows = np.flatnonzero(activities.kind == Activity.SYNC)
    known = _recorded_syncs(profile, host, device, sync_rows)
    guessed = _guessed_syncs(profile, host, device, launch, blocking, known[1])
    event = _events(profile, host, device, launch, sync_rows)
    return Waits(
        hosts=len(host),
        blocking=np.concatenate((blocking, np.zeros(len(device), np.bool_))),
        handed=_handed(profile, host, launched_by),
        launch=launch,
        before=before,
        event=event,
        guess=_late_starts(profile, host, device, launch, before, event),
        sync_from=np.concatenate((known[0], guessed[0])),
        sync_to=np.concatenate((known[1], guessed[1])),
        sync_guessed=np.arange(len(known[0]) + len(guessed[0])) >= len(known[0]),
    )


def _before(profile: RankProfile, device: Rows) -> Rows:
    """The work before each on its stream, less what was still running as it began: nothing waits for that."""
    activities = profile.activities
    lane, start, end = activities.lane[device], activities.start[device], activities.end[device]
    order = np.lexsort((start, lane))
    before = np.full(len(device), NONE, np.int64)
    same = lane[order[1:]] == lane[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    beside = (before >= 0) & (end[before] > start + _ROUNDING)
    for at in np.flatnonzero(beside).tolist():
        found = int(before[at])
        while found != NONE and end[found] > start[at] + _ROUNDING:
            found = int(before[found]) if before[found] != at else NONE
        before[at] = found
    return before


def _recorded_syncs(profile: RankProfile, host: Rows, device: Rows, sync_rows: Rows) -> tuple[Rows, Rows]:
    """(work, call) for every wait of a host call that the recorder saw."""
    activities = profile.activities
    calls = host[activities.kind[host] == Activity.RUNTIME]
    by_id = {int(activities.correlation[row]): int(row) for row in calls if activities.correlation[row] > 0}
    streams = _StreamIndex(activities.stream[device], activities.start[device])
    pairs = []
    for row in sync_rows.tolist():
        name, call = profile.names[activities.name[row]], by_id.get(int(activities.correlation[row]))
        if call is None or name not in ("Stream Sync", "Context Sync"):
            continue
        at = int(activities.end[row])
        lanes = streams.all() if name == "Context Sync" else [int(activities.stream[row])]
        pairs += [(work, call) for stream in lanes if (work := streams.before(stream, at)) != NONE]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], places(host, found[:, 1])


class _StreamIndex:
    """The work of each stream by a time of it."""

    def __init__(self, stream: NDArray[Any], time: Rows) -> None:
        self._found: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        for one in np.unique(stream).tolist():
            at = np.flatnonzero(stream == one)
            at = at[np.argsort(time[at], kind="stable")]
            self._found[one] = at, time[at]

    def all(self) -> list[int]:
        return list(self._found)

    def before(self, stream: int, time: int) -> int:
        """The last work on a stream whose time is before this one, or ``NONE``."""
        at, known = self._found.get(stream, (np.empty(0, np.int64), np.empty(0, np.int64)))
        place = int(np.searchsorted(known, time, "left"))
        return int(at[place - 1]) if place else NONE


def _guessed_syncs(
    profile: RankProfile, host: Rows, device: Rows, launch: Rows, blocking: NDArray[np.bool_], known: Rows
) -> tuple[Rows, Rows]:
    """For a waiting call of which nothing was recorded: the work that ended last within it; for one that
    waits for the whole device, that of every stream."""
    activities = profile.activities
    open_calls = np.setdiff1d(np.flatnonzero(blocking), known)
    if not len(open_calls) or not len(device):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    end = activities.end[device]
    streams = _StreamIndex(activities.stream[device], end)
    launched = {call: at for at, call in enumerate(launch.tolist()) if call >= 0}
    pairs = []
    for call in open_calls.tolist():
        begin, over = int(activities.start[host[call]]), int(activities.end[host[call]]) + _SLACK
        name = profile.names[activities.name[host[call]]]
        if name.endswith(_COPIES):
            ended = [launched.get(call, NONE)]
        else:
            ended = [streams.before(stream, over) for stream in streams.all()]
            if not name.endswith("DeviceSynchronize"):
                ended = [max(ended, key=lambda at: int(end[at]) if at != NONE else begin)]
        pairs += [(at, call) for at in ended if at != NONE and begin < end[at] <= over]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _events(profile: RankProfile, host: Rows, device: Rows, launch: Rows, sync_rows: Rows) -> Rows:
    """The work whose event a stream was told to wait for before each piece of work, where recorded."""
    activities = profile.activities
    found = np.full(len(device), NONE, np.int64)
    calls = host[activities.kind[host] == Activity.RUNTIME]
    by_id = {int(activities.correlation[row]): int(row) for row in calls if activities.correlation[row] > 0}
    launched = np.where(
        launch >= 0, activities.start[host[launch]] if len(host) else 0, np.iinfo(np.int64).min
    )
    thread = np.where(launch >= 0, activities.lane[host[launch]] if len(host) else 0, NONE)
    stream = activities.stream[device]
    for row in sync_rows.tolist():
        record = by_id.get(int(activities.wait_record[row]))
        call = by_id.get(int(activities.correlation[row]))
        if record is None or call is None or profile.names[activities.name[row]] != "Stream Wait Event":
            continue
        source = np.flatnonzero(
            (stream == activities.wait_stream[row]) & (launched < activities.start[record])
        )
        after = (stream == activities.stream[row]) & (thread == activities.lane[call])
        target = np.flatnonzero(after & (launched > activities.start[call]))
        if len(source) and len(target):
            found[target[np.argmin(launched[target])]] = source[np.argmax(launched[source])]
    return found


def _late_starts(
    profile: RankProfile, host: Rows, device: Rows, launch: Rows, before: Rows, event: Rows
) -> Rows:
    """For work that began late for no recorded reason: the work on another stream that had just ended."""
    activities = profile.activities
    guess = np.full(len(device), NONE, np.int64)
    if not len(device):
        return guess
    start, end = activities.start[device], activities.end[device]
    never = np.iinfo(np.int64).min
    ready = np.maximum(
        np.where(launch >= 0, activities.start[host[launch]] if len(host) else 0, never),
        np.where(before >= 0, end[before], never),
    )
    order = np.argsort(end, kind="stable")
    place = np.searchsorted(end[order], start + _ROUNDING, "right") - 1
    last = order[np.maximum(place, 0)]
    fits = (
        (place >= 0)
        & (start - end[last] < KERNEL_GAP)
        & (activities.stream[device[last]] != activities.stream[device])
    )
    late = (event < 0) & (ready > never) & (start - ready > KERNEL_GAP) & (end[last] > ready)
    guess[fits & late] = last[fits & late]
    return guess


def _handed(profile: RankProfile, host: Rows, launched_by: Rows) -> Rows:
    """For each outermost begin after a gap: the activity of another driving thread that ended last in it."""
    activities = profile.activities
    handed = np.full(len(host), NONE, np.int64)
    lane, start, end = activities.lane[host], activities.start[host], activities.end[host]
    driving = _driving(profile, launched_by)
    mine = np.flatnonzero(np.isin(lane, driving))
    if len(driving) < 2 or not len(mine):
        return handed
    # The latest end so far on the own thread: a begin after it stands at the outermost level.
    reach = np.full(len(host), np.iinfo(np.int64).min)
    for one in driving.tolist():
        at = mine[lane[mine] == one]
        reach[at[1:]] = np.maximum.accumulate(end[at])[:-1]
    order = mine[np.argsort(end[mine], kind="stable")]
    outer = mine[start[mine] >= reach[mine]]
    place = np.searchsorted(end[order], start[outer], "right") - 1
    last = order[np.maximum(place, 0)]
    hit = (place >= 0) & (end[last] > reach[outer]) & (lane[last] != lane[outer])
    handed[outer[hit]] = last[hit]
    return handed


def _driving(profile: RankProfile, launched_by: Rows) -> Rows:
    lanes = profile.activities.lane[launched_by[launched_by >= 0]]
    found, count = np.unique(lanes, return_counts=True)
    return found[count >= MIN_LAUNCHES * max(int(count.sum()), 1)].astype(np.int64)
