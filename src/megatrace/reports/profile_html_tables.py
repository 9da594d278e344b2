"""Tables of a profile's page: beside its pictures, and those that stand for themselves.

Only picks, sorts and rounds what is in the `ProfileResult`; every table says how much it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatrace.model.profile_result import CriticalPath, Frame, ProfileResult
from megatrace.reports.html_tables import Row, Table
from megatrace.reports.profile_html_data import path_title, short
from megatrace.reports.wording import plain
from megatrace.units import format_count, format_duration, format_number, format_percent, format_size

MAX_ROWS = 20
"""Rows of a table: what is below the twentieth place takes less than a hundredth of the time."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title and what it says."""

    title: str
    say: str
    table: Table


def sections(result: ProfileResult) -> tuple[Section, ...]:
    """The tables that stand for themselves; what was not recorded has none."""
    made = (
        ("Kernels", "Work of the device by its name, all ranks together.", _kernels(result)),
        (
            "Operators",
            "Own time is without what an operator calls; device time is all that it launched.",
            _operators(result),
        ),
        ("Modules", "Parts of the model as the recording names them.", _modules(result)),
        ("Streams", "Busy time, and why a stream stood still between two pieces of work.", _streams(result)),
        (
            "Launch queues",
            "Work launched and not started; an empty queue means that the host is too slow.",
            _queues(result),
        ),
        ("Memory", "Allocated memory of each device.", _memory(result)),
    )
    return tuple(Section(title, say, table) for title, say, table in made if table.rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 1) -> Table:
    left = len(rows) - MAX_ROWS
    caption = f"The first {MAX_ROWS} of {len(rows):,}." if left > 0 else ""
    return Table(caption, tuple(head), tuple(Row(tuple(row)) for row in rows[:MAX_ROWS]), numbers)


def _share(part: float, whole: float) -> str:
    return format_percent(part / whole) if whole else "0 %"


def path_table(path: CriticalPath) -> Table:
    """What is on a path, by name."""
    rows = [
        (short(name) or "(nothing recorded)", kind.value, format_duration(time), _share(time, path.length))
        for name, kind, time in path.by_name
    ]
    table = _table(("On the path", "Kind", "Time", "Share"), rows, numbers=2)
    return Table(f"{path_title(path)}. {table.caption}".strip(), table.head, table.rows, table.numbers)


def flame_table(root: Frame) -> Table:
    """The operators with most own time in one place."""
    found: list[tuple[str, Frame]] = []
    stack = [("", root)]
    while stack:
        caller, frame = stack.pop()
        if frame is not root:
            found.append((caller, frame))
        stack += [("" if frame is root else frame.name, child) for child in frame.children]
    found.sort(key=lambda item: -item[1].own)
    rows = [
        (
            short(frame.name),
            short(caller) or "–",
            format_duration(frame.own),
            format_duration(frame.total),
            format_count(frame.count),
        )
        for caller, frame in found
    ]
    return _table(("Operator", "Called in", "Own", "Total", "Count"), rows, numbers=2)


def collective_table(result: ProfileResult) -> Table:
    """All collectives of known size and bandwidth."""
    rows = [
        (
            one.op.name,
            plain(one.group) or "–",
            "–" if one.group_size is None else str(one.group_size),
            "–" if one.nbytes is None else format_size(one.nbytes),
            format_count(one.count),
            format_duration(one.p50),
            format_duration(one.exposed),
            _speed(one.algorithm),
            _speed(one.bus),
            _share_of(one.bus, one.link),
            _share_of(one.bus, one.alike),
        )
        for one in result.collectives
    ]
    speeds = ("Algorithm", "Bus", "Of link", "Of alike")
    head = ("Operation", "Group", "Ranks", "Size", "Count", "Median", "Exposed", *speeds)
    return _table(head, rows, numbers=2)


def _share_of(value: float | None, whole: float | None) -> str:
    return "–" if value is None or not whole else f"{value / whole:.0%}"


def _speed(value: float | None) -> str:
    return "–" if value is None else f"{format_number(value / 1e9)} GB/s"


def _kernels(result: ProfileResult) -> Table:
    whole = sum(one.total for one in result.kernels)
    rows = [
        (
            short(one.name),
            one.kind.value,
            short(", ".join(one.operators[:2])) or "–",
            format_duration(one.total),
            _share(one.total, whole),
            format_count(one.count),
            format_duration(one.p50),
            format_duration(one.p95),
        )
        for one in result.kernels
    ]
    return _table(("Kernel", "Kind", "Launched in", "Total", "Share", "Count", "p50", "p95"), rows, numbers=3)


def _operators(result: ProfileResult) -> Table:
    rows = [
        (
            short(one.name),
            format_duration(one.own),
            format_duration(one.total),
            format_duration(one.device_total),
            format_count(one.count),
            format_duration(one.p50),
            format_duration(one.p95),
        )
        for one in result.operators
    ]
    return _table(("Operator", "Own", "Total", "Device", "Count", "p50", "p95"), rows)


def _modules(result: ProfileResult) -> Table:
    rows = [
        (
            short(one.name),
            format_duration(one.total),
            format_duration(one.device_total),
            format_count(one.count),
        )
        for one in result.modules
    ]
    return _table(("Module", "Total", "Device", "Count"), rows)


def _streams(result: ProfileResult) -> Table:
    rows = []
    for one in result.streams:
        idle = dict(one.idle)
        waits = (format_duration(idle[reason]) for reason in idle)
        busy = one.compute + one.communication + one.memory
        rows.append(
            (f"rank {one.rank} stream {one.stream}", format_count(one.count), format_duration(busy), *waits)
        )
    reasons = [reason.value for reason, _ in result.streams[0].idle] if result.streams else []
    head = ("Stream", "Pieces of work", "Busy", *(reason.capitalize() for reason in reasons))
    return _table(head, rows)


def _queues(result: ProfileResult) -> Table:
    rows = [
        (
            f"rank {one.rank} stream {one.stream}",
            format_count(one.launches),
            format_number(one.mean),
            str(one.p50),
            format_count(one.longest),
            format_duration(one.empty),
            format_duration(one.full),
        )
        for one in result.queues
    ]
    return _table(("Stream", "Launches", "Mean", "Median", "Longest", "Empty", "Full"), rows)


def _memory(result: ProfileResult) -> Table:
    rows = [
        (
            f"rank {one.rank} device {one.device}",
            _size(one.peak),
            _size(one.reserved_peak),
            _size(one.last),
            format_count(one.allocations),
            format_count(one.frees),
        )
        for one in result.memory
    ]
    return _table(("Device", "Highest", "Reserved", "Last", "Allocations", "Frees"), rows)


def _size(value: int | None) -> str:
    return "–" if value is None else format_size(value)
