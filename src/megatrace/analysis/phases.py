"""Every call's place in the schedule: iteration, task, forward or backward.

Slices of calls between anchors are grouped by their call string; a string is interpreted once (``templates``)
and its positions are looked up for every rank and iteration that has it. The calls after the last anchor are
matched as the beginning of a string, which says where a rank stood when the recording stopped, and which call
it would make next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis import templates
from megatrace.analysis.anchors import LIGHT_COUNT
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.roles import Role
from megatrace.analysis.templates import FITS, CallString, TaskMap
from megatrace.model.events import Op
from megatrace.model.schedule import Schedule, Task

I8 = NDArray[np.int64]
_WEIGHTS_SEED = 20


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Complete iterations of all ranks: slice i is rows ``start[i]:stop[i]`` of rank ``rank[i]``, iteration
    ``number[i]``, and has string ``string[i]`` (index into ``strings``)."""

    rank: NDArray[np.int32]
    number: I8
    start: I8
    stop: I8
    string: NDArray[np.int32]
    strings: tuple[CallString, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseTable:
    """Rows of the calls that bound each task: int64 [world, iterations, tasks], -1 where not known.

    ``tasks[stage]`` names the tasks. ``fit`` is the share of pipeline calls where the schedule puts them.
    """

    schedule: Schedule
    fit: float
    slices: Slices
    maps: dict[int, TaskMap]
    """by string"""
    stage: NDArray[np.int32]
    """int32 [world]"""
    begin: I8
    end: I8
    recv: I8
    send: I8
    last: I8
    start_row: I8
    """int64 [world, iterations]: first row of each slice"""
    string_of: NDArray[np.int32]
    """int32 [world, iterations]: its string, -1 where there is none"""
    tasks: tuple[tuple[Task, ...], ...] = field(default=())


def cut(resolved: Resolved) -> Slices | None:
    """Group the complete iterations by call string. None without iterations or a layout."""
    it, layout = resolved.iterations, resolved.layout
    if it is None or layout is None:
        return None
    keep = it.complete & (it.rank < layout.world_size)
    rank, number, start, stop = it.rank[keep], it.number[keep], it.start[keep], it.row[keep] + 1
    if not len(rank):
        return None
    code = _codes(resolved)
    stage = layout.stages()[rank]
    key = _string_keys(code, start, stop) ^ (stage.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    _, first, string = np.unique(key, return_index=True, return_inverse=True)
    events = resolved.trace.events
    strings = []
    for i in first:
        rows = slice(int(start[i]), int(stop[i]))
        count = events.count[rows] if events.count is not None else np.zeros(rows.stop - rows.start, np.int64)
        strings.append(CallString(int(stage[i]), resolved.role[rows], events.op[rows], count))
    return Slices(rank, number, start, stop, string.astype(np.int32), tuple(strings))


def _codes(resolved: Resolved) -> NDArray[np.uint64]:
    """uint64 [events]: role, operation and (heavy) element count as one well-mixed number."""
    events = resolved.trace.events
    code = resolved.role.astype(np.uint64) * np.uint64(16) + events.op
    if events.count is not None:
        heavy = np.where(events.count > LIGHT_COUNT, events.count, 0).astype(np.uint64)
        # Data-dependent sizes (uneven all-to-all) would make every iteration a string of its own.
        heavy[(events.op == Op.ALL_TO_ALL) | (resolved.role == Role.EXPERT)] = 0
        code ^= heavy * np.uint64(0xC2B2AE3D27D4EB4F)
    code *= np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(code ^ (code >> np.uint64(31)), dtype=np.uint64)


def _string_keys(code: NDArray[np.uint64], start: I8, stop: I8) -> NDArray[np.uint64]:
    """uint64 [slices]: a hash of each slice's codes by position, from one pass over the events."""
    longest = int((stop - start).max())
    rng = np.random.default_rng(_WEIGHTS_SEED)
    weight = rng.integers(1, 2**63, size=longest, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    keys = np.empty(len(start), np.uint64)
    for i in range(len(start)):
        part = code[start[i] : stop[i]]
        keys[i] = np.dot(part, weight[: len(part)])
    return keys ^ (stop - start).astype(np.uint64)


def main_strings(slices: Slices, pp: int) -> list[int | None]:
    """The commonest string of each stage."""
    counts = np.bincount(slices.string, minlength=len(slices.strings))
    best: list[int | None] = [None] * pp
    for i, string in enumerate(slices.strings):
        current = best[string.stage]
        if current is None or counts[i] > counts[current]:
            best[string.stage] = i
    return best


def infer_schedule(resolved: Resolved, slices: Slices) -> tuple[Schedule, float] | None:
    """The schedule that fits the Sends and Recvs of all stages seen, and how well; None below 95 %."""
    layout = resolved.layout
    if layout is None or layout.pp < 2:
        return None
    mains = [slices.strings[i] for i in main_strings(slices, layout.pp) if i is not None]
    best: tuple[Schedule, float] | None = None
    for schedule in _candidates(mains, layout.pp):
        fits = [templates.fit(schedule, string) for string in mains]
        value = float(np.mean(fits))
        if value >= FITS and (best is None or value > best[1] + 1e-9):
            best = (schedule, value)
    return best


def _candidates(mains: list[CallString], pp: int) -> list[Schedule]:
    found: list[Schedule] = []
    for string in mains:
        sends = int(np.sum(string.op[string.p2p] == Op.SEND))
        ends = string.stage in (0, pp - 1)
        for first in {sends} if ends else {sends // 2, sends - sends // 2}:
            for schedule in templates.schedule_candidates(first, pp, None):
                if schedule not in found:
                    found.append(schedule)
        if not ends:  # an inner stage of an interleaved schedule sends 2 · m · vpp times
            for vpp in range(2, templates.MAX_CHUNKS + 1):
                if sends % (2 * vpp) == 0:
                    first = sends // (2 * vpp) * (2 * vpp - 1)
                    found += [
                        s
                        for s in templates.schedule_candidates(first, pp, sends // (2 * vpp))
                        if s not in found
                    ]
    return found


def tabulate_phases(resolved: Resolved, slices: Slices, schedule: Schedule, value: float) -> PhaseTable:
    """Look up every slice's positions. Strings that do not fit (evaluation) leave -1."""
    layout, it = resolved.layout, resolved.iterations
    if layout is None or it is None:
        raise ValueError("phases need a layout and iterations")
    shape = (layout.world_size, it.count, 2 * schedule.total)
    columns = {name: np.full(shape, -1, np.int64) for name in ("begin", "end", "recv", "send", "last")}
    start_row = np.full(shape[:2], -1, np.int64)
    string_of = np.full(shape[:2], -1, np.int32)
    maps: dict[int, TaskMap] = {}
    inner_forward = _inner_forward(slices, schedule)
    order = np.argsort(slices.string, kind="stable")
    bounds = np.searchsorted(slices.string[order], np.arange(len(slices.strings) + 1))
    for i, string in enumerate(slices.strings):
        if templates.fit(schedule, string) < FITS:
            continue
        task_map = templates.map_tasks(schedule, string, inner_forward)
        maps[i] = task_map
        chosen = order[bounds[i] : bounds[i + 1]]
        ranks, numbers, starts = slices.rank[chosen], slices.number[chosen], slices.start[chosen]
        start_row[ranks, numbers] = starts
        string_of[ranks, numbers] = i
        for name, column in columns.items():
            position = getattr(task_map, name)
            rows = np.where(position >= 0, starts[:, None] + position[None, :], -1)
            column[ranks, numbers] = rows
    return PhaseTable(
        schedule=schedule,
        fit=value,
        slices=slices,
        maps=maps,
        stage=layout.stages(),
        start_row=start_row,
        string_of=string_of,
        tasks=tuple(schedule.tasks(stage) for stage in range(schedule.pp)),
        **columns,
    )


def _inner_forward(slices: Slices, schedule: Schedule) -> int | None:
    """Inner calls of one forward on a stage that is neither first nor last, else None."""
    for index in main_strings(slices, schedule.pp):
        if index is None:
            continue
        string = slices.strings[index]
        if 0 < string.stage < schedule.pp - 1 and templates.fit(schedule, string) >= FITS:
            task_map = templates.map_tasks(schedule, string)
            inner = string.inner
            for i, task in enumerate(task_map.tasks):
                if task.phase.value == "forward" and task_map.begin[i] >= 0 and task_map.last[i] >= 0:
                    return int(inner[task_map.begin[i] : task_map.last[i] + 1].sum())
    return None
