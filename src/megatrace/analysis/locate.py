"""Where in the job a call stands, also the calls of an iteration that was never finished.

Between two anchors the string of the slice says it. After the last anchor a rank's calls are the beginning of
its stage's usual string: the position within it names the task, and, one beyond the last recorded call, the
call that the rank would have made next. The same positions give the partner of Sends and Recvs that a log
leaves out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.flat_places import FlatPlace, flat_places
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.phases import PhaseTable, main_strings
from megatrace.analysis.roles import Role
from megatrace.analysis.templates import CallString, TaskMap
from megatrace.analysis.work import task_of_position
from megatrace.model.events import NO_PEER, Op
from megatrace.model.finding import Where
from megatrace.model.layout import Axis, ParallelLayout, Place
from megatrace.model.schedule import Phase
from megatrace.model.trace import Communicator, Observable, Trace

# Share of the calls after the last anchor that must be those of the stage's string for a position to mean
# anything.
PREFIX = 0.9


class Locator:
    """Places calls of a resolved trace in the job. Empty ``Where`` where that is not known."""

    def __init__(self, resolved: Resolved, phases: PhaseTable | None) -> None:
        self.resolved, self.phases = resolved, phases
        self._mains = main_strings(phases.slices, phases.schedule.pp) if phases is not None else []
        self._tasks: dict[int, NDArray[np.int64]] = {}
        self._flat: dict[int, tuple[FlatPlace, ...]] = {}
        it = resolved.iterations
        self._anchor_rows = it.row if it is not None else np.empty(0, np.int64)

    def where(self, rank: int, call: int) -> Where:
        """The ``call``-th recorded call of a rank (from 0); one beyond the last is the one it would make
        next."""
        stage = self.resolved.stage_of(rank)
        it = self.resolved.iterations
        if it is None:
            return Where(stage=stage)
        part = self.resolved.trace.events.rows_of(rank)
        row = part.start + call
        index = int(np.searchsorted(self._anchor_rows, row, "left"))
        first = int(np.searchsorted(it.rank, np.asarray(rank, it.rank.dtype), "left"))
        last = int(np.searchsorted(it.rank, np.asarray(rank, it.rank.dtype), "right"))
        if index < last and index > first:
            return self._inside(stage, rank, row, index)
        if index >= last > first:
            return self._after(stage, rank, row, int(it.row[last - 1]) + 1, int(it.number[last - 1]) + 1)
        if index < last and self.phases is not None and it.start[index] >= 0 and row >= it.start[index]:
            return self._inside(stage, rank, row, index)
        return Where(stage=stage, iteration=0 if it.absolute else None)

    def _inside(self, stage: int | None, rank: int, row: int, index: int) -> Where:
        it = self.resolved.iterations
        assert it is not None  # the caller has one
        number = int(it.number[index])
        if self.phases is None or it.start[index] < 0 or rank >= len(self.phases.string_of):
            return Where(stage=stage, iteration=number)
        string = int(self.phases.string_of[rank, number])
        if string < 0:
            return Where(stage=stage, iteration=number)
        return self._position(stage, number, string, row - int(it.start[index]))

    def _after(self, stage: int | None, rank: int, row: int, start: int, number: int) -> Where:
        string = self._mains[stage] if stage is not None and stage < len(self._mains) else None
        if string is None or not self._is_prefix(string, start, row):
            return Where(stage=stage, iteration=number)
        found = self._position(stage, number, string, row - start)
        return replace(found, peer=self._usual_peer(rank, string, row - start))

    def _usual_peer(self, rank: int, string: int, position: int) -> int | None:
        """With whom the rank exchanged the message at this position in the last iteration that was whole."""
        events = self.resolved.trace.events
        if self.phases is None or events.peer is None or rank >= len(self.phases.string_of):
            return None
        same = np.flatnonzero(self.phases.string_of[rank] == string)
        if not len(same) or not 0 <= position < len(self.phases.slices.strings[string].op):
            return None
        peer = int(events.peer[int(self.phases.start_row[rank, same[-1]]) + position])
        return None if peer == NO_PEER else peer

    def _is_prefix(self, string: int, start: int, stop: int) -> bool:
        if self.phases is None or string not in self.phases.maps:
            return False
        calls = self.phases.slices.strings[string]
        length = stop - start
        if length > len(calls.op):
            return False
        if length == 0:
            return True
        same = self.resolved.trace.events.op[start:stop] == calls.op[:length]
        return bool(same.mean() >= PREFIX)

    def tasks_after(
        self, rank: int, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """(task of each of the rows ``start:stop``, −1 outside of tasks; calls of each task when it is whole)
        of an iteration that a rank began and did not finish. None where its calls are not the usual ones."""
        stage = self.resolved.stage_of(rank)
        string = self._mains[stage] if stage is not None and stage < len(self._mains) else None
        if string is None or self.phases is None or not self._is_prefix(string, start, stop):
            return None
        tasks = position_tasks(self.phases.slices.strings[string], self.phases.maps[string])
        size = len(self.phases.maps[string].tasks)
        return tasks[: stop - start], np.bincount(tasks[tasks >= 0], minlength=size)

    def _position(self, stage: int | None, number: int, string: int, position: int) -> Where:
        if self.phases is None:
            return Where(stage=stage, iteration=number)
        calls, task_map = self.phases.slices.strings[string], self.phases.maps.get(string)
        if task_map is None or not 0 <= position < len(calls.op):
            return Where(stage=stage, iteration=number)
        op = Op(int(calls.op[position])).name
        if calls.flat:
            if string not in self._flat:
                self._flat[string] = flat_places(calls)
            flat = self._flat[string][position]
            return Where(stage=stage, iteration=number, micro_batch=flat.micro_batch, phase=flat.phase, op=op)
        if string not in self._tasks:
            self._tasks[string] = position_tasks(calls, task_map)
        task = int(self._tasks[string][position])
        if task < 0:
            first_task = int(np.flatnonzero(self._tasks[string] >= 0)[0])
            phase = Phase.OTHER if position < first_task else Phase.SYNC
            return Where(stage=stage, iteration=number, phase=phase, op=op)
        found = task_map.tasks[task]
        return Where(stage=stage, iteration=number, micro_batch=found.micro_batch, phase=found.phase, op=op)


def position_tasks(string: CallString, task_map: TaskMap) -> NDArray[np.int64]:
    """int64 [L]: the task that each call belongs to, its Recv and its Send included; -1 outside of tasks."""
    tasks = task_of_position(string, task_map)
    for column in (task_map.recv, task_map.send):
        known = np.flatnonzero(column >= 0)
        tasks[column[known]] = known
    return tasks


def with_peers(resolved: Resolved, phases: PhaseTable | None) -> Trace:
    """The trace with the partner of every pipeline Send and Recv whose position tells it.

    The n-th Send or Recv of an iteration is the n-th of the schedule; on the first and the last stage there
    is but one neighbour. Sources that observe peers are left alone.
    """
    trace, layout = resolved.trace, resolved.layout
    events = trace.events
    if layout is None or layout.pp < 2 or trace.coverage.has(Observable.PEER):
        return trace
    peer = np.full(len(events), NO_PEER, np.int32)
    pipeline = resolved.role == Role.PIPELINE
    it = resolved.iterations
    ranks, bounds = events.offsets()
    grid = layout.grid()
    for i, rank in enumerate(int(r) for r in ranks):
        if rank >= layout.world_size:
            continue
        rows = np.flatnonzero(pipeline[bounds[i] : bounds[i + 1]]) + int(bounds[i])
        if not len(rows):
            continue
        place = layout.place(rank)
        stages = _peer_stages(place, phases, resolved, rank, rows) if it is not None else None
        if stages is None:
            stages = np.full(len(rows), _only_neighbour(layout, place.stage))
        known = stages >= 0
        peer[rows[known]] = grid[stages[known], place.dp, place.cp, place.tp]
    return replace(trace, events=events.with_columns(peer=peer))


def _only_neighbour(layout: ParallelLayout, stage: int) -> int:
    if layout.pp == 2:
        return 1 - stage
    return -1 if 0 < stage < layout.pp - 1 or layout.vpp > 1 else (1 if stage == 0 else layout.pp - 2)


def _peer_stages(
    place: Place,
    phases: PhaseTable | None,
    resolved: Resolved,
    rank: int,
    rows: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """int64 [rows]: the stage at the other end of each, -1 unknown."""
    it = resolved.iterations
    if phases is None or it is None:
        return None
    program = [step for step in phases.schedule.program(place.stage) if step.peer is not None]
    wanted = np.asarray([Op.SEND if step.action.is_send else Op.RECV for step in program], np.uint8)
    peers = np.asarray([step.peer for step in program], np.int64)
    anchors = it.row[it.rank == rank] if len(it.rank) < 4096 else _anchors(it.rank, it.row, rank)
    iteration = np.searchsorted(anchors, rows, "left")
    complete = np.flatnonzero(np.diff(iteration, prepend=-1))
    order = np.arange(len(rows)) - np.repeat(complete, np.diff(np.append(complete, len(rows))))
    fits = order < len(program)
    result = np.full(len(rows), -1, np.int64)
    result[fits] = peers[order[fits]]
    ops = resolved.trace.events.op[rows]
    odd = ~fits
    odd[fits] = ops[fits] != wanted[order[fits]]
    for k in np.unique(iteration[odd]):
        chosen = np.flatnonzero(iteration == k)
        result[chosen] = _repaired(ops[chosen], wanted, peers)
    return result


def _anchors(ranks: NDArray[np.int32], rows: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
    key = np.asarray(rank, ranks.dtype)
    return rows[np.searchsorted(ranks, key, "left") : np.searchsorted(ranks, key, "right")]


def _repaired(
    ops: NDArray[np.uint8], wanted: NDArray[np.uint8], peers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64 [ops]: stages at the other end in an iteration whose calls do not start with the program's.

    An iteration whose beginning is lost, or before which an evaluation stands, is aligned at its end; what
    stands before the program stays unknown. Else the order inside batches differs: Sends follow each other as
    the program's do, and so do Recvs.
    """
    n = len(ops)
    if n <= len(wanted) and bool(np.all(wanted[len(wanted) - n :] == ops)):
        return peers[len(peers) - n :]
    result = np.full(n, -1, np.int64)
    for kind in (Op.SEND, Op.RECV):
        found, ordered = np.flatnonzero(ops == kind), peers[wanted == kind]
        usable = min(len(found), len(ordered))
        if n > len(wanted):
            result[found[len(found) - usable :]] = ordered[len(ordered) - usable :]
        else:
            result[found[:usable]] = ordered[:usable]
    return result


def communicator_names(
    communicators: tuple[Communicator, ...], layout: ParallelLayout | None
) -> tuple[str | None, ...]:
    """ "TP group 188 of stage 2" for communicators that are groups of an axis; else the source's own name."""
    if layout is None:
        return tuple(comm.name for comm in communicators)
    stage_of = layout.stages()
    index: dict[Axis, dict[int, int]] = {}
    names: list[str | None] = []
    for comm in communicators:
        if comm.name is not None or comm.axis is None or not comm.members:
            names.append(comm.name)
            continue
        if comm.axis is Axis.WORLD:
            names.append("the world group")
            continue
        if comm.axis not in index:
            groups = layout.groups(comm.axis)
            index[comm.axis] = {int(rank): i for i, group in enumerate(groups) for rank in group}
        number = index[comm.axis][comm.members[0]]
        stages = {int(stage_of[rank]) for rank in comm.members}
        place = f" of stage {stages.pop()}" if len(stages) == 1 and layout.pp > 1 else ""
        names.append(f"{comm.axis.value.upper()} group {number}{place}")
    return tuple(names)
