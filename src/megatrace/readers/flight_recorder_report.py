"""What PyTorch's own analyzer (``torchfrtrace``) prints of flight-recorder dumps, where the dumps are gone.

It says of one collective which ranks joined it and which did not. That is read as what it means: those who
joined have an open call, the others stand one call before it. Or it says which ranks' calls differ from those
of the first rank, which it calls culprits: there every rank's call is told, and who differs from the most is
for the analysis to say. Everything else of the dumps is lost, so the verdict rests on this collective alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import TraceError
from megatrace.model.events import NO_COUNT, UNSEEN, Events
from megatrace.model.states import CallNote, Dumped, Positions
from megatrace.model.trace import Communicator, Coverage, InputInfo, Observable, Trace
from megatrace.readers import registry
from megatrace.readers.flight_recorder_dump import frame_of
from megatrace.readers.flight_recorder_names import call_of
from megatrace.readers.source import ReadOptions, Source

MAX_BYTES = 64 << 20
"""Of one report: some hundred bytes a collective, stack traces included."""
MAX_WORLD = 1 << 14
"""Ranks that are believed where they are not listed."""
_BEGIN = re.compile(
    r"(?:Not all ranks joining collective[:,] sequence number: (\d{1,18})"
    r"|Collective sequence number: (\d{1,18}) has errors"
    r"|Input/output mismatch in the collective sequence number: (\d{1,18}))"
)
_FIELD = re.compile(
    r"(group info|collective|missing ranks|input sizes|output sizes|world size|expected ranks"
    r"|collective state|error msg|total input numel|total output numel): (.{0,1000000})$"
)
_CULPRIT = re.compile(r"Culprit rank (\d{1,9}); Error type: (\w+)((?:(?!Culprit rank ).){0,20000})")
_FOUND = re.compile(r"does not match found [a-z ]{1,40}: '([^']{0,10000})'")
_LACKING = re.compile(r"missed FR dumps from ranks \(\{?([\d, ]{1,100000})\}?\)")
_SIZES = re.compile(r"\[(\d{1,18}(?:, \d{1,18})*)\]")
STATES_DIFFER = "COLLECTIVE_STATE_MISMATCH"
_FRAME = re.compile(r"^\s*(\S.{0,200}?) at (\S{1,400}):(\d{1,9})\s*$")
_SEEN = frozenset({Observable.SEQ, Observable.GROUP, Observable.COMPLETION})


@dataclass(slots=True)
class _Report:
    """One collective as it is told."""

    seq: int
    fields: dict[str, str] = field(default_factory=dict)
    frames: list[dict[str, object]] = field(default_factory=list)

    def ranks(self, name: str) -> tuple[int, ...]:
        found = re.findall(r"\b\d{1,6}\b", self.fields.get(name, ""))
        return tuple(sorted({int(text) for text in found}))

    @property
    def errors(self) -> list[tuple[int, str, str]]:
        """(rank, kind of the difference, its words) of every rank that differs from the first."""
        found = _CULPRIT.findall(self.fields.get("error msg", ""))
        return [(int(rank), kind, words) for rank, kind, words in found]

    @property
    def tells_states(self) -> bool:
        """Whether it tells of every rank how far it got: where that is the same for all, only of one."""
        return any(kind == STATES_DIFFER for _, kind, _ in self.errors)

    @property
    def says_something(self) -> bool:
        """Whether it names a rank, or sums that do not fit."""
        return bool(self.ranks("missing ranks") or self.errors or "total input numel" in self.fields)


@registry.register(
    "flight_recorder_report", summary="output of torchfrtrace: ranks that did not join or differ"
)
class FlightRecorderReportReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._reports: list[_Report] = []
        self._names: list[str] = []
        self._lacking: set[int] = set()

    def refuses(self, head: bytes) -> str | None:
        """A line that says who did not join, who differs, or whose dumps are lacking."""
        text = head.decode("utf-8", "replace")
        if _BEGIN.search(text) or _LACKING.search(text):
            return None
        return 'no line "Not all ranks joining collective" or "Collective sequence number: … has errors"'

    def add(self, source: Source) -> None:
        """Reads all collectives that the report names."""
        self._names.append(source.name)
        for line in source.read_whole(self._limit).decode("utf-8", "replace").splitlines():
            begin = _BEGIN.search(line)
            if begin is not None:
                self._reports.append(_Report(int(next(filter(None, begin.groups())))))
                continue
            lacking = _LACKING.search(line)
            if lacking is not None:
                self._lacking.update(int(rank) for rank in re.findall(r"\b\d{1,6}\b", lacking.group(1)))
                continue
            if not self._reports:
                continue
            found, frame = _FIELD.search(line), _FRAME.match(line)
            if found is not None:
                self._reports[-1].fields.setdefault(found.group(1), found.group(2).strip())
            elif frame is not None and len(self._reports[-1].frames) < 256:
                name, path, number = frame.groups()
                entry = {"name": name, "filename": path, "line": int(number)}
                self._reports[-1].frames.append(entry)

    def finish(self) -> Trace:
        """The first collective of every group. Raises TraceError where nothing is stated of any."""
        first: dict[str, _Report] = {}
        for report in self._reports:
            group = report.fields.get("group info", "")
            if report.says_something and (group not in first or report.seq < first[group].seq):
                first[group] = report
        if not first:
            raise TraceError(f"{self._names[0]}: {self._why()}", path=self._names[0])
        states = all(report.tells_states for report in first.values())
        parts = [_read(report, i, states) for i, report in enumerate(first.values())]
        events = Events.rank_major(
            [
                (name, np.concatenate([getattr(part.events, name) for part in parts]))
                for name, _ in parts[0].events.columns()
            ]
        )
        ranks = sorted({rank for part in parts for rank in part.communicator.members or ()})
        notes = ["Only the report on the dumps was read, not the dumps."]
        return Trace(
            events=events,
            communicators=tuple(part.communicator for part in parts),
            coverage=Coverage(
                _SEEN,
                ranks_missing=tuple(sorted(self._lacking)),
                notes=(*notes, *(note for part in parts for note in part.remarks)),
            ),
            inputs=tuple(
                InputInfo(name, "flight_recorder_report", _SEEN, len(ranks)) for name in self._names
            ),
            positions=Positions.concatenate([part.positions for part in parts]),
            call_notes=tuple(note for part in parts for note in part.notes),
            dumped=Dumped(),
        )

    def _why(self) -> str:
        """Why nothing can be said."""
        if not self._lacking:
            return "the report names no rank that is missing or differs"
        named = ", ".join(map(str, sorted(self._lacking)[:16]))
        return (
            f"torchfrtrace could not decide, because it had no dumps of ranks {named}: "
            "collect these, and give me the dumps themselves"
        )


@dataclass(frozen=True, slots=True)
class _Part:
    events: Events
    communicator: Communicator
    positions: Positions
    notes: tuple[CallNote, ...]
    remarks: tuple[str, ...]


def _read(report: _Report, number: int, states: bool) -> _Part:
    """One collective: open where it was joined, with what each rank called; one call short elsewhere.

    ``states``: whether the reports tell how far every rank got.
    """
    missing = report.ranks("missing ranks")
    size = re.match(r"\d{1,7}", report.fields.get("world size", ""))
    world = min(int(size.group()) if size else max(missing, default=0) + 1, MAX_WORLD)
    expected = report.ranks("expected ranks") or tuple(range(world))
    joined = np.asarray([rank for rank in expected if rank not in missing], np.int32)
    name = report.fields.get("collective", "")
    told = _Told(report, joined, int(call_of(name).op))
    n = len(joined)
    events = Events(
        rank=joined, op=told.op, seq=np.full(n, report.seq, np.int64), enqueue=np.zeros(n, np.int64),
        count=told.count, comm=np.full(n, number, np.int32),
        start=told.start if states else None, end=told.end,
    )  # fmt: skip
    before = report.seq - 1
    group = report.fields.get("group info", "").rpartition(":")
    title = group[2] or group[0] or "default_pg"
    shape = " ".join(f"{name.partition(':')[2]} {report.fields.get('input sizes', '')}".split())[:160]
    frame = frame_of(report.frames)
    same = [int(rank) for rank in joined if int(rank) not in told.differing][:8]
    notes = tuple(CallNote(rank, number, call_of(name).op, report.seq, shape, frame) for rank in same)
    members = tuple(sorted({*expected, *missing}))
    positions = Positions.of([(rank, number, before, before, before) for rank in missing])
    return _Part(events, Communicator(number, members, name=title[:120]), positions, notes, told.remarks)


class _Told:
    """What each rank that joined called, from the words on those that differ from the first.

    ``op`` uint8, ``count`` int64 elements, ``start`` and ``end`` int64 (``UNSEEN`` where it had not), one a
    rank; ``differing`` ranks whose operation or size is not the first's; ``remarks`` what is not in columns.
    """

    def __init__(self, report: _Report, joined: NDArray[np.int32], op: int) -> None:
        n = len(joined)
        row = {int(rank): i for i, rank in enumerate(joined)}
        errors = [item for item in report.errors if item[0] in row]
        by_output = any("found output sizes" in words for _, _, words in errors)
        usual = _elements(report.fields.get("output sizes" if by_output else "input sizes", ""))
        self.op = np.full(n, op, np.uint8)
        self.count = np.full(n, usual, np.int64)
        state = report.fields.get("collective state", "")
        states = dict.fromkeys(row, state)
        self.differing: set[int] = set()
        remarks = []
        for rank, kind, words in errors:
            found = _FOUND.search(words)
            value = found.group(1) if found else ""
            if kind == STATES_DIFFER:
                states[rank] = value
                continue
            self.differing.add(rank)
            if kind == "COLLECTIVE_TYPE_MISMATCH":
                self.op[row[rank]] = int(call_of(f"nccl:{value}").op)
            elif kind == "SIZE_OR_SYNTAX_MISMATCH" and _SIZES.search(value):
                self.count[row[rank]] = _elements(value)
            else:
                remarks.append(f"torchfrtrace says of rank {rank}: {kind.lower()}{words.rstrip(' ,')}"[:300])
        sums = report.fields.get("total input numel"), report.fields.get("total output numel")
        if sums[0] is not None:
            remarks.append(
                f"torchfrtrace found that the members of collective {report.seq} pass {sums[0]} elements in "
                f"all and expect {sums[1]}: sizes do not fit, and the report does not tell whose"
            )
        started = [states[int(rank)] in ("started", "completed") for rank in joined]
        completed = [states[int(rank)] == "completed" for rank in joined]
        self.start = np.where(started, 0, UNSEEN)
        self.end = np.where(completed, 0, UNSEEN)
        self.remarks = tuple(remarks)


def _elements(sizes: str) -> int:
    """Elements of "[[2048, 5120]]"; ``NO_COUNT`` where it says none."""
    found = _SIZES.findall(sizes)
    total = sum(math.prod(int(text) for text in one.split(", ")) for one in found)
    return total if found and total < 1 << 62 else NO_COUNT
