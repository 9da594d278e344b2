"""Verdicts on simulated jobs whose layout nobody declared: who is slow, and that nobody is accused in
vain."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from megatrace.analysis.diagnosing import Analysis, analyse
from megatrace.model.finding import Finding, Kind, Severity, Status, Verdict
from megatrace.model.job import JobConfig, Sourced
from megatrace.model.layout import Axis
from megatrace.model.trace import Trace
from megatrace.simulator import (
    DataLoaderStall,
    Scenario,
    SequenceImbalance,
    SlowGpu,
    SlowHost,
    StageImbalance,
    observe,
    simulate,
)
from megatrace.simulator.faults import Fault

SMALL = {"tp": 2, "pp": 3, "dp": 2, "micro_batches": 6, "layers_per_stage": 4, "iterations": 14, "seed": 7}


SMALL_OPTIMIZER_MS = 47.0
"""44 ms of the scenario, with the loss's and the norm's small kernels."""


def job(*faults: Fault, **changes: object) -> Scenario:
    return Scenario.model_validate({**SMALL, "faults": faults, **changes})


@lru_cache(maxsize=4)
def simulated(scenario: Scenario) -> Trace:
    """Several sources look at one job."""
    return simulate(scenario).trace


def seen(scenario: Scenario, source: str) -> Trace:
    """The trace as a source gives it; of the configuration only who runs on which node."""
    per_node = Sourced(scenario.ranks_per_node, "--ranks-per-node")
    return replace(observe(simulated(scenario), source), job=JobConfig(ranks_per_node=per_node))


def findings(scenario: Scenario, source: str) -> tuple[Finding, ...]:
    return analyse(seen(scenario, source)).diagnosis.findings


def only(scenario: Scenario, source: str) -> Finding:
    (finding,) = findings(scenario, source)
    return finding


# --- work ---


@pytest.fixture(scope="module")
def ring() -> tuple[Scenario, Analysis, np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    scenario = job(SlowGpu(rank=5, factor=1.8, first_iteration=6, last_iteration=10))
    simulation = simulate(scenario)
    return scenario, analyse(replace(simulation.trace, job=JobConfig())), simulation.truth.work_ms


def test_own_work_is_what_the_device_was_asked_to_do(
    ring: tuple[Scenario, Analysis, np.ndarray[tuple[int, int], np.dtype[np.float32]]],
) -> None:
    """Waiting for other members, for neighbours and for the network is not in it."""
    _, analysis, truth = ring
    table = analysis.table
    assert table is not None
    assert table.own is not None
    own = np.moveaxis(table.own.sum(axis=-1), 0, -1)[..., 2:] * 1e3  # [S, D, M, K]
    asked = truth[table.grid][..., 2:]
    culprit = table.grid == 5
    growth = np.median(own[..., 4:9], axis=-1) / np.median(own[..., :4], axis=-1)
    assert growth[culprit][0] == pytest.approx(1.8, abs=0.05)
    np.testing.assert_allclose(growth[~culprit], 1.0, atol=0.05)
    # The optimizer step is asked of the device too, but in no task: it is the same on all ranks.
    rest = (asked - own)[~culprit]
    np.testing.assert_allclose(rest, SMALL_OPTIMIZER_MS, atol=0.05 * own.min())


def test_waiting_is_counted_where_it_happens(
    ring: tuple[Scenario, Analysis, np.ndarray[tuple[int, int], np.dtype[np.float32]]],
) -> None:
    _, analysis, _ = ring
    table = analysis.table
    assert table is not None
    waited = np.nansum(table.wait, axis=-1)  # [K, S, D, M]
    place = tuple(int(i) for i in np.argwhere(table.grid == 5)[0])
    others = [int(i) for i in range(3) if i != place[0]]
    grown = waited[6:11].mean(axis=0) - waited[1:5].mean(axis=0)
    assert grown[others, place[1]].min() > 0.02  # the other stages of its replica wait for it
    assert grown[place] < 0.5 * grown[others, place[1]].max()


# --- healthy ---

LAYOUTS: list[dict[str, object]] = [
    {"tp": 2, "pp": 3, "dp": 2},
    {"tp": 4, "pp": 2, "dp": 1},
    {"tp": 1, "pp": 4, "dp": 3},
    {"tp": 2, "pp": 2, "dp": 2, "vpp": 2, "micro_batches": 4},
    {"tp": 2, "pp": 4, "dp": 1, "schedule": "gpipe", "micro_batches": 8},
    {"tp": 2, "pp": 2, "dp": 2, "iterations": 21, "evaluate_every": 5, "checkpoint_every": 10},
    {"tp": 2, "pp": 2, "dp": 2, "clock_offset_us": 800.0, "compute_noise": 0.03, "outlier_share": 2e-3},
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_a_healthy_job_accuses_nobody(number: int) -> None:
    trace = simulate(job(**{**LAYOUTS[number], "seed": number})).trace
    for source in ("ring", "text", "text-hash"):
        diagnosis = analyse(replace(observe(trace, source), job=JobConfig())).diagnosis
        serious = [finding.summary for finding in diagnosis.findings if finding.severity <= Severity.P2]
        assert serious == [], source
        assert diagnosis.verdict is Verdict.HEALTHY, (source, diagnosis.headline)
        assert diagnosis.exit_code == 0


# --- slow ---


@pytest.mark.parametrize("rank", [1, 4, 11])
@pytest.mark.parametrize("source", ["ring", "text", "text-hash"])
def test_a_slow_device_is_named(source: str, rank: int) -> None:
    scenario = job(SlowGpu(rank=rank, factor=1.8, first_iteration=5, last_iteration=9))
    finding = only(scenario, source)
    assert finding.kind is Kind.SLOW_COMPUTE
    stage = scenario.layout.place(rank).stage
    assert finding.where.stage == stage
    assert finding.status is Status.RECOVERED
    assert finding.window is not None
    assert (finding.window.first_iteration, finding.window.last_iteration) == (5, 9)
    assert rank in finding.culprits.ranks
    assert finding.ambiguous is (len(finding.culprits.ranks) > 1)
    assert set(finding.culprits.ranks) <= set(scenario.layout.group(Axis.TENSOR, rank))
    assert not set(finding.culprits.ranks) & set(finding.victims)
    assert len(finding.culprits.ranks) + len(finding.victims) == 12


def test_seconds_lost_are_those_of_the_counterfactual() -> None:
    scenario = job(SlowGpu(rank=4, factor=1.8, first_iteration=5, last_iteration=9))
    with_fault = simulate(scenario).truth.iteration_ms
    without = simulate(scenario.without_faults()).truth.iteration_ms
    lost = float((with_fault - without).sum()) / 1e3
    assert only(scenario, "ring").impact.seconds_lost == pytest.approx(lost, rel=0.1)
    # Host times show less of a task than the device spends on it, so bubbles seem to take up more.
    assert 0.4 * lost < (only(scenario, "text").impact.seconds_lost or 0.0) < 1.1 * lost


def test_two_faults_are_two_findings() -> None:
    first = SlowGpu(rank=1, factor=1.9, first_iteration=3, last_iteration=5)
    second = SlowGpu(rank=10, factor=1.7, first_iteration=9, last_iteration=12)
    found = findings(job(first, second), "ring")
    assert {finding.culprits.ranks for finding in found} == {(1,), (10,)}
    windows = {f.culprits.ranks[0]: f.window for f in found}
    for rank, fault in ((1, first), (10, second)):
        window = windows[rank]
        assert window is not None
        assert (window.first_iteration, window.last_iteration) == (
            fault.first_iteration,
            fault.last_iteration,
        )


def test_a_delay_that_costs_less_than_a_twentieth_accuses_nobody() -> None:
    assert findings(job(SlowGpu(rank=4, factor=1.02)), "ring") == ()


def test_a_starved_node_is_a_host_and_no_device() -> None:
    scenario = job(SlowHost(node=0, factor=8.0, first_iteration=5), tp=2, pp=2, dp=4, ranks_per_node=4)
    finding = only(scenario, "ring")
    assert finding.kind is Kind.SLOW_HOST
    assert finding.culprits.nodes == ("node0",)
    assert finding.culprits.ranks == (0, 1, 2, 3)
    assert finding.status is Status.ONGOING


def test_starved_ranks_of_a_node_that_nobody_named_are_one_finding() -> None:
    starved = SlowHost(node=0, factor=8.0, first_iteration=5)
    scenario = job(starved, tp=2, pp=2, dp=4, ranks_per_node=4)
    trace = replace(observe(simulated(scenario), "text"), job=JobConfig(), places=())
    found = analyse(trace).diagnosis.findings
    assert [(item.kind, item.culprits.ranks, item.culprits.nodes) for item in found] == [
        (Kind.SLOW_HOST, (0, 1, 2, 3), ())
    ]
    assert found[0].victims == tuple(range(4, 16))


def test_a_late_loader_is_storage() -> None:
    scenario = job(DataLoaderStall(rank=0, stall_ms=400.0, first_iteration=4, every=2))
    finding = findings(scenario, "ring")[0]
    assert Kind.SLOW_STORAGE in (finding.kind, *finding.kind_alternatives)
    assert finding.culprits.ranks == (0,)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (SequenceImbalance(sigma=0.5), Kind.IMBALANCE),
        (StageImbalance(stage=1, factor=1.5), Kind.IMBALANCE),
    ],
    ids=lambda item: getattr(item, "fault", ""),
)
def test_what_belongs_to_nobody_names_nobody(fault: Fault, kind: Kind) -> None:
    found = findings(job(fault, dp=4), "ring")
    assert found
    assert found[0].kind is kind
    for finding in found:
        assert finding.culprits.ranks == ()
        assert finding.kind not in (Kind.SLOW_COMPUTE, Kind.SLOW_HOST, Kind.SLOW_NETWORK)
