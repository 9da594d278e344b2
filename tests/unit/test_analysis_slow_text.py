"""What host times alone tell of slowness, and what they must not be made to tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.analysis.stagger import group_work
from megatrace.model.finding import Finding, Kind, Severity, Status
from megatrace.model.layout import ParallelLayout
from megatrace.simulator import Scenario, SlowGpu, observe, simulate
from megatrace.simulator.faults import CheckpointStall, Fault, Jitter, SlowLink

SMALL = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 4, "layers_per_stage": 3, "iterations": 12, "seed": 3}


def serious(*faults: Fault, source: str = "text", **changes: Any) -> list[Finding]:
    """Findings that somebody would be called for."""
    simulation = simulate(Scenario.model_validate({**SMALL, "faults": faults, **changes}))
    found = diagnose(observe(simulation.trace, source)).findings
    return [finding for finding in found if finding.severity <= Severity.P2]


def named(*faults: Fault, **changes: Any) -> list[tuple[Kind, tuple[int, ...]]]:
    """Kind and ranks of the serious findings."""
    return [(finding.kind, finding.culprits.ranks) for finding in serious(*faults, **changes)]


EVEN: dict[str, Any] = {"layers_per_stage": 12, "micro_batches": 8, "pp": 2}
"""The loss makes the last of few layers' stages longer than the others by a fifth, which is said."""


def test_work_is_what_is_left_when_all_that_are_tied_have_come() -> None:
    layout = ParallelLayout(tp=2, pp=1, dp=4, ep=2)
    grid = layout.grid().reshape(1, 4, 2)
    total = np.array([[5.0, 6.0], [3.0, 4.0], [8.0, 7.0], [9.0, 9.0]]).reshape(1, 1, 4, 2, 1)
    assert group_work(layout, grid, total)[0, 0, :, 0].tolist() == [3.0, 3.0, 7.0, 7.0]
    alone = ParallelLayout(tp=2, pp=1, dp=4)
    assert group_work(alone, grid, total)[0, 0, :, 0].tolist() == [5.0, 3.0, 7.0, 9.0]


def test_who_shares_experts_with_a_held_up_replica_only_waits() -> None:
    experts = {"source": "text-hash", "ep": 2, "dp": 4}
    slow = SlowGpu(rank=3, factor=3.0, first_iteration=5, last_iteration=8)
    assert named(slow, **experts) == [(Kind.SLOW_COMPUTE, (3,))]
    path = SlowLink(src=3, dst=11, factor=27.0, first_iteration=5)
    assert named(path, **experts) == [(Kind.SLOW_NETWORK, (3, 11))]


@pytest.mark.parametrize("ranks", [(2,), ()])
def test_waiting_for_who_saves_longest_is_no_work(ranks: tuple[int, ...]) -> None:
    # Without calls inside a forward its beginning shows only by the bookkeeping before it.
    save = CheckpointStall(ranks=ranks, stall_ms=4000.0, every=4)
    job = {**EVEN, "tp": 1, "dp": 4, "checkpoint_every": 4, "checkpoint_ms": 500.0, "iterations": 14}
    assert named(save, **job) == [(Kind.SLOW_STORAGE, ranks)]
    assert not named(**job, evaluate_every=4, log_every=3)


def test_pauses_of_the_whole_job_come_and_go() -> None:
    save = CheckpointStall(ranks=(), stall_ms=4000.0, every=4)
    (pause,) = serious(save, **EVEN, tp=1, dp=4, checkpoint_every=4, checkpoint_ms=500.0, iterations=14)
    assert pause.status is Status.INTERMITTENT
    assert "now and then between iterations" in pause.summary


def test_jitter_from_the_first_step_on_is_told() -> None:
    assert named(Jitter(sigma=0.5), **EVEN) == [(Kind.JITTER, ())]
    assert named(Jitter(sigma=0.5), pp=1, dp=8) == [(Kind.JITTER, ())]
    assert not named(**EVEN, compute_noise=0.02, host_noise=0.1)
