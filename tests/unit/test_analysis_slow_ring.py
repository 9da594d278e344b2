"""Slow jobs seen with start and end times: one fault is one finding, whatever its victims look like."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatrace.analysis.diagnosing import diagnose
from megatrace.analysis.reductions import distinct
from megatrace.analysis.slow import _of_jitter
from megatrace.analysis.stagger import tied_replicas
from megatrace.model.finding import Finding, Kind, Severity
from megatrace.simulator import DataLoaderStall, Scenario, SlowGpu, SlowHost, observe, simulate
from megatrace.simulator.faults import Fault, SlowLink, SlowNic

SMALL = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 4, "layers_per_stage": 3, "iterations": 12, "seed": 3}


FLAT: dict[str, Any] = {
    "pattern": "fsdp", "tp": 1, "pp": 1, "dp": 16, "micro_batches": 2, "micro_batch_size": 4,
    "layers_per_stage": 8, "layer_forward_ms": 12.0, "layer_backward_ms": 24.0,
}  # fmt: skip
"""Its gradient traffic is hidden behind its kernels."""


def found(*faults: Fault, **changes: Any) -> tuple[Finding, ...]:
    simulation = simulate(Scenario.model_validate({**SMALL, "faults": faults, **changes}))
    return diagnose(observe(simulation.trace, "ring")).findings


def serious(*faults: Fault, **changes: Any) -> list[Finding]:
    """Findings that somebody would be called for."""
    return [finding for finding in found(*faults, **changes) if finding.severity <= Severity.P2]


def test_groups_tie_replicas_together() -> None:
    grid = np.arange(8, dtype=np.int32).reshape(1, 4, 2)
    pairs = np.array([[0, 2], [1, 3], [4, 6], [5, 7]], np.int32)
    assert tied_replicas(grid, pairs).tolist() == [[0, 0, 2, 2]]
    chain = np.array([[2, 4], [4, 6], [0, 1]], np.int32)
    assert tied_replicas(grid, chain).tolist() == [[0, 1, 1, 1]]


def test_waiting_for_the_experts_of_a_slow_replica_is_no_jitter() -> None:
    told = serious(SlowGpu(rank=5, factor=2.0, first_iteration=5), ep=2, dp=4)
    assert [(finding.kind, finding.culprits.ranks) for finding in told] == [(Kind.SLOW_COMPUTE, (5,))]


def test_traffic_that_waiting_hides_makes_nobody_else_slow() -> None:
    # While all wait for rank 1 their gradients travel unseen, so their work looks shorter than usual.
    told = serious(SlowGpu(rank=1, factor=1.0, drift=0.17, first_iteration=8), **FLAT, iterations=20)
    assert [(finding.kind, finding.culprits.ranks) for finding in told] == [(Kind.SLOW_COMPUTE, (1,))]


def test_slow_gradients_are_the_networks_and_neither_work_nor_jitter() -> None:
    nic = SlowNic(rank=10, factor=20.0, first_iteration=4, last_iteration=8)
    everybody = tuple(range(16))
    told = serious(nic, **{**FLAT, "pattern": "ddp", "micro_batches": 4})
    assert [(finding.kind, finding.culprits.ranks) for finding in told] == [(Kind.SLOW_NETWORK, everybody)]
    half = serious(nic, tp=2, pp=1, dp=8)
    assert [(finding.kind, finding.culprits.ranks) for finding in half] == [
        (Kind.SLOW_NETWORK, everybody[::2])
    ]


def test_gradients_that_were_always_slow_are_noted() -> None:
    (note,) = found(SlowNic(rank=15, factor=20.0), **FLAT)
    assert (note.severity, note.kind, note.ambiguous) == (Severity.P3, Kind.SLOW_NETWORK, True)
    assert note.culprits.ranks == tuple(range(16))
    assert not found(**{**FLAT, "layer_forward_ms": 60.0, "layer_backward_ms": 120.0})


def test_a_stall_of_every_fourth_iteration_is_one_fault() -> None:
    stall = DataLoaderStall(rank=1, stall_ms=400.0, every=4, first_iteration=4, last_iteration=9)
    (finding,) = serious(stall)
    assert finding.window is not None
    assert (finding.window.first_iteration, finding.window.last_iteration) == (4, 8)


def test_waits_for_one_peer_in_one_batch_count_once() -> None:
    start = np.array([[0.0, 0.0, 5.0, 9.0]])
    length = np.array([[3.0, 4.0, np.nan, 1.0]])
    np.testing.assert_array_equal(distinct(start, length), [[3.0, 1.0, np.nan, 1.0]])


def test_a_loader_among_context_peers_makes_no_stage_look_short() -> None:
    # Keys and values go round by Send and Recv: both wait for the late peer, at the same time.
    told = serious(DataLoaderStall(rank=2, stall_ms=330.0), cp=2)
    assert [(finding.kind, finding.culprits.ranks) for finding in told] == [(Kind.SLOW_STORAGE, (2,))]


def test_members_that_wait_for_starved_hosts_by_turns_are_no_jitter() -> None:
    told = serious(
        SlowHost(node=1, factor=19.0, first_iteration=6, last_iteration=8),
        tp=4,
        sequence_parallel=True,
        iterations=14,
    )
    assert [(finding.kind, finding.culprits.nodes) for finding in told] == [(Kind.SLOW_HOST, ("node1",))]


TIED: dict[str, Any] = {"dp": 4, "ranks_per_node": 4, "distributed_optimizer": False, "tied_embeddings": True}
"""First and last stage also reduce the gradients of their common embedding."""


def test_a_path_and_the_embedding_across_it_are_one_path() -> None:
    (finding,) = serious(SlowLink(src=0, dst=8, factor=12.0), **TIED)
    assert (finding.kind, finding.culprits.ranks) == (Kind.SLOW_NETWORK, (0, 8))


def test_two_slow_collectives_have_one_rank_in_common() -> None:
    (finding,) = serious(SlowNic(rank=9, factor=12.0), **TIED)
    assert (finding.kind, finding.culprits.ranks) == (Kind.SLOW_NETWORK, (9,))


def test_the_slowest_of_all_who_are_scattered_is_no_culprit() -> None:
    usual, jitter = 1.0, np.array([0.0, 0.2, 0.2, 0.2, 0.0])
    assert _of_jitter(np.array([0.0, 0.06, 0.0, 0.05, 0.0]), jitter, usual)
    # What costs more than the jitter, or lies outside it, is a fault of its own.
    assert not _of_jitter(np.array([0.0, 0.4, 0.4, 0.4, 0.0]), jitter, usual)
    assert not _of_jitter(np.array([0.06, 0.06, 0.0, 0.0, 0.06]), jitter, usual)
