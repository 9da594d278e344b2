"""Reads the inputs of a run twice and writes them, masked, into one bundle.

The first pass finds what is to be masked and how long every input is, the second writes; both in blocks, so
that memory does not grow with the recordings. An input that grew in between (a live log) is cut at the length
of the first pass, so that the bundle is whole. Which inputs belong to which node is asked of the readers.

Is no verb, and prints nothing.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from megatrace.collect import bundle
from megatrace.collect.masking import Masks
from megatrace.errors import MegatraceError, UsageError
from megatrace.model.job import JobConfig
from megatrace.model.trace import Trace
from megatrace.readers import registry
from megatrace.readers.opening import sources
from megatrace.readers.source import ReadOptions, Source
from megatrace.registry import Unavailable
from megatrace.units import NS_PER_S

BLOCK = 1 << 20
"""Bytes read at a time: enough lines that the search for names does not cost more than the reading."""
OVERLAP = 4096
"""Bytes kept for the next block where a block has no line's end; longer than any name or secret."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input as the first pass saw it. ``hosts`` are names that stand in it."""

    name: str
    size: int
    modified: int
    hosts: frozenset[str]


@dataclass(slots=True)
class Chosen:
    """The inputs that are packed, and how. ``masks`` None where names are kept."""

    paths: Sequence[Path | str]
    inputs: list[Input] = field(default_factory=list)
    masks: Masks | None = None
    notes: list[str] = field(default_factory=list)


