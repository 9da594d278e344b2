"""Which fault, where, when and how bad: drawn from the seed, for the job at hand.

A draw takes the job (a healthy ``Scenario``) and a random generator, and gives the job with the fault in it,
or None where such a job cannot have the fault (no pipeline, one node). Windows leave a third of the
iterations healthy unless the fault is there from the first step to the last, which one in three is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from benchmarks.accuracy.layouts import Settings
from megatrace.model.schedule import Phase
from megatrace.simulator import faults as f
from megatrace.simulator.cluster import Cluster
from megatrace.simulator.scenario import Scenario

Random: TypeAlias = np.random.Generator
Changed: TypeAlias = "Scenario | None"


@dataclass(frozen=True, slots=True)
class Draw:
    """A job to draw for, and the dice."""

    job: Scenario
    random: Random

    def below(self, limit: int) -> int:
        """A number below the limit."""
        return int(self.random.integers(0, limit))

    def between(self, low: float, high: float) -> float:
        """A number between both, to two digits."""
        return round(float(self.random.uniform(low, high)), 2)

    def chance(self, share: float) -> bool:
        """True in this share of all draws."""
        return bool(self.random.random() < share)

    def rank(self) -> int:
        """Any rank."""
        return self.below(self.job.world_size)

    def window(self) -> dict[str, Any]:
        """A third of all faults last for the whole job, the others for a part of it."""
        n = self.job.iterations
        if self.chance(1 / 3):
            return {}
        length = int(self.random.integers(max(3, n // 5), n // 2 + 1))
        first = int(self.random.integers(2, n - length))
        if self.chance(0.3):
            return {"first_iteration": first}
        return {"first_iteration": first, "last_iteration": first + length - 1}

    def with_(self, *faults: Any, **settings: Any) -> Scenario:
        """The job with these faults and other settings."""
        return self.job.model_validate({**self.job.model_dump(), **settings, "faults": faults})

    def iteration(self) -> int:
        """Where a job comes to stand: after enough of a past to compare with."""
        return int(self.random.integers(2, self.job.iterations))

    def position(self, *phases: Phase) -> dict[str, Any]:
        """A call somewhere in one of these phases."""
        phase = phases[self.below(len(phases))]
        return {
            "iteration": self.iteration(),
            "micro_batch": self.below(self.job.micro_batches),
            "phase": phase,
            "call": self.below(4),
        }

    def far_pair(self) -> tuple[int, int] | None:
        """Two pipeline neighbours on different nodes."""
        size = self.job.ranks_per_node
        pairs = [pair for pair in self.neighbours() if pair[0] // size != pair[1] // size]
        return pairs[self.below(len(pairs))] if pairs else None

    def neighbours(self) -> list[tuple[int, int]]:
        """All pairs of pipeline neighbours."""
        grid = Cluster(self.job).grid.reshape(self.job.pp, -1)
        return [
            (int(a), int(b))
            for s in range(self.job.pp - 1)
            for a, b in zip(grid[s], grid[s + 1], strict=True)
        ]

    def rank_of_stage(self, stage: int) -> int:
        """Any rank of a stage."""
        ranks = Cluster(self.job).grid[stage].reshape(-1)
        return int(ranks[self.below(len(ranks))])


TRAIN = (Phase.FORWARD, Phase.BACKWARD)
ANY = (Phase.FORWARD, Phase.BACKWARD, Phase.SYNC)


def _slow_gpu(d: Draw) -> Changed:
    return d.with_(f.SlowGpu(rank=d.rank(), factor=d.between(1.3, 4.0), **d.window()))


def _slow_gpu_intermittent(d: Draw) -> Changed:
    duty = d.between(0.08, 0.4)
    return d.with_(f.SlowGpu(rank=d.rank(), factor=d.between(1.5, 4.0), duty=duty))


def _slow_gpu_drift(d: Draw) -> Changed:
    first = int(d.random.integers(2, d.job.iterations // 2))
    fault = f.SlowGpu(rank=d.rank(), factor=1.0, drift=d.between(0.08, 0.3), first_iteration=first)
    return d.with_(fault)


def _slow_host(d: Draw) -> Changed:
    if d.job.nodes < 2:
        return None
    return d.with_(f.SlowHost(node=d.below(d.job.nodes), factor=d.between(6.0, 20.0), **d.window()))


def _slow_link(d: Draw) -> Changed:
    pair = d.far_pair()
    if pair is None:
        return None
    return d.with_(f.SlowLink(src=pair[0], dst=pair[1], factor=d.between(8.0, 32.0), **d.window()))


def _slow_nic(d: Draw) -> Changed:
    if d.job.nodes < 2:
        return None
    return d.with_(f.SlowNic(rank=d.rank(), factor=d.between(8.0, 32.0), **d.window()))


def _data_loader(d: Draw) -> Changed:
    rank = d.rank_of_stage(0 if d.chance(0.7) else d.job.pp - 1)
    every = 1 if d.chance(0.6) else int(d.random.integers(2, 5))
    stall = d.between(150.0, 900.0)
    return d.with_(f.DataLoaderStall(rank=rank, stall_ms=stall, every=every, **d.window()))


def _sequence_imbalance(d: Draw) -> Changed:
    return d.with_(f.SequenceImbalance(sigma=d.between(0.3, 0.7)))


def _stage_imbalance(d: Draw) -> Changed:
    if d.job.pp < 2:
        return None
    return d.with_(f.StageImbalance(stage=d.below(d.job.pp), factor=d.between(1.3, 2.0)))


def _gc_pauses(d: Draw) -> Changed:
    return d.with_(
        f.GcPauses(per_iteration=d.between(1.0, 4.0), low_ms=50.0, high_ms=d.between(200.0, 600.0))
    )


def _checkpoint_stall(d: Draw) -> Changed:
    every = int(d.random.integers(4, 7))
    ranks = () if d.chance(0.5) else (d.rank(),)
    stall = d.between(1000.0, 5000.0)
    fault = f.CheckpointStall(ranks=ranks, stall_ms=stall, every=every)
    return d.with_(fault, checkpoint_every=every, checkpoint_ms=500.0)


def _jitter(d: Draw) -> Changed:
    return d.with_(f.Jitter(sigma=d.between(0.2, 0.6), **d.window()))


def _stuck_host(d: Draw) -> Changed:
    return d.with_(f.StuckHost(rank=d.rank(), **d.position(*ANY)))


def _stuck_kernel(d: Draw) -> Changed:
    return d.with_(f.StuckKernelBefore(rank=d.rank(), **d.position(*ANY)))


def _stuck_inside(d: Draw) -> Changed:
    return d.with_(f.StuckInside(rank=d.rank(), **d.position(*ANY)))


def _missing_recv(d: Draw) -> Changed:
    if d.job.pp < 2:
        return None
    where = d.position(*TRAIN)
    forward = where["phase"] is Phase.FORWARD
    stage = d.below(d.job.pp - 1) + (1 if forward else 0)
    return d.with_(f.MissingRecv(rank=d.rank_of_stage(stage), **where))


def _missing_send(d: Draw) -> Changed:
    if d.job.pp < 2:
        return None
    where = d.position(*TRAIN)
    forward = where["phase"] is Phase.FORWARD
    stage = d.below(d.job.pp - 1) + (0 if forward else 1)
    return d.with_(f.MissingSend(rank=d.rank_of_stage(stage), **where))


def _skipped_collective(d: Draw) -> Changed:
    return d.with_(f.SkippedCollective(rank=d.rank(), **d.position(*ANY)))


def _order_mismatch(d: Draw) -> Changed:
    return d.with_(f.OrderMismatch(rank=d.rank(), **d.position(Phase.SYNC, Phase.FORWARD)))


def _size_mismatch(d: Draw) -> Changed:
    return d.with_(f.SizeMismatch(rank=d.rank(), factor=d.between(0.3, 0.9), **d.position(*ANY)))


def _comm_deadlock(d: Draw) -> Changed:
    return d.with_(f.CommDeadlock(rank=d.rank(), iteration=d.iteration()))


def _dead_rank(d: Draw) -> Changed:
    return d.with_(f.DeadRank(rank=d.rank(), **d.position(*ANY)))


def _dead_node(d: Draw) -> Changed:
    if d.job.nodes < 2:
        return None
    return d.with_(f.DeadNode(node=d.below(d.job.nodes), **d.position(*ANY)))


def _dead_link(d: Draw) -> Changed:
    pairs = d.neighbours()
    if not pairs:
        return None
    src, dst = pairs[d.below(len(pairs))]
    fault = f.DeadLink(src=src, dst=dst, iteration=d.iteration(), micro_batch=d.below(d.job.micro_batches))
    return d.with_(fault)


def _late_deaths(d: Draw) -> Changed:
    """A stuck kernel, or a missed Recv, after which other nodes die at random."""
    if d.job.nodes < 4:
        return None
    inner = _stuck_kernel(d) if d.chance(0.5) else (_missing_recv(d) or _stuck_kernel(d))
    assert inner is not None
    return d.with_(*inner.faults, f.LateDeaths(count=int(d.random.integers(1, d.job.nodes // 2))))


def _two_slow(d: Draw) -> Changed:
    """Two independent slow devices in different stages or replicas, in windows of their own."""
    layout = d.job.layout
    first = d.rank()
    far = [
        r
        for r in range(d.job.world_size)
        if (layout.place(r).stage, layout.place(r).dp) != (layout.place(first).stage, layout.place(first).dp)
    ]
    if not far or d.job.pattern != "megatron":
        return None
    second = far[d.below(len(far))]
    n = d.job.iterations
    a = f.SlowGpu(rank=first, factor=d.between(1.8, 3.5), first_iteration=2, last_iteration=n // 2 - 1)
    b = f.SlowGpu(rank=second, factor=d.between(1.8, 3.5), first_iteration=n // 2 + 1)
    return d.with_(a, b)


def _slow_then_hang(d: Draw) -> Changed:
    """A slow device for a while, and later a host elsewhere that stops."""
    n = d.job.iterations
    slow = f.SlowGpu(rank=d.rank(), factor=d.between(1.8, 3.5), first_iteration=2, last_iteration=n // 2)
    where = {**d.position(*TRAIN), "iteration": n - 1}
    return d.with_(slow, f.StuckHost(rank=d.rank(), **where))


def _healthy(d: Draw) -> Changed:
    return d.job


def _healthy_skew(d: Draw) -> Changed:
    return d.with_(clock_offset_us=d.between(300.0, 3000.0), clock_drift_ppm=d.between(1.0, 20.0))


def _healthy_noise(d: Draw) -> Changed:
    return d.with_(compute_noise=0.02, host_noise=0.1, outlier_share=4e-4)


def _healthy_evaluation(d: Draw) -> Changed:
    return d.with_(evaluate_every=int(d.random.integers(4, 7)), evaluate_iterations=2)


def _healthy_checkpoint(d: Draw) -> Changed:
    return d.with_(checkpoint_every=int(d.random.integers(4, 7)), checkpoint_ms=d.between(300.0, 3000.0))


def _healthy_both(d: Draw) -> Changed:
    return d.with_(checkpoint_every=5, evaluate_every=int(d.random.integers(4, 8)), log_every=3)


def _healthy_snapshot(d: Draw) -> Changed:
    """The recording stops somewhere in the middle while the job moves on."""
    iteration_s = 0.35 if d.job.pattern == "megatron" else 0.5
    cut = d.between(2.0 + 3 * iteration_s, 0.6 * d.job.iterations * iteration_s + 3)
    return d.with_(capture={"cut_at_s": cut})


def _healthy_torn(d: Draw) -> Changed:
    number = int(d.random.integers(1, max(2, d.job.world_size // 2)))
    ranks = d.random.choice(d.job.world_size, number, replace=False)
    return d.with_(capture={"torn_tails": tuple(sorted(int(rank) for rank in ranks))})


def _healthy_missing(d: Draw) -> Changed:
    number = int(d.random.integers(1, max(2, d.job.world_size // 4)))
    ranks = d.random.choice(d.job.world_size, number, replace=False)
    return d.with_(capture={"missing_ranks": tuple(sorted(int(rank) for rank in ranks))})


def _healthy_overwritten(d: Draw) -> Changed:
    return d.with_(capture={"last_records": int(d.random.integers(1500, 6000))})


FAULTS: dict[str, Callable[[Draw], Changed]] = {
    "slow_gpu": _slow_gpu,
    "slow_gpu_intermittent": _slow_gpu_intermittent,
    "slow_gpu_drift": _slow_gpu_drift,
    "slow_host": _slow_host,
    "slow_link": _slow_link,
    "slow_nic": _slow_nic,
    "data_loader_stall": _data_loader,
    "sequence_imbalance": _sequence_imbalance,
    "stage_imbalance": _stage_imbalance,
    "gc_pauses": _gc_pauses,
    "checkpoint_stall": _checkpoint_stall,
    "jitter": _jitter,
    "two_slow": _two_slow,
    "slow_then_hang": _slow_then_hang,
    "stuck_host": _stuck_host,
    "stuck_kernel_before": _stuck_kernel,
    "stuck_inside": _stuck_inside,
    "missing_recv": _missing_recv,
    "missing_send": _missing_send,
    "skipped_collective": _skipped_collective,
    "order_mismatch": _order_mismatch,
    "size_mismatch": _size_mismatch,
    "comm_deadlock": _comm_deadlock,
    "dead_rank": _dead_rank,
    "dead_node": _dead_node,
    "dead_link": _dead_link,
    "late_deaths": _late_deaths,
}

HEALTHY: dict[str, Callable[[Draw], Changed]] = {
    "healthy": _healthy,
    "healthy_skew": _healthy_skew,
    "healthy_noise": _healthy_noise,
    "healthy_evaluation": _healthy_evaluation,
    "healthy_checkpoint": _healthy_checkpoint,
    "healthy_both": _healthy_both,
    "healthy_snapshot": _healthy_snapshot,
    "healthy_torn": _healthy_torn,
    "healthy_missing": _healthy_missing,
    "healthy_overwritten": _healthy_overwritten,
}

HANGS = frozenset(list(FAULTS)[list(FAULTS).index("slow_then_hang") :])

ITERATIONS: dict[str, Settings] = {
    "slow_gpu_intermittent": {"iterations": 60},
    "slow_gpu_drift": {"iterations": 24},
    "checkpoint_stall": {"iterations": 24},
    "gc_pauses": {"iterations": 24},
    "slow_then_hang": {"iterations": 14},
    "two_slow": {"iterations": 20},
}
"""How long each job runs; 16 iterations where nothing else is said, 5 where it comes to stand."""


def settings_of(fault: str) -> Settings:
    """What a fault needs of its job beyond the layout."""
    return ITERATIONS.get(fault, {"iterations": 5 if fault in HANGS else 16})
