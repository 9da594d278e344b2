"""What-if replay (as ByteDance's straggler analysis): a worker is a straggler by how much faster the job
would be with the durations of that worker alone made ideal.

A worker is one place of the pipeline grid, all its tensor peers together; transfers belong to pairs of
workers and are made ideal as a kind of operation of their own, which names nobody. Knows schedules of one
chunk a stage only.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.seen import F8, NOBODY, Named, Seen
from megatrace.analysis.reductions import median
from megatrace.model.schedule import Phase, Schedule, Task


class WhatIf:
    """The worker that explains ``threshold`` of the job's time more than any other."""

    name = "what-if replay (ByteDance-like)"
    thresholds = (0.01, 0.02, 0.05, 0.1)

    def hang(self, seen: Seen) -> Named:
        """Replays what completed."""
        del seen
        return NOBODY

    def slow(self, seen: Seen, threshold: float) -> Named:
        """The worker whose ideal durations shorten the replay most."""
        table, schedule = seen.table, seen.diagnosis.job.schedule
        if table is None or schedule is None or schedule.vpp > 1 or len(table.iteration) < 2:
            return NOBODY
        work = np.nan_to_num(table.group[1:])
        stages, tasks = work.shape[1], work.shape[3]
        ideal = median(np.moveaxis(table.group[1:], 1, 0).reshape(stages, -1, tasks), axis=1)
        replay = _Replay(schedule, work.shape[1])
        whole = replay.seconds(work)
        gains = np.zeros(work.shape[1:3])
        for stage in range(work.shape[1]):
            for replica in range(work.shape[2]):
                changed = work.copy()
                changed[:, stage, replica] = np.minimum(changed[:, stage, replica], ideal[stage])
                gains[stage, replica] = 1 - replay.seconds(changed) / whole
        worst = int(gains.argmax())
        if gains.reshape(-1)[worst] < threshold:
            return NOBODY
        return frozenset(table.grid.reshape(gains.size, -1)[worst].tolist())


class _Replay:
    """Runs a schedule on given durations; all replicas meet at the end of an iteration."""

    def __init__(self, schedule: Schedule, stages: int) -> None:
        self.stages = stages
        self.tasks = [schedule.tasks(stage) for stage in range(stages)]
        self.order = self._sorted()

    def _sorted(self) -> list[tuple[int, int, tuple[int, int] | None]]:
        """(stage, number of the task, its input as (stage, number)), inputs before what needs them."""
        where = [{_key(task): n for n, task in enumerate(tasks)} for tasks in self.tasks]
        done = [0] * self.stages
        listed: list[tuple[int, int, tuple[int, int] | None]] = []
        while sum(done) < sum(map(len, self.tasks)):
            before = len(listed)
            for stage in range(self.stages):
                while done[stage] < len(self.tasks[stage]):
                    task = self.tasks[stage][done[stage]]
                    source = stage - 1 if task.phase is Phase.FORWARD else stage + 1
                    given = None
                    if 0 <= source < self.stages:
                        given = (source, where[source][_key(task)])
                        if done[source] <= given[1]:
                            break
                    listed.append((stage, done[stage], given))
                    done[stage] += 1
            if len(listed) == before:
                raise RuntimeError("the tasks of the stages do not fit each other")  # a bug, not an input
        return listed

    def seconds(self, work: F8) -> float:
        """Seconds of all iterations. ``work`` float64 [iterations, S, D, tasks]."""
        ends = np.zeros_like(work)
        begin = np.zeros((work.shape[0], work.shape[2]))
        for stage, number, given in self.order:
            ready = ends[:, stage, :, number - 1] if number else begin
            if given is not None:
                ready = np.maximum(ready, ends[:, given[0], :, given[1]])
            ends[:, stage, :, number] = ready + work[:, stage, :, number]
        return float(ends.max(axis=(1, 2, 3)).sum())


def _key(task: Task) -> tuple[Phase, int]:
    return task.phase, task.micro_batch
