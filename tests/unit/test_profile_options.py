"""`megatrace profile` with its options: another run, pages, traces, operation tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from benchmarks.optable_data import Job, operation_table
from megatrace.commands.main import main
from tests.unit.profile_cases import tiny, work, written
from tests.unit.test_optable_reader import columns


def table(folder: Path) -> Path:
    """An operation table with a long last stage."""
    rows, _ = operation_table(Job(), lambda _s, stage, _d, _m: 1.5 if stage == 3 else 1.0)
    path = folder / "table.parquet"
    pyarrow.parquet.write_table(columns(rows), path)
    return path


def test_two_runs_are_compared_with_their_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, algorithm in ((old, "Ring"), (new, "Tree")):
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"environment": {"NCCL_ALGO": algorithm}}))
    written(old, tiny())
    written(new, [*tiny(), work("void dropout(float*)", 300, 420, 9)])
    assert main(["profile", str(new), "--against", str(old)]) == 0
    out = capsys.readouterr().out
    assert "environment NCCL_ALGO: Ring → Tree" in out
    assert "kernel void dropout(float*)" in out
    assert main(["profile", str(new), "--against", str(old), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "megatrace.profile_diff/1"
    assert told["differences"][0]["change"] == "new"


def test_a_page_and_a_trace_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, tiny())
    html, trace = tmp_path / "p.html", tmp_path / "p.perfetto-trace"
    assert main(["profile", str(path), "--html", str(html), "--perfetto", str(trace)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("PROFILE")
    assert f"wrote {html}, {trace}" in said.err
    assert f"megatrace profile {path}" in html.read_text("utf-8")
    assert b"critical path" in trace.read_bytes()


def test_an_operation_table_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path)
    assert main(["profile", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("WHAT IF  a step takes")
    assert "the last stage made equal" in out
    assert main(["profile", str(path), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "megatrace.whatif/1"
    assert told["m_s"] > 0.9
    assert max(told["by_stage"], key=lambda stage: told["by_stage"][stage]) == "3"
    assert len(told["steps"]) == 6


def test_diagnose_judges_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(table(tmp_path)), "--html", str(tmp_path / "d.html")]) == 10
    out = capsys.readouterr().out
    assert "SLOW  stage 3 is 1.5× as long as the others" in out
    page = (tmp_path / "d.html").read_text("utf-8")
    assert 'data-figure="heat"' in page
    assert 'data-figure="gantt"' in page


def test_pictures_of_a_table_are_left_to_diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(table(tmp_path)), "--html", str(tmp_path / "x.html")]) == 2
    assert "megatrace diagnose TABLE --html FILE" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_a_table_that_cannot_be_replayed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["step,stage,dp_rank,optype,start_ts,duration", "0,0,0,optimizer,0,1"]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    assert main(["profile", str(path)]) == 3
    assert "cannot be replayed: the table has no forward-compute" in capsys.readouterr().err
