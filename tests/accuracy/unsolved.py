"""Runs of the matrix that fail today, by what the analysis lacks.

Each must fail (strict): whoever mends the analysis takes the run off this list. It holds no run that cannot
be told from its source; those are marked in the truth.
"""

from __future__ import annotations

BY_REASON: dict[str, tuple[str, ...]] = {
    "a late loader is not seen, or not told from a slow path": ("data_loader_stall:tp2-pp4-dp2:900013 text",),
    "interleaved pipelines: work and waits are not attributed to the right chunk": (
        "slow_gpu:interleaved:900001 ring",
        "slow_gpu:interleaved:900001 text",
        "slow_gpu:interleaved:900001 text-hash",
    ),
    "jitter in a job without pipeline is not seen": (
        "jitter:tp2-pp1-dp8:900022 ring",
        "jitter:tp2-pp1-dp8:900022 text",
        "jitter:tp2-pp1-dp8:900022 text-hash",
    ),
    (
        "jobs without pipeline and tensor parallelism: slowness is not told apart by kind and rank, "
        "and evaluation or checkpoints look like slow_uniform"
    ): (
        "data_loader_stall:zero3-16:900012 ring",
        "data_loader_stall:zero3-16:900012 text",
        "data_loader_stall:zero3-16:900012 text-hash",
        "gc_pauses:ddp8:900019 ring",
        "gc_pauses:ddp8:900019 text",
        "gc_pauses:ddp8:900019 text-hash",
        "checkpoint_stall:fsdp16:900020 ring",
        "checkpoint_stall:fsdp16:900020 text",
        "checkpoint_stall:fsdp16:900020 text-hash",
        "checkpoint_stall:zero3-16:900021 ring",
        "healthy_evaluation:ddp16:900067 ring",
        "healthy_checkpoint:fsdp16:900068 ring",
        "healthy_both:zero3-16:900069 ring",
        "healthy_both:zero3-16:900069 text",
        "healthy_both:zero3-16:900069 text-hash",
    ),
    (
        "slow hosts: one rank of the node is left out, or nothing is said, where experts share the "
        "tensor group"
    ): (
        "slow_host:tp2-pp2-dp4-ep2:900007 ring",
        "slow_host:tp2-pp2-dp4-ep2:900007 text",
        "slow_host:tp2-pp2-dp4-ep2:900007 text-hash",
    ),
    "slow paths and NICs: slowness of the network is taken for slow compute, or not seen": (
        "slow_link:gpipe:900008 ring",
        "slow_link:gpipe:900008 text",
        "slow_link:gpipe:900008 text-hash",
        "slow_nic:tp2-pp1-dp8:900010 ring",
        "slow_nic:tp2-pp1-dp8:900010 text-hash",
        "slow_nic:tp1-pp2-dp16:900011 text",
        "slow_nic:tp1-pp2-dp16:900011 text-hash",
    ),
    (
        "text logs without communicators: the all-gathers of a context group, or overlapped "
        "gradients, are taken for a mismatch"
    ): (
        "slow_host:cp2-gather:900006 text",
        "stage_imbalance:cp2-gather:900017 text",
    ),
    "text logs: members of context and expert groups are not told apart": (
        "slow_gpu:tp2-pp2-dp4-ep2:900000 text",
        "slow_gpu:tp2-pp2-dp4-ep2:900000 text-hash",
        "slow_gpu_intermittent:tp2-pp2-cp2-dp2:900002 text",
    ),
    "two faults one after the other: only one of them, or only their tensor group, is found": (
        "two_slow:tp2-pp2-dp8:900024 ring",
        "two_slow:tp2-pp2-dp8:900024 text",
        "two_slow:tp2-pp2-dp8:900024 text-hash",
        "two_slow:tp4-pp4-dp4:900025 ring",
        "two_slow:tp4-pp4-dp4:900025 text",
        "two_slow:tp4-pp4-dp4:900025 text-hash",
    ),
}
"""Case and source, by reason."""

UNSOLVED: dict[tuple[str, str], str] = {
    (run.split()[0], run.split()[1]): reason for reason, runs in BY_REASON.items() for run in runs
}
