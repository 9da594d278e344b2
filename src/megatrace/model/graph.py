"""The dependency graph of one iteration: when each task could start, what delays the job, and what it cost.

Nodes are the forwards and backwards of ``model.schedule``; a task waits for the task before it on its own
stage and for the activation or gradient that the neighbouring stage sends. All replicas of a stage meet in
the gradient sync, all stages at the end of the iteration. The topology depends on the schedule alone, is
built once and cached; a solve is a handful of numpy calls per level of the graph, over all replicas (and
iterations) at once, so the whole cluster is cheaper to solve than to read: nothing is pruned to "the slowest
group".

Durations are what a task takes once its inputs are there (work, waiting subtracted), in any unit; results
have the same unit and count from the start of the iteration. Two values are special:

* NaN, a duration that was lost: every time that depends on it is NaN (unknown stays unknown).
  ``durations.fill_unknown`` puts the median of the same task elsewhere there, if that is what the caller
  means.
* +inf, a task that never finished: what depends on it never starts (start +inf). ``Solution.stuck`` are the
  tasks that started and did not finish.

Where the end of the iteration is NaN or +inf, ``latest`` and ``slack`` have no meaning and are NaN.

Does not model Sends as blocking, buffers as finite, or a transfer as competing with others. It reads no
calls: durations come from ``analysis``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megatrace.model.schedule import Phase, Schedule, Task

Floats = NDArray[Any]
"""float32 or float64"""
Rows = NDArray[np.intp]


class Node(NamedTuple):
    """One task of one replica: stage, replica and index into ``Schedule.tasks(stage)``."""

    stage: int
    replica: int
    task: int


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Times of every task; arrays [pp, replicas, tasks], or [B, pp, replicas, tasks] for B iterations at
    once.

    start, finish     earliest times
    latest            latest start that does not lengthen the iteration; NaN where its end is NaN or +inf
    slack             latest − start, never negative; NaN likewise
    sync_start        [(B,) pp]: when the last replica of a stage is ready for the gradient sync
    sync_finish       [(B,) pp]: sync_start + duration of the sync
    makespan          [()] or [B]: end of the iteration
    replica_makespan  [(B,) replicas]: when a replica's last task ends, before the sync
    depth             tasks on the longest chain of the topology
    duration, delay   what was solved: the durations as given, the transfer into each task (a broadcast view)
    """

    start: Floats
    finish: Floats
    latest: Floats
    slack: Floats
    sync_start: Floats
    sync_finish: Floats
    makespan: Floats
    replica_makespan: Floats
    depth: int
    duration: Floats
    delay: Floats

    @property
    def critical(self) -> NDArray[np.bool_]:
        """Tasks without slack, up to rounding: bool, shape of ``start``."""
        # Each level rounds at most six times, each time by half an epsilon of at most the makespan.
        allowed = 3 * np.finfo(self.start.dtype).eps * self.depth * np.abs(self.makespan)
        with np.errstate(invalid="ignore"):
            return np.asarray(self.slack <= allowed[..., None, None, None], dtype=np.bool_)

    @property
    def stuck(self) -> NDArray[np.bool_]:
        """Tasks that started and never finished: bool, shape of ``start``."""
        return np.asarray(np.isfinite(self.start) & np.isposinf(self.finish), dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Tasks that have all inputs once the levels before are solved. Rows are node numbers or a sentinel's."""

    rows: Rows
    before: Rows
    sender: Rows
    after: Rows
    receiver: Rows


@dataclass(frozen=True, eq=False)
class IterationGraph:
    """The topology of a schedule. Make it with ``IterationGraph.of(schedule)``, which keeps it.

    Node number = stage · tasks + index of the task. ``sender[n]`` is the node of another stage whose output n
    needs, −1 where there is none; ``depth[n]`` the tasks that must come before it on its longest chain.
    """

    schedule: Schedule
    sender: NDArray[np.int64]
    depth: NDArray[np.int64]

    @staticmethod
    @lru_cache(maxsize=64)
    def of(schedule: Schedule) -> IterationGraph:
        """The graph of a schedule. ``ValueError`` if its order of tasks cannot be executed."""
        sender = _senders(schedule)
        return IterationGraph(schedule, sender, _depths(schedule.pp, sender))

    @property
    def tasks(self) -> int:
        """Tasks of one stage."""
        return 2 * self.schedule.total

    @property
    def nodes(self) -> int:
        """Tasks of all stages."""
        return self.schedule.pp * self.tasks

    @cached_property
    def receiver(self) -> NDArray[np.int64]:
        """int64 [nodes]: the node that needs this node's output on another stage, −1 where there is none."""
        receiver = np.full(self.nodes, -1, np.int64)
        has = np.flatnonzero(self.sender >= 0)
        receiver[self.sender[has]] = has
        return receiver

    @cached_property
    def _levels(self) -> tuple[_Level, ...]:
        """Levels in order. Sentinel rows: nodes + stage = end of the stage, nodes + pp = nothing."""
        node = np.arange(self.nodes)
        stage, index = np.divmod(node, self.tasks)
        nothing = self.nodes + self.schedule.pp
        before = np.where(index > 0, node - 1, nothing)
        after = np.where(index < self.tasks - 1, node + 1, self.nodes + stage)
        sender = np.where(self.sender >= 0, self.sender, nothing)
        receiver = np.where(self.receiver >= 0, self.receiver, nothing)
        order = np.argsort(self.depth, kind="stable")
        cuts = np.flatnonzero(np.diff(self.depth[order])) + 1
        return tuple(
            _Level(rows, before[rows], sender[rows], after[rows], receiver[rows])
            for rows in np.split(order.astype(np.intp), cuts)
        )

    def empty(self, replicas: int, batch: int | None = None, dtype: type[Any] = np.float64) -> Floats:
        """An uninitialised duration array in the memory layout that ``solve`` need not copy."""
        pp, tasks = self.schedule.pp, self.tasks
        return _public(np.empty((pp, tasks, 1 if batch is None else batch, replicas), dtype), batch)

    def solve(self, duration: Floats, *, p2p_delay: ArrayLike = 0.0, sync: ArrayLike = 0.0) -> Solution:
        """Earliest and latest times of every task.

        duration   [pp, replicas, tasks] or [B, pp, replicas, tasks], not negative; float32 stays float32,
                   everything else is computed as float64
        p2p_delay  from the end of a task to its output being at the next stage, same unit: a number, or an
                   array that broadcasts to ``duration`` and holds the delay of the transfer *into* each task
        sync       duration of the gradient sync: a number, [pp] or [B, pp]

        ``ValueError`` where shapes do not fit the schedule.
        """
        work = self._columns(duration)
        delay = self._delay(p2p_delay, np.shape(duration), work.dtype)
        start, finish = self._forward(work, delay)
        batch = work.shape[2] if np.ndim(duration) == 4 else None
        ready, sync_finish, end = self._end(finish, sync, work.shape[2])
        latest, slack = self._backward(work, delay, start, end, sync)
        shape = (self.schedule.pp, self.tasks, *work.shape[2:])
        arrays = (start, finish, latest, slack)
        views = [_public(array[: self.nodes].reshape(shape), batch) for array in arrays]
        by_stage = finish[: self.nodes].reshape(shape)[:, -1]
        per_replica = by_stage.max(axis=0)
        if batch is None:
            ready, sync_finish, end, per_replica = ready[0], sync_finish[0], end[0], per_replica[0]
        return Solution(
            start=views[0],
            finish=views[1],
            latest=views[2],
            slack=views[3],
            sync_start=ready,
            sync_finish=sync_finish,
            makespan=np.asarray(end),
            replica_makespan=per_replica,
            depth=len(self._levels),
            duration=np.asarray(duration),
            delay=np.broadcast_to(np.asarray(p2p_delay, work.dtype), np.shape(duration)),
        )

    def makespan(self, duration: Floats, *, p2p_delay: ArrayLike = 0.0, sync: ArrayLike = 0.0) -> Floats:
        """End of the iteration, [()] or [B]: what ``solve`` says, at less than half the cost."""
        work = self._columns(duration)
        _, finish = self._forward(work, self._delay(p2p_delay, np.shape(duration), work.dtype))
        _, _, end = self._end(finish, sync, work.shape[2])
        return end if np.ndim(duration) == 4 else np.asarray(end[0])

    def what_if(
        self,
        duration: Floats,
        replaced: NDArray[np.bool_],
        baseline: ArrayLike,
        *,
        p2p_delay: ArrayLike = 0.0,
        sync: ArrayLike = 0.0,
    ) -> Floats:
        """Time lost to the tasks marked ``replaced``: makespan less what it is with ``baseline``.

        ``replaced`` and ``baseline`` broadcast to ``duration``. [()] or [B]; negative where the baseline is
        slower.
        """
        other = np.where(replaced, baseline, duration).astype(np.asarray(duration).dtype, copy=False)
        was = self.makespan(duration, p2p_delay=p2p_delay, sync=sync)
        with np.errstate(invalid="ignore"):
            return np.asarray(was - self.makespan(other, p2p_delay=p2p_delay, sync=sync))

    def critical_path(self, solution: Solution, *, iteration: int = 0) -> list[Node]:
        """The chain of tasks that made the iteration as long as it was, first task first.

        Walks back from the end, at each task to the input that arrived last; own stage first on a tie.
        ``iteration`` picks one of a batch. Where the makespan is +inf the path leads through a task that
        never finished to the tasks that wait for it. ``ValueError`` where the makespan is NaN.
        """
        if np.isnan(solution.makespan.reshape(-1)[iteration]):
            raise ValueError("a lost duration makes the end unknown: durations.fill_unknown() first")
        path = self._walk(solution, np.asarray([iteration]))
        return [Node(int(stage), int(replica), int(task)) for stage, replica, task in path[::-1, :, 0]]

    def blame(self, solution: Solution) -> NDArray[np.float64]:
        """Time on the critical path spent in tasks of each stage and replica: float64 [(B,) pp, replicas].

        Adds up to the makespan less the transfers and the sync on the path. NaN for an iteration whose length
        is NaN; +inf where a task on the path never finished.
        """
        duration = _batched(solution.duration)
        batch = np.arange(len(duration))
        out = np.zeros(duration.shape[:3])
        for stage, replica, task in self._walk(solution, batch):
            on_path = np.where(task >= 0, duration[batch, stage, replica, task], 0.0)
            out[batch, stage, replica] += on_path
        out[np.isnan(solution.makespan.reshape(-1))] = np.nan
        return out if solution.start.ndim == 4 else out[0]

    def _walk(self, solution: Solution, batch: NDArray[np.intp]) -> NDArray[np.int64]:
        """int64 [steps, (stage, replica, task), iterations], last task first; task −1 beyond the first.

        A path never changes its replica: replicas meet only at the end.
        """
        finish, delay = _batched(solution.finish), _batched(solution.delay)
        ends = solution.sync_finish.reshape(-1, self.schedule.pp)[batch]
        stage = np.argmax(ends, axis=1)
        replica = np.argmax(finish[batch, stage, :, -1], axis=1)
        node = stage * self.tasks + self.tasks - 1
        steps = []
        while bool((node >= 0).any()):
            here = np.maximum(node, 0)
            stage, task = np.divmod(here, self.tasks)
            steps.append(np.stack([stage, replica, np.where(node >= 0, task, -1)]))
            sender = self.sender[here]
            from_stage, from_task = np.divmod(np.maximum(sender, 0), self.tasks)
            own = np.where(task > 0, finish[batch, stage, replica, task - 1], -1.0)
            sent = finish[batch, from_stage, replica, from_task] + delay[batch, stage, replica, task]
            by_sender = (sender >= 0) & ((task == 0) | (sent > own))
            node = np.where(by_sender, sender, np.where((task > 0) & (node >= 0), node - 1, -1))
            # A path that has ended stays ended.
            node = np.where(steps[-1][2] >= 0, node, -1)
        return np.asarray(steps, np.int64)

    def _columns(self, duration: Floats) -> Floats:
        """[pp, tasks, B, replicas], contiguous: a row a task, a column a replica of an iteration."""
        array = np.asarray(duration)
        if array.dtype != np.float32:
            array = array.astype(np.float64, copy=False)
        expected = (self.schedule.pp, self.tasks)
        if array.ndim not in (3, 4) or (array.shape[-3], array.shape[-1]) != expected or 0 in array.shape:
            raise ValueError(
                f"durations have shape {array.shape}, "
                f"the schedule needs [pp {expected[0]}, replicas, tasks {expected[1]}]"
            )
        if array.ndim == 3:
            array = array[None]
        return np.ascontiguousarray(array.transpose(1, 3, 0, 2))

    def _delay(self, p2p_delay: ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Floats | None:
        """[nodes + sentinels, columns or 1] transfer into each task, 0 where there is none; None where all
        are 0."""
        delay = np.asarray(p2p_delay, dtype)
        if not delay.any():
            return None
        padded = np.zeros((self.nodes + self.schedule.pp + 1, 1), dtype)
        has = self.sender >= 0
        if delay.ndim == 0:
            padded[: self.nodes, 0] = np.where(has, delay, 0)
            return padded
        flat = self._columns(np.broadcast_to(delay, shape)).reshape(self.nodes, -1)
        padded = np.zeros((len(padded), flat.shape[1]), dtype)
        np.copyto(padded[: self.nodes], flat, where=has[:, None])
        return padded

    def _forward(self, work: Floats, delay: Floats | None) -> tuple[Floats, Floats]:
        """start, finish [nodes + pp + 1, columns]; the sentinels' finish is the start of the iteration."""
        flat = work.reshape(self.nodes, -1)
        shape = (self.nodes + self.schedule.pp + 1, flat.shape[1])
        start, finish = np.empty(shape, work.dtype), np.empty(shape, work.dtype)
        finish[self.nodes :] = 0.0
        for level in self._levels:
            begin = finish[level.before]
            arrived = finish[level.sender]
            if delay is not None:
                arrived += delay[level.rows]
            np.maximum(begin, arrived, out=begin)
            start[level.rows] = begin
            begin += flat[level.rows]
            finish[level.rows] = begin
        return start, finish

    def _end(self, finish: Floats, sync: ArrayLike, batch: int) -> tuple[Floats, Floats, Floats]:
        """sync_start [B, pp], sync_finish [B, pp], end [B]."""
        last = finish[self.tasks - 1 : self.nodes : self.tasks].reshape(self.schedule.pp, batch, -1)
        ready = last.max(axis=2).T
        sync_finish = ready + np.asarray(sync, finish.dtype)
        return ready, sync_finish, sync_finish.max(axis=1)

    def _backward(
        self, work: Floats, delay: Floats | None, start: Floats, end: Floats, sync: ArrayLike
    ) -> tuple[Floats, Floats]:
        """latest, slack [nodes + pp + 1, columns]."""
        pp, batch, replicas = self.schedule.pp, work.shape[2], work.shape[3]
        flat = work.reshape(self.nodes, -1)
        latest, slack = np.empty_like(start), np.empty_like(start)
        known = np.where(np.isfinite(end), end, np.nan)
        latest_sync = known[:, None] - np.broadcast_to(np.asarray(sync, work.dtype), (batch, pp))
        latest[self.nodes : self.nodes + pp] = np.repeat(latest_sync.T, replicas, axis=1)
        latest[self.nodes + pp] = np.inf
        with np.errstate(invalid="ignore"):  # an end of NaN makes all of its columns NaN
            for level in reversed(self._levels):
                until = latest[level.after]
                needed = latest[level.receiver]
                if delay is not None:
                    needed -= delay[level.receiver]
                np.minimum(until, needed, out=until)
                until -= flat[level.rows]
                latest[level.rows] = until
                until -= start[level.rows]
                # The sums forward and backward round apart: a slack below zero is one of zero.
                slack[level.rows] = np.maximum(until, 0.0, out=until)
        return latest, slack


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """node [steps, B] from the last task to the first, −1 beyond it; replica [B]."""

    node: NDArray[np.int64]
    replica: NDArray[np.int64]


def _batched(array: NDArray[Any]) -> NDArray[Any]:
    """[pp, replicas, tasks] as a batch of one."""
    return array if array.ndim == 4 else array[None]


def _public(array: NDArray[Any], batch: int | None) -> NDArray[Any]:
    """[pp, tasks, B, replicas] as [B, pp, replicas, tasks]; no B axis where there is no batch."""
    view: NDArray[Any] = array.transpose(2, 0, 3, 1)
    return view if batch is not None else np.squeeze(view, axis=0)


def _senders(schedule: Schedule) -> NDArray[np.int64]:
    """int64 [nodes]: the node on another stage (or another chunk's end) that feeds each node, −1 for none."""
    last = schedule.pp - 1
    size = 2 * schedule.total
    order = [schedule.tasks(stage) for stage in range(schedule.pp)]
    index = [{task: stage * size + i for i, task in enumerate(tasks)} for stage, tasks in enumerate(order)]
    sender = np.full(schedule.pp * size, -1, np.int64)
    for stage, tasks in enumerate(order):
        for i, task in enumerate(tasks):
            source = _source(task, stage, last, schedule.vpp - 1)
            if source is not None:
                sender[stage * size + i] = index[source[0]][source[1]]
    return sender


def _source(task: Task, stage: int, last_stage: int, last_chunk: int) -> tuple[int, Task] | None:
    """Stage and task whose output a task needs; None for the first forward and the turn-around at the end."""
    if task.phase is Phase.FORWARD:
        if stage > 0:
            return stage - 1, task
        return (last_stage, Task(task.phase, task.micro_batch, task.chunk - 1)) if task.chunk > 0 else None
    if stage < last_stage:
        return stage + 1, task
    return (0, Task(task.phase, task.micro_batch, task.chunk + 1)) if task.chunk < last_chunk else None


def _depths(pp: int, sender: NDArray[np.int64]) -> NDArray[np.int64]:
    """Level of each node: each stage runs on until it needs a node that has none yet."""
    size = len(sender) // pp
    feeds = sender.tolist()
    depth = [-1] * len(feeds)
    done = [0] * pp
    while any(count < size for count in done):
        before = sum(done)
        for stage in range(pp):
            while done[stage] < size:
                node = stage * size + done[stage]
                source = feeds[node]
                if source >= 0 and depth[source] < 0:
                    break
                own = depth[node - 1] if done[stage] else -1
                depth[node] = 1 + max(own, depth[source] if source >= 0 else -1)
                done[stage] += 1
        if sum(done) == before:
            raise ValueError(f"the schedule cannot be executed: every stage waits (tasks done: {done})")
    return np.asarray(depth, np.int64)
