"""``open_trace``: files, directories, globs and stdin in, one `Trace` out, whatever the formats.

Each file is opened once, unpacked by its first bytes, shown to every reader, and read by the first that
takes it. A file that nobody takes is an error only when nothing else was readable: a directory of logs
holds other files too, and each is named in the notes with every reader's reason.

Knows no format, but that text call logs may have been read elsewhere. Follows no link to a directory, reads
no device, and never reads the same file twice.
"""

from __future__ import annotations

import glob
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from megatrace.errors import TraceError, UnknownFormat, UsageError
from megatrace.model.trace import Trace
from megatrace.readers import Reader, registry
from megatrace.readers.archive import is_archive, members
from megatrace.readers.calllog import CallLogReader
from megatrace.readers.calllog_reduced import ReducedLog, is_packed
from megatrace.readers.joining import join_traces
from megatrace.readers.source import ReadOptions, Source
from megatrace.registry import Unavailable

STDIN = "-"
PROGRESS_EVERY = 32
"""Files between two calls of the progress callback: a bar does not move faster than the eye, and files
are small."""
MAX_REFUSED_NAMED = 3
"""Refused files named in the note; a directory of thousands of other files must not make thousands of
sentences."""


MAX_REASONS = 3
"""Readers' reasons that fit into a note; an error gives all of them."""


@dataclass(slots=True)
class _Found:
    """What one ``open_trace`` has come to so far."""

    options: ReadOptions
    readers: dict[str, Reader] = field(default_factory=dict)
    """those that took a file"""
    asked: dict[str, Reader] = field(default_factory=dict)
    """those that were made to be asked"""
    last: tuple[str, bytes] = ("", b"")
    """who took the file before, and how that began: a job's files are of one format"""
    refused: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """path -> each reader's reason; no reason at all for an empty file"""
    seen: set[tuple[int, int]] = field(default_factory=set)
    ahead: Ahead | None = None


class Ahead(Protocol):
    """Reads call logs before their turn, elsewhere (other processes, other machines)."""

    def begin(self, files: Sequence[str]) -> None:
        """These will be asked for, in this order."""

    def get(self, path: str) -> ReducedLog | None:
        """The file as a worker read it; None where it has to be read here."""


def open_trace(
    paths: Sequence[Path | str], *, options: ReadOptions | None = None, ahead: Ahead | None = None
) -> Trace:
    """Reads everything that the paths name as one job; the same Trace with ``ahead`` and without.

    A path is a file, a directory (read recursively), a glob or ``-`` for stdin. Raises UsageError where
    a path names nothing, UnknownFormat with each reader's reason where nothing was recognised,
    TraceError where what was recognised holds nothing.
    """
    options = options or ReadOptions()
    found = _Found(options, ahead=ahead)
    files = list(_files(paths))
    if not files:
        raise TraceError(_nothing_in(paths), path=str(paths[0]) if paths else "")
    if ahead is not None:
        ahead.begin(files)
    for done, path in enumerate(files):
        if options.progress is not None and done % PROGRESS_EVERY == 0:
            options.progress(done, len(files), path)
        _read_one(path, found)
    if options.progress is not None:
        options.progress(len(files), len(files), files[-1])
    if not found.readers:
        raise _unknown(found.refused)
    trace, unread = _finished(list(found.readers.values()))
    notes = (*_refused_notes(found.refused), *unread)
    return (
        replace(trace, coverage=replace(trace.coverage, notes=trace.coverage.notes + notes))
        if notes
        else trace
    )


def reduce_files(files: Sequence[tuple[int, str]]) -> list[ReducedLog]:
    """Those of (place, path) that are text call logs, read to their end; what is anything else is left out.

    Members of archives and standard input are left to whoever reads the rest.
    """
    found: list[ReducedLog] = []
    for place, path in files:
        if path == STDIN:
            continue
        try:
            raw = io.FileIO(path)
        except OSError:
            continue
        with raw:
            source = Source(path, cast(BinaryIO, raw), packed_size=os.fstat(raw.fileno()).st_size)
            reader = CallLogReader(ReadOptions())
            taken = source.head and not is_archive(source.head) and not is_packed(source.head)
            if taken and reader.refuses(source.head) is None:
                reader.add(source)
                found.append(reader.reduced(place))
    return found


