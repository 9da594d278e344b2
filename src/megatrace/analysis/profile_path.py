"""The critical path of one rank: what the end of the recording had to wait for, and what if a part took no
time.

Walked back from the last end over the binding waits, so that it covers the window without a hole and its
parts add up to the time that passed. The figure ``busiest`` is another one: the longest chain where a
thread's gaps and waiting calls count nothing, by what was recorded alone. HolisticTraceAnalysis calls that
the critical path.

What-if takes the time of one kind away and lets everything come as early as its waits allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatrace.analysis.profile_graph import PathGraph, Span, path_graph
from megatrace.analysis.profile_longest import Order, farthest
from megatrace.analysis.profile_stacks import Rows
from megatrace.model.profile import NONE, RankProfile
from megatrace.model.profile_result import CriticalPath, PathPiece, TimeKind, WhatIf

KINDS = {
    Span.COMPUTE: TimeKind.COMPUTE,
    Span.COMMUNICATION: TimeKind.COMMUNICATION,
    Span.MEMORY: TimeKind.MEMORY,
    Span.LAUNCH: TimeKind.LAUNCH,
    Span.HOST: TimeKind.HOST,
    Span.SYNCHRONISATION: TimeKind.SYNCHRONISATION,
    Span.DATA_LOADING: TimeKind.DATA_LOADING,
    Span.IDLE: TimeKind.IDLE,
}


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the recording: ns, both ends belong to it; ``title`` says what it is."""

    title: str
    start: int
    end: int


def critical_path(profile: RankProfile, window: Window | None = None) -> CriticalPath | None:
    """The path through a window, or through everything; None where nothing was done in it."""
    graph = path_graph(profile, None if window is None else (window.start, window.end))
    if not len(graph.row):
        return None
    lanes = [(lane.title, profile.rank) for lane in profile.lanes]
    title = "everything recorded" if window is None else window.title
    return described(graph, profile.names, lanes, profile.rank, title)


def described(
    graph: PathGraph, names: Sequence[str], lanes: Sequence[tuple[str, int]], rank: int, window: str
) -> CriticalPath:
    """The path through a graph. ``names`` by number; ``lanes`` title and rank by number."""
    order = Order.of(len(graph.time), graph.edges.src, graph.edges.dst)
    way = _walk(graph)
    by_kind = way.by_kind()
    busiest = farthest(order, graph.edges.counted, np.zeros(len(graph.time), np.int64))
    return CriticalPath(
        rank=rank,
        window=window,
        start=int(graph.time.min()),
        end=int(graph.time.max()),
        by_kind=by_kind,
        by_name=way.by_name(names),
        pieces=way.pieces(names, lanes),
        what_if=what_if(graph, order, [kind for kind, _ in by_kind]),
        busiest=int(busiest.max()),
    )


def what_if(graph: PathGraph, order: Order, kinds: Sequence[TimeKind]) -> tuple[WhatIf, ...]:
    """How long the window would last without the time of each kind, the most saved first."""
    begin = graph.time - graph.time.min()
    reached = np.zeros(len(begin), np.bool_)
    reached[graph.edges.dst] = True
    # What nothing is known to come before keeps its time.
    base = np.where(reached, 0, begin)
    whole = int(farthest(order, graph.edges.length, base).max())
    made = []
    for span, kind in KINDS.items():
        if kind in kinds:
            length = np.where(graph.edges.span == span, 0, graph.edges.length)
            total = int(farthest(order, length, base).max())
            made.append(WhatIf(kind, total, whole - total))
    return tuple(sorted(made, key=lambda item: -item.saved))


