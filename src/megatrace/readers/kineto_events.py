"""Events of a PyTorch profile turned into the columns of ``model.profile``.

The words are Kineto's of several years: categories (``cpu_op``, ``cuda_runtime``, ``kernel``; before 2022
``Operator``, ``Runtime``, ``Kernel``), what ties a kernel to its launch (``correlation``), to its operator
(``External id``), what a collective carried. Unknown categories are kept as OTHER, so that nothing
disappears.

Does not read a file and does not judge.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.profile import NONE, Activities, Activity, Collective, Lane, MemoryEvents
from megatrace.model.profile_names import element_bytes, operation

KINDS = {
    "cpu_op": Activity.OPERATOR,
    "operator": Activity.OPERATOR,
    "python_function": Activity.FUNCTION,
    "user_annotation": Activity.ANNOTATION,
    "cuda_runtime": Activity.RUNTIME,
    "cuda_driver": Activity.RUNTIME,
    "hip_runtime": Activity.RUNTIME,
    "xpu_runtime": Activity.RUNTIME,
    "mtia_runtime": Activity.RUNTIME,
    "privateuse1_runtime": Activity.RUNTIME,
    "runtime": Activity.RUNTIME,
    "kernel": Activity.KERNEL,
    "gpu_memcpy": Activity.MEMCPY,
    "memcpy": Activity.MEMCPY,
    "gpu_memset": Activity.MEMSET,
    "memset": Activity.MEMSET,
    "cuda_sync": Activity.SYNC,
    "gpu_user_annotation": Activity.DEVICE_ANNOTATION,
    "overhead": Activity.OVERHEAD,
}
"""Category in lower case -> what it is."""
FLUSH = 1 << 16
"""Rows kept as Python tuples before they become an array."""
MAX_TIME = 1 << 62
"""ns; what is beyond is no time but damage."""
MAX_STREAM = (1 << 31) - 1
"""Numbers of streams that fit the column."""
_WIDTH = len(Activities.column_names())


def nanoseconds(value: object) -> int:
    """Microseconds as they stand in the file (an int, or the text of a number) in ns. Raises ValueError."""
    if type(value) is int:
        ns = value * 1000
    elif type(value) is str:
        if value[-4:-3] == "." and value[-3:].isdecimal() and value[:1].isdecimal():
            return _within(int(value[:-4] + value[-3:]))  # as Kineto writes it
        whole, _, part = value.partition(".")
        if part.isdecimal() and (whole.isdecimal() or whole[:1] == "-"):
            small = int((part + "000")[:3])
            ns = int(whole) * 1000 + (-small if whole[0] == "-" else small)
        else:
            ns = round(float(value) * 1000)
    else:
        raise ValueError("no number")
    return _within(ns)


def _within(ns: int) -> int:
    if not -MAX_TIME < ns < MAX_TIME:
        raise ValueError("no time")
    return ns


def whole(value: object) -> int:
    """An int of the file (also one that stands as text), ``NONE`` for anything else or beyond 64 bits."""
    if type(value) is int and 0 <= value < MAX_TIME:
        return value
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return NONE
    return number if -MAX_TIME < number < MAX_TIME else NONE


class Interned:
    """Values by number, in order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, value: Any) -> int:
        """The number of a value."""
        return self.numbers.setdefault(value, len(self.numbers))

    def values(self) -> tuple[Any, ...]:
        """All values in order of their numbers."""
        return tuple(self.numbers)


