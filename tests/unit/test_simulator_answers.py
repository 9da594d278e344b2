"""What may be concluded from a slow path or a long save: physics of the job, not of the analysis."""

from __future__ import annotations

import numpy as np
import pytest

from megatrace.model.schedule import Phase
from megatrace.simulator import Answer, Scenario, simulate
from megatrace.simulator.faults import CheckpointStall, SlowLink, SlowNic, StuckHost, StuckKernelBefore
from megatrace.simulator.truth import compared


def answers(fault: SlowLink | SlowNic | CheckpointStall, **settings: object) -> dict[str, Answer]:
    scenario = Scenario.model_validate(
        {"micro_batches": 2, "iterations": 2, "layers_per_stage": 1, "faults": [fault], **settings}
    )
    return dict(simulate(scenario).truth.faults[0].answers)


@pytest.mark.parametrize(
    ("settings", "rank", "ranks"),
    [
        # Four stages of four ranks on nodes of four: both neighbours are on other nodes.
        ({"tp": 2, "pp": 4, "dp": 2, "ranks_per_node": 4}, 5, (5,)),
        # Nodes of eight hold two stages: rank 5's neighbour below is on its own node, the one above is not.
        ({"tp": 2, "pp": 4, "dp": 2, "ranks_per_node": 8}, 5, (5, 9)),
        # No pipeline: what crosses the nodes is the gradient all-reduce, whose members end together.
        ({"tp": 2, "dp": 8}, 3, (1, 3, 5, 7, 9, 11, 13, 15)),
        # An interleaved pipeline wraps around, which gives the last stage a second far neighbour.
        (
            {"tp": 2, "pp": 4, "vpp": 2, "layers_per_stage": 2, "micro_batches": 4, "ranks_per_node": 2},
            7,
            (7,),
        ),
    ],
)
def test_a_nic_shows_only_on_paths_to_other_nodes(
    settings: dict[str, object], rank: int, ranks: tuple[int, ...]
) -> None:
    ring = answers(SlowNic(rank=rank), **settings)["ring"]
    assert ring.ranks == ranks
    assert not ring.undecidable


def test_a_collective_of_the_whole_job_has_nothing_to_be_compared_with() -> None:
    ring = answers(SlowNic(rank=3), pattern="ddp", dp=16)["ring"]
    assert ring.undecidable
    assert ring.ranks == tuple(range(16))


def test_a_slow_step_of_a_collective_names_the_collective() -> None:
    settings: dict[str, object] = {"tp": 2, "dp": 8}
    assert answers(SlowLink(src=6, dst=8), **settings)["ring"].ranks == (0, 2, 4, 6, 8, 10, 12, 14)
    piped: dict[str, object] = {"tp": 2, "pp": 2, "dp": 2, "ranks_per_node": 4}
    assert answers(SlowLink(src=1, dst=5), **piped)["ring"].ranks == (1, 5)


@pytest.mark.parametrize(
    ("stall_ms", "ranks", "undecidable"), [(1800.0, (), True), (2200.0, (), False), (1800.0, (3,), False)]
)
def test_a_save_of_all_ranks_shows_only_by_its_length(
    stall_ms: float, ranks: tuple[int, ...], undecidable: bool
) -> None:
    fault = CheckpointStall(ranks=ranks, stall_ms=stall_ms, every=2)
    told = answers(fault, tp=2, dp=2, checkpoint_every=2, checkpoint_ms=1000.0)
    assert {answer.undecidable for answer in told.values()} == {undecidable}


def test_the_start_of_a_job_is_no_iteration_of_a_fault() -> None:
    fault = simulate(
        Scenario.model_validate({"tp": 2, "micro_batches": 2, "iterations": 4, "faults": [SlowNic(rank=1)]})
    ).truth.faults[0]
    usual = np.ones(4)
    starting = compared(fault, np.array([9.0, 1.0, 1.0, 1.0]), usual, sporadic=False)
    assert (starting.positive, starting.affected) == (False, ())
    later = compared(fault, np.array([9.0, 1.0, 2.0, 2.0]), usual, sporadic=False)
    assert (later.positive, later.affected, later.slowdown) == (True, (2, 3), 2.0)


def test_a_stop_is_at_the_call_that_it_keeps_from_coming() -> None:
    job = {"micro_batches": 4, "iterations": 2, "layers_per_stage": 2}
    # One tensor rank a stage: the last stage makes no call between its forward and the Send of its backward.
    host = StuckHost(rank=1, iteration=1, micro_batch=2, phase=Phase.FORWARD)
    truth = simulate(Scenario.model_validate({**job, "pp": 2, "faults": [host]})).truth.faults[0]
    assert (truth.phase, truth.micro_batch, truth.op) == (Phase.BACKWARD, 2, "SEND")
    # Parameters are gathered ahead of the kernels, so a stuck one is first missed where gradients are due.
    kernel = StuckKernelBefore(rank=1, iteration=1, micro_batch=2, phase=Phase.FORWARD)
    sharded = {**job, "pattern": "fsdp", "dp": 2, "faults": [kernel]}
    truth = simulate(Scenario.model_validate(sharded)).truth.faults[0]
    assert (truth.phase, truth.micro_batch, truth.op) == (Phase.BACKWARD, 2, "REDUCE_SCATTER")
