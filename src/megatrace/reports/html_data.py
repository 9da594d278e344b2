"""The pictures of a diagnosis as one compact block of bytes that a script in the page unpacks and draws.

A heat map of 16,384 ranks × 200 iterations has 3.3 million cells; written as JSON numbers it would be larger
than the page may be. So every array becomes a typed array of the smallest type that the eye needs, all of
them one after the other, deflated, in base64: the browser inflates them in one step without parsing.

Work is stored in a byte a cell on a logarithmic scale: equal steps are equal ratios, which is what one looks
for ("2.5× slower"), and subtracting the level of a stage gives the ratio without another array. Where there
are more cells than fit into the page neighbouring rows are joined by their longest work, and the page says
so: a slow rank stays visible, only which of its neighbours it was is then told by the verdict alone.

Judges nothing: what is drawn stands in `Pictures`.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megatrace.model.finding import Diagnosis, Pictures
from megatrace.model.layout import ParallelLayout
from megatrace.model.series import Series
from megatrace.reports.wording import plain

MAX_CELLS = 3_400_000
"""Cells of the heat map. A byte each and 4/3 for base64 make 4.5 MB even where nothing can be compressed: the
page stays under 5 MB whatever it shows."""
LEVELS = 254
"""Steps of the logarithmic scale; 255 is "not seen"."""
UNKNOWN = 255
ENOUGH = 2
"""Iterations from which on one sees what is usual."""
MAX_POINTS = 200_000
"""Values of the chart of lateness; above, every n-th call is drawn: a screen has 4,000 pixels in a row."""

MAX_SERIES_POINTS = 4_000
"""Points of one line of queue depth or bandwidth."""

_TYPES = {"u1": "u1", "u2": "<u2", "i4": "<i4", "f4": "<f4"}


@dataclass(slots=True)
class Block:
    """Arrays on their way into the page, and what is said about them."""

    arrays: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def put(self, name: str, values: NDArray[np.generic] | None, kind: str) -> None:
        """Adds an array as one of `u1 u2 i4 f4`; None is left out."""
        if values is not None:
            self.arrays[name] = np.ascontiguousarray(values, dtype=_TYPES[kind])

    def packed(self) -> tuple[str, dict[str, object]]:
        """(base64 of the deflated bytes, where each array lies in them)."""
        parts: list[bytes] = []
        index: dict[str, object] = {}
        at = 0
        for name, array in self.arrays.items():
            raw = array.tobytes()
            index[name] = [array.dtype.str.lstrip("<|"), at, array.size]
            # Typed arrays of four bytes must begin at a multiple of four.
            padding = -len(raw) % 4
            parts.append(raw + b"\0" * padding)
            at += len(raw) + padding
        return base64.b64encode(zlib.compress(b"".join(parts), 6)).decode("ascii"), index


def data_block(diagnosis: Diagnosis) -> Block:
    """Everything that the charts of a diagnosis draw."""
    block, pictures = Block(), diagnosis.pictures
    _iterations(block, pictures)
    _work(block, diagnosis)
    _tasks(block, pictures)
    _lateness(block, pictures)
    _series(block, pictures, diagnosis.clock.t0)
    return block


def json_text(value: Mapping[str, object]) -> str:
    """JSON that may stand inside a script element: no character of it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _iterations(block: Block, pictures: Pictures) -> None:
    if pictures.iteration is None or pictures.iteration_ms is None:
        return
    block.put("iteration", pictures.iteration, "i4")
    block.put("iteration_ms", pictures.iteration_ms, "f4")
    block.put("iteration_start", pictures.iteration_start_s, "f4")


# ---- work


