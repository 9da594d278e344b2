"""Profiles made by hand: a builder of Kineto's events, and a step small enough to work out on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megatrace.model.profile import RankProfile
from megatrace.readers.kineto import open_profiles

MAIN, BACKWARD = 1, 2
GEMM, RELU, ADD = "void gemm<float>(float*)", "void relu(float*)", "void add(float*)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"

Event = dict[str, Any]


def span(category: str, name: str, start: float, end: float, tid: int = MAIN, **args: Any) -> Event:
    """An activity of a host thread, µs."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 100,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def op(name: str, start: float, end: float, tid: int = MAIN, args: Event | None = None) -> Event:
    """An operator."""
    return span("cpu_op", name, start, end, tid, **(args or {}))


def call(name: str, start: float, end: float, correlation: int, tid: int = MAIN, **args: Any) -> Event:
    """A call of the CUDA runtime."""
    return span("cuda_runtime", name, start, end, tid, correlation=correlation, **args)


def work(
    name: str, start: float, end: float, correlation: int, stream: int = 7, kind: str = "kernel", **args: Any
) -> Event:
    """A kernel, copy or set."""
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": end - start,
        "args": {"device": 0, "stream": stream, "correlation": correlation, **args},
    }


def collective(elements: int, members: int, name: str = "allreduce", dtype: str = "Float") -> Event:
    """The arguments of a communication kernel."""
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": members,
        "dtype": dtype,
        "Process Group Name": "7",
        "Process Group Ranks": str(list(range(members))),
    }


def tiny() -> list[Event]:
    """One step of 700 µs.

    host      mm 0–100 | relu 110–150 | all_reduce 160–200 | synchronise 210–460 | add 500–560
    stream 7  gemm 40–240, relu 245–300,                                    add 530–700
    stream 13                       all-reduce 250–450
    """
    return [
        span("user_annotation", "ProfilerStep#1", 0, 600),
        op("aten::mm", 0, 100, args={"Input Dims": [[64, 32], [32, 8]], "Input type": ["float", "float"]}),
        call("cudaLaunchKernel", 20, 30, 1),
        op("aten::relu", 110, 150),
        call("cudaLaunchKernel", 120, 130, 2),
        op("c10d::allreduce_", 160, 200),
        call("cudaLaunchKernelExC", 170, 180, 3),
        call("cudaDeviceSynchronize", 210, 460, 4),
        op("aten::add", 500, 560),
        call("cudaLaunchKernel", 510, 520, 5),
        work(GEMM, 40, 240, 1),
        work(RELU, 245, 300, 2),
        work(ALL_REDUCE, 250, 450, 3, stream=13, **collective(250_000, 4)),
        work(ADD, 530, 700, 5),
    ]


def content(events: list[Event], **header: Any) -> bytes:
    """The file of these events."""
    info = {"backend": "nccl", "rank": 3, "world_size": 4}
    whole = {"schemaVersion": 1, "distributedInfo": info, **header, "traceEvents": events}
    return json.dumps(whole).encode()


def written(folder: Path, events: list[Event], name: str = "trace.json", **header: Any) -> Path:
    """The file itself."""
    path = folder / name
    path.write_bytes(content(events, **header))
    return path


def profiled(folder: Path, events: list[Event], **header: Any) -> RankProfile:
    """What the reader makes of these events."""
    (profile,), notes = open_profiles([written(folder, events, **header)])
    assert notes == ()
    return profile
