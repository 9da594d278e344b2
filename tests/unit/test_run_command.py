"""`megatrace run`: the job as it would be without, and what is written beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MEGATRACE = [sys.executable, "-m", "megatrace"]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MEGATRACE, "run", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_output_and_exit_code_pass_through_and_the_configuration_is_kept(tmp_path: Path) -> None:
    done = run(
        "--dir", "r", "--name", "seven", "--rings", "shm",
        "--", "sh", "-c", "echo out; echo err >&2; exit 7", "--tensor-model-parallel-size", "2",
        cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "err\n" in done.stderr
    assert "tensor: 2  # argv --tensor-model-parallel-size" in (tmp_path / "r" / "job.yaml").read_text()
    told = json.loads((tmp_path / "r" / "run.json").read_text())
    assert told["job"] == "seven"
    assert told["command"][:2] == ["sh", "-c"]
    assert told["config"]["tensor"] == {"value": 2, "source": "argv --tensor-model-parallel-size"}
    assert not (tmp_path / "shm").exists(), "a folder of rings with nothing in it is not left behind"


def test_rings_are_moved_out_of_shared_memory_when_the_job_ends(tmp_path: Path) -> None:
    script = 'echo ring > "$MEGATRACE_RING_DIR/a.ring"; kill -9 $$'
    done = run("--dir", "r", "--rings", "shm", "--", "sh", "-c", script, cwd=tmp_path)
    assert done.returncode == 137
    assert (tmp_path / "r" / "rings" / "a.ring").read_text() == "ring\n"
    assert "next: megatrace diagnose r/rings --config r/job.yaml" in done.stderr


def test_arguments_that_a_script_hides_are_taken_from_a_rank(tmp_path: Path) -> None:
    told = {"world_size": 8, "argv": ["train.py", "--tensor-model-parallel-size", "4"]}
    (tmp_path / "told.json").write_text(json.dumps(told))
    (tmp_path / "train.sh").write_text('cp told.json "$MEGATRACE_RING_DIR/groups-n-1.json"\n')
    done = run("--dir", "r", "--rings", "shm", "--", "sh", "train.sh", cwd=tmp_path)
    assert done.returncode == 0
    written = (tmp_path / "r" / "job.yaml").read_text()
    assert "tensor: 4  # argv --tensor-model-parallel-size" in written
    assert "world_size: 8  # environment WORLD_SIZE" in written
    assert "data: 2" in written


def test_a_folder_that_cannot_be_made_does_not_keep_the_job_from_running(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("--dir", "file/r", "--", "echo", "trained", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "the job is started without recording" in done.stderr


def test_the_variables_to_export_are_printed_for_a_shell(tmp_path: Path) -> None:
    done = run("--print-env", cwd=tmp_path)
    assert done.returncode == 0
    names = [line.partition("=")[0] for line in done.stdout.splitlines()]
    assert set(names) <= {"export LD_PRELOAD", "export NCCL_PROFILER_PLUGIN", "export PYTHONPATH"}
    assert not list(tmp_path.iterdir())


def test_no_command_is_a_usage_error(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no command")
