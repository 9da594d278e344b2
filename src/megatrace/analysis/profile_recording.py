"""Where the time went, from recordings of communication alone: rings and other traces with begins and ends.

Kernels that compute are not in such a recording. But a call that the next kernel needs (tensor, context,
expert and pipeline groups, the small calls of an iteration) keeps the device from computing, so between two
of them it computes or waits for its host; the two cannot be told apart, and both count as computing here.
Gradient and parameter calls run beside kernels: what of them lies over further calls or before one is hidden,
what of them the device waited for at the end, before its next call, is exposed.

Needs begins and ends (a text log has neither) and which group a call belongs to. Where nothing calls inside
of a task, gradient calls that were hidden cannot be told from exposed ones; a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.infer_layout import Resolved, resolve
from megatrace.analysis.profile_collectives import Call, collectives
from megatrace.analysis.profile_overlap import Intervals, common, covered, length, union
from megatrace.analysis.roles import AXES, Role
from megatrace.model.events import NO_COMM, UNSEEN, Events, Op
from megatrace.model.profile import Collective
from megatrace.model.profile_result import ProfileInput, ProfileResult, RankTime, StreamTime
from megatrace.model.trace import Communicator, Trace

BESIDE = frozenset(AXES[Role.DATA])
"""Axes of groups whose calls run beside kernels."""
EXCHANGES = (Op.SEND, Op.RECV)
MAX_CALLS = 500_000
"""Calls of which bandwidths are made: some seconds of work, and more of the same would not change a median.
"""


def readable(trace: Trace) -> bool:
    """Whether begins and ends were recorded, without which nothing can be said."""
    return trace.events.start is not None and trace.events.end is not None and len(trace.events) > 0


def profile_recording(trace: Trace) -> ProfileResult:
    """What a recording for which ``readable`` holds says of each rank's time."""
    resolved = resolve(trace)
    events = resolved.trace.events
    beside = _beside(resolved)
    parts = [_Rank(events, rank, beside) for rank in events.ranks().tolist()]
    seen = [part for part in parts if len(part.rows)]
    path = trace.inputs[0].path if trace.inputs else ""
    return ProfileResult(
        source="recording",
        inputs=tuple(ProfileInput(path, part.rank, len(part.rows), "") for part in seen),
        ranks=tuple(part.time() for part in seen),
        streams=tuple(stream for part in seen for stream in part.streams()),
        collectives=collectives(_calls(resolved, seen)),
        world_size=resolved.world,
        notes=tuple(_notes(resolved, seen)),
    )


def _beside(resolved: Resolved) -> NDArray[np.bool_]:
    """Per call: whether kernels go on while it runs."""
    events = resolved.trace.events
    gradients: NDArray[np.bool_] = resolved.role == Role.DATA
    if events.comm is None:
        return gradients
    axes = [comm.axis for comm in resolved.trace.communicators]
    fits = np.array([*(axis is None or axis in BESIDE for axis in axes), True], np.bool_)
    gradients &= fits[np.where(events.comm == NO_COMM, len(axes), events.comm)]
    return gradients


