"""What a recorder sees of what happened: its limits (``Capture``), and what kind of source it is.

The physics does not depend on who looks. So a job is simulated once, and looked at as a ring recorder, a text
log or a log without operation numbers would.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megatrace.errors import UnknownName
from megatrace.model.events import NO_SEQ, Events
from megatrace.model.trace import Communicator, Gap, Observable, Trace
from megatrace.simulator.scenario import Scenario


def captured(trace: Trace, scenario: Scenario) -> Trace:
    """What a recorder with these limits would have kept."""
    capture = scenario.capture
    events, coverage = trace.events, trace.coverage
    if capture.missing_ranks:
        events = events.take(~np.isin(events.rank, capture.missing_ranks))
        coverage = replace(coverage, ranks_missing=tuple(sorted(capture.missing_ranks)))
    if capture.torn_tails:
        keep = np.ones(len(events), bool)
        for rank in capture.torn_tails:
            rows = events.rows_of(rank)
            keep[rows.stop - 1 : rows.stop] = rows.stop == rows.start
        events = events.take(keep)
        coverage = replace(coverage, torn_tails=tuple(sorted(capture.torn_tails)))
    if capture.last_records is not None:
        events, gaps = _last(events, capture.last_records, scenario.start_time_ns)
        coverage = replace(coverage, gaps=gaps)
    return replace(trace, events=events, coverage=replace(coverage, lines=len(events)))


def _last(events: Events, records: int, start: int) -> tuple[Events, tuple[Gap, ...]]:
    """The last N calls of every rank; what was overwritten is a gap from the start of the job."""
    ranks, bounds = events.offsets()
    first = np.maximum(bounds[1:] - records, bounds[:-1])
    keep = np.arange(len(events)) >= np.repeat(first, np.diff(bounds))
    lost = first - bounds[:-1]
    gaps = tuple(
        Gap(int(rank), start, int(events.enqueue[row]), int(number))
        for rank, row, number in zip(ranks, first, lost, strict=True)
        if number
    )
    return events.take(keep), gaps


RING = frozenset(Observable) - {Observable.DTYPE}
TEXT = frozenset({Observable.ENQUEUE, Observable.COUNT, Observable.STREAM, Observable.SEQ})
OBSERVATIONS = ("ring", "text", "text-hash", "bare")


def observe(trace: Trace, source: str) -> Trace:
    """The same recording as a weaker source would have it.

    ``ring`` keeps everything; ``text`` keeps enqueue, count, stream and operation number; ``text-hash`` also
    which communicator (its members unknown); ``bare`` has no operation number either. ``UnknownName`` for
    another word.
    """
    if source not in OBSERVATIONS:
        raise UnknownName("kind of observation", source, OBSERVATIONS)
    if source == "ring":
        return _with_observables(trace, trace.events, trace.communicators, RING)
    events = trace.events.with_columns(start=None, end=None, peer=None, nbytes=None, flags=None)
    if source == "text-hash":
        blind = tuple(Communicator(item.id, hash=item.hash) for item in trace.communicators)
        return _with_observables(trace, events, blind, TEXT | {Observable.GROUP})
    events = events.with_columns(comm=None)
    if source == "bare":
        events = events.with_columns(seq=np.full(len(events), NO_SEQ, np.int64))
        return _with_observables(trace, events, (), TEXT - {Observable.SEQ})
    return _with_observables(trace, events, (), TEXT)


def _with_observables(
    trace: Trace, events: Events, communicators: tuple[Communicator, ...], observables: frozenset[Observable]
) -> Trace:
    coverage = replace(trace.coverage, observables=observables)
    inputs = tuple(replace(item, observables=observables) for item in trace.inputs)
    places = trace.places if Observable.NODE in observables else ()
    return replace(
        trace, events=events, communicators=communicators, coverage=coverage, inputs=inputs, places=places
    )
