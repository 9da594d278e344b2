"""Times of one stage in one iteration: what programs ask for, times noise, times what slow faults do.

Noise is keyed by its position (seed, iteration, stage, purpose), never by the order of drawing, and every
fault draws from a stream keyed by its own content. So the same scenario without a fault has exactly the same
noise, and the difference between the two runs is the fault.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from megatrace.model.schedule import Phase
from megatrace.simulator.cluster import F8, Cluster
from megatrace.simulator.faults import (
    CheckpointStall,
    DataLoaderStall,
    Delay,
    DelayedMessage,
    Fault,
    GcPauses,
    Jitter,
    SequenceImbalance,
    SlowGpu,
    SlowHost,
    SlowLink,
    SlowNic,
    StageImbalance,
)
from megatrace.simulator.program import Call, Compute, HostMark, HostWork, Program, Wait

MS = 1e6
_COMPUTE, _HOST, _UNEVEN, _CLOCK, _LASTING = range(5)
MEMORY = 4
"""Iterations for which lasting noise stays the same: a few seconds, in which a temperature changes."""
HOST_OUTLIER_MS = 3.0
"""An operating system preempts a process for a time slice of a few ms."""


def generator(*key: int) -> np.random.Generator:
    """A stream of random numbers that belongs to a position."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key)))


def fault_generator(seed: int, fault: Fault, *key: int) -> np.random.Generator:
    """A stream that belongs to a fault, whatever other faults there are."""
    return generator(seed, 0xFA17, crc32(repr(fault).encode()), *key)


