"""A profile for people at a terminal: where the device's time went, what it waited for, what would help most.

In the order of the questions: how much of the time was computed, what lay on the critical path and what it
would save to be rid of it, then the tables for whoever looks for one operator, kernel or collective. Every
table is cut to what fits a screen and says how much it leaves out; ``verbose`` shows more.

Computes nothing but shares.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatrace.model.profile_result import (
    CollectiveTime,
    CriticalPath,
    OperatorTime,
    ProfileResult,
    RankTime,
)
from megatrace.reports import ReportOptions
from megatrace.reports.columns import cells, clip, table
from megatrace.reports.page import Page, Style
from megatrace.reports.wording import plain
from megatrace.units import format_duration, format_number, format_percent, format_size, say_ranks

ROWS = 8
"""Rows of a table: eight operators have most of the time of a step, and five tables fit a screen and a half.
"""
VERBOSE_ROWS = 40
SMALL_SAVING = 0.005
"""Share of the window below which a saving is not worth a word."""
LABELS = (
    "profile",
    "device",
    "path",
    "what if",
    "idle",
    "operators",
    "shapes",
    "modules",
    "kernels",
    "collectives",
)


def render(result: ProfileResult, options: ReportOptions) -> str:
    """The report; ``options.width`` in cells, ``options.verbose`` for more rows; ends with a newline."""
    page = Page(options.width, max(map(cells, LABELS)), options.colour)
    rows = VERBOSE_ROWS if options.verbose else ROWS
    page.headline("PROFILE", Style.CYAN, headline(result))
    page.blank()
    _device(page, result, rows)
    for path in (*result.paths[: rows if options.verbose else 2], *filter(None, [result.job_path])):
        _path(page, path, rows)
    _idle(page, result, rows)
    _operators(page, "operators", result.operators, rows)
    if options.verbose:
        _operators(page, "shapes", result.shapes, rows)
    _operators(page, "modules", result.modules, rows)
    _kernels(page, result, rows)
    _collectives(page, result, rows)
    if options.verbose:
        _queues(page, result, rows)
    _memory(page, result)
    if result.notes:
        page.blank()
        page.row("notes", [plain(note) for note in result.notes], style=Style.DIM)
    return page.text()


def headline(result: ProfileResult) -> str:
    """What was looked at, and the one figure of it."""
    ranks = sorted({one.rank for one in result.inputs} or {one.rank for one in result.ranks})
    of = f" of {result.world_size:,}" if result.world_size and result.world_size > len(ranks) else ""
    device = next((one.device_name for one in result.inputs if one.device_name), "")
    who = f"{say_ranks(ranks)}{of}" + (f" on {plain(device)}" if device else "")
    if not result.ranks:
        return f"{who}: nothing ran on a device"
    span = sum(time.span for time in result.ranks)
    compute, exposed, idle = (
        sum(getattr(time, name) for time in result.ranks) for name in ("compute", "exposed", "idle")
    )
    return (
        f"{who}: {format_duration(span / len(result.ranks))} of device time, "
        f"{_share(compute, span)} computing, {_share(exposed, span)} exposed communication, "
        f"{_share(idle, span)} idle"
    )


def _share(part: float, whole: float) -> str:
    return format_percent(part / whole) if whole else "0 %"


def _table(page: Page, label: str, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> None:
    if not rows:
        return
    page.blank()
    names = page.room - max(cells(line) for line in table(head[:-1], [row[:-1] for row in rows])) - 2
    cut = [(*row[:-1], clip(row[-1], max(names, 14))) for row in rows]
    lines = table(head, cut) + ([f"… and {left:,} more (--verbose, --format json)"] if left > 0 else [])
    page.block(label, lines)


def _device(page: Page, result: ProfileResult, rows: int) -> None:
    head = ("rank", "span", "compute", "exposed", "hidden", "copies", "idle", "bubble")
    bubbles = any(time.bubble is not None for time in result.ranks)

    def row(time: RankTime) -> tuple[str, ...]:
        parts = (time.compute, time.exposed, time.overlap, time.memory_only, time.idle)
        cell = [f"{format_duration(part)} {_share(part, time.span)}" for part in parts]
        bubble = (
            "" if time.bubble is None else f"{format_duration(time.bubble)} {_share(time.bubble, time.span)}"
        )
        return (str(time.rank), format_duration(time.span), *cell, *([bubble] if bubbles else []))

    shown = [row(time) for time in result.ranks[:rows]]
    _table(page, "device", head if bubbles else head[:-1], shown, len(result.ranks) - rows)


def _path(page: Page, path: CriticalPath, rows: int) -> None:
    page.blank()
    whose = "all ranks" if path.rank < 0 else f"rank {path.rank}"
    parts = [
        f"{kind.value} {format_duration(time)} ({_share(time, path.length)})" for kind, time in path.by_kind
    ]
    page.row("path", [f"{whose}, {plain(path.window)}: {format_duration(path.length)} = {' + '.join(parts)}"])
    named = [(name, kind, time) for name, kind, time in path.by_name if name][: max(rows // 2, 3)]
    for name, kind, time in named:
        page.row(
            "", [f"{format_duration(time)} {kind.value}: {clip(plain(name), page.room - 30)}"], bullets=True
        )
    gains = [one for one in path.what_if if one.saved > SMALL_SAVING * path.length]
    said = [
        f"without {one.kind.value} {format_duration(one.total)} (−{_share(one.saved, path.length)})"
        for one in gains
    ]
    page.row("what if", [" · ".join(said)] if said else [])


def _idle(page: Page, result: ProfileResult, rows: int) -> None:
    shown = []
    for stream in result.streams:
        busy = stream.compute + stream.communication + stream.memory
        reasons = [format_duration(time) if time else "0" for _, time in stream.idle]
        shown.append((str(stream.rank), format_duration(busy), *reasons, f"stream {stream.stream}"))
    head = ("rank", "busy", "host wait", "kernel wait", "other wait", "stream")
    _table(page, "idle", head, shown[:rows], len(shown) - rows)


def _operators(page: Page, label: str, found: Sequence[OperatorTime], rows: int) -> None:
    whole = sum(one.own for one in found)
    shown = [
        (
            format_duration(one.own),
            _share(one.own, whole),
            format_duration(one.total),
            format_duration(one.device_total),
            f"{one.count:,}",
            format_duration(one.p50),
            format_duration(one.p95),
            plain(f"{one.name}({one.shape})" if one.shape else one.name),
        )
        for one in found[:rows]
    ]
    head = ("own", "share", "total", "device", "count", "p50", "p95", label.rstrip("s"))
    _table(page, label, head, shown, len(found) - rows)


def _kernels(page: Page, result: ProfileResult, rows: int) -> None:
    whole = sum(one.total for one in result.kernels)
    shown = [
        (
            format_duration(one.total),
            _share(one.total, whole),
            f"{one.count:,}",
            format_duration(one.p50),
            format_duration(one.p95),
            one.kind.value,
            plain(one.name),
        )
        for one in result.kernels[:rows]
    ]
    head = ("total", "share", "count", "p50", "p95", "kind", "kernel")
    _table(page, "kernels", head, shown, len(result.kernels) - rows)


def _collectives(page: Page, result: ProfileResult, rows: int) -> None:
    shown: list[tuple[str, ...]] = [
        (
            one.op.name.lower(),
            format_size(one.nbytes) if one.nbytes is not None else "?",
            f"{one.count:,}",
            format_duration(one.total),
            format_duration(one.exposed),
            format_duration(one.p50),
            _bandwidth(one.algorithm),
            _bandwidth(one.bus),
            plain(one.group) + (f" ({one.group_size} ranks)" if one.group_size else "") or "unknown",
        )
        for one in result.collectives[:rows]
    ]
    head: tuple[str, ...] = ("operation", "size", "count", "total", "exposed", "p50", "alg. GB/s", "bus GB/s")
    against = [_against(one) for one in result.collectives[:rows]]
    if any(against):
        head = (*head, "of")
        shown = [(*row[:-1], share, row[-1]) for row, share in zip(shown, against, strict=True)]
    _table(page, "collectives", (*head, "group"), shown, len(result.collectives) - rows)


def _against(one: CollectiveTime) -> str:
    """The bus bandwidth against what the GPUs' links carry, else against groups like it."""
    if one.bus is None:
        return ""
    if one.link is not None:
        return f"{one.bus / one.link:.0%} of link"
    return "" if not one.alike else f"{one.bus / one.alike:.0%} of alike"


def _bandwidth(value: float | None) -> str:
    return format_number(value / 1e9) if value is not None else "?"


def _queues(page: Page, result: ProfileResult, rows: int) -> None:
    shown = [
        (
            str(one.rank),
            format_number(one.mean),
            str(one.p50),
            str(one.longest),
            format_duration(one.empty),
            format_duration(one.full),
            f"{one.launches:,}",
            f"stream {one.stream}",
        )
        for one in result.queues
    ]
    head = ("rank", "mean", "p50", "longest", "empty", "full", "launches", "queue of")
    _table(page, "queues", head, shown[:rows], len(shown) - rows)


def _memory(page: Page, result: ProfileResult) -> None:
    if not result.memory:
        return
    page.blank()
    page.row(
        "memory",
        [
            f"rank {one.rank} device {one.device}: at most {format_size(one.peak)} allocated"
            + (f" of {format_size(one.reserved_peak)} reserved" if one.reserved_peak else "")
            + f", {one.allocations:,} allocations"
            for one in result.memory
            if one.peak is not None
        ],
    )
