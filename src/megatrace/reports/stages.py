"""The table of pipeline stages: forward, backward, own work and waiting, with a bar where there is room.

A stage that works longer than its neighbours is what makes a pipeline slow, and a waiting one is its victim;
side by side the two are seen at once. Ranks of a stage and marks for the culprits come from the layout.

Does not compute medians: those stand in `StageTimes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from megatrace.model.finding import Diagnosis, StageTimes
from megatrace.model.layout import ParallelLayout
from megatrace.reports.columns import cells, table
from megatrace.reports.page import Style
from megatrace.reports.texts import Texts
from megatrace.units import say_ranks

MAX_STAGES = 16
"""Rows shown without --verbose, the busiest stages first kept; deeper pipelines are rare."""
MAX_RANKS_CELLS = 24
MIN_BAR, MAX_BAR = 12, 48
"""Cells of the bar: shorter ones cannot show 10 %, longer ones say no more."""


def stage_table(
    diagnosis: Diagnosis, texts: Texts, culprits: Sequence[int], room: int, verbose: bool
) -> tuple[list[str], list[Style]]:
    """Lines of the table and a style for each; both empty without stages."""
    stages = _chosen(diagnosis.stages, verbose)
    if not stages:
        return [], []
    ranks = _ranks_of(diagnosis.job.layout)
    with_ranks = bool(ranks) and all(len(ranks.get(item.stage, "")) <= MAX_RANKS_CELLS for item in stages)
    head = [texts.say("stage_head"), *([texts.say("ranks_head")] if with_ranks else [])]
    head += [texts.say(key) for key in ("forward", "backward", "work", "wait")]
    rows = [
        [
            str(item.stage),
            *([ranks.get(item.stage, "")] if with_ranks else []),
            *(_ms(value) for value in (item.forward_ms, item.backward_ms, item.work_ms, item.wait_ms)),
        ]
        for item in stages
    ]
    marks = _marks(diagnosis.job.layout, stages, culprits, texts)
    widest = max(cells(mark) for mark in marks)
    lines = table([*head, ""], [[*row, ""] for row in rows])
    bar = min(room - max(cells(line) for line in lines) - 4 - widest, MAX_BAR)
    unit = texts.say("table_unit")
    bars = _bars(stages, bar) if bar >= MIN_BAR else []
    if cells(lines[0]) + 2 + cells(unit) > room:
        unit = texts.say("table_unit_short")
    out = [f"{lines[0]}  {unit}"]
    width = max(cells(line) for line in lines)
    for index, line in enumerate(lines[1:]):
        tail = "  ".join(part for part in (bars[index] if bars else "", marks[index]) if part.strip())
        out.append(f"{line}{' ' * (width - cells(line))}  {tail}".rstrip())
    styles = [Style.DIM, *(Style.YELLOW if mark else Style.PLAIN for mark in marks)]
    return out, styles


def _chosen(stages: Sequence[StageTimes], verbose: bool) -> list[StageTimes]:
    if verbose or len(stages) <= MAX_STAGES:
        return list(stages)
    busiest = sorted(stages, key=lambda item: -(_number(item.work_ms) or 0.0))[:MAX_STAGES]
    return sorted(busiest, key=lambda item: item.stage)


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _ms(value: float | None) -> str:
    known = _number(value)
    if known is None:
        return "–"
    return f"{known:,.0f}" if abs(known) >= 100 else f"{known:.1f}"


def _ranks_of(layout: ParallelLayout | None) -> dict[int, str]:
    if layout is None:
        return {}
    stages = layout.stages()
    return {
        stage: say_ranks(int(rank) for rank in np.flatnonzero(stages == stage)).partition(" ")[2]
        for stage in range(layout.pp)
    }


def _marks(
    layout: ParallelLayout | None, stages: Sequence[StageTimes], culprits: Sequence[int], texts: Texts
) -> list[str]:
    if layout is None:
        return ["" for _ in stages]
    where = layout.stages()
    marks: list[str] = []
    for item in stages:
        here = sorted({rank for rank in culprits if 0 <= rank < len(where) and where[rank] == item.stage})
        more = "…" if len(here) > 3 else ""
        named = ", ".join(str(rank) for rank in here[:3]) + more
        key = "rank" if len(here) == 1 else "ranks"
        marks.append(f"◄ {texts.say(key, rank=named, ranks=named)}" if here else "")
    return marks


def _bars(stages: Sequence[StageTimes], width: int) -> list[str]:
    totals = [(_number(item.work_ms) or 0.0, _number(item.wait_ms) or 0.0) for item in stages]
    longest = max((work + wait for work, wait in totals), default=0.0)
    if longest <= 0:
        return []
    bars: list[str] = []
    for work, wait in totals:
        solid = round(max(work, 0.0) / longest * width)
        whole = round(max(work + wait, 0.0) / longest * width)
        bars.append(("█" * solid + "░" * max(whole - solid, 0)).ljust(width))
    return bars
