"""What a replay of an operation table says, for people at a terminal and for machines
(``megatrace.whatif/1``).

How much slower the job is than if all were equal, then whose that is: types of operation, stages, the slowest
workers. The verdict on it is ``megatrace diagnose``'s.

Computes nothing but shares.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from megatrace import __version__
from megatrace.model.whatif import WhatIfResult
from megatrace.reports import ReportOptions
from megatrace.reports.columns import cells, table
from megatrace.reports.page import Page, Style
from megatrace.reports.wording import plain
from megatrace.units import format_count, format_percent, say_ranks

SCHEMA = "megatrace.whatif/1"
ROWS = 8
VERBOSE_ROWS = 64
LABELS = ("what if", "operations", "stages", "replicas", "workers", "steps", "notes")
BAR = 30
"""Cells of a bar that is as long as the largest slowdown."""


def headline(result: WhatIfResult) -> str:
    """S and what it costs."""
    return (
        f"a step takes {result.replayed_s.mean():.3f} s and would take {result.equal_s.mean():.3f} s if all "
        f"operations of a type took the same: {result.slowdown:.2f}×"
    )


def render(result: WhatIfResult, options: ReportOptions) -> str:
    """The numbers; ends with a newline."""
    page = Page(options.width, max(map(cells, LABELS)), options.colour)
    rows = VERBOSE_ROWS if options.verbose else ROWS
    page.headline("WHAT IF", Style.CYAN, headline(result))
    page.blank()
    page.row("what if", _shares(result), bullets=True)
    _slowdowns(
        page, "operations", "as recorded alone", [(name, value) for name, value in result.by_type], rows
    )
    _slowdowns(page, "stages", "as recorded alone", [(str(n), value) for n, value in result.by_stage], rows)
    _slowdowns(
        page, "replicas", "as recorded alone", [(str(n), value) for n, value in result.by_replica], rows
    )
    _slowdowns(page, "workers", "at most", _workers(result), rows)
    page.blank()
    recorded = np.asarray(result.recorded_s)
    sizes = f"{format_count(len(recorded))} steps, {format_count(result.operations)} operations, "
    sizes += f"{format_count(result.by_worker.size)} workers, {result.micro_batches} micro-batches"
    times = f"recorded {recorded.mean():.3f} s on average, {recorded.min():.3f} to {recorded.max():.3f} s; "
    times += f"{format_percent(1 - 1 / result.between)} of it passes between operations"
    page.row("steps", [sizes, times])
    page.row("notes", [plain(note) for note in result.notes], style=Style.DIM)
    return page.text()


def _shares(result: WhatIfResult) -> list[str]:
    if result.slowest_share is None:
        return ["nothing is lost to stragglers"]
    text = f"the slowest 3 % of workers ({say_ranks(result.slowest)}) made equal: "
    said = [text + f"{format_percent(result.slowest_share)} of the difference goes away (M_W)"]
    if result.last_stage_share is not None and len(result.by_stage) > 1:
        said.append(
            f"the last stage made equal: {format_percent(result.last_stage_share)} of it goes away (M_S)"
        )
    if result.compute_share is not None:
        said.append(f"all compute made equal: {format_percent(result.compute_share)} of it goes away")
    return said


def _workers(result: WhatIfResult) -> list[tuple[str, float]]:
    flat = result.by_worker.reshape(-1)
    ranks = result.worker_ranks.reshape(-1)
    order = np.lexsort((ranks, -flat))
    return [(f"rank {ranks[at]}", float(flat[at])) for at in order]


def _slowdowns(page: Page, label: str, head: str, found: Sequence[tuple[str, float]], rows: int) -> None:
    if not found:
        return
    page.blank()
    most = max(value for _, value in found) - 1
    lines = table(("", head), [(plain(name), f"{value:.3f}×") for name, value in found[:rows]])
    bars = [
        "",
        *("█" * round(BAR * max(value - 1, 0) / most) if most > 0.001 else "" for _, value in found[:rows]),
    ]
    page.block(label, [f"{line}  {bar}".rstrip() for line, bar in zip(lines, bars, strict=True)])
    if len(found) > rows:
        page.block("", [f"… and {len(found) - rows:,} more (--verbose, --format json)"])


def render_json(result: WhatIfResult) -> str:
    """Everything, one object; times in seconds, slowdowns and shares as numbers."""
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "tool_version": __version__,
        "slowdown": result.slowdown,
        "between_operations": result.between,
        "m_w": result.slowest_share,
        "m_s": result.last_stage_share,
        "slowest_workers": list(result.slowest),
        "by_type": dict(result.by_type),
        "by_stage": {str(number): value for number, value in result.by_stage},
        "by_replica": {str(number): value for number, value in result.by_replica},
        "by_worker": {
            str(rank): value
            for rank, value in zip(
                result.worker_ranks.reshape(-1).tolist(), result.by_worker.reshape(-1).tolist(), strict=True
            )
        },
        "stage_shares": {str(number): value for number, value in result.stage_shares},
        "compute_share": result.compute_share,
        "steps": [
            {"step": step, "recorded_s": recorded, "replayed_s": replayed, "equal_s": equal}
            for step, recorded, replayed, equal in zip(
                result.steps.tolist(), result.recorded_s.tolist(), result.replayed_s.tolist(),
                result.equal_s.tolist(), strict=True,
            )
        ],
        "operations": result.operations,
        "notes": list(result.notes),
    }  # fmt: skip
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"
