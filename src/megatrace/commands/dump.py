"""`megatrace dump`: what the readers made of the input, part by part and call by call.

For the moments when one does not believe a verdict, or wants the calls in another tool: every part that a
``Trace`` has, calls one a line in the order of ranks and of each rank's host. Times are printed as they are
stored (ns since the epoch), because rounding is what one wants to see past. It judges nothing.

The parts are the fields of ``Trace``: a new one is shown without a change here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from megatrace.commands import command
from megatrace.errors import UnknownName
from megatrace.model.events import UNSEEN, EventFlag, Op
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace
from megatrace.reports.wording import plain

BLOCK = 4096
"""Rows turned into text at a time: the input may have a hundred million calls."""
NOTHING = -1
"""What NO_SEQ, NO_COUNT, NO_PEER and NO_COMM have in common."""
_SENTINELS = frozenset(
    ("seq", "count", "peer", "comm", "nbytes", "enqueued", "started", "completed", "local_rank", "code")
)
"""Columns in which `NOTHING` is no value."""
_NAMES = {"events": "calls"}
"""Parts that people call otherwise than the code does."""
CALLS = "calls"

Row = dict[str, Any]


class DumpFormat(str, Enum):
    """How the parts are written; ``json`` and ``jsonl`` are the same."""

    TEXT = "text"
    JSONL = "jsonl"
    JSON = "json"


@command(
    "dump",
    summary="prints what was read, part by part, as text or JSON lines",
    examples=[
        "megatrace dump logs/ --part calls --limit 20",
        "megatrace dump logs/rank_0.log --format json | jq 'select(.op == \"SEND\")'",
        "megatrace dump logs/ --part coverage,communicators",
    ],
    order=40,
)
def dump(
    paths: Annotated[list[Path], typer.Argument(help="logs, directories, globs, or - for stdin")],
    format: Annotated[DumpFormat, typer.Option(help="text, or one JSON object a line")] = DumpFormat.TEXT,  # noqa: A002 (the option's name)
    part: Annotated[str, typer.Option(help="Parts to print (default: all that there are): a,b.")] = "",
    limit: Annotated[int | None, typer.Option(min=0, help="print at most so many rows of a part")] = None,
) -> None:
    """Prints calls, communicators, series, facts and what else was read, and on stderr what was not.

    A line of JSON says in "part" what it is. Times are nanoseconds since the epoch.
    """
    trace = open_trace(paths)
    wanted = _wanted(part)
    shown = [name for name in wanted if part or _count(trace, name)]
    for name in shown:
        total = _count(trace, name)
        rows = total if limit is None else min(limit, total)
        if format is DumpFormat.TEXT:
            lines = text_lines(trace, name, rows)
            if len(shown) > 1:
                print(f"# {name} ({total:,})")
        else:
            lines = json_lines(trace, name, rows)
        for line in lines:
            print(line)
        if rows < total:
            print(f"note: {rows:,} of {total:,} {name} shown", file=sys.stderr)
    sys.stdout.flush()
    for note in trace.coverage.notes:
        print(f"note: {plain(note)}", file=sys.stderr)


def parts() -> tuple[str, ...]:
    """The parts there are: the fields of a trace."""
    return tuple(_NAMES.get(field.name, field.name) for field in fields(Trace))


def _wanted(text: str) -> list[str]:
    known = parts()
    names = [word.strip() for word in text.split(",") if word.strip()] or list(known)
    for name in names:
        if name not in known:
            raise UnknownName("part of a trace", name, known)
    return names


def _value_of(trace: Trace, name: str) -> Any:
    return getattr(trace, "events" if name == CALLS else name)


def _count(trace: Trace, name: str) -> int:
    """Rows of a part; 0 where the trace has none of it."""
    value = _value_of(trace, name)
    if value is None:
        return 0
    columns = _columns(value)
    if columns:
        return len(columns[0][1])
    if isinstance(value, tuple):
        return sum(len(item.times) if hasattr(item, "times") else 1 for item in value)
    return 1


def json_lines(trace: Trace, name: str, shown: int) -> Iterator[str]:
    """One object a row, a key for every column that the input has; null where the row lacks the value."""
    for row in _rows(trace, name, shown):
        yield json.dumps({"part": name, **row})


def text_lines(trace: Trace, name: str, shown: int) -> Iterator[str]:
    """Tables with a header, columns aligned on the first block; other parts as "key: value" lines."""
    if not _columns(_value_of(trace, name)):
        for row in _rows(trace, name, shown):
            yield "  ".join(f"{key}={_text(value)}" for key, value in row.items() if value is not None)
        return
    widths: dict[str, int] = {}
    for rows in _blocks(_rows(trace, name, shown)):
        texts = [{key: _text(value) for key, value in row.items()} for row in rows]
        if not widths:
            widths = {key: max(len(key), *(len(row[key]) for row in texts)) for key in texts[0]}
            yield "  ".join(key.rjust(width) for key, width in widths.items())
        for row in texts:
            yield "  ".join(value.rjust(widths[key]) for key, value in row.items())


def _blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    block: list[Row] = []
    for row in rows:
        block.append(row)
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block


def _columns(value: Any) -> list[tuple[str, NDArray[Any]]]:
    """(name, array) of a part that is a table: a dataclass whose arrays are of one length."""
    if not is_dataclass(value) or isinstance(value, type):
        return []
    arrays = [(field.name, getattr(value, field.name)) for field in fields(value)]
    return [(name, array) for name, array in arrays if isinstance(array, np.ndarray)]


def _rows(trace: Trace, name: str, shown: int) -> Iterator[Row]:
    value = _value_of(trace, name)
    columns = _columns(value)
    if columns:
        yield from _table(trace, columns, getattr(value, "names", ()), shown)
        return
    left = shown
    for item in value if isinstance(value, tuple) else (value,) if value is not None else ():
        for row in _items(item):
            if not left:
                return
            left -= 1
            yield row


def _table(
    trace: Trace, columns: Sequence[tuple[str, NDArray[Any]]], names: Sequence[str], shown: int
) -> Iterator[Row]:
    for begin in range(0, shown, BLOCK):
        end = min(begin + BLOCK, shown)
        values = [
            [_cell(trace, name, names, value) for value in column[begin:end].tolist()]
            for name, column in columns
        ]
        keys = [name for name, _ in columns]
        for row in zip(*values, strict=True):
            yield dict(zip(keys, row, strict=True))


def _items(item: Any) -> Iterator[Row]:
    """A series as one row a sample, everything else as one row."""
    if not hasattr(item, "times"):
        found = _plain(item)
        yield found if isinstance(found, dict) else {"value": found}
        return
    about = {field.name: _plain(getattr(item, field.name)) for field in fields(item)
             if field.name not in ("times", "values")}  # fmt: skip
    for time, value in zip(item.times.tolist(), item.values.tolist(), strict=True):
        yield {**about, "time": None if time == UNSEEN else time, "value": value}


def _plain(value: Any) -> Any:
    """Anything of a trace as JSON knows it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, frozenset):
        return sorted(str(_plain(item)) for item in value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, int) and value == UNSEEN:
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cell(trace: Trace, name: str, names: Sequence[str], value: Any) -> Any:
    if name == "op":
        return _op(value)
    if name == "flags":
        return [flag.name or "" for flag in EventFlag if flag & value]
    if value == UNSEEN or (value == NOTHING and name in _SENTINELS):
        return None
    if name == "stream" and not names:
        return hex(value)  # as the log has it, and beyond what JSON numbers hold
    if name == "comm":
        return _communicator(trace, value)
    if name == "name" and names:
        return names[value]
    return value


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(map(_text, value)) or "-"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "-" if value is None else plain(str(value))


def _op(value: int) -> str:
    try:
        return Op(value).name
    except ValueError:
        return f"op {value}"


def _communicator(trace: Trace, number: int) -> str:
    """Its name, else its hash, else its number."""
    communicator = trace.communicators[number]
    if communicator.name is not None:
        return communicator.name
    return f"#{number}" if communicator.hash is None else hex(communicator.hash)