def rows_joined(cells: int) -> int:
    """How many neighbouring rows of a heat map of so many cells share one, so that the page stays small."""
    return max(1, -(-cells // MAX_CELLS))


def _work(block: Block, diagnosis: Diagnosis) -> None:
    pictures, layout = diagnosis.pictures, diagnosis.job.layout
    if pictures.work_ms is None or pictures.work_ranks is None or not pictures.work_ms.size:
        return
    order, stage = _in_order(pictures.work_ranks, layout)
    ranks, work = pictures.work_ranks[order], pictures.work_ms[order]
    joined = rows_joined(work.size)
    if joined > 1:
        starts = np.arange(0, len(work), joined)
        # fmax: the longest work that was seen, so that no slow rank disappears.
        work = np.fmax.reduceat(work, starts, axis=0)
        stage = stage[starts]
    levels, low, high = _levels(work)
    block.put("work", levels, "u1")
    block.put("work_rank", ranks, "i4")
    block.put("work_stage", stage, "u2")
    block.put("work_middle", _stage_levels(levels[:, _quiet(diagnosis)], stage), "u1")
    block.facts["work"] = {
        "rows": int(work.shape[0]),
        "columns": int(work.shape[1]),
        "low": low,
        "high": high,
        "levels": LEVELS,
        "joined": joined,
    }


def _in_order(
    ranks: NDArray[np.int32], layout: ParallelLayout | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(order, stage) of rows: by stage, then by replica, then by place in the group."""
    if layout is None:
        order = np.argsort(ranks, kind="stable")
        return order, np.zeros(len(ranks), np.int64)
    grid = layout.grid()
    place = np.full(layout.world_size, layout.world_size, np.int64)
    place[grid.reshape(-1)] = np.arange(layout.world_size)
    known = np.where((ranks >= 0) & (ranks < layout.world_size), ranks, 0)
    at = place[known]
    order = np.argsort(at, kind="stable")
    return order, at[order] // (layout.tp * layout.cp * layout.dp)


def _levels(work: NDArray[np.float32]) -> tuple[NDArray[np.uint8], float, float]:
    """(level of each cell, the work of level 0, of the highest level): logarithmic, 255 unknown."""
    seen = np.isfinite(work) & (work > 0)
    levels = np.full(work.shape, UNKNOWN, np.uint8)
    if not seen.any():
        return levels, 1.0, 2.0
    logs = np.log(work[seen], dtype=np.float32)
    # One absurd value must not leave ten levels for all others: work within 1/20 … 50 of the median counts.
    middle = float(np.median(logs))
    low = max(float(logs.min()), middle - 3.0)
    high = max(min(float(logs.max()), middle + 3.9), low + 0.05)
    steps = np.clip((logs - low) * ((LEVELS - 1) / (high - low)), 0, LEVELS - 1)
    levels[seen] = np.rint(steps).astype(np.uint8)
    return levels, float(np.exp(low)), float(np.exp(high))


def _quiet(diagnosis: Diagnosis) -> NDArray[np.bool_]:
    """bool [I]: iterations outside the windows of all findings, in which one sees what is usual; all of them
    where too few are left."""
    numbers = diagnosis.pictures.iteration
    work = diagnosis.pictures.work_ms
    assert work is not None  # the caller has it
    quiet = np.ones(work.shape[1], np.bool_)
    if numbers is None or len(numbers) != len(quiet):
        return quiet
    for finding in diagnosis.findings:
        window = finding.window
        if window is not None and window.first_iteration is not None:
            last = numbers[-1] if window.last_iteration is None else window.last_iteration
            quiet &= (numbers < window.first_iteration) | (numbers > last)
    seen = np.isfinite(work[:, quiet]).any(axis=0).sum()
    return quiet if seen >= ENOUGH else np.ones(len(quiet), np.bool_)


def _stage_levels(levels: NDArray[np.uint8], stage: NDArray[np.int64]) -> NDArray[np.uint8]:
    """uint8 [stages]: the median level of each stage, to which its ranks are compared."""
    count = int(stage.max()) + 1 if len(stage) else 0
    middle = np.zeros(count, np.uint8)
    for index in range(count):
        counts = np.bincount(levels[stage == index].reshape(-1), minlength=256)[:UNKNOWN]
        if counts.sum():
            middle[index] = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
    return middle


# ---- one iteration, and the culprit's group


def _tasks(block: Block, pictures: Pictures) -> None:
    p = pictures
    if p.task_rank is None or p.task_start_s is None or p.task_end_s is None or p.task_stage is None:
        return
    seen = p.task_start_s[np.isfinite(p.task_start_s)]
    if not len(seen):
        return
    # Milliseconds after the iteration's first task: float32 of seconds after t0 would lose what is drawn.
    zero = float(seen.min())
    block.put("task_rank", p.task_rank, "i4")
    block.put("task_stage", p.task_stage, "u2")
    block.put("task_micro_batch", p.task_micro_batch, "i4")
    block.put("task_phase", p.task_phase, "u1")
    block.put("task_start", (p.task_start_s - zero) * 1e3, "f4")
    block.put("task_end", (p.task_end_s - zero) * 1e3, "f4")
    if p.task_wait_s is not None:
        block.put("task_wait", p.task_wait_s * 1e3, "f4")
    if p.task_critical is not None:
        block.put("task_critical", p.task_critical, "u1")
    block.facts["tasks"] = {"iteration": p.task_iteration, "zero": round(zero, 6)}


def _lateness(block: Block, pictures: Pictures) -> None:
    late, ranks = pictures.lateness_ms, pictures.lateness_ranks
    if late is None or ranks is None or not late.size or len(ranks) < 2:
        return
    step = -(-late.size // MAX_POINTS)
    block.put("late_rank", ranks, "i4")
    block.put("late", late[:, ::step], "f4")
    if pictures.lateness_iteration is not None:
        block.put("late_iteration", pictures.lateness_iteration[::step], "i4")
    block.facts["late"] = {"members": len(ranks), "calls": late[:, ::step].shape[1], "every": step}


def series_name(item: Series) -> str:
    """What was measured, where: "node5 mlx5_3 tx"."""
    return " ".join(dict.fromkeys(plain(part) for part in (item.node, item.device, item.name) if part))


def _series(block: Block, pictures: Pictures, t0: int) -> None:
    """Each series by the greatest value of every stretch: a queue that filled for a moment must be seen."""
    times: list[NDArray[np.float64]] = []
    values: list[NDArray[np.float64]] = []
    listed: list[dict[str, object]] = []
    for item in pictures.series:
        starts = np.arange(0, len(item.times), -(-len(item.times) // MAX_SERIES_POINTS))
        times.append((item.times[starts] - t0) / 1e9)
        values.append(np.fmax.reduceat(item.values, starts))
        listed.append(
            {"kind": item.kind.value, "name": series_name(item), "rank": item.rank, "size": len(starts)}
        )
    if listed:
        block.put("series_time", np.concatenate(times), "f4")
        block.put("series_value", np.concatenate(values), "f4")
        block.facts["series"] = listed
