"""What an inspection costs: one passive look at a node with eight GPUs, and ten minutes of watching it.

The node is a made recording, so what is measured is this program and not nvidia-smi or the disk; a real look
waits for those beside. The ten minutes pass on a clock that is moved by hand: every check runs in its period,
as ``megatrace inspect --watch`` runs it. CPU time of this process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from benchmarks.measure import Goal, cpu_seconds, interleaved, write_result
from megatrace.bot.catalogue import CheckInfo, select
from megatrace.bot.check_runner import WorkerRunner, run_inline
from megatrace.bot.checks import CHECKS
from megatrace.bot.inspecting import catalogue, inspect_recording
from megatrace.bot.recorded_system import RecordedSystem
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import machine
from megatrace.bot.watching import Watch
from megatrace.clock import FakeClock
from megatrace.model.check import CheckResult
from megatrace.model.system import System

LOOK_S = 2.0
"""CPU seconds of one passive look that are tolerated beside a job."""
SHARE = 1.0
"""Percent of a core for the continuous probe: what operators grant to a monitor."""
MINUTES = 10
LINES = 20_000
"""Lines of the kernel log: a ring buffer of a node that has been up for weeks."""


class Inline(WorkerRunner):
    """Rounds in this process, so that their CPU time is measured here."""

    def round(self, infos: Iterable[CheckInfo], system: System) -> list[CheckResult]:
        """Each check once."""
        return run_inline(infos, system, CHECKS, counters=self.counters)


def main() -> int:
    """Measures, writes ``results/inspection.json``, ends with 1 where a goal is missed."""
    made = machine("h100-ib")
    made.job()
    for number in range(LINES):
        made.log(1_000_000 - number * 40, f"audit: type=1400 audit(1780000000.{number}): apparmor=STATUS")
    recording = written(made)
    infos = select(catalogue())
    looks = interleaved({"one look": lambda: inspect_recording(recording, infos)}, rounds=5)
    clock = FakeClock(recording.time)
    watch = Watch(infos, Inline("none"), RecordedSystem(recording), clock, lambda _: None)
    begun = time.process_time()
    seconds = cpu_seconds(lambda: watch.run(MINUTES * 60))
    share = 100 * seconds / (MINUTES * 60)
    goals = [
        Goal("CPU seconds of one look at eight GPUs", looks["one look"].median, LOOK_S),
        Goal("percent of a core, watching for ten minutes", share, SHARE),
    ]
    figures = {
        "cpu": {name: timing.as_json() for name, timing in looks.items()},
        "checks": len(infos),
        "rounds": watch.rounds,
        "watch_cpu_s": round(seconds, 3),
        "process_cpu_s": round(time.process_time() - begun, 3),
        "kernel_lines": LINES,
    }
    print(*(goal.line() for goal in goals), sep="\n")
    print(f"wrote {write_result('inspection', figures, goals)}")
    return int(any(not goal.met for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
