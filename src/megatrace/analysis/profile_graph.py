"""What had to wait for what in the recording of one rank: a graph of begins and ends, with the time of each
wait.

Every activity has two nodes, its begin and its end. On a host thread each node waits for the one before it.
Work on a stream waits for its launch, for the work before it, and for an event of another stream; a host call
that waits for the device ends after the work that it waited for. Of several waits one is *binding*: the one
that was over last. Only it lasted; the others are kept without time, for they bind when the first one is made
shorter.

The recorder says what a call waited for only when it was told to (``enable_cuda_sync_events``). Where it does
not, the end of a kernel within the waiting call, or just before the late start on another stream, stands for
it: such edges are marked as guessed.

A host thread that does nothing waits, as far as can be seen, for the thread that worked last: the backward
thread for the main thread and the other way round. Threads that launch nothing (loaders, pinning) hand over
nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.profile_stacks import Rows, Stacks, launches, places, stacks
from megatrace.analysis.profile_waits import Waits, waits
from megatrace.model.profile import HOST_WORK, NONE, Activity, RankProfile, Work

NEVER = 1 << 61
"""ns: more than any recording lasts."""
LOADING = re.compile(r"data[_ ]?load", re.IGNORECASE)
"""Names of ranges in which a program fetches its input: PyTorch's own ("enumerate(DataLoader)#…") and usual
ones.
"""


class Span(IntEnum):
    """What the time of an edge is spent on. Values match the order of ``TimeKind``."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    LAUNCH = 3
    HOST = 4
    SYNCHRONISATION = 5
    DATA_LOADING = 6
    IDLE = 7