class _Rank:
    """The calls of one rank that began and ended, as intervals."""

    def __init__(self, events: Events, rank: int, beside: NDArray[np.bool_]) -> None:
        assert events.start is not None
        assert events.end is not None
        rows = np.arange(*events.rows_of(rank).indices(len(events)))
        rows = rows[(events.start[rows] != UNSEEN) & (events.end[rows] != UNSEEN)]
        self.rank, self.events = rank, events
        self.rows = rows[events.end[rows] >= events.start[rows]]
        self.start, self.end = events.start[self.rows], events.end[self.rows]
        self.beside = beside[self.rows]
        self.blocking = union(self.start[~self.beside], self.end[~self.beside])
        self.all = union(self.start, self.end)

    @property
    def span(self) -> tuple[int, int]:
        """First begin and last end."""
        return int(self.start.min()), int(self.end.max())

    def compute(self) -> Intervals:
        """When the device had no call to wait for: between blocking calls, less the wait for calls beside."""
        first, last = self.span
        begin = np.concatenate(([first], self.blocking[1]))
        end = np.concatenate((self.blocking[0], [last]))
        waited = self._waited(begin, end)
        taken = union(
            np.concatenate((self.blocking[0], waited[0])), np.concatenate((self.blocking[1], waited[1]))
        )
        begin = np.concatenate(([first], taken[1]))
        end = np.concatenate((taken[0], [last]))
        kept = end > begin
        return begin[kept], end[kept]

    def _waited(self, begin: NDArray[Any], end: NDArray[Any]) -> Intervals:
        """In each gap: from the first call beside that ends in it, with no other blocking one before it."""
        start, over = self.start[self.beside], self.end[self.beside]
        gap = np.searchsorted(begin, over, "right") - 1
        inside = (gap >= 0) & (over <= end[np.maximum(gap, 0)])
        gap, start, over = gap[inside], start[inside], over[inside]
        # Hidden where the device goes on in the gap, that is where a task computes after it: all gaps but
        # that in which the last call of a burst ends.
        last = np.append(np.diff(gap) > 0, True) if len(gap) else np.empty(0, np.bool_)
        following = np.append(start[1:], np.iinfo(np.int64).max)
        burst_ends = last & (following > end[gap])
        final = np.isin(gap, gap[burst_ends])
        return np.maximum(start[final], begin[gap[final]]), over[final]

    def time(self) -> RankTime:
        """The rank's time by what its device did."""
        first, last = self.span
        compute = self.compute()
        overlap = common(self.all, compute)
        exchange = np.isin(self.events.op[self.rows], EXCHANGES)
        return RankTime(
            rank=self.rank,
            span=last - first,
            compute=length(compute),
            communication=length(self.all),
            overlap=overlap,
            exposed=length(self.all) - overlap,
            memory_only=0,
            idle=last - first - length(compute) - (length(self.all) - overlap),
            bubble=length(union(self.start[exchange], self.end[exchange])) if exchange.any() else None,
        )

    def streams(self) -> tuple[StreamTime, ...]:
        """Every stream, numbered in order of its first call; the busiest first."""
        events, compute = self.events, self.compute()
        handles = (
            events.stream[self.rows] if events.stream is not None else np.zeros(len(self.rows), np.uint64)
        )
        known = list(dict.fromkeys(handles.tolist()))
        made = []
        for number, handle in enumerate(known):
            here = handles == np.uint64(handle)
            busy = union(self.start[here], self.end[here])
            exposed = length(busy) - common(busy, compute)
            span = int(self.end[here].max() - self.start[here].min())
            made.append(StreamTime(self.rank, number, int(here.sum()), span, 0, length(busy), 0, exposed, ()))
        return tuple(sorted(made, key=lambda item: -item.communication))


def _calls(resolved: Resolved, seen: Sequence[_Rank]) -> list[list[Call]]:
    """The calls of each rank, until there are enough."""
    found: list[list[Call]] = []
    left = MAX_CALLS
    for part in seen:
        if left <= 0:
            break
        found.append(_calls_of(resolved, part, part.rows[:left]))
        left -= len(part.rows)
    return found


def _calls_of(resolved: Resolved, part: _Rank, rows: NDArray[Any]) -> list[Call]:
    events, communicators = resolved.trace.events, resolved.trace.communicators
    compute = part.compute()
    start, end = part.start[: len(rows)], part.end[: len(rows)]
    hidden = covered(end, compute) - covered(start, compute)
    size = events.nbytes[rows].tolist() if events.nbytes is not None else [None] * len(rows)
    comm = events.comm[rows].tolist() if events.comm is not None else [NO_COMM] * len(rows)
    kinds: dict[tuple[int, int, int | None], Collective] = {}
    made = []
    columns = (events.op[rows].tolist(), comm, size, start.tolist(), end.tolist(), hidden.tolist())
    for nth, (op, group, nbytes, begin, over, inside) in enumerate(zip(*columns, strict=True)):
        key = (op, group, nbytes)
        if key not in kinds:
            kinds[key] = _collective(Op(op), communicators[group] if group != NO_COMM else None, nbytes)
        made.append(Call(part.rank, kinds[key], begin, over, over - begin - inside, nth))
    return made


def _collective(op: Op, communicator: Communicator | None, nbytes: int | None) -> Collective:
    members = communicator.members if communicator is not None and communicator.members else ()
    name = "" if communicator is None else communicator.name or str(communicator.id)
    size = nbytes if nbytes is not None and nbytes >= 0 else None
    return Collective(op, name, len(members) or None, members, "", 1, size, size)


def _notes(resolved: Resolved, seen: Sequence[_Rank]) -> Iterator[str]:
    yield "Only communication was recorded: computing is time in which no call held the device up."
    if resolved.layout is None:
        yield "The layout is not known: which calls run beside kernels is told from what they carry."
    if not np.any((resolved.role != Role.DATA) & (resolved.role != Role.OTHER)):
        yield "No call was made inside of a task: hidden gradient calls cannot be told from exposed ones."
    if sum(len(part.rows) for part in seen) > MAX_CALLS:
        yield f"Bandwidths are those of the first {MAX_CALLS:,} calls."