class Columns:
    """Takes events one by one, gives the columns of a rank."""

    def __init__(self) -> None:
        self.bad = 0
        self.names = Interned()
        self.shapes = Interned()
        self.collectives = Interned()
        self.lanes = Interned()
        self.labels: dict[tuple[Any, Any], str] = {}
        self._threads = Interned()
        self._rows: list[tuple[int, ...]] = []
        self._parts: list[NDArray[np.int64]] = []
        self._memory: list[tuple[int, int, int, int, int]] = []
        self._kinds: dict[object, Activity | None] = {"Trace": None}

    def add(self, event: dict[str, Any]) -> None:
        """One event; what has no use here is left out, what is damaged counted."""
        phase = event.get("ph")
        if phase == "X":
            try:
                self._interval(event)
            except (ValueError, TypeError, OverflowError):
                self.bad += 1
        elif phase == "M":
            self._label(event)
        elif phase == "i" and event.get("name") == "[memory]":
            self._allocation(event)

    def _kind(self, category: object) -> Activity | None:
        if category not in self._kinds:
            self._kinds[category] = KINDS.get(str(category).lower(), Activity.OTHER)
        return self._kinds[category]

    def _interval(self, event: dict[str, Any]) -> None:
        kind = self._kind(event.get("cat"))
        if kind is None:
            return
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur", 0))
        if duration < 0:
            raise ValueError("ends before it starts")
        args = event.get("args")
        if type(args) is not dict:
            args = {}
        get = args.get
        stream, shape, size, wait_stream, wait_record, graph = NONE, NONE, NONE, NONE, NONE, NONE
        collective = self.collectives(_collective(get)) if "Collective name" in args else NONE
        if Activity.KERNEL <= kind <= Activity.SYNC:
            stream = whole(get("stream", NONE))
            if not 0 <= stream < MAX_STREAM:
                stream = NONE  # a wait for all streams has 2³² − 1
            size, graph = whole(get("bytes", NONE)), whole(get("graph node id", NONE))
            lane = self.lanes((True, whole(get("device", event.get("pid"))), stream))
            if kind is Activity.SYNC:
                wait_stream = whole(get("wait_on_stream", NONE))
                wait_record = whole(get("wait_on_cuda_event_record_corr_id", NONE))
                wait_stream = wait_stream if wait_stream < MAX_STREAM else NONE
        else:
            if "Input Dims" in args or "Input dims" in args:
                shape = self.shapes(_shape(get))
            device = kind is Activity.DEVICE_ANNOTATION
            lane = self.lanes((device, self._number(event.get("pid")), self._number(event.get("tid"))))
        name = self.names(str(event.get("name", "")))
        correlation, external = whole(get("correlation", NONE)), whole(get("External id", NONE))
        self._rows.append(
            (
                *(lane, kind, name, start, duration, correlation, stream, external),
                *(shape, size, collective, wait_stream, wait_record, graph),
            )
        )
        if len(self._rows) >= FLUSH:
            self._flush()

    def _number(self, value: object) -> int:
        """A process or thread as a number; names get small negative ones, which no system uses."""
        return value if type(value) is int and abs(value) < MAX_TIME else -2 - self._threads(str(value))

    def _label(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if event.get("name") == "thread_name" and isinstance(args, dict):
            place = self._number(event.get("pid")), self._number(event.get("tid"))
            self.labels[place] = str(args.get("name", "")).strip()

    def _allocation(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        get: Callable[..., Any] = args.get if isinstance(args, dict) else {}.get
        if whole(get("Device Type", 1)) == 0:
            return  # host memory
        try:
            time = nanoseconds(event.get("ts"))
        except ValueError:
            self.bad += 1
            return
        totals = whole(get("Total Allocated", NONE)), whole(get("Total Reserved", NONE))
        self._memory.append((time, whole(get("Device Id", 0)), whole(get("Bytes", 0)), *totals))

    def _flush(self) -> None:
        if self._rows:
            self._parts.append(np.array(self._rows, np.int64))
            self._rows = []

    def activities(self) -> Activities:
        """All intervals, sorted."""
        self._flush()
        table = np.concatenate(self._parts) if self._parts else np.empty((0, _WIDTH), np.int64)
        kinds: list[Any] = [np.int32, np.uint8, np.int32, np.int64, np.int64, np.int64, np.int32]
        kinds += [np.int64, np.int32, np.int64, np.int32, np.int32, np.int64, np.int64]
        columns = (table[:, place].astype(kind) for place, kind in enumerate(kinds))
        return Activities(*columns).sorted()

    def all_lanes(self) -> tuple[Lane, ...]:
        """Threads and streams by number."""
        return tuple(
            Lane(device, process, thread, self.labels.get((process, thread), ""))
            for device, process, thread in self.lanes.values()
        )

    def memory(self) -> MemoryEvents | None:
        """Allocations in order of time, None where none was recorded."""
        if not self._memory:
            return None
        table = np.array(sorted(self._memory), np.int64)
        return MemoryEvents(table[:, 0], table[:, 1].astype(np.int32), *(table[:, at] for at in (2, 3, 4)))


def _shape(get: Callable[..., Any]) -> str:
    """Input shapes and types as "float[2400,64], int[]"."""
    dims, types = get("Input Dims", get("Input dims")), get("Input type", [])
    if not isinstance(dims, list):
        return str(dims)
    kinds = types if isinstance(types, list) else []
    parts = []
    for at, dim in enumerate(dims):
        kind = str(kinds[at]) if at < len(kinds) else ""
        sizes = str(dim).replace(" ", "") if isinstance(dim, list) else ""
        if sizes not in ("", "[]") or kind:
            parts.append(f"{kind}{'' if sizes == '[]' else sizes}")
    return ", ".join(parts)


def _collective(get: Callable[..., Any]) -> Collective:
    members = re.findall(r"\d+", str(get("Process Group Ranks", "")))
    first, stride, size = get("Global rank start"), get("Global rank stride"), whole(get("Group size", NONE))
    ranks = tuple(int(rank) for rank in members)
    if not ranks and type(first) is int and type(stride) is int and 0 < size < 1 << 20 and stride > 0:
        ranks = tuple(range(first, first + stride * size, stride))
    if len(ranks) != size:
        ranks = ()  # long lists are abridged in the recording
    before, after = whole(get("In msg nelems", NONE)), whole(get("Out msg nelems", NONE))
    dtype = str(get("dtype", ""))
    return Collective(
        op=operation(str(get("Collective name", "")).lstrip("_")),
        group=str(get("Process Group Name", "")),
        group_size=size if size > 0 else None,
        ranks=ranks,
        dtype=dtype,
        element=element_bytes(dtype),
        elements_in=before if before >= 0 else None,
        elements_out=after if after >= 0 else None,
    )
