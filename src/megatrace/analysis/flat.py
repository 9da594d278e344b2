"""Iterations without a pipeline: data parallel, FSDP, ZeRO-3, tensor parallel on one stage.

There is one stage and no Send that would end a task, so the iteration is one task. With start and end times a
rank's own work is the iteration less all its waiting in collectives: what it spent in each beyond what its
last member to come spent there. With host times only, the span from the first heavy call to the anchor is the
tensor group's; where hosts run ahead of their devices through the whole iteration it shows nothing, and the
verdict says so.

The result has the shape of a pipeline of one stage and one micro-batch whose backward is empty, so that
everything downstream is the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.phases import PhaseTable, Slices
from megatrace.analysis.templates import CallString, TaskMap
from megatrace.analysis.work import WorkTable, iteration_times, tabulate_work
from megatrace.model.events import UNSEEN
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Schedule
from megatrace.model.trace import Observable

F8 = NDArray[np.float64]
ONE_TASK = Schedule(ScheduleKind.ONE_F_ONE_B, 1, 1)


def tabulate_flat(resolved: Resolved, slices: Slices) -> PhaseTable:
    """One task an iteration: from its first heavy call to its anchor."""
    layout, it = resolved.layout, resolved.iterations
    if layout is None or it is None:
        raise ValueError("phases need a layout and iterations")
    shape = (layout.world_size, it.count, 2)
    columns = {name: np.full(shape, -1, np.int64) for name in ("begin", "end", "recv", "send", "last")}
    start_row = np.full(shape[:2], -1, np.int64)
    string_of = np.full(shape[:2], -1, np.int32)
    maps: dict[int, TaskMap] = {}
    slices = replace(slices, strings=tuple(replace(string, flat=True) for string in slices.strings))
    for i, string in enumerate(slices.strings):
        maps[i] = task_map = _map(string)
        chosen = np.flatnonzero(slices.string == i)
        ranks, numbers, starts = slices.rank[chosen], slices.number[chosen], slices.start[chosen]
        start_row[ranks, numbers] = starts
        string_of[ranks, numbers] = i
        for name, column in columns.items():
            position = getattr(task_map, name)
            column[ranks, numbers] = np.where(position >= 0, starts[:, None] + position[None, :], -1)
    return PhaseTable(
        schedule=ONE_TASK,
        fit=1.0,
        slices=slices,
        maps=maps,
        stage=layout.stages(),
        start_row=start_row,
        string_of=string_of,
        tasks=(ONE_TASK.tasks(0),),
        **columns,
    )


def _map(string: CallString) -> TaskMap:
    none = np.full(2, -1, np.int32)
    begin, end, last = none.copy(), none.copy(), none.copy()
    inner = np.flatnonzero(string.inner)
    if len(inner):
        # The anchor comes when the slowest has come; the last call before it when this group has.
        begin[0], last[0], end[0] = inner[0], inner[-1], inner[-1]
    return TaskMap(ONE_TASK.tasks(0), begin, end, none.copy(), none.copy(), last)


def tabulate_flat_work(resolved: Resolved, phases: PhaseTable) -> WorkTable:
    """The work table of a job without a pipeline."""
    table = tabulate_work(resolved, phases)
    zero = np.zeros_like(table.group[..., :1])
    events = resolved.trace.events
    if not resolved.trace.coverage.has(Observable.START, Observable.END) or events.end is None:
        group = np.concatenate([table.group[..., :1], zero], axis=-1)
        return _replaced(table, None, group, None)
    waited = _waiting(resolved, phases, table.grid)
    iteration, _ = iteration_times(resolved, table.t0)
    own = iteration[:, None, None, None] - waited
    own = np.stack([own, np.where(np.isnan(own), np.nan, 0.0)], axis=-1)
    group = np.fmax.reduce(own, axis=3)
    return _replaced(table, own, group, np.zeros_like(own))


def _replaced(table: WorkTable, own: F8 | None, group: F8, comm: F8 | None) -> WorkTable:
    nothing = np.full_like(table.transfer, np.nan)
    return replace(table, own=own, group=group, comm=comm, wait=nothing, transfer=nothing)


def _waiting(resolved: Resolved, phases: PhaseTable, grid: NDArray[np.int32]) -> F8:
    """float64 [K, S, D, M]: seconds that each rank waited in collectives of an iteration."""
    events = resolved.trace.events
    iterations = phases.string_of.shape[1]
    waited = np.full((iterations, *grid.shape), np.nan)
    if events.start is None or events.end is None or events.comm is None:
        return waited
    spent = np.where(
        (events.start == UNSEEN) | (events.end == UNSEEN), np.nan, (events.end - events.start) / 1e9
    )
    ranks = grid.reshape(-1)
    for k in range(iterations):
        strings = phases.string_of[ranks, k]
        if not np.any(strings >= 0):
            continue
        index = int(np.bincount(strings[strings >= 0]).argmax())
        chosen = np.flatnonzero(strings == index)
        length = len(phases.slices.strings[index].op)
        at = phases.start_row[ranks[chosen], k][:, None] + np.arange(length)[None, :]
        wait = _beyond_last_member(spent[at], events.comm[at])
        total = np.full(len(ranks), np.nan)
        total[chosen] = np.nansum(wait, axis=1)
        waited[k] = total.reshape(grid.shape)
    return waited


def _beyond_last_member(spent: F8, comm: NDArray[np.int32]) -> F8:
    """[ranks, calls]: time in each call beyond the least that any member of its communicator spent there.

    Calls stand at the same position on all ranks; columns with the same communicators are reduced together.
    """
    result = np.zeros_like(spent)
    patterns, pattern = np.unique(comm, axis=1, return_inverse=True)
    for i in range(patterns.shape[1]):
        columns = np.flatnonzero(pattern.reshape(-1) == i)
        _, group = np.unique(patterns[:, i], return_inverse=True)
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        least = np.fmin.reduceat(spent[order][:, columns], starts, axis=0)[group]
        result[:, columns] = spent[:, columns] - least
    return result
