"""The benchmark for a machine with a GPU says what is missing, and passes, where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import one_gpu

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(one_gpu.gpus() > 0, reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_writes_no_result() -> None:
    result = ROOT / "benchmarks" / "results" / "one_gpu.json"
    before = result.read_bytes() if result.exists() else None
    command = [sys.executable, "-m", "benchmarks.one_gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("no GPU here: nothing measured")
    assert (result.read_bytes() if result.exists() else None) == before
