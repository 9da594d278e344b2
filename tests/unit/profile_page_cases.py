"""A small profile with everything that its page and trace draw, and one whose every string is an attack."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import count
from typing import Any

from megatrace.model.events import Op
from megatrace.model.profile_result import (
    CollectiveTime,
    CriticalPath,
    Frame,
    IdleReason,
    KernelTime,
    MemoryUse,
    OperatorTime,
    PathPiece,
    ProfileInput,
    ProfileResult,
    QueueLength,
    RankTime,
    StreamTime,
    TimeKind,
    WhatIf,
)

MS = 1_000_000
MAIN, STREAM = "thread 1 (main)", "stream 7"


def piece(start: int, end: int, kind: TimeKind, name: str, lane: str = MAIN) -> PathPiece:
    return PathPiece(start * MS, end * MS, kind, name, lane, 0)


def path(rank: int = 0) -> CriticalPath:
    pieces = (
        piece(0, 30, TimeKind.HOST, "aten::mm"),
        piece(30, 32, TimeKind.LAUNCH, "gemm", STREAM),
        piece(32, 72, TimeKind.COMPUTE, "gemm", STREAM),
        piece(72, 92, TimeKind.COMMUNICATION, "ncclDevKernel_AllReduce", STREAM),
        piece(92, 100, TimeKind.IDLE, ""),
    )
    times = {one.kind: one.end - one.start for one in pieces}
    return CriticalPath(
        rank=rank,
        window="ProfilerStep#5",
        start=0,
        end=100 * MS,
        by_kind=tuple(sorted(times.items(), key=lambda item: -item[1])),
        by_name=tuple((one.name, one.kind, one.end - one.start) for one in pieces),
        pieces=pieces,
        what_if=(
            WhatIf(TimeKind.COMMUNICATION, 80 * MS, 20 * MS),
            WhatIf(TimeKind.IDLE, 92 * MS, 8 * MS),
        ),
        busiest=92 * MS,
    )


def device(rank: int) -> RankTime:
    return RankTime(rank, 100 * MS, 50 * MS, 30 * MS, 10 * MS, 20 * MS, 5 * MS, 25 * MS)


def operator(name: str, own: int, calls: int = 10) -> OperatorTime:
    each = own * MS // calls
    return OperatorTime(
        name, calls, own * MS, own * MS, each, each, each, own * MS, own * MS, "", ((0, own * MS),)
    )


def kernel(name: str, total: int, kind: TimeKind = TimeKind.COMPUTE, calls: int = 10) -> KernelTime:
    each = total * MS // calls
    return KernelTime(
        name, kind, calls, total * MS, each, each, each, each, ((0, total * MS),), ("aten::mm",)
    )


def collective(nbytes: int, p50: int, bus: float) -> CollectiveTime:
    return CollectiveTime(
        Op.ALL_REDUCE,
        "dp",
        8,
        nbytes,
        4,
        4 * p50 * MS,
        2 * p50 * MS,
        p50 * MS,
        p50 * MS,
        p50 * MS,
        bus / 1.75,
        bus,
        (0,),
    )


def everything() -> ProfileResult:
    """A profile of two ranks."""
    backward = Frame("autograd::engine: MmBackward0", 40 * MS, 40 * MS, 30 * MS, 10)
    step = Frame(
        "ProfilerStep#5",
        100 * MS,
        30 * MS,
        60 * MS,
        1,
        (Frame("aten::mm", 30 * MS, 30 * MS, 20 * MS, 10), backward),
    )
    return ProfileResult(
        source="kineto",
        inputs=(ProfileInput("traces/rank0.json", 0, 1_000, "NVIDIA H100"),),
        ranks=(device(0), device(1)),
        streams=(
            StreamTime(
                0, 7, 20, 100 * MS, 50 * MS, 30 * MS, 5 * MS, 20 * MS, ((IdleReason.HOST_WAIT, 25 * MS),)
            ),
        ),
        operators=(operator("aten::mm", 30), operator("aten::add_", 5)),
        modules=(operator("Block_3", 20, 1),),
        kernels=(kernel("gemm", 40), kernel("ncclDevKernel_AllReduce", 20, TimeKind.COMMUNICATION, 4)),
        paths=(path(0), path(1)),
        collectives=(collective(1 << 20, 1, 12e9), collective(64 << 20, 4, 210e9)),
        queues=(QueueLength(0, 7, 3.5, 2, 40, 10 * MS, 0, 20),),
        memory=(MemoryUse(0, 0, 40 << 30, 60 << 30, 30 << 30, 100, 90, 5 * MS),),
        flame=Frame("all", 100 * MS, 0, 60 * MS, 1, (step,)),
        world_size=16,
        notes=("1 line was cut off.",),
    )


def poisoned(value: Any, attacks: tuple[str, ...], number: Any = None) -> Any:
    """The same value with an attack for every string."""
    number = number if number is not None else count()
    if isinstance(value, str) and not isinstance(value, Enum):
        return attacks[next(number) % len(attacks)]
    if isinstance(value, tuple):
        return tuple(poisoned(item, attacks, number) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {item.name: poisoned(getattr(value, item.name), attacks, number) for item in fields(value)}
        return replace(value, **changed)
    return value
