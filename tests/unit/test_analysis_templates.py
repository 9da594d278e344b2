"""Call strings fabricated from schedules: fitted to the right schedule, every task found where it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from megatrace.analysis import templates
from megatrace.analysis.locate import position_tasks
from megatrace.analysis.templates import CallString, TaskMap, fit, map_tasks, schedule_candidates
from megatrace.model.events import Op
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Action, Phase, Schedule
from tests.unit.analysis_cases import Truth, call_string

PLAIN = Schedule(ScheduleKind.ONE_F_ONE_B, 4, 8)
GPIPE = Schedule(ScheduleKind.GPIPE, 4, 8)
CHUNKS = Schedule(ScheduleKind.INTERLEAVED, 4, 8, 2)
TWO = Schedule(ScheduleKind.INTERLEAVED, 2, 4, 3)


def assert_mapped(found: TaskMap, truth: Truth) -> None:
    for name in ("begin", "last", "end", "recv", "send"):
        np.testing.assert_array_equal(getattr(found, name), getattr(truth, name), err_msg=name)


@pytest.mark.parametrize("schedule", [PLAIN, GPIPE, CHUNKS, TWO], ids=lambda s: f"{s.kind.value}-{s.pp}")
@pytest.mark.parametrize("before", [0, 5])
def test_every_task_is_found_on_every_stage(schedule: Schedule, before: int) -> None:
    for stage in range(schedule.pp):
        # The embedding adds a call to every forward of the first stage.
        forward = 5 if stage == 0 and schedule.vpp == 1 else 4
        loss = 3 if stage == schedule.pp - 1 else 0
        string, truth = call_string(schedule, stage, forward, 6, loss=loss, before=before, after=4)
        assert fit(schedule, string) == 1.0
        assert_mapped(map_tasks(schedule, string), truth)


def test_the_loss_belongs_to_the_forward_of_the_last_stage() -> None:
    """On the last stage forward and backward follow each other without a Send; the loss is small and
    between."""
    string, truth = call_string(PLAIN, 3, 4, 8, loss=2)
    found = map_tasks(PLAIN, string)
    forward = [i for i, task in enumerate(found.tasks) if task.phase is Phase.FORWARD]
    assert {int(found.last[i] - found.begin[i]) + 1 for i in forward} == {6}
    assert_mapped(found, truth)


def test_without_a_loss_an_inner_stage_tells_how_long_a_forward_is() -> None:
    string, truth = call_string(PLAIN, 3, 4, 8)
    assert_mapped(map_tasks(PLAIN, string, inner_forward=4), truth)
    with pytest.raises(AssertionError):  # half of 12 is not 4: nothing else in the string says so
        assert_mapped(map_tasks(PLAIN, string), truth)


def test_calls_of_the_end_of_the_iteration_before_are_not_the_first_forward() -> None:
    string, truth = call_string(PLAIN, 0, 4, 4)
    stray = 3  # a gather of parameters, on a tensor channel, before the first forward
    moved = CallString(
        0,
        np.concatenate([string.role[:stray], string.role]),
        np.concatenate([np.full(stray, Op.ALL_GATHER, np.uint8), string.op]),
        np.concatenate([string.count[:stray], string.count]),
    )
    found = map_tasks(PLAIN, moved)
    assert int(found.begin[0]) == int(truth.begin[0]) + stray
    assert int(found.last[0]) == int(truth.last[0]) + stray


def test_another_schedule_does_not_fit() -> None:
    for stage in range(4):
        string, _ = call_string(PLAIN, stage, 2, 2)
        assert fit(replace_count(PLAIN, 7), string) == 0.0
        if stage in (0, 3):  # inner stages receive and send by turns in both
            assert fit(GPIPE, string) < templates.FITS
        assert fit(CHUNKS, string) == 0.0


def replace_count(schedule: Schedule, micro_batches: int) -> Schedule:
    return replace(schedule, micro_batches=micro_batches)


def test_order_inside_a_batch_does_not_count() -> None:
    """One launcher posts the Recv of a coalesced pair first, another the Send."""
    string, truth = call_string(PLAIN, 1, 3, 3)
    steps = PLAIN.program(1)
    p2p = string.p2p
    op = string.op.copy()
    at = 0
    swapped = 0
    for step, following in pairwise(steps):
        if step.action.is_compute:
            continue
        if following.batch == step.batch:
            op[p2p[at]], op[p2p[at + 1]] = op[p2p[at + 1]], op[p2p[at]]
            swapped += 1
        at += 1
    assert swapped > 5
    turned = replace(string, op=op)
    assert fit(PLAIN, turned) == 1.0
    found = map_tasks(PLAIN, turned)
    np.testing.assert_array_equal(found.begin, truth.begin)
    for column, wanted in ((found.send, Op.SEND), (found.recv, Op.RECV)):
        known = column[column >= 0]
        assert (turned.op[known] == wanted).all()
        assert len(known) == np.sum(turned.op[p2p] == wanted)


@pytest.mark.parametrize("schedule", [PLAIN, GPIPE, CHUNKS, TWO], ids=lambda s: f"{s.kind.value}-{s.pp}")
def test_the_sends_of_the_first_stage_lead_to_the_schedule(schedule: Schedule) -> None:
    sends = sum(step.action.is_send for step in schedule.program(0))
    assert schedule in list(schedule_candidates(sends, schedule.pp, None))
    assert schedule in list(schedule_candidates(sends, schedule.pp, schedule.micro_batches))
    assert schedule not in list(schedule_candidates(sends, schedule.pp, schedule.micro_batches + 1))


def test_a_position_belongs_to_its_task_with_its_receive_and_send() -> None:
    string, truth = call_string(PLAIN, 1, 3, 3, before=2, after=2)
    tasks = position_tasks(string, map_tasks(PLAIN, string))
    assert tasks[:2].tolist() == [-1, -1]
    assert tasks[-3:].tolist() == [-1, -1, -1]
    for task in range(len(truth.begin)):
        assert (tasks[truth.begin[task] : truth.last[task] + 1] == task).all()
        for position in (truth.recv[task], truth.send[task]):
            assert position < 0 or tasks[position] == task


def test_every_step_of_a_program_is_an_action_of_a_task() -> None:
    """The mapping relies on it: a Send or Recv names the task that it empties or feeds."""
    for stage in range(4):
        for step in PLAIN.program(stage):
            if step.action in (Action.SEND_FORWARD, Action.RECV_BACKWARD):
                assert step.peer == stage + 1
