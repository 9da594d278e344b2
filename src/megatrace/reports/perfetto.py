"""The calls around a finding as a trace for ui.perfetto.dev.

Perfetto's own binary format, because its viewer opens it at once, keeps hundreds of thousands of slices
smooth, draws arrows between tracks, and shows a slice that never ended as such; Chrome's JSON is four times
as large and cannot say the last of these.

There are tracks for the findings, the iterations and the critical path, then one a rank, the culprit's first
and the others in a group that can be unfolded. A rank's track shows its phases; below it are its calls (as
its host made them), its device (one track a stream, where start and end were recorded) and its waiting.
Times count from ``clock.t0`` as in all reports. What was cut off stands in the first track.

Does not choose what is shown: that is the ``Timeline`` of the diagnosis. Without one there is only the
finding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COMM, NO_COUNT, NO_PEER, NO_SEQ, UNSEEN, Events, Op
from megatrace.model.finding import Diagnosis, Finding, Status, Verdict
from megatrace.model.schedule import Phase
from megatrace.model.timeline import Tasks, Timeline
from megatrace.reports import ReportOptions, reports
from megatrace.reports.describe import Scene, confidence, culprit_lines, place_parts
from megatrace.reports.perfetto_bytes import Arguments, TraceWriter
from megatrace.reports.texts import Texts
from megatrace.reports.wording import EARLIEST_WALL_TIME, plain

_PHASES = tuple(Phase)
NEVER = 1 << 63
"""Later than every time."""


@reports.register("perfetto", summary="the calls, for ui.perfetto.dev", file="calls.perfetto-trace")
def report(diagnosis: Diagnosis, options: ReportOptions) -> bytes:
    """The trace; of a diagnosis without a timeline, its findings alone."""
    return _Trace(diagnosis, options).encoded()


class _Trace:
    """One trace being written."""

    def __init__(self, diagnosis: Diagnosis, options: ReportOptions) -> None:
        self.diagnosis, self.t0 = diagnosis, diagnosis.clock.t0
        self.scene = Scene.of(diagnosis, Texts("en"), options.now)
        self.writer = TraceWriter(self.t0 if self.t0 >= EARLIEST_WALL_TIME else 0)

    def encoded(self) -> bytes:
        timeline = self.diagnosis.timeline
        self._findings(timeline)
        if timeline is not None:
            self._iterations(timeline)
            self._critical(timeline.tasks)
            self._ranks(timeline)
        return self.writer.encoded()

    def _findings(self, timeline: Timeline | None) -> None:
        diagnosis, writer = self.diagnosis, self.writer
        top = writer.track("findings", description=plain(diagnosis.headline))
        last = timeline.end if timeline is not None else diagnosis.job.last_time
        begin = timeline.start if timeline is not None else (diagnosis.job.first_time or self.t0)
        title = f"{self.scene.texts.verdict(diagnosis.verdict)}: {plain(diagnosis.headline)}"
        note = {"note": timeline.note} if timeline is not None and timeline.note else {}
        writer.instant(top, begin - self.t0, title, note)
        if note:
            writer.instant(top, begin - self.t0, timeline.note if timeline is not None else "")
        for finding in diagnosis.findings:
            window = finding.window
            if window is None:
                continue
            track = writer.track(f"{plain(finding.id)} {finding.severity.name} {finding.kind.value}", top)
            end = window.end if window.end is not None else None
            if end is None and finding.kind.verdict is not Verdict.HANG:
                end = last
            writer.slice(
                track,
                window.start - self.t0,
                None if end is None else end - self.t0,
                plain(finding.summary),
                self._reasons(finding),
            )

    def _reasons(self, finding: Finding) -> Arguments:
        named: dict[str, str | Sequence[str]] = {
            "culprit": culprit_lines(self.scene, finding),
            "confidence": confidence(self.scene, finding),
            "status": self.scene.texts.status(finding.status),
            "why": [plain(item.text) for item in finding.evidence],
            "not": [plain(item) for item in finding.exonerated],
            "chain": [plain(item) for item in finding.chain],
            "do": plain(finding.remedy),
        }
        return {key: value for key, value in named.items() if value}

    def _iterations(self, timeline: Timeline) -> None:
        if not len(timeline.iteration):
            return
        track = self.writer.track("iterations")
        before = 0
        columns = (timeline.iteration, timeline.iteration_start, timeline.iteration_end)
        for number, start, end in zip(*(column.tolist() for column in columns), strict=True):
            begin = max(start - self.t0, before)
            before = max(end - self.t0, begin)
            seconds = (end - start) / 1e9
            self.writer.slice(track, begin, before, f"iteration {number}", {"length": f"{seconds:.3f} s"})

    def _critical(self, tasks: Tasks) -> None:
        """One slice a task of the path, of the first rank of the group that is on it."""
        at = np.flatnonzero(tasks.critical & (tasks.end != UNSEEN))
        at = at[np.argsort(tasks.start[at], kind="stable")]
        if not len(at):
            return
        track = self.writer.track(
            "critical path", description="the tasks that made each iteration as long as it was"
        )
        seen: set[tuple[int, ...]] = set()
        before = 0
        for i in at.tolist():
            key = (
                int(tasks.iteration[i]), int(tasks.stage[i]), int(tasks.micro_batch[i]), int(tasks.phase[i])
            )  # fmt: skip
            if key in seen:
                continue
            seen.add(key)
            start = max(int(tasks.start[i]) - self.t0, before)
            before = max(int(tasks.end[i]) - self.t0, start)
            self.writer.slice(
                track, start, before, f"stage {tasks.stage[i]} {_task_name(tasks, i)}", _task_args(tasks, i)
            )

    def _ranks(self, timeline: Timeline) -> None:
        flows = _flows(timeline)
        blamed = self._blamed()
        ranks = timeline.ranks.tolist()
        waiting = {rank for item in self.diagnosis.findings[:1] for rank in item.victims}
        group = 0
        for rank in sorted(ranks, key=lambda rank: (rank not in blamed, rank)):
            name = " · ".join(place_parts(self.scene, rank))
            if rank in blamed:
                track = self.writer.track(f"culprit: {name} ({blamed[rank]})")
            else:
                group = group or self.writer.track("ranks" if not blamed else "other ranks")
                track = self.writer.track(name, group)
            self._phases(timeline.tasks, track, rank)
            rows = timeline.events.rows_of(rank)
            self._calls(timeline, track, rows, flows)
            self._waits(timeline, track, rank, rank in waiting)

    def _blamed(self) -> dict[int, str]:
        """Why a rank is to blame, in two words."""
        blamed: dict[int, str] = {}
        for finding in self.diagnosis.findings:
            for rank in finding.culprits.ranks:
                one = "one of: " if finding.ambiguous else ""
                blamed.setdefault(rank, one + self.scene.texts.kind(finding.kind))
        return blamed

    def _calls(self, timeline: Timeline, track: int, rows: slice, flows: dict[int, tuple[int, bool]]) -> None:
        """Host calls as instants; where devices were seen, their work as slices that carry the arrows."""
        events = timeline.events
        if rows.start == rows.stop:
            return
        device = events.start is not None
        calls = self.writer.track("calls", track)
        enqueue = events.enqueue[rows] - self.t0
        names = _names(timeline, rows)
        for offset in np.argsort(enqueue, kind="stable").tolist():
            row = rows.start + offset
            flow, last = (0, False) if device else flows.get(row, (0, False))
            self.writer.instant(
                calls, int(enqueue[offset]), names[offset], _call_args(events, row), flow=flow, last=last
            )
        if device:
            self._device(timeline, track, rows, names, flows)

    def _device(
        self,
        timeline: Timeline,
        track: int,
        rows: slice,
        names: Sequence[str],
        flows: dict[int, tuple[int, bool]],
    ) -> None:
        events = timeline.events
        assert events.start is not None  # the caller has looked
        start = events.start[rows]
        end = np.full(len(start), UNSEEN) if events.end is None else events.end[rows]
        stream = np.zeros(len(start), np.uint64) if events.stream is None else events.stream[rows]
        for number, handle in enumerate(np.unique(stream).tolist()):
            at = np.flatnonzero((stream == handle) & (start != UNSEEN))
            at = at[np.argsort(start[at], kind="stable")]
            for lane, members in enumerate(_lanes(start[at].tolist(), end[at].tolist())):
                more = f" ({lane + 1})" if lane else ""
                device = self.writer.track(f"device, stream {number}{more}", track)
                for i in members:
                    k = int(at[i])
                    flow, last = flows.get(rows.start + k, (0, False))
                    self.writer.slice(
                        device,
                        int(start[k]) - self.t0,
                        None if end[k] == UNSEEN else int(end[k]) - self.t0,
                        names[k],
                        _call_args(events, rows.start + k),
                        flow=flow,
                        last=last,
                    )

    def _phases(self, tasks: Tasks, track: int, rank: int) -> None:
        """On the rank's own track, so that it shows them while it is folded."""
        at = _of(tasks, rank)
        lanes = _lanes(tasks.start[at].tolist(), tasks.end[at].tolist())
        for lane, members in enumerate(lanes):
            phases = track if not lane else self.writer.track(f"phases ({lane + 1})", track)
            for i in members:
                k = int(at[i])
                end = None if tasks.end[k] == UNSEEN else int(tasks.end[k]) - self.t0
                self.writer.slice(
                    phases, int(tasks.start[k]) - self.t0, end, _task_name(tasks, k), _task_args(tasks, k)
                )

    def _waits(self, timeline: Timeline, track: int, rank: int, victim: bool) -> None:
        """Waiting for inputs; in a hang, from the last call on."""
        tasks = timeline.tasks
        at = _of(tasks, rank)
        at = at[tasks.wait[at] > 0]
        waits: list[tuple[int, int | None, str]] = [
            (int(tasks.start[k] - tasks.wait[k]), int(tasks.start[k]), f"waits for {_task_name(tasks, k)}")
            for k in at.tolist()
        ]
        finding = self.diagnosis.findings[0] if self.diagnosis.findings else None
        stands = finding is not None and finding.kind.verdict is Verdict.HANG
        if finding is not None and stands and finding.status is Status.ONGOING and victim:
            place = int(np.searchsorted(timeline.ranks, np.int32(rank)))
            waits.append((int(timeline.last_call[place]), None, f"waits since: {finding.kind.value}"))
        if not waits:
            return
        waiting = self.writer.track("waits", track)
        before = 0
        for start, end, name in sorted(waits, key=lambda item: item[0]):
            begin = max(start - self.t0, before)
            if end is None:
                self.writer.begin(waiting, begin, name)
            elif end - self.t0 > begin:
                before = end - self.t0
                self.writer.slice(waiting, begin, before, name)


