"""The rule itself: what counts as a hit, a miss and an accusation, on findings written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.accuracy.scoring import Score, score
from megatrace.model.finding import (
    Culprits,
    Diagnosis,
    Endpoint,
    Finding,
    JobSummary,
    Kind,
    Link,
    Severity,
    Verdict,
    Where,
    Window,
)
from megatrace.model.trace import RankPlace
from megatrace.simulator import Scenario, SlowGpu, StuckHost, Truth, simulate, with_counterfactual

JOB = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 4, "layers_per_stage": 2, "iterations": 12}


@pytest.fixture(scope="module")
def slow() -> Truth:
    fault = SlowGpu(rank=5, factor=2.5, first_iteration=4, last_iteration=7)
    return with_counterfactual(simulate(Scenario.model_validate({**JOB, "faults": [fault]}))).truth


@pytest.fixture(scope="module")
def stuck() -> Truth:
    fault = StuckHost(rank=5, iteration=3, micro_batch=2)
    return with_counterfactual(simulate(Scenario.model_validate({**JOB, "faults": [fault]}))).truth


FOUND = Finding(
    Kind.SLOW_COMPUTE, Severity.P1, "", culprits=Culprits(ranks=(5,)), window=Window(0, None, 4, 7), id="f1"
)


def scored(truth: Truth, *findings: Finding, verdict: Verdict = Verdict.SLOW, source: str = "ring") -> Score:
    job = JobSummary(8, 8, iterations=12, iteration_numbering="absolute")
    places = tuple(RankPlace(rank, f"node{rank // 4}") for rank in range(8))
    return score(Diagnosis(verdict, "", job, findings, places=places), truth, source)


def test_kind_ranks_and_window_make_a_hit(slow: Truth) -> None:
    told = scored(slow, FOUND)
    assert told.faults[0].hit
    assert told.reasons == ()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kind": Kind.SLOW_HOST}, "kind slow_host"),
        ({"culprits": Culprits(ranks=(4, 5))}, "culprits 4,5, not 5"),
        ({"culprits": Culprits()}, "culprits , not 5"),
        ({"window": Window(0, None, 6, 11)}, "overlaps 4–7 by 0.25"),
        ({"window": None}, "overlaps 4–7 by 0.00"),
        ({"severity": Severity.P3}, "no finding"),
    ],
)
def test_what_is_no_hit(slow: Truth, changed: dict[str, object], why: str) -> None:
    told = scored(slow, replace(FOUND, **changed))  # type: ignore[arg-type]
    assert not told.faults[0].hit
    assert why in told.reasons[0]


def test_an_alternative_kind_counts_but_not_a_third(slow: Truth) -> None:
    other = replace(FOUND, kind=Kind.SLOW_HOST, kind_alternatives=(Kind.SLOW_COMPUTE,))
    assert scored(slow, other).faults[0].hit
    many = (Kind.SLOW_COMPUTE, Kind.SLOW_NETWORK, Kind.SLOW_STORAGE)
    assert not scored(slow, replace(other, kind_alternatives=many)).faults[0].hit


def test_an_accusation_beside_a_hit_is_counted(slow: Truth) -> None:
    told = scored(slow, FOUND, replace(FOUND, culprits=Culprits(ranks=(1,)), id="f2"))
    assert told.faults[0].hit
    assert len(told.wrong) == len(told.accusations) == 1
    consequence = replace(FOUND, culprits=Culprits(ranks=(1,)), id="f2", caused_by=("f1",))
    assert scored(slow, FOUND, consequence).reasons == ()
    unnamed = scored(slow, FOUND, replace(FOUND, kind=Kind.JITTER, culprits=Culprits(), id="f2"))
    assert (len(unnamed.wrong), unnamed.accusations) == (1, ())


def test_what_bubbles_absorbed_need_not_be_found_but_nobody_else_accused(slow: Truth) -> None:
    absorbed = replace(slow, faults=(replace(slow.faults[0], positive=False),))
    assert scored(absorbed, verdict=Verdict.HEALTHY).reasons == ()
    assert scored(absorbed, FOUND).wrong == ()
    assert scored(absorbed, replace(FOUND, culprits=Culprits(ranks=(4,)))).accusations


def test_cannot_tell_is_right_only_where_marked(slow: Truth) -> None:
    assert not scored(slow, verdict=Verdict.UNDECIDABLE).faults[0].hit
    answers = {key: replace(answer, undecidable=True) for key, answer in slow.faults[0].answers.items()}
    marked = replace(slow, faults=(replace(slow.faults[0], answers=answers),))
    assert scored(marked, verdict=Verdict.UNDECIDABLE).faults[0].hit
    assert not scored(marked, verdict=Verdict.HEALTHY).faults[0].hit
    # Nor does a hang later in the job make it tellable.
    assert scored(marked, verdict=Verdict.HANG).faults[0].hit
    assert not scored(slow, verdict=Verdict.HANG).faults[0].hit


def test_a_note_says_of_one_thing_that_it_cannot_be_told(slow: Truth) -> None:
    answers = {key: replace(answer, undecidable=True) for key, answer in slow.faults[0].answers.items()}
    marked = replace(slow, faults=(replace(slow.faults[0], answers=answers),))
    note = replace(FOUND, severity=Severity.P3)
    assert scored(marked, note, verdict=Verdict.HEALTHY).faults[0].hit
    assert not scored(slow, note, verdict=Verdict.HEALTHY).faults[0].hit
    other = replace(note, kind=Kind.SLOW_STORAGE)
    assert not scored(marked, other, verdict=Verdict.HEALTHY).faults[0].hit


def test_sets_that_a_source_cannot_tell_apart_are_as_right(stuck: Truth) -> None:
    fault = stuck.faults[0]
    answers = {key: replace(answer, also=((4, 5, 6, 7),)) for key, answer in fault.answers.items()}
    blurred = replace(stuck, faults=(replace(fault, answers=answers),))
    node = Finding(Kind.HANG_HOST, Severity.P0, "", culprits=Culprits(ranks=(4, 5, 6, 7)))
    assert not scored(stuck, node, verdict=Verdict.HANG).faults[0].hit
    assert scored(blurred, node, verdict=Verdict.HANG).reasons == ()
    others = replace(node, culprits=Culprits(ranks=(4, 6)))
    told = scored(blurred, others, verdict=Verdict.HANG)
    assert (told.faults[0].hit, told.accusations) == (False, ())


def test_a_healthy_job_bears_no_finding() -> None:
    truth = simulate(Scenario.model_validate(JOB)).truth
    assert scored(truth, verdict=Verdict.HEALTHY).reasons == ()
    unnamed = replace(FOUND, kind=Kind.JITTER, culprits=Culprits())
    assert scored(truth, unnamed).accusations
    assert scored(truth, replace(FOUND, severity=Severity.P3)).reasons == ()


def test_a_hang_is_hit_by_its_ranks_and_located_apart(stuck: Truth) -> None:
    where = Where(stage=stuck.faults[0].stage, iteration=3, micro_batch=2, phase=stuck.faults[0].phase)
    found = Finding(Kind.HANG_HOST, Severity.P0, "", culprits=Culprits(ranks=(5,)), where=where)
    assert scored(stuck, found, verdict=Verdict.HANG).faults[0].where_right is True
    elsewhere = replace(found, where=replace(where, micro_batch=1))
    told = scored(stuck, elsewhere, verdict=Verdict.HANG).faults[0]
    assert (told.hit, told.where_right) == (True, False)


def test_nodes_and_links_stand_for_their_ranks(stuck: Truth) -> None:
    node = Finding(Kind.HANG_HOST, Severity.P0, "", culprits=Culprits(nodes=("node1",)))
    assert "culprits 4,5,6,7" in scored(stuck, node).reasons[0]
    link = Culprits(links=(Link(Endpoint(rank=1), Endpoint(rank=5)),))
    assert "culprits 1,5" in scored(stuck, replace(node, culprits=link)).reasons[0]
