"""Iterations without a pipeline: data parallel, FSDP, ZeRO-3, tensor parallel on one stage.

There is one stage and no Send that would end a task, so the iteration is one task. With start and end times a
rank's own work is the iteration less all its waiting in collectives: what it spent in each beyond what its
last member to come spent there, overlapping waits counted once. With host times only, the span from the first
heavy call to the last is the tensor group's; where hosts run ahead of their devices through the whole
iteration it shows nothing, and the verdict says so. Without tensor groups hosts wait for everybody's devices,
so only what a rank spends beyond the others counts.

A host that comes late to the first heavy call, and by no more to any later one, loaded data or wrote a
checkpoint before: that is its entry and not its work. Evaluations (other heavy calls) are left out, and what
all ranks spend in a lone iteration beyond the usual (a checkpoint of all) is taken off it.

The result has the shape of a pipeline of one stage and one micro-batch whose backward is empty, so that
everything downstream is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import usual_time
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.phases import PhaseTable, Slices
from megatrace.analysis.reductions import least_of_members, median
from megatrace.analysis.roles import Role
from megatrace.analysis.templates import CallString, TaskMap
from megatrace.analysis.work import WorkTable, iteration_times, tabulate_work
from megatrace.model.events import UNSEEN, Op
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Schedule
from megatrace.model.trace import Observable

F8 = NDArray[np.float64]
ONE_TASK = Schedule(ScheduleKind.ONE_F_ONE_B, 1, 1)


# A lateness at the first heavy call is loading if later calls, and the rank's work, add at most this share.
GROWS = 0.2
# ... and, where only host times are known, if it is at least this share of what the iteration is longer.
EXPLAINS = 0.5
# Host pace from which a host is starved and not late.
STARVED = 1.5
# A host whose calls wait for the device for more than so many calls' time is not what limits the job.
AHEAD = 2.0
# A checkpoint is written every so many iterations: what all ranks spend in a lone one, from this share on.
PAUSE = 0.05


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
    training = _training(slices)
    for i, string in enumerate(slices.strings):
        if i not in training:
            continue
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


def _training(slices: Slices) -> set[int]:
    """Strings with the commonest heavy calls: evaluations have others, logging and checkpoints light ones."""
    numbers = np.bincount(slices.string, minlength=len(slices.strings))
    key = [_heavy_calls(string) for string in slices.strings]
    total: dict[tuple[bytes, bytes], int] = {}
    for i, number in enumerate(numbers):
        total[key[i]] = total.get(key[i], 0) + int(number)
    return {i for i in range(len(key)) if total[key[i]] == max(total.values())}


def _heavy_calls(string: CallString) -> tuple[bytes, bytes]:
    """Operations and sizes of the heavy calls; sizes that depend on data do not count."""
    uneven = (string.op == Op.ALL_TO_ALL) | (string.role == Role.EXPERT)
    count = np.where(uneven, 0, string.count)
    return string.op[string.inner].tobytes(), count[string.inner].tobytes()


def _map(string: CallString) -> TaskMap:
    none = np.full(2, -1, np.int32)
    begin, end, last = none.copy(), none.copy(), none.copy()
    inner = _computing(string)
    if len(inner):
        # The anchor comes when the slowest has come; the last call before it when this group has.
        begin[0], last[0], end[0] = inner[0], inner[-1], inner[-1]
    return TaskMap(ONE_TASK.tasks(0), begin, end, none.copy(), none.copy(), last)


def _computing(string: CallString) -> NDArray[np.intp]:
    """Positions of the heavy calls from the first forward on, without parameters gathered before it."""
    heavy = np.flatnonzero(string.inner)
    tensor = np.flatnonzero(string.role[heavy] == Role.TENSOR)
    return heavy[tensor[0] :] if len(tensor) else heavy


def tabulate_flat_work(resolved: Resolved, phases: PhaseTable) -> WorkTable:
    """The work table of a job without a pipeline."""
    table = tabulate_work(resolved, phases)
    events = resolved.trace.events
    first, most = host_lateness(resolved, phases, table.grid)
    # A starved host is late as well, and at every call.
    pace = median(table.pace, 4)
    with np.errstate(invalid="ignore"):
        first = np.where(pace >= STARVED * _common(pace), 0.0, np.fmax(first, 0.0))
    iteration, _ = iteration_times(resolved, table.t0)
    if not resolved.trace.coverage.has(Observable.START, Observable.END) or events.end is None:
        group = table.group[..., 0]
        if table.grid.shape[2] == 1:
            # What all hosts spend more is somebody's device, and nobody knows whose.
            group = group - _common(group) + _typical(group)
        group = group - _lone_excess(group)
        longer = (iteration - usual_time(iteration))[:, None, None, None]
        loading = (most <= (1 + GROWS) * first) & ~(first < EXPLAINS * longer)
        group = np.stack([group, np.zeros_like(group)], axis=-1)
        before = _next(table.entry) if table.grid.shape[2] == 1 else table.entry
        return _replaced(table, None, group, None, np.fmax(before, np.where(loading, first, 0.0)))
    own = iteration[:, None, None, None] - _waiting(resolved, phases, table.grid)
    pause = _lone_excess(own)
    own = own - pause
    beyond = np.fmax(own - _common(own), 0.0)
    late = np.where(beyond <= (1 + GROWS) * first, np.minimum(first, beyond), 0.0)
    entry = np.fmax(table.entry, late)
    own = own - np.minimum(np.nan_to_num(entry), beyond)
    own = np.stack([own, np.where(np.isnan(own), np.nan, 0.0)], axis=-1)
    table = replace(
        table,
        iteration=table.iteration - np.nan_to_num(pause.reshape(-1)),
        pace=_pace_of_limiting_hosts(resolved, phases, table),
    )
    return _replaced(table, own, np.fmax.reduce(own, axis=3), np.zeros_like(own), entry)


def _pace_of_limiting_hosts(resolved: Resolved, phases: PhaseTable, table: WorkTable) -> F8:
    """``table.pace``, no more than usual where a host was ahead of its device: a full queue stops it."""
    events = resolved.trace.events
    pace, ranks = np.array(table.pace), table.grid.reshape(-1)
    if events.start is None:
        return pace
    for k, index, chosen in _usual_strings(phases, ranks):
        # Later ones also wait for the calls before them on their own stream.
        first = _computing(phases.slices.strings[index])[:1]
        if not len(first):
            continue
        at = phases.start_row[ranks[chosen], k] + first
        ahead = np.full(len(ranks), np.nan)
        ahead[chosen] = (events.start[at] - events.enqueue[at]) / 1e9
        with np.errstate(invalid="ignore"):
            busy = ahead.reshape(table.grid.shape)[..., None] > AHEAD * pace[k]
        usual = median(pace[k].reshape(1, -1), 1)
        pace[k] = np.where(busy, np.fmin(pace[k], usual), pace[k])
    return pace


def _common(values: F8) -> F8:
    """[K, 1…]: the median over all places, iteration by iteration."""
    return median(values.reshape(len(values), -1), 1).reshape(-1, *[1] * (values.ndim - 1))


def _typical(values: F8) -> float:
    """The median over iterations of what the places have in common."""
    return float(median(_common(values).reshape(-1), 0))


def _lone_excess(values: F8) -> F8:
    """[K, 1…]: what the median place spends beyond the usual where neighbours are usual, else 0."""
    middle = _common(values).reshape(-1)
    usual = float(median(middle, 0))
    excess = np.nan_to_num(middle - usual)
    long = excess >= PAUSE * usual
    lone = long & ~np.append(long[1:], False) & ~np.append(False, long[:-1])
    return np.where(lone, excess, 0.0).reshape(-1, *[1] * (values.ndim - 1))


def _next(values: F8) -> F8:
    """[K, …]: of each iteration the value of the following one, NaN for the last."""
    return np.concatenate([values[1:], np.full_like(values[:1], np.nan)])


def host_lateness(resolved: Resolved, phases: PhaseTable, grid: NDArray[np.int32]) -> tuple[F8, F8]:
    """(to the first heavy call, the most to any call of the iteration), float64 [K, S, D, M].

    Seconds by which each host made its calls later than the median rank; NaN where it was not seen. The
    bookkeeping before the first heavy call counts to the iteration that it closes, where hosts go on to it
    without their devices (one rank a group).
    """
    enqueue = resolved.trace.events.enqueue
    iterations, ranks = phases.string_of.shape[1], grid.reshape(-1)
    before, first, most = (np.full((iterations, *grid.shape), np.nan) for _ in range(3))
    for k, index, chosen in _usual_strings(phases, ranks):
        heavy = _computing(phases.slices.strings[index])
        if not len(heavy):
            continue
        called = enqueue[phases.start_row[ranks[chosen], k][:, None] + np.arange(heavy[-1] + 1)[None, :]]
        late = (called - np.median(called, axis=0)) / 1e9
        light = late[:, : heavy[0]].max(axis=1, initial=-np.inf)
        for table, value in (
            (before, np.where(np.isfinite(light), light, np.nan)),
            (first, late[:, heavy[0]]),
            (most, late[:, heavy[0] :].max(axis=1)),
        ):
            row = np.full(len(ranks), np.nan)
            row[chosen] = value
            table[k] = row.reshape(grid.shape)
    return first, np.fmax(most, _next(before) if grid.shape[2] == 1 else before)


def _usual_strings(
    phases: PhaseTable, ranks: NDArray[np.int32]
) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    """(iteration, its commonest string, the places that have it)."""
    for k in range(phases.string_of.shape[1]):
        strings = phases.string_of[ranks, k]
        if np.any(strings >= 0):
            index = int(np.bincount(strings[strings >= 0]).argmax())
            yield k, index, np.flatnonzero(strings == index)


def _replaced(table: WorkTable, own: F8 | None, group: F8, comm: F8 | None, entry: F8) -> WorkTable:
    nothing = np.full_like(table.transfer, np.nan)
    return replace(table, own=own, group=group, comm=comm, wait=nothing, transfer=nothing, entry=entry)


def _waiting(resolved: Resolved, phases: PhaseTable, grid: NDArray[np.int32]) -> F8:
    """float64 [K, S, D, M]: seconds of an iteration in which each rank waited in some collective."""
    events = resolved.trace.events
    waited = np.full((phases.string_of.shape[1], *grid.shape), np.nan)
    if events.start is None or events.end is None or events.comm is None:
        return waited
    start, end = (np.where(column == UNSEEN, np.nan, column / 1e9) for column in (events.start, events.end))
    ranks = grid.reshape(-1)
    for k, index, chosen in _usual_strings(phases, ranks):
        length = len(phases.slices.strings[index].op)
        at = phases.start_row[ranks[chosen], k][:, None] + np.arange(length)[None, :]
        spent = end[at] - start[at]
        wait = spent - least_of_members(spent, events.comm[at])
        total = np.full(len(ranks), np.nan)
        total[chosen] = _union(start[at], wait)
        waited[k] = total.reshape(grid.shape)
    return waited


def _union(start: F8, length: F8) -> F8:
    """[ranks]: length of what the intervals (columns) of each row cover; unknown ones count for nothing."""
    known = ~np.isnan(start + length)
    start, length = np.where(known, start, np.inf), np.where(known, length, 0.0)
    order = np.argsort(start, axis=1)
    start, length = (np.take_along_axis(values, order, axis=1) for values in (start, length))
    end = np.maximum.accumulate(np.where(np.isfinite(start), start + length, -np.inf), axis=1)
    covered = np.concatenate([np.full((len(start), 1), -np.inf), end[:, :-1]], axis=1)
    with np.errstate(invalid="ignore"):
        new = np.maximum(end - np.maximum(start, covered), 0.0)
    return np.asarray(np.nansum(np.where(np.isfinite(start), new, 0.0), axis=1))
