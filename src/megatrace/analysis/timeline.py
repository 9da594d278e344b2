"""Gathers the calls, transfers, phases and the critical path of a stretch of a job as a ``Timeline``.

Everything here was worked out before (``work``, ``costs``, ``locate``); this puts it side by side for one
stretch and in the time of the recording. The iteration that nobody finished has no row in the tables of
work: its tasks are read off the position of each call in the usual string of its stage.

Draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.locate import Locator, communicator_names, with_peers
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.timeline_cut import MAX_CALLS, Cut, choose
from megatrace.analysis.work import WorkTable
from megatrace.model.events import NO_PEER, UNSEEN, Events, Op
from megatrace.model.finding import Finding
from megatrace.model.schedule import Phase
from megatrace.model.timeline import Tasks, Timeline

I8 = NDArray[np.int64]
F8 = NDArray[np.float64]
_PHASE = {phase: index for index, phase in enumerate(Phase)}
_TASKS = tuple(field.name for field in fields(Tasks))


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What was worked out; ``times`` and ``anchors`` float64 [K] seconds after ``t0`` (NaN where lost)."""

    resolved: Resolved
    phases: PhaseTable | None
    work: WorkTable | None
    costs: Costs | None
    times: F8
    anchors: F8
    t0: int


def gather(known: Known, findings: Sequence[Finding], limit: int = MAX_CALLS) -> Timeline | None:
    """The stretch around the first finding; None where there are no calls."""
    resolved = known.resolved
    if not len(resolved.trace.events):
        return None
    numbers, starts, ends = _iterations(known)
    bounds = np.append(starts[:1], ends)
    cut = choose(resolved, bounds, findings, limit, known.t0)
    trace = with_peers(resolved, known.phases)
    rows = _rows(trace.events, cut)
    events = trace.events.take(rows)
    senders, receivers = _transfers(resolved, trace.events, rows)
    shown = (ends >= cut.start) & (starts <= cut.end)
    _, offsets = trace.events.offsets()
    kept = np.isin(trace.events.ranks(), cut.ranks)
    return Timeline(
        start=cut.start,
        end=cut.end,
        events=events,
        ranks=cut.ranks,
        last_call=trace.events.enqueue[offsets[1:][kept] - 1],
        communicators=communicator_names(trace.communicators, resolved.layout),
        senders=senders,
        receivers=receivers,
        tasks=_tasks(known, cut),
        iteration=numbers[shown],
        iteration_start=starts[shown],
        iteration_end=ends[shown],
        note=cut.note,
    )


def _iterations(known: Known) -> tuple[I8, I8, I8]:
    """(number, start, end) of every iteration of which both are known, ns, ascending."""
    seen = np.flatnonzero(~np.isnan(known.times) & ~np.isnan(known.anchors))
    ends = known.t0 + np.round(known.anchors[seen] * 1e9).astype(np.int64)
    starts = ends - np.round(known.times[seen] * 1e9).astype(np.int64)
    return seen.astype(np.int64), starts, ends


def _rows(events: Events, cut: Cut) -> I8:
    inside = (events.enqueue >= cut.start) & (events.enqueue <= cut.end)
    if len(cut.ranks) < len(events.ranks()):
        inside &= np.isin(events.rank, cut.ranks)
    return np.flatnonzero(inside)


def _iteration_of(resolved: Resolved, events: Events, rows: I8) -> I8:
    """int64 [rows]: the iteration that each row stands in, 0 where there are none."""
    it = resolved.iterations
    if it is None:
        return np.zeros(len(rows), np.int64)
    following = np.searchsorted(it.row, rows, "left")
    at = np.minimum(following, len(it.row) - 1)
    before = np.maximum(following - 1, 0)
    own = (following < len(it.row)) & (it.rank[at] == events.rank[rows])
    return np.asarray(np.where(own, it.number[at], it.number[before] + 1))


