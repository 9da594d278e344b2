"""A job of one GPU, alone: memory, matrix products, collectives of one rank. Run by a Python with PyTorch.

Whoever is named by a diagnosis is tried without the others: a GPU that hangs, errs or miscomputes alone is
sick, and one that does not has an alibi. Prints one JSON line a step, so that whoever kills it knows how far
it came; a watchdog inside says when no step ends. Everything is compared: memory with what was written,
products with the first of them, sums with what they must be.

Standard library and PyTorch only, started by its path; decides nothing (``checks.solo`` does).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from typing import Any

START_STALL_S = 120.0
"""Loading PyTorch from a slow file system, and the first contact with a driver without persistence mode."""
STALL_S = 30.0
"""No step here takes a second on a GPU that works."""
SHARE = 0.8
"""Of the free memory: the rest is for the products and the driver."""
BLOCK = 256 << 20
PATTERNS = (0x00000000, -1, 0x55555555, -0x55555556)
SIZE = {"cuda": 8192, "cpu": 256}
STALLED, FAILED, WRONG, MISSING, BUSY = 3, 4, 5, 6, 7
"""Exit codes beside 0."""


class Steps:
    """What was printed last, and the watchdog over it."""

    def __init__(self) -> None:
        self.begun = self.last = time.monotonic()
        self.stage = "start"
        threading.Thread(target=self._watch, daemon=True).start()

    def say(self, stage: str, **more: object) -> None:
        """A step is done."""
        self.stage, self.last = stage, time.monotonic()
        _print(stage=stage, seconds=round(self.last - self.begun, 2), **more)

    def _watch(self) -> None:
        while True:
            time.sleep(0.2)
            limit = START_STALL_S if self.stage == "start" else STALL_S
            if time.monotonic() - self.last > float(os.environ.get("MEGATRACE_SOLO_STALL_S") or limit):
                _print(stalled=self.stage, seconds=round(time.monotonic() - self.begun, 2))
                os._exit(STALLED)


def _print(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def memory(torch: Any, device: Any, steps: Steps, seconds: float) -> int:
    """Writes patterns into most of the free memory and reads them back; returns how many words differ."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else BLOCK
    blocks = []
    for _ in range(max(1, int(free * SHARE) // BLOCK)):
        blocks.append(torch.empty(BLOCK // 4, dtype=torch.int32, device=device))
        steps.say("memory", bytes=len(blocks) * BLOCK)
    wrong, until = 0, time.monotonic() + seconds
    for pattern in PATTERNS:
        for block in blocks:
            block.fill_(pattern)
        for number, block in enumerate(blocks):
            wrong += int((block != pattern).sum().item())
            steps.say("memory", pattern=pattern, checked=(number + 1) * BLOCK, wrong=wrong)
        if time.monotonic() > until:
            break
    return wrong


def products(torch: Any, device: Any, steps: Steps, seconds: float) -> int:
    """Multiplies the same matrices again and again; returns how often the product was another one."""
    size = SIZE[device.type]
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(1)
    a, b = (torch.randn(size, size, dtype=kind, device=device) for _ in range(2))
    first = a @ b
    wrong = rounds = 0
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        for _ in range(20):
            again = a @ b
        wrong += not torch.equal(first, again)
        rounds += 20
        rate = 2.0 * size**3 * rounds / (time.monotonic() - begun) / 1e12
        steps.say("products", rounds=rounds, tflops=round(rate, 2), wrong=wrong)
    return wrong


def collectives(torch: Any, device: Any, steps: Steps) -> int:
    """Sums of one rank with itself through the library that the job uses; returns how many were wrong."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed = importlib.import_module("torch.distributed")
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        distributed.init_process_group(backend, init_method=store, rank=0, world_size=1)
        wrong = 0
        for number in range(50):
            values = torch.full((1 << 20,), float(number), device=device)
            distributed.all_reduce(values)
            wrong += bool((values != number).any().item())
        steps.say("collectives", calls=50, wrong=wrong)
        distributed.destroy_process_group()
    return wrong


def main() -> int:
    """Runs all stages; the exit code says how it ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="", help="UUID; empty: the CPU, for trying this program itself")
    parser.add_argument("--seconds", type=float, default=60.0)
    told = parser.parse_args()
    if told.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = told.gpu
    steps = Steps()
    _print(stage="start", seconds=0.0)
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        _print(missing=str(error))
        return MISSING
    try:
        if told.gpu and not torch.cuda.is_available():
            _print(missing="this PyTorch sees no such GPU")
            return MISSING
        device = torch.device("cuda:0" if told.gpu else "cpu")
        wrong = memory(torch, device, steps, told.seconds / 3)
        if told.gpu:
            torch.cuda.empty_cache()
        wrong += products(torch, device, steps, told.seconds / 2)
        wrong += collectives(torch, device, steps)
    except Exception as error:  # noqa: BLE001 - whatever the GPU does to it is the result
        out_of_memory = type(error).__name__ == "OutOfMemoryError"
        _print(error=f"{type(error).__name__}: {error}"[:500], at=steps.stage)
        return BUSY if out_of_memory else FAILED
    _print(done=True, wrong=wrong, seconds=round(time.monotonic() - steps.begun, 2))
    return WRONG if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
