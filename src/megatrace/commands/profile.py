"""`megatrace profile`: where the time of training steps goes, from the profiles of one or many ranks.

Says what the device did and waited for, what lay on the critical path and what would save most. It blames
nobody: for a job that hangs or is slow there is `megatrace diagnose`. Files larger than the memory are read
as a stream; progress goes to a terminal on stderr and nowhere else.
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from megatrace.analysis.profiling import profile as analyse
from megatrace.clock import SystemClock
from megatrace.commands import command, output, pipeline
from megatrace.errors import UsageError
from megatrace.model.profile_result import ProfileResult
from megatrace.readers.kineto import open_profiles
from megatrace.reports import ReportOptions, profile_json, profile_text
from megatrace.units import format_size


class ProfileFormat(str, Enum):
    """Forms of the answer on standard output."""

    text = "text"
    json = "json"


@command(
    "profile",
    summary="says where the time of training steps goes, from profiles",
    examples=[
        "megatrace profile rank0.pt.trace.json.gz",
        "megatrace profile traces/ --window ProfilerStep",
        "megatrace profile traces/ --format json | jq '.ranks[].exposed'",
    ],
    order=15,
)
def profile(
    paths: Annotated[list[Path], typer.Argument(help="Profiles (*.pt.trace.json), directories, globs.")],
    format_name: Annotated[
        ProfileFormat, typer.Option("--format", help="Report on standard output.")
    ] = ProfileFormat.text,
    window: Annotated[
        str | None, typer.Option(help="Critical paths through ranges of this name only (ProfilerStep#5).")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Longer tables; all pieces of paths.")] = False,
) -> None:
    """Reads profiles of PyTorch (Kineto), one file a rank, and prints where the time went.

    .gz, .xz and .zst are unpacked. Times of operators and kernels, overlap of communication,
    idle reasons, the critical path, bandwidth of collectives.
    """
    result = _profiled(paths, window)
    options = ReportOptions(verbose=verbose, generated_at=SystemClock().now())
    made = (profile_json if format_name is ProfileFormat.json else profile_text).render(
        result, output.options_for(sys.stdout, options, os.environ)
    )
    sys.stdout.write(made)


def _profiled(paths: list[Path], window: str | None) -> ProfileResult:
    with pipeline.progress() as say:

        def read(path: str, size: int) -> None:
            if say is not None:
                say(0, 0, f"{Path(path).name} {format_size(size)}")

        profiles, notes = open_profiles(paths, progress=read)
        if say is not None:
            say(0, 0, f"{sum(len(one.activities) for one in profiles):,} activities")
        result = analyse(profiles, notes, window)
    if window is not None and not result.paths:
        named = ", ".join(step.name for step in result.steps[:3])
        hint = f" (there are {named}, …)" if named else ""
        raise UsageError(f"--window {window}: no range on a host thread has that in its name{hint}")
    return result
