"""The prolog for Slurm: only the gate's own "no" keeps a job away; everything else lets it pass."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PROLOG = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "megatrace-prolog.sh"


def prolog(folder: Path, script: str | None, **variables: str) -> subprocess.CompletedProcess[str]:
    if script is not None:
        program = folder / "megatrace"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    return subprocess.run([str(PROLOG)], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 10", 1), ("exit 0", 0), ("exit 1", 0), ("exit 2", 0), ("kill -9 $$", 0), (None, 0)],
)
def test_only_a_definite_no_keeps_a_job_away(script: str | None, code: int, tmp_path: Path) -> None:
    if script is None and any((Path(place) / "megatrace").exists() for place in ("/usr/bin", "/bin")):
        pytest.skip("MegaTrace is installed for the whole system here")
    assert prolog(tmp_path, script).returncode == code


def test_the_controller_is_handed_on(tmp_path: Path) -> None:
    done = prolog(tmp_path, 'echo "$@"', MEGATRACE_CONTROLLER="http://c:8080")
    assert done.stdout.split() == ["inspect", "--gate", "--controller", "http://c:8080"]
    assert prolog(tmp_path, 'echo "$@"').stdout.split() == ["inspect", "--gate"]


def test_the_script_is_one_that_a_scheduler_can_run() -> None:
    assert os.access(PROLOG, os.X_OK)
