"""What was judged: findings, and the diagnosis that holds them (schema ``megatrace.diagnosis/1``).

A health check of the Bot and an analysis of a trace speak the same ``Finding``. Everything that a report
shows stands in the ``Diagnosis``: reports open nothing and compute nothing. Times are int64 ns since the
epoch here; the JSON form (``reports.jsonfile``) turns them into seconds after ``clock.t0``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from megatrace.model.trace import Coverage, InputInfo, RankPlace

if TYPE_CHECKING:  # a node's agent speaks of findings, and does not import numpy for it
    import numpy as np
    from numpy.typing import NDArray

    from megatrace.model.layout import ParallelLayout
    from megatrace.model.schedule import Phase, Schedule
    from megatrace.model.series import Series
    from megatrace.model.timeline import Timeline


class Verdict(Enum):
    """Precedence in this order."""

    FAILED = "failed"
    HANG = "hang"
    SLOW = "slow"
    UNDECIDABLE = "undecidable"
    HEALTHY = "healthy"


class Severity(IntEnum):
    """P0 the job stands or data is at risk · P1 it suffers now · P2 degraded · P3 note · INFO no action."""

    P0 = 0
    P1 = 1
    P2 = 2
    P3 = 3
    INFO = 4


class Kind(Enum):
    """Closed list of what can be wrong."""

    SLOW_COMPUTE = "slow_compute"
    SLOW_HOST = "slow_host"
    SLOW_NETWORK = "slow_network"
    SLOW_STORAGE = "slow_storage"
    SLOW_UNIFORM = "slow_uniform"
    IMBALANCE = "imbalance"
    JITTER = "jitter"
    HANG_HOST = "hang_host"
    HANG_DEVICE = "hang_device"
    HANG_NETWORK = "hang_network"
    HANG_GROUP = "hang_group"
    MISMATCH = "mismatch"
    MISSING_CALL = "missing_call"
    DEADLOCK = "deadlock"
    DEAD_RANK = "dead_rank"
    HARDWARE = "hardware"
    CONFIGURATION = "configuration"
    SOFTWARE = "software"
    RESOURCE = "resource"

    @property
    def verdict(self) -> Verdict:
        """The verdict that a finding of this kind of P2 or worse supports."""
        if self in _HANGS:
            return Verdict.HANG
        return Verdict.SLOW if self in _SLOWS else Verdict.FAILED


_HANGS = frozenset(
    {
        Kind.HANG_HOST,
        Kind.HANG_DEVICE,
        Kind.HANG_NETWORK,
        Kind.HANG_GROUP,
        Kind.MISMATCH,
        Kind.MISSING_CALL,
        Kind.DEADLOCK,
        Kind.DEAD_RANK,
    }
)
_SLOWS = frozenset(
    {
        Kind.SLOW_COMPUTE,
        Kind.SLOW_HOST,
        Kind.SLOW_NETWORK,
        Kind.SLOW_STORAGE,
        Kind.SLOW_UNIFORM,
        Kind.IMBALANCE,
        Kind.JITTER,
    }
)


class Status(Enum):
    """Whether the fault was still there at the end of what was seen."""

    ONGOING = "ongoing"
    RECOVERED = "recovered"
    INTERMITTENT = "intermittent"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a link."""

    rank: int | None = None
    node: str | None = None
    device: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """From one endpoint to another."""

    src: Endpoint
    dst: Endpoint


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or NIC of a node."""

    node: str | None
    device: str | None


@dataclass(frozen=True, slots=True)
class Culprits:
    """Who did it. Empty where nobody in particular did (jitter, imbalance)."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Where:
    """Where in the job. Each part None where not known; all indices from 0."""

    stage: int | None = None
    iteration: int | None = None
    training_step: int | None = None
    micro_batch: int | None = None
    phase: Phase | None = None
    op: str | None = None
    communicator: str | None = None
    seq: int | None = None
    peer: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when, ns since the epoch; ``end`` None while it lasts. Iterations inclusive."""

    start: int
    end: int | None
    first_iteration: int | None = None
    last_iteration: int | None = None


@dataclass(frozen=True, slots=True)
class Impact:
    """slowdown: factor of the iteration time (1.0 = none); seconds of the job; GPU-hours of all its ranks."""

    slowdown: float | None = None
    seconds_lost: float | None = None
    gpu_hours_lost: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason to believe a finding, with its number where it has one."""

    text: str
    value: float | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``summary`` is a whole sentence; ``confidence`` is 0..1."""

    kind: Kind
    severity: Severity
    summary: str
    status: Status = Status.ONGOING
    confidence: float = 1.0
    kind_alternatives: tuple[Kind, ...] = ()
    ambiguous: bool = False
    caused_by: tuple[str, ...] = ()
    culprits: Culprits = field(default_factory=Culprits)
    victims: tuple[int, ...] = ()
    where: Where = field(default_factory=Where)
    window: Window | None = None
    impact: Impact = field(default_factory=Impact)
    evidence: tuple[Evidence, ...] = ()
    exonerated: tuple[str, ...] = ()
    """What it is not, with the reason: "not the network: …"."""
    chain: tuple[str, ...] = ()
    """From a victim to the culprit, one "rank A waits for rank B in …" a step."""
    remedy: str = ""
    fingerprint: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Medians over undisturbed iterations and over replicas of one stage, ms; None where not seen.

    forward_ms, backward_ms  of one micro-batch (one model chunk of it);  work_ms, wait_ms  of an iteration
    """

    stage: int
    forward_ms: float | None
    backward_ms: float | None
    work_ms: float | None
    wait_ms: float | None


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command that would tell more or help, and why."""

    command: str
    why: str


@dataclass(frozen=True, slots=True)
class ClockInfo:
    """``t0`` ns since the epoch is time zero of reports; ``error_us`` bounds what alignment did not
    remove."""

    t0: int = 0
    reference: str | None = None
    error_us: float | None = None
    unaligned_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobSummary:
    """The job as it was seen."""

    ranks: int
    ranks_seen: int
    nodes: int | None = None
    layout: ParallelLayout | None = None
    layout_source: str | None = None
    """"inferred" or "config"."""
    schedule: Schedule | None = None
    micro_batches: int | None = None
    iterations: int | None = None
    iteration_numbering: str = "relative"
    iteration_median_ms: float | None = None
    iteration_p95_ms: float | None = None
    first_time: int | None = None
    last_time: int | None = None
    baseline: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """Arrays that reports draw; None where the trace could not give them.

    iteration            int64 [I]: iteration numbers
    iteration_start_s    float64 [I], iteration_ms float64 [I] (NaN where lost)
    work_ms              float32 [ranks, I]: own work of a rank in an iteration, without waits (NaN unknown)
    work_ranks           int32 [ranks]
    task_*               one iteration as a Gantt chart, one entry a task: rank, stage, micro_batch int32;
                         phase index into ``Phase``; start_s, end_s, wait_s float64 (wait before start; end
                         NaN = unfinished); critical bool
    lateness_ranks       int32 [members] of the culprit's group; lateness_ms float32 [members, calls];
                         lateness_iteration int32 [calls]
    series               queue depths and bandwidths as they were recorded, those near the culprit first
    """

    iteration: NDArray[np.int64] | None = None
    iteration_start_s: NDArray[np.float64] | None = None
    iteration_ms: NDArray[np.float64] | None = None
    work_ranks: NDArray[np.int32] | None = None
    work_ms: NDArray[np.float32] | None = None
    task_iteration: int | None = None
    task_rank: NDArray[np.int32] | None = None
    task_stage: NDArray[np.int32] | None = None
    task_micro_batch: NDArray[np.int32] | None = None
    task_phase: NDArray[np.uint8] | None = None
    task_start_s: NDArray[np.float64] | None = None
    task_end_s: NDArray[np.float64] | None = None
    task_wait_s: NDArray[np.float64] | None = None
    task_critical: NDArray[np.bool_] | None = None
    lateness_ranks: NDArray[np.int32] | None = None
    lateness_ms: NDArray[np.float32] | None = None
    lateness_iteration: NDArray[np.int32] | None = None
    series: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that is known after an analysis; the only thing that a report gets."""

    verdict: Verdict
    headline: str
    job: JobSummary
    findings: tuple[Finding, ...] = ()
    clock: ClockInfo = field(default_factory=ClockInfo)
    inputs: tuple[InputInfo, ...] = ()
    stages: tuple[StageTimes, ...] = ()
    alternatives: tuple[str, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    places: tuple[RankPlace, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    warnings: tuple[str, ...] = ()
    pictures: Pictures = field(default_factory=Pictures)
    timeline: Timeline | None = None
    """The calls around the first finding, only where somebody asked for them: they take much room."""

    @property
    def exit_code(self) -> int:
        """0 nothing wrong, 10 a fault of P2 or worse, 11 cannot tell."""
        if any(finding.severity <= Severity.P2 for finding in self.findings):
            return 10
        return 11 if self.verdict is Verdict.UNDECIDABLE else 0
