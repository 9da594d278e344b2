"""What several tests of the native recorders need: built once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.components.native_builds import compiled, needs_compiler
from tests.components.nccl_jobs import Built, build
from tests.components.ring_programs import SOURCES


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The stub of NCCL, the job, plug-in and preloaded library."""
    needs_compiler()
    return build(tmp_path_factory.mktemp("nccl"))


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that writes rings."""
    needs_compiler()
    return compiled(tmp_path_factory.mktemp("ring") / "check", *SOURCES)
