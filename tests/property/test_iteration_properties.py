"""What every schedule and the graph made of it must keep.

A schedule: each task once, every Send received, in order, no deadlock. The graph: the times of a plain
reference that executes the schedule's program task by task, a path that explains the makespan, and no slack
that is not real.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import groupby, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from megatrace.model.graph import IterationGraph, Solution
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Action, Phase, Schedule, Step, Task

Message = tuple[bool, int, int]
"""(is an activation, micro-batch, global chunk that made it: chunk · pp + stage)"""


@st.composite
def schedules(draw: st.DrawFn, max_pp: int = 6, max_micro_batches: int = 12, max_vpp: int = 3) -> Schedule:
    """Any valid schedule up to the given sizes."""
    kind = draw(st.sampled_from(ScheduleKind))
    if kind is not ScheduleKind.INTERLEAVED:
        return Schedule(kind, draw(st.integers(1, max_pp)), draw(st.integers(1, max_micro_batches)))
    pp = draw(st.integers(2, max_pp))
    group = draw(st.integers(pp, max(pp, min(pp + 2, max_micro_batches))))
    counts = [m for m in range(group, max_micro_batches + 1) if m % group == 0 or m % group >= pp]
    return Schedule(kind, pp, draw(st.sampled_from(counts)), draw(st.integers(2, max_vpp)), group)


def message(schedule: Schedule, stage: int, step: Step) -> Message:
    """What a Send sends or a Recv expects."""
    here = step.chunk * schedule.pp + stage
    forward = step.action in (Action.SEND_FORWARD, Action.RECV_FORWARD)
    if step.action.is_send:
        return forward, step.micro_batch, here
    return forward, step.micro_batch, here - 1 if forward else here + 1


@given(schedules())
def test_every_task_runs_once(schedule: Schedule) -> None:
    wanted = {
        Task(phase, mb, chunk)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
        for mb in range(schedule.micro_batches)
        for chunk in range(schedule.vpp)
    }
    for stage in range(schedule.pp):
        tasks = schedule.tasks(stage)
        assert len(tasks) == 2 * schedule.total
        assert set(tasks) == wanted
        phases = {Action.FORWARD: Phase.FORWARD, Action.BACKWARD: Phase.BACKWARD}
        ran = [step for step in schedule.program(stage) if step.action.is_compute]
        assert [Task(phases[step.action], step.micro_batch, step.chunk) for step in ran] == list(tasks)


@given(schedules())
def test_warm_up_is_what_runs_before_the_first_backward(schedule: Schedule) -> None:
    for stage in range(schedule.pp):
        phases = [task.phase for task in schedule.tasks(stage)]
        # The steady phase runs a forward before its first backward.
        before = phases.index(Phase.BACKWARD)
        assert before == min(schedule.warm_up(stage) + 1, schedule.total)
        if stage:
            assert schedule.warm_up(stage) <= schedule.warm_up(stage - 1)


@given(schedules())
def test_sends_and_receives_pair_first_in_first_out_on_every_edge(schedule: Schedule) -> None:
    sent: dict[tuple[int, int], list[Message]] = defaultdict(list)
    received: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for stage in range(schedule.pp):
        for step in schedule.program(stage):
            if step.action.is_compute:
                assert step.peer is None
            else:
                assert step.peer is not None
                assert step.peer != stage
                edge = (stage, step.peer) if step.action.is_send else (step.peer, stage)
                (sent if step.action.is_send else received)[edge].append(message(schedule, stage, step))
    assert sent == received
    transfers = sum(len(messages) for messages in sent.values())
    assert transfers == 2 * schedule.micro_batches * (schedule.pp * schedule.vpp - 1)


class _Executor:
    """Runs all programs; a batch blocks its stage until each of its transfers has met its other end."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.batches = [
            deque(tuple(steps) for _, steps in groupby(schedule.program(stage), key=lambda step: step.batch))
            for stage in range(schedule.pp)
        ]
        self.posted: list[list[Step]] = [[] for _ in range(schedule.pp)]
        self.here: list[set[tuple[Action, int, int]]] = [set() for _ in range(schedule.pp)]

    def run(self) -> None:
        while any(self.batches) or any(self.posted):
            progress = [self._step(stage) for stage in range(self.schedule.pp)]
            assert any(progress), f"deadlock: {self.posted}"

    def _step(self, stage: int) -> bool:
        if self.posted[stage]:
            return self._match(stage)
        if not self.batches[stage]:
            return False
        batch = self.batches[stage].popleft()
        if batch[0].action.is_compute:
            assert len(batch) == 1
            self._compute(stage, batch[0])
        else:
            for step in batch:
                if step.action.is_send:
                    self._needs_result(stage, step)
            self.posted[stage] = list(batch)
        return True

    def _compute(self, stage: int, step: Step) -> None:
        first = stage == 0 and step.chunk == 0
        last = stage == self.schedule.pp - 1 and step.chunk == self.schedule.vpp - 1
        key = (step.micro_batch, step.chunk)
        if step.action is Action.FORWARD:
            assert first or (Action.RECV_FORWARD, *key) in self.here[stage]
        else:
            assert (Action.FORWARD, *key) in self.here[stage]
            assert last or (Action.RECV_BACKWARD, *key) in self.here[stage]
        self.here[stage].add((step.action, *key))

    def _needs_result(self, stage: int, step: Step) -> None:
        made = Action.FORWARD if step.action is Action.SEND_FORWARD else Action.BACKWARD
        assert (made, step.micro_batch, step.chunk) in self.here[stage]

    def _match(self, stage: int) -> bool:
        """The first posted Send to each peer meets that peer's first posted Recv from here."""
        done = False
        for peer in {step.peer for step in self.posted[stage] if step.action.is_send}:
            assert peer is not None
            sends = [s for s in self.posted[stage] if s.action.is_send and s.peer == peer]
            receives = [s for s in self.posted[peer] if not s.action.is_send and s.peer == stage]
            for send, receive in zip(sends, receives, strict=False):
                assert message(self.schedule, stage, send) == message(self.schedule, peer, receive)
                self.here[peer].add((receive.action, receive.micro_batch, receive.chunk))
                self.posted[stage].remove(send)
                self.posted[peer].remove(receive)
                done = True
        return done


