"""Whatever the schedule: a call string written from it is read back to the call."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megatrace.analysis.templates import FITS, fit, map_tasks
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Phase, Schedule
from tests.unit.analysis_cases import call_string


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule of at least two stages."""
    kind = draw(st.sampled_from(list(ScheduleKind)))
    pp = draw(st.integers(2, 5))
    if kind is not ScheduleKind.INTERLEAVED:
        return Schedule(kind, pp, draw(st.integers(1, 12)))
    return Schedule(kind, pp, pp * draw(st.integers(1, 3)), draw(st.integers(2, 3)))


@settings(max_examples=150)
@given(schedules(), st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(0, 3), st.data())
def test_what_was_written_is_read(
    schedule: Schedule, forward: int, backward: int, loss: int, before: int, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, schedule.pp - 1))
    string, truth = call_string(schedule, stage, forward, backward, loss=loss, before=before, after=2)
    assert fit(schedule, string) == 1.0
    found = map_tasks(schedule, string)
    np.testing.assert_array_equal(found.recv, truth.recv)
    np.testing.assert_array_equal(found.send, truth.send)
    np.testing.assert_array_equal(found.begin, truth.begin)
    np.testing.assert_array_equal(found.last, truth.last)
    np.testing.assert_array_equal(found.end, truth.end)
    ends = [found.end[i] for i, task in enumerate(found.tasks) if task.phase is Phase.FORWARD]
    assert (np.asarray(ends) > 0).all()


@settings(max_examples=60)
@given(schedules(), st.integers(0, 10_000))
def test_a_string_with_one_transfer_less_is_no_iteration(schedule: Schedule, drawn: int) -> None:
    string, _ = call_string(schedule, drawn % schedule.pp, 2, 2)
    lost = string.p2p[drawn % len(string.p2p)]
    keep = np.arange(len(string.op)) != lost
    shorter = type(string)(string.stage, string.role[keep], string.op[keep], string.count[keep])
    assert fit(schedule, shorter) < FITS
