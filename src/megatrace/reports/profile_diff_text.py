"""Two profiles side by side, for people at a terminal and for machines (``megatrace.profile_diff/1``).

First the step, then what changed in the settings (the likely reason), then what became slower, new or gone.
Computes nothing but shares.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any

from megatrace import __version__
from megatrace.model.profile_diff import Difference, ProfileDiff, SettingChange
from megatrace.model.run_settings import Area
from megatrace.reports import ReportOptions
from megatrace.reports.columns import cells, clip, table
from megatrace.reports.page import Page, Style
from megatrace.reports.wording import plain
from megatrace.units import format_duration, format_number, format_percent

SCHEMA = "megatrace.profile_diff/1"
ROWS = 8
"""Rows of a table: the ninth difference is not the reason."""
VERBOSE_ROWS = 40
SAME = 0.02
"""Share by which two runs of one program differ by themselves."""
VALUE = 60
"""Characters of a setting's value."""
LABELS = ("compare", "settings", "step", "slower", "faster", "path", "notes")


def headline(diff: ProfileDiff) -> str:
    """The step before and after, and the difference that explains most of it."""
    unit = "step" if diff.stepped else "recording"
    change = diff.ratio - 1
    text = f"a {unit} takes {format_duration(diff.step_after)} instead of {format_duration(diff.step_before)}"
    if abs(change) < SAME:
        return f"{text}, as long as before"
    text += f" ({'+' if change > 0 else '−'}{format_percent(abs(change))})"
    wanted = [item for item in diff.differences if (item.delta > 0) == (change > 0)]
    if wanted:
        text += f"; most in {wanted[0].subject.value} {clip(plain(wanted[0].name), 70)} ({_said(wanted[0])})"
    return text


def word(diff: ProfileDiff) -> tuple[str, Style]:
    """SLOWER, FASTER or SAME."""
    if abs(diff.ratio - 1) < SAME:
        return "SAME", Style.GREEN
    return ("SLOWER", Style.YELLOW) if diff.ratio > 1 else ("FASTER", Style.GREEN)


def render(diff: ProfileDiff, options: ReportOptions) -> str:
    """The comparison; ends with a newline."""
    page = Page(options.width, max(map(cells, LABELS)), options.colour)
    rows = VERBOSE_ROWS if options.verbose else ROWS
    page.headline(*word(diff), headline(diff))
    page.blank()
    page.row("compare", [f"{plain(diff.after)} against {plain(diff.before)}"])
    page.row("settings", _settings(diff, rows), bullets=True)
    _parts(page, diff)
    _path(page, diff)
    lengthen = [item for item in diff.differences if item.delta > 0]
    shorten = [item for item in diff.differences if item.delta <= 0]
    _differences(page, "slower", lengthen, rows)
    _differences(page, "faster", shorten, rows)
    page.blank()
    page.row("notes", [plain(note) for note in diff.notes], style=Style.DIM)
    return page.text()


def render_json(diff: ProfileDiff) -> str:
    """Everything, one object, times in ns."""
    whole = {"schema": SCHEMA, "tool_version": __version__, **_plain(asdict(diff))}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _settings(diff: ProfileDiff, rows: int) -> list[str]:
    """Every changed setting in words; nodes together."""
    said = [_setting(change) for change in diff.settings if change.area is not Area.NODES]
    nodes = [change for change in diff.settings if change.area is Area.NODES]
    if nodes:
        parts = [
            (mark, [n.key for n in nodes if (n.before is None) is new])
            for mark, new in (("+", True), ("−", False))
        ]
        words = [f"{mark}{plain(name)}" for mark, names in parts for name in names[:rows]]
        more = f" and {len(nodes) - len(words):,} more" if len(nodes) > len(words) else ""
        said.append(f"nodes: {' '.join(words)}{more}")
    left = len(said) - rows
    if left > 0:
        said = [*said[:rows], f"… and {left:,} more (--verbose, --format json)"]
    if not said and diff.recorded:
        said = [f"none changed of what was recorded: {', '.join(area.value for area in diff.recorded)}"]
    return said or ["not recorded: start both runs with megatrace run to have them compared"]


def _setting(change: SettingChange) -> str:
    before, after = (_value(value) for value in (change.before, change.after))
    area, name = change.area.value, plain(change.key)
    return f"{name if name == area else f'{area} {name}'}: {before} → {after}"


def _value(value: str | None) -> str:
    return "not set" if value is None else clip(plain(value), VALUE)


def _parts(page: Page, diff: ProfileDiff) -> None:
    rows = [
        (
            part.name,
            format_duration(part.before),
            format_duration(part.after),
            _delta(part.after - part.before),
        )
        for part in diff.parts
    ]
    if rows:
        page.blank()
        page.block("step", table(("device, a rank", "before", "after", "change"), rows))


def _path(page: Page, diff: ProfileDiff) -> None:
    said = [
        f"{kind.value} {_delta(after - before)}"
        for kind, before, after in diff.path
        if abs(after - before) > 0.005 * diff.step_before
    ]
    page.blank()
    page.row("path", [f"on the critical path: {' · '.join(said)}"] if said else [])


def _differences(page: Page, label: str, found: Sequence[Difference], rows: int) -> None:
    if not found:
        return
    page.blank()
    shown = [
        (
            _delta(item.delta),
            f"{format_duration(item.before)} → {format_duration(item.after)}",
            _calls(item),
            item.change.value,
            f"{item.subject.value} {plain(item.name)}",
        )
        for item in found[:rows]
    ]
    head = ("a step", "time", "calls", "", "what")
    names = page.room - max(cells(line) for line in table(head[:-1], [row[:-1] for row in shown])) - 2
    lines = table(head, [(*row[:-1], clip(row[-1], max(names, 12))) for row in shown])
    left = len(found) - rows
    page.block(label, lines + ([f"… and {left:,} more (--verbose, --format json)"] if left > 0 else []))
    for item in found[:rows]:
        if item.instead_of:
            page.row(
                "", [f"{clip(plain(item.name), 40)} comes instead of {clip(plain(item.instead_of), 40)}"]
            )


def _calls(item: Difference) -> str:
    before, after = format_number(item.before_count), format_number(item.after_count)
    return before if before == after else f"{before} → {after}"


def _delta(ns: float) -> str:
    return f"{'+' if ns > 0 else '−' if ns < 0 else ''}{format_duration(abs(ns))}"


def _said(item: Difference) -> str:
    return f"{_delta(item.delta)} a step, {item.change.value}"
