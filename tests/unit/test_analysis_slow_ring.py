"""Slow jobs seen with start and end times: one fault is one finding, whatever its victims look like."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatrace.analysis.diagnosing import diagnose
from megatrace.analysis.stagger import tied_replicas
from megatrace.model.finding import Finding, Kind, Severity
from megatrace.simulator import Scenario, SlowGpu, observe, simulate
from megatrace.simulator.faults import Fault

SMALL = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 4, "layers_per_stage": 3, "iterations": 12, "seed": 3}


def serious(*faults: Fault, **changes: Any) -> list[Finding]:
    """Findings that somebody would be called for."""
    simulation = simulate(Scenario.model_validate({**SMALL, "faults": faults, **changes}))
    found = diagnose(observe(simulation.trace, "ring")).findings
    return [finding for finding in found if finding.severity <= Severity.P2]


def test_groups_tie_replicas_together() -> None:
    grid = np.arange(8, dtype=np.int32).reshape(1, 4, 2)
    pairs = np.array([[0, 2], [1, 3], [4, 6], [5, 7]], np.int32)
    assert tied_replicas(grid, pairs).tolist() == [[0, 0, 2, 2]]
    chain = np.array([[2, 4], [4, 6], [0, 1]], np.int32)
    assert tied_replicas(grid, chain).tolist() == [[0, 1, 1, 1]]


def test_waiting_for_the_experts_of_a_slow_replica_is_no_jitter() -> None:
    found = serious(SlowGpu(rank=5, factor=2.0, first_iteration=5), ep=2, dp=4)
    assert [(finding.kind, finding.culprits.ranks) for finding in found] == [(Kind.SLOW_COMPUTE, (5,))]
