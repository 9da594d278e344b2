"""Several readers' Traces of one job as one Trace.

Where two formats recorded the same rank's calls, the calls of the one that sees more are kept whole:
mixing rows of two clocks and two counters would invent an order that nobody observed. What was left out
is a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COMM, Events
from megatrace.model.marks import Marks
from megatrace.model.states import CallNote, Positions
from megatrace.model.trace import Communicator, Coverage, Trace
from megatrace.readers.group_names import with_names
from megatrace.units import say_ranks


def join_traces(traces: Sequence[Trace]) -> Trace:
    """One Trace of one or more. The inputs are left as they are."""
    if len(traces) == 1:
        return _named(traces[0])
    by_sight = sorted(traces, key=lambda trace: _sight(trace, traces), reverse=True)
    communicators: list[Communicator] = []
    parts: dict[int, Events] = {}
    notes: list[str] = []
    positions: list[Positions] = []
    calls: list[CallNote] = []
    marks = [trace.marks for trace in traces if trace.marks is not None]
    states = any(trace.dumped is not None for trace in traces)
    for trace in by_sight:
        number = _numbers(trace, communicators)
        events = trace.events
        if states and trace.dumped is None and len(events):
            # A call without a completion in a log is not an open one, as it is in a dump.
            reader = trace.inputs[0].reader if trace.inputs else "an input"
            notes.append(f"The calls in {reader} were left out: dumps say which calls were open.")
            events = Events.empty()
        if events.comm is not None:
            events = events.with_columns(comm=number[events.comm])
        if trace.positions is not None:
            positions.append(replace(trace.positions, comm=number[trace.positions.comm]))
        calls += [replace(note, comm=int(number[note.comm])) for note in trace.call_notes]
        again = [rank for rank in events.ranks().tolist() if rank in parts]
        for rank in events.ranks().tolist():
            parts.setdefault(rank, events.take(events.rows_of(rank)))
        if again:
            reader = trace.inputs[0].reader if trace.inputs else "an input"
            notes.append(
                f"The calls of {say_ranks(again)} in {reader} were left out: another input sees more of them."
            )
    coverage = reduce(Coverage.merged, (trace.coverage for trace in traces))
    missing = tuple(rank for rank in coverage.ranks_missing if rank not in parts)
    places = {place.rank: place for trace in traces for place in trace.places}
    times = [trace.snapshot_at for trace in traces if trace.snapshot_at is not None]
    joined = Trace(
        events=Events.concatenate([parts[rank] for rank in sorted(parts)]),
        communicators=tuple(communicators),
        coverage=replace(coverage, ranks_missing=missing, notes=(*notes, *coverage.notes)),
        inputs=tuple(info for trace in traces for info in trace.inputs),
        job=next((trace.job for trace in traces if trace.job.declared()), traces[0].job),
        places=tuple(places[rank] for rank in sorted(places)),
        spans=next((trace.spans for trace in traces if trace.spans is not None), None),
        series=tuple(series for trace in traces for series in trace.series),
        facts=tuple(fact for trace in traces for fact in trace.facts),
        snapshot_at=max(times, default=None),
        positions=Positions.concatenate(positions) if positions else None,
        call_notes=tuple(calls),
        operations=next((trace.operations for trace in traces if trace.operations is not None), None),
        inspector=next((trace.inspector for trace in traces if trace.inspector is not None), None),
        ras=tuple(snapshot for trace in traces for snapshot in trace.ras),
        dumped=next((trace.dumped for trace in traces if trace.dumped is not None), None),
        marks=Marks.concatenate(marks) if marks else None,
        named=tuple(group for trace in traces for group in trace.named),
    )
    return _named(joined)


def _sight(trace: Trace, traces: Sequence[Trace]) -> tuple[bool, int]:
    """How much a source sees. Of a job on GPUs the calls that torch runs on hosts are few and beside the
    matter."""
    beside = _reader(trace) == "torch" and any(_reader(other) == "nccl" for other in traces)
    return not beside, len(trace.coverage.observables)


def _reader(trace: Trace) -> str:
    return trace.inputs[0].reader if trace.inputs else ""


def _named(trace: Trace) -> Trace:
    """With torch's names for the communicators of NCCL, and what torch used and nobody recorded."""
    communicators, missing = with_names(trace.communicators, trace.events, trace.named)
    with_calls = {info.reader for info in trace.inputs if info.observables}
    if "nccl" not in with_calls and with_calls - {"torch"}:
        missing = ()  # what other sources leave out, they leave out of everything
    coverage = replace(trace.coverage, unobserved=(*trace.coverage.unobserved, *missing))
    return replace(trace, communicators=communicators, coverage=coverage)


def _numbers(trace: Trace, known: list[Communicator]) -> NDArray[np.int32]:
    """int32: the number in the joined list of each communicator; the same hash is the same communicator."""
    number = np.full(len(trace.communicators) + 1, NO_COMM, np.int32)  # the last place serves NO_COMM (-1)
    for communicator in trace.communicators:
        same = next((c for c in known if c.hash is not None and c.hash == communicator.hash), None)
        if same is None:
            same = replace(communicator, id=len(known))
            known.append(same)
        elif same.members is not None and communicator.members is not None:
            known[same.id] = replace(same, members=tuple(sorted({*same.members, *communicator.members})))
        number[communicator.id] = same.id
    return number
