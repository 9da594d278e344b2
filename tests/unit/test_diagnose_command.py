"""`megatrace diagnose` as a user meets it: exit codes, where things go, one sentence for every bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from megatrace.commands import output, pipeline
from megatrace.commands.main import main
from megatrace.commands.pipeline import parse_now
from megatrace.errors import UsageError
from megatrace.model.finding import Diagnosis
from megatrace.model.trace import Trace
from megatrace.reports import ReportOptions
from megatrace.reports.jsonfile import schema
from tests.unit.report_cases import CASES, hang, healthy, slow_window

S = 1_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A directory with one small call log that the readers take."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank in range(2):
        write_log(folder / f"rank_{rank}.log", rank, 5)
    return folder


def write_log(path: Path, rank: int, calls: int) -> None:
    lines = [
        f"[save_count 1] [{1_755_590_104 + index}.000000000] [Rank {rank}] Fun AllReduce Data 1 "
        f"stream 0x558062b1d050 opCount {index}"
        for index in range(calls)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Diagnosis], list[tuple[Trace, int | None]]]:
    """Puts a ready diagnosis in the place of the analysis; returns what the analysis was asked."""

    def put(diagnosis: Diagnosis) -> list[tuple[Trace, int | None]]:
        asked: list[tuple[Trace, int | None]] = []

        def answer(
            trace: Trace, now: int | None, say: object, earlier: object, *, timeline: bool
        ) -> Diagnosis:
            asked.append((trace, now))
            return diagnosis

        monkeypatch.setattr(pipeline, "diagnose_trace", answer)
        return asked

    return put


def run(arguments: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "megatrace", "diagnose", *arguments],
        input=stdin, capture_output=True, env=environment, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "code"),
    [("healthy", 0), ("slow_window", 10), ("hang", 10), ("imbalance", 10), ("cannot_tell", 11)],
)
def test_exit_code_follows_the_diagnosis(
    name: str, code: int, log: Path, judged: Callable[[Diagnosis], object], capsys: pytest.CaptureFixture[str]
) -> None:
    judged(CASES[name]())
    assert main(["diagnose", str(log)]) == code
    assert capsys.readouterr().out


def test_a_pipe_gets_no_colour_and_nothing_on_stderr(
    log: Path, judged: Callable[[Diagnosis], object], capsys: pytest.CaptureFixture[str]
) -> None:
    judged(slow_window())
    main(["diagnose", str(log)])
    captured = capsys.readouterr()
    assert captured.out.startswith("SLOW  rank 2")
    assert "\x1b" not in captured.out
    assert captured.err == ""


def test_json_on_standard_output_fits_the_schema(
    log: Path, judged: Callable[[Diagnosis], object], capsys: pytest.CaptureFixture[str]
) -> None:
    judged(slow_window())
    assert main(["diagnose", str(log), "--format", "json"]) == 10
    data = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema()).validate(data)
    assert data["generated_at"] is not None


def test_chinese(
    log: Path, judged: Callable[[Diagnosis], object], capsys: pytest.CaptureFixture[str]
) -> None:
    judged(slow_window())
    main(["diagnose", str(log), "--lang", "zh"])
    assert capsys.readouterr().out.startswith(
        "变慢  rank 2 (stage 1, TP 0) 计算用时为平时的 2.5 倍，第 21–31 次迭代"
    )


def test_files_are_written_only_when_asked(
    log: Path, tmp_path: Path, judged: Callable[[Diagnosis], object], capsys: pytest.CaptureFixture[str]
) -> None:
    judged(slow_window())
    before = sorted(tmp_path.rglob("*"))
    main(["diagnose", str(log)])
    assert sorted(tmp_path.rglob("*")) == before
    out = tmp_path / "new" / "out"
    assert main(["diagnose", str(log), "--out", str(out)]) == 10
    assert {path.name for path in out.iterdir()} >= {"diagnosis.html", "diagnosis.json", "diagnosis.txt"}
    assert json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))["verdict"] == "slow"
    assert (out / "diagnosis.txt").read_text(encoding="utf-8").startswith("SLOW  rank 2")
    assert str(out / "diagnosis.json") in capsys.readouterr().err


def test_a_directory_that_cannot_be_made_is_one_sentence(
    log: Path, tmp_path: Path, judged: Callable[[Diagnosis], object], capsys: pytest.CaptureFixture[str]
) -> None:
    judged(slow_window())
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["diagnose", str(log), "--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_file_is_whole_or_as_before(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    output.write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        output.write_whole(path, "x" * 100_000 + "\udc80")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


class Terminal:
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_on_a_terminal_obeys_the_environment(environment: dict[str, str], colour: bool) -> None:
    options = output.options_for(Terminal(), ReportOptions(), environment)  # type: ignore[arg-type]
    assert options.colour is colour


class TestDeclared:
    def test_nothing_declared_leaves_the_trace_as_it_is(self) -> None:
        assert pipeline.Declared().job() is None

    def test_ranks_per_node_reaches_the_analysis(
        self, log: Path, judged: Callable[[Diagnosis], list[tuple[Trace, int | None]]]
    ) -> None:
        asked = judged(healthy())
        main(["diagnose", str(log), "--ranks-per-node", "8"])
        ((trace, now),) = asked
        assert trace.place_of(9).node == "node1"
        assert trace.place_of(9).device == "gpu1"
        assert now is None

    def test_config_reaches_the_analysis_with_its_source(
        self, log: Path, tmp_path: Path, judged: Callable[[Diagnosis], list[tuple[Trace, int | None]]]
    ) -> None:
        (tmp_path / "job.yaml").write_text("parallel:\n  tensor: 4\n", encoding="utf-8")
        asked = judged(healthy())
        main(["diagnose", str(log), "--config", str(tmp_path / "job.yaml")])
        tensor = asked[0][0].job.tensor
        assert tensor is not None
        assert tensor.value == 4
        assert "job.yaml" in tensor.source

    def test_hostfile_names_the_nodes(
        self, log: Path, tmp_path: Path, judged: Callable[[Diagnosis], list[tuple[Trace, int | None]]]
    ) -> None:
        (tmp_path / "hosts").write_text("alpha slots=4\nbeta slots=4\n", encoding="utf-8")
        asked = judged(healthy())
        main(["diagnose", str(log), "--hostfile", str(tmp_path / "hosts")])
        place = asked[0][0].place_of(5)
        assert (place.node, place.device) == ("beta", "gpu1")

    def test_a_hostfile_without_slots_needs_the_ranks_per_node(
        self, log: Path, tmp_path: Path, judged: Callable[[Diagnosis], list[tuple[Trace, int | None]]]
    ) -> None:
        (tmp_path / "hosts").write_text("alpha\nbeta\n", encoding="utf-8")
        asked = judged(healthy())
        arguments = ["diagnose", str(log), "--hostfile", str(tmp_path / "hosts")]
        assert main(arguments) == 2
        assert main([*arguments, "--ranks-per-node", "2"]) == 0
        assert asked[0][0].place_of(2).node == "beta"

    @pytest.mark.parametrize(
        "text", ["parallel: [", "parallel:\n  tensor: many\n", "- a\n", "parallel:\n  tensr: 4\n"]
    )
    def test_a_wrong_config_is_wrong_usage(
        self, text: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
        assert main(["diagnose", str(log), "--config", str(tmp_path / "job.yaml")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "job.yaml" in error


class TestNow:
    def test_forms(self) -> None:
        assert parse_now("now", 7) == 7
        assert parse_now("1755590104.248717001", 0) == 1_755_590_104_248_717_001
        assert parse_now("2026-11-30T02:20:00Z", 0) == 1_796_005_200 * S
        assert parse_now("2026-11-30 02:20", 0) == 1_796_005_200 * S
        assert parse_now("2026-11-30T10:20:00+08:00", 0) == 1_796_005_200 * S
        assert parse_now("1970-01-01T00:00:00.000001", 0) == 1_000

    @pytest.mark.parametrize("text", ["tomorrow", "", "nan", "-5", "1e30", "2026-13-01"])
    def test_no_time(self, text: str) -> None:
        with pytest.raises(UsageError, match="--now"):
            parse_now(text, 0)

    def test_it_reaches_analysis_and_report(
        self,
        log: Path,
        judged: Callable[[Diagnosis], list[tuple[Trace, int | None]]],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        asked = judged(hang())
        main(["diagnose", str(log), "--now", "2026-11-30T02:20:53Z"])
        assert asked[0][1] == 1_796_005_253 * S
        assert "7 m 12 s ago" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda path: path.mkdir(), 3, "holds no file"),
        (lambda path: None, 2, "there is no file or directory"),
        (lambda path: path.write_bytes(bytes(range(256)) * 40), 3, "no reader takes it"),
        (lambda path: path.write_bytes(b""), 3, "empty"),
        (lambda path: path.write_bytes(b"\x1f\x8b\x08\x00" + b"\x00" * 30), 3, ""),
    ],
    ids=["empty directory", "missing", "random bytes", "empty file", "broken gzip"],
)
def test_bad_input_is_one_sentence(
    make: Callable[[Path], object], code: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "input"
    make(path)
    done = run([str(path)])
    error = done.stderr.decode()
    assert done.returncode == code, error
    assert done.stdout == b""
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "missing argument"),
        (["x", "--format", "pdf"], "json, text"),
        (["x", "--lang", "fr"], "zh"),
        (["x", "--ranks-per-node", "0"], "1"),
        (["x", "--nonsense"], "nonsense"),
        (["x", "--now", "tomorrow"], "--now"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_read(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert "no file or directory" not in error


def test_standard_input_is_read(log: Path) -> None:
    done = run(["-"], stdin=(log / "rank_0.log").read_bytes())
    assert done.returncode in (0, 11), done.stderr.decode()
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


def test_a_strange_name_stays_text(
    log: Path, judged: Callable[[Diagnosis], object], capsys: pytest.CaptureFixture[str]
) -> None:
    judged(replace(slow_window(), headline="[red]x[/red] \x1b[31m"))
    main(["diagnose", str(log)])
    assert "[red]x[/red] \\x1b[31m" in capsys.readouterr().out


@pytest.mark.shared
def test_a_real_log_through_the_command(shared_dir: Path, tmp_path: Path) -> None:
    with tarfile.open(shared_dir / "data/megatron_rank2_slow/logs.tar.xz") as archive:
        archive.extractall(tmp_path / "logs", filter="data")
    done = run([str(tmp_path / "logs"), "--format", "json"])
    assert done.returncode == 10, done.stderr.decode()
    data = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema()).validate(data)
    (finding,) = data["findings"]
    assert (data["verdict"], finding["kind"], finding["culprits"]["ranks"]) == ("slow", "slow_compute", [2])
    assert (finding["window"]["first_iteration"], finding["window"]["last_iteration"]) == (21, 31)
    assert finding["status"] == "recovered"
