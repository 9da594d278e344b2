"""`megatrace demo`: the fault that was put in is the one that is named, through files and the usual code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megatrace.commands import pipeline
from megatrace.commands.demo import named, small
from megatrace.commands.main import main
from megatrace.model.finding import Culprits, Diagnosis, Finding, JobSummary, Kind, Severity, Verdict
from megatrace.simulator import Simulation, simulate


def test_the_demo_names_what_it_broke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--job", "small", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\nSLOW  rank 5 " in captured.out
    assert f"megatrace diagnose {tmp_path / 'logs'} --ranks-per-node 8 --verbose" in captured.out
    assert f"stay; to remove them: rm -r {tmp_path / 'logs'}\n" in captured.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "truth.json"]
    assert len(list((tmp_path / "logs").iterdir())) == 16
    assert json.loads((tmp_path / "truth.json").read_text(encoding="utf-8"))["schema"] == "megatrace.truth/1"


def test_logs_of_another_run_are_not_mixed_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.log").write_text("", encoding="utf-8")
    assert main(["demo", "--job", "small", "--out", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_demo_whose_verdict_is_wrong_says_so_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Diagnosis(Verdict.HEALTHY, "nothing wrong", JobSummary(16, 16))
    monkeypatch.setattr(pipeline, "diagnose_trace", lambda *_, **__: wrong)
    assert main(["demo", "--job", "small", "--out", str(tmp_path)]) == 11
    assert "does not name what was broken" in capsys.readouterr().out


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return simulate(small().model_copy(update={"iterations": 14}))


@pytest.mark.parametrize(
    ("kind", "severity", "ranks", "expected"),
    [
        (Kind.SLOW_COMPUTE, Severity.P1, (5,), True),
        (Kind.SLOW_COMPUTE, Severity.P1, (4,), False),
        (Kind.SLOW_COMPUTE, Severity.P1, (4, 5, 6), False),
        (Kind.SLOW_COMPUTE, Severity.P3, (5,), False),
        (Kind.HANG_HOST, Severity.P0, (5,), False),
    ],
)
def test_only_the_right_rank_and_kind_count(
    kind: Kind, severity: Severity, ranks: tuple[int, ...], expected: bool, simulation: Simulation
) -> None:
    finding = Finding(kind, severity, "", culprits=Culprits(ranks=ranks))
    diagnosis = Diagnosis(Verdict.SLOW, "", JobSummary(16, 16), findings=(finding,))
    assert named(simulation, diagnosis) is expected
    assert named(simulation, replace(diagnosis, findings=())) is False