_OF_WORK = {Work.COMPUTE: Span.COMPUTE, Work.COMMUNICATION: Span.COMMUNICATION, Work.MEMORY: Span.MEMORY}


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Arrays of one length: nodes ``src`` before ``dst``.

    length   int64 ns between them because of this wait: 0 where it does not bind
    counted  int64 ns of it that count as busy, by records alone: 0 for gaps of a thread and waiting calls,
             −``NEVER`` where it leads nowhere
    span     int64, a ``Span``
    owner    int64 activity that the time belongs to, or ``NONE``
    binding  bool: the last of the waits of ``dst`` to be over
    guessed  bool: no record says so
    """

    src: Rows
    dst: Rows
    length: Rows
    counted: Rows
    span: Rows
    owner: Rows
    binding: NDArray[np.bool_]
    guessed: NDArray[np.bool_]

    @staticmethod
    def joined(parts: list[Edges]) -> Edges:
        """All edges of several sets."""
        return Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in Edges.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class PathGraph:
    """Activities ``row`` (rows of the profile); activity i begins at node 2·i and ends at node 2·i + 1.

    ``time`` int64 ns [nodes]; ``name`` and ``lane`` int64 [activities], as the profile numbers them.
    """

    row: Rows
    time: Rows
    edges: Edges
    name: Rows
    lane: Rows


def path_graph(profile: RankProfile, window: tuple[int, int] | None = None) -> PathGraph:
    """The graph of what a rank's host began within a window (ns, both ends belong to it), and of what that
    launched; of everything without a window."""
    activities = profile.activities
    first, last = window or (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
    began = (activities.start >= first) & (activities.start <= last) & (activities.duration > 0)
    host = np.flatnonzero(np.isin(activities.kind, HOST_WORK) & began).astype(np.int64)
    launch = launches(profile)
    kept = places(host, launch) >= 0 if window else launch >= NONE
    device = profile.device_rows[kept]
    row = np.concatenate((host, device))
    time = np.stack((activities.start[row], activities.end[row]), axis=1).reshape(-1)
    stack = stacks(profile, host)
    seen = waits(profile, host, device, launch[kept])
    parts = [_host_edges(profile, stack, time, seen), _hand_overs(profile, stack, seen, time)]
    if len(device):
        parts += [*_start_edges(seen, time), _work_edges(profile, device, len(host), time)]
        parts.append(_sync_edges(seen, time))
    named, lanes = activities.name[row].astype(np.int64), activities.lane[row].astype(np.int64)
    return PathGraph(row, time, bound(Edges.joined(parts), time), named, lanes)


def bound(edges: Edges, time: Rows) -> Edges:
    """Of all waits of a node the last one binds; of equal ones the one that stands later in the list."""
    binding = _last(edges, time, np.ones(len(edges.src), np.bool_))
    recorded = _last(edges, time, ~edges.guessed)
    # Of the launch and the work before only the later one leads to work, by the records; no guess leads
    # anywhere.
    leads = ~edges.guessed & (recorded | (edges.span != Span.LAUNCH))
    counted = np.where(leads, np.where(recorded, edges.counted, 0), -NEVER)
    return replace(edges, binding=binding, length=np.where(binding, edges.length, 0), counted=counted)


def _last(edges: Edges, time: Rows, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    at = np.flatnonzero(among)
    at = at[np.lexsort((at, time[edges.src[at]], edges.dst[at]))]
    found = np.zeros(len(among), np.bool_)
    found[at[np.flatnonzero(np.diff(edges.dst[at], append=NONE))]] = True
    return found


def _edges(
    src: Rows, dst: Rows, time: Rows, span: Rows | Span, owner: Rows | int = NONE, guessed: bool = False
) -> Edges:
    length = np.maximum(time[dst] - time[src], 0)
    full = np.full(len(src), 0, np.int64)
    return Edges(
        src,
        dst,
        length,
        length.copy(),
        full + span,
        full + owner,
        np.ones(len(src), np.bool_),
        full + guessed > 0,
    )


def _host_edges(profile: RankProfile, stack: Stacks, time: Rows, seen: Waits) -> Edges:
    """Along each thread: inside of an activity its own time, between the outermost ones nothing known."""
    order, lane = stack.order, profile.activities.lane[stack.row]
    src, dst = order[:-1], order[1:]
    depth = np.cumsum(np.where(order % 2 == 0, 1, -1))[:-1]
    same = lane[src // 2] == lane[dst // 2]
    src, dst, depth = src[same], dst[same], depth[same]
    opens, closes = dst % 2 == 0, src % 2 == 1
    owner = np.where(closes & opens, stack.parent[src // 2], np.where(closes, dst // 2, src // 2))
    gap = depth == 0
    owner[gap] = NONE
    inside = seen.blocking[np.maximum(owner, 0)] & ~gap
    span = np.where(gap, Span.IDLE, np.where(inside, Span.SYNCHRONISATION, Span.HOST))
    loading = _loading(profile, lane[src // 2], (time[src] + time[dst]) // 2)
    made = _edges(src, dst, time, np.where(loading & ~inside, Span.DATA_LOADING, span), owner)
    made.counted[gap | (seen.blocking[dst // 2] & ~opens)] = 0
    return made


def _loading(profile: RankProfile, lane: NDArray[Any], at: Rows) -> NDArray[np.bool_]:
    """Whether the thread was in the data loader at each time."""
    activities = profile.activities
    named = np.array([LOADING.search(name) is not None for name in profile.names], np.bool_)
    kinds = (Activity.ANNOTATION, Activity.OPERATOR, Activity.FUNCTION)
    inside = np.zeros(len(at), np.bool_)
    if not named.any():
        return inside
    for row in np.flatnonzero(named[activities.name] & np.isin(activities.kind, kinds)).tolist():
        begin, end = activities.start[row], activities.end[row]
        inside |= (lane == activities.lane[row]) & (at >= begin) & (at < end)
    return inside


def _hand_overs(profile: RankProfile, stack: Stacks, seen: Waits, time: Rows) -> Edges:
    """From the last end on another thread to the begin after a gap."""
    to = np.flatnonzero(seen.handed >= 0)
    src, dst = 2 * seen.handed[to] + 1, 2 * to
    loading = _loading(profile, profile.activities.lane[stack.row[to]], (time[src] + time[dst]) // 2)
    made = _edges(src, dst, time, np.where(loading, Span.DATA_LOADING, Span.IDLE), guessed=True)
    made.counted[:] = 0
    return made


def _work_edges(profile: RankProfile, device: Rows, offset: int, time: Rows) -> Edges:
    works = profile.work[profile.activities.name[device]]
    span = np.array([_OF_WORK[work] for work in Work], np.int64)[works]
    at = np.arange(len(device), dtype=np.int64) + offset
    return _edges(2 * at, 2 * at + 1, time, span, at)


def _start_edges(seen: Waits, time: Rows) -> list[Edges]:
    """Into the begin of each piece of work: from its launch, from the work before it, from events; in this
    order.
    """
    begin = 2 * (np.arange(len(seen.launch), dtype=np.int64) + seen.hosts)
    parts = []
    for source, span, guessed in (
        (np.where(seen.launch >= 0, 2 * seen.launch, NONE), Span.LAUNCH, False),
        (_ends(seen.guess, seen.hosts), Span.SYNCHRONISATION, True),
        (_ends(seen.before, seen.hosts), Span.LAUNCH, False),
        (_ends(seen.event, seen.hosts), Span.SYNCHRONISATION, False),
    ):
        has = source >= 0
        parts.append(_edges(source[has], begin[has], time, span, guessed=guessed))
    parts[-1].counted[:] = 0
    return parts


def _ends(work: Rows, hosts: int) -> Rows:
    return np.where(work >= 0, 2 * (work + hosts) + 1, NONE)


def _sync_edges(seen: Waits, time: Rows) -> Edges:
    """From work on the device to the end of the host call that waited for it."""
    src, dst = 2 * (seen.sync_from + seen.hosts) + 1, 2 * seen.sync_to + 1
    made = _edges(src, dst, time, Span.SYNCHRONISATION, seen.sync_to)
    made.counted[:] = 0
    made.guessed[:] = seen.sync_guessed
    return made
