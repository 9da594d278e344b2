"""What a profiler recorded of a job: timed activities of host threads and device streams, as columns.

One ``RankProfile`` per rank. A row is one activity with a start and a duration: an operator of the framework,
a call of the CUDA runtime, a kernel, a copy. Rows are sorted by lane, then start, then the longer first, so
that a host thread is a slice in which an activity stands before those that it contains. There are no row
objects: a step of a large model has a million activities.

Is not ``Trace``: that holds communication calls of all ranks, this holds everything that a few ranks did for
a few steps. Does not judge; ``model.profile_result`` has what the analysis makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import Op
from megatrace.model.run_settings import Setting

I8 = NDArray[np.int64]
I4 = NDArray[np.int32]
U1 = NDArray[np.uint8]

NONE = -1
"""No value: of a correlation, a stream, a shape, a size, an index."""


class Activity(IntEnum):
    """What kind of thing a row is."""

    OTHER = 0
    OPERATOR = 1
    """an operator of the framework on a host thread (``cpu_op``)"""
    FUNCTION = 2
    """a Python function on a host thread (recorded ``with_stack``)"""
    ANNOTATION = 3
    """a named range that the program set on a host thread (``record_function``, a profiler step)"""
    RUNTIME = 4
    """a call of the CUDA (HIP) runtime or driver on a host thread"""
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    SYNC = 8
    """that a host call or a stream waited for a stream, as the profiler saw it (``cuda_sync``)"""
    DEVICE_ANNOTATION = 9
    """a named range as the kernels launched in it cover it on a stream"""
    OVERHEAD = 10
    """time that the profiler itself took"""

    @property
    def on_device(self) -> bool:
        """Work of a stream."""
        return self in DEVICE_WORK


DEVICE_WORK = (Activity.KERNEL, Activity.MEMCPY, Activity.MEMSET)
HOST_WORK = (Activity.OPERATOR, Activity.RUNTIME)


class Work(IntEnum):
    """What a piece of device work is for."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2


@dataclass(frozen=True, slots=True)
class Lane:
    """A host thread (``process`` and ``thread`` of the system) or a stream of a device (device and stream).

    ``label`` is what the recording calls it, "" where it says nothing.
    """

    device: bool
    process: int
    thread: int
    label: str = ""

    @property
    def title(self) -> str:
        """How a report calls it."""
        if self.device:
            return f"stream {self.thread}"
        return self.label or f"thread {self.thread}"


