"""What the hook of torch.distributed costs a call, and what share of a training that is.

A call on a process group that does nothing is timed with and without the hook, beside a reading of the clock
and a line formatted as a logger would, in the same process and turn about. Then a training over gloo is run,
and its recorded calls times the cost of one are held against the CPU time of its processes: the recorder of
the paper took 0.16 %. Beside that product stands what is measured directly: pairs of runs with and without
the hook, turn about, and the interval in which the mean of their differences lies with 95 % confidence. It is
wide on a machine that does other things, and that it contains the product is all that can be asked of it.

``--pairs N`` sets the number of pairs. Needs PyTorch; without it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, interleaved, write_result

CALLS = 20_000
"""Calls a round: some 0.1 s."""
ROUNDS = 9
SCRIPT = Path(__file__).resolve().parent.parent / "tests" / "training" / "gloo_job.py"
ITERATIONS = 12
PAIRED_ITERATIONS = 5
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262, 20: 2.093}
"""Number of pairs → the quantile of Student's distribution for 95 %."""
SHARED_MEMORY = "/dev/shm"
"""Where rings are by default. A disk would write them back all the time, and cost a page fault each time."""


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    """CALLS calls."""

    def run() -> None:
        for _ in range(CALLS):
            call()

    return run


def call_costs(folder: str) -> dict[str, float]:
    """ns of CPU of one call: without the hook, with it, a clock, a formatted line."""
    os.environ["MEGATRACE_RING_DIR"] = folder
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    fake: Any = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    torch: Any = importlib.import_module("torch")
    hook = importlib.import_module("megatrace.collect.torch_hook")
    c10d.init_process_group("fake", rank=0, world_size=8, store=fake.FakeStore())
    group, tensor = c10d.GroupMember.WORLD, torch.ones(1024)
    method = c10d.ProcessGroup.allreduce
    wait = c10d.Work.wait

    def without() -> None:
        wait(method(group, [tensor]))

    hook.install(c10d)

    def with_hook() -> None:
        group.allreduce([tensor]).wait()

    def line() -> str:
        text = "[save_count {}] [{}.{}] [Rank {}] Fun {} Data {} stream {} opCount {} groupHash {}"
        return text.format(7, 1_796_086_148, 311_308_386, 4, "AllReduce", 1024, 0x5585C5800000, 4711, -904)

    taken = interleaved(
        {
            "call without the hook": repeated(without),
            "call with the hook": repeated(with_hook),
            "reading the clock": repeated(time.monotonic_ns),
            "formatting a line": repeated(line),
            "an empty loop": repeated(lambda: None),
        },
        rounds=ROUNDS,
    )
    return {name: min(timing.seconds) / CALLS * 1e9 for name, timing in taken.items()}


def training(folder: str, iterations: int, *more: str) -> float:
    """CPU seconds of all processes of a training over gloo on eight ranks, recorded into ``folder``; ``more``
    are options of ``megatrace run``."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-m",
        "megatrace",
        "run",
        "--dir",
        f"{folder}/run",
        "--rings",
        f"{folder}/rings",
    ]
    job = [sys.executable, str(SCRIPT), "--store", f"{folder}/store", "--iterations", str(iterations)]
    words = [*command, "--no-preload", "--no-plugin", *more, "--", *job]
    subprocess.run(words, check=True, capture_output=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def compared(pairs: int) -> tuple[float, float]:
    """(mean, half of the 95 % interval) of what the hook adds to the CPU time of a training."""
    shares = []
    for turn in range(pairs):
        seconds: dict[str, float] = {}
        for option in ("--no-torch", "") if turn % 2 else ("", "--no-torch"):
            with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
                seconds[option] = training(folder, PAIRED_ITERATIONS, *([option] if option else []))
        shares.append((seconds[""] - seconds["--no-torch"]) / seconds["--no-torch"])
    spread = statistics.stdev(shares) / len(shares) ** 0.5
    return statistics.mean(shares), STUDENT[min(pairs, max(STUDENT))] * spread


def main() -> int:
    """Measures, prints, writes the result."""
    if importlib.util.find_spec("torch") is None:
        print("no PyTorch here: nothing measured (pip install torch==2.13.0)")
        return 0
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, choices=sorted(STUDENT), default=6)
    pairs = parser.parse_args().pairs
    from megatrace.readers.opening import open_trace

    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        costs = call_costs(folder)
        seconds = training(folder, ITERATIONS)
        calls = len(open_trace([f"{folder}/run/rings"]).events)
    added = costs["call with the hook"] - costs["call without the hook"]
    share = calls * added / (seconds * 1e9)
    for name, ns in costs.items():
        print(f"{name:24} {ns:8.0f} ns CPU")
    print(f"added by the hook        {added:8.0f} ns CPU, for one record (made, waited for, done)")
    print(f"training: {calls:,} calls, {seconds:.1f} s CPU, the hook is {share:.4%} of it")
    mean, half = compared(pairs)
    low, high = mean - half, mean + half
    print(f"measured directly, {pairs} pairs: {mean:+.2%}, 95 % between {low:+.2%} and {high:+.2%}")
    goals = [
        Goal("added by the hook, µs a call", added / 1e3, 3),
        Goal("share of the CPU time of a training over gloo, %", share * 100, 0.16),
    ]
    for goal in goals:
        print(goal.line())
    figures = {
        "ns": {name: round(ns, 1) for name, ns in costs.items()},
        "added_ns": round(added, 1),
        "calls": calls,
        "cpu_seconds": round(seconds, 2),
        "share": round(share, 8),
        "paired": {
            "pairs": pairs,
            "mean": round(mean, 5),
            "low": round(low, 5),
            "high": round(high, 5),
        },
    }
    print(f"wrote {write_result('hook', figures, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
