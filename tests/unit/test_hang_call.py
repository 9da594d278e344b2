"""Which call a rank did not make: the first one of its own program that others wait for."""

from __future__ import annotations

from typing import Any

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.model.schedule import Phase
from megatrace.simulator import MissingSend, Scenario, StuckHost, StuckKernelBefore, simulate
from megatrace.simulator.faults import Fault

DEEP: dict[str, Any] = {"pp": 6, "dp": 4, "layers_per_stage": 3, "micro_batches": 12, "ranks_per_node": 6}
PAIRED: dict[str, Any] = {"tp": 2, "pp": 4, "dp": 4, "layers_per_stage": 12, "micro_batches": 8}


@pytest.mark.parametrize(
    ("job", "fault", "peer"),
    [
        # Everybody else waits in the last collective, some of them for longer than the receiver of the Send.
        (PAIRED, MissingSend(rank=19, iteration=4, micro_batch=7, phase=Phase.BACKWARD), 11),
        # One exchange of one neighbour: the Send of what was computed, not the Recv of what comes next.
        (DEEP, StuckKernelBefore(rank=18, iteration=2, micro_batch=0, phase=Phase.BACKWARD, call=3), 14),
        # The forward's own Send to the next stage, not one of the backwards that follow.
        (DEEP, StuckHost(rank=15, iteration=2, micro_batch=2, phase=Phase.FORWARD, call=3), 19),
    ],
    ids=("among collectives", "in an exchange", "in the warm-up"),
)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_first_call_that_is_missing_is_named(
    job: dict[str, Any], fault: Fault, peer: int, seed: int
) -> None:
    run = simulate(Scenario.model_validate({**job, "iterations": 5, "seed": seed, "faults": (fault,)}))
    now = int(run.trace.events.enqueue.max()) + 600_000_000_000
    (finding, *_) = diagnose(run.trace, now=now).findings
    spec: Any = fault
    assert finding.culprits.ranks == (spec.rank,)
    where = finding.where
    assert (where.op, where.peer) == ("SEND", peer)
    assert (where.iteration, where.micro_batch, where.phase) == (
        spec.iteration,
        spec.micro_batch,
        spec.phase,
    )