def _of(tasks: Tasks, rank: int) -> NDArray[np.intp]:
    at = slice(*np.searchsorted(tasks.rank, [rank, rank + 1]).tolist())
    return np.arange(at.start, at.stop)


def _lanes(starts: Sequence[int], ends: Sequence[int]) -> list[list[int]]:
    """Intervals (ascending by start) shared out so that none overlaps its predecessor; UNSEEN never ends."""
    lanes: list[list[int]] = []
    free: list[int] = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        lane = next((k for k, until in enumerate(free) if until <= start), len(lanes))
        if lane == len(lanes):
            lanes.append([])
            free.append(0)
        lanes[lane].append(i)
        free[lane] = NEVER if end == UNSEEN else max(end, start)
    return lanes


def _flows(timeline: Timeline) -> dict[int, tuple[int, bool]]:
    """row → (number of its arrow, whether the arrow ends there)."""
    flows: dict[int, tuple[int, bool]] = {}
    pairs = zip(timeline.senders.tolist(), timeline.receivers.tolist(), strict=True)
    for number, (sender, receiver) in enumerate(pairs, start=1):
        flows[sender], flows[receiver] = (number, False), (number, True)
    return flows


def _names(timeline: Timeline, rows: slice) -> list[str]:
    """What each call is: "ALL_REDUCE of TP group 1 of stage 0", "SEND to rank 5"."""
    events = timeline.events
    size = rows.stop - rows.start
    comms = [NO_COMM] * size if events.comm is None else events.comm[rows].tolist()
    peers = [NO_PEER] * size if events.peer is None else events.peer[rows].tolist()
    known: dict[tuple[int, int, int], str] = {}
    names: list[str] = []
    for op, comm, peer in zip(events.op[rows].tolist(), comms, peers, strict=True):
        key = (op, comm, peer)
        if key not in known:
            known[key] = _name(timeline, *key)
        names.append(known[key])
    return names


