"""`megatrace attach PID|JOB`: what a job that stands waits for, though nobody prepared it for the question.

Takes the evidence of this node's processes into a folder (``collect.attaching``), diagnoses what can be
diagnosed in it, and says of each rank where its process stands. On several nodes run it on each, and diagnose
the folders together.

Changes nothing in the job and ends no process.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from megatrace.analysis.standing import Standing, Stood, where_stands
from megatrace.clock import SystemClock
from megatrace.collect import attaching, processes
from megatrace.commands import command, output, pipeline
from megatrace.errors import TraceError, UsageError
from megatrace.model.finding import Diagnosis
from megatrace.reports import ReportOptions
from megatrace.units import say_ranks

SHOWN = 16
"""Processes shown one by one; those that wait like all others are one line together."""


@command(
    "attach",
    summary="takes the evidence of a job that hangs, and diagnoses it",
    examples=[
        "megatrace attach 4711",
        "megatrace attach 8812 --out /shared/evidence/$(hostname)",
        "megatrace attach megatrace-runs/a/evidence-node7-4711-1",
    ],
    order=25,
)
def attach(
    job: Annotated[
        str,
        typer.Argument(
            help="A process (itself and all below it), a job's number or name, or a folder of evidence."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the evidence (default: megatrace-evidence and the time).")
    ] = None,
    no_stacks: Annotated[bool, typer.Option("--no-stacks", help="Do not run py-spy.")] = False,
    ras: Annotated[str, typer.Option(help="Where NCCL's RAS listens, HOST or HOST:PORT.")] = "localhost",
) -> int:
    """Takes states, stacks, rings, flight recorders, NCCL's RAS and the kernel log, each bounded in time.

    The exit code is that of the diagnosis: 0, 10, or 11 where nothing could be told.
    """
    folder = out or Path(f"megatrace-evidence-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    if (Path(job) / "processes.json").is_file():
        folder = Path(job)
        taken = attaching.read_again(folder)
    else:
        taken = attaching.take(_processes(job), folder, stacks=not no_stacks, ras=ras)
    for note in taken.notes:
        print(f"megatrace: {note}", file=sys.stderr)
    diagnosis = _diagnosed(taken, taken.at)
    if diagnosis is not None:
        generated = SystemClock().now()
        output.show(diagnosis, "text", ReportOptions(generated_at=generated, now=taken.at))
        print()
    told = _standings(taken, diagnosis)
    print(
        f"evidence of {len(taken.processes)} process{'' if len(taken.processes) == 1 else 'es'} in {folder}"
    )
    if diagnosis is not None:
        return diagnosis.exit_code
    return 10 if told else 11


def _processes(job: str) -> tuple[int, ...]:
    pids = processes.of_job(job)
    if job.isdigit() and not pids:
        pids = processes.descendants(int(job))
        if processes.read_process(int(job)) is None:
            pids = ()
    pids = tuple(pid for pid in pids if pid != os.getpid())
    if not pids:
        raise UsageError(f"no process here is {job} or has it as SLURM_JOB_ID, MEGATRACE_JOB or run id")
    return pids


def _diagnosed(taken: attaching.Taken, now: int) -> Diagnosis | None:
    if not taken.inputs:
        return None
    try:
        return pipeline.diagnose_paths(list(taken.inputs), pipeline.Declared(), now=now)
    except TraceError as error:
        print(f"megatrace: {error}", file=sys.stderr)
        return None


def _standings(taken: attaching.Taken, diagnosis: Diagnosis | None) -> bool:
    """Prints where the ranks stand; whether one stands where no victim of a hang does."""
    ranks = processes.ranks_among(taken.processes)
    stood = {
        rank: where_stands(item.state, item.wait_channel, item.kernel_stack, item.python_stack)
        for rank, item in ranks.items()
    }
    if not stood:
        print("no process here carries a rank (RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID or PMI_RANK)")
        return False
    culprits = {
        rank for found in (diagnosis.findings if diagnosis else ())[:1] for rank in found.culprits.ranks
    }
    alike: dict[str, list[int]] = {}
    for rank, at in sorted(stood.items()):
        alike.setdefault(at.says, []).append(rank)
    ordered = sorted(alike.items(), key=lambda item: (not culprits.intersection(item[1]), len(item[1])))
    for says, members in ordered[:SHOWN]:
        mark = "►" if culprits.intersection(members) else " "
        first = stood[members[0]]
        pids = f", process {ranks[members[0]].pid}" if len(members) == 1 else ""
        verb = says if len(members) == 1 else _plural(says)
        print(f"{mark} {say_ranks(members)}{pids} {verb}  ({first.evidence})")
    return any(_odd(at) for at in stood.values())


def _odd(at: Stood) -> bool:
    return at.standing in (Standing.DEAD, Standing.STOPPED, Standing.STORAGE, Standing.CHECKPOINT)


def _plural(says: str) -> str:
    """ "waits for …" → "wait for …", of several ranks."""
    verb, _, rest = says.partition(" ")
    return f"{'are' if verb == 'is' else verb.removesuffix('s')} {rest}"
