"""`megatrace reduce`: a share of a job's call logs as one Parquet file, for `megatrace diagnose`.

For clusters with no engine but a scheduler of jobs: every task of a Slurm array reads its share where it
lies, and the diagnosis reads what they wrote. Nothing is summed up on the way, so the verdict is the one that
the logs themselves give.

Reads text call logs only. Whatever else lies beside them is named, and goes to `diagnose` as it is.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from megatrace.commands import command
from megatrace.errors import TraceError, UsageError
from megatrace.readers.calllog_reduced import ReducedLog, packed
from megatrace.readers.opening import file_list, reduce_files
from megatrace.units import format_size

ENDING = ".parquet"
LARGEST_SHARE = 0.6
"""Bytes written per byte of text, at the very most: a row has 46 bytes before packing, a line 80 and more."""


@command(
    "reduce",
    summary="reads a share of the call logs into one small file, for diagnose",
    examples=[
        "megatrace reduce logs/ --out partials/",
        "megatrace reduce logs/ --shard 3/16 --out partials/",
        "sbatch --array=0-15 deploy/slurm/megatrace-reduce.sh logs/ partials/",
        "megatrace diagnose partials/",
    ],
    order=35,
)
def reduce(
    paths: Annotated[
        list[str], typer.Argument(help="Files, directories or globs: all of the job, in each share.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the partial result.")],
    shard: Annotated[
        str | None,
        typer.Option(
            help="I/N: the I-th of N shares, from 0. In a Slurm array job that of its task.", metavar="I/N"
        ),
    ] = None,
) -> int:
    """Reads every N-th text call log and writes what a diagnosis needs of it.

    Other files are left out and named. The result appears under its name only once it is whole, so
    a task that was killed is simply run again.
    """
    index, count = _shard(shard)
    every = file_list(paths)
    mine = [(place, path) for place, path in enumerate(every) if place % count == index]
    target = out / f"calls-{index:05d}-of-{count:05d}{ENDING}"
    _make(out, sum(Path(path).stat().st_size for _, path in mine if Path(path).is_file()))
    logs: list[ReducedLog] = []
    for one in mine:
        logs += reduce_files([one])
    left = sorted({path for _, path in mine} - {log.report.name for log in logs})
    if left:
        more = f" and {len(left) - 3:,} more" if len(left) > 3 else ""
        print(
            f"left out, no text call log: {', '.join(left[:3])}{more}; give it to diagnose as it is",
            file=sys.stderr,
        )
    rows = sum(log.report.rows for log in logs)
    if not rows:
        if len(mine) < len(every) or not mine:
            print(f"share {index} of {count} has no call: nothing written", file=sys.stderr)
            return 0
        raise TraceError(f"no text call log in {', '.join(paths)}", path=paths[0])
    data = packed(logs)
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"{target} cannot be written ({error.strerror})") from error
    print(f"{target}: {rows:,} calls of {len(logs):,} files in {format_size(len(data))}")
    return 0


def _shard(given: str | None) -> tuple[int, int]:
    """(index, count). Raises UsageError."""
    task, tasks = os.environ.get("SLURM_ARRAY_TASK_ID"), os.environ.get("SLURM_ARRAY_TASK_COUNT")
    first = os.environ.get("SLURM_ARRAY_TASK_MIN", "0")
    if given is None and task is not None and tasks is not None:
        given = f"{int(task) - int(first)}/{tasks}"
    if given is None:
        return 0, 1
    index, slash, count = given.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise UsageError(f"--shard {given}: no share; give I/N with I from 0 to N - 1, as 3/16")
    return int(index), int(count)


def _make(out: Path, text_bytes: int) -> None:
    """The directory, with room in it. Raises UsageError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror})") from error
    if free < text_bytes * LARGEST_SHARE:
        need = format_size(text_bytes * LARGEST_SHARE)
        raise UsageError(
            f"{out} has {format_size(free)} free, and this share may need {need}; "
            "choose another --out, or more shares on more disks"
        )
