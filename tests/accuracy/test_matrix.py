"""The fault matrix on seeds of its own: every fault, every kind of source, scored by the fixed rule.

A run that fails today stands in ``UNSOLVED`` with what the analysis lacks; it must fail (strict), so whoever
mends the analysis takes it off the list. What a source cannot separate is not on that list: the truth says
so, with the reason, in ``simulator.answers``.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from benchmarks.accuracy.cases import BENCH_SEED, SOURCES, TEST_SEED, Case, matrix, run
from benchmarks.accuracy.scoring import decidable, diagnosed, score, seen
from megatrace.simulator import Simulation
from tests.accuracy.unsolved import UNSOLVED

CASES = matrix(TEST_SEED, per_fault=2, healthy=20)
RUNS = [(case.id, source) for case in CASES for source in SOURCES]


def parameters() -> list[object]:
    """Every run, those on the list marked."""
    return [
        pytest.param(
            case,
            source,
            marks=[pytest.mark.xfail(strict=True, reason=UNSOLVED[case, source])]
            if (case, source) in UNSOLVED
            else [],
            id=f"{case}-{source}",
        )
        for case, source in RUNS
    ]


@lru_cache(maxsize=2)
def simulated(case: str) -> Simulation | None:
    """The sources of a case follow each other, so it is simulated once for all of them."""
    return run(Case.parse(case))


@pytest.mark.parametrize(("case", "source"), parameters())
def test_the_diagnosis_is_right(case: str, source: str) -> None:
    simulation, waited = simulated(case), Case.parse(case).waited
    assert simulation is not None, "this layout cannot have this fault; the matrix should not draw it"
    diagnosis, _ = diagnosed(seen(simulation, source), waited)
    told = score(diagnosis, decidable(simulation, waited), source)
    assert not told.reasons, "; ".join(told.reasons)


def test_the_matrix_is_what_it_says() -> None:
    assert len(RUNS) >= 120
    assert UNSOLVED.keys() <= set(RUNS), "a run on the list of unsolved ones is no longer drawn"
    bench = matrix(BENCH_SEED)
    assert len(bench) * len(SOURCES) >= 600
    assert sum(case.fault.startswith("healthy") for case in bench) >= 100
    assert not {case.seed for case in bench} & {case.seed for case in CASES}
    assert {case.fault for case in CASES} == {case.fault for case in bench}


def test_a_case_is_all_in_its_name() -> None:
    case = CASES[0]
    assert Case.parse(case.id) == case
    again, first = run(case), run(case)
    assert again is not None
    assert first is not None
    assert again.scenario == first.scenario
    assert (again.trace.events.enqueue == first.trace.events.enqueue).all()
