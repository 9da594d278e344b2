"""What one GPU adds to what is tested without any: the recorder inside a real NCCL, and what it costs there.

Two ranks share the GPU, each as if it were a node of its own, so that NCCL takes its network path over
loopback. Checked: that NCCL loads the plug-in, that every call of both ranks is in the rings with the end of
its kernel, that NCCL's RAS and PyTorch's flight recorder answer. Measured: the time of an all-reduce with and
without the recorder, in pairs, with the interval of the mean. Several GPUs, NVLink, InfiniBand and CUDA
graphs are not covered.

Needs one NVIDIA GPU, PyTorch with CUDA and the native part; where one is missing it says which, and measures
nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, write_result

RANKS = 2
CALLS = 2_000
ELEMENTS = 1 << 18
"""A mebibyte of floats: some hundred microseconds over loopback, where the recorder would show."""
WARM_UP = 100
PAIRS = 5
STUDENT = 2.776
"""Quantile of Student's distribution for 95 % with five pairs."""
LIMIT_S = 240
NCCL = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",  # from NCCL 2.30.3 on
    "NCCL_MAX_CTAS": "4",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,PROFILE",
}


def gpus() -> int:
    """Number of GPUs by the driver; 0 where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value


def missing() -> str:
    """What is not here, as a sentence; '' where everything is."""
    if gpus() == 0:
        return "no GPU here"
    if importlib.util.find_spec("torch") is None:
        return "a GPU, but no PyTorch here"
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return "a GPU, but PyTorch here has no CUDA"
    from megatrace.collect import launch

    return "" if launch.parts().plugin is not None else "a GPU, but the native part is not built"


def rank_main(rank: int, folder: str) -> int:
    """One rank: all-reduces, a message, and what it saw as JSON in ``folder``."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, init_method=f"file://{folder}/store")
    values = torch.ones(ELEMENTS, device="cuda")
    for _ in range(WARM_UP):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    if rank == 0:
        dist.send(values, 1)
    else:
        dist.recv(values, 0)
    torch.cuda.synchronize()
    told = {
        "us": seconds / CALLS * 1e6,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "ras": ras_answers() if rank == 0 else None,
        "flight_recorder": flight_entries() if rank == 0 else None,
    }
    dist.barrier()
    Path(f"{folder}/rank-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
    return 0


def ras_answers() -> bool:
    """Whether NCCL's RAS in this process answers."""
    from megatrace.collect import ras_client
    from megatrace.errors import CollectError

    try:
        return bool(ras_client.ask(ras_client.parse_address("localhost"), timeout_s=10.0))
    except CollectError:
        return False


def flight_entries() -> int:
    """Calls that PyTorch's own recorder has kept."""
    c10d: Any = importlib.import_module("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_nccl_trace_json", None) or c10d._dump_fr_trace_json
    return len(json.loads(dump(True)).get("entries", ()))


def run(folder: Path, *, recorded: bool) -> tuple[list[dict[str, Any]], str]:
    """(what the ranks told, what NCCL said) of one run of both ranks."""
    ranks = []
    for rank in range(RANKS):
        command = [sys.executable, "-m", "benchmarks.one_gpu", "--rank", str(rank), "--folder", str(folder)]
        if recorded:
            run_of = [
                "run",
                "--dir",
                str(folder / "run"),
                "--rings",
                str(folder / f"shm-{rank}"),
                "--kernels",
            ]
            command = [sys.executable, "-m", "megatrace", *run_of, "--", *command]
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS), "NCCL_HOSTID": f"node{rank}"}
        ranks.append(
            subprocess.Popen(
                command,
                env={**os.environ, **NCCL, **place},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = "".join(process.communicate(timeout=LIMIT_S)[0] for process in ranks)
    if any(process.returncode for process in ranks):
        raise RuntimeError(f"the ranks failed: {said[-2000:]}")
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)], said


def checked(folder: Path) -> tuple[dict[str, Any], list[Goal]]:
    """(figures, goals) of one recorded run: what has to be there and is."""
    from megatrace.model.events import Op
    from megatrace.readers.opening import open_trace

    told, said = run(folder, recorded=True)
    events = open_trace([folder / "run" / "rings"]).events
    reductions = [int((events.op[events.rank == rank] == Op.ALL_REDUCE).sum()) for rank in range(RANKS)]
    messages = int(((events.op == Op.SEND) | (events.op == Op.RECV)).sum())
    ended = 0.0 if events.end is None else float((events.end > 0).mean())
    figures = {
        "nccl": told[0]["nccl"],
        "all_reduces": reductions,
        "messages": messages,
        "kernels_ended": round(ended, 4),
        "plugin_line": next((line for line in said.splitlines() if "megatrace" in line.lower()), ""),
        "ras": told[0]["ras"],
        "flight_recorder_entries": told[0]["flight_recorder"],
    }
    goals = [
        Goal("share of all-reduces recorded", min(reductions) / (CALLS + WARM_UP), 1, at_least=True),
        Goal("messages recorded", messages, 2, at_least=True),
        Goal("share of kernels with an end", ended, 0.99, at_least=True),
    ]
    return figures, goals


def compared() -> tuple[float, float, float]:
    """(µs without, mean of the added share, half of its 95 % interval)."""
    without, shares = [], []
    for turn in range(PAIRS):
        us: dict[bool, float] = {}
        for recorded in (False, True) if turn % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                us[recorded] = max(item["us"] for item in run(Path(folder), recorded=recorded)[0])
        without.append(us[False])
        shares.append((us[True] - us[False]) / us[False])
    half = STUDENT * statistics.stdev(shares) / PAIRS**0.5
    return statistics.median(without), statistics.mean(shares), half


def main() -> int:
    """Measures, prints, writes the result; with --rank it is one of the ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", default="")
    options = parser.parse_args()
    if options.rank is not None:
        return rank_main(options.rank, options.folder)
    why = missing()
    if why:
        print(f"{why}: nothing measured (one NVIDIA GPU, PyTorch with CUDA and the native part are needed)")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        figures, goals = checked(Path(folder))
    us, mean, half = compared()
    for name, value in figures.items():
        print(f"{name:24} {value}")
    print(
        f"all-reduce of 1 MiB: {us:.0f} µs; the recorder adds {mean:+.2%} ± {half:.2%} (95 %, {PAIRS} pairs)"
    )
    for goal in goals:
        print(goal.line())
    figures |= {"us": round(us, 1), "added": round(mean, 5), "half": round(half, 5)}
    print(f"wrote {write_result('one_gpu', figures, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
