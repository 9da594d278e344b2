"""Flight-recorder dumps at scale: the right rank out of 2,048, nobody in the healthy twin, and how fast.

A job with a pipeline is simulated twice, with one host that stops and without, and dumped as PyTorch does
(2,000 entries a rank, each with the stack of a training script, in the bytes that PyTorch's pickler writes);
the twin is a snapshot of the running job, once with the times of its files and once without. Speed is entries
a CPU second of reading and judging, imports left out, the median of three: ours with all 2,048 ranks, and
that of PyTorch's own analyzer, which needs longer an entry the more there are, with 512 ranks × 1,000
entries, in the same run; on those ours is measured as well. PyTorch is installed into an environment of its
own under $TMPDIR when asked (``--torch``), never into this one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, write_result
from megatrace.analysis.diagnosing import diagnose
from megatrace.model.events import Op
from megatrace.model.finding import Diagnosis, Verdict
from megatrace.model.schedule import Phase
from megatrace.readers.opening import open_trace
from megatrace.simulator import Capture, Scenario, StuckHost, simulate
from megatrace.simulator.emit_flight_recorder import Dumps, write_dumps
from megatrace.simulator.torch_pickle import Shared

TORCH = "torch==2.13.0"
SECOND = 1_000_000_000
CULPRIT = 77
ROUNDS = 3
BASE: dict[str, Any] = {"seed": 3, "tp": 8, "pp": 8, "micro_batches": 8, "layers_per_stage": 8}
ANALYZER = """
import contextlib, io, sys, time
from torch.distributed.flight_recorder import fr_trace
for _ in range(int(sys.argv[2])):
    begin = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        fr_trace.main(["--prefix", "nccl_trace_rank_", sys.argv[1]])
    print("CPU", time.process_time() - begin)
