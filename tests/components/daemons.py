"""Starts real programs for tests and ends them: on the loopback, at free ports, waited for until they answer.

A component that this machine lacks is a reason to skip, and MEGATRACE_REQUIRE turns that skip into a failure.
Programs that Python brings (emulators of BMCs and switches) stand in an environment of their own,
MEGATRACE_COMPONENTS_PYTHON or .venv-components, because they pin versions of libraries that the product uses
too.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
"""As long as a daemon may take to answer: a second or three alone, ten times that on a busy machine."""
STEP_S = 0.05


class NotReady(AssertionError):
    """A daemon ended or never answered; what it printed is in the words."""


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port that nobody has at this moment."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def installed(program: str, *, package: str) -> str:
    """The path of a program of the system; skips the test where it is not installed."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{program} is not installed (Debian package {package})")
    return found


def emulator(program: str, *, package: str) -> str:
    """The path of a program of the environment of emulators; skips the test where it is not there."""
    python = os.environ.get("MEGATRACE_COMPONENTS_PYTHON") or str(
        ROOT / ".venv-components" / "bin" / "python"
    )
    found = Path(python).with_name(program)
    if not found.is_file():
        pytest.skip(
            f"{program} is not in {found.parent} (python3 -m venv .venv-components, pip install {package})"
        )
    return str(found)


def wait_until(ready: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> None:
    """Returns as soon as ``ready`` says so. Raises NotReady after the limit."""
    until = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > until:
            raise NotReady(f"{what} did not come within {limit_s:.0f} s")
        time.sleep(STEP_S)


@contextmanager
def running(
    argv: Sequence[str], ready: Callable[[], bool], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon from its first answer on; ended afterwards, by force if need be."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})}, start_new_session=True,
        )  # fmt: skip

    def answers() -> bool:
        if process.poll() is not None:
            raise NotReady(
                f"{argv[0]} ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}"
            )
        return ready()

    try:
        try:
            wait_until(answers, f"an answer of {argv[0]}")
        except NotReady as error:
            raise NotReady(f"{error}\n{log.read_text(errors='replace')[-2000:]}") from None
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()


def connects(port: int) -> bool:
    """Whether somebody listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False
