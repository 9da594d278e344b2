"""What findings say: names, ranges and numbers in one style, and nothing that contradicts itself."""

from __future__ import annotations

import re
from functools import cache

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.model.finding import Diagnosis, Finding
from megatrace.model.job import JobConfig, Sourced
from megatrace.model.trace import Trace
from megatrace.reports.sentences_zh import translated
from megatrace.simulator import builtin_scenarios, named_scenario, observe, simulate

SMALL = sorted(name for name in builtin_scenarios() if not name.startswith(("flagship", "intermittent")))


@cache
def simulated(name: str) -> Trace:
    return simulate(named_scenario(name)).trace


@cache
def diagnosed(name: str, source: str = "text-hash") -> Diagnosis:
    scenario = named_scenario(name)
    trace = observe(simulated(name), source)
    job = JobConfig(ranks_per_node=Sourced(scenario.ranks_per_node, "test"))
    return diagnose(trace.with_job(job))


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Everything that is said in words."""
    said = [diagnosis.headline, *diagnosis.alternatives, *diagnosis.warnings, *diagnosis.coverage.notes]
    said += [part for step in diagnosis.next_steps for part in (step.command, step.why)]
    for finding in diagnosis.findings:
        said += [finding.summary, finding.remedy, *finding.exonerated, *finding.chain]
        said += [item.text for item in finding.evidence]
    return said


@pytest.mark.parametrize("source", ["ring", "text-hash"])
@pytest.mark.parametrize("name", SMALL)
def test_every_sentence_has_its_chinese_counterpart(name: str, source: str) -> None:
    commands = {step.command for step in diagnosed(name, source).next_steps}
    for said in sentences(diagnosed(name, source)):
        if said and said not in commands:
            assert translated(said), said


def evidence(finding: Finding) -> str:
    return "\n".join(item.text for item in finding.evidence)


@pytest.mark.parametrize("source", ["ring", "text-hash"])
@pytest.mark.parametrize("name", SMALL)
def test_ranges_and_large_numbers_are_written_alike(name: str, source: str) -> None:
    for said in sentences(diagnosed(name, source)):
        assert not re.search(r"\branks? [\d,]*\d-\d", said), said
        assert not re.search(r"\d{4,}(?!\d* ?[-:])(?=\D|$)", re.sub(r"\d+-\d+-\d+", "", said)), said


def test_a_mismatch_that_nobody_was_seen_to_wait_for_does_not_say_that_zero_ranks_wait() -> None:
    finding = diagnosed("size-mismatch").findings[0]
    assert finding.culprits.ranks == (21,)
    said = evidence(finding)
    assert "0 of 32" not in said
    assert "the job was moving" not in said
    assert "the calls alone prove the fault" in said


def test_a_deadlock_within_the_usual_pause_is_not_said_to_stand_for_it() -> None:
    assert "the job stands: the recording ends" not in evidence(diagnosed("deadlock").findings[0])


def test_a_culprit_is_no_victim_that_stopped_afterwards() -> None:
    finding = diagnosed("two-faults").findings[0]
    assert finding.culprits.ranks == tuple(range(24, 32))
    assert "stopped only afterwards" not in evidence(finding)


def test_a_starved_node_is_named_with_all_its_ranks() -> None:
    assert diagnosed("starved-host").headline.startswith("node2 (ranks 16–23) made their calls")


def test_a_slow_path_is_named_by_both_its_ends() -> None:
    said = diagnosed("slow-link").headline
    assert said.startswith("the path between rank 9 (node1 gpu1) and rank 17 (node2 gpu1) was slower in iter")


def test_an_iteration_without_a_pipeline_has_no_phases_and_no_groups_of_one() -> None:
    finding = diagnosed("fsdp-slow-gpu").findings[0]
    assert finding.where.phase is None
    assert "its own work" in evidence(finding)
    assert "tensor group" not in evidence(finding)
