"""What the analysis of a profile says: where the time went, as plain values that any report can show.

All times are int ns, shares are not stored (they follow from times). Everything that could not be known is
None or an empty tuple, with a sentence in ``notes``. Tuples of rows are ordered by importance, the largest
first, unless they say otherwise; every list is complete and a report cuts it.

Accuses nobody: it says how much time which thing took, not whose fault that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from megatrace.model.events import Op


class TimeKind(Enum):
    """What a stretch of the critical path was spent on."""

    COMPUTE = "compute"
    """a kernel that computes"""
    COMMUNICATION = "communication"
    """a communication kernel that nothing hid: exposed"""
    MEMORY = "memory"
    """a copy or a set on the device"""
    LAUNCH = "launch"
    """from the launching call to the start of what it launched, and between kernels that were queued"""
    HOST = "host"
    """a host thread inside an operator or a call of the runtime that does not wait"""
    SYNCHRONISATION = "synchronisation"
    """a host call that waits for the device, after the device had finished or where no one knows for what"""
    DATA_LOADING = "data loading"
    """a host thread inside the data loader"""
    IDLE = "idle"
    """a host thread outside every operator: code that the profiler does not see"""


class IdleReason(Enum):
    """Why a stream stood still between two pieces of work."""

    HOST_WAIT = "host wait"
    """the next piece was not launched yet when the one before it ended"""
    KERNEL_WAIT = "kernel wait"
    """it was launched, and the gap is as short as the device needs between two kernels"""
    OTHER = "other"
    """it was launched, and yet it started late: it waited for another stream, or the device was taken"""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator (or runtime call, function, annotation) on the host, all ranks together.

    ``total`` is time between start and end, ``own`` ("self") without what it contains; ``device`` is time of
    the work that was launched directly in it, ``device_total`` of all work launched below it. ``by_rank``
    holds the own time of every rank that has it, ascending by rank. ``shape`` is the input shape as recorded
    where the row is one of ``Profile.shapes``, else "".
    """

    name: str
    count: int
    total: int
    own: int
    p50: int
    p95: int
    longest: int
    device: int
    device_total: int
    shape: str = ""
    by_rank: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel (or copy, set), all ranks together. ``kind`` is compute, communication or memory.

    ``operators`` are the names of the innermost operators that launched it, the most time first.
    """

    name: str
    kind: TimeKind
    count: int
    total: int
    p50: int
    p95: int
    shortest: int
    longest: int
    by_rank: tuple[tuple[int, int], ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamTime:
    """One stream of one rank between its first start and its last end: busy time by kind, and gaps by reason.

    ``exposed`` is time of communication on this stream while no compute kernel ran on any stream of the
    device.
    """

    rank: int
    stream: int
    count: int
    span: int
    compute: int
    communication: int
    memory: int
    exposed: int
    idle: tuple[tuple[IdleReason, int], ...]


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank's device between the first start and the last end of work (``span``).

    ``compute`` is time in which a compute kernel ran, whatever else; ``communication`` in which a
    communication kernel ran; ``overlap`` in which both; ``exposed`` = communication − overlap;
    ``memory_only`` in which nothing but copies ran; ``idle`` in which nothing ran. compute + exposed +
    memory_only + idle = span.
    """

    rank: int
    span: int
    compute: int
    communication: int
    overlap: int
    exposed: int
    memory_only: int
    idle: int
    bubble: int | None = None
    """of ``exposed``, waiting for another stage of the pipeline (Recv); None where that cannot be seen"""


@dataclass(frozen=True, slots=True)
class PathPiece:
    """A stretch of the critical path: ``start`` and ``end`` in ns on the rank's clock, what it was and where.

    ``lane`` is a host thread or stream in words; ``name`` the operator or kernel, "" for idle.
    """

    start: int
    end: int
    kind: TimeKind
    name: str
    lane: str
    rank: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How long the same work would have taken if one kind of time were ideal (took nothing)."""

    kind: TimeKind
    total: int
    saved: int


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The chain of activities that the window had to wait for, walked back from its last end.

    ``pieces`` are in order of time and cover ``start`` to ``end`` without a hole, so ``by_kind`` adds up to
    the window. ``busiest`` is the longest chain when time outside operators and in waiting calls counts
    nothing: the figure that HolisticTraceAnalysis calls the critical path. ``window`` names what was looked
    at.
    """

    rank: int
    window: str
    start: int
    end: int
    by_kind: tuple[tuple[TimeKind, int], ...]
    by_name: tuple[tuple[str, TimeKind, int], ...]
    pieces: tuple[PathPiece, ...]
    what_if: tuple[WhatIf, ...]
    busiest: int

    @property
    def length(self) -> int:
        """ns from the start to the end of the window."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Calls of one operation, group and size: durations over ranks and calls, bandwidth as nccl-tests count
    it.

    ``nbytes`` is the payload of one rank by the convention of nccl-tests, None where the recording does not
    say. A call's own time is that of its fastest rank where several ranks were recorded (the others waited
    for the last to come), else that of the one there is. ``algorithm`` and ``bus`` are bytes per second of
    the median call; ``link`` is what such GPUs send at most where the group lies within one machine,
    ``alike`` the median of ``bus`` over other groups of as many ranks with the same operation and size; None
    where that is not known.
    """

    op: Op
    group: str
    group_size: int | None
    nbytes: int | None
    count: int
    total: int
    exposed: int
    p50: int
    shortest: int
    longest: int
    algorithm: float | None
    bus: float | None
    ranks: tuple[int, ...]
    dtype: str = ""
    link: float | None = None
    alike: float | None = None


@dataclass(frozen=True, slots=True)
class QueueLength:
    """Launched and not yet started work on one stream: time-weighted mean, median and maximum; ``empty`` is
    the time in which nothing was queued or running, ``full`` the time at 1,024 and more (where launching
    blocks)."""

    rank: int
    stream: int
    mean: float
    p50: int
    longest: int
    empty: int
    full: int
    launches: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Allocated memory of one device of one rank: highest and last bytes, allocations, when it was highest
    (ns).
    """

    rank: int
    device: int
    peak: int | None
    reserved_peak: int | None
    last: int | None
    allocations: int
    frees: int
    peak_at: int | None


@dataclass(frozen=True, slots=True)
class Frame:
    """A node of the flame view: operators by where they were called, over all ranks and threads. In ns."""

    name: str
    total: int
    own: int
    device: int
    count: int
    children: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTime:
    """One profiled training step of one rank, as the program marked it; ns on the rank's clock."""

    rank: int
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ProfileInput:
    """One file as it was read."""

    path: str
    rank: int
    activities: int
    device_name: str


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """Everything that `megatrace profile` says of one run. ``source`` is what it was made from."""

    source: str
    inputs: tuple[ProfileInput, ...]
    ranks: tuple[RankTime, ...]
    """ascending by rank"""
    streams: tuple[StreamTime, ...] = ()
    """ascending by rank, then the busiest stream first"""
    steps: tuple[StepTime, ...] = ()
    operators: tuple[OperatorTime, ...] = ()
    shapes: tuple[OperatorTime, ...] = ()
    modules: tuple[OperatorTime, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    paths: tuple[CriticalPath, ...] = ()
    """ascending by rank"""
    job_path: CriticalPath | None = None
    """across ranks, where their clocks could be joined at common collectives"""
    collectives: tuple[CollectiveTime, ...] = ()
    queues: tuple[QueueLength, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    flame: Frame | None = None
    graphs: int = 0
    """launches of CUDA graphs"""
    world_size: int | None = None
    notes: tuple[str, ...] = ()
