"""Every hang fault of the simulator, seen with completions and without, judged against the ground truth.

The recorder outlives the hang by ten minutes, as a watchdog's limit does, so silence is proven; what a
recording that ends with its job can still show is tested apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megatrace.analysis.hang import HangResult, Hints, find_hangs
from megatrace.model.finding import Kind
from megatrace.model.frontier import Frontier
from megatrace.model.schedule import Phase
from megatrace.model.trace import Trace
from megatrace.simulator import (
    Capture,
    CommDeadlock,
    DeadLink,
    DeadNode,
    DeadRank,
    Fault,
    GcPauses,
    LateDeaths,
    MissingRecv,
    MissingSend,
    OrderMismatch,
    Scenario,
    Simulation,
    SizeMismatch,
    SkippedCollective,
    StuckHost,
    StuckInside,
    StuckKernelBefore,
    simulate,
)

WATCHDOG_NS = 600 * 10**9

LAYOUTS: dict[str, Scenario] = {
    "tp2 pp4": Scenario(tp=2, pp=4, ranks_per_node=4, iterations=5),
    "tp4 pp2 dp2": Scenario(tp=4, pp=2, dp=2, ranks_per_node=4, iterations=5),
    "pp4 dp4": Scenario(pp=4, dp=4, ranks_per_node=4, iterations=5),
    "tp4 dp4": Scenario(tp=4, dp=4, iterations=5),
    "tp8 pp2 dp2": Scenario(tp=8, pp=2, dp=2, iterations=5, layers_per_stage=2),
}


def weak(trace: Trace) -> Trace:
    """What a text log holds once communicators and peers were inferred."""
    return replace(trace, events=trace.events.with_columns(start=None, end=None, nbytes=None, flags=None))


def judge(trace: Trace, scenario: Scenario, *, proven: bool = True, tail: int = 64) -> HangResult:
    frontier = Frontier.from_events(trace.events, trace.communicators, trace.snapshot_at, tail=tail)
    until = int(trace.events.enqueue.max()) + WATCHDOG_NS if proven else None
    return find_hangs(
        frontier,
        scenario.layout,
        place_of={place.rank: place for place in trace.places}.__getitem__,
        coverage=trace.coverage,
        history=trace.events,
        hints=Hints(until=until, ended_normally=False),
    )


def faults_of(scenario: Scenario, seed: int) -> list[Fault]:
    """One of each fault that any source can tell, at places drawn by the seed."""
    random = np.random.default_rng(seed)
    rank = int(random.integers(scenario.world_size))
    place = scenario.layout.place(rank)
    batch = int(random.integers(1, 6))
    at: dict[str, Any] = {"rank": rank, "iteration": 3, "micro_batch": batch}
    call: dict[str, Any] = {**at, "phase": Phase.FORWARD, "call": int(random.integers(1, 5))}
    found: list[Fault] = [
        StuckHost(**call),
        StuckKernelBefore(**call),
        DeadRank(**call),
        CommDeadlock(rank=rank, iteration=3),
    ]
    if scenario.tp > 1:
        found += [
            StuckInside(**call),
            SkippedCollective(**call),
            SizeMismatch(**call),
        ]
    if scenario.dp > 1:
        found.append(OrderMismatch(rank=rank, iteration=3))
    if scenario.pp > 1:
        stage = place.stage + 1 if place.stage + 1 < scenario.pp else place.stage - 1
        other = scenario.layout.rank(replace(place, stage=stage))
        found.append(DeadLink(src=rank, dst=other, iteration=3, micro_batch=batch))
        receiving = Phase.FORWARD if place.stage else Phase.BACKWARD
        sending = Phase.FORWARD if place.stage + 1 < scenario.pp else Phase.BACKWARD
        found.append(MissingRecv(**at, phase=receiving))
        found.append(MissingSend(**at, phase=sending))
    return found


def cases() -> list[tuple[str, int, int]]:
    return [
        (name, seed, number)
        for name, scenario in LAYOUTS.items()
        for seed in (1, 2)
        for number in range(len(faults_of(scenario, seed)))
    ]


def run(name: str, seed: int, number: int) -> tuple[Simulation, Fault]:
    scenario = LAYOUTS[name].model_copy(update={"seed": seed, "name": name})
    fault = faults_of(scenario, seed)[number]
    return simulate(scenario.model_copy(update={"faults": (fault,)})), fault


@pytest.mark.parametrize(("name", "seed", "number"), cases())
def test_every_fault_with_and_without_completions(name: str, seed: int, number: int) -> None:
    simulation, fault = run(name, seed, number)
    truth = simulation.truth.faults[0]
    for source, trace in (("ring", simulation.trace), ("text", weak(simulation.trace))):
        result = judge(trace, simulation.scenario)
        answer = truth.answers[source]
        if not result.findings:
            assert answer.undecidable, f"{source} {fault}: {result.reason}"
            assert result.undecidable
            continue
        finding = result.findings[0]
        assert len(finding.kind_alternatives) <= 2
        assert {finding.kind, *finding.kind_alternatives} & set(answer.kinds), (
            f"{source} {fault}: {finding.summary}"
        )
        assert finding.culprits.ranks in (answer.ranks, truth.ranks), f"{source} {fault}: {finding.summary}"
        assert not set(finding.culprits.ranks) & set(finding.victims)
        assert len(finding.culprits.ranks) + len(finding.victims) == simulation.scenario.world_size


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_dead_node_is_named_as_a_node(seed: int) -> None:
    scenario = LAYOUTS["tp4 pp2 dp2"].model_copy(
        update={"seed": seed, "faults": (DeadNode(node=2, iteration=3, micro_batch=3, phase=Phase.FORWARD),)}
    )
    trace = simulate(scenario).trace
    finding = judge(trace, scenario).findings[0]
    assert finding.kind is Kind.DEAD_RANK
    assert finding.culprits.nodes == ("node2",)
    assert finding.culprits.ranks == (8, 9, 10, 11)


def test_nodes_that_die_later_are_victims() -> None:
    stuck = StuckKernelBefore(rank=13, iteration=3, micro_batch=2, phase=Phase.FORWARD, call=1)
    scenario = Scenario(
        tp=8, pp=2, dp=4, layers_per_stage=2, iterations=5, seed=3, faults=(stuck, LateDeaths(count=2))
    )
    simulation = simulate(scenario)
    assert simulation.truth.late_deaths_s
    ring, text = judge(simulation.trace, scenario), judge(weak(simulation.trace), scenario)
    assert ring.findings[0].culprits.ranks == (13,)
    assert ring.findings[0].kind is Kind.HANG_DEVICE
    assert text.findings[0].culprits.ranks == tuple(range(8, 16))
    assert set(simulation.truth.late_deaths_s) <= set(ring.findings[0].victims)


def test_a_recording_that_ends_with_its_job_still_shows_who_stopped_first() -> None:
    """Nobody knows for how long nothing was written; other replicas going on for a second is proof enough."""
    fault = MissingRecv(rank=13, iteration=3, micro_batch=2, phase=Phase.BACKWARD)
    scenario = Scenario(tp=4, pp=2, dp=4, iterations=5, seed=5, faults=(fault,))
    trace = simulate(scenario).trace
    for one in (trace, weak(trace)):
        finding = judge(one, scenario, proven=False).findings[0]
        assert finding.culprits.ranks == (13,)
        assert finding.where.op == "RECV"


CAPTURES: dict[str, Capture] = {
    "whole": Capture(),
    "torn": Capture(torn_tails=(2,)),
    "missing": Capture(missing_ranks=(1, 5)),
    "overwritten": Capture(last_records=90),
    "early": Capture(cut_at_s=1.31),
    "middle": Capture(cut_at_s=1.83),
    "late": Capture(cut_at_s=2.62),
}


@pytest.mark.parametrize("capture", CAPTURES.values(), ids=CAPTURES.keys())
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_healthy_job_is_never_accused(name: str, capture: Capture) -> None:
    for seed in (1, 2):
        scenario = LAYOUTS[name].model_copy(
            update={"seed": seed, "capture": capture, "checkpoint_every": 2, "evaluate_every": 2}
        )
        trace = simulate(scenario).trace
        for one in (trace, weak(trace)):
            result = judge(one, scenario, proven=False)
            assert result.findings == (), result.reason
            assert result.reason


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_in_the_middle_of_a_pause_is_no_hang(seed: int) -> None:
    scenario = Scenario(
        tp=2, pp=2, dp=2, iterations=5, seed=seed, faults=(GcPauses(per_iteration=6),),
        capture=Capture(cut_at_s=1.2 + 0.23 * seed),
    )  # fmt: skip
    trace = simulate(scenario).trace
    for one in (trace, weak(trace)):
        assert judge(one, scenario, proven=False).findings == ()


def test_who_came_to_its_next_call_alone_is_blamed_and_not_those_who_lack_it() -> None:
    # Rank 5 left out a call of all, so it is in the next one of its replicas, which they all lack.
    skipped = SkippedCollective(rank=5, iteration=2, micro_batch=5, phase=Phase.SYNC, call=0)
    scenario = Scenario(tp=2, dp=8, iterations=5, seed=80388, faults=(skipped,))
    whole = simulate(scenario).trace
    for trace in (whole, weak(whole)):
        (finding,) = judge(trace, scenario).findings
        assert finding.culprits.ranks == (5,)
        assert Kind.MISSING_CALL in (finding.kind, *finding.kind_alternatives)
