"""`megatrace inject FAULT`: a fault for practice on a running job of one's own, bounded in time and undone.

To learn what a hang or a straggler looks like before it is real, and to see whether the alerts come. Needs an
explicit target and a time; asks nobody and guesses nothing. What it did is undone when the time is over, when
it is interrupted, and when it is killed.

What the simulator can do without a job is `megatrace simulate`.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from enum import Enum
from typing import Annotated

import typer

from megatrace.collect import injection, processes
from megatrace.commands import command
from megatrace.errors import UsageError
from megatrace.units import NS_PER_S, parse_duration


class Fault(str, Enum):
    """What can be practised."""

    pause = "pause"
    recv = "recv"
    cpu = "cpu"
    gpu = "gpu"
    delay = "delay"


@command(
    "inject",
    summary="makes a fault for practice on a running job, and undoes it",
    examples=[
        "megatrace inject pause --pid 4711 --for 30s",
        "megatrace inject pause --job 8812 --rank 5 --for 2m",
        "megatrace inject recv --job 8812 --rank 5 --for 2m",
        "megatrace inject cpu --workers 8 --for 1m",
        "megatrace inject gpu --device 0 --for 1m",
        "megatrace inject delay --interface eth0 --ms 20 --for 1m",
    ],
    order=60,
)
def inject(
    fault: Annotated[
        Fault,
        typer.Argument(
            help="pause: stop a rank · recv: a rank posts no Recv · cpu, gpu: keep processors busy · "
            "delay: late packets."
        ),
    ],
    duration: Annotated[str, typer.Option("--for", help="How long, such as 30s or 2m; an hour at most.")],
    pid: Annotated[int | None, typer.Option(min=2, help="pause, recv: the process.")] = None,
    job: Annotated[str | None, typer.Option(help="pause, recv: the job of the rank.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="pause, recv: the rank of the job.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="cpu: processes that compute.")] = None,
    cpus: Annotated[str | None, typer.Option(help="cpu: processors to bind them to, as in 0,1.")] = None,
    device: Annotated[int | None, typer.Option(min=0, help="gpu: which one, as PyTorch counts.")] = None,
    python: Annotated[
        str | None, typer.Option(help="gpu: a Python that has PyTorch (default: the one that runs this).")
    ] = None,
    interface: Annotated[str | None, typer.Option(help="delay: the network interface.")] = None,
    ms: Annotated[float, typer.Option(min=0.1, max=10_000, help="delay: milliseconds.")] = 10.0,
) -> int:
    """Begins a fault, waits, undoes it.

    Without a target it does nothing and ends with code 2. Ctrl-C ends the fault early.
    """
    seconds = parse_duration(duration) / NS_PER_S
    if not 0 < seconds <= injection.LONGEST_S:
        raise UsageError(f"--for {duration}: more than nothing and at most an hour")
    if fault in (Fault.pause, Fault.recv):
        context, says = _on_rank(fault, _target(fault, pid, job, rank), seconds)
    else:
        context, says = _on_node(fault, workers, cpus, device, python or sys.executable, interface, ms)
    with context:
        print(f"{says} for {duration}; Ctrl-C ends it", flush=True)
        whole = injection.wait(seconds)
    print("undone" if whole else "undone early")
    return 0


Begun = tuple[AbstractContextManager[None], str]
"""A fault that is not yet begun, and what it is in words."""


def _on_rank(fault: Fault, at: int, seconds: float) -> Begun:
    if fault is Fault.pause:
        return injection.paused([at]), f"process {at} is stopped"
    return injection.receiving_nothing(at, seconds), f"process {at} posts no Recv"


def _on_node(
    fault: Fault,
    workers: int | None,
    cpus: str | None,
    device: int | None,
    python: str,
    interface: str | None,
    ms: float,
) -> Begun:
    """Raises UsageError where no target was named."""
    if fault is Fault.cpu:
        if workers is None:
            raise UsageError("cpu needs --workers: how many processes shall compute")
        words = [] if cpus is None else cpus.split(",")
        known = os.sched_getaffinity(0)
        if not all(word.isdigit() and int(word) in known for word in words):
            raise UsageError(f"--cpus {cpus}: processors of this machine with commas between, as in 0,1")
        return injection.busy(workers, [int(word) for word in words]), f"{workers} processes compute"
    if fault is Fault.gpu:
        if device is None:
            raise UsageError("gpu needs --device: which GPU, as in 0")
        return injection.busy_gpu(device, python), f"GPU {device} computes"
    if interface is None:
        raise UsageError("delay needs --interface: which one, as in eth0")
    return injection.delayed(interface, ms), f"packets of {interface} are {ms:g} ms late"


def _target(fault: Fault, pid: int | None, job: str | None, rank: int | None) -> int:
    if pid is not None:
        return pid
    if job is None or rank is None:
        raise UsageError(f"{fault.value} needs a target: --pid, or --job and --rank")
    seen = [
        found for at in processes.of_job(job) for found in [processes.read_process(at)] if found is not None
    ]
    ranks = processes.ranks_among(seen)
    if rank not in ranks:
        raise UsageError(f"job {job} has no process of rank {rank} on this node")
    return ranks[rank].pid
