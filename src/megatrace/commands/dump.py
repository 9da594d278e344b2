"""`megatrace dump`: what the readers made of the input, call by call.

For the moments when one does not believe a verdict, or wants the calls in another tool: every column that
the input has, one call a line, in the order of ranks and of each rank's host. Times are printed as they are
stored (ns since the epoch), because rounding is what one wants to see past. It judges nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

from megatrace.commands import command
from megatrace.model.events import UNSEEN, EventFlag, Op
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace

BLOCK = 4096
"""Calls turned into text at a time: the input may have a hundred million."""
NOTHING = -1
"""What NO_SEQ, NO_COUNT, NO_PEER and NO_COMM have in common."""


class DumpFormat(str, Enum):
    """How the calls are written."""

    TEXT = "text"
    JSONL = "jsonl"


@command(
    "dump",
    summary="prints the calls that were read, as text or JSON lines",
    examples=["megatrace dump logs/ --limit 20", "megatrace dump logs/rank_0.log --format jsonl"],
    order=40,
)
def dump(
    paths: Annotated[list[Path], typer.Argument(help="logs, directories, globs, or - for stdin")],
    format: Annotated[DumpFormat, typer.Option(help="text or one JSON object a line")] = DumpFormat.TEXT,  # noqa: A002 (the option's name)
    limit: Annotated[int | None, typer.Option(min=0, help="print at most so many calls")] = None,
) -> None:
    """Prints the calls, and on stderr what was not read."""
    trace = open_trace(paths)
    total = len(trace.events)
    shown = total if limit is None else min(limit, total)
    lines = text_lines(trace, shown) if format is DumpFormat.TEXT else json_lines(trace, shown)
    for line in lines:
        print(line)
    sys.stdout.flush()
    if shown < total:
        print(f"note: {shown:,} of {total:,} calls shown", file=sys.stderr)
    for note in trace.coverage.notes:
        print(f"note: {note}", file=sys.stderr)


def json_lines(trace: Trace, shown: int) -> Iterator[str]:
    """One object a call, a key for every column that the input has; null where the call lacks the value."""
    for rows in _rows(trace, shown, _json_value):
        for values in rows:
            yield json.dumps(values)


def text_lines(trace: Trace, shown: int) -> Iterator[str]:
    """A header and one line a call, columns aligned on the first block; "-" where there is no value."""
    widths: dict[str, int] = {}
    for rows in _rows(trace, shown, _text_value):
        if not widths:
            widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
            yield "  ".join(name.rjust(width) for name, width in widths.items())
        for row in rows:
            yield "  ".join(value.rjust(widths[name]) for name, value in row.items())


def _rows(
    trace: Trace, shown: int, convert: Callable[[Trace, str, int], Any]
) -> Iterator[list[dict[str, Any]]]:
    columns: list[tuple[str, NDArray[Any]]] = list(trace.events.columns())
    for begin in range(0, shown, BLOCK):
        end = min(begin + BLOCK, shown)
        parts = [
            [convert(trace, name, value) for value in column[begin:end].tolist()] for name, column in columns
        ]
        names = [name for name, _ in columns]
        yield [dict(zip(names, values, strict=True)) for values in zip(*parts, strict=True)]


def _json_value(trace: Trace, name: str, value: int) -> int | str | list[str] | None:
    if name == "op":
        return _op(value)
    if name == "flags":
        return [flag.name or "" for flag in EventFlag if flag & value]
    if value == UNSEEN or (value == NOTHING and name in ("seq", "count", "peer", "comm", "nbytes")):
        return None
    if name == "stream":
        return hex(value)  # as the log has it, and beyond what JSON numbers hold
    if name == "comm":
        return _communicator(trace, value)
    return value


def _text_value(trace: Trace, name: str, value: int) -> str:
    shown = _json_value(trace, name, value)
    if isinstance(shown, list):
        return "|".join(shown) or "-"
    return "-" if shown is None else str(shown)


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
