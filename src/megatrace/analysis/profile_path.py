"""The critical path of one rank: what the end of the recording had to wait for, and what if a part took no
time.

Walked back from the last end over the binding waits, so that it covers the window without a hole and its
parts add up to the time that passed. The figure ``busiest`` is another one: the longest chain where a
thread's gaps and waiting calls count nothing, by what was recorded alone. HolisticTraceAnalysis calls that
the critical path.

What-if takes the time of one kind away and lets everything come as early as its waits allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from megatrace.analysis.profile_graph import PathGraph, Span, path_graph
from megatrace.analysis.profile_longest import Order, farthest
from megatrace.analysis.profile_stacks import Rows
from megatrace.model.profile import NONE, RankProfile
from megatrace.model.profile_result import CriticalPath, PathPiece, TimeKind, WhatIf

Key = TypeVar("Key")

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
    order = Order.of(len(graph.time), graph.edges.src, graph.edges.dst)
    pieces = _walk(profile, graph)
    first, last = int(graph.time.min()), int(graph.time.max())
    by_kind = sums((piece.kind, piece.end - piece.start) for piece in pieces)
    busiest = farthest(order, graph.edges.counted, np.zeros(len(graph.time), np.int64))
    return CriticalPath(
        rank=profile.rank,
        window="everything recorded" if window is None else window.title,
        start=first,
        end=last,
        by_kind=by_kind,
        by_name=tuple(
            (name, kind, time)
            for (name, kind), time in sums(
                ((piece.name, piece.kind), piece.end - piece.start) for piece in pieces
            )
        ),
        pieces=pieces,
        what_if=what_if(graph, order, [kind for kind, _ in by_kind]),
        busiest=int(busiest.max()),
    )


def sums(pairs: Iterable[tuple[Key, int]]) -> tuple[tuple[Key, int], ...]:
    """The sum for each key, the largest first."""
    found: dict[Key, int] = {}
    for key, time in pairs:
        found[key] = found.get(key, 0) + time
    return tuple(sorted(found.items(), key=lambda pair: -pair[1]))


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


def _walk(profile: RankProfile, graph: PathGraph) -> tuple[PathPiece, ...]:
    edges, time = graph.edges, graph.time
    before = np.full(len(time), NONE, np.int64)
    bound = np.flatnonzero(edges.binding)
    before[edges.dst[bound]] = bound
    src, span, owner = edges.src.tolist(), edges.span.tolist(), edges.owner.tolist()
    at, pieces = int(np.argmax(time)), []
    reach = int(time[at])
    while (edge := int(before[at])) != NONE:
        came = min(int(time[src[edge]]), reach)
        if came < reach:
            pieces.append(_piece(profile, graph, (came, reach), Span(span[edge]), owner[edge], at))
        reach, at = came, src[edge]
    return joined(reversed(pieces))


def _piece(
    profile: RankProfile, graph: PathGraph, when: tuple[int, int], span: Span, owner: int, at: int
) -> PathPiece:
    row = graph.row[owner if owner != NONE else at // 2]
    name = profile.names[profile.activities.name[row]] if owner != NONE else ""
    lane = profile.lanes[profile.activities.lane[row]].title
    return PathPiece(*when, KINDS[span], name, lane, profile.rank)


def joined(pieces: Iterable[PathPiece]) -> tuple[PathPiece, ...]:
    """The pieces in their order, those of one thing that follow each other made one."""
    made: list[PathPiece] = []
    for piece in pieces:
        last = made[-1] if made else None
        if last and (last.kind, last.name, last.lane, last.rank, last.end) == (
            piece.kind,
            piece.name,
            piece.lane,
            piece.rank,
            piece.start,
        ):
            made[-1] = PathPiece(last.start, piece.end, piece.kind, piece.name, piece.lane, piece.rank)
        else:
            made.append(piece)
    return tuple(made)


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
