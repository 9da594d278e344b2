"""Recordings of communication for ``megatrace profile``: rings and other traces with begins and ends. Is no
verb."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megatrace.analysis.profile_recording import profile_recording, readable
from megatrace.errors import TraceError, UnknownFormat
from megatrace.model.profile_result import ProfileResult
from megatrace.readers.kineto import is_profile
from megatrace.readers.opening import open_trace, sources


def hold_profiles(paths: Sequence[Path]) -> bool:
    """Whether any file that the paths name is a profile. Raises UsageError where a path names nothing."""
    return any(is_profile(source.head) for source in sources(paths))


def profiled(paths: Sequence[Path]) -> ProfileResult:
    """What recordings say of the time. Raises TraceError where begins and ends of calls were not recorded."""
    try:
        trace = open_trace(paths)
    except UnknownFormat as error:
        raise _no_times(paths) from error
    if not readable(trace):
        raise _no_times(paths)
    result = profile_recording(trace)
    return replace(result, notes=(*result.notes, *trace.coverage.notes))


def _no_times(paths: Sequence[Path]) -> TraceError:
    return TraceError(
        f"{paths[0]} is no profile of PyTorch, no operation table and no recording with begins and ends of "
        "calls; a call log has host times only: megatrace diagnose reads it",
        path=str(paths[0]),
    )
