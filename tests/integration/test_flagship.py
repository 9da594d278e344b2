"""The job of `make demo`: one GPU of 3,480 makes everybody wait, and that one is named.

The first story goes through files, as a user sees it; the second stays in memory, for both kinds of source.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.commands.main import main
from megatrace.model.finding import Kind, Verdict
from megatrace.model.job import JobConfig, Sourced
from megatrace.simulator import Simulation, flagship_late_deaths, observe, simulate

CULPRIT = 1505
NODE = range(1504, 1512)


@pytest.mark.slow
def test_the_demo_names_the_second_gpu_of_node_188(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert main(["demo", "--out", str(tmp_path)]) == 0
    finally:
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)  # 400 MB, and pytest keeps its folders
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "HANG rank 1505 (node188 gpu1) never posted Recv from rank 809: "
        "stage 2, forward of micro-batch 2, iteration 6 culprit rank 1505 ·" in said
    )
    assert "victims 3,479 of 3,480 ranks wait for this" in said
    assert "ALSO" not in said  # nobody else is named
    assert "before the watchdog" in said  # says what to save while it can be saved


@pytest.fixture(scope="module")
def late_deaths() -> Simulation:
    return simulate(flagship_late_deaths())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "kind", "named"),
    [("ring", Kind.HANG_DEVICE, [CULPRIT]), ("text", Kind.HANG_GROUP, list(NODE))],
)
def test_nodes_that_die_afterwards_are_victims(
    source: str, kind: Kind, named: list[int], late_deaths: Simulation
) -> None:
    dead = set(late_deaths.truth.late_deaths_s)
    assert len(dead) == 3 * 8, "three nodes die once the job stands"
    trace = observe(late_deaths.trace, source)
    if source == "text":  # a text log knows no nodes; what recorded the ring does
        trace = trace.with_job(JobConfig(ranks_per_node=Sourced(8, "test")))
    diagnosis = diagnose(trace)
    assert diagnosis.verdict is Verdict.HANG
    first, *more = diagnosis.findings
    assert not more
    assert first.kind is kind
    assert sorted(first.culprits.ranks) == named
    assert first.ambiguous is (len(named) > 1)
    assert dead <= set(first.victims)
    assert any("stopped only afterwards" in item.text for item in first.evidence)
