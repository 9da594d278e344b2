"""Two ranks of DistributedDataParallel over gloo; prints the sum of the gradients of each step.

Run twice by tests, with and without a hook: the numbers must be the same.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
STEPS = 3


def one_rank(store: str, rank: int) -> None:
    """The life of one process."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    timeout = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, WORLD), rank=rank, world_size=WORLD, timeout=timeout
    )
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        if rank == 0:
            total = sum(float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None)
            sys.stdout.write(f"{total}\n")
        optimizer.step()
    dist.destroy_process_group()


def main() -> int:
    """Forks the ranks and waits for them."""
    children = []
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                one_rank(sys.argv[1], rank)
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


if __name__ == "__main__":
    sys.exit(main())
