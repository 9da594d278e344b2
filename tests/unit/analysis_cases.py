"""Small jobs for tests of the analysis: calls written by hand, tables filled by hand, healthy simulated
jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs, own_normal
from megatrace.analysis.roles import Role
from megatrace.analysis.templates import CallString
from megatrace.analysis.work import WorkTable
from megatrace.model.events import Events, Op
from megatrace.model.graph import IterationGraph
from megatrace.model.schedule import Phase, Schedule
from megatrace.model.trace import Coverage, Observable, Trace

MS = 1_000_000
T0 = 1_755_590_104_000_000_000
HEAVY = 4_194_304
"""Elements of an activation."""
GRADIENT = 100_000_000

TENSOR, PIPELINE, DATA, WORLD = 0x10, 0x20, 0x30, 0x40
"""Streams, as a text log shows them."""
TEXT = frozenset({Observable.ENQUEUE, Observable.COUNT, Observable.STREAM, Observable.SEQ})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a rank: what, how much, on which stream."""

    op: Op
    count: int = HEAVY
    stream: int = TENSOR


REDUCE = Call(Op.ALL_REDUCE)
SEND, RECV = Call(Op.SEND, stream=PIPELINE), Call(Op.RECV, stream=PIPELINE)
SCATTER = Call(Op.REDUCE_SCATTER, GRADIENT, DATA)
GATHER = Call(Op.ALL_GATHER, GRADIENT, DATA)
NORM = Call(Op.ALL_REDUCE, 1, WORLD)


def events_of(ranks: Mapping[int, Sequence[Call]], step_ns: int = MS, start_ns: int = T0) -> Events:
    """The calls of every rank, ``step_ns`` apart; operation numbers count per stream from 0."""
    columns: dict[str, list[Any]] = {name: [] for name in ("rank", "op", "seq", "enqueue", "count", "stream")}
    for rank, calls in sorted(ranks.items()):
        numbers: dict[int, int] = {}
        for i, call in enumerate(calls):
            number = numbers.get(call.stream, 0)
            numbers[call.stream] = number + 1
            row = (rank, int(call.op), number, start_ns + i * step_ns, call.count, call.stream)
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value)
    kinds = {"rank": np.int32, "op": np.uint8, "stream": np.uint64}
    return Events(**{name: np.asarray(column, kinds.get(name, np.int64)) for name, column in columns.items()})


def text_trace(events: Events) -> Trace:
    """A trace as a text call log would give it."""
    return Trace(events, coverage=Coverage(observables=TEXT))


def without(events: Events, rank: int, first: int, last: int) -> Events:
    """The same without the calls first..last−1 of a rank: what a ring overwrite leaves."""
    keep = np.ones(len(events), np.bool_)
    start = events.rows_of(rank).start
    keep[start + first : start + last] = False
    return events.take(keep)


