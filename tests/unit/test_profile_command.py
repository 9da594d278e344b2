"""`megatrace profile` as a user meets it: a page that fits, JSON that adds up, one sentence for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatrace.analysis.profiling import profile
from megatrace.commands.main import main
from megatrace.errors import EXIT_OK, EXIT_UNREADABLE, EXIT_USAGE
from megatrace.model.profile_result import ProfileResult
from megatrace.reports import ReportOptions, profile_text
from megatrace.reports.columns import cells
from tests.unit.profile_cases import op, profiled, tiny, written

GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/profile/tiny.txt"


def test_the_page_is_the_one_that_was_agreed_on(tmp_path: Path) -> None:
    made = profile_text.render(profile([profiled(tmp_path, tiny())]), ReportOptions(width=100))
    assert made == GOLDEN.read_text("utf-8")


@pytest.mark.parametrize("width", [60, 100, 160])
def test_sentences_keep_the_width(tmp_path: Path, width: int) -> None:
    made = profile_text.render(profile([profiled(tmp_path, tiny())]), ReportOptions(width=width))
    head = made.partition("\n  device")[0] + made.partition("\n  path")[2].partition("\n  idle")[0]
    assert max(cells(line) for line in head.splitlines()) <= width


def test_a_table_says_what_it_leaves_out(tmp_path: Path) -> None:
    made = profile([profiled(tmp_path, [op(f"aten::op{at}", 10 * at, 10 * at + 5) for at in range(20)])])
    assert "… and 12 more (--verbose, --format json)" in profile_text.render(made, ReportOptions())
    assert "more (--verbose" not in profile_text.render(made, ReportOptions(verbose=True))


def test_names_stay_text(tmp_path: Path) -> None:
    made = profile([profiled(tmp_path, [op("[red]\x1b[31mop\nname", 0, 5)])])
    text = profile_text.render(made, ReportOptions())
    assert "\x1b" not in text
    assert "[red]" in text


def test_without_a_device_there_is_still_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(written(tmp_path, [op("aten::mm", 0, 5)]))]) == EXIT_OK
    assert capsys.readouterr().out.startswith("PROFILE  rank 3 of 4: nothing ran on a device\n")


def test_nothing_goes_to_stderr_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(written(tmp_path, tiny()))]) == EXIT_OK
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith("PROFILE  rank 3 of 4: 660 µs of device time, 64 % computing, 23 % exposed")


def test_json_has_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path, tiny()))
    assert main(["profile", path, "--format", "json"]) == EXIT_OK
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "megatrace.profile/1"
    assert set(said) == {"schema", "tool_version", *ProfileResult.__slots__}
    assert said["paths"][0]["by_kind"][0] == ["compute", 370_000]
    assert said["collectives"][0]["op"] == "all_reduce"
    assert "pieces" not in said["paths"][0]
    assert main(["profile", path, "--format", "json", "--verbose"]) == EXIT_OK
    assert len(json.loads(capsys.readouterr().out)["paths"][0]["pieces"]) == 10


def test_a_window_narrows_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path, [*tiny(), op("aten::later", 650, 900)]))
    assert main(["profile", path, "--window", "ProfilerStep"]) == EXIT_OK
    assert "rank 3, ProfilerStep#1: 700 µs = compute 370 µs" in capsys.readouterr().out
    assert main(["profile", path, "--window", "Step#7"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith(
        "error: --window Step#7: no range on a host thread has that in its name (there are Pro"
    )


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    path.write_text("hello")
    assert main(["profile", str(path)]) == EXIT_UNREADABLE
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(
        f"error: {path} is no profile of PyTorch, no operation table and no recording with"
    )
    path.write_text("[1755590104.248717000] [Rank 0] Fun AllReduce Data 4 stream 0x55\n")
    assert main(["profile", str(path)]) == EXIT_UNREADABLE
    assert "a call log has host times only: megatrace diagnose reads it" in capsys.readouterr().err
    empty = written(tmp_path, [])
    assert main(["profile", str(empty)]) == EXIT_UNREADABLE
    assert capsys.readouterr().err == f"error: {empty} holds no activity and was left out\n"
    assert main(["profile", str(tmp_path / "none")]) == EXIT_USAGE
