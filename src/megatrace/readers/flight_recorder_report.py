"""What PyTorch's own analyzer (``torchfrtrace``) prints of flight-recorder dumps, where the dumps are gone.

It says of one collective which ranks joined it and which did not. That is read as what it means: those who
joined have an open call, the others stand one call before it. Everything else of the dumps is lost, so the
verdict rests on this collective alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from megatrace.errors import TraceError
from megatrace.model.events import UNSEEN, Events, Op
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
_BEGIN = re.compile(r"Not all ranks joining collective[:,] sequence number: (\d{1,18})")
_FIELD = re.compile(
    r"(group info|collective|missing ranks|input sizes|world size|expected ranks|collective state)"
    r": (.{0,100000})$"
)
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


@registry.register("flight_recorder_report", summary="output of torchfrtrace: ranks that did not join")
class FlightRecorderReportReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._reports: list[_Report] = []
        self._names: list[str] = []

    def refuses(self, head: bytes) -> str | None:
        """A line that says who did not join."""
        if b"Not all ranks joining collective" in head:
            return None
        return 'no line "Not all ranks joining collective"'

    def add(self, source: Source) -> None:
        """Reads all collectives that the report names."""
        self._names.append(source.name)
        for line in source.read_whole(self._limit).decode("utf-8", "replace").splitlines():
            begin = _BEGIN.search(line)
            if begin is not None:
                self._reports.append(_Report(int(begin.group(1))))
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
        """The first collective of every group. Raises TraceError where none is complete."""
        first: dict[str, _Report] = {}
        for report in self._reports:
            group = report.fields.get("group info", "")
            if report.ranks("missing ranks") and (group not in first or report.seq < first[group].seq):
                first[group] = report
        if not first:
            raise TraceError(
                f"{self._names[0]}: the report names no rank that is missing", path=self._names[0]
            )
        parts = [_read(report, i) for i, report in enumerate(first.values())]
        events = Events.rank_major(
            [
                (name, np.concatenate([getattr(part.events, name) for part in parts]))
                for name, _ in parts[0].events.columns()
            ]
        )
        ranks = sorted({rank for part in parts for rank in part.communicator.members or ()})
        return Trace(
            events=events,
            communicators=tuple(part.communicator for part in parts),
            coverage=Coverage(_SEEN, notes=("Only the report on the dumps was read, not the dumps.",)),
            inputs=tuple(
                InputInfo(name, "flight_recorder_report", _SEEN, len(ranks)) for name in self._names
            ),
            positions=Positions.concatenate([part.positions for part in parts]),
            call_notes=tuple(note for part in parts for note in part.notes),
            dumped=Dumped(),
        )


@dataclass(frozen=True, slots=True)
class _Part:
    events: Events
    communicator: Communicator
    positions: Positions
    notes: tuple[CallNote, ...]


def _read(report: _Report, number: int) -> _Part:
    """One collective: open where it was joined, one call short elsewhere."""
    missing = report.ranks("missing ranks")
    size = re.match(r"\d{1,7}", report.fields.get("world size", ""))
    world = min(int(size.group()) if size else max(missing) + 1, MAX_WORLD)
    expected = report.ranks("expected ranks") or tuple(range(world))
    joined = np.asarray([rank for rank in expected if rank not in missing], np.int32)
    name = report.fields.get("collective", "")
    op = call_of(name).op
    n = len(joined)
    events = Events(
        rank=joined, op=np.full(n, int(op), np.uint8), seq=np.full(n, report.seq, np.int64),
        enqueue=np.zeros(n, np.int64), comm=np.full(n, number, np.int32), end=np.full(n, UNSEEN, np.int64),
    )  # fmt: skip
    before = report.seq - 1
    group = report.fields.get("group info", "").rpartition(":")
    title = group[2] or group[0] or "default_pg"
    shape = " ".join(f"{name.partition(':')[2]} {report.fields.get('input sizes', '')}".split())[:160]
    frame = frame_of(report.frames)
    notes = tuple(CallNote(int(rank), number, Op(op), report.seq, shape, frame) for rank in joined[:8])
    members = tuple(sorted({*expected, *missing}))
    positions = Positions.of([(rank, number, before, before, before) for rank in missing])
    return _Part(events, Communicator(number, members, name=title[:120]), positions, notes)