def file_list(paths: Sequence[Path | str]) -> list[str]:
    """The files that ``open_trace`` would open, in its order; each once. Raises UsageError."""
    seen: set[tuple[int, int] | str] = set()
    files: list[str] = []
    for path in _files(paths):
        key: tuple[int, int] | str = path
        with suppress(OSError):
            info = Path(path).stat()
            key = info.st_dev, info.st_ino
        if key not in seen:
            seen.add(key)
            files.append(path)
    return files


def sources(paths: Sequence[Path | str], options: ReadOptions | None = None) -> Iterator[Source]:
    """Every file that the paths name, members of archives one by one, unpacked and unread.

    Each is to be used before the next. Standard input and files that cannot be opened are left out. Raises
    UsageError where a path names nothing.
    """
    options = options or ReadOptions()
    seen: set[tuple[int, int]] = set()
    for path in _files(paths):
        try:
            raw = io.FileIO(path)
        except OSError:
            continue
        with raw:
            info = os.fstat(raw.fileno())
            if (info.st_dev, info.st_ino) in seen:
                continue
            seen.add((info.st_dev, info.st_ino))
            whole = Source(
                path,
                cast(BinaryIO, raw),
                options,
                packed_size=info.st_size,
                modified=info.st_mtime_ns,
            )
            yield from members(whole, options) if is_archive(whole.head) else (whole,)


def _finished(readers: Sequence[Reader]) -> tuple[Trace, tuple[str, ...]]:
    """What was read, and what each input that turned out useless says. Raises TraceError where all are."""
    traces: list[Trace] = []
    errors: list[TraceError] = []
    for reader in readers:
        made = _made(reader)
        if isinstance(made, TraceError):
            errors.append(made)
        else:
            traces.append(made)
    if not any(_holds(trace) for trace in traces):
        raise errors[0] if errors else TraceError(_ONLY_NAMES)
    return join_traces(traces), tuple(str(error) for error in errors)


_ONLY_NAMES = (
    "the hook of torch.distributed recorded no call of its own: NCCL ran them, and no ring of NCCL's is here"
)


def _holds(trace: Trace) -> bool:
    """Whether there is more than the names of groups and marks."""
    bare = not (len(trace.events) or trace.facts or trace.series or trace.ras)
    return not (bare and trace.dumped is None and trace.inspector is None and (trace.named or trace.marks))


def _made(reader: Reader) -> Trace | TraceError:
    try:
        return reader.finish()
    except TraceError as error:
        return error


def _read_one(path: str, found: _Found) -> None:
    if path == STDIN:
        _offer(Source("stdin", cast(BinaryIO, sys.stdin.buffer), found.options), found)
        return
    try:
        raw = io.FileIO(path)
    except OSError as error:
        found.refused.append((path, {"open": f"cannot be opened ({error.strerror})"}))
        return
    with raw:
        info = os.fstat(raw.fileno())
        if (info.st_dev, info.st_ino) not in found.seen:
            found.seen.add((info.st_dev, info.st_ino))
            _offer(
                Source(
                    path,
                    cast(BinaryIO, raw),
                    found.options,
                    packed_size=info.st_size,
                    modified=info.st_mtime_ns,
                ),
                found,
            )


def _offer(source: Source, found: _Found) -> None:
    """Gives the file to the first reader that takes it, or notes why none does."""
    if not source.head:
        found.refused.append((source.name, {source.kind: source.damage} if source.damage else {}))
        return
    if is_archive(source.head):
        for member in members(source, found.options):
            _offer(member, found)
        if source.damage:
            found.refused.append((source.name, {"tar": source.damage}))
        return
    reasons: dict[str, str] = {}
    for name in _order(found.last[0] if source.head[:2] == found.last[1] else ""):
        reader = found.asked.get(name)
        if reader is None:
            made = registry.load(name)
            if isinstance(made, Unavailable):
                reasons[name] = made.reason
                continue
            reader = found.asked[name] = made(found.options)
        reason = reader.refuses(source.head)
        if reason is None:
            found.readers[name] = reader
            found.last = (name, source.head[:2])
            read = found.ahead.get(source.name) if found.ahead and isinstance(reader, CallLogReader) else None
            if read is not None and isinstance(reader, CallLogReader):
                reader.take(read)
            else:
                reader.add(source)
            return
        reasons[name] = reason
    found.refused.append((source.name, {source.kind: source.damage} if source.damage else reasons))