"""


_SITE = "/opt/venv/lib/python3.11/site-packages/"
_STACK = (
    ("torch/distributed/distributed_c10d.py", "collective"),
    ("torch/distributed/c10d_logger.py", "wrapper"),
    ("megatron/core/tensor_parallel/mappings.py", "_reduce"),
    ("torch/autograd/function.py", "apply"),
    ("megatron/core/tensor_parallel/layers.py", "forward"),
    ("torch/nn/modules/module.py", "_call_impl"),
    ("torch/nn/modules/module.py", "_wrapped_call_impl"),
    ("megatron/core/transformer/mlp.py", "forward"),
    ("megatron/core/transformer/transformer_layer.py", "forward"),
    ("megatron/core/transformer/transformer_block.py", "forward"),
    ("megatron/core/models/gpt/gpt_model.py", "forward"),
    ("megatron/core/pipeline_parallel/schedules.py", "forward_step"),
    ("megatron/core/pipeline_parallel/schedules.py", "forward_backward_pipelining"),
    ("megatron/training/training.py", "train_step"),
    ("megatron/training/training.py", "pretrain"),
    ("/workspace/pretrain_gpt.py", "<module>"),
)
"""File and function, innermost first."""
OWN = 5
"""Frames that differ from operation to operation."""


class FramedDumps(Dumps):
    """Dumps whose calls have stack frames."""

    def frames(self, op: Op, comm: int) -> list[Shared]:
        """The stack of an operation; its outer frames are those of all others."""
        return _frames(op)


@cache
def _frames(op: Op) -> list[Shared]:
    return [*(_frame(i, int(op)) for i in range(OWN)), *(_frame(i, 0) for i in range(OWN, len(_STACK)))]


@cache
def _frame(index: int, op: int) -> Shared:
    path, name = _STACK[index]
    return Shared(name=name, filename=path if path[0] == "/" else _SITE + path, line=100 + 17 * index + op)


def scenario(dp: int, iterations: int, *, hang: bool) -> Scenario:
    """64 × dp ranks; with a host that stops, or cut while it runs."""
    if hang:
        fault = StuckHost(rank=CULPRIT, iteration=iterations - 2, micro_batch=3, phase=Phase.BACKWARD, call=2)
        return Scenario(**BASE, dp=dp, iterations=iterations, faults=(fault,))
    whole = simulate(Scenario(**BASE, dp=8, iterations=iterations)).trace
    span = (int(whole.events.enqueue.max()) - int(whole.events.enqueue.min())) / SECOND
    return Scenario(**BASE, dp=dp, iterations=iterations, capture=Capture(cut_at_s=0.77 * span))


def dumped(folder: Path, made: Scenario, entries: int, silence_s: float) -> int:
    """Writes the dumps of a job, as if ``silence_s`` after its last call; the number of entries."""
    trace = simulate(made).trace
    at = int(trace.events.enqueue.max()) + int(silence_s * SECOND)
    ranks = write_dumps(trace, folder, written_at=at, dumps=FramedDumps(trace, entries))
    return ranks * entries


def judged(folder: Path, rounds: int = 1) -> tuple[Diagnosis, float]:
    """The verdict, and the CPU seconds of reading and judging, the median of some rounds."""
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        diagnosis = diagnose(open_trace([folder]))
        seconds.append(time.process_time() - begin)
    return diagnosis, statistics.median(seconds)


def analyzer(folder: Path, root: Path, *, install: bool) -> float | None:
    """CPU seconds of PyTorch's analyzer, the median of some rounds; None where it is not to be had."""
    python = root / "flight-recorder-venv" / "bin" / "python"
    if not python.exists():
        if not install:
            return None
        venv.create(python.parent.parent, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", TORCH, "tabulate"], check=True)
    done = subprocess.run(
        [python, "-W", "ignore", "-c", ANALYZER, folder, str(ROUNDS)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("CPU")]
    return statistics.median(found) if len(found) == ROUNDS else None


def main() -> int:
    """Measures, prints, writes ``results/flight_recorder.json``; 1 where a goal is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--torch", action="store_true", help=f"install {TORCH} under $TMPDIR")
    options.add_argument("--small", action="store_true", help="only the 512 ranks")
    chosen = options.parse_args()
    root = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    work = Path(tempfile.mkdtemp(prefix="flight-recorder-", dir=root))
    goals: list[Goal] = []
    figures: dict[str, object] = {}
    try:
        theirs = _small(work / "small", root, chosen.torch, figures)
        if not chosen.small:
            ours = _large(work, goals, figures)
            if theirs is not None:
                goals.insert(0, Goal("entries a CPU second / torchfrtrace", theirs / ours, 10, at_least=True))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for goal in goals:
        print(goal.line())
    print(f"wrote {write_result('flight_recorder', figures, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


def _small(folder: Path, root: Path, install: bool, figures: dict[str, object]) -> float | None:
    """CPU µs an entry of PyTorch's analyzer, None where it is not to be had."""
    entries = dumped(folder, scenario(8, 6, hang=True), 1000, 600)
    judged(folder)  # imports and caches
    theirs = analyzer(folder, root, install=install)
    found, ours = judged(folder, ROUNDS)
    assert found.findings, found.headline
    assert found.findings[0].culprits.ranks == (CULPRIT,), found.headline
    figures |= {"entries_small": entries, "ours_small_us_per_entry": round(ours / entries * 1e6, 3)}
    print(f"512 × 1,000: {ours / entries * 1e6:.2f} µs of CPU an entry")
    if theirs is None:
        print("torchfrtrace not available: run with --torch to install it under $TMPDIR and compare")
        return None
    theirs = theirs / entries * 1e6
    print(f"torchfrtrace: {theirs:.2f} µs of CPU an entry")
    figures["torchfrtrace_us_per_entry"] = round(theirs, 3)
    return theirs


def _large(work: Path, goals: list[Goal], figures: dict[str, object]) -> float:
    """Our CPU µs an entry."""
    entries = dumped(work / "hang", scenario(32, 8, hang=True), 2000, 600)
    found, seconds = judged(work / "hang", ROUNDS)
    shutil.rmtree(work / "hang")
    named = [rank for finding in found.findings for rank in finding.culprits.ranks]
    print(f"2,048 × 2,000 with a fault: {found.headline} ({seconds:.1f} s of CPU)")
    goals.append(Goal("culprits named, 2,048 ranks with one stopped host", len(named), 1))
    goals.append(Goal("of them right", float(named == [CULPRIT]), 1, at_least=True))
    ours = seconds / entries * 1e6
    figures |= {
        "entries_large": entries,
        "large_cpu_s": round(seconds, 2),
        "ours_us_per_entry": round(ours, 3),
    }
    dumped(work / "healthy", scenario(32, 8, hang=False), 2000, 0.3)
    accused = 0
    for keep_times in (True, False):
        if not keep_times:  # a copy: nothing tells when the dumps were made
            for path in (work / "healthy").iterdir():
                os.utime(path)
        found, _ = judged(work / "healthy")
        print(f"healthy twin: {found.verdict.value}: {found.headline}")
        accused += len(found.findings) + (found.verdict is Verdict.HANG)
    goals.append(Goal("accusations of the healthy twin", accused, 0))
    return ours


if __name__ == "__main__":
    sys.exit(main())
