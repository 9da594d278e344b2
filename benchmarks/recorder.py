"""What recording costs: a call of NCCL through the profiler plug-in and through the preloaded library, and an
RDMA work request with its completion.

Beside a reading of the clock (which every record needs), a copy of 64 bytes and a line formatted as a logger
would, in one process and turn about. NCCL and libibverbs themselves do nothing here, so only the recording is
timed; of the plug-in that is all that NCCL calls for one collective, of a work request its post and the poll
that finds it done. Every ratio is the median of several runs. Needs g++; without it says so and measures
nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Goal, write_result

NATIVE = Path(__file__).resolve().parent.parent / "native"
SHARED_MEMORY = "/dev/shm"
"""Where rings are by default. A disk would write them back all the time, and cost a page fault each time."""
FLAGS = ["-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-pthread"]
OURS = ["-shared", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden"]
RING = ("ring.cc", "about.cc", "about_device.cc")
RECORDER = ("nccl_recorder.cc", *RING)
VERBS = ("verbs_shim.cc", "work_requests.cc", "work_requests_ring.cc", *RING)
CLOCKS, MORE_NS = 1.5, 20
"""What is recorded may cost one and a half readings of the clock and 20 ns: the reading that it needs, and
what the caches and the atomic operations take."""
RUNS = 9
"""Odd, so that the median is one of them."""
Cost = Callable[[dict[str, float]], float]
ADDED: dict[str, Cost] = {
    "the plug-in": lambda ns: ns["plug-in"] - ns["plug-in, refused"],
    "the preloaded library": lambda ns: ns["preload"] - ns["direct"],
    "a work request": lambda ns: ns["watched request"] - ns["request"],
}


def build(folder: Path) -> None:
    """Compiles everything into a folder."""
    tests = NATIVE / "tests"

    def ours(*names: str) -> list[str]:
        return [*OURS, *(str(NATIVE / name) for name in names)]

    for output, words in (
        ("libnccl.so.2", ["-shared", "-Wl,-soname,libnccl.so.2", tests / "null_nccl.cc"]),
        ("libibverbs.so.1", ["-shared", "-Wl,-soname,libibverbs.so.1", tests / "null_ibverbs.cc"]),
        ("plugin.so", ours("nccl_profiler.cc", "nccl_steps.cc", *RECORDER)),
        ("preload.so", ours("nccl_preload.cc", *RECORDER)),
        ("verbs.so", [*ours(*VERBS), f"-Wl,--version-script={NATIVE / 'verbs_shim.map'}"]),
        ("bench", [tests / "recorder_bench.cc", folder / "libnccl.so.2"]),
        ("verbs_bench", [tests / "verbs_bench.cc"]),
    ):
        subprocess.run(["g++", *FLAGS, *map(str, words), "-ldl", "-o", str(folder / output)], check=True)


def measured(folder: Path) -> dict[str, float]:
    """ns of CPU by method, once."""
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(folder),
        "MEGATRACE_RING_DIR": str(folder / "rings"),
    }
    found: dict[str, float] = {}
    preload = {"LD_PRELOAD": str(folder / "preload.so")}
    for program, argument, more in (("verbs_bench", "verbs.so", {}), ("bench", "plugin.so", preload)):
        done = subprocess.run(
            [folder / program, folder / argument],
            env={**environment, **more},
            check=True,
            capture_output=True,
            text=True,
        )
        found |= json.loads(done.stdout)
    assert len(list((folder / "rings").glob("*.ring"))) == 3
    shutil.rmtree(folder / "rings")
    return found


def goals_of(runs: list[dict[str, float]]) -> list[Goal]:
    """What recording may cost, by what it costs beside a clock and a formatted line of the same run."""
    goals = []
    for name, cost in ADDED.items():
        clocks = [cost(ns) / (CLOCKS * (ns["clock_gettime"] - ns["loop"]) + MORE_NS) for ns in runs]
        lines = [(ns["snprintf logger"] - ns["loop"]) / cost(ns) for ns in runs]
        goals.append(
            Goal(f"{name}, ns / ({CLOCKS} clocks + {MORE_NS} ns)", round(statistics.median(clocks), 4), 1)
        )
        cheaper = f"{name}, times cheaper than a formatted line"
        goals.append(Goal(cheaper, round(statistics.median(lines), 4), 8, at_least=True))
    return goals


def main() -> int:
    """Measures, prints, writes the result."""
    if shutil.which("g++") is None:
        print("no C++ compiler here: nothing measured")
        return 0
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        build(Path(folder))
        runs = [measured(Path(folder)) for _ in range(RUNS)]
    ns = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    clock, copy, line = (ns[name] - ns["loop"] for name in ("clock_gettime", "memcpy 64", "snprintf logger"))
    print(f"clock_gettime {clock:.0f} ns, copy of 64 bytes {copy:.1f} ns, a formatted line {line:.0f} ns")
    added = {name: statistics.median(cost(run) for run in runs) for name, cost in ADDED.items()}
    for name, cost in added.items():
        print(f"{name}: {cost:.0f} ns of CPU are added")
    goals = goals_of(runs)
    for goal in goals:
        print(goal.line())
    figures = {"ns": ns, "added_ns": {name: round(cost, 2) for name, cost in added.items()}, "runs": RUNS}
    print(f"wrote {write_result('recorder', figures, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
