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
from itertools import pairwise
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
    """Tasks that have all inputs once the levels before are solved: places first to last − 1 of the level
    order.

    inputs   [2 (last − first)] places: the task before each of them on its stage, then the task that feeds it
    outputs  likewise: the task after it on its stage, then the task that it feeds
    A sentinel's place stands where there is none.
    """

    first: int
    last: int
    inputs: Rows
    outputs: Rows


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """Tasks sorted by level, so that a level is a slice; ``nodes`` [place] and ``places`` [node]
    translate."""

    nodes: Rows
    places: Rows
    levels: tuple[_Level, ...]


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
    def _order(self) -> _Order:
        """Sentinel places: nodes + stage = end of the stage, nodes + pp = start, nodes + pp + 1 = nothing."""
        node = np.arange(self.nodes)
        stage, index = np.divmod(node, self.tasks)
        start = self.nodes + self.schedule.pp
        order = np.argsort(self.depth, kind="stable").astype(np.intp)
        places = np.empty(self.nodes + self.schedule.pp + 2, np.intp)
        places[order] = node
        places[self.nodes :] = np.arange(self.nodes, len(places))
        before = places[np.where(index > 0, node - 1, start)][order]
        after = places[np.where(index < self.tasks - 1, node + 1, self.nodes + stage)][order]
        sender = places[np.where(self.sender >= 0, self.sender, start + 1)][order]
        receiver = places[np.where(self.receiver >= 0, self.receiver, start + 1)][order]
        cuts = np.flatnonzero(np.diff(self.depth[order], prepend=-1, append=-1)).tolist()
        levels = tuple(
            _Level(a, b, np.append(before[a:b], sender[a:b]), np.append(after[a:b], receiver[a:b]))
            for a, b in pairwise(cuts)
        )
        return _Order(order, places[: self.nodes], levels)

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
        in_order = np.take(work.reshape(self.nodes, -1), self._order.nodes, axis=0)
        start, finish = self._forward(in_order, delay)
        ready, sync_finish, end = self._end(finish, sync, work.shape[2])
        latest = self._backward(in_order, delay, end, sync, work.shape)
        # Back from level order; each result goes where an array that is no longer needed lies.
        done, until, slack = in_order, start, finish[: self.nodes]
        begin = start.take(self._order.places, axis=0)
        finish.take(self._order.places, axis=0, out=done, mode="clip")
        latest.take(self._order.places, axis=0, out=until, mode="clip")
        with np.errstate(invalid="ignore"):
            np.subtract(until, begin, out=slack)
        # The sums forward and backward round apart: a slack below zero is one of zero.
        np.maximum(slack, 0.0, out=slack)
        begin, done, until, slack = (array.reshape(work.shape) for array in (begin, done, until, slack))
        per_replica = done[:, -1].max(axis=0)
        batch = work.shape[2] if np.ndim(duration) == 4 else None
        if batch is None:
            ready, sync_finish, end, per_replica = ready[0], sync_finish[0], end[0], per_replica[0]
        return Solution(
            start=_public(begin, batch),
            finish=_public(done, batch),
            latest=_public(until, batch),
            slack=_public(slack, batch),
            sync_start=ready,
            sync_finish=sync_finish,
            makespan=np.asarray(end),
            replica_makespan=per_replica,
            depth=len(self._order.levels),
            duration=np.asarray(duration),
            delay=np.broadcast_to(np.asarray(p2p_delay, work.dtype), np.shape(duration)),
        )

    def makespan(self, duration: Floats, *, p2p_delay: ArrayLike = 0.0, sync: ArrayLike = 0.0) -> Floats:
        """End of the iteration, [()] or [B]: what ``solve`` says, at less than half the cost."""
        work = self._columns(duration)
        in_order = np.take(work.reshape(self.nodes, -1), self._order.nodes, axis=0)
        _, finish = self._forward(in_order, self._delay(p2p_delay, np.shape(duration), work.dtype))
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
        replica, path = self._walk(solution, iteration)
        return [Node(stage, replica, task) for stage, task in reversed(path)]

    def blame(self, solution: Solution) -> NDArray[np.float64]:
        """Time on the critical path spent in tasks of each stage and replica: float64 [(B,) pp, replicas].

        Adds up to the makespan less the transfers and the sync on the path. NaN for an iteration whose length
        is NaN; +inf where a task on the path never finished.
        """
        duration = _batched(solution.duration)
        out = np.zeros(duration.shape[:3])
        for iteration, makespan in enumerate(solution.makespan.reshape(-1)):
            if np.isnan(makespan):
                out[iteration] = np.nan
                continue
            replica, path = self._walk(solution, iteration)
            took = duration[iteration, :, replica].item
            spent = [0.0] * self.schedule.pp
            for stage, task in path:
                spent[stage] += took(stage, task)
            out[iteration, :, replica] = spent
        return out if solution.start.ndim == 4 else out[0]

    def _walk(self, solution: Solution, iteration: int) -> tuple[int, list[tuple[int, int]]]:
        """The replica of the critical path (they meet at the end only) and its (stage, task), last first."""
        stage = int(np.argmax(solution.sync_finish.reshape(-1, self.schedule.pp)[iteration]))
        replica = int(np.argmax(_batched(solution.finish)[iteration, stage, :, -1]))
        finish = _batched(solution.finish)[iteration, :, replica].item
        delay = _batched(solution.delay)[iteration, :, replica].item
        task = self.tasks - 1
        path = []
        while True:
            path.append((stage, task))
            sender = self.sender.item(stage * self.tasks + task)
            if sender >= 0:
                from_stage, from_task = divmod(sender, self.tasks)
                sent = finish(from_stage, from_task) + delay(stage, task)
                if not task or sent > finish(stage, task - 1):
                    stage, task = from_stage, from_task
                    continue
            if not task:
                return replica, path
            task -= 1

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

    def _delay(
        self, p2p_delay: ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Floats | float | None:
        """Transfer into each task: a number, or [places, columns] in level order; None where all are 0."""
        delay = np.asarray(p2p_delay, dtype)
        if delay.ndim == 0:
            return float(delay) or None
        flat = self._columns(np.broadcast_to(delay, shape)).reshape(self.nodes, -1)
        padded = np.zeros((self.nodes + self.schedule.pp + 2, flat.shape[1]), dtype)
        np.take(flat, self._order.nodes, axis=0, out=padded[: self.nodes], mode="clip")
        return padded

    def _forward(self, work: Floats, delay: Floats | float | None) -> tuple[Floats, Floats]:
        """start, finish [places, columns] of work in level order; the iteration starts at 0."""
        shape = (self.nodes + self.schedule.pp + 2, work.shape[1])
        start, finish = np.empty(work.shape, work.dtype), np.empty(shape, work.dtype)
        finish[self.nodes : -1] = 0.0
        finish[-1] = -np.inf  # nothing is sent: never the last to arrive
        scratch = _scratch(self.schedule.pp, work)
        for level in self._order.levels:
            a, b = level.first, level.last
            both, own, sent = scratch[b - a]
            finish.take(level.inputs, 0, both, "clip")
            if delay is not None:
                np.add(sent, delay if isinstance(delay, float) else delay[a:b], out=sent)
            np.add(np.maximum(own, sent, out=start[a:b]), work[a:b], out=finish[a:b])
        return start, finish

    def _end(self, finish: Floats, sync: ArrayLike, batch: int) -> tuple[Floats, Floats, Floats]:
        """sync_start [B, pp], sync_finish [B, pp], end [B] of finish in level order."""
        last = finish[self._order.places[self.tasks - 1 :: self.tasks]]
        ready = last.reshape(self.schedule.pp, batch, -1).max(axis=2).T
        sync_finish = ready + np.asarray(sync, finish.dtype)
        return ready, sync_finish, sync_finish.max(axis=1)

    def _backward(
        self, work: Floats, delay: Floats | float | None, end: Floats, sync: ArrayLike, shape: tuple[int, ...]
    ) -> Floats:
        """Latest start [places, columns] of work in level order; shape is [pp, tasks, B, replicas]."""
        pp, _, batch, replicas = shape
        latest = np.empty((self.nodes + pp + 2, work.shape[1]), work.dtype)
        known = np.where(np.isfinite(end), end, np.nan)
        latest_sync = known[:, None] - np.broadcast_to(np.asarray(sync, work.dtype), (batch, pp))
        latest[self.nodes : self.nodes + pp] = np.repeat(latest_sync.T, replicas, axis=1)
        latest[self.nodes + pp :] = np.inf
        scratch = _scratch(pp, work)
        with np.errstate(invalid="ignore"):  # an end of NaN makes all of its columns NaN
            for level in reversed(self._order.levels):
                a, b = level.first, level.last
                both, own, other = scratch[b - a]
                latest.take(level.outputs, 0, both, "clip")
                if delay is not None:
                    into = delay if isinstance(delay, float) else delay[level.outputs[b - a :]]
                    np.subtract(other, into, out=other)
                np.subtract(np.minimum(own, other, out=own), work[a:b], out=latest[a:b])
        return latest


def _scratch(size: int, like: Floats) -> list[tuple[Floats, Floats, Floats]]:
    """Room for two inputs of n tasks, n = 0 to size: both, the first, the second; all share one buffer."""
    rows = np.empty((2 * size, like.shape[1]), like.dtype)
    return [(rows[: 2 * n], rows[:n], rows[n : 2 * n]) for n in range(size + 1)]


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
