"""One dump of a flight recorder: its groups and counters, and its entries left as columns to be filled in.

Takes the value that a pickle or a JSON text held, of whatever version (2.1 to 2.10 are known; 1.x and later
ones are read as far as their keys are the same). Values of a wrong type become "not known", never an error:
what is left is still evidence.

Does not know which rank wrote the dump: ``flight_recorder_ranks``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from megatrace.model.events import NO_SEQ
from megatrace.readers.flight_recorder_entries import Dump, read_entries
from megatrace.readers.flight_recorder_raw import ABSENT, Raw, number, raw_of


def parse_dump(value: object, source: str) -> Dump | None:
    """The dump in a decoded pickle or JSON value; None where it is none."""
    whole: Mapping[Any, Any]
    if isinstance(value, list):  # versions before 2.0 dumped the list alone
        whole = {"entries": value}
    elif isinstance(value, dict):
        whole = value
    else:
        return None
    entries = whole.get("entries")
    if not isinstance(entries, list) and not isinstance(whole.get("pg_config"), dict):
        return None
    raw, kept = raw_of(entries if isinstance(entries, list) else [])
    return dump_of(raw, whole, kept.__getitem__, source)


def dump_of(raw: Raw, rest: Mapping[Any, Any], entry: Callable[[int], dict[str, Any]], source: str) -> Dump:
    """The dump of entries as numbers, of everything else in it, and of a way to see one entry whole."""
    dump = begin_dump(rest, source, raw.bad)
    if raw.table.size:
        read_entries(dump, raw, lambda row: words_of(entry(row)))
    return dump


def begin_dump(rest: Mapping[Any, Any], source: str, bad: int) -> Dump:
    """The dump without its entries."""
    dump = Dump(source, version=_text(rest.get("version"))[:16], bad=bad)
    read_groups(dump, rest)
    return dump


def words_of(entry: dict[str, Any]) -> tuple[str, str]:
    """The shape of an entry and the place in the program that made it."""
    return shape_of(entry), frame_of(entry.get("frames"))


def read_groups(dump: Dump, whole: Mapping[Any, Any]) -> None:
    """Fills in what the dump says of groups and of how far they got."""
    config = whole.get("pg_config")
    for name, item in config.items() if isinstance(config, dict) else ():
        if isinstance(item, dict):
            dump.config[_text(name)] = (_text(item.get("desc")), _ranks(item.get("ranks")))
    status = whole.get("pg_status")
    for key, item in status.items() if isinstance(status, dict) else ():
        if isinstance(item, dict):
            wanted = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
            dump.status[_text(key)] = tuple(_number(item.get(word), NO_SEQ) for word in wanted)  # type: ignore[assignment]


def _ranks(value: object) -> tuple[int, ...] | None:
    """Ranks of a group: "[0, 1]" as the recorder writes it, or a list."""
    return ranks_of(value) if isinstance(value, str) else _checked(value)


@lru_cache(maxsize=4096)
def ranks_of(text: str) -> tuple[int, ...] | None:
    """Ranks as the recorder writes them, "[0, 1]"; every member of a group writes the same text."""
    try:
        return _checked(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _checked(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or not value:
        return None
    ranks = [rank for rank in value if type(rank) is int and 0 <= rank < 1 << 20]
    return tuple(ranks) if len(ranks) == len(value) == len(set(ranks)) else None


def shape_of(entry: dict[str, Any]) -> str:
    """ "all_to_all [2048, 5120] BFloat16"."""
    name = _text(entry.get("profiling_name")).partition(":")[2][:64] or "call"
    sizes = entry.get("input_sizes")
    listed = sizes[:2] if isinstance(sizes, list | tuple) else ()
    shapes = ", ".join(str(list(shape)) for shape in listed if isinstance(shape, list | tuple))
    dtypes = entry.get("input_dtypes")
    dtype = _text(dtypes[0])[:32] if isinstance(dtypes, list | tuple) and dtypes else ""
    return " ".join(f"{name} {shapes} {dtype}".split())[:160]


_LIBRARY = re.compile(
    r"torch/(distributed|nn|autograd|_dynamo|utils|optim)/|/contextlib\.py|c10d_logger|/threading\.py"
)


def frame_of(frames: object) -> str:
    """The innermost stack frame outside of the library: "sync_buffers (gaussian_splatting.py:650)"."""
    best = ""
    for frame in frames if isinstance(frames, list | tuple) else ():
        if not isinstance(frame, dict):
            continue
        path, name = _text(frame.get("filename")), _text(frame.get("name"))
        if not path or path == "??":
            continue
        line = _number(frame.get("line"), 0)
        said = f"{name[:80]} ({path.replace(chr(92), '/').rpartition('/')[2][:80]}:{line})"
        if not _LIBRARY.search(path):
            return said
        best = best or said
    return best


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else ""


def _number(value: object, default: int) -> int:
    found = number(value)
    return default if found == ABSENT else found