def _walk(graph: PathGraph) -> _Way:
    edges, time = graph.edges, graph.time
    before = np.full(len(time), NONE, np.int64)
    bound = np.flatnonzero(edges.binding)
    before[edges.dst[bound]] = bound
    came_by, source = before.tolist(), edges.src.tolist()
    at = int(np.argmax(time))
    taken = []
    while (edge := came_by[at]) != NONE:
        taken.append(edge)
        at = source[edge]
    way = np.array(taken[::-1], np.int64)
    # A child that ends after its parent by rounding must not turn time around.
    reach = np.minimum.accumulate(np.append(time[edges.src[way]], time.max())[::-1])[::-1]
    lasted = reach[1:] > reach[:-1]
    start, end, way = reach[:-1][lasted], reach[1:][lasted], way[lasted]
    owner, span = edges.owner[way], edges.span[way]
    at_work = np.where(owner != NONE, owner, edges.dst[way] // 2)
    name = np.where(owner != NONE, graph.name[at_work], NONE)
    first = int(time.min())
    if reach[0] > first:
        # Nothing is known to come before the first thing on the path, though others began earlier.
        start, end, span = np.append(first, start), np.append(reach[0], end), np.append(int(Span.IDLE), span)
        name, at_work = np.append(NONE, name), np.append(at // 2, at_work)
    return _Way(start, end, span, name, graph.lane[at_work]).joined()


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """A path as columns, in order of time; ``name`` is ``NONE`` where nothing was recorded."""

    start: Rows
    end: Rows
    span: Rows
    name: Rows
    lane: Rows

    def joined(self) -> _Way:
        """The pieces of one thing that follow each other made one."""
        same = np.ones(max(len(self.start) - 1, 0), np.bool_)
        for column in (self.span, self.name, self.lane):
            same &= column[1:] == column[:-1]
        if not len(self.start):
            return self
        first = np.flatnonzero(np.append(True, ~same))
        last = np.append(first[1:], len(self.start)) - 1
        return _Way(self.start[first], self.end[last], self.span[first], self.name[first], self.lane[first])

    def pieces(self, known: Sequence[str], lanes: Sequence[tuple[str, int]]) -> tuple[PathPiece, ...]:
        """The same as values."""
        kinds = [KINDS[span] for span in Span]
        names = [*known, ""]
        columns = (self.start, self.end, self.span, self.name, self.lane)
        return tuple(
            PathPiece(start, end, kinds[span], names[name], *lanes[lane])
            for start, end, span, name, lane in zip(*(column.tolist() for column in columns), strict=True)
        )

    def by_kind(self) -> tuple[tuple[TimeKind, int], ...]:
        """ns of each kind, the most first."""
        total = np.zeros(len(Span), np.int64)
        np.add.at(total, self.span, self.end - self.start)
        found = [(KINDS[span], int(total[span])) for span in Span if total[span]]
        return tuple(sorted(found, key=lambda pair: -pair[1]))

    def by_name(self, known: Sequence[str]) -> tuple[tuple[str, TimeKind, int], ...]:
        """ns of each name and kind, the most first."""
        if not len(self.start):
            return ()
        names = [*known, ""]
        pairs, place = np.unique(np.stack((self.name, self.span)), axis=1, return_inverse=True)
        total = np.zeros(pairs.shape[1], np.int64)
        np.add.at(total, place.reshape(-1), self.end - self.start)
        sums: dict[tuple[str, TimeKind], int] = {}  # several ranks number the same name each their own way
        for name, span, time in zip(pairs[0].tolist(), pairs[1].tolist(), total.tolist(), strict=True):
            key = names[name], KINDS[Span(span)]
            sums[key] = sums.get(key, 0) + time
        found = [(name, kind, time) for (name, kind), time in sums.items()]
        return tuple(sorted(found, key=lambda row: (-row[2], row[0])))


def windows(profile: RankProfile, title: str) -> tuple[Window, ...]:
    """Every activity of a host thread whose name holds ``title``, as a window, in order of time."""
    activities = profile.activities
    named = np.array([title in name for name in profile.names], np.bool_)
    host = np.array([not lane.device for lane in profile.lanes], np.bool_)
    rows: Rows = np.flatnonzero(named[activities.name] & host[activities.lane])
    found = [
        Window(profile.names[name], start, end)
        for name, start, end in zip(
            activities.name[rows].tolist(),
            activities.start[rows].tolist(),
            activities.end[rows].tolist(),
            strict=True,
        )
    ]
    return tuple(sorted(found, key=lambda window: window.start))