@settings(max_examples=150)
@given(schedules())
def test_a_blocking_executor_finishes(schedule: Schedule) -> None:
    executor = _Executor(schedule)
    executor.run()
    for stage in range(schedule.pp):
        ran = {key for key in executor.here[stage] if key[0].is_compute}
        assert len(ran) == 2 * schedule.total


@given(schedules())
def test_one_forward_one_backward_keeps_few_micro_batches_in_flight(schedule: Schedule) -> None:
    """The point of 1F1B: activations held are bounded by the warm-up, not by the number of micro-batches."""
    if schedule.kind is ScheduleKind.GPIPE:
        return
    for stage in range(schedule.pp):
        held = highest = 0
        for task in schedule.tasks(stage):
            held += 1 if task.phase is Phase.FORWARD else -1
            highest = max(highest, held)
        assert highest == min(schedule.warm_up(stage) + 1, schedule.total)


class _Reference:
    """Runs the *program* of one replica (Sends and Recvs, no graph) and notes when tasks start and finish."""

    def __init__(self, schedule: Schedule, work: NDArray[np.float64], delay: NDArray[np.float64]) -> None:
        self.work, self.delay = work, delay
        # Within a coalesced batch nothing waits for anything else, so its Sends may as well go first.
        self.programs = [
            deque(sorted(schedule.program(stage), key=lambda step: (step.batch, not step.action.is_send)))
            for stage in range(schedule.pp)
        ]
        self.start, self.finish = np.zeros(work.shape), np.zeros(work.shape)
        self.count = [0] * schedule.pp
        self.done: dict[tuple[int, Action, int, int], float] = {}
        self.mail: dict[tuple[int, int], deque[float]] = defaultdict(deque)

    def run(self) -> None:
        while any(self.programs):
            for stage, program in enumerate(self.programs):
                while program and self._step(stage, program[0]):
                    program.popleft()

    def _step(self, stage: int, step: Step) -> bool:
        if step.action.is_compute:
            self._compute(stage, step)
        elif step.action.is_send:
            assert step.peer is not None
            made = Action.FORWARD if step.action is Action.SEND_FORWARD else Action.BACKWARD
            self.mail[stage, step.peer].append(self.done[stage, made, step.micro_batch, step.chunk])
        else:
            assert step.peer is not None
            if not self.mail[step.peer, stage]:
                return False
            sent = self.mail[step.peer, stage].popleft()
            self.done[stage, step.action, step.micro_batch, step.chunk] = sent
        return True

    def _compute(self, stage: int, step: Step) -> None:
        index = self.count[stage]
        fed = Action.RECV_FORWARD if step.action is Action.FORWARD else Action.RECV_BACKWARD
        sent = self.done.get((stage, fed, step.micro_batch, step.chunk))
        begin = self.finish[stage, index - 1] if index else 0.0
        if sent is not None:
            begin = max(begin, sent + self.delay[stage, index])
        self.start[stage, index] = begin
        self.finish[stage, index] = begin + self.work[stage, index]
        self.done[stage, step.action, step.micro_batch, step.chunk] = float(self.finish[stage, index])
        self.count[stage] += 1


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A schedule with durations and transfers [pp, replicas, tasks], and the sync of each stage [pp]."""

    schedule: Schedule
    work: NDArray[np.float64]
    delay: NDArray[np.float64]
    sync: NDArray[np.float64]

    @property
    def graph(self) -> IterationGraph:
        return IterationGraph.of(self.schedule)

    def solve(self) -> Solution:
        return self.graph.solve(self.work, p2p_delay=self.delay, sync=self.sync)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    schedule = draw(schedules(max_pp=4, max_micro_batches=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (schedule.pp, draw(st.integers(1, 3)), 2 * schedule.total)
    if draw(st.booleans()):  # whole numbers, zero included: many ties
        work, delay = rng.integers(0, 4, shape), rng.integers(0, 2, shape)
        sync = rng.integers(0, 3, schedule.pp)
        return Problem(schedule, work.astype(float), delay.astype(float), sync.astype(float))
    return Problem(
        schedule, rng.exponential(1.0, shape), rng.exponential(0.3, shape), rng.random(schedule.pp)
    )


@given(problems())
def test_times_are_those_of_running_the_program(problem: Problem) -> None:
    solution = problem.solve()
    for replica in range(problem.work.shape[1]):
        plain = _Reference(problem.schedule, problem.work[:, replica], problem.delay[:, replica])
        plain.run()
        np.testing.assert_allclose(solution.start[:, replica], plain.start, rtol=1e-12)
        np.testing.assert_allclose(solution.finish[:, replica], plain.finish, rtol=1e-12)
    last = solution.finish[:, :, -1]
    np.testing.assert_array_equal(solution.replica_makespan, last.max(axis=0))
    np.testing.assert_array_equal(solution.sync_start, last.max(axis=1))
    np.testing.assert_array_equal(solution.sync_finish, last.max(axis=1) + problem.sync)
    assert solution.makespan == solution.sync_finish.max()
    np.testing.assert_allclose(solution.latest - solution.start, solution.slack, atol=1e-12)


@given(problems(), st.randoms(use_true_random=False))
def test_slack_is_what_a_task_may_lose_and_no_more(problem: Problem, random: Random) -> None:
    solution = problem.solve()
    end = float(solution.makespan)
    assert (solution.slack >= 0).all()
    for _ in range(4):
        node = tuple(random.randrange(size) for size in problem.work.shape)
        longer = problem.work.copy()
        longer[node] += solution.slack[node]
        arguments = {"p2p_delay": problem.delay, "sync": problem.sync}
        assert problem.graph.makespan(longer, **arguments) == pytest.approx(end, rel=1e-12)
        longer[node] += 1.5
        assert problem.graph.makespan(longer, **arguments) == pytest.approx(end + 1.5, rel=1e-12)


@given(problems())
def test_the_critical_path_is_as_long_as_the_iteration(problem: Problem) -> None:
    solution = problem.solve()
    path = problem.graph.critical_path(solution)
    assert solution.critical[tuple(np.transpose(path))].all()
    sender = problem.graph.sender
    moved = 0.0
    for before, after in pairwise(path):
        assert before.replica == after.replica
        if (before.stage, before.task + 1) != (after.stage, after.task):
            tasks = problem.graph.tasks
            assert sender[after.stage * tasks + after.task] == before.stage * tasks + before.task
            moved += problem.delay[after]
    worked = sum(problem.work[node] for node in path)
    total = worked + moved + problem.sync[path[-1].stage]
    assert total == pytest.approx(float(solution.makespan), rel=1e-12)
    blame = problem.graph.blame(solution)
    assert blame.sum() == pytest.approx(worked, rel=1e-12)
    assert set(np.flatnonzero(blame.sum(axis=0))) <= {path[0].replica}


@given(problems(), st.floats(0.01, 1000.0))
def test_scaling_all_durations_scales_all_times(problem: Problem, factor: float) -> None:
    one = problem.solve()
    other = problem.graph.solve(
        problem.work * factor, p2p_delay=problem.delay * factor, sync=problem.sync * factor
    )
    np.testing.assert_allclose(other.finish, one.finish * factor, rtol=1e-12)
    np.testing.assert_allclose(other.latest, one.latest * factor, rtol=1e-9, atol=1e-9 * factor)


@given(problems(), st.integers(0, 2**32 - 1))
def test_longer_tasks_never_end_anything_earlier(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    longer = problem.work + rng.exponential(1.0, problem.work.shape) * (rng.random(problem.work.shape) < 0.3)
    before = problem.solve()
    after = problem.graph.solve(longer, p2p_delay=problem.delay, sync=problem.sync)
    assert (after.start >= before.start).all()
    assert after.makespan >= before.makespan


@given(problems())
def test_iterations_at_once_are_iterations_one_by_one(problem: Problem) -> None:
    work = np.stack([problem.work, problem.work[:, ::-1] * 2, problem.work + 1])
    together = problem.graph.solve(work, p2p_delay=problem.delay, sync=problem.sync)
    blame = problem.graph.blame(together)
    for i, one in enumerate(work):
        alone = problem.graph.solve(one, p2p_delay=problem.delay, sync=problem.sync)
        for name in ("start", "finish", "latest", "slack", "sync_finish", "makespan", "replica_makespan"):
            np.testing.assert_array_equal(getattr(together, name)[i], getattr(alone, name), err_msg=name)
        np.testing.assert_allclose(blame[i], problem.graph.blame(alone))
        assert problem.graph.critical_path(together, iteration=i) == problem.graph.critical_path(alone)


@given(problems())
def test_single_precision_differs_by_rounding_only(problem: Problem) -> None:
    one = problem.solve()
    small = problem.graph.solve(problem.work.astype(np.float32), p2p_delay=problem.delay, sync=problem.sync)
    assert small.finish.dtype == small.slack.dtype == np.float32
    np.testing.assert_allclose(small.finish, one.finish, rtol=1e-5, atol=1e-5)
    path = problem.graph.critical_path(small)
    assert small.critical[tuple(np.transpose(path))].all()
