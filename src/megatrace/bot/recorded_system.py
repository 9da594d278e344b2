"""A machine as it was recorded: files, programs and their outputs, without the machine.

A `Recording` is a value that a test writes by hand, a generator makes, or `Recorder` takes of a live machine
by standing between it and the checks: what they ask is what is kept. Of a complete recording (a made one)
everything else is absent; of one that was taken, what nobody asked for was not recorded, which is no
statement about the machine."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from megatrace.model.system import (
    MAX_READ,
    RUN_TIMEOUT_S,
    FileInfo,
    FileKind,
    Ran,
    Space,
    System,
    Unreadable,
    Why,
)

T = TypeVar("T")
ENVIRON = re.compile(r"/proc/\d+/environ")
SHOWN_VARIABLES = (
    *("NCCL_", "CUDA_", "NVIDIA_", "UCX_", "TORCH_", "OMP_"),
    *("SLURM_JOB_ID=", "SLURM_PROCID=", "RANK=", "LOCAL_RANK=", "WORLD_SIZE="),
)
"""Variables of foreign processes that are kept; all others are their owner's business."""


@dataclass
class Recording:
    """Everything that is known of one machine at one time.

    ``files`` path → text; ``refused`` path → why it could not be read; ``links`` path → target; ``infos`` and
    ``spaces`` by path; ``commands`` by argument vector; ``globs`` pattern → paths, where they were asked for;
    ``counters`` what was remembered of earlier looks (the state of ``counters.Counters``)."""

    name: str = "node"
    time: int = 0
    root: bool = True
    complete: bool = True
    files: dict[str, str] = field(default_factory=dict)
    refused: dict[str, Why] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    infos: dict[str, FileInfo] = field(default_factory=dict)
    spaces: dict[str, Space] = field(default_factory=dict)
    commands: dict[tuple[str, ...], Ran] = field(default_factory=dict)
    globs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    counters: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def answer(self, argv: Sequence[str], output: str, code: int = 0, error: str = "") -> None:
        """Says what a program prints."""
        self.commands[tuple(argv)] = Ran(tuple(argv), code, output, error)

    def update(self, other: Recording) -> None:
        """Adds what another recording of the same machine holds."""
        self.files.update(other.files)
        self.refused.update(other.refused)
        self.links.update(other.links)
        self.infos.update(other.infos)
        self.spaces.update(other.spaces)
        self.commands.update(other.commands)
        self.globs.update(other.globs)


class RecordedSystem:
    """See ``model.system.System``."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @property
    def name(self) -> str:
        """The host name."""
        return self.recording.name

    @property
    def root(self) -> bool:
        """Whether it was recorded as root."""
        return self.recording.root

    def now(self) -> int:
        """When it was recorded."""
        return self.recording.time

    def read(self, path: str, limit: int = MAX_READ) -> str:
        """See ``System.read``."""
        text = self.recording.files.get(path)
        if text is None:
            raise self._missing(path)
        return text[:limit]

    def glob(self, pattern: str) -> tuple[str, ...]:
        """See ``System.glob``; a pattern that was not asked for is answered from the paths there are."""
        known = self.recording.globs.get(pattern)
        if known is not None:
            return known
        forms = [re.compile(fnmatch.translate(part)) for part in pattern.split("/")]
        depth = pattern.count("/")
        return tuple(
            path
            for path in self._paths.get(depth, ())
            if all(form.match(part) for form, part in zip(forms, path.split("/"), strict=True))
        )

    def stat(self, path: str) -> FileInfo:
        """See ``System.stat``."""
        recording = self.recording
        known = recording.infos.get(path)
        if known is not None:
            return known
        if path in recording.links:
            return FileInfo(FileKind.LINK)
        if path in recording.files:
            return FileInfo(FileKind.FILE, len(recording.files[path]))
        if path in self._paths.get(path.count("/"), ()):
            return FileInfo(FileKind.FOLDER)
        raise self._missing(path)

    def link(self, path: str) -> str:
        """See ``System.link``."""
        target = self.recording.links.get(path)
        if target is None:
            raise self._missing(path)
        return target

    def space(self, path: str) -> Space:
        """See ``System.space``."""
        found = self.recording.spaces.get(path)
        if found is None:
            raise self._missing(path)
        return found

    def run(self, argv: Sequence[str], timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        """See ``System.run``."""
        found = self.recording.commands.get(tuple(argv))
        if found is None:
            why = Why.ABSENT if self.recording.complete else Why.NOT_RECORDED
            return Ran(tuple(argv), None, why=why)
        return found

    def _missing(self, path: str) -> Unreadable:
        recording = self.recording
        known = recording.refused.get(path, Why.ABSENT if recording.complete else Why.NOT_RECORDED)
        return Unreadable(path, known)

    @cached_property
    def _paths(self) -> dict[int, list[str]]:
        """Every path and the folders above it, by the number of slashes, sorted."""
        recording = self.recording
        every = {*recording.files, *recording.links, *recording.infos, *recording.refused, *recording.spaces}
        found: dict[int, set[str]] = {}
        for path in every:
            while path and path not in found.setdefault(path.count("/"), set()):
                found[path.count("/")].add(path)
                path = path.rpartition("/")[0]
        return {depth: sorted(paths) for depth, paths in found.items()}


class Recorder:
    """A system that keeps what it was asked; otherwise as the one behind it."""

    def __init__(self, behind: System) -> None:
        self._behind = behind
        self.recording = Recording(behind.name, behind.now(), behind.root, complete=False)

    @property
    def name(self) -> str:
        """As behind it."""
        return self._behind.name

    @property
    def root(self) -> bool:
        """As behind it."""
        return self._behind.root

    def now(self) -> int:
        """As behind it."""
        return self._behind.now()

    def read(self, path: str, limit: int = MAX_READ) -> str:
        """Keeps the text; of environments of processes only what concerns training."""
        text = self._kept(path, lambda: self._behind.read(path, limit))
        if ENVIRON.fullmatch(path):
            text = "\0".join(item for item in text.split("\0") if item.startswith(SHOWN_VARIABLES))
        self.recording.files[path] = text
        return text

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Keeps what there was."""
        found = self.recording.globs[pattern] = self._behind.glob(pattern)
        return found

    def stat(self, path: str) -> FileInfo:
        """Keeps it."""
        found = self.recording.infos[path] = self._kept(path, lambda: self._behind.stat(path))
        return found

    def link(self, path: str) -> str:
        """Keeps it."""
        found = self.recording.links[path] = self._kept(path, lambda: self._behind.link(path))
        return found

    def space(self, path: str) -> Space:
        """Keeps it."""
        found = self.recording.spaces[path] = self._kept(path, lambda: self._behind.space(path))
        return found

    def run(self, argv: Sequence[str], timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        """Keeps the output, or why there was none."""
        found = self.recording.commands[tuple(argv)] = self._behind.run(argv, timeout_s)
        return found

    def _kept(self, path: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Unreadable as error:
            self.recording.refused[path] = error.why
            raise