@lru_cache(maxsize=64)
def _order(likely: str) -> tuple[str, ...]:
    """Readers of one format first, those that know theirs by keys of its own and the likely one before them;
    the one of any log takes what they leave."""

    def place(name: str) -> tuple[bool, bool, bool]:
        said = registry.declaration(name).metadata
        return bool(said.get("fallback")), not said.get("own_keys"), name != likely

    return tuple(sorted(registry.names(), key=place))


def _files(paths: Sequence[Path | str]) -> Iterator[str]:
    for given in paths:
        path = os.fspath(given)
        if path == STDIN:
            yield path
            continue
        kind = Path(path)
        if kind.is_dir():
            yield from _tree(path)
        elif kind.exists():
            yield path
        elif glob.has_magic(path):
            yield from _matches(path)
        else:
            raise UsageError(f"there is no file or directory {path}")


def _matches(pattern: str) -> Iterator[str]:
    found = sorted(glob.glob(pattern, recursive=True), key=_natural)  # noqa: PTH207 (Path.glob takes no absolute one)
    if not found:
        raise UsageError(f"{pattern} matches no file")
    for path in found:
        yield from _tree(path) if Path(path).is_dir() else (path,)


def _tree(root: str) -> Iterator[str]:
    """Regular files below a directory in natural order, hidden ones left out. Raises TraceError."""
    try:
        with os.scandir(root) as found:
            entries = sorted((e for e in found if not e.name.startswith(".")), key=lambda e: _natural(e.name))
    except OSError as error:
        raise TraceError(f"the directory {root} cannot be read ({error.strerror})", path=root) from error
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _tree(entry.path)
        elif entry.is_file() or (entry.is_symlink() and not os.access(entry.path, os.F_OK)):
            yield entry.path  # a broken link too: opening it says so


def _natural(name: str) -> list[tuple[int, int | str]]:
    """rank_2 before rank_10."""
    return [
        (0, int(part)) if part.isdigit() and part.isascii() else (1, part)
        for part in re.split(r"([0-9]+)", name)
        if part
    ]


def _nothing_in(paths: Sequence[Path | str]) -> str:
    if not paths:
        return "no input was given"
    return (
        f"{', '.join(map(str, paths))} holds no file; name the directory that the ranks wrote their logs into"
    )


def _unknown(refused: Sequence[tuple[str, dict[str, str]]]) -> TraceError:
    if not refused:
        return TraceError("the same empty input was given twice")
    filled = [(path, reasons) for path, reasons in refused if reasons]
    if not filled:
        files = refused[0][0] if len(refused) == 1 else f"each of {len(refused):,} files"
        return TraceError(f"{files} is empty: nothing was recorded there", path=refused[0][0])
    path, reasons = filled[0]
    if len(refused) == 1:
        return UnknownFormat(path, reasons)
    others = f"{path} and {len(refused) - 1:,} other file{'s' if len(refused) > 2 else ''}"
    return UnknownFormat(others, reasons, do=f"the reasons are those of {Path(path).name}")


def _refused_notes(refused: Sequence[tuple[str, dict[str, str]]]) -> tuple[str, ...]:
    empty = [path for path, reasons in refused if not reasons]
    other = [(path, reasons) for path, reasons in refused if reasons]
    notes = (
        [f"{_listed(empty)} {'is' if len(empty) == 1 else 'are'} empty: nothing was recorded there."]
        if empty
        else []
    )
    if len(other) > MAX_REFUSED_NAMED:
        notes.append(f"{_listed([path for path, _ in other])} were not read: no reader takes them.")
    else:
        notes += [f"{path} was not read ({_said(reasons)})." for path, reasons in other]
    return tuple(notes)


def _said(reasons: dict[str, str]) -> str:
    """The reasons; of many readers only that of the one that takes any log."""
    if len(reasons) > MAX_REASONS and "log" in reasons:
        return f"log: {reasons['log']}; nor do {len(reasons) - 1} other readers take it"
    return "; ".join(f"{reader}: {reason}" for reader, reason in reasons.items())


def _listed(paths: Sequence[str]) -> str:
    named = ", ".join(paths[:MAX_REFUSED_NAMED])
    more = len(paths) - MAX_REFUSED_NAMED
    return f"{named} and {more:,} more files" if more > 0 else named
