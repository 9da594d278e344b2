"""`megatrace diagnose`: recordings of a job in, one sentence and its reasons out.

The verb that the tool exists for. Writes files only where it is asked to; the report goes to standard output,
progress to a terminal on stderr, and the exit code says what kind of answer it is (0, 10, 11).

Does not fetch anything from a running job (that is collecting), and judges nothing itself.
"""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from megatrace.clock import SystemClock
from megatrace.commands import command, output, pipeline
from megatrace.commands.engines import Engine, reading
from megatrace.errors import UnknownName
from megatrace.readers.opening import file_list
from megatrace.reports import ReportOptions, reports


class Language(str, Enum):
    """Languages of the text report."""

    en = "en"
    zh = "zh"


@command(
    "diagnose",
    summary="says which rank hangs or is slow, since when, and why",
    examples=[
        "megatrace diagnose logs/",
        "megatrace diagnose 'logs/rank_*.log.zst' --config job.yaml --verbose",
        "megatrace diagnose logs/ --ranks-per-node 8 --html report.html",
        "megatrace diagnose logs/ --format json | jq .headline",
    ],
    order=10,
)
def diagnose(
    paths: Annotated[list[str], typer.Argument(help="Files, directories, globs, or - for standard input.")],
    config: Annotated[Path | None, typer.Option(help="What the job was told to be (job.yaml).")] = None,
    format_name: Annotated[
        str, typer.Option("--format", help="Report on standard output: text or json.")
    ] = "text",
    html: Annotated[
        Path | None, typer.Option(help="Write one page with pictures, for a browser or a ticket.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write the calls around the finding, for ui.perfetto.dev.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write all reports into this directory.")] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Names nodes and GPUs from ranks.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="Node names in order of rank, one a line.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Diagnosis (JSON) of an earlier run of the same job, to compare with.")
    ] = None,
    now: Annotated[
        str | None, typer.Option(help="Until when the job stands: ISO time (UTC), epoch seconds, or now.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="All evidence, inputs and gaps.")] = False,
    lang: Annotated[Language, typer.Option(help="Language of the text report.")] = Language.en,
    engine: Annotated[
        Engine, typer.Option(help="Who reads call logs; auto takes processes from 2 GiB and 4 CPUs on.")
    ] = Engine.auto,
    scheduler: Annotated[str | None, typer.Option(help="Of a Dask cluster, for --engine dask.")] = None,
) -> int:
    """Reads recordings of one job and prints what is wrong with it.

    Formats are recognised by content; .gz, .xz and .zst are unpacked. Writes only files that
    are named.
    """
    known = [item.name for item in reports.declarations() if item.metadata.get("format")]
    if format_name not in known:
        raise UnknownName("report format", format_name, known)
    clock = SystemClock()
    declared = pipeline.Declared(config, ranks_per_node, hostfile, baseline)
    until = None if now is None else pipeline.parse_now(now, clock.now())
    wanted = perfetto is not None or out is not None
    with pipeline.progress() as say, reading(engine, scheduler, file_list(paths)) as ahead:
        diagnosis = pipeline.diagnose_paths(paths, declared, now=until, say=say, timeline=wanted, ahead=ahead)
    options = ReportOptions(
        verbose=verbose,
        lang=lang.value,
        generated_at=clock.now(),
        now=until,
        command=declared.command(paths, now),
    )
    asked = (("html", html), ("perfetto", perfetto))
    written = [
        output.write_report(diagnosis, name, file, options) for name, file in asked if file is not None
    ]
    if out is not None:
        written += output.write_all(diagnosis, out, options)
    if written:
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
    output.show(diagnosis, format_name, options)
    return diagnosis.exit_code