def _transfers(resolved: Resolved, events: Events, rows: I8) -> tuple[I8, I8]:
    """Positions within ``rows`` of the Send and the Recv of each transfer.

    The n-th Send of an iteration from one rank to another is the n-th Recv there, where both made as many; in
    the iteration that the recording ends in, one side may be ahead.
    """
    if events.peer is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    op, peer = events.op[rows], events.peer[rows].astype(np.int64)
    at = np.flatnonzero(((op == Op.SEND) | (op == Op.RECV)) & (peer != NO_PEER))
    if not len(at):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    own = events.rank[rows[at]].astype(np.int64)
    sends = op[at] == Op.SEND
    number = _iteration_of(resolved, events, rows[at])
    source, target = np.where(sends, own, peer[at]), np.where(sends, peer[at], own)
    _, key = np.unique(np.stack([source, target, number]), axis=1, return_inverse=True)
    key = key.reshape(-1)
    sent, received = _ordinal(key[sends]), _ordinal(key[~sends])
    size = int(key.max()) + 1
    counts = np.bincount(key[sends], minlength=size), np.bincount(key[~sends], minlength=size)
    last = np.zeros(size, np.bool_)
    last[key[number == number.max()]] = True
    usable = (counts[0] == counts[1]) | last
    left, right = at[sends][usable[key[sends]]], at[~sends][usable[key[~sends]]]
    width = max(int(counts[0].max()), int(counts[1].max())) + 1
    left_key = key[sends][usable[key[sends]]] * width + sent[usable[key[sends]]]
    right_key = key[~sends][usable[key[~sends]]] * width + received[usable[key[~sends]]]
    _, i, j = np.intersect1d(left_key, right_key, assume_unique=True, return_indices=True)
    return left[i], right[j]


