"""The checks of schedulers on a real Slurm: nodes that were drained or are down, and its controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatrace.bot.catalogue import select
from megatrace.bot.check_runner import run_inline
from megatrace.bot.checks import CHECKS
from megatrace.bot.counters import Counters
from megatrace.bot.inspecting import catalogue
from megatrace.bot.targets import TargetSystem
from megatrace.model.check import CheckResult, Outcome, Scope
from tests.components.slurm_cluster import Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]
DAYS = 3 * 86_400_000_000_000


class Later(TargetSystem):
    """The scheduler as somebody sees it three days from now."""

    def now(self) -> int:
        return super().now() + DAYS


def look(system: TargetSystem) -> dict[str, CheckResult]:
    wanted = [item for item in select(catalogue(), scopes=(Scope.SCHEDULER,)) if item.id.startswith("SLM")]
    patient = [replace(item, timeout_s=60.0) for item in wanted]
    return {item.check: item for item in run_inline(patient, system, CHECKS, counters=Counters())}


@pytest.fixture
def here(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    return slurm


def test_a_healthy_cluster_is_silent(here: Slurm) -> None:
    found = look(TargetSystem("controller"))
    assert {name: result.outcome for name, result in found.items()} == dict.fromkeys(found, Outcome.OK)
    assert found["SLM-01"].reason == "4 nodes"
    assert "is UP" in found["SLM-03"].reason


def test_a_drain_is_forgotten_only_after_a_day_and_only_where_it_is_not_ours(here: Slurm) -> None:
    here.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=memory | test"])
    here.run(["scontrol", "update", "nodename=n3", "state=drain", "reason=MT#7 GPU-02"])
    try:
        here.wait_for("n2", "drained")
        assert look(TargetSystem("controller"))["SLM-01"].outcome is Outcome.OK
        found = look(Later("controller"))["SLM-01"]
    finally:
        for node in ("n2", "n3"):
            here.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    assert [finding.culprits.nodes for finding in found.findings] == [("n2",)]
    assert "memory | test" in found.findings[0].summary


def test_a_node_that_is_down_is_named(here: Slurm) -> None:
    here.run(["scontrol", "update", "nodename=n4", "state=down", "reason=Not responding"])
    try:
        here.wait_for("n4", "down")
        found = look(TargetSystem("controller"))["SLM-01"]
    finally:
        here.run(["scontrol", "update", "nodename=n4", "state=resume"])
        here.wait_for("n4", "idle")
    assert [(finding.culprits.nodes, finding.severity.name) for finding in found.findings] == [
        (("n4",), "P1")
    ]


def test_a_controller_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, here: Slurm) -> None:
    other = here.place / "elsewhere.conf"
    text = (here.place / "slurm.conf").read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    other.write_text(text.replace(port, "SlurmctldPort=9") + "MessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(other))
    found = look(TargetSystem("controller"))
    assert found["SLM-01"].outcome is Outcome.UNKNOWN
    assert found["SLM-03"].outcome is not Outcome.OK
