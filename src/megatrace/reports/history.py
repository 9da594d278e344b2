"""What became of a part or a machine, and the list of lemons, for people and for programs.

Reads records (``model.parts``); judges nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone

from megatrace.model.finding import Severity
from megatrace.model.parts import CLEARED, FAULT, Event, Lemon, Record
from megatrace.reports import ReportOptions
from megatrace.reports.page import Page, Style
from megatrace.reports.wording import plain
from megatrace.units import NS_PER_S, format_duration

SCHEMA = "megatrace.history/1"
SHOWN = 20
"""Events shown without --verbose."""
_LABEL = len("P0 fault")


def render(record: Record, options: ReportOptions) -> str:
    """The record of one part or machine for a terminal, the newest first; ends with a newline."""
    page = Page(options.width, _LABEL, options.colour)
    faults = [event for event in record.events if event.what == FAULT]
    open_ = [event for event in faults if event.ended is None]
    style = Style.RED if open_ else Style.GREEN
    page.headline(record.kind, style, _about(record, len(faults), len(open_)))
    page.blank()
    shown = record.events if options.verbose else record.events[:SHOWN]
    for event in shown:
        page.row(_label(event), [_line(event)], style=_style(event))
    if len(shown) < len(record.events):
        page.row("", [f"… {len(record.events) - len(shown)} more with --verbose"])
    return page.text()


def render_lemons(lemons: Sequence[Lemon], days: int, options: ReportOptions) -> str:
    """The list of lemons for a terminal; ends with a newline."""
    page = Page(options.width, _LABEL, options.colour)
    if not lemons:
        page.headline("none", Style.GREEN, f"nothing broke again and again in {_plural(days, 'day')}")
        return page.text()
    page.headline(
        str(len(lemons)), Style.RED, f"broke again and again in {_plural(days, 'day')}: replace, do not mend"
    )
    page.blank()
    for lemon in lemons:
        where = f" at {lemon.node} {lemon.slot}".rstrip() if lemon.kind != "node" else ""
        text = (
            f"{lemon.kind} {plain(lemon.name)}{plain(where)}: {_plural(lemon.episodes, 'episode')} on "
            f"{_plural(lemon.days, 'day')}, the last {_when(lemon.last)}: {plain(lemon.text)}"
        )
        page.row(lemon.worst.name, [text], style=Style.RED if lemon.worst <= Severity.P1 else Style.YELLOW)
    return page.text()


def as_json(values: Record | Sequence[Lemon]) -> str:
    """For programs: schema ``megatrace.history/1``, times ns since the epoch as text; ends with a newline."""
    if isinstance(values, Record):
        what: dict[str, object] = {"record": asdict(values)}
    else:
        what = {"lemons": [asdict(item) for item in values]}
    return json.dumps({"schema": SCHEMA, **_told(what)}, indent=1, ensure_ascii=False) + "\n"


def _told(value: dict[str, object]) -> dict[str, object]:
    return {key: _plain_value(key, item) for key, item in value.items()}


def _plain_value(key: str, value: object) -> object:
    if isinstance(value, dict):
        return _told(value)
    if isinstance(value, list | tuple):
        return [_plain_value(key, item) for item in value]
    if isinstance(value, Severity):
        return value.name
    if key in ("began", "seen", "ended", "first_seen", "last_seen", "last") and value is not None:
        return str(value)
    return value


def _about(record: Record, faults: int, lasting: int) -> str:
    model = f" ({plain(record.model)})" if record.model else ""
    place = "" if record.kind == "node" else f" · {plain(record.node)} {plain(record.slot)}".rstrip()
    counted = _plural(faults, "fault") + (f", {lasting} of them now" if lasting else "")
    return f"{plain(record.name)}{model}{place} · known since {_when(record.first_seen)} · {counted}"


def _label(event: Event) -> str:
    return f"{event.severity.name} {event.what}" if event.what == FAULT else event.what


def _style(event: Event) -> Style:
    if event.what == FAULT:
        return Style.RED if event.severity <= Severity.P1 else Style.YELLOW
    return Style.GREEN if event.what == CLEARED else Style.BOLD


def _line(event: Event) -> str:
    where = f"{plain(event.node)} {plain(event.slot)}".strip()
    if event.what == CLEARED:
        return f"{_when(event.began)}  by {plain(event.source) or 'somebody'}: {plain(event.text)}"
    if event.what != FAULT:
        return f"{_when(event.began)}  {plain(event.text)}"
    until = "still" if event.ended is None else f"for {format_duration(max(event.ended - event.began, 0))}"
    return f"{_when(event.began)}  {until}  {where}  {event.source}  {plain(event.text)}"


def _when(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns // NS_PER_S, timezone.utc):%Y-%m-%d %H:%M} UTC"


def _plural(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"
