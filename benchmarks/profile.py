"""How fast a profile becomes an answer: events per CPU second, beside HolisticTraceAnalysis in the same run.

Both read the same file and answer the same questions (kernel times, overlap, idle reasons, queues, the
critical path); ours answers its others as well. HolisticTraceAnalysis needs pandas 2 and is nobody's
dependency: name the Python of an environment that has it by ``--rival`` or ``MEGATRACE_HTA_PYTHON``:

    python3 -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis 'pandas<3'

Without it only our own figures are measured, and the goal that compares is left out. The profile is made here
(``--events``), so nothing has to be fetched; ``--file`` takes another one. CPU time without imports, turn by
turn.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Timing, cpu_seconds, write_result
from megatrace.analysis.profiling import profile
from megatrace.readers.kineto import open_profiles

ENV = "MEGATRACE_HTA_PYTHON"
GOAL = 3.0
"""Times as many events per CPU second."""
RIVAL = """
import logging, sys, time, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.ERROR)
from hta.trace_analysis import TraceAnalysis
begin = time.process_time()
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
read = time.process_time()
trace.get_gpu_kernel_breakdown(visualize=False)
trace.get_temporal_breakdown(visualize=False)
trace.get_comm_comp_overlap(visualize=False)
trace.get_idle_time_breakdown(ranks=[0], visualize=False)
trace.get_queue_length_summary()
trace.critical_path_analysis(rank=0, annotation="", instance_id=None)
print(read - begin, time.process_time() - begin)
"""


def events(count: int, seed: int = 7) -> Iterator[dict[str, Any]]:
    """Steps of a training loop: operators two deep, each launching a kernel; collectives now and then; µs."""
    draw = random.Random(seed)
    now = device = comm = 1_000.0
    for number in range(count // 4):
        if number % 500 == 0:
            yield _host("user_annotation", f"ProfilerStep#{number // 500}", now, 500 * 60.0, number)
        is_comm = number % 50 == 49
        length = draw.uniform(10, 40) if not is_comm else draw.uniform(200, 900)
        yield _host("cpu_op", f"aten::op{number % 40}", now, 40.0, number)
        yield _host("cpu_op", f"aten::inner{number % 60}", now + 5, 30.0, number)
        launch = _host("cuda_runtime", "cudaLaunchKernel", now + 12, 6.0, number)
        launch["args"]["correlation"] = number + 1
        yield launch
        begin = max(now + 20, comm if is_comm else device) + 2
        if is_comm:
            comm = begin + length
        else:
            device = begin + length
        yield _kernel(number, begin, length, is_comm)
        now += draw.uniform(42, 58)


def _host(category: str, name: str, start: float, length: float, number: int) -> dict[str, Any]:
    args = {"External id": number + 1, "Ev Idx": number}
    place = {"pid": 100, "tid": 100, "ts": round(start, 3), "dur": round(length, 3)}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def _kernel(number: int, start: float, length: float, is_comm: bool) -> dict[str, Any]:
    stream = 20 if is_comm else 7
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    args = {"External id": number + 1, "device": 0, "context": 1, "stream": stream, "correlation": number + 1}
    args |= {"registers per thread": 32, "shared memory": 0, "grid": [512, 1, 1], "block": [256, 1, 1]}  # type: ignore[dict-item]
    place = {"pid": 0, "tid": stream, "ts": round(start, 3), "dur": round(length, 3)}
    said = name if is_comm else f"void at::native::kernel<{number % 80}>(float*)"
    return {"ph": "X", "cat": "kernel", "name": said, **place, "args": args}


def write(path: Path, count: int) -> None:
    """A profile of about so many events."""
    whole = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0, "world_size": 1},
        "traceEvents": [*events(count)],
    }
    path.write_bytes(gzip.compress(json.dumps(whole).encode(), 6))


def rival(python: str, path: Path) -> tuple[float, float]:
    """CPU seconds of HolisticTraceAnalysis: reading, and all. Raises SystemExit with its words where it
    fails.
    """
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}
    done = subprocess.run(
        [python, "-c", RIVAL, str(path)], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise SystemExit(f"error: {python} cannot run HolisticTraceAnalysis: {said[0]}")
    read, whole = done.stdout.split()[-2:]
    return float(read), float(whole)


def measure(path: Path, python: str | None, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every round; the first round of ours does not count."""
    taken: dict[str, list[float]] = {"read": [], "read and analyse": []}
    for turn in range(rounds + 1):
        read = cpu_seconds(partial(open_profiles, [path]))
        profiles, notes = open_profiles([path])
        analysed = cpu_seconds(partial(profile, profiles, notes))
        if turn:
            taken["read"].append(read)
            taken["read and analyse"].append(read + analysed)
            if python:
                theirs = rival(python, path)
                taken.setdefault("HolisticTraceAnalysis: read", []).append(theirs[0])
                taken.setdefault("HolisticTraceAnalysis: read and analyse", []).append(theirs[1])
    return taken


def main() -> int:
    """Measures, prints, writes ``results/profile.json``; 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--file", type=Path, help="a profile instead of the made one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival", default=os.environ.get(ENV), help=f"Python that has HTA (else ${ENV})")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = asked.file or Path(folder) / "rank0.json.gz"
        if asked.file is None:
            write(path, asked.events)
        (one,), _ = open_profiles([path])
        taken = measure(path, asked.rival, asked.rounds)
    timing = {name: Timing(tuple(seconds)) for name, seconds in taken.items()}
    rates = {name: one.lines / time.median for name, time in timing.items()}
    for name, rate in rates.items():
        print(f"{name:<42} {rate:>12,.0f} events per CPU second")
    goals = []
    if asked.rival:
        ratio = rates["read and analyse"] / rates["HolisticTraceAnalysis: read and analyse"]
        goals.append(Goal("events per CPU second, times HolisticTraceAnalysis", ratio, GOAL, at_least=True))
    else:
        print(f"HolisticTraceAnalysis was not measured: name a Python that has it by --rival or ${ENV}")
    for goal in goals:
        print(goal.line())
    figures = {
        "events": one.lines,
        "events_per_cpu_second": {name: round(rate) for name, rate in rates.items()},
        "cpu": {name: time.as_json() for name, time in timing.items()},
    }
    print(f"wrote {write_result('profile', figures, goals)}")
    return int(not all(goal.met for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
