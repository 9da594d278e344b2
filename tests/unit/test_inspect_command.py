"""`megatrace inspect`: what people and programs are told, and recordings that repeat it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from random import Random

import pytest
from jsonschema import Draft202012Validator

from megatrace.bot.inspecting import inspect_recording
from megatrace.bot.recorded_system import RecordedSystem, Recorder, Recording
from megatrace.bot.recording import FILES, MANIFEST, read_recording, write_recording
from megatrace.bot.specimens import faults_gpu, faults_network
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import machine
from megatrace.commands.main import main
from megatrace.errors import TraceError, UsageError
from megatrace.model.check import Outcome
from megatrace.model.check_json import decoded, encoded
from megatrace.model.system import Ran, Unreadable, Why
from megatrace.reports.inspection_schema import schema

ROOT = Path(__file__).resolve().parents[2]


def _sick() -> Recording:
    made = machine("h100-ib")
    made.job()
    faults_gpu.gpu_lost(made, Random(1))
    faults_network.one_lane(made, Random(1))
    return written(made)


@pytest.fixture
def sick(tmp_path: Path) -> str:
    """A bundle of a machine with a lost GPU and a slow port."""
    write_recording(_sick(), tmp_path / "sick", masked=False)
    return str(tmp_path / "sick")


@pytest.fixture
def well(tmp_path: Path) -> str:
    """A bundle of a healthy machine."""
    write_recording(written(machine("a100-ib")), tmp_path / "well.tar.gz")
    return str(tmp_path / "well.tar.gz")


def test_a_person_reads_what_is_wrong_worst_first_and_what_to_do(
    sick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--system", sick]) == 10
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("SICK  node188 · 8×H100 80GB HBM3 · driver 550.127.08 ·")
    first = next(line for line in lines if "P0 FAIL" in line)
    assert "GPU-02  gpu2 (0000:52:00.0)" in first
    assert "has fallen off the bus" in first
    assert lines.index(first) == next(index for index, line in enumerate(lines) if line.startswith("  P"))
    assert any("→ drain, power-cycle cold" in line for line in lines)
    assert any("P1 FAIL" in line and "IB-02" in line and "100 of 400 Gb/s" in line for line in lines)
    assert any(line.startswith("  skipped ") for line in lines)


def test_a_healthy_machine_is_called_well(well: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--system", well]) == 0
    assert capsys.readouterr().out.startswith("WELL  ")


def test_programs_get_every_result_and_read_the_same_back(
    sick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--system", sick, "--format", "json"]) == 10
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["node"], said["exit_code"]) == ("megatrace.inspection/1", "node188", 10)
    results = [decoded(item) for item in said["results"]]
    assert [encoded(item) for item in results] == said["results"]
    (lost,) = [item for item in results if item.check == "GPU-02"]
    assert lost.outcome is Outcome.FAIL
    assert (lost.findings[0].culprits.devices[0].device or "").startswith("0000:")
    assert sum(said["counts"].values()) == len(results)


@pytest.mark.parametrize(
    "specimen", ["h100-ib", "h100-roce:port_down", "a100-ib:xid_second_lost", "cpu-ib:mount_hangs"]
)
def test_the_json_keeps_its_published_schema(specimen: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", "--specimen", specimen, "--format", "json"])
    Draft202012Validator(schema()).validate(json.loads(capsys.readouterr().out))
    published = json.loads((ROOT / "docs" / "reference" / "inspection.schema.json").read_text("utf-8"))
    assert published == schema()


def test_nagios_gets_one_line_and_its_own_codes(
    sick: str, well: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--system", sick, "--format", "nagios"]) == 2
    line = capsys.readouterr().out
    assert line.startswith("MEGATRACE CRITICAL - GPU-02 gpu2 (0000:52:00.0) is lost")
    assert line.count("\n") == line.count("|") == 1
    assert main(["inspect", "--system", well, "--format", "nagios"]) == 0
    assert capsys.readouterr().out.startswith("MEGATRACE OK - ")


def test_a_node_problem_detector_gets_eighty_characters_and_its_own_codes(
    sick: str, well: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--system", sick, "--format", "npd"]) == 1
    message = capsys.readouterr().out.rstrip("\n")
    assert message.startswith("GPU-02 ")
    assert len(message) <= 80
    assert main(["inspect", "--system", well, "--format", "npd"]) == 0


def test_checks_are_chosen_by_the_beginning_of_their_names(
    sick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--system", sick, "--check", "MEM", "--format", "json"]) == 0
    names = {item["check"] for item in json.loads(capsys.readouterr().out)["results"]}
    assert {"MEM-01", "MEM-03"} <= names
    assert all(name.startswith("MEM-") for name in names)
    assert main(["inspect", "--system", sick, "--check", "GPU-0"]) == 2
    assert "GPU-0" in capsys.readouterr().err


def test_what_only_observes_changes_no_exit_code_and_is_still_shown(
    sick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    observe = ["--observe", "GPU-02", "--observe", "IB-02", "--observe", "GPU-05", "--disable", "GPU-01"]
    assert main(["inspect", "--system", sick, "--check", "GPU-02", "--check", "IB-02", *observe]) == 0
    assert "observed    GPU-02" in capsys.readouterr().out
    assert main(["inspect", "--system", sick, "--observe", "GPU-99"]) == 2


def test_this_machine_can_be_looked_at_recorded_and_judged_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "state.json")
    bundle = str(tmp_path / "here.tar")
    names = ["--check", "CPU", "--check", "MEM-01", "--check", "FS-02", "--check", "TIM"]
    first = main(["inspect", "--state", state, "--record", bundle, "--format", "json", *names])
    there = json.loads(capsys.readouterr().out)
    assert main(["inspect", "--system", bundle, "--format", "json", *names]) == first
    again = json.loads(capsys.readouterr().out)
    assert [(item["check"], item["outcome"]) for item in again["results"]] == [
        (item["check"], item["outcome"]) for item in there["results"]
    ]
    assert Path(state).is_file()


def test_a_made_machine_can_be_practised_on_and_written_as_a_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(tmp_path / "bundle")
    names = ["--check", "NVL", "--check", "GPU-02", "--format", "json"]
    assert main(["inspect", "--specimen", "h200-roce:link_recovery", "--record", bundle, *names]) == 10
    made = json.loads(capsys.readouterr().out)
    assert main(["inspect", "--system", bundle, *names]) == 10
    again = json.loads(capsys.readouterr().out)
    said = [(item["check"], item["findings"]) for item in made["results"] if item["findings"]]
    assert [name for name, _ in said] == ["NVL-02"]
    assert said == [(item["check"], item["findings"]) for item in again["results"] if item["findings"]]
    assert main(["inspect", "--specimen", "list"]) == 0
    assert "link_recovery" in capsys.readouterr().out
    for wrong in ("x100", "cpu-ib:gpu_lost", "h100-ib:nothing"):
        assert main(["inspect", "--specimen", wrong]) == 2


def test_the_how_to_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "how-to" / "inspect-a-machine.md").read_text("utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0].splitlines()
    assert main(["inspect", "--specimen", "h100-ib:gpu_lost"]) == 10
    said = capsys.readouterr().out.splitlines()

    def findings(lines: list[str]) -> list[str]:
        begin = next(index for index, line in enumerate(lines) if "P0 FAIL" in line)
        end = next(index for index, line in enumerate(lines) if line.startswith("  skipped"))
        return lines[begin:end]

    assert findings(said) == findings(shown)
    assert said[0].rpartition("·")[0] == shown[0].rpartition("·")[0]


# ---- recordings


@pytest.mark.parametrize("name", ["machine", "machine.tar", "machine.tar.gz"])
def test_a_recording_is_the_same_after_writing_and_reading(tmp_path: Path, name: str) -> None:
    recording = _sick()
    recording.refused["/secret"] = Why.DENIED
    recording.commands["sleep", "9"] = Ran(("sleep", "9"), None, why=Why.HUNG, seconds=15.0)
    write_recording(recording, tmp_path / name, masked=False)
    again = read_recording(tmp_path / name)
    assert again == recording
    first, second = inspect_recording(recording), inspect_recording(again)
    assert [encoded(item)["findings"] for item in second.results] == [
        encoded(item)["findings"] for item in first.results
    ]


def test_names_addresses_and_secrets_are_masked_and_the_verdict_is_the_same(tmp_path: Path) -> None:
    recording = _sick()
    recording.files["/proc/cmdline"] = "console=ttyS0 token=abcdefghijkl nfsroot=10.9.8.7:/x\n"
    recording.files["/proc/mounts"] += "10.9.8.7:/home/alice /home/alice nfs4 rw 0 0\n"
    masked = write_recording(recording, tmp_path / "masked")
    text = "".join(path.read_text("utf-8") for path in (tmp_path / "masked").rglob("*") if path.is_file())
    for word in ("node188", "10.9.8.7", "alice", "abcdefghijkl"):
        assert word not in text
    assert masked["host names"] >= 1
    before, after = inspect_recording(recording), inspect_recording(read_recording(tmp_path / "masked"))
    assert [item.outcome for item in after.results] == [item.outcome for item in before.results]


def test_a_recorder_keeps_what_was_asked_and_of_environments_only_what_concerns_training() -> None:
    behind = Recording(
        files={"/a": "text", "/proc/7/environ": "AWS_SECRET=x\0NCCL_DEBUG=INFO\0PATH=/bin"},
        refused={"/b": Why.DENIED},
    )
    behind.answer(("echo",), "hello")
    recorder = Recorder(RecordedSystem(behind))
    assert recorder.read("/proc/7/environ") == "NCCL_DEBUG=INFO"
    recorder.run(("echo",))
    with pytest.raises(Unreadable):
        recorder.read("/b")
    again = RecordedSystem(recorder.recording)
    assert again.run(("echo",)).output == "hello"
    with pytest.raises(Unreadable) as denied:
        again.read("/b")
    assert denied.value.why is Why.DENIED
    with pytest.raises(Unreadable) as unknown:
        again.read("/a")
    assert unknown.value.why is Why.NOT_RECORDED


def test_a_pattern_fits_within_a_component_and_folders_count() -> None:
    system = RecordedSystem(Recording(files={"/sys/a1/x": "", "/sys/b1/x": "", "/sys/a2/y/z": ""}))
    assert system.glob("/sys/a*") == ("/sys/a1", "/sys/a2")
    assert system.glob("/sys/*/x") == ("/sys/a1/x", "/sys/b1/x")
    assert system.glob("/sys/a[0-9]*") == ("/sys/a1", "/sys/a2")
    assert system.glob("/nothing/*") == ()


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("{", "damaged"),
        ("[]", "another version"),
        ('{"schema": "megatrace.system/9"}', "another version"),
        ('{"schema": "megatrace.system/1"}', "'commands' is not in it"),
        ('{"schema": "megatrace.system/1", "name": "n", "time": "x", "commands": []}', "damaged"),
        ('{"schema": "megatrace.system/1", "name": "n", "time": "1", "commands": [3]}', "damaged"),
        (
            '{"schema": "megatrace.system/1", "name": "n", "time": "1", "commands": [], "infos": {"/a": []}}',
            "damaged",
        ),
    ],
)
def test_what_is_no_recording_gives_one_clear_error(tmp_path: Path, manifest: str, words: str) -> None:
    (tmp_path / MANIFEST).write_text(manifest, "utf-8")
    with pytest.raises(TraceError, match=words):
        read_recording(tmp_path)


def test_other_things_are_no_recordings(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_recording(tmp_path / "none")
    with pytest.raises(TraceError, match="is no recording of a machine"):
        read_recording(tmp_path)
    (tmp_path / "text").write_text("hello", "utf-8")
    with pytest.raises(TraceError):
        read_recording(tmp_path / "text")
    with pytest.raises(UsageError, match="not an empty folder"):
        write_recording(Recording(), tmp_path)


def test_an_archive_leads_nowhere(tmp_path: Path) -> None:
    write_recording(Recording(complete=True), tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        for name in ("../../escape", f"{FILES}/../../escape"):
            archive.addfile(tarfile.TarInfo(name))
        link = tarfile.TarInfo(f"{FILES}/etc/passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert "/etc/passwd" not in read_recording(tmp_path / "a.tar").files
    assert list(tmp_path.iterdir()) == [tmp_path / "a.tar"]
