"""Profiles that PyTorch's profiler writes (Kineto, Chrome's trace-event JSON): ``*.pt.trace.json``.

``open_profiles`` reads them for ``megatrace profile``. A profile holds every activity of one rank for a few
steps and not the calls of a job, so it is no ``Trace``: the reader of this format takes the files that
``megatrace diagnose`` meets, reads none of them, and says which command does.

One file is one rank: by what it says itself, else by its name, else by its place in the order given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from megatrace.errors import TraceError
from megatrace.model.profile import RankProfile
from megatrace.model.run_settings import Area, Setting
from megatrace.model.trace import Trace
from megatrace.readers import registry
from megatrace.readers.kineto_events import Columns, whole
from megatrace.readers.kineto_stream import EventStream
from megatrace.readers.opening import sources
from megatrace.readers.source import ReadOptions, Source

MAX_GPUS = 256
"""Of a machine; a longer list is damage."""
MARKS = (b'"traceEvents"', b'"deviceProperties"', b'"distributedInfo"')
"""Keys that only such a file has near its beginning; the list of devices may push the others away."""
SAY_EVERY = 8 << 20
"""Unpacked bytes between two signs of progress: about one a second."""
_EVENT = re.compile(rb'\A\s*\[\s*\{[^{}]{0,400}"ph"\s*:')
_RANK = re.compile(r"rank[-_. ]?(\d{1,7})(?!\d)", re.IGNORECASE)

_SETTINGS = {
    Area.CONFIGURATION: ("world_size",),
    Area.SOFTWARE: ("backend", "nccl_version", "cuda_runtime_version", "cuda_driver_version", "device"),
    Area.PROFILER: ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"),
}
"""Keys of the header by which two runs are told apart; those of the profiler cost time themselves."""

Progress = Callable[[str, int], None]
"""Called with the name of the file and the bytes of it that were read, unpacked."""


def is_profile(head: bytes) -> bool:
    """Whether a file that begins so is a profile of this format."""
    keyed = head.lstrip()[:1] == b"{" and any(mark in head for mark in MARKS)
    return keyed or _EVENT.match(head) is not None


@registry.register("kineto", summary="profiles of PyTorch (Kineto): read by megatrace profile", own_keys=True)
class KinetoReader:
    """See ``readers.Reader``: takes the format, reads nothing, and says what does."""

    def __init__(self, options: ReadOptions) -> None:
        del options  # nothing is read
        self._paths: list[str] = []

    def refuses(self, head: bytes) -> str | None:
        """See ``readers.Reader.refuses``."""
        return None if is_profile(head) else "is no JSON object with traceEvents"

    def add(self, source: Source) -> None:
        """Notes the file."""
        self._paths.append(source.name)

    def finish(self) -> Trace:
        """Raises TraceError with the command that reads profiles: they accuse nobody."""
        first = self._paths[0]
        folders = {str(Path(path).parent) for path in self._paths}
        if len(self._paths) == 1:
            said = f"{first} is a profile of PyTorch: it says where time went, not what is wrong"
        else:
            others = f"{first} and {len(self._paths) - 1:,} more"
            said = f"{others} are profiles of PyTorch: they say where time went, not what is wrong"
        where = first if len(self._paths) == 1 or len(folders) > 1 else folders.pop()
        raise TraceError(f"{said}; read with: megatrace profile {where}", path=first)


def read_profile(source: Source, place: int, progress: Progress | None = None) -> RankProfile:
    """One file to its end. ``place`` is the rank where neither the file nor its name has one."""
    stream, columns = EventStream(source), Columns()
    lines = said = 0
    for event in stream.events():
        columns.add(event)
        lines += 1
        if progress is not None and stream.read_bytes - said >= SAY_EVERY:
            said = stream.read_bytes
            progress(source.name, said)
    rank, known = _rank(stream.header, source.name, place)
    header = stream.header
    base = whole(header.get("baseTimeNanoseconds", 0))
    return RankProfile(
        rank=rank,
        path=source.name,
        activities=columns.activities(),
        names=columns.names.values(),
        lanes=columns.all_lanes(),
        shapes=columns.shapes.values(),
        collectives=columns.collectives.values(),
        memory=columns.memory(),
        world_size=_world(header),
        device_name=_device(header),
        gpus=_gpus(header),
        epoch=max(base, 0),
        rank_known=known,
        lines=lines,
        bad=stream.bad + columns.bad,
        notes=tuple(_notes(source, stream, stream.bad + columns.bad)),
        settings=tuple(_settings(header)),
    )


def open_profiles(
    paths: Sequence[Path | str], options: ReadOptions | None = None, progress: Progress | None = None
) -> tuple[tuple[RankProfile, ...], tuple[str, ...]]:
    """The profiles of all ranks that the paths name, ascending by rank, and notes about what was left out.

    Raises UsageError where a path names nothing, TraceError where none of the files is a profile.
    """
    found: dict[int, RankProfile] = {}
    notes: list[str] = []
    others: list[str] = []
    for source in sources(paths, options):
        if not is_profile(source.head):
            others.append(source.name)
            continue
        profile = read_profile(source, len(found), progress)
        if not len(profile.activities):
            notes.append(f"{source.name} holds no activity and was left out.")
        elif profile.rank in found:
            notes.append(f"{source.name} is of rank {profile.rank}, as {found[profile.rank].path}: left out.")
        else:
            found[profile.rank] = profile
    if others and found:
        notes.append(f"{others[0]}{_more(others)} is no profile and was left out.")
    if not found:
        raise TraceError(notes[0][:-1] if notes else _nothing(others), path=others[0] if others else "")
    ordered = tuple(found[rank] for rank in sorted(found))
    return ordered, tuple(note for profile in ordered for note in profile.notes) + tuple(notes)


def _more(paths: Sequence[str]) -> str:
    return f" (and {len(paths) - 1:,} other files)" if len(paths) > 1 else ""


def _nothing(others: Sequence[str]) -> str:
    if not others:
        return "there is no file to read"
    return f"{others[0]}{_more(others)} is no profile of PyTorch: expected a JSON object with traceEvents"


def _rank(header: dict[str, Any], name: str, place: int) -> tuple[int, bool]:
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if type(rank) is int and 0 <= rank < 10_000_000:
        return rank, True
    named = _RANK.search(Path(name).name)
    return (int(named[1]), True) if named else (place, False)


def _settings(header: dict[str, Any]) -> Iterator[Setting]:
    """What the header says of software and devices, and of what the profiler was told to record."""
    info = header.get("distributedInfo")
    told = {**header, **(info if isinstance(info, dict) else {}), "device": _device(header)}
    for area, keys in _SETTINGS.items():
        for key in keys:
            value = told.get(key)
            if value not in (None, "") and isinstance(value, str | int | float):
                yield Setting(area, key, str(value)[:200])


def _world(header: dict[str, Any]) -> int | None:
    info = header.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if type(size) is int and size > 0 else None


def _device(header: dict[str, Any]) -> str:
    devices = header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else {}
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def _gpus(header: dict[str, Any]) -> int:
    devices = header.get("deviceProperties")
    return len(devices) if isinstance(devices, list) and len(devices) <= MAX_GPUS else 0


def _notes(source: Source, stream: EventStream, bad: int) -> list[str]:
    notes = []
    if source.damage:
        notes.append(f"{source.name} {source.damage}: what was read before that counts.")
    elif stream.torn:
        notes.append(f"{source.name} is cut off (its writer was stopped): what came before counts.")
    if bad:
        notes.append(f"{source.name}: {bad:,} events could not be parsed and were left out.")
    return notes
