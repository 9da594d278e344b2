"""Parts of one machine against each other: a GPU that is idle or capped while its peers are not.

Both only observe until their precision on a fleet is known: a job may leave a GPU idle on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from megatrace.bot.checks import check
from megatrace.bot.gpus import gpus
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.bot.processes import processes
from megatrace.model.finding import Severity

IDLE_S = 600.0
BUSY = 50.0
CAPPED = 0.50
USUAL = 0.10


@check(
    "GPU-16",
    summary="a GPU that is held down by its power limit while its peers are not",
    subject="GPU",
    severity="P3",
    step="A0",
    kind="slow_compute",
    timeout_s=20,
    observe=True,
)
def power_capped(look: Look) -> Iterator[Problem]:
    """The share of the time in which a GPU was clocked down to keep its power limit, against the others of
    the node.

    Source: the counter of SW power capping in `nvidia-smi -q`. Threshold: more than half of the time while
    the median of the others is below a tenth; all GPUs capped alike is a power limit that was set. Remedy:
    compare power limits and cooling."""
    shares: dict[str, float] = {}
    seen = gpus(look)
    for gpu in seen:
        micros = gpu.number("counters sw power cap", "counters/sw power capping")
        growth = None if micros is None else look.grown(f"gpu.{gpu.place}.capped", micros)
        if growth is not None and growth.seconds > 0:
            shares[gpu.place] = min(1.0, growth.amount / 1e6 / growth.seconds)
    for gpu in seen:
        others = [share for place, share in shares.items() if place != gpu.place]
        if others and shares.get(gpu.place, 0.0) > CAPPED and median(others) < USUAL:
            yield look.warn(
                f"{gpu.name}: held down by its power limit for {shares[gpu.place]:.0%} of the time, its peers for {median(others):.0%}",
                Severity.P3,
                device=gpu.place,
                remedy="compare power limits (nvidia-smi -q -d POWER) and cooling with its peers",
            )


@check(
    "GPU-25",
    summary="a GPU that idles while its peers compute",
    subject="GPU",
    severity="P1",
    step="A0",
    kind="hang_device",
    timeout_s=20,
    observe=True,
)
def idle_beside_busy(look: Look) -> Iterator[Problem]:
    """A GPU without load in a job whose other GPUs have it.

    Waiting in a collective shows as full load, so a rank that idles is one that does not even wait: its host
    process stands, or its GPU has stopped. Source: `Utilization` of `nvidia-smi -q`. Threshold: 0 % for 10
    min while more than half of the others are above 50 %. Remedy: the call order of the job says which rank
    stopped (`megatrace diagnose`)."""
    if not any(item.in_job for item in processes(look)):
        raise Skipped("no job is running")
    seen = gpus(look)
    load = {gpu.place: gpu.number("utilization/gpu", "utilization/gpu util") for gpu in seen}
    busy = sum((value or 0.0) > BUSY for value in load.values())
    for gpu in seen:
        idle = load[gpu.place] == 0.0 and busy * 2 > len(seen)
        seconds = look.lasting(f"gpu.{gpu.place}.idle", idle)
        if seconds >= IDLE_S:
            yield look.fail(
                f"{gpu.name}: no load for {seconds / 60:.0f} min while {busy} of {len(seen)} GPUs compute",
                device=gpu.place,
                remedy="megatrace diagnose on the job's recordings: which rank stopped, and where",
            )