def _name(timeline: Timeline, op: int, comm: int, peer: int) -> str:
    word = Op(op).name if op in Op._value2member_map_ else f"op {op}"
    if peer != NO_PEER:
        return f"{word} {'to' if op == Op.SEND else 'from'} rank {peer}"
    name = timeline.communicators[comm] if 0 <= comm < len(timeline.communicators) else None
    return f"{word} of {plain(name)}" if name else word


def _call_args(events: Events, row: int) -> Arguments:
    found: dict[str, int | str] = {}
    if events.seq[row] != NO_SEQ:
        found["seq"] = int(events.seq[row])
    if events.count is not None and events.count[row] != NO_COUNT:
        found["count"] = int(events.count[row])
    if events.nbytes is not None and events.nbytes[row] != NO_COUNT:
        found["bytes"] = int(events.nbytes[row])
    if events.start is not None and events.start[row] == UNSEEN:
        found["state"] = "not started on the device"
    elif events.end is not None and events.end[row] == UNSEEN:
        found["state"] = "started, not completed"
    return found


def _task_name(tasks: Tasks, index: int) -> str:
    phase = _PHASES[int(tasks.phase[index])]
    micro_batch = int(tasks.micro_batch[index])
    return "work" if micro_batch < 0 else f"{phase.value} {micro_batch}"


def _task_args(tasks: Tasks, index: int) -> Arguments:
    found: dict[str, int | str] = {"iteration": int(tasks.iteration[index])}
    if tasks.micro_batch[index] >= 0:
        found["micro-batch"] = int(tasks.micro_batch[index])
    if tasks.critical[index]:
        found["critical"] = "on the critical path"
    if tasks.end[index] == UNSEEN:
        found["state"] = "not finished"
    return found
