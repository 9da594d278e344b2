"""Small pieces of text that all reports share: rank sets, numbers, durations, strings from outside made safe.

Strings in a diagnosis come from logs and file names: they may hold escape sequences that would recolour or
rewrite a terminal, bidirectional controls that make text read differently from what it is, and lone
surrogates (file names that are not UTF-8) that no JSON parser likes. `plain` turns all of these into visible
text.

Does not know languages (``texts``) nor line breaking (``columns``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime, timezone

from megatrace.model.events import UNSEEN

NS_PER_S = 1_000_000_000

EARLIEST_WALL_TIME = 946_684_800 * NS_PER_S
"""2000-01-01. A smaller time comes from a clock that counts from boot: no date can be told."""

LATEST_WALL_TIME = 4_102_444_800 * NS_PER_S
"""2100-01-01, the same on the other side: a broken time stamp is shown as seconds only."""

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def plain(text: str) -> str:
    r"""Text without control, bidirectional or surrogate characters: each is written as \xNN or \uNNNN."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if match.group() in "\t\n\r":
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Maximal runs of consecutive numbers, ascending, both ends inclusive; duplicates count once."""
    found: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found


def range_string(ranks: Iterable[int]) -> str:
    """A rank set as in the JSON report: "0-1,4-7", "" for none."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(ranks))


def ranges(ranks: Iterable[int]) -> str:
    """A rank set for reading: "0, 1, 4–7"."""
    parts: list[str] = []
    for first, last in runs(ranks):
        if last - first < 2:
            parts += [str(rank) for rank in range(first, last + 1)]
        else:
            parts.append(f"{first}–{last}")
    return ", ".join(parts)


def finite(value: float | None, digits: int) -> float | None:
    """A rounded number, or None for None, NaN and infinities (JSON has no word for those)."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), digits) + 0.0  # + 0.0 turns -0.0 into 0.0


def significant(value: float | None, digits: int = 6) -> float | None:
    """A number of which nobody knows the size, to so many significant digits; None as in `finite`."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}") + 0.0


def seconds_after(time: int | None, t0: int) -> float | None:
    """A time in ns as seconds after t0, to the microsecond; None where it was not observed."""
    if time is None or time == UNSEEN:
        return None
    return round((time - t0) / NS_PER_S, 6) + 0.0


def number(value: float) -> str:
    """Three significant digits and thousands grouped: "3,480", "17.1", "0.042"."""
    if not math.isfinite(value):
        return "?"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def milliseconds(ms: float | None) -> str:
    """A duration given in ms, in the unit in which people say it; "?" where not known."""
    if ms is None or not math.isfinite(ms):
        return "?"
    if ms >= 1000:
        return f"{ms / 1000:.2f} s" if ms < 100_000 else f"{ms / 1000:,.0f} s"
    if ms >= 1:
        return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"
    return f"{ms * 1000:.0f} µs"


def wall_time(time: int, *, date: bool = False) -> str | None:
    """ "02:13:41.207" or with its date, in UTC; None where its clock knows no date."""
    if not EARLIEST_WALL_TIME <= time < LATEST_WALL_TIME:
        return None
    moment = datetime.fromtimestamp(time // NS_PER_S, timezone.utc)
    text = f"{moment:%H:%M:%S}.{time % NS_PER_S // 1_000_000:03d}"
    return f"{moment:%Y-%m-%d} {text}" if date else text
