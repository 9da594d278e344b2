"""Runs ``native/tests/ring_check.cc`` and reads what it wrote."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from megatrace.model.ringformat import Ring, parse_ring
from tests.components.native_builds import LIMIT_S, NATIVE, RING, TESTS

SOURCES = [TESTS / "ring_check.cc", *(NATIVE / part for part in RING)]


def ran(
    program: Path, folder: Path, *words: str, before: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "MEGATRACE_RING_DIR": str(folder), "RANK": "3", **more}
    command = [*before, str(program), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def rings(folder: Path) -> list[Ring]:
    return [parse_ring(path.read_bytes(), path.name) for path in sorted(folder.glob("*.ring"))]
