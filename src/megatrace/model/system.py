"""The door to a machine: what a health check may ask of it, whether it is this one or a recording of another.

A check reads files, lists paths and runs programs, and nothing else; so everything it can see can be written
down and replayed, and a fixture of a test and a bundle of a customer are the same thing. Reading and judging
are kept apart by this: a ``System`` never says what a value means.

Declares only; ``bot.live_system`` and ``bot.recorded_system`` implement it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

MAX_READ = 1 << 20
"""Bytes of one file that a check gets unless it asks for more: a file of sysfs has a page, a mount table 100
KB."""
RUN_TIMEOUT_S = 15.0
"""Seconds for a program: nvidia-smi -q on eight GPUs without persistence mode takes up to 10 s."""


class Why(Enum):
    """Why a file cannot be read, or a program gave no answer."""

    ABSENT = "does not exist"
    DENIED = "needs root"
    NOT_RECORDED = "was not recorded"
    HUNG = "hangs"
    FAILED = "cannot be read"
    FLOOD = "printed without end"


class Unreadable(Exception):
    """A file or program that gives no answer; the check runner turns it into UNKNOWN or SKIPPED."""

    def __init__(self, path: str, why: Why, detail: str = "") -> None:
        self.path, self.why, self.detail = path, why, detail
        super().__init__(f"{path} {why.value}" + (f" ({detail})" if detail else ""))


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that was run. ``why`` is None where it ended by itself with ``code``; ``seconds`` is how long
    it took.

    Only a program that ended with 0 may be believed without a look at ``error``.
    """

    argv: tuple[str, ...]
    code: int | None
    output: str = ""
    error: str = ""
    why: Why | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it ended by itself and with 0."""
        return self.why is None and self.code == 0

    @property
    def problem(self) -> str:
        """Why there is no answer, in words; "" where there is one."""
        name = " ".join(self.argv[:3])
        if self.why is Why.ABSENT:
            return f"{self.argv[0]} is not installed"
        if self.why is Why.HUNG:
            return f"{name} did not answer within {self.seconds:.0f} s"
        if self.why is not None:
            return f"{name} {self.why.value}"
        if self.code:
            said = next(
                (line.strip() for line in (self.error or self.output).splitlines() if line.strip()), ""
            )
            return f"{name} ended with {self.code}" + (f": {said[:160]}" if said else "")
        return ""


class FileKind(Enum):
    """What a path is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    CHARACTER = "character device"
    BLOCK = "block device"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A path without its content; ``modified`` ns since the epoch, ``mode`` the permission bits."""

    kind: FileKind
    size: int = 0
    mode: int = 0o644
    modified: int = 0


@dataclass(frozen=True, slots=True)
class Space:
    """A mounted file system; sizes in bytes, ``available`` to users without privileges."""

    size: int
    available: int
    files: int = 0
    files_free: int = 0

    @property
    def used_percent(self) -> float:
        """As df has it, 0 to 100."""
        return 100.0 * (1 - self.available / self.size) if self.size else 0.0

    @property
    def files_used_percent(self) -> float:
        """Inodes in use, 0 to 100; 0 where the file system does not count them."""
        return 100.0 * (1 - self.files_free / self.files) if self.files else 0.0


class System(Protocol):
    """One machine. Only ``run`` never raises; everything else raises `Unreadable`."""

    @property
    def name(self) -> str:
        """Its host name."""
        ...

    @property
    def root(self) -> bool:
        """Whether it was, or is, looked at as root."""
        ...

    def now(self) -> int:
        """Its wall time, ns since the epoch; of a recording, when it was made."""
        ...

    def read(self, path: str, limit: int = MAX_READ) -> str:
        """The text of a file, cut at ``limit`` bytes; bytes that are no UTF-8 are replaced."""
        ...

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Paths that fit a pattern of * ? [] within a component, sorted; none where nothing does."""
        ...

    def stat(self, path: str) -> FileInfo:
        """What a path is, links followed only where it is no link itself."""
        ...

    def link(self, path: str) -> str:
        """Where a symbolic link points, as it stands in it."""
        ...

    def space(self, path: str) -> Space:
        """The file system at a mount point. May hang where a server does not answer: probe it in a child."""
        ...

    def run(self, argv: Sequence[str], timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        """Runs a program without a shell and without input, its output bounded."""
        ...
