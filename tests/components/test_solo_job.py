"""The job of a suspected GPU, on the CPU of this machine: all its stages, with a real PyTorch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from megatrace.bot.solo import job as solo_job
from tests.components.test_gloo_training import python_with_torch

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("gloo")]


def test_all_stages_pass_where_nothing_is_wrong() -> None:
    words = [python_with_torch(), str(Path(solo_job.__file__).resolve()), "--seconds", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    stages = [step["stage"] for step in steps[:-1]]
    assert list(dict.fromkeys(stages)) == ["start", "memory", "products", "collectives"]
    assert steps[-1]["wrong"] == 0
    assert steps[-1]["done"] is True
