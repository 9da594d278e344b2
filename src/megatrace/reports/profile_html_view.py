"""What the page of a profile says, as plain values for its template: sentence, figures, bars and tables.

Every picture has its numbers as a table, for whoever cannot see it and for quoting. Strings of the recording
go through ``plain`` here and through the template's escaping there.

Does not lay out anything, and leaves the pictures' numbers to ``profile_html_data``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatrace import __version__
from megatrace.model.profile_result import CriticalPath, ProfileResult, RankTime
from megatrace.reports import ReportOptions
from megatrace.reports.html_tables import Table
from megatrace.reports.html_view import Fact
from megatrace.reports.profile_html_data import KEYS, drawn_paths, drawn_points, path_title
from megatrace.reports.profile_html_tables import Section, collective_table, flame_table, path_table, sections
from megatrace.reports.profile_text import headline
from megatrace.reports.wording import plain, wall_time
from megatrace.units import format_duration, format_percent

MAX_BARS = 32
"""Ranks shown as bars, those with most exposed communication first: more are no picture but a list."""
DEVICE = (
    ("compute", "computing"),
    ("overlap", "computing over communication"),
    ("communication", "exposed communication"),
    ("memory", "only copies"),
    ("idle", "idle"),
)
"""(colour, words) of what a device does; they add up to its span."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a bar: its colour, where it begins and how wide it is (of 100), and what it says."""

    key: str
    at: float
    width: float
    said: str


@dataclass(frozen=True, slots=True)
class Part:
    """One colour of the legend."""

    key: str
    name: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of bars: its label, numbers beside it, its pieces, and all of it in words."""

    label: str
    cells: tuple[str, ...]
    pieces: tuple[Piece, ...]
    said: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars, one a row. The last heading is that of the bars."""

    title: str
    head: tuple[str, ...]
    parts: tuple[Part, ...]
    rows: tuple[Bar, ...]
    more: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture: ``id`` tells the script which."""

    id: str
    title: str
    say: str
    table: Table
    bars: Bars | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the template shows."""

    sentence: str
    made: str
    version: str
    facts: tuple[Fact, ...]
    devices: Bars | None
    figures: tuple[Figure, ...]
    tables: tuple[Section, ...]
    inputs: tuple[str, ...]
    notes: tuple[str, ...]
    command: str


def view(result: ProfileResult, options: ReportOptions) -> View:
    """The view of a profile."""
    made = None if options.generated_at is None else wall_time(options.generated_at, date=True)
    return View(
        sentence=headline(result),
        made="" if made is None else f"made {made[:16]} UTC",
        version=f"MegaTrace {__version__}",
        facts=_facts(result),
        devices=device_bars(result.ranks),
        figures=_figures(result),
        tables=sections(result),
        inputs=tuple(
            f"{plain(one.path)}: rank {one.rank}, {one.activities:,} activities"
            + (f", {plain(one.device_name)}" if one.device_name else "")
            for one in result.inputs
        ),
        notes=tuple(plain(note) for note in result.notes),
        command=plain(options.command),
    )


def share(part: float, whole: float) -> str:
    """A part of a whole in percent."""
    return format_percent(part / whole) if whole else "0 %"


def _facts(result: ProfileResult) -> tuple[Fact, ...]:
    """What one wants to know first: exposed communication, idle, the longest part of the path, the best
    saving."""
    facts = []
    span = sum(one.span for one in result.ranks)
    if span:
        exposed, idle = (sum(getattr(one, name) for one in result.ranks) for name in ("exposed", "idle"))
        hidden = sum(one.overlap for one in result.ranks)
        line = f"{format_duration(hidden / len(result.ranks))} more was hidden behind compute"
        facts.append(Fact("Exposed communication", (share(exposed, span), line)))
        facts.append(Fact("Device idle", (share(idle, span), _idle(result))))
    paths = drawn_paths(result)
    if paths:
        path = paths[0]
        kind, time = path.by_kind[0]
        lines = (
            f"{kind.value} {share(time, path.length)}",
            f"of {format_duration(path.length)}, {path_title(path)}",
        )
        facts.append(Fact("Longest on the critical path", lines))
        facts.append(_saving(path))
    return tuple(facts)


