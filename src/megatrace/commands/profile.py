"""`megatrace profile`: where the time of training steps goes, from the profiles of one or many ranks.

Says what the device did and waited for, what lay on the critical path and what would save most. It blames
nobody: for a job that hangs or is slow there is `megatrace diagnose`. Files larger than the memory are read
as a stream; progress goes to a terminal on stderr and nowhere else.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from megatrace.analysis.profile_diff import compare
from megatrace.analysis.profiling import profile as analyse
from megatrace.clock import SystemClock
from megatrace.collect.run_settings import settings_near
from megatrace.commands import command, operations, output, pipeline, recordings
from megatrace.errors import UsageError
from megatrace.model.profile import RankProfile
from megatrace.model.profile_diff import ProfileDiff
from megatrace.model.profile_result import ProfileResult
from megatrace.model.run_settings import Setting
from megatrace.readers.kineto import open_profiles
from megatrace.reports import (
    ReportOptions,
    profile_diff_text,
    profile_html,
    profile_json,
    profile_perfetto,
    profile_text,
)
from megatrace.units import format_size


class ProfileFormat(str, Enum):
    """Forms of the answer on standard output."""

    text = "text"
    json = "json"


@command(
    "profile",
    summary="says where the time of steps goes, and what changed since a run",
    examples=[
        "megatrace profile rank0.pt.trace.json.gz",
        "megatrace profile traces/ --window ProfilerStep --html profile.html",
        "megatrace profile new/ --against old/",
        "megatrace profile traces/ --format json | jq '.ranks[].exposed'",
    ],
    order=15,
)
def profile(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Profiles (*.pt.trace.json), rings, operation tables, directories, globs."),
    ],
    format_name: Annotated[
        ProfileFormat, typer.Option("--format", help="Report on standard output.")
    ] = ProfileFormat.text,
    window: Annotated[
        str | None, typer.Option(help="Critical paths through ranges of this name only (ProfilerStep#5).")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Profiles of an earlier run: say what changed since then.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page with pictures, for a browser.")] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write threads, streams and the critical path, for ui.perfetto.dev.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Longer tables; all pieces of paths.")] = False,
) -> None:
    """Reads profiles of PyTorch (Kineto), one file a rank, and prints where the time went.

    Recordings of communication with begins and ends (rings of megatrace run) tell less, and operation tables
    what stragglers cost. .gz, .xz and .zst are unpacked. Times of operators and kernels, overlap of
    communication, idle reasons, the critical path, bandwidth of collectives.
    """
    options = ReportOptions(verbose=verbose, generated_at=SystemClock().now(), command=_typed(paths, window))
    shown = output.options_for(sys.stdout, options, os.environ)
    as_json = format_name is ProfileFormat.json
    if operations.are_tables(paths):
        _no_pictures(against, html, perfetto, window)
        sys.stdout.write(operations.report(paths, shown, as_json=as_json))
        return
    profiles, result = _profiled(paths, window)
    if html is not None:
        output.write_whole(html, profile_html.render(result, options))
    if perfetto is not None:
        if not profiles:
            raise UsageError("--perfetto is for profiles; megatrace diagnose draws the calls of a recording")
        output.write_whole(perfetto, profile_perfetto.render(result, profiles))
    if against is not None:
        diff = _compared(against, paths[0], profiles, result)
        made = profile_diff_text.render_json(diff) if as_json else profile_diff_text.render(diff, shown)
    else:
        made = (profile_json if as_json else profile_text).render(result, shown)
    written = [str(path) for path in (html, perfetto) if path is not None]
    if written:
        print(f"wrote {', '.join(written)}", file=sys.stderr)
    sys.stdout.write(made)


def _typed(paths: list[Path], window: str | None) -> str:
    words = ["megatrace", "profile", *map(str, paths)]
    return shlex.join(words if window is None else [*words, "--window", window])


def _no_pictures(*given: object) -> None:
    if any(option is not None for option in given):
        raise UsageError(
            "--against, --html, --perfetto and --window are for profiles; of an operation table "
            "megatrace diagnose TABLE --html FILE draws the pictures"
        )


def _compared(
    against: Path, path: Path, profiles: tuple[RankProfile, ...], result: ProfileResult
) -> ProfileDiff:
    """The run against an earlier one, with what is known of how both were started."""
    earlier, before = _profiled([against], None)
    old, old_note = settings_near(against)
    new, new_note = settings_near(path)
    diff = compare(
        before,
        result,
        (str(against), str(path)),
        ((*old, *_told(earlier)), (*new, *_told(profiles))),
    )
    return replace(diff, notes=(*diff.notes, *filter(None, (old_note, new_note))))


def _told(profiles: tuple[RankProfile, ...]) -> tuple[Setting, ...]:
    return profiles[0].settings if profiles else ()


def _profiled(paths: list[Path], window: str | None) -> tuple[tuple[RankProfile, ...], ProfileResult]:
    if not recordings.hold_profiles(paths):
        if window is not None:
            raise UsageError("--window is for profiles: a recording of communication names no ranges")
        return (), recordings.profiled(paths)
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
    return profiles, result