@dataclass(frozen=True, slots=True)
class Collective:
    """What a communication kernel carried, as its arguments say it. Elements of one rank, before and after.

    ``group`` is the name of the process group, ``ranks`` its members in global numbers (empty where the
    recording does not list them); ``None`` and "" are unknown. ``element`` is bytes of one element.
    """

    op: Op
    group: str = ""
    group_size: int | None = None
    ranks: tuple[int, ...] = ()
    dtype: str = ""
    element: int | None = None
    elements_in: int | None = None
    elements_out: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """Timed rows of one rank, sorted by lane, start, and the longer first; all columns of one length.

    lane         int32 index into ``RankProfile.lanes``
    kind         uint8, an ``Activity``
    name         int32 index into ``RankProfile.names``
    start        int64 ns on the recording's clock (``RankProfile.epoch`` makes it absolute)
    duration     int64 ns, 0 or more
    correlation  int64: ties a runtime call to the work that it launched, a graph launch to many; or ``NONE``
    stream       int32 device stream, ``NONE`` on the host
    external     int64: ties a kernel or a runtime call to the operator that it was called in, or ``NONE``
    shape        int32 index into ``RankProfile.shapes``, or ``NONE``
    nbytes       int64 bytes of a copy or a set, or ``NONE``
    collective   int32 index into ``RankProfile.collectives``, or ``NONE``
    wait_stream  int32: for ``SYNC`` the stream that was waited for, or ``NONE``
    wait_record  int64: for ``SYNC`` the correlation of the event record that was waited for, or ``NONE``
    graph        int64 id of the CUDA graph node of a kernel, 0 or ``NONE`` where it was launched singly
    """

    lane: I4
    kind: U1
    name: I4
    start: I8
    duration: I8
    correlation: I8
    stream: I4
    external: I8
    shape: I4
    nbytes: I8
    collective: I4
    wait_stream: I4
    wait_record: I8
    graph: I8

    def __post_init__(self) -> None:
        n = len(self.lane)
        for name in self.column_names():
            if len(getattr(self, name)) != n:
                raise ValueError(f"column {name} has {len(getattr(self, name))} rows, lane has {n}")

    def __len__(self) -> int:
        return len(self.lane)

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """The columns, in the order of the constructor."""
        return tuple(item.name for item in fields(cls))

    @property
    def end(self) -> I8:
        """int64 ns."""
        return self.start + self.duration

    def take(self, rows: NDArray[Any]) -> Activities:
        """The rows that a mask or an index array names, in its order."""
        return Activities(*(getattr(self, name)[rows] for name in self.column_names()))

    def sorted(self) -> Activities:
        """The same rows in the order that this type promises."""
        return self.take(np.lexsort((-self.duration, self.start, self.lane)))


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEvents:
    """Changes of allocated device memory, ascending in time; all arrays of one length.

    time int64 ns; device int32; change int64 bytes (negative: freed); allocated and reserved int64 bytes
    after it, ``NONE`` where not recorded.
    """

    time: I8
    device: I4
    change: I8
    allocated: I8
    reserved: I8

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, eq=False)
class RankProfile:
    """Everything that the profiler of one rank recorded. Times are int64 ns on one clock of the recording.

    ``epoch`` is ns since 1970 at time 0 of the recording, 0 where times are absolute already or nobody knows.
    ``device_name`` is the type of the GPU, "" where not recorded. ``lines`` counts what the file held in all
    (flow arrows and names included), ``bad`` what could not be used, ``notes`` are sentences.
    """

    rank: int
    path: str
    activities: Activities
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    shapes: tuple[str, ...] = ()
    collectives: tuple[Collective, ...] = ()
    memory: MemoryEvents | None = None
    world_size: int | None = None
    device_name: str = ""
    gpus: int = 0
    """of its machine, as the profiler saw them; 0 where not recorded"""
    epoch: int = 0
    rank_known: bool = True
    lines: int = 0
    bad: int = 0
    notes: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    """what the recording says of software, devices and of how it was made"""

    @cached_property
    def work(self) -> U1:
        """uint8 [names]: the ``Work`` that a kernel, copy or set of that name is."""
        return np.array([work_of(name) for name in self.names], np.uint8)

    @cached_property
    def device_rows(self) -> NDArray[np.intp]:
        """Rows that are work of a stream, in order of rows."""
        return np.flatnonzero(np.isin(self.activities.kind, DEVICE_WORK))

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end of work on host or device in ns; (0, 0) where there is none."""
        rows = np.isin(self.activities.kind, (*DEVICE_WORK, *HOST_WORK))
        if not rows.any():
            return 0, 0
        return int(self.activities.start[rows].min()), int(self.activities.end[rows].max())


def work_of(name: str) -> Work:
    """What a kernel, copy or set of this name is for. NCCL, RCCL and one-sided copies name themselves."""
    if name.startswith(("Memcpy", "Memset", "dma")):
        return Work.MEMORY
    # NCCL's are ncclKernel_… and ncclDevKernel_… (RCCL's likewise); NVSHMEM's and DeepEP's say what they are.
    if name.startswith(("nccl", "rccl", "mscclKernel", "nvshmem", "nvshmemi", "deep_ep::")):
        return Work.COMMUNICATION
    if "deep_ep::" in name and name.startswith("void "):
        return Work.COMMUNICATION
    return Work.COMPUTE
