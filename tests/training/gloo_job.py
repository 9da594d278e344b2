"""A small Megatron-like training on CPUs: tensor 2 × pipeline 2 × data 2 over gloo, 1F1B, one process a rank.

Run as a program (``python gloo_job.py --iterations 6``): it imports torch once, forks one process a rank and
exits with the worst code. It exists for tests that watch a real job from outside, so it knows nothing of
MegaTrace; its faults are its own: a rank that sleeps in its forward, a rank that never posts a Recv.

Ranks are laid out as Megatron-LM does it: rank = tensor + 2 × (data + 2 × stage).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TENSOR, DATA, STAGES = 2, 2, 2
WORLD = TENSOR * DATA * STAGES
LAYERS = 2
HIDDEN = 64
ROWS = 32


DEVICE_S = 0.06
"""What a layer takes on the device that is not there, forward and backward: slept, so that eight ranks on two
cores are late to each other no more than eight GPUs would be."""


class Reduced(torch.autograd.Function):
    """Sums over the tensor group in the forward (``g`` of Megatron-LM)."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Copied(torch.autograd.Function):
    """Sums over the tensor group in the backward (``f`` of Megatron-LM)."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        return x

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(DEVICE_S)
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)  # type: ignore[attr-defined]
        return gradient, None


class Layer(torch.nn.Module):
    """A column-parallel and a row-parallel product, as in the MLP of a transformer."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.up = torch.nn.Linear(HIDDEN, 4 * HIDDEN // TENSOR, bias=False)
        self.down = torch.nn.Linear(4 * HIDDEN // TENSOR, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(DEVICE_S)
        x = Copied.apply(x, self.group)
        return x + Reduced.apply(self.down(torch.relu(self.up(x))), self.group) * 0.1


class Job:
    """One rank of the training."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        self.options, self.rank = options, rank
        self.tensor, self.data, self.stage = rank % 2, rank // 2 % 2, rank // 4
        self.groups()
        torch.manual_seed(self.stage)
        self.model = torch.nn.Sequential(*[Layer(self.tensor_group) for _ in range(LAYERS)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.sends: list[dist.Work | None] = []
        self.iteration = 0

    def groups(self) -> None:
        """Makes all groups on all ranks, in the same order."""
        for data in range(DATA):
            for stage in range(STAGES):
                base = 2 * data + 4 * stage
                group = dist.new_group([base, base + 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
                if self.rank in (base, base + 1):
                    self.tensor_group = group
        for tensor in range(TENSOR):
            for stage in range(STAGES):
                members = [tensor + 4 * stage, tensor + 2 + 4 * stage]
                group = dist.new_group(members, group_desc="DATA_PARALLEL_GROUP")
                if self.rank in members:
                    self.data_group = group
            for data in range(DATA):
                members = [tensor + 2 * data, tensor + 2 * data + 4]
                group = dist.new_group(members, group_desc="PIPELINE_MODEL_PARALLEL_GROUP")
                if self.rank in members:
                    self.pipeline_group, self.neighbour = group, members[1 - self.stage]

    def run(self) -> None:
        """All iterations."""
        for iteration in range(self.options.iterations):
            self.iteration = iteration
            self.optimizer.zero_grad()
            warm_up = min(STAGES - self.stage - 1, self.options.micro_batches)
            forwards = backwards = 0
            while backwards < self.options.micro_batches:
                if forwards < self.options.micro_batches and forwards - backwards <= warm_up:
                    self.forward(forwards)
                    forwards += 1
                if forwards - backwards > warm_up or forwards == self.options.micro_batches:
                    self.backward()
                    backwards += 1
            for work in self.sends:
                if work is not None:
                    work.wait()
            self.sends.clear()
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad, group=self.data_group)
            norm = torch.stack([p.grad.norm() for p in self.model.parameters() if p.grad is not None]).sum()
            dist.all_reduce(norm)
            self.optimizer.step()

    def forward(self, micro_batch: int) -> None:
        """One micro-batch through this stage."""
        at_fault = self.rank == self.options.rank and self.iteration >= self.options.at
        if at_fault and self.options.fault == "no-recv" and micro_batch == self.options.micro_batch:
            Path(f"{self.options.store}.stuck").touch()
            time.sleep(3600)  # the Recv of this micro-batch is never posted
        if self.stage == 0:
            x = torch.randn(ROWS, HIDDEN)
        else:
            x = torch.empty(ROWS, HIDDEN)
            dist.recv(x, self.neighbour, group=self.pipeline_group)
        x.requires_grad_()
        y = x
        for layer in self.model:
            if at_fault and self.options.fault == "slow":
                time.sleep(self.options.seconds / LAYERS)
            y = layer(y)
        if self.stage == STAGES - 1:
            y = y.square().mean()
        else:
            self.sends.append(dist.isend(y.detach(), self.neighbour, group=self.pipeline_group))
        self.waiting.append((x, y))

    def backward(self) -> None:
        """The oldest micro-batch back through this stage."""
        x, y = self.waiting.pop(0)
        if self.stage == STAGES - 1:
            y.backward()
        else:
            gradient = torch.empty(ROWS, HIDDEN)
            dist.recv(gradient, self.neighbour, group=self.pipeline_group)
            y.backward(gradient)
        if self.stage > 0:
            assert x.grad is not None
            self.sends.append(dist.isend(x.grad, self.neighbour, group=self.pipeline_group))


def one_rank(options: argparse.Namespace, rank: int) -> None:
    """The life of one process."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD)
    )
    torch.set_num_threads(1)
    store = dist.FileStore(options.store, WORLD)
    timeout = timedelta(seconds=options.timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timeout)
    job = Job(options, rank)
    if options.fault == "no-recv":
        threading.Thread(target=dump_when_stuck, args=(options, rank), daemon=True).start()
    job.run()
    dist.destroy_process_group()


def dump_when_stuck(options: argparse.Namespace, rank: int) -> None:
    """What torch's own flight recorder has seen of this rank, some seconds after the job got stuck. In a
    thread, for a handler of a signal does not run while the main thread waits inside torch."""
    from torch._C import _distributed_c10d as c10d

    while not Path(f"{options.store}.stuck").exists():
        time.sleep(0.1)
    time.sleep(options.stand / 2)
    Path(f"{options.store}.flight-{rank}.json").write_bytes(c10d._dump_fr_trace_json(True))


def main() -> int:
    """Forks the ranks and waits for them; a rank that fails takes the others with it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--fault", choices=("none", "slow", "no-recv"), default="none")
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--at", type=int, default=0, help="first iteration of the fault")
    parser.add_argument("--micro-batch", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument(
        "--stand", type=float, default=6, help="s: how long a stuck job stands until it is ended"
    )
    options = parser.parse_args()
    children: dict[int, int] = {}
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                one_rank(options, rank)
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children[pid] = rank
    signal.signal(signal.SIGTERM, lambda *_: stop(children))
    stuck, since = Path(f"{options.store}.stuck"), 0.0
    worst = 0
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.05)
            if stuck.exists():
                since = since or time.monotonic()
                if time.monotonic() - since > options.stand:
                    stop(children)
            continue
        children.pop(pid)
        if status:
            worst = 1
            stop(children)
    return worst


def stop(children: dict[int, int]) -> None:
    """Ends the ranks that are left."""
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
