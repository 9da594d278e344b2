"""Operation tables for ``megatrace profile``: whether the paths are some, and the report on them. Is no
verb."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megatrace.analysis.whatif import study
from megatrace.errors import TraceError
from megatrace.model.optable import Unreplayable
from megatrace.readers.opening import open_trace, sources
from megatrace.readers.optable import OpTableReader
from megatrace.readers.source import ReadOptions
from megatrace.reports import ReportOptions, whatif_text


def are_tables(paths: Sequence[Path]) -> bool:
    """Whether the first file that the paths name is an operation table. Raises UsageError for no file."""
    reader = OpTableReader(ReadOptions())
    first = next(iter(sources(paths)), None)
    return first is not None and reader.refuses(first.head) is None


def report(paths: Sequence[Path], options: ReportOptions, *, as_json: bool) -> str:
    """What the tables say. Raises TraceError where they cannot be read or replayed."""
    trace = open_trace(paths)
    if trace.operations is None:
        raise TraceError(f"{paths[0]} is no operation table", path=str(paths[0]))
    try:
        result = study(trace.operations).result
    except Unreplayable as error:
        raise TraceError(f"{paths[0]} cannot be replayed: {error}", path=str(paths[0])) from error
    result = replace(result, notes=(*trace.coverage.notes, *result.notes))
    return whatif_text.render_json(result) if as_json else whatif_text.render(result, options)
