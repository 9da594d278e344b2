"""`megatrace collect`: keeps the rings of all jobs of a node on disk, before they write over themselves.

Runs beside the jobs until it is told to stop (or once), copies what is new in every ring that it can reach
into compressed parts, and removes the oldest beyond a budget. `megatrace diagnose` takes the folder like any
other.

Starts no recording; that is `megatrace run`.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from megatrace.clock import SystemClock
from megatrace.collect import injection, spool
from megatrace.collect.port_log import PortLog
from megatrace.collect.standby import NodeStandby
from megatrace.collect.sysfs import SYSFS
from megatrace.collect.watching import clock
from megatrace.commands import command
from megatrace.errors import UsageError
from megatrace.units import NS_PER_S, parse_duration, parse_size


@command(
    "collect",
    summary="keeps the rings of a node on disk, within a budget",
    examples=[
        "megatrace collect --out /var/spool/megatrace",
        "megatrace collect --out /shared/job-8812/$(hostname) --every 5s --for 10m",
        "megatrace collect --out now --once",
        "megatrace collect --out archive --rings megatrace-runs/a/rings --once",
    ],
    order=30,
)
def collect(
    out: Annotated[Path, typer.Option(help="Folder of the parts.")],
    every: Annotated[str, typer.Option(help="Time between two rounds.")] = "10s",
    duration: Annotated[str | None, typer.Option("--for", help="How long (default: until stopped).")] = None,
    budget: Annotated[str, typer.Option(help="Disk that the parts may take.")] = "10GB",
    suspect: Annotated[
        str,
        typer.Option(
            "--suspect-after", help="Take evidence of a job that made no call for so long; off: never."
        ),
    ] = "60s",
    rings: Annotated[
        Path | None,
        typer.Option(help="Folder of rings, such as that of a run (default: all rings of this node)."),
    ] = None,
    sysfs: Annotated[Path, typer.Option(help="Where the kernel shows the counters of RDMA ports.")] = SYSFS,
    once: Annotated[bool, typer.Option("--once", help="One round.")] = False,
) -> int:
    """Finds rings in shared memory and in the memory maps of all processes, other containers' too.

    A ring of 65,536 calls goes round after minutes; the time between two rounds must be shorter than that.
    """
    pause = parse_duration(every) / NS_PER_S
    if pause <= 0:
        raise UsageError(f"--every {every}: more than nothing")
    left = None if duration is None else parse_duration(duration) / NS_PER_S
    ports = PortLog(out, sysfs)
    kept = spool.Spool(out, parse_size(budget))
    after_s = math.inf if suspect == "off" or once else parse_duration(suspect) / NS_PER_S
    standby = NodeStandby(out, after_s, _say)
    records = rounds = 0
    while True:
        found = _found(rings)
        records += kept.round(found)
        ports.write(SystemClock().now())
        rounds += 1
        standby.step(clock())
        if once or (left is not None and left <= 0):
            break
        wait = pause if left is None else min(pause, left)
        left = None if left is None else left - wait
        if not injection.wait(wait):
            records += kept.round(_found(rings))
            break
    kept.pack_parts()
    print(f"{records:,} records of {len(found)} rings kept in {out} in {rounds} rounds")
    return 0


def _found(rings: Path | None) -> tuple[Path, ...]:
    return spool.find_rings() if rings is None else tuple(sorted(rings.glob("*.ring")))


def _say(text: str) -> None:
    print(f"megatrace: {text}", file=sys.stderr)
