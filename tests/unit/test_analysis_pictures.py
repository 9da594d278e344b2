"""What the analysis gives to be drawn: the iteration that a hang broke off; lateness by iteration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.model.finding import Verdict
from megatrace.model.schedule import Phase
from megatrace.simulator import MissingRecv, Scenario, SlowGpu, simulate

PIPELINE = Scenario(tp=2, pp=4, dp=2, ranks_per_node=8, micro_batches=8, iterations=8, layers_per_stage=2)
CULPRIT = 10  # stage 2, replica 1, tensor member 0


@pytest.mark.parametrize("completed", [True, False], ids=["recorded", "enqueue only"])
def test_of_a_hang_the_broken_iteration_shows_who_came_how_far(completed: bool) -> None:
    fault = MissingRecv(rank=CULPRIT, iteration=5, micro_batch=3)
    trace = simulate(PIPELINE.model_copy(update={"faults": (fault,)})).trace
    if not completed:
        trace = replace(
            trace, events=trace.events.with_columns(start=None, end=None, nbytes=None, flags=None)
        )
    diagnosis = diagnose(trace, now=int(trace.events.enqueue.max()) + 600 * 10**9)
    p = diagnosis.pictures
    assert diagnosis.verdict is Verdict.HANG
    assert diagnosis.findings[0].culprits.ranks == (CULPRIT,)
    assert p.task_iteration == 5
    assert p.task_rank is not None
    assert p.task_end_s is not None
    assert p.task_start_s is not None
    assert p.task_micro_batch is not None
    assert p.task_phase is not None
    # Its pipeline from stage to stage, and the tensor member beside it, which went on.
    assert sorted(set(p.task_rank.tolist())) == [2, 6, 10, 11, 14]
    forwards = p.task_phase == tuple(Phase).index(Phase.FORWARD)
    own = p.task_micro_batch[(p.task_rank == CULPRIT) & forwards].tolist()
    assert own in ([0, 1, 2], [0, 1, 2, 3])
    beside = p.task_micro_batch[(p.task_rank == CULPRIT + 1) & forwards].tolist()
    assert beside == [0, 1, 2, 3]
    assert np.isnan(p.task_end_s).any()
    ended = np.isfinite(p.task_end_s)
    assert (p.task_end_s[ended] >= p.task_start_s[ended]).all()


def test_of_a_slowdown_a_complete_iteration_is_shown() -> None:
    fault = SlowGpu(rank=CULPRIT, factor=2.5, first_iteration=3, last_iteration=5)
    p = diagnose(simulate(PIPELINE.model_copy(update={"faults": (fault,)})).trace).pictures
    assert p.task_iteration == 4
    assert p.task_end_s is not None
    assert np.isfinite(p.task_end_s).all()
    assert p.task_critical is not None
    assert p.task_critical.any()


def test_each_call_of_lateness_has_its_iteration() -> None:
    fault = SlowGpu(rank=CULPRIT, factor=2.5, first_iteration=3, last_iteration=5)
    trace = simulate(PIPELINE.model_copy(update={"faults": (fault,)})).trace
    p = diagnose(trace).pictures
    assert p.lateness_ms is not None
    assert p.lateness_ranks is not None
    assert p.lateness_iteration is not None
    assert p.lateness_ms.shape == (2, len(p.lateness_iteration))
    assert (np.diff(p.lateness_iteration) >= 0).all()
    late = p.lateness_ms[p.lateness_ranks.tolist().index(CULPRIT)]
    inside = (p.lateness_iteration >= 3) & (p.lateness_iteration <= 5)
    assert np.nanmedian(late[inside]) > 3 * np.nanmedian(late[~inside])
