"""Operation tables of simulated jobs whose truth is known: a slow worker, a long stage, uneven micro-batches.

A small event simulation of pipelined training, one task after the other in plain Python, on purpose unlike
the analysis that is measured on it: it knows lengths and finds starts, where the analysis knows starts and
finds what the lengths cost. Serves the benchmark and the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from megatrace.model.job import ScheduleKind
from megatrace.model.optable import NUMBER, UNKNOWN, OpTable, OpType
from megatrace.model.schedule import Phase, Schedule

Factor = Callable[[int, int, int, int], float]
"""(step, stage, replica, micro-batch) -> what the compute of that task is multiplied by."""
_SEED = 7
_STEP_NS = 60_000_000_000
"""Steps begin a minute apart."""


@dataclass(frozen=True, slots=True)
class Job:
    """Sizes of a job and the seconds of its operations; ``noise`` is the spread of compute."""

    pp: int = 4
    dp: int = 2
    micro_batches: int = 8
    steps: int = 6
    vpp: int = 1
    forward_s: float = 0.06
    backward_s: float = 0.12
    send_s: float = 0.0005
    collective_s: float = 0.03
    optimizer_s: float = 0.02
    noise: float = 0.005

    def schedule(self) -> Schedule:
        """Interleaved with several chunks a stage, 1F1B with one."""
        kind = ScheduleKind.INTERLEAVED if self.vpp > 1 else ScheduleKind.ONE_F_ONE_B
        return Schedule(kind, self.pp, self.micro_batches, self.vpp)


def operation_table(job: Job, factor: Factor | None = None) -> tuple[OpTable, list[float]]:
    """(table, true seconds of each step). Without ``factor`` all workers are alike."""
    rng = np.random.default_rng(_SEED)
    rows: list[tuple[int, ...]] = []
    lengths = []
    for step in range(job.steps):
        one = _Step(job, step, factor or (lambda *_: 1.0), rng)
        rows += one.run()
        lengths.append(one.end)
    columns = np.array(rows, np.int64).T
    types = (
        np.int64,
        np.int32,
        np.int32,
        np.int32,
        np.uint8,
        np.int64,
        np.int64,
        np.int32,
        np.int32,
        np.int32,
    )
    return OpTable(*(column.astype(kind) for column, kind in zip(columns, types, strict=True))), lengths


class _Step:
    """One training step of all workers."""

    def __init__(self, job: Job, step: int, factor: Factor, rng: np.random.Generator) -> None:
        self.job, self.step, self.factor, self.rng = job, step, factor, rng
        self.rows: list[tuple[int, ...]] = []
        self.seq: dict[tuple[int, int, OpType], int] = {}
        self.end = 0.0

    def run(self) -> list[tuple[int, ...]]:
        """The rows of the step."""
        places = [(stage, replica) for stage in range(self.job.pp) for replica in range(self.job.dp)]
        ready = dict.fromkeys(places, 0.0)
        for stage in range(self.job.pp):
            self.together(ready, [p for p in places if p[0] == stage], OpType.PARAMS_GATHER)
        for replica in range(self.job.dp):
            self.pipeline(ready, replica)
        for replica in range(self.job.dp):
            ends = [(stage, replica) for stage in sorted({0, self.job.pp - 1})]
            self.together(ready, ends, OpType.EMBEDDING_GRADS)
        for stage in range(self.job.pp):
            self.together(ready, [p for p in places if p[0] == stage], OpType.GRADS_SCATTER)
        self.together(ready, places, OpType.CLIP)
        for place in places:
            self.row(place, OpType.OPTIMIZER, ready[place], self.job.optimizer_s)
            ready[place] += self.job.optimizer_s
        self.end = max(ready.values())
        return self.rows

    def together(
        self, ready: dict[tuple[int, int], float], places: list[tuple[int, int]], kind: OpType
    ) -> None:
        """A collective: all leave it together, each has waited since it came."""
        end = max(ready[place] for place in places) + self.job.collective_s
        for place in places:
            self.row(place, kind, ready[place], end - ready[place])
            ready[place] = end

    def pipeline(self, ready: dict[tuple[int, int], float], replica: int) -> None:
        """Forwards and backwards of one replica. A task starts when the worker is free and its input is
        there."""
        schedule, job = self.job.schedule(), self.job
        todo = {stage: list(schedule.tasks(stage)) for stage in range(job.pp)}
        done: dict[tuple[Phase, int, int], float] = {}
        last = job.pp * job.vpp - 1
        while any(todo.values()):
            for stage, tasks in todo.items():
                while tasks:
                    task = tasks[0]
                    place = task.chunk * job.pp + stage
                    forward = task.phase is Phase.FORWARD
                    source = place - 1 if forward else place + 1
                    fed = source < 0 or source > last
                    made = 0.0 if fed else done.get((task.phase, source, task.micro_batch), -1.0)
                    if made < 0:
                        break
                    free = ready[stage, replica]
                    begin = free if fed else max(free, made + job.send_s)
                    kinds = _FORWARD if forward else _BACKWARD
                    if not fed:
                        self.message(kinds, source % job.pp, stage, replica, made, free, begin)
                    took = (job.forward_s if forward else job.backward_s) / job.vpp
                    took *= self.factor(self.step, stage, replica, task.micro_batch)
                    took *= 1.0 + job.noise * float(self.rng.standard_normal())
                    self.row((stage, replica), kinds[0], begin, took, task.chunk, task.micro_batch)
                    ready[stage, replica] = begin + took
                    done[task.phase, place, task.micro_batch] = begin + took
                    tasks.pop(0)

    def message(
        self, kinds: tuple[OpType, OpType, OpType], source: int, stage: int, replica: int, made: float,
        free: float, begin: float,
    ) -> None:  # fmt: skip
        """Both ends of a message: the receive is posted when its worker is free, the send when it has
        something; both end when it has passed."""
        both = max(made, free) + self.job.send_s
        end = max(begin, both) if free > made else begin
        self.row((source, replica), kinds[1], made, end - made)
        self.row((stage, replica), kinds[2], free, max(end - free, 0.0))

    def row(
        self, place: tuple[int, int], kind: OpType, start: float, took: float, chunk: int = UNKNOWN,
        batch: int = UNKNOWN,
    ) -> None:  # fmt: skip
        """One row of the table."""
        key = (*place, kind)
        seq = self.seq[key] = self.seq.get(key, -1) + 1
        stage, replica = place
        rank = stage * self.job.dp + replica
        begin = self.step * _STEP_NS + round(start * 1e9)
        self.rows.append(
            (self.step, replica, stage, rank, NUMBER[kind], begin, round(took * 1e9), seq, chunk, batch)
        )


_FORWARD = (OpType.FORWARD, OpType.FORWARD_SEND, OpType.FORWARD_RECV)
_BACKWARD = (OpType.BACKWARD, OpType.BACKWARD_SEND, OpType.BACKWARD_RECV)
