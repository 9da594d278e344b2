"""The pages of numbers show what the result files say, misses included, and nothing where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import measure
from benchmarks.accuracy.cases import SOURCES
from benchmarks.accuracy.tables import Row
from benchmarks.measure import Goal, write_result
from tools import measured


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    return tmp_path


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    assert "Not measured yet" in measured.accuracy_page(tmp_path)
    assert "Not measured yet" in measured.speed_page(tmp_path)


def test_sources_are_those_of_the_benchmark() -> None:
    assert tuple(measured.SOURCES) == SOURCES


def test_accuracy_shows_scores_missed_goals_and_every_miss(results: Path) -> None:
    row = {"fault": "slow_gpu", "source": "text", **Row(runs=4, positives=4, hits=3, wrong=1).as_json()}
    miss = {"case": "slow_gpu:gpipe:7", "source": "text", "reason": "a | b\nc", "command": "…"}
    figures = {"runs": 4, "jobs": 2, "rows": [row], "totals": [{**row, "fault": "slow"}], "misses": [miss]}
    write_result("accuracy", figures, [Goal("text slowness, F1", 0.75, 0.95, at_least=True)])
    page = measured.accuracy_page(results)
    assert "4 runs of 2 jobs" in page
    assert "| text slowness, F1 | ≥ 0.95 | 0.75 | **missed** |" in page
    assert "| `slow_gpu` | `text` | 4 | 4 | 3 | 1 | 0 | 0 | 0% | 0.75 | 0.75 | 0.75 | – |" in page
    assert "- `slow_gpu:gpipe:7` `text`: a \\| b c\n" in page
    assert "Not measured" not in page


def test_speed_names_command_machine_and_goals_but_not_accuracy(results: Path) -> None:
    timing = {"min_ms": 1.0, "median_ms": 2.0, "max_ms": 1234.56}
    write_result("ingest", {"cpu": {"reader": timing}}, [Goal("CPU / limit", 3.5, 4)])
    write_result("accuracy", {}, [])
    page = measured.speed_page(results)
    content = json.loads((results / "ingest.json").read_text("utf-8"))
    assert f"`{content['command']}`, {content['date']}, " in page
    assert "| CPU / limit | ≤ 4 | 3.5 | met |" in page
    assert "| reader | 1.0 | 2.0 | 1,234.6 |" in page
    assert "accuracy" not in page
