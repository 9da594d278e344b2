"""How long every forward and backward took, with waiting taken out.

Durations equalise by synchronisation: in a pipeline everybody's iteration is as long as the slowest one's.
What tells is *work*: the time from a task's inputs being there to its output being ready.

* With start and end times (recordings): from the end of the Recv to the start of the Send on the device, less
  the time spent in collectives inside the task waiting for other members. That is one rank's own work.
* With host times only (text logs): the host runs ahead inside a block of calls and waits for its device at
  the next Send or Recv, so "first call of the block → next Send or Recv" is the block's work, shared by its
  tensor group. (First → last call of a block shows nothing: the host enqueues it in a burst.) Which member of
  the group is to blame shows in the offset it carries through the bursts: one number per block, never summed
  over calls.

Everything is seconds; NaN where it was not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.exchanges import all_posted
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.iterations import closing_rows
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.reductions import (
    by_group,
    distinct,
    group_index,
    least_of_members,
    median,
    median_by_task,
    pace_by_task,
    sum_by_task,
)
from megatrace.analysis.roles import Role
from megatrace.analysis.stagger import group_work, stagger
from megatrace.analysis.templates import CallString, TaskMap
from megatrace.model.events import UNSEEN, Events
from megatrace.model.graph import IterationGraph
from megatrace.model.layout import Axis, ParallelLayout
from megatrace.model.trace import Observable

F8 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class WorkTable:
    """K iterations of S stages × D replicas × M members (tensor × context) × T tasks.

    grid        int32 [S, D, M]: the rank at each place
    begin, end  float64 [K, S, D, M, T]: when a task's inputs were there / its output was; seconds after
                ``t0``
    own         float64 [K, S, D, M, T]: own work of a rank; None where only the group's is known (host times)
    group       float64 [K, S, D, T]: work of the tensor group: what the pipeline waits for
    offset      float64 [K, S, D, M, T]: how much later than the first of its tensor group a rank called,
                median over the calls of a task
    pace        float64 [K, S, D, M, T]: host time per call inside a task, NaN for tasks of few calls; grows
                when the *host* is slow
    step_pace   float64 [K, S, D, M]: host time per call between the bookkeeping calls of an iteration, in
                which hosts seldom wait; for jobs whose tasks make no calls
    calls       float64 [S, T]: calls inside a task, 0 where none are made or seen
    comm        float64 [K, S, D, M, T]: time in collectives of the task after the last member came; None
                unless ``own``
    wait        float64 [K, S, D, M, T]: waiting for the input after having asked for it
    transfer    float64 [K, S, D, M, T]: from both sides being ready to the input being there; NaN without a
                Recv
    entry       float64 [K, S, D, M]: how late a rank came to a call between the previous anchor and its first
                task, against the other ranks of its stage (optimizer, checkpoint, data loading); the latest
                of them
    stagger     float64 [K, S, D, T]: what a group, together with the groups it exchanges data with inside the
                task, takes beyond its slowest member's work and the collectives; None unless ``own``
    sync        float64 [K, S, D, M]: time in gradient and parameter collectives after the last member of each
                came; None unless ``own``
    iteration   float64 [K]: iteration time (anchor to anchor, median over ranks);  anchor float64 [K]: when
                it ended
    """

    t0: int
    grid: NDArray[np.int32]
    begin: F8
    end: F8
    own: F8 | None
    group: F8
    offset: F8
    pace: F8
    step_pace: F8
    calls: F8
    comm: F8 | None
    wait: F8
    transfer: F8
    entry: F8
    stagger: F8 | None
    sync: F8 | None
    iteration: F8
    anchor: F8

    @property
    def by_rank(self) -> bool:
        """Whether the work of single ranks is known, not only of groups."""
        return self.own is not None


def iteration_times(resolved: Resolved, t0: int) -> tuple[F8, F8]:
    """(iteration time, anchor time) float64 [K], seconds: medians over the ranks that saw both anchors.

    Hosts of a data-parallel job enqueue the anchor while their devices still work; where only they are seen,
    the last of the bookkeeping calls after it tells when the iteration was over.
    """
    it, events, layout = resolved.iterations, resolved.trace.events, resolved.layout
    if it is None:
        return np.empty(0), np.empty(0)
    alone = layout is not None and layout.pp * layout.tp * layout.cp == 1
    rows = closing_rows(events, it.row) if alone and events.end is None else None
    times = (it.times(events, rows) - t0) / 1e9
    spans = np.diff(times, axis=1, prepend=np.nan)
    return median(spans, 0), median(times, 0)


def tabulate_work(resolved: Resolved, phases: PhaseTable) -> WorkTable:
    """Measure every task of every complete iteration."""
    layout = resolved.layout
    if layout is None or resolved.iterations is None:
        raise ValueError("work needs a layout and iterations")
    events = resolved.trace.events
    t0 = int(events.enqueue.min())
    completed = resolved.trace.coverage.has(Observable.START, Observable.END) and events.start is not None
    grid = layout.grid().reshape(layout.pp, layout.dp, layout.cp * layout.tp)
    measure = _Measure(resolved, phases, layout, t0, grid)
    begin, end = measure.device_bounds() if completed else measure.host_bounds()
    offset, inside, comm, pace = measure.inner_calls(completed)
    total = end - begin
    own = total - inside - comm if completed else None
    iteration, anchor = iteration_times(resolved, t0)
    if own is None:
        group = group_work(layout, grid, total)
    else:
        # The group's pace is its slowest member's work plus what the collectives themselves cost.
        group = np.fmax.reduce(own, axis=3) + median(comm, 3)
    wait, transfer = measure.inputs(begin, completed)
    return WorkTable(
        t0=t0,
        grid=grid,
        begin=begin,
        end=end,
        own=own,
        group=group,
        offset=offset,
        pace=pace,
        step_pace=measure.step_pace(),
        calls=measure.calls(),
        comm=comm if completed else None,
        wait=wait,
        transfer=transfer,
        entry=measure.entry(completed),
        stagger=stagger(layout, grid, total, own, comm) if own is not None else None,
        sync=measure.sync() if completed else None,
        iteration=iteration,
        anchor=anchor,
    )


BATCH = 4
"""Most Sends and Recvs in one batch: to and from either neighbour."""
STEP_CALLS = 4
"""Gaps between bookkeeping calls that show a pace; Megatron makes some 15 an iteration."""


def quartile(values: F8) -> F8:
    """[n, m] → [n]: the lower quartile of each row, NaN where the row has an unknown."""
    return np.asarray(np.sort(values, axis=1)[:, values.shape[1] // 4])


class _Measure:
    def __init__(
        self,
        resolved: Resolved,
        phases: PhaseTable,
        layout: ParallelLayout,
        t0: int,
        grid: NDArray[np.int32],
    ) -> None:
        self.resolved, self.phases, self.layout, self.t0, self.grid = resolved, phases, layout, t0, grid
        self.events: Events = resolved.trace.events
        self.enqueue = self._seconds(self.events.enqueue)
        self.start = self._seconds(self.events.start)
        self.finish = self._seconds(self.events.end)

    def _seconds(self, column: NDArray[np.int64] | None) -> F8:
        if column is None:
            return np.empty(0)
        return np.where(column == UNSEEN, np.nan, (column - self.t0) / 1e9)

    def _placed(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """[world, K, ...] → [K, S, D, M, ...]."""
        return np.moveaxis(table[self.grid], 3, 0)

    @staticmethod
    def _at(column: F8, rows: NDArray[np.int64]) -> F8:
        if not len(column):
            return np.full(rows.shape, np.nan)
        return np.where(rows >= 0, column[np.maximum(rows, 0)], np.nan)

    def host_bounds(self) -> tuple[F8, F8]:
        """(begin, end) from host times: first call of the block, and the call that ends it."""
        begin_rows, end_rows = self._placed(self.phases.begin), self._placed(self.phases.end)
        begin, end = self._at(self.enqueue, begin_rows), self._at(self.enqueue, end_rows)
        if self.layout.tp * self.layout.cp * self.layout.ep == 1:
            # No calls inside a task: its input is there when both sides have posted.
            recv = self._placed(self.phases.recv)
            begin = np.where(
                recv >= 0, np.maximum(self._at(self.enqueue, recv), self._sent(self.enqueue)), begin
            )
            previous = np.concatenate([np.full_like(end[..., :1], np.nan), end[..., :-1]], axis=-1)
            begin = np.where(np.isnan(begin) & (recv < 0), previous, begin)
            begin[..., 0] = self._all_called(begin[..., 0], end[..., 0], recv[..., 0])
        return begin, end

    @staticmethod
    def _all_called(begin: F8, end: F8, recv: NDArray[np.int64]) -> F8:
        """[K, S, D, M]: an opening task's begin, where nothing but the bookkeeping before it shows that.

        Who came earlier to that call waited in it for the stage's last rank, at a checkpoint say, unless it
        went on before that came. What all of the stage need longer than at their quickest was for the last of
        other stages, or for parameters that were still on their way.
        """
        opens = recv < 0
        last = np.fmax.reduce(begin, axis=(2, 3), keepdims=True)
        begin = np.where(opens & (last <= end), last, begin)
        if begin.shape[2] * begin.shape[3] < 2:
            return begin
        longer = end - begin - np.fmin.reduce(end - begin, axis=0)
        shared = np.fmin.reduce(longer, axis=(2, 3), keepdims=True)
        return np.asarray(np.where(opens, begin + np.maximum(np.nan_to_num(shared, nan=0.0), 0.0), begin))

    def device_bounds(self) -> tuple[F8, F8]:
        """(begin, end) from device times: the Recv's end or the task before, and the Send's start."""
        recv, send = self._placed(self.phases.recv), self._placed(self.phases.send)
        first, last = self._placed(self.phases.begin), self._placed(self.phases.last)
        received = self._at(self.finish, recv)
        last_end = self._at(self.finish, last)
        # Of two tasks in a row only the last is followed by Sends: the first one's leaves when both are done.
        closes = self._placed(self.phases.end)
        sends = (send >= 0) & (self.resolved.role[np.maximum(closes, 0)] == Role.PIPELINE)
        end = np.where(sends, self._at(self.start, send), last_end)
        end = np.where(np.isnan(end), self._at(self.start, self._placed(self.phases.end)), end)
        begin = np.fmax(received, self._free_again(end, first))
        # The first task of an iteration without a Recv follows whatever stands before it.
        lone = (first >= 0) & (last < 0)
        opening = np.where(lone, self._at(self.finish, first), self._at(self.start, first))
        begin = np.where(np.isnan(begin), opening, begin)
        return begin, end

    def _free_again(self, end: F8, first: NDArray[np.int64]) -> F8:
        """When the task before was over, and with it the exchange that the host waited for before this task.

        Megatron's hosts wait for every batch of Sends and Recvs: with a slow peer the next task begins late
        through no fault of this rank. Where its first call started before, nobody waited.
        """
        none = np.full_like(end[..., :1], np.nan)
        previous = np.concatenate([none, end[..., :-1]], axis=-1)
        sent = np.concatenate(
            [none, self._at(self.finish, self._placed(self.phases.send))[..., :-1]], axis=-1
        )
        exchanged = np.fmax(sent, self._exchange_before(first))
        started = self._at(self.start, first)
        waited = ~np.isnan(exchanged) & ~np.isnan(started) & (exchanged <= started)
        return np.where(waited, np.fmax(previous, exchanged), previous)

    def _exchange_before(self, first: NDArray[np.int64]) -> F8:
        """When the last of the Sends and Recvs directly before a task's first call ended; NaN without any."""
        ended = np.full(first.shape, np.nan)
        before = first > 0
        for back in range(1, BATCH + 1):
            row = np.maximum(first - back, 0)
            before &= (first >= back) & (self.resolved.role[row] == Role.PIPELINE)
            ended = np.fmax(ended, np.where(before, self._at(self.finish, row), np.nan))
        return ended

    def _sent(self, column: F8) -> F8:
        """[K, S, D, M, T]: the column's time at the Send that feeds each task, from the sender's row."""

        graph = IterationGraph.of(self.phases.schedule)
        send = self._at(column, self._placed(self.phases.send))
        k, s, d, m, t = send.shape
        flat = np.moveaxis(send, 4, 2).reshape(k, s * t, d, m)
        sender = graph.sender
        sent = np.where((sender >= 0)[None, :, None, None], flat[:, np.maximum(sender, 0)], np.nan)
        return np.moveaxis(sent.reshape(k, s, t, d, m), 2, 4)

    def inputs(self, begin: F8, completed: bool) -> tuple[F8, F8]:
        """(wait for the input, transfer after both sides were ready), seconds."""
        recv = self._placed(self.phases.recv)
        asked = self._at(self.start if completed else self.enqueue, recv)
        sent = self._sent(self.start if completed else self.enqueue)
        if self.phases.schedule.vpp > 1 and not completed:
            send = self._at(self.enqueue, self._placed(self.phases.send))
            sent = np.where(
                np.isnan(sent), sent, np.fmax(sent, all_posted(self.phases.schedule, send, asked))
            )
        # On the host an input's arrival shows only where the task that needs it is the next to run.
        arrived = self._at(self.finish, recv) if completed else np.where(self._next_to_run(), begin, np.nan)
        # Where the sender was not seen the transfer is unknown: the waiting may have been for it.
        return np.asarray(np.maximum(arrived - asked, 0.0)), np.asarray(arrived - np.maximum(asked, sent))

    def _next_to_run(self) -> NDArray[np.bool_]:
        """[K, S, D, M, T]: tasks with no calls of another task between their Recv and their first call."""
        recv, first = self._placed(self.phases.recv), self._placed(self.phases.begin)
        inner = np.isin(self.resolved.role, (Role.TENSOR, Role.CONTEXT, Role.EXPERT))
        before = np.concatenate([[0], np.cumsum(inner)])
        calls = before[np.maximum(first, 0)] - before[np.maximum(recv, 0)]
        return np.asarray((recv >= 0) & (first >= 0) & (calls == 0), dtype=np.bool_)

    def entry(self, completed: bool) -> F8:
        """[K, S, D, M]: lateness to the calls before the first task, against the stage's other ranks."""
        column = self.start if completed else self.enqueue
        entry = np.full((self.phases.begin.shape[1], *self.grid.shape), np.nan)
        for stage, k, rows, string, task_map in self._strings():
            # From the first Recv on, times say when its sender was ready, not when this rank was; without a
            # pipeline the first heavy call comes after work.
            first = min([max(int(task_map.begin[0]) - int(string.flat), 0), *string.p2p[:1] - 1])
            if first < 0:
                continue  # the iteration begins with its first Recv
            at = np.where(rows[:, None] >= 0, rows[:, None] + np.arange(first + 1)[None, :], -1)
            called = self._at(column, at)
            usual = median(called, 0) if len(called) > 2 else np.fmin.reduce(called, axis=0)
            entry[k, stage] = np.fmax.reduce(called - usual, axis=1).reshape(self.grid.shape[1:])
        return entry

    def step_pace(self) -> F8:
        """[K, S, D, M]: the shorter gaps between consecutive bookkeeping calls of an iteration."""
        pace = np.full((self.phases.begin.shape[1], *self.grid.shape), np.nan)
        for stage, k, rows, string, _ in self._strings():
            light = np.flatnonzero((string.role[1:] == Role.OTHER) & (string.role[:-1] == Role.OTHER))
            if len(light) < STEP_CALLS:
                continue
            at = np.where(rows[:, None] >= 0, rows[:, None] + light[None, :], -1)
            after = np.where(at >= 0, at + 1, -1)
            gaps = self._at(self.enqueue, after) - self._at(self.enqueue, at)
            pace[k, stage] = quartile(gaps).reshape(self.grid.shape[1:])
        return pace

    def sync(self) -> F8:
        """[K, S, D, M]: time in data-parallel collectives of an iteration after the last member had come."""
        result = np.full((self.phases.begin.shape[1], *self.grid.shape), np.nan)
        if self.events.comm is None:
            return result
        for stage, k, rows, string, _ in self._strings():
            positions = np.flatnonzero(string.role == Role.DATA)
            chosen = np.flatnonzero(rows >= 0)
            total = np.full(len(rows), np.nan)
            if len(positions) and len(chosen):
                at = rows[chosen, None] + positions[None, :]
                spent = self.finish[at] - self.start[at]
                total[chosen] = least_of_members(spent, self.events.comm[at]).sum(axis=1)
            result[k, stage] = total.reshape(self.grid.shape[1:])
        return result

    def _strings(self) -> Iterator[tuple[int, int, NDArray[np.int64], CallString, TaskMap]]:
        """(stage, iteration, first row of each rank or -1, string, map) wherever a stage was seen."""
        for stage in range(self.layout.pp):
            ranks = self.grid[stage].reshape(-1)
            for k in range(self.phases.begin.shape[1]):
                strings = self.phases.string_of[ranks, k]
                usable = strings[strings >= 0]
                if len(usable):
                    index = int(np.bincount(usable).argmax())
                    rows = np.where(strings == index, self.phases.start_row[ranks, k], -1)
                    yield stage, k, rows, self.phases.slices.strings[index], self.phases.maps[index]

    def inner_calls(self, completed: bool) -> tuple[F8, F8, F8, F8]:
        """(offset, waiting inside collectives, their own cost, host time per call), each [K, S, D, M, T]."""
        shape = (self.phases.begin.shape[1], *self.grid.shape, self.phases.begin.shape[2])
        offset, inside, comm, pace = (np.full(shape, np.nan) for _ in range(4))
        for stage, k, rows, string, task_map in self._strings():
            self._one(stage, k, rows, string, task_map, completed, (offset, inside, comm, pace))
        return offset, inside, comm, pace

    def calls(self) -> F8:
        """[S, T]: calls inside each task, in the iteration in which most were seen."""
        number = np.zeros((self.layout.pp, self.phases.begin.shape[2]))
        for stage, _, _, string, task_map in self._strings():
            inside = task_of_position(string, task_map)
            found = np.bincount(inside[inside >= 0], minlength=number.shape[1])
            number[stage] = np.maximum(number[stage], found)
        return number

    def _one(
        self,
        stage: int,
        k: int,
        rows: NDArray[np.int64],
        string: CallString,
        task_map: TaskMap,
        completed: bool,
        out: tuple[F8, F8, F8, F8],
    ) -> None:
        """Calls inside the tasks of one stage in one iteration."""
        task_of = task_of_position(string, task_map)
        positions = np.flatnonzero(task_of >= 0)
        n_tasks = out[0].shape[-1]
        shape = (*self.grid.shape[1:], n_tasks)
        if not len(positions):
            for table in out[:3]:
                table[k, stage] = np.where(rows.reshape(shape[:2])[..., None] >= 0, 0.0, np.nan)
            return
        at = np.where(rows[:, None] >= 0, rows[:, None] + positions[None, :], -1)
        tasks = task_of[positions]
        called = self._at(self.enqueue, at)
        within = np.flatnonzero((tasks[1:] == tasks[:-1]) & _between_layers(string, positions))
        if len(within):
            gaps = np.diff(called, axis=1)[:, within]
            out[3][k, stage] = pace_by_task(gaps, tasks[within], n_tasks).reshape(shape)
        tensor = np.flatnonzero(string.role[positions] == Role.TENSOR)
        if len(tensor):
            groups = group_index(self.layout, Axis.TENSOR, self.grid[stage])
            late = called[:, tensor] - by_group(np.fmin, called[:, tensor], groups)
            out[0][k, stage] = median_by_task(late, tasks[tensor], n_tasks).reshape(shape)
        if not completed:
            return
        start = self._at(self.start, at)
        spent = self._at(self.finish, at) - start
        cost = spent.copy()
        for role, axis in (
            (Role.TENSOR, Axis.TENSOR),
            (Role.CONTEXT, Axis.CONTEXT),
            (Role.EXPERT, Axis.EXPERT),
        ):
            columns = np.flatnonzero(string.role[positions] == role)
            if len(columns):
                groups = group_index(self.layout, axis, self.grid[stage])
                # The last member to come does not wait: its time in the collective is the transfer itself.
                cost[:, columns] = by_group(np.fmin, spent[:, columns], groups)
        waited = sum_by_task(distinct(start, spent - cost), tasks, n_tasks)
        busy = sum_by_task(distinct(start, spent), tasks, n_tasks)
        out[1][k, stage] = waited.reshape(shape)
        out[2][k, stage] = (busy - waited).reshape(shape)


def task_of_position(string: CallString, task_map: TaskMap) -> NDArray[np.int64]:
    """int64 [L]: the task in whose block an inner call stands, -1 for every other call."""
    task_of = np.full(len(string.op), -1, np.int64)
    inner = string.inner
    for task in range(len(task_map.tasks)):
        first, last = int(task_map.begin[task]), int(task_map.last[task])
        if first >= 0 and last >= first:
            task_of[first : last + 1] = task
    task_of[~inner] = -1
    return task_of


def _between_layers(string: CallString, positions: NDArray[np.intp]) -> NDArray[np.bool_]:
    """bool [calls - 1]: gaps between two calls of a layer. Embedding and loss make calls in quick succession,
    and only on the first and the last stage: their pace must not be compared with that of the others."""
    count = string.count[positions]
    values, numbers = np.unique(count, return_counts=True)
    # Messages to experts differ in size from call to call, yet they are the layers' own.
    layer = (count == values[np.argmax(numbers)]) | (string.role[positions] == Role.EXPERT)
    between = layer[1:] & layer[:-1]
    return between if between.any() and not string.flat else np.ones(len(between), np.bool_)
