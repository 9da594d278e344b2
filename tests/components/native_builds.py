"""Builds parts of ``native/``, and what stands in for NCCL and libibverbs in tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
TESTS = NATIVE / "tests"
RING = ("ring.cc", "about.cc", "about_device.cc")
RECORDER = ("nccl_recorder.cc", *RING)
PLUGIN = ("nccl_profiler.cc", "nccl_steps.cc", *RECORDER)
PRELOAD = ("nccl_preload.cc", *RECORDER)
VERBS = ("verbs_shim.cc", "work_requests.cc", "work_requests_ring.cc", *RING)
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-pthread"]
OURS = [
    "-shared",
    "-Wconversion",
    "-Wshadow",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fvisibility=hidden",
]
SANITIZERS = ["address,undefined", "thread"]
LIMIT_S = 120


def needs_compiler() -> None:
    """Skips the test where there is no C++ compiler."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")


def compiled(output: Path, *words: str | Path, more: Sequence[str] = (), compiler: str = "g++") -> Path:
    """Compiles and links one program or library."""
    command = [compiler, *FLAGS, *more, *map(str, words), "-ldl", "-o", str(output)]
    done = subprocess.run(command, timeout=LIMIT_S, capture_output=True, text=True)
    if done.returncode != 0:
        raise ChildProcessError(done.stderr)
    return output


def library(output: Path, parts: Sequence[str], more: Sequence[str] = ()) -> Path:
    """One of our libraries, of its parts in ``native/``."""
    return compiled(output, *OURS, *(NATIVE / part for part in parts), more=more)


def sanitizing(sanitizer: str, place: Path) -> list[str]:
    """The flags of a sanitizer; skips where this compiler has it not, or it does not run here."""
    needs_compiler()
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-Wno-tsan"]
    source = place / "probe.cc"
    source.write_text("int main() {}\n")
    try:
        subprocess.run([compiled(place / "probe", source, more=flags)], check=True, capture_output=True)
    except (ChildProcessError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the {sanitizer} sanitizer does not work here: {error!s:.100}")
    return flags
