"""This machine, as a ``System``.

Reads and runs with bounds: a file is cut, a program has a time limit and an output limit, and one that cannot
be killed (state D) is left alone rather than waited for. A read itself cannot be bounded in the process that
does it; so whatever can hang is read in a worker that the check runner kills (``check_worker``)."""

from __future__ import annotations

import glob as globbing
import os
import resource
import select
import signal
import socket
import stat as stats
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from megatrace.model.system import MAX_READ, RUN_TIMEOUT_S, FileInfo, FileKind, Ran, Space, Unreadable, Why

KMSG = "/dev/kmsg"
MAX_OUTPUT = 8 << 20
"""Bytes of a program's output: nvidia-smi -q -x of sixteen GPUs is 600 KB, a kernel log of a month 4 MB."""
GRACE_S = 1.0
"""Seconds in which a killed process is gone, unless it stands in the kernel."""
_RECORD = 8192
"""Bytes of one record of the kernel's ring buffer."""


class LiveSystem:
    """See ``model.system.System``. ``host`` is where the machine's root is mounted (in a container: /host).

    ``free_memory``: this process has a bound on its memory that its programs must not inherit.
    """

    def __init__(self, host: str = "/", *, free_memory: bool = False) -> None:
        self._host = host.rstrip("/")
        self._before = _free_memory if free_memory else None
        self.abandoned: list[tuple[int, str]] = []
        """Programs that could not be killed: process id and what it was."""

    @property
    def name(self) -> str:
        """The host name."""
        return socket.gethostname()

    @property
    def root(self) -> bool:
        """Whether this process is root."""
        return os.geteuid() == 0

    def now(self) -> int:
        """Wall time."""
        return time.time_ns()

    def read(self, path: str, limit: int = MAX_READ) -> str:
        """See ``System.read``; the kernel's ring buffer is read to its present end."""
        try:
            if path == KMSG:
                return _ring_buffer(self._at(path), limit)
            with Path(self._at(path)).open("rb") as file:
                return file.read(limit).decode("utf-8", "replace")
        except OSError as error:
            raise _unreadable(path, error) from None

    def glob(self, pattern: str) -> tuple[str, ...]:
        """See ``System.glob``."""
        return tuple(sorted(path[len(self._host) :] for path in globbing.glob(self._at(pattern))))  # noqa: PTH207 - absolute patterns

    def stat(self, path: str) -> FileInfo:
        """See ``System.stat``."""
        try:
            found = Path(self._at(path)).lstat()
        except OSError as error:
            raise _unreadable(path, error) from None
        return FileInfo(_kind(found.st_mode), found.st_size, stats.S_IMODE(found.st_mode), found.st_mtime_ns)

    def link(self, path: str) -> str:
        """See ``System.link``."""
        try:
            return str(Path(self._at(path)).readlink())
        except OSError as error:
            raise _unreadable(path, error) from None

    def space(self, path: str) -> Space:
        """See ``System.space``."""
        try:
            found = os.statvfs(self._at(path))
        except OSError as error:
            raise _unreadable(path, error) from None
        unit = found.f_frsize
        return Space(found.f_blocks * unit, found.f_bavail * unit, found.f_files, found.f_favail)

    def run(self, argv: Sequence[str], timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        """See ``System.run``. The program stays in this process's group, so that whoever kills that ends
        both."""
        begun = time.monotonic()
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C", "LANG": "C"},
                preexec_fn=self._before,
            )
        except OSError as error:
            refused = _unreadable(argv[0], error).why
            return Ran(tuple(argv), None, error=error.strerror or "", why=refused)
        output, why = _collect(process, begun + timeout_s)
        if why is not None and not _end(process):
            self.abandoned.append((process.pid, " ".join(argv)))
        code = process.poll()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        texts = [part.decode("utf-8", "replace") for part in output]
        seconds = time.monotonic() - begun
        return Ran(tuple(argv), None if why else code, texts[0], texts[1], why, round(seconds, 3))

    def _at(self, path: str) -> str:
        return f"{self._host}{path}"


def _free_memory() -> None:
    """A GPU's libraries reserve terabytes of addresses."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _collect(process: subprocess.Popen[bytes], until: float) -> tuple[list[bytes], Why | None]:
    """What it prints on its two outputs until it ends, its time is over or it has printed too much."""
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    parts: dict[int, bytearray] = {pipe.fileno(): bytearray() for pipe in pipes}
    order = list(parts)
    still = set(order)
    why: Why | None = None
    while still and why is None:
        left = until - time.monotonic()
        ready = select.select(list(still), [], [], max(left, 0.0))[0] if left > 0 else []
        if not ready:
            why = Why.HUNG
        for number in ready:
            block = os.read(number, 1 << 16)
            parts[number] += block
            if not block:
                still.discard(number)
            elif sum(map(len, parts.values())) > MAX_OUTPUT:
                why = Why.FLOOD
    if why is None:
        try:
            process.wait(max(until - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            why = Why.HUNG
    return [bytes(parts[number]) for number in order], why


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Kills a program and what it started; False where it does not go, because it stands in the kernel."""
    for pid in (*_descendants(process.pid), process.pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _descendants(pid: int) -> list[int]:
    """Processes that a program started, and those that these started; none where the kernel does not tell."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text("ascii")
            found += [int(word) for word in text.split()]
    return found[1:]


def _ring_buffer(path: str, limit: int) -> str:
    """Records of /dev/kmsg, one a read, until there is no further one."""
    parts: list[bytes] = []
    size = 0
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while size < limit:
            try:
                record = os.read(number, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten while they were read; the next read goes on
                continue
            if not record:
                break
            parts.append(record)
            size += len(record)
    finally:
        os.close(number)
    return b"".join(parts).decode("utf-8", "replace")


def _kind(mode: int) -> FileKind:
    for test, kind in (
        (stats.S_ISREG, FileKind.FILE),
        (stats.S_ISDIR, FileKind.FOLDER),
        (stats.S_ISLNK, FileKind.LINK),
        (stats.S_ISCHR, FileKind.CHARACTER),
        (stats.S_ISBLK, FileKind.BLOCK),
    ):
        if test(mode):
            return kind
    return FileKind.OTHER


def _unreadable(path: str, error: OSError) -> Unreadable:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Unreadable(path, Why.ABSENT)
    if isinstance(error, PermissionError):
        return Unreadable(path, Why.DENIED)
    return Unreadable(path, Why.FAILED, error.strerror or str(error))
