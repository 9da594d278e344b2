"""What recording a call of NCCL costs, through the profiler plug-in and through the preloaded library.

Beside a reading of the clock (which every record needs), a copy of 64 bytes and a line formatted as a logger
would, in one process and turn about. NCCL itself does nothing here, so only the recording is timed; of the
plug-in that is all that NCCL calls for one collective. Needs g++; without it says so and measures nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Goal, write_result

NATIVE = Path(__file__).resolve().parent.parent / "native"
SHARED_MEMORY = "/dev/shm"
"""Where rings are by default. A disk would write them back all the time, and cost a page fault each time."""
FLAGS = ["-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-pthread"]
OURS = ["-shared", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden"]
RECORDER = ("nccl_recorder.cc", "ring.cc", "about.cc", "about_device.cc")
CLOCKS, MORE_NS = 1.5, 20
"""A recorded call may cost one and a half readings of the clock and 20 ns: the reading that it needs, and
what the caches and the atomic operations take."""


def built(folder: Path) -> dict[str, float]:
    """ns of CPU by method."""
    tests, recorder = NATIVE / "tests", [NATIVE / name for name in RECORDER]
    steps = NATIVE / "nccl_steps.cc"
    null, plugin, preload = (folder / name for name in ("libnccl.so.2", "plugin.so", "preload.so"))
    for output, words in (
        (null, ["-shared", "-Wl,-soname,libnccl.so.2", tests / "null_nccl.cc"]),
        (plugin, [*OURS, NATIVE / "nccl_profiler.cc", steps, *recorder]),
        (preload, [*OURS, NATIVE / "nccl_preload.cc", *recorder]),
        (folder / "bench", [tests / "recorder_bench.cc", null]),
    ):
        subprocess.run(["g++", *FLAGS, *map(str, words), "-ldl", "-o", str(output)], check=True)
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": str(preload),
        "MEGATRACE_RING_DIR": str(folder / "rings"),
    }
    done = subprocess.run(
        [folder / "bench", plugin], env=environment, check=True, capture_output=True, text=True
    )
    assert len(list((folder / "rings").glob("*.ring"))) == 2
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> int:
    """Measures, prints, writes the result."""
    if shutil.which("g++") is None:
        print("no C++ compiler here: nothing measured")
        return 0
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        ns = built(Path(folder))
    loop = ns["loop"]
    clock, copy, line = (ns[name] - loop for name in ("clock_gettime", "memcpy 64", "snprintf logger"))
    added = {
        "the plug-in": ns["plug-in"] - ns["plug-in, refused"],
        "the preloaded library": ns["preload"] - ns["direct"],
    }
    print(f"clock_gettime {clock:.0f} ns, copy of 64 bytes {copy:.1f} ns, a formatted line {line:.0f} ns")
    goals = []
    for name, cost in added.items():
        print(f"{name} adds {cost:.0f} ns of CPU to a call")
        goals.append(
            Goal(f"{name}, ns / ({CLOCKS} clocks + {MORE_NS} ns)", cost / (CLOCKS * clock + MORE_NS), 1)
        )
        goals.append(Goal(f"{name}, times cheaper than a formatted line", line / cost, 8, at_least=True))
    for goal in goals:
        print(goal.line())
    figures = {"ns": ns, "added_ns": {name: round(cost, 2) for name, cost in added.items()}}
    print(f"wrote {write_result('recorder', figures, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