def _idle(result: ProfileResult) -> str:
    reasons: dict[str, int] = {}
    for stream in result.streams:
        for reason, time in stream.idle:
            reasons[reason.value] = reasons.get(reason.value, 0) + time
    most = max(reasons, key=lambda reason: reasons[reason], default="")
    return f"most of it {most}" if most and reasons[most] else ""


def _saving(path: CriticalPath) -> Fact:
    best = max(path.what_if, key=lambda one: one.saved, default=None)
    if best is None or best.saved <= 0:
        return Fact("If one thing were ideal", ("nothing to gain",))
    return Fact(
        "If one thing were ideal",
        (f"−{share(best.saved, path.length)}", f"without {best.kind.value}: {format_duration(best.total)}"),
    )


def device_bars(ranks: Sequence[RankTime]) -> Bars | None:
    """A bar a rank; those with most exposed communication where there are many."""
    if not ranks:
        return None
    chosen = sorted(ranks, key=lambda one: -one.exposed)[:MAX_BARS]
    chosen.sort(key=lambda one: one.rank)
    longest = max(one.span for one in chosen)
    left = len(ranks) - len(chosen)
    return Bars(
        title="What each device did",
        head=("Rank", "Span", "Computing", "Exposed", "Idle", "What its device did"),
        parts=tuple(Part(key, name) for key, name in DEVICE),
        rows=tuple(_device(one, longest) for one in chosen),
        more=f"{left:,} ranks with less exposed communication are not shown." if left else "",
    )


def _device(one: RankTime, longest: int) -> Bar:
    times = (one.compute - one.overlap, one.overlap, one.exposed, one.memory_only, one.idle)
    named = [(key, name, time) for (key, name), time in zip(DEVICE, times, strict=True)]
    cells = (
        format_duration(one.span),
        *(share(time, one.span) for time in (one.compute, one.exposed, one.idle)),
    )
    return _bar(f"rank {one.rank}", cells, named, longest)


def _bar(label: str, cells: tuple[str, ...], times: Sequence[tuple[str, str, int]], whole: int) -> Bar:
    pieces, at = [], 0.0
    for key, name, time in times:
        width = 100.0 * max(time, 0) / max(whole, 1)
        if width > 0:
            pieces.append(Piece(key, round(at, 3), round(width, 3), f"{name} {format_duration(time)}"))
        at += width
    return Bar(label, cells, tuple(pieces), ", ".join(piece.said for piece in pieces))


def _figures(result: ProfileResult) -> tuple[Figure, ...]:
    figures = []
    paths = drawn_paths(result)
    if paths:
        say = "What the end had to wait for, walked back from it. A row a thread or stream."
        figures.append(Figure("path", "Critical path", say, path_table(paths[0]), _path_bars(paths)))
    if result.flame is not None and result.flame.total > 0:
        say = "Operators on the host below what called them, as wide as their time. A click widens one."
        figures.append(Figure("flame", "Operators by caller", say, flame_table(result.flame)))
    if drawn_points(result):
        say = "One mark a group and size; its area is the time spent. Bus bandwidth as nccl-tests counts it."
        figures.append(Figure("scatter", "Bandwidth of collectives", say, collective_table(result)))
    return tuple(figures)


def _path_bars(paths: Sequence[CriticalPath]) -> Bars:
    longest = max(path.length for path in paths)
    kinds = [kind for kind in KEYS if any(time for path in paths for k, time in path.by_kind if k is kind)]
    return Bars(
        title="What critical paths are made of",
        head=("Path", "Length", "What it is made of"),
        parts=tuple(Part(KEYS[kind], kind.value) for kind in kinds),
        rows=tuple(
            _bar(
                path_title(path),
                (format_duration(path.length),),
                [(KEYS[kind], kind.value, time) for kind, time in path.by_kind],
                longest,
            )
            for path in paths
        ),
    )