@dataclass(frozen=True, slots=True)
class Truth:
    """Where the tasks of a fabricated call string really are; int [tasks], −1 for none."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    recv: NDArray[np.int64]
    send: NDArray[np.int64]
    last: NDArray[np.int64]


def call_string(
    schedule: Schedule,
    stage: int,
    forward: int,
    backward: int,
    *,
    loss: int = 0,
    before: int = 0,
    after: int = 0,
) -> tuple[CallString, Truth]:
    """One iteration of a stage, written from the schedule's program.

    ``forward`` and ``backward``: inner calls of a task. ``loss``: small reductions that end a forward of the
    last stage's last chunk. ``before`` and ``after``: bookkeeping calls around the tasks.
    """
    calls: list[tuple[int, int, int]] = [(Role.OTHER, Op.ALL_REDUCE, 1)] * before
    tasks = schedule.tasks(stage)
    index = {(task.phase, task.micro_batch, task.chunk): i for i, task in enumerate(tasks)}
    columns = {name: np.full(len(tasks), -1, np.int64) for name in ("begin", "end", "recv", "send", "last")}
    for step in schedule.program(stage):
        is_forward = step.action.name.endswith("FORWARD")
        phase = Phase.FORWARD if is_forward else Phase.BACKWARD
        task = index[phase, step.micro_batch, step.chunk]
        if not step.action.is_compute:
            columns["send" if step.action.is_send else "recv"][task] = len(calls)
            calls.append((Role.PIPELINE, Op.SEND if step.action.is_send else Op.RECV, HEAVY))
            continue
        inner = [(int(Role.TENSOR), int(Op.ALL_REDUCE), HEAVY)] * (forward if is_forward else backward)
        if is_forward and stage == schedule.pp - 1 and step.chunk == schedule.vpp - 1:
            inner += [(int(Role.TENSOR), int(Op.ALL_REDUCE), 4096)] * loss
        columns["begin"][task] = len(calls)
        calls += inner
        columns["last"][task] = len(calls) - 1
        columns["end"][task] = len(calls)
    calls += [(Role.DATA, Op.REDUCE_SCATTER, GRADIENT)] + [(Role.OTHER, Op.ALL_REDUCE, 1)] * after
    role, op, count = (np.asarray(column) for column in zip(*calls, strict=True))
    string = CallString(stage, role.astype(np.uint8), op.astype(np.uint8), count.astype(np.int64))
    return string, Truth(**columns)


def costs_of(schedule: Schedule, work: NDArray[np.float64], **changes: Any) -> Costs:
    """Costs with this work [K, S, D, M, T], normal at its own quick level, and no communication."""
    k, s, d, m, t = work.shape
    graph = IterationGraph.of(schedule)
    zero = np.zeros((k, s, d, t))
    costs = Costs(
        graph=graph,
        iterations=np.arange(k),
        work=work,
        normal=np.array(np.broadcast_to(own_normal(work), work.shape)),
        comm=zero,
        normal_comm=zero,
        stagger=zero,
        transfer=np.zeros(work.shape),
        normal_transfer=np.zeros(work.shape),
        entry=np.zeros((k, s, d, m)),
        sync=np.zeros((k, s, d, m)),
        normal_sync=np.zeros((k, s, d, m)),
        calls=np.zeros((s, t)),
        measured=graph.makespan(work.max(axis=3)),
        usual=float(np.median(graph.makespan(work.max(axis=3)))),
    )
    return replace(costs, **changes)


def table_of(work: NDArray[np.float64], **changes: object) -> WorkTable:
    """A table of host times in which only the groups' work is known."""
    k, s, d, m, _ = work.shape
    unknown = np.full(work.shape, np.nan)
    table = WorkTable(
        t0=0,
        grid=np.arange(s * d * m, dtype=np.int32).reshape(s, d, m),
        begin=unknown,
        end=unknown,
        own=None,
        group=work.max(axis=3),
        offset=np.zeros(work.shape),
        pace=unknown,
        step_pace=np.full((k, s, d, m), np.nan),
        calls=np.zeros((s, work.shape[4])),
        comm=None,
        wait=unknown,
        transfer=unknown,
        entry=np.zeros((k, s, d, m)),
        stagger=None,
        sync=None,
        iteration=np.full(k, 1.0),
        anchor=np.arange(k, dtype=float),
    )
    return replace(table, **changes)  # type: ignore[arg-type]


def steady_work(
    schedule: Schedule,
    iterations: int,
    replicas: int = 1,
    members: int = 1,
    noise: float = 0.0,
    seed: int = 0,
) -> NDArray[np.float64]:
    """[K, S, D, M, T] seconds: forwards of 10 ms, backwards of 20 ms, spread by ``noise``."""
    shape = (iterations, schedule.pp, replicas, members, 2 * schedule.total)
    work = np.empty(shape)
    for stage in range(schedule.pp):
        for i, task in enumerate(schedule.tasks(stage)):
            work[:, stage, ..., i] = 0.010 if task.phase is Phase.FORWARD else 0.020
    return np.asarray(work * (1 + noise * np.random.default_rng(seed).standard_normal(shape)))
