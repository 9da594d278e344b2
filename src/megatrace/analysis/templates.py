"""Templates: the distinct call strings of an iteration, and what each position of one means.

All iterations of a stage are, but for logging and evaluation, the same string of calls. So a position is
interpreted once per distinct string: cut at the Sends and Recvs, the k-th block is the k-th task of the
schedule (facts of Megatron-LM's and PyTorch's schedules: ``model.schedule``). Blocks in which two tasks
follow each other without a Send or Recv between (backward and forward on the first stage, forward and
backward on the last) are split by the numbers of calls that lone blocks have.

Does not look at times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.anchors import LIGHT_COUNT
from megatrace.analysis.roles import Role
from megatrace.model.events import Op
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Action, Phase, Schedule, Step, Task

I4 = NDArray[np.int32]

# Share of Sends and Recvs that must stand where the schedule puts them; below it, phases are not named.
FITS = 0.95
MAX_CHUNKS = 8


@dataclass(frozen=True, slots=True, eq=False)
class CallString:
    """One distinct iteration of a stage: role, op and element count of each call, all of length L.

    ``flat``: there is no pipeline, so every heavy call before the anchor is part of the one task.
    """

    stage: int
    role: NDArray[np.uint8]
    op: NDArray[np.uint8]
    count: NDArray[np.int64]
    flat: bool = False

    @property
    def p2p(self) -> NDArray[np.intp]:
        """Positions of pipeline Sends and Recvs."""
        return np.flatnonzero(self.role == Role.PIPELINE)

    @property
    def inner(self) -> NDArray[np.bool_]:
        """Calls that belong to the computation of a task: tensor, context and expert parallel ones."""
        if self.flat:
            heavy = self.count > LIGHT_COUNT
            heavy[-1] = False
            return np.asarray(heavy, dtype=np.bool_)
        return np.isin(self.role, (Role.TENSOR, Role.CONTEXT, Role.EXPERT))


@dataclass(frozen=True, slots=True, eq=False)
class TaskMap:
    """Positions in a call string, by task of ``schedule.tasks(stage)``; int32 [tasks], -1 where there is
    none.

    begin  first call of the task's block
    end    the call that ends it: its Send, else the call after its last
    recv   the Recv that feeds it
    send   the Send that empties it
    last   its last inner call (tensor, context or expert parallel)
    """

    tasks: tuple[Task, ...]
    begin: I4
    end: I4
    recv: I4
    send: I4
    last: I4


def schedule_candidates(sends_of_first: int, pp: int, micro_batches: int | None) -> Iterator[Schedule]:
    """Schedules that make the first stage send this often in one iteration, commonest first."""
    for vpp in range(1, MAX_CHUNKS + 1):
        per_micro_batch = 2 * vpp - 1
        if sends_of_first % per_micro_batch:
            continue
        m = sends_of_first // per_micro_batch
        if m < 1 or (micro_batches is not None and m != micro_batches):
            continue
        if vpp == 1:
            yield Schedule(ScheduleKind.ONE_F_ONE_B, pp, m)
            yield Schedule(ScheduleKind.GPIPE, pp, m)
        else:
            try:
                yield Schedule(ScheduleKind.INTERLEAVED, pp, m, vpp)
            except ValueError:
                continue  # no interleaving has these sizes


def fit(schedule: Schedule, string: CallString) -> float:
    """Share (0..1) of the string's Sends and Recvs that stand where the schedule puts them.

    Order inside one coalesced batch does not count: launchers differ in it.
    """
    seen = string.op[string.p2p]
    steps = [step for step in schedule.program(string.stage) if not step.action.is_compute]
    if len(seen) != len(steps):
        return 0.0
    if not steps:
        return 1.0
    wanted = np.asarray([Op.SEND if step.action.is_send else Op.RECV for step in steps], np.uint8)
    batch = np.asarray([step.batch for step in steps])
    order = np.lexsort((wanted, batch))
    return float(np.mean(wanted[order] == seen[np.lexsort((seen, batch))]))


def map_tasks(schedule: Schedule, string: CallString, inner_forward: int | None = None) -> TaskMap:
    """Where each task begins and ends in a string that fits the schedule.

    ``inner_forward``: calls of a forward on an inner stage, to split the last stage's blocks where nothing
    else does.
    """
    return _Mapper(schedule, string, inner_forward).run()


@dataclass(slots=True)
class _Run:
    """Tasks between two Sends or Recvs, and the positions of the inner calls among them."""

    tasks: list[int]
    after: int
    before: int
    calls: NDArray[np.intp]


class _Mapper:
    def __init__(self, schedule: Schedule, string: CallString, inner_forward: int | None) -> None:
        self.schedule = schedule
        self.string = string
        self.inner_forward = inner_forward
        self.tasks = schedule.tasks(string.stage)
        self.index = {task: i for i, task in enumerate(self.tasks)}
        n = len(self.tasks)
        self.begin, self.end, self.recv, self.send, self.last = (np.full(n, -1, np.int32) for _ in range(5))

    def run(self) -> TaskMap:
        runs = self._runs()
        lone = self._lone_counts(runs)
        for run in runs:
            self._place(run, lone)
        return TaskMap(self.tasks, self.begin, self.end, self.recv, self.send, self.last)

    def _task_of(self, step: Step) -> int:
        forward = step.action in (Action.FORWARD, Action.SEND_FORWARD, Action.RECV_FORWARD)
        phase = Phase.FORWARD if forward else Phase.BACKWARD
        return self.index[Task(phase, step.micro_batch, step.chunk)]

    def _runs(self) -> list[_Run]:
        """Walk the program along the string's Sends and Recvs."""
        p2p, calls = self.string.p2p, np.flatnonzero(self.string.inner)
        runs: list[_Run] = []
        tasks: list[int] = []
        after, at = -1, 0
        batch: list[Step] = []
        steps = self.schedule.program(self.string.stage)
        for i, step in enumerate(steps):
            if step.action.is_compute:
                tasks.append(self._task_of(step))
                continue
            batch.append(step)
            if i + 1 < len(steps) and steps[i + 1].batch == step.batch:
                continue
            positions = p2p[at : at + len(batch)]
            at += len(batch)
            if tasks:
                runs.append(self._run(tasks, after, int(positions[0]), calls))
                tasks = []
            self._assign(batch, positions)
            after = int(positions[-1])
            batch = []
        if tasks:
            runs.append(self._run(tasks, after, len(self.string.op), calls))
        return runs

    @staticmethod
    def _run(tasks: list[int], after: int, before: int, calls: NDArray[np.intp]) -> _Run:
        inside = calls[np.searchsorted(calls, after, "right") : np.searchsorted(calls, before)]
        return _Run(tasks, after, before, inside)

    def _assign(self, batch: list[Step], positions: NDArray[np.intp]) -> None:
        """Give the positions of one batch to its steps, by operation."""
        free = [int(p) for p in positions]
        for step in batch:
            wanted = Op.SEND if step.action.is_send else Op.RECV
            place = next((p for p in free if self.string.op[p] == wanted), free[0])
            free.remove(place)
            (self.send if step.action.is_send else self.recv)[self._task_of(step)] = place

    def _lone_counts(self, runs: list[_Run]) -> dict[tuple[Phase, int], int]:
        """Calls of a task by (phase, chunk), from the blocks that hold one task only."""
        found: dict[tuple[Phase, int], list[int]] = {}
        for run in runs:
            if len(run.tasks) == 1 and run.after >= 0:
                task = self.tasks[run.tasks[0]]
                found.setdefault((task.phase, task.chunk), []).append(len(run.calls))
        return {key: int(np.median(values)) for key, values in found.items()}

    def _place(self, run: _Run, lone: dict[tuple[Phase, int], int]) -> None:
        pieces = self._split(run, lone)
        for i, (task, calls) in enumerate(zip(run.tasks, pieces, strict=True)):
            if not len(calls):
                # Without calls inside, an iteration's first task begins after the bookkeeping before its
                # Send.
                opens = run.after < 0 and i == 0 and run.before > 0
                self.begin[task] = run.before - 1 if opens and self.recv[task] < 0 else self.recv[task]
                self.end[task] = run.before if run.before < len(self.string.op) else -1
                continue
            following = pieces[i + 1] if i + 1 < len(pieces) else calls[:0]
            after_last = min(int(calls[-1]) + 1, len(self.string.op) - 1)
            self.begin[task] = calls[0]
            self.last[task] = calls[-1]
            if len(following):
                self.end[task] = following[0]
            else:
                self.end[task] = run.before if run.before < len(self.string.op) else after_last

    def _split(self, run: _Run, lone: dict[tuple[Phase, int], int]) -> list[NDArray[np.intp]]:
        """The run's calls, one piece a task."""
        calls = run.calls
        sizes = [lone.get((self.tasks[t].phase, self.tasks[t].chunk)) for t in run.tasks]
        own = sum(size for size in sizes if size is not None)
        known_all = all(size is not None for size in sizes) and own <= len(calls)
        if run.before >= len(self.string.op) and known_all and run.after >= 0:
            # What follows the last task (gradients of layer norms) uses the same channel.
            calls = calls[:own]
        if run.after < 0 and known_all:
            # Calls of the previous iteration's end stand before the first task: only the last ones are its
            # own.
            calls = calls[len(calls) - own :]
        if len(run.tasks) == 1:
            return [calls]
        known = sum(size for size in sizes if size is not None)
        unknown = [i for i, size in enumerate(sizes) if size is None]
        if len(unknown) == 1 and known <= len(calls):
            sizes[unknown[0]] = len(calls) - known
        elif unknown:
            first = self._loss_split(calls)
            sizes = [first, len(calls) - first] if len(run.tasks) == 2 else _even(len(calls), len(run.tasks))
        bounds = np.cumsum([0, *[int(size or 0) for size in sizes]])
        bounds[-1] = len(calls)
        return [calls[bounds[i] : bounds[i + 1]] for i in range(len(run.tasks))]

    def _loss_split(self, calls: NDArray[np.intp]) -> int:
        """Calls of the forward in a forward-backward block of the last stage.

        The vocabulary-parallel loss ends the forward: reductions smaller than the layers' own. Without it the
        forward of an inner stage tells, else half.
        """
        op, count = self.string.op[calls], self.string.count[calls]
        heavy = count[count > LIGHT_COUNT]
        if len(heavy):
            values, numbers = np.unique(heavy, return_counts=True)
            usual = values[np.argmax(numbers)]
            reduces = np.isin(op, (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER))
            loss = np.flatnonzero(reduces & (count < usual) & (count >= 0))
            if len(loss):
                return int(loss[-1]) + 1
        if self.inner_forward is not None and 0 < self.inner_forward < len(calls):
            return self.inner_forward
        return len(calls) // 2


def _even(total: int, parts: int) -> list[int | None]:
    return [total // parts] * parts
