"""Small pieces that all reports share: rounded numbers, moments of time, and strings from outside made safe.

Strings in a diagnosis come from logs and file names: they may hold escape sequences that would recolour or
rewrite a terminal, bidirectional controls that make text read differently from what it is, and lone
surrogates (file names that are not UTF-8) that no JSON parser likes. `plain` turns all of these into visible
text.

Durations and rank sets are written by ``units``; words are in ``texts``, line breaking in ``columns``.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone

from megatrace.model.events import UNSEEN
from megatrace.units import NS_PER_DAY, NS_PER_S, format_duration

EARLIEST_WALL_TIME = 946_684_800 * NS_PER_S
"""2000-01-01. A smaller time comes from a clock that counts from boot: no date can be told."""

LATEST_WALL_TIME = 4_102_444_800 * NS_PER_S
"""2100-01-01, the same on the other side: a broken time stamp is shown as seconds only."""

MAX_DURATION = 100 * 365 * NS_PER_DAY
"""A century. Longer ones, infinities and NaN come from a division by nearly nothing."""

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def plain(text: str) -> str:
    r"""Text without control, bidirectional or surrogate characters: each is written as \xNN or \uNNNN."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if match.group() in "\t\n\r":
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


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


def spoken(ns: float) -> str:
    """A duration in ns for the eye, "?" where it is no duration that a job can have."""
    return format_duration(ns) if abs(ns) < MAX_DURATION else "?"


def seconds_after(time: int | None, t0: int) -> float | None:
    """A time in ns as seconds after t0, to the microsecond; None where it was not observed."""
    if time is None or time == UNSEEN:
        return None
    return round((time - t0) / NS_PER_S, 6) + 0.0


def wall_time(time: int, *, date: bool = False) -> str | None:
    """ "02:13:41.207" or with its date, in UTC; None where its clock knows no date."""
    if not EARLIEST_WALL_TIME <= time < LATEST_WALL_TIME:
        return None
    moment = datetime.fromtimestamp(time // NS_PER_S, timezone.utc)
    text = f"{moment:%H:%M:%S}.{time % NS_PER_S // 1_000_000:03d}"
    return f"{moment:%Y-%m-%d} {text}" if date else text


def without_word(word: str, sentence: str) -> str:
    """A sentence without the verdict's word at its beginning, which stands before it already."""
    if sentence[: len(word)].upper() != word or not sentence[len(word) :].startswith((":", " ")):
        return sentence
    return sentence[len(word) :].lstrip(" :") or sentence
