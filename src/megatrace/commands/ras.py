"""`megatrace ras`: asks a running job's NCCL twice whether anybody is missing or behind.

One answer of RAS cannot tell a hang from a job that moves, because a lead of one call is normal; two, some
seconds apart, can. Any node of the job answers for all of it. Files are written only with ``--save``.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import typer

from megatrace.clock import SystemClock
from megatrace.collect.ras_client import Address, ask, parse_address
from megatrace.commands import command, output, pipeline
from megatrace.errors import UnknownName, UsageError
from megatrace.model.trace import Trace
from megatrace.readers.ras import RasReader
from megatrace.readers.source import ReadOptions, Source
from megatrace.reports import ReportOptions, reports

LEAST_APART_S = 1.0
"""Two answers closer than that may both lie between two calls of a healthy job."""


@command(
    "ras",
    summary="asks NCCL's RAS of a running job, twice, who is missing or behind",
    examples=[
        "megatrace ras localhost:28028",
        "megatrace ras node7 --apart 30 --save answers/",
        "megatrace diagnose answers/",
    ],
    order=15,
)
def ras(
    address: Annotated[str, typer.Argument(help="HOST or HOST:PORT of any node of the job.")] = "localhost",
    apart: Annotated[
        float, typer.Option(min=LEAST_APART_S, help="Seconds between the two questions.")
    ] = 10.0,
    timeout: Annotated[float, typer.Option(min=0.5, help="Seconds to wait for an answer.")] = 30.0,
    save: Annotated[Path | None, typer.Option(help="Also write the two answers into this directory.")] = None,
    format_name: Annotated[
        str, typer.Option("--format", help="Report on standard output: text or json.")
    ] = "text",
) -> int:
    """Asks once, waits, asks again, and says what both answers together mean.

    Nothing is changed in the job. RAS listens on localhost of every node unless NCCL_RAS_ADDR says otherwise.
    """
    known = [item.name for item in reports.declarations() if item.metadata.get("format")]
    if format_name not in known:
        raise UnknownName("report format", format_name, known)
    where = parse_address(address)
    clock = SystemClock()
    first = (ask(where, timeout_s=timeout), clock.now())
    print(f"asked {where}; asking again in {apart:.0f} s", file=sys.stderr)
    time.sleep(apart)
    answers = [first, (ask(where, timeout_s=timeout), clock.now())]
    if save is not None:
        _save(save, [answer for answer, _ in answers])
    diagnosis = pipeline.diagnose_trace(read_answers(where, answers))
    output.show(diagnosis, format_name, ReportOptions(generated_at=clock.now()))
    return diagnosis.exit_code


def read_answers(where: Address, answers: list[tuple[bytes, int]]) -> Trace:
    """The answers of one job, each with the time (ns) at which it came. Raises TraceError."""
    options = ReadOptions()
    reader = RasReader(options)
    for number, (answer, time_ns) in enumerate(answers, start=1):
        raw = cast(BinaryIO, io.BytesIO(answer))
        name, size = f"{where}, answer {number}", len(answer)
        reader.add(Source(name, raw, options, packed_size=size, modified=time_ns))
    return reader.finish()


def _save(directory: Path, answers: list[bytes]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number, answer in enumerate(answers, start=1):
            path = directory / f"ras_{number}.{'json' if answer.lstrip().startswith(b'{') else 'txt'}"
            path.write_bytes(answer)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written ({error.strerror})") from error
