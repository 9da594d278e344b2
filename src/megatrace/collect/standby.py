"""Stands by a job that runs: takes evidence when it seems to stand, and notes what will not be recorded.

A thread beside the supervisor of ``megatrace run``, or a step in the loop of ``megatrace collect``. Looks at
the rings (``watching``) every other second, and once a minute into the memory maps of the job's processes for
libraries that communicate past every recorder (``blind_spots``). Nothing here may disturb the job: an error
ends the standing by with one line.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from megatrace.clock import SystemClock
from megatrace.collect import attaching, blind_spots, processes
from megatrace.collect.port_log import PortLog
from megatrace.collect.watching import Stillness, clock, heads_of
from megatrace.units import format_duration

EVERY_S = 2.0
SIGNS_EVERY_S = 60.0
"""Libraries are loaded in the first minutes; reading the maps of all processes takes some milliseconds."""
FIRST_SIGNS_S = 10.0
PORTS_EVERY_S = 10.0
"""Between two readings of the RDMA ports: what grows is seen, and a reading costs little."""
EVIDENCE_LIMIT_S = 60.0
"""For all evidence of one standstill: with ``watching.LATEST_S`` well inside PyTorch's ten minutes."""

Say = Callable[[str], None]
Found = Callable[[dict[str, str]], None]


@dataclass(slots=True)
class Standby:
    """What is known of the rings and processes that are watched.

    ``place`` is where evidence goes, each standstill into a folder of its own; ``hidden`` is told blind spots
    (word → source) when there are new ones.
    """

    place: Path
    stillness: Stillness
    say: Say
    hidden: Found = lambda _: None
    stacks: bool = True
    known: dict[str, str] = field(default_factory=dict)
    signs_at: float = 0.0
    ports: PortLog | None = None
    ports_at: float = 0.0

    def step(self, rings: Iterable[Path], pids: Callable[[], Iterable[int]], now: float) -> None:
        """One look. ``pids`` are asked for only when they are needed."""
        silence = self.stillness.look(heads_of(rings, self.stillness.heads), now)
        if silence is not None:
            self._take(tuple(pids()), silence)
        if now >= self.signs_at:
            self.signs_at = now + SIGNS_EVERY_S
            self._look_for_signs(pids())
        if self.ports is not None and now >= self.ports_at:
            self.ports_at = now + PORTS_EVERY_S
            self.ports.write(SystemClock().now())

    def _take(self, pids: tuple[int, ...], silence: float) -> None:
        name = f"evidence-{socket.gethostname()}-{os.getpid()}-{self.stillness.taken}"
        folder = self.place / name
        said = format_duration(int(silence * 1e9))
        self.say(f"no call was recorded for {said}; the evidence of {len(pids)} processes goes to {folder}")
        ras = "localhost" if any("libnccl" in processes.maps_of(pid) for pid in pids) else None
        taken = attaching.take(pids, folder, stacks=self.stacks, ras=ras, limit_s=EVIDENCE_LIMIT_S)
        for note in taken.notes:
            self.say(note)

    def _look_for_signs(self, pids: Iterable[int]) -> None:
        found: dict[str, str] = {}
        for pid in pids:
            environment = processes.environment_of(pid)
            found |= blind_spots.of_libraries(processes.maps_of(pid), environment)
        new = {spot: source for spot, source in found.items() if spot not in self.known}
        if new:
            self.known |= new
            self.hidden(new)


class Watcher:
    """A thread that stands by a process and all below it, whose rings are in one folder."""

    def __init__(self, standby: Standby, rings: Path) -> None:
        self.standby, self.rings = standby, rings
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, pid: int) -> None:
        """Starts; the job runs as ``pid``."""
        self.standby.signs_at = clock() + FIRST_SIGNS_S
        self._thread = threading.Thread(target=self._run, args=(pid,), name="megatrace", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops. Evidence that is being taken is waited for: the processes are gone, so it is soon done."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(EVIDENCE_LIMIT_S)

    def _run(self, pid: int) -> None:
        try:
            while not self._over.wait(EVERY_S):
                rings = sorted(self.rings.glob("*.ring"))
                self.standby.step(rings, lambda: processes.descendants(pid), clock())
        except Exception as error:  # noqa: BLE001 (a job is only observed: nothing of ours may stop it)
            self.standby.say(f"nobody stands by the job any more: {error!r}")


def _just(pids: list[int]) -> Callable[[], Iterable[int]]:
    return lambda: pids


@dataclass(slots=True)
class NodeStandby:
    """Stands by every job of a node that records, from a loop of somebody else's.

    The rings of one folder are one job's, as ``megatrace run`` makes them; only those that a living process
    has mapped count, for a ring of a job that has ended stands still, too.
    """

    place: Path
    after_s: float
    say: Say
    jobs: dict[str, Standby] = field(default_factory=dict)

    def step(self, now: float, proc: Path = processes.PROC) -> None:
        """One look at all jobs."""
        rings: dict[str, set[Path]] = {}
        pids: dict[str, set[int]] = {}
        for pid in processes.all_pids(proc):
            for path in map(Path, processes.rings_of(pid, proc)):
                job = str(path.parent.relative_to(proc / str(pid) / "root"))
                rings.setdefault(job, set()).add(path)
                pids.setdefault(job, set()).add(pid)
        for job, found in rings.items():
            if job not in self.jobs:
                self.jobs[job] = Standby(self.place, Stillness(self.after_s), self.say, signs_at=math.inf)
            theirs = sorted(pids[job])
            self.jobs[job].step(sorted(found), _just(theirs), now)
