"""Everything that was observed of one job, and what was not.

A reader makes one ``Trace`` per input; ``readers.open_trace`` joins them. Missing data is part of the value
(``Coverage``), never an exception: in a hang what is missing *is* the evidence.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from megatrace.model.job import JobConfig

if TYPE_CHECKING:  # a node's agent speaks of coverage, and does not import numpy for it
    from megatrace.model.blind_spots import Unobserved
    from megatrace.model.events import Events
    from megatrace.model.inspector import InspectorCalls
    from megatrace.model.layout import Axis
    from megatrace.model.marks import Marks, NamedGroup
    from megatrace.model.optable import OpTable
    from megatrace.model.ras import RasSnapshot
    from megatrace.model.series import LogFact, Series, Spans
    from megatrace.model.states import CallNote, Dumped, Positions


class Observable(Enum):
    """What a source can see. A rule of analysis says what it needs and steps down where that is absent."""

    ENQUEUE = "enqueue"
    START = "start"
    END = "end"
    COUNT = "count"
    BYTES = "bytes"
    DTYPE = "dtype"
    PEER = "peer"
    STREAM = "stream"
    SEQ = "seq"
    GROUP = "group"
    """which communicator a call belongs to"""
    COMPLETION = "completion"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator: ``members`` are global ranks ascending, None if not known; ``axis`` once inferred."""

    id: int
    members: tuple[int, ...] | None = None
    hash: int | None = None
    name: str | None = None
    axis: Axis | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of one rank's calls that the recording lost (ring overwrite, rolled buffer). Times in ns."""

    rank: int
    start: int
    end: int
    records_lost: int | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the inputs could see and what they lack. ``notes`` are whole sentences for a person."""

    observables: frozenset[Observable] = frozenset()
    ranks_missing: tuple[int, ...] = ()
    ranks_silent: tuple[int, ...] = ()
    """Ranks whose recording is there and holds no call: nothing was open there."""
    gaps: tuple[Gap, ...] = ()
    lines: int = 0
    bad_lines: int = 0
    torn_tails: tuple[int, ...] = ()
    """Ranks whose file ends in the middle of a record."""
    spans_cut: int = 0
    notes: tuple[str, ...] = ()
    unobserved: tuple[Unobserved, ...] = ()
    """Communication that was there and could not be recorded."""

    def has(self, *wanted: Observable) -> bool:
        """Whether all of these can be seen."""
        return all(item in self.observables for item in wanted)

    def merged(self, other: Coverage) -> Coverage:
        """Both together: an observable counts only where every input with calls has it."""
        return Coverage(
            observables=(self.observables & other.observables)
            if self.observables and other.observables
            else self.observables | other.observables,
            ranks_missing=tuple(sorted({*self.ranks_missing, *other.ranks_missing})),
            ranks_silent=tuple(sorted({*self.ranks_silent, *other.ranks_silent})),
            gaps=self.gaps + other.gaps,
            lines=self.lines + other.lines,
            bad_lines=self.bad_lines + other.bad_lines,
            torn_tails=tuple(sorted({*self.torn_tails, *other.torn_tails})),
            spans_cut=self.spans_cut + other.spans_cut,
            notes=self.notes + other.notes,
            unobserved=tuple(dict.fromkeys(self.unobserved + other.unobserved)),
        )


@dataclass(frozen=True, slots=True)
class InputInfo:
    """One input as it was read: path as given, reader's name, what it can observe, ranks seen in it."""

    path: str
    reader: str
    observables: frozenset[Observable]
    ranks: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs; None where not known."""

    rank: int
    node: str | None = None
    local_rank: int | None = None
    device: str | None = None


def _rank_of(place: RankPlace) -> int:
    return place.rank


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Everything observed of one job.

    ``communicators[i].id == i``; ``Events.comm`` indexes it. ``snapshot_at`` is the time (ns) up to which the
    recording is known to be complete (a ring read live, a dump's own time), None where only the last call
    tells. ``places`` ascend by rank. ``positions``, ``call_notes`` and ``dumped`` come from sources that
    dump states (a flight recorder); ``dumped`` is None for all others.
    """

    events: Events
    communicators: tuple[Communicator, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    inputs: tuple[InputInfo, ...] = ()
    job: JobConfig = field(default_factory=JobConfig)
    places: tuple[RankPlace, ...] = ()
    spans: Spans | None = None
    series: tuple[Series, ...] = ()
    facts: tuple[LogFact, ...] = ()
    snapshot_at: int | None = None
    positions: Positions | None = None
    call_notes: tuple[CallNote, ...] = ()
    dumped: Dumped | None = None
    ras: tuple[RasSnapshot, ...] = ()
    """Answers of NCCL's RAS, earliest first."""
    inspector: InspectorCalls | None = None
    marks: Marks | None = None
    """What the processes said of where they were."""
    named: tuple[NamedGroup, ...] = ()
    """Groups whose calls NCCL ran, in the order in which they were first used."""
    operations: OpTable | None = None
    """Timed operations of training steps."""

    def with_job(self, job: JobConfig) -> Trace:
        """The same trace with another declared configuration."""
        return replace(self, job=job)

    def place_of(self, rank: int) -> RankPlace:
        """Where a rank runs: as recorded, else from ranks_per_node and the host list, else unknown."""
        at = bisect_left(self.places, rank, key=_rank_of)
        if at < len(self.places) and self.places[at].rank == rank:
            return self.places[at]
        per_node = self.job.ranks_per_node
        if per_node is None:
            return RankPlace(rank)
        index, local = divmod(rank, per_node.value)
        hosts = self.job.hosts
        node = hosts[index] if index < len(hosts) else f"node{index}"
        return RankPlace(rank, node, local, f"gpu{local}")