class Times:
    """Durations of one (iteration, stage): rows follow the program's instructions that have one.

    device     float64 [computes, dp, cp, tp]: ns of each ``Compute``
    host       float64 [instructions, dp, cp, tp]: ns of host work of each instruction (0 for waits)
    links      slow links that are active
    messages   delayed messages that are active
    """

    def __init__(self, cluster: Cluster, program: Program, iteration: int) -> None:
        self.cluster = cluster
        self.program = program
        self.iteration = iteration
        scenario = cluster.scenario
        self.active = tuple(f for f in scenario.faults if _active(f, scenario.seed, iteration))
        self.links = tuple(f for f in self.active if isinstance(f, SlowLink | SlowNic))
        self.messages = tuple(f for f in self.active if isinstance(f, DelayedMessage))
        self.device = self._device()
        self.host = self._host()

    def _device(self) -> F8:
        cluster, scenario = self.cluster, self.cluster.scenario
        computes = [item for item in self.program.instructions if isinstance(item, Compute)]
        work = np.array([item.work for item in computes])
        shape = (len(computes), *cluster.shape)
        random = generator(scenario.seed, self.iteration, self.program.stage, _COMPUTE)
        times = random.standard_normal(shape, dtype=np.float32).astype(np.float64)
        if scenario.noise_memory:
            stretch = generator(scenario.seed, self.iteration // MEMORY, self.program.stage, _LASTING)
            times *= 1 - scenario.noise_memory
            times += scenario.noise_memory * stretch.standard_normal(cluster.shape)
        np.abs(times, out=times)  # one-sided: a kernel is late, never early
        times *= scenario.compute_noise
        times += 1.0
        times *= work[:, None, None, None]
        times += _outliers(random, shape, scenario.outlier_share, scenario.outlier_ms)
        for fault in self.active:
            self._slow_device(fault, computes, work, times)
        return times

    def _slow_device(self, fault: Fault, computes: list[Compute], work: F8, times: F8) -> None:
        cluster, stage = self.cluster, self.program.stage
        if isinstance(fault, SlowGpu):
            at, flat = cluster.locate(fault.rank)
            if at == stage:
                factor = fault.factor + fault.drift * (self.iteration - fault.first_iteration)
                times.reshape(len(times), -1)[:, flat] *= max(factor, 1e-3)
        elif isinstance(fault, Delay):
            at, flat = cluster.locate(fault.rank)
            wanted = (fault.phase, fault.micro_batch)
            rows = [
                i for i, item in enumerate(computes) if (item.label.phase, item.label.micro_batch) == wanted
            ]
            if at == stage and rows:
                times.reshape(len(times), -1)[rows[0], flat] += fault.delay_ms * MS
        elif isinstance(fault, StageImbalance) and fault.stage == stage:
            inside = np.array([item.label.phase is not Phase.SYNC for item in computes], bool)
            times[inside] *= fault.factor
        elif isinstance(fault, SequenceImbalance):
            scenario = cluster.scenario
            random = fault_generator(scenario.seed, fault, self.iteration)
            lengths = random.lognormal(0.0, fault.sigma, (scenario.micro_batches, scenario.dp))
            batches = [item.label.micro_batch for item in computes]
            inside = np.array([batch is not None for batch in batches], bool)
            chosen = np.array([batch for batch in batches if batch is not None], np.int64)
            times[inside] *= lengths[chosen][:, :, None, None]
        elif isinstance(fault, Jitter):
            random = fault_generator(cluster.scenario.seed, fault, self.iteration, stage)
            spread = np.abs(random.standard_normal(times.shape, dtype=np.float32)) * fault.sigma
            times += spread * work[:, None, None, None]

    def _host(self) -> F8:
        cluster, scenario = self.cluster, self.cluster.scenario
        items = self.program.instructions
        asked = np.array([0.0 if isinstance(item, Wait) else item.host for item in items])
        shape = (len(items), *cluster.shape)
        random = generator(scenario.seed, self.iteration, self.program.stage, _HOST)
        times = random.standard_normal(shape, dtype=np.float32).astype(np.float64)
        np.abs(times, out=times)
        times *= scenario.host_noise
        times += 1.0
        times *= asked[:, None, None, None]
        rare = _outliers(random, shape, scenario.outlier_share / 4, HOST_OUTLIER_MS)
        times += rare * (asked > 0)[:, None, None, None]
        for fault in self.active:
            self._slow_host(fault, times)
        return times

    def _slow_host(self, fault: Fault, times: F8) -> None:
        cluster, stage = self.cluster, self.program.stage
        flat_times = times.reshape(len(times), -1)
        if isinstance(fault, SlowHost):
            flat_times[:, (cluster.nodes[stage] == fault.node).reshape(-1)] *= fault.factor
        elif (
            isinstance(fault, DataLoaderStall) and (self.iteration - fault.first_iteration) % fault.every == 0
        ):
            at, flat = cluster.locate(fault.rank)
            rows = self._marks(HostMark.LOAD)
            if at == stage and rows:
                flat_times[rows[0], flat] += fault.stall_ms * MS
        elif isinstance(fault, CheckpointStall) and (self.iteration + 1) % fault.every == 0:
            chosen = np.arange(flat_times.shape[1])
            if fault.ranks:
                places = [cluster.locate(rank) for rank in fault.ranks]
                chosen = np.array([flat for at, flat in places if at == stage], np.int64)
            for row in self._marks(HostMark.SAVE):
                flat_times[row, chosen] += fault.stall_ms * MS
        elif isinstance(fault, GcPauses):
            self._pauses(fault, flat_times)

    def _pauses(self, fault: GcPauses, flat_times: NDArray[np.float64]) -> None:
        """Strikes whole-job positions, so that the pauses of one iteration are the same whoever asks."""
        cluster = self.cluster
        random = fault_generator(cluster.scenario.seed, fault, self.iteration)
        number = int(random.poisson(fault.per_iteration))
        ranks = random.integers(0, cluster.scenario.world_size, number)
        where = random.random(number)
        lengths = random.uniform(fault.low_ms, fault.high_ms, number) * MS
        for rank, share, length in zip(ranks, where, lengths, strict=True):
            at, flat = cluster.locate(int(rank))
            if at == self.program.stage:
                flat_times[int(share * len(flat_times)), flat] += length

    def _marks(self, mark: HostMark) -> list[int]:
        items = self.program.instructions
        return [i for i, item in enumerate(items) if isinstance(item, HostWork) and item.mark is mark]


def uneven_counts(cluster: Cluster, program: Program, iteration: int) -> NDArray[np.int64] | None:
    """int64 [uneven calls, ranks of the stage]: elements of all-to-alls, None where there are none."""
    rows = [item for item in program.instructions if isinstance(item, Call) and item.uneven]
    if not rows:
        return None
    random = generator(cluster.scenario.seed, iteration, program.stage, _UNEVEN)
    share = random.uniform(0.7, 1.3, (len(rows), int(np.prod(cluster.shape))))
    counts = np.maximum(share * np.array([row.count for row in rows])[:, None], 1)
    return np.asarray(counts, np.int64)


def clocks(cluster: Cluster) -> tuple[F8, F8]:
    """(offset ns, drift as a fraction) of every node's clock against true time; node 0 is exact."""
    scenario = cluster.scenario
    random = generator(scenario.seed, _CLOCK)
    offset = random.normal(0.0, scenario.clock_offset_us * 1e3, scenario.nodes)
    drift = random.normal(0.0, scenario.clock_drift_ppm * 1e-6, scenario.nodes)
    offset[0] = drift[0] = 0.0
    return offset, drift


def _active(fault: Fault, seed: int, iteration: int) -> bool:
    window = getattr(fault, "active", None)
    if window is None or not window(iteration):
        return False
    if isinstance(fault, SlowGpu) and fault.duty < 1.0:
        return bool(fault_generator(seed, fault, iteration).random() < fault.duty)
    return True


def _outliers(
    random: np.random.Generator, shape: tuple[int, ...], share: float, scale_ms: float
) -> F8 | float:
    """A heavy tail: in ``share`` of the places a Pareto-distributed delay of ``scale_ms`` and more."""
    size = int(np.prod(shape))
    if not share or not size:
        return 0.0
    number = int(random.poisson(size * share))
    times = np.zeros(size)
    # Exponent 2.5: variance exists, the worst of ten thousand is about forty times the scale.
    times[random.integers(0, size, number)] = scale_ms * MS * (1 + random.pareto(2.5, number))
    return times.reshape(shape)
