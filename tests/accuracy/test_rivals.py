"""Published methods do what their papers describe, so that beating them means something."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from benchmarks.rivals.counters import Counters
from benchmarks.rivals.draws import PAPER
from benchmarks.rivals.duel import RIVALS, Job, judge, summed
from benchmarks.rivals.fixed_threshold import FixedThreshold
from benchmarks.rivals.operator_vote import OperatorVote
from benchmarks.rivals.seen import Named, Seen
from benchmarks.rivals.similarity import Similarity
from benchmarks.rivals.watchdog import Watchdog
from benchmarks.rivals.what_if import WhatIf
from megatrace.model.schedule import Phase
from megatrace.simulator import Delay, Scenario, StuckHost, StuckKernelBefore, simulate
from megatrace.simulator.faults import Fault

WINDOW: dict[str, Any] = {"first_iteration": 4, "last_iteration": 8}
STOP: dict[str, Any] = {"rank": 13, "iteration": 3, "micro_batch": 2, "phase": Phase.BACKWARD, "call": 4}


@cache
def seen(name: str) -> Seen:
    faults: dict[str, tuple[Fault, ...]] = {
        "healthy": (),
        "delay": (Delay(rank=13, delay_ms=900.0, micro_batch=4, **WINDOW),),
        "absorbed": (Delay(rank=2, delay_ms=200.0, micro_batch=3, **WINDOW),),
        "host": (StuckHost(**STOP),),
        "kernel": (StuckKernelBefore(**STOP),),
    }
    iterations = 12 if name in ("healthy", "delay", "absorbed") else 5
    job = Scenario.model_validate({**PAPER, "seed": 77, "iterations": iterations, "faults": faults[name]})
    return Seen(simulate(job).trace, job.layout)


def test_a_silent_watchdog_is_the_culprits_unless_its_own_call_waits_too() -> None:
    assert Watchdog().hang(seen("host")) == {13}
    assert Watchdog().hang(seen("kernel")) == frozenset()


def test_counters_show_who_made_fewer_calls_and_no_kernel_that_never_ends() -> None:
    assert Counters().hang(seen("host")) == {13}
    assert Counters().hang(seen("kernel")) != {13}


@pytest.mark.parametrize(
    ("method", "limit", "named"),
    [
        (FixedThreshold(), 0.2, {12, 13}),
        (Similarity(), 3.0, {13}),
        (OperatorVote(), 3.0, {13}),
        (WhatIf(), 0.02, {12, 13}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_methods_for_slowness(method: Similarity, limit: float, named: Named) -> None:
    assert method.slow(seen("delay"), limit) == named


def test_a_threshold_per_phase_accuses_what_bubbles_absorb_and_megatrace_does_not() -> None:
    assert FixedThreshold().slow(seen("absorbed"), 0.105) == {2, 3}
    assert not seen("absorbed").diagnosis.findings
    assert WhatIf().slow(seen("absorbed"), 0.02) == frozenset()


def test_no_tuned_method_names_anybody_in_a_quiet_job() -> None:
    for method, limit in ((FixedThreshold(), 0.2), (WhatIf(), 0.05)):
        assert method.slow(seen("healthy"), limit) == frozenset()


def test_a_run_is_judged_by_every_method() -> None:
    (record,) = judge(Job("paper", "hang", 1))
    assert set(record["named"]) == {"MegaTrace", *(rival.name for rival in RIVALS)}
    assert record["full"]
    assert record["named"]["MegaTrace"][0] in record["exact"]


def test_sums_count_hits_misses_and_wrong_names() -> None:
    def record(positive: bool, named: list[int]) -> dict[str, object]:
        exact, near = ([[5]], [4, 5]) if positive else ([], [])
        return {"positive": positive, "named": {"m": [named]}, "exact": exact, "near": near}

    records = [
        record(True, [5]),
        record(True, [4, 5]),
        record(True, [9]),
        record(True, []),
        record(False, [1]),
    ]
    sums = summed(records, "m", 0)
    assert (sums.positives, sums.exact, sums.near, sums.wrong_exact, sums.wrong_near) == (4, 1, 2, 3, 2)
    assert sums.f1_exact == pytest.approx(2 / (1 + 3 + 4))
    assert sums.f1 == pytest.approx(4 / (2 + 2 + 4))
