"""A real Dask scheduler and two worker processes on the loopback."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components.daemons import connects, free_port, running, wait_until

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Dask:
    """Its address, and the processes of its workers."""

    address: str
    workers: tuple[subprocess.Popen[bytes], ...]


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    """A cluster for one test, which may kill a worker. Use it with the marker `dask`."""
    if importlib.util.find_spec("distributed") is None:
        pytest.skip("distributed is not installed (megatrace[cluster])")
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    start = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    work = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1"]
    work += ["--no-dashboard", "--local-directory", str(tmp_path), "--host", "127.0.0.1"]
    with ExitStack() as stack:
        log = tmp_path / "scheduler.log"
        stack.enter_context(running([*start, "--no-dashboard"], lambda: connects(port), log))
        workers = tuple(
            stack.enter_context(running(work, lambda: True, tmp_path / f"worker{number}.log"))
            for number in range(WORKERS)
        )
        wait_until(lambda: log.read_text().count("Register worker") == WORKERS, "both workers")
        yield Dask(address, workers)