def look(paths: Sequence[Path | str], masks: Masks) -> list[Input]:
    """The first pass: every input's length, and into ``masks`` what it holds. Raises UsageError."""
    found: list[Input] = []
    for source in sources(paths):
        hosts: set[bytes] = masks.look(source.name.encode("utf-8", "surrogateescape"))
        sizes: list[int] = []

        def counted(view: memoryview, source: Source = source, sizes: list[int] = sizes) -> int:
            sizes.append(source.readinto(view))
            return sizes[-1]

        for block in cut(counted):
            hosts |= masks.look(block)
        names = frozenset(name.decode("utf-8", "replace") for name in hosts)
        found.append(Input(source.name, sum(sizes), (source.modified or 0) // NS_PER_S, names))
    return found


def ranks_by_input(paths: Sequence[Path | str], job: JobConfig | None) -> dict[str, tuple[set[int], Trace]]:
    """Ranks in each input that a reader takes, and its trace for asking where they run."""
    found: dict[str, tuple[set[int], Trace]] = {}
    for source in sources(paths):
        trace = _read(source)
        if trace is not None:
            trace = trace if job is None else trace.with_job(job)
            found[source.name] = (set(trace.events.ranks().tolist()), trace)
    return found


def _read(source: Source) -> Trace | None:
    for name in registry.names():
        made = registry.load(name)
        if isinstance(made, Unavailable):
            continue
        reader = made(ReadOptions())
        if reader.refuses(source.head) is None:
            try:
                reader.add(source)
                return reader.finish()
            except MegatraceError:
                return None
    return None


def of_nodes(
    inputs: Sequence[Input], paths: Sequence[Path | str], job: JobConfig | None, nodes: Sequence[str]
) -> list[Input]:
    """The inputs of these nodes: by the ranks in them, or by a name that stands in them or in their path.

    Raises UsageError where there are none, with the nodes that there are.
    """
    wanted = set(nodes)
    placed = ranks_by_input(paths, job)
    known: set[str] = set()
    chosen: list[Input] = []
    for item in inputs:
        ranks, trace = placed.get(item.name, (set(), None))
        own = {place.node for place in map(trace.place_of, ranks) if place.node} if trace else set()
        own |= set(item.hosts)
        known |= own
        if own & wanted or any(part in wanted for part in item.name.replace("/", ".").split(".")):
            chosen.append(item)
    if not chosen:
        there = ", ".join(sorted(known)[:10]) or "none is known: add --ranks-per-node or --hostfile"
        raise UsageError(f"no input belongs to {', '.join(nodes)} (nodes seen: {there})")
    return chosen


def write(path: Path, chosen: Chosen, before: dict[str, bytes], after: dict[str, bytes]) -> int:
    """Writes the bundle in one step; returns its size in bytes. Raises UsageError.

    ``before`` and ``after`` are members in memory that stand in front of the inputs and behind them.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as raw:
            packer = zstandard.ZstdCompressor(level=bundle.LEVEL)
            with (
                packer.stream_writer(raw, closefd=False) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
            ):
                for name, content in before.items():
                    bundle.add_bytes(archive, name, content)
                _inputs(archive, chosen)
                for name, content in after.items():
                    bundle.add_bytes(archive, name, content)
        size = temporary.stat().st_size
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return size


def _inputs(archive: tarfile.TarFile, chosen: Chosen) -> None:
    wanted = {item.name: item for item in chosen.inputs}
    prefix = common_folder([item.name for item in chosen.inputs])
    used: set[str] = set()
    for source in sources(chosen.paths):
        item = wanted.get(source.name)
        if item is None:
            continue
        name = source.name[len(prefix) :].lstrip("/") or "input"
        name = name if chosen.masks is None else chosen.masks.text(name)
        name = "/".join(part.lstrip(".") or "_" for part in name.split("/"))  # hidden ones are not read
        while name in used:
            name = f"{name}~"
        used.add(name)
        mask = None if chosen.masks is None else chosen.masks.apply
        stream = io.BufferedReader(_Masked(source, item.size, mask), BLOCK)
        bundle.add(archive, f"{bundle.INPUTS}/{name}", item.size, stream, item.modified)


def common_folder(names: Sequence[str]) -> str:
    """The folders that all paths share, with the slash at their end; "" for none."""
    if not names:
        return ""
    folders = [name.rpartition("/")[0] for name in names]
    if "" in folders or len({folder.startswith("/") for folder in folders}) > 1:
        return ""
    return os.path.commonpath(folders).rstrip("/") + "/"


def cut(readinto: Callable[[memoryview], int]) -> Iterator[bytes]:
    """Blocks that end with a line; where a block has no line's end, it overlaps the next."""
    buffer = bytearray(BLOCK)
    rest = b""
    while size := readinto(memoryview(buffer)):
        block = rest + bytes(memoryview(buffer)[:size])
        end = block.rfind(b"\n") + 1
        if not end:
            if len(block) <= 2 * OVERLAP:
                rest = block
                continue
            yield block
            rest = block[-OVERLAP:]
            continue
        yield block[:end]
        rest = block[end:]
    if rest:
        yield rest


class _Masked(io.RawIOBase):
    """A source, masked, as a file of a given length: cut or filled up to it."""

    def __init__(self, source: Source, size: int, mask: Callable[[bytes], bytes] | None) -> None:
        super().__init__()
        self._source, self._left = source, size
        self._mask = mask
        self._rest = b""
        self._ready = b""
        self._done = False

    def readable(self) -> bool:
        return True

    def readinto(self, view: memoryview) -> int:  # type: ignore[override]
        while not self._ready and not self._done:
            self._fill()
        out = memoryview(view).cast("B")
        if not self._ready:  # the input shrank
            self._ready = b"\n" * min(self._left, len(out))
        size = min(len(self._ready), len(out), self._left)
        out[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        self._left -= size
        return size

    def _fill(self) -> None:
        buffer = bytearray(BLOCK)
        size = self._source.readinto(memoryview(buffer))
        self._done = not size
        block = self._rest + bytes(memoryview(buffer)[:size])
        if self._mask is None:
            self._ready, self._rest = block, b""
            return
        # What is masked already stays as it is, so a block may begin with it.
        end = len(block) if self._done else block.rfind(b"\n") + 1
        if end:
            self._ready, self._rest = self._mask(block[:end]), block[end:]
        elif len(block) > 2 * OVERLAP:
            block = self._mask(block)
            self._ready, self._rest = block[:-OVERLAP], block[-OVERLAP:]
        else:
            self._rest = block