def _ordinal(key: NDArray[np.intp]) -> NDArray[np.intp]:
    """How many equal keys stand before each."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    counts = np.diff(np.append(first, len(ordered)))
    result = np.empty(len(key), np.intp)
    result[order] = np.arange(len(key)) - np.repeat(first, counts)
    return result


def _tasks(known: Known, cut: Cut) -> Tasks:
    tasks = _joined([_finished(known, cut), unfinished(known, cut.ranks)])
    order = np.lexsort((tasks.start, tasks.rank))
    return Tasks(**{name: getattr(tasks, name)[order] for name in _TASKS})


def _finished(known: Known, cut: Cut) -> Tasks:
    """Tasks of the complete iterations in the stretch."""
    table, phases = known.work, known.phases
    if table is None or phases is None:
        return Tasks.empty()
    place = {int(rank): index for index, rank in np.ndenumerate(table.grid)}
    flat = phases.schedule is ONE_TASK
    begins, ends = known.t0 + (known.anchors - known.times) * 1e9, known.t0 + known.anchors * 1e9
    iterations = np.flatnonzero((ends >= cut.start) & (begins <= cut.end))
    critical = {int(k): _critical(known.costs, int(k)) for k in iterations}
    parts: list[Tasks] = []
    for rank in (int(rank) for rank in cut.ranks):
        if rank not in place:
            continue
        s, d, m = place[rank]
        tasks = phases.tasks[s][:1] if flat else phases.tasks[s]
        for k in iterations.tolist():
            t = slice(0, len(tasks))
            start, end, wait = (column[k, s, d, m, t] for column in (table.begin, table.end, table.wait))
            on_path = np.isin(np.arange(len(tasks)), critical[k].get((s, d), ()))
            seen = ~np.isnan(start) & ~np.isnan(end)
            parts.append(
                Tasks(
                    rank=np.full(len(tasks), rank, np.int32)[seen],
                    stage=np.full(len(tasks), s, np.int32)[seen],
                    iteration=np.full(len(tasks), k, np.int32)[seen],
                    micro_batch=np.asarray([-1 if flat else x.micro_batch for x in tasks], np.int32)[seen],
                    phase=np.asarray([_PHASE[Phase.OTHER if flat else x.phase] for x in tasks], np.uint8)[
                        seen
                    ],
                    start=_ns(table.t0, start[seen]),
                    end=_ns(table.t0, np.maximum(end, start)[seen]),
                    wait=np.round(np.nan_to_num(wait[seen], nan=0.0) * 1e9).astype(np.int64),
                    critical=on_path[seen],
                )
            )
    return _joined(parts)


def _ns(t0: int, seconds: F8) -> I8:
    return t0 + np.round(seconds * 1e9).astype(np.int64)


def _joined(parts: Sequence[Tasks]) -> Tasks:
    if not parts:
        return Tasks.empty()
    return Tasks(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _TASKS})


def _critical(costs: Costs | None, k: int) -> dict[tuple[int, int], list[int]]:
    """(stage, replica) → tasks on the critical path of iteration k."""
    if costs is None:
        return {}
    where = np.flatnonzero(costs.iterations == k)
    if not len(where):
        return {}
    i = int(where[0])
    duration = costs.work[i].max(axis=2) + costs.comm[i]
    solution = costs.graph.solve(duration, p2p_delay=costs.transfer[i].max(axis=2))
    path: dict[tuple[int, int], list[int]] = {}
    for node in costs.graph.critical_path(solution):
        path.setdefault((node.stage, node.replica), []).append(node.task)
    return path


def unfinished(known: Known, ranks: NDArray[np.int32]) -> Tasks:
    """Tasks of the iteration in which the recording of each of these ranks ends, as far as its calls tell."""
    it, events = known.resolved.iterations, known.resolved.trace.events
    if it is None or known.phases is None:
        return Tasks.empty()
    locator = Locator(known.resolved, known.phases)
    parts: list[Tasks] = []
    for rank in (int(rank) for rank in ranks):
        mine = np.flatnonzero(it.rank == rank)
        stop = events.rows_of(rank).stop
        if not len(mine) or stop <= it.row[mine[-1]] + 1:
            continue
        first = int(it.row[mine[-1]]) + 1
        found = locator.tasks_after(rank, first, stop)
        if found is not None:
            parts.append(_of_tail(known, rank, int(it.number[mine[-1]]) + 1, first, *found))
    return _joined(parts)


def _of_tail(
    known: Known, rank: int, number: int, first: int, task: NDArray[np.int64], length: NDArray[np.int64]
) -> Tasks:
    """``task`` int64 [calls]: the task of each call from row ``first`` on; ``length``: how many calls each
    task of the stage has when it is whole."""
    events, phases = known.resolved.trace.events, known.phases
    assert phases is not None  # the caller has one
    stage = known.resolved.stage_of(rank) or 0
    flat = phases.schedule is ONE_TASK
    numbers = np.unique(task[task >= 0])
    rows = [first + np.flatnonzero(task == t) for t in numbers]
    whole = np.asarray([len(own) >= length[t] for own, t in zip(rows, numbers, strict=True)], np.bool_)
    start = np.asarray([events.enqueue[own[0]] for own in rows], np.int64)
    end = np.asarray([events.enqueue[own[-1]] for own in rows], np.int64)
    if events.start is not None and events.end is not None:
        started = np.asarray([events.start[own[0]] for own in rows], np.int64)
        start = np.where(started == UNSEEN, start, started)
        ended = np.asarray([events.end[own].min() for own in rows], np.int64)  # UNSEEN is the least
        whole &= ended != UNSEEN
        end = np.asarray([events.end[own].max() for own in rows], np.int64)
    names = [phases.tasks[stage][t] for t in numbers]
    size = len(numbers)
    return Tasks(
        rank=np.full(size, rank, np.int32),
        stage=np.full(size, stage, np.int32),
        iteration=np.full(size, number, np.int32),
        micro_batch=np.asarray([-1 if flat else x.micro_batch for x in names], np.int32),
        phase=np.asarray([_PHASE[Phase.OTHER if flat else x.phase] for x in names], np.uint8),
        start=start,
        end=np.where(whole, end, UNSEEN),
        wait=np.zeros(size, np.int64),
        critical=np.zeros(size, np.bool_),
    )
