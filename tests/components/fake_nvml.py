"""NVIDIA's management library as the test wants it: compiled of ``fake_nvml.c``, its faults a text file.

A program is given it by its environment (`FakeNvml.environment`): the loader's path leads to it, and the file
says what is broken. The file is read at every call, so a test breaks a GPU under a program that runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
SONAME = "libnvidia-ml.so.1"
ADDRESSES = ("0000:18:00.0", "0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0", "0000:5d:00.0", "0000:9b:00.0",
             "0000:bb:00.0", "0000:cb:00.0")  # fmt: skip
"""PCI addresses of the eight GPUs."""


@dataclass(frozen=True, slots=True)
class FakeNvml:
    """``folder`` holds the library; ``faults`` is the file."""

    folder: Path
    faults: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to load it."""
        return {"LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML": str(self.faults)}

    def healthy(self) -> None:
        """Eight GPUs with nothing wrong."""
        self._write([])

    def broken(self, *lines: str) -> None:
        """These faults and no others, see ``fake_nvml.c``."""
        self._write(lines)

    def also(self, line: str) -> None:
        """One fault more, beside those there are."""
        self._write([*self.faults.read_text().splitlines(), line])

    def _write(self, lines: list[str] | tuple[str, ...]) -> None:
        temporary = self.faults.with_suffix(".part")
        temporary.write_text("".join(f"{line}\n" for line in lines))
        temporary.replace(self.faults)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled library."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed: it compiles the library that stands in for NVIDIA's")
    folder = tmp_path_factory.mktemp("nvml")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{SONAME}"]
    command = [compiler, *flags, str(SOURCE), "-o", str(folder / SONAME)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "LC_ALL": "C"}
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def fake_nvml(nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """The library with eight healthy GPUs; each test has its own file of faults."""
    found = FakeNvml(nvml_library, tmp_path / "faults")
    found.healthy()
    return found
