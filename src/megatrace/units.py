"""Numbers with units, read and written the way the field writes them: durations, sizes, rank ranges, ratios.

One place, because a tool that says "1.61 s" in its report and "1610.2ms" on its page is read twice. Times
are int nanoseconds and sizes int bytes everywhere else; floats appear only on their way to the eye. What
cannot be read raises ValueError with one sentence (`errors` is a neighbour that this module may not know;
whoever reads user input turns it into a UsageError or a ConfigError, which can say where it stood). No
locale: the output goes into logs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NS_PER_MINUTE = 60 * NS_PER_S
NS_PER_HOUR = 60 * NS_PER_MINUTE
NS_PER_DAY = 24 * NS_PER_HOUR

SIGNIFICANT_DIGITS = 3
"""Measurements of a job repeat to about one percent; more digits would only look exact."""
MINUTES_FROM_NS = 120 * NS_PER_S
"""Up to two minutes people compare seconds ("101 s"), beyond that they think in minutes ("7 m 12 s")."""
MAX_RANKS = 10_000_000
"""A hundred times the largest jobs there are; a longer range is a slip of the pen that would fill the
memory."""

_TIME_UNITS = {
    "ns": 1,
    "us": NS_PER_US,
    "µs": NS_PER_US,  # U+00B5, micro sign
    "μs": NS_PER_US,  # U+03BC, Greek mu
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": NS_PER_MINUTE,
    "min": NS_PER_MINUTE,
    "h": NS_PER_HOUR,
    "d": NS_PER_DAY,
}
_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Zµμ]+)")


def _parts(text: str, units: dict[str, int], what: str, example: str) -> Iterator[Fraction]:
    position = 0
    while position < len(text.rstrip()):
        match = _PART.match(text, position)
        if match is None or match[2] not in units:
            allowed = ", ".join(units)
            raise ValueError(
                f"{text!r} is no {what}: expected numbers with units ({allowed}), as {example!r}"
            )
        yield Fraction(match[1]) * units[match[2]]
        position = match.end()
    if position == 0:
        raise ValueError(f"{text!r} is no {what}: expected something like {example!r}")


def parse_duration(text: str) -> int:
    """Reads "250ms", "1.5 s", "7 m 12 s" or "2h30m" as ns, rounding below one ns. Raises ValueError."""
    return round(sum(_parts(text, _TIME_UNITS, "duration", "1m30s")))


def parse_size(text: str) -> int:
    """Reads "64 KiB", "1.5GB" or "512B" as bytes. A bare K, M or G is refused, for it has two meanings."""
    return round(sum(_parts(text, _SIZE_UNITS, "size", "64 MiB")))


def format_number(value: float, digits: int = SIGNIFICANT_DIGITS) -> str:
    """So many significant digits, without an exponent and without trailing zeros: 1.61, 17.1, 1,612."""
    if value == 0 or not math.isfinite(value):
        return f"{value + 0:.0f}"  # + 0 turns -0.0 into 0.0
    decimals = digits - len(str(int(abs(value)))) if abs(value) >= 1 else digits + _leading_zeros(abs(value))
    text = f"{value:,.{max(decimals, 0)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text


def _leading_zeros(value: float) -> int:
    """How many zeros stand between the point and the first digit of 0 < value < 1."""
    return max(0, -int(f"{value:e}".partition("e")[2]) - 1)


def _scaled(value: float, units: list[tuple[str, int]]) -> str:
    """The value in the largest unit that keeps it at 1 or more after rounding, e.g. 999,700 ns as "1 ms"."""
    sign = "-" if value < 0 else ""
    value = abs(value)
    for position, (unit, factor) in enumerate(units):
        text = format_number(value / factor)
        last = position == len(units) - 1
        if last or float(text.replace(",", "")) * factor < units[position + 1][1]:
            return f"{sign}{text} {unit}"
    raise ValueError("no units given")


def format_duration(ns: float) -> str:
    """A duration for the eye: "38 µs", "4.51 ms", "1.61 s", "17.1 s", "7 m 12 s", "2 h 5 m", "3 d 4 h"."""
    if abs(ns) < MINUTES_FROM_NS - NS_PER_S / 2:
        return _scaled(ns, [("ns", 1), ("µs", NS_PER_US), ("ms", NS_PER_MS), ("s", NS_PER_S)])
    sign = "-" if ns < 0 else ""
    for large, small, large_ns, small_ns, limit_ns in (
        ("m", "s", NS_PER_MINUTE, NS_PER_S, NS_PER_HOUR),
        ("h", "m", NS_PER_HOUR, NS_PER_MINUTE, 2 * NS_PER_DAY),
        ("d", "h", NS_PER_DAY, NS_PER_HOUR, None),
    ):
        rounded = round(abs(ns) / small_ns) * small_ns
        if limit_ns is None or rounded < limit_ns:
            whole, rest = divmod(rounded, large_ns)
            tail = f" {rest // small_ns} {small}" if rest else ""
            return f"{sign}{whole:,} {large}{tail}"
    raise AssertionError("the last row has no limit")


def format_size(size: float) -> str:
    """Bytes for the eye, in powers of 1024: "512 B", "64 KiB", "1.5 GiB"."""
    return _scaled(size, [("B", 1), *((unit, _SIZE_UNITS[unit]) for unit in ("KiB", "MiB", "GiB", "TiB"))])


def format_ratio(ratio: float) -> str:
    """How many times: "2.5×"."""
    return f"{format_number(ratio)}×"


def format_percent(share: float) -> str:
    """A share of one as percent with at most two significant digits: "5 %", "0.42 %"."""
    return f"{format_number(share * 100, 2)} %"


def format_count(count: int) -> str:
    """A count with thousands apart: "3,479"."""
    return f"{count:,}"


def parse_ranks(text: str) -> tuple[int, ...]:
    """Reads "0-1,4-7" as (0, 1, 4, 5, 6, 7): sorted, each once; "" is no rank. Raises ValueError."""
    ranks: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part, re.ASCII)
        if match is None:
            raise ValueError(f"{part!r} in {text!r} is no rank range: expected numbers, as in '0-3,8'")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"the rank range {part!r} in {text!r} runs backwards; write {last}-{first}")
        if last >= MAX_RANKS:
            raise ValueError(f"the rank range {part!r} in {text!r} goes beyond rank {MAX_RANKS - 1:,}")
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def _runs(ranks: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for rank in sorted({int(rank) for rank in ranks}):
        if rank < 0:
            raise ValueError(f"{rank} is no rank: ranks count from 0")
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def format_ranks(ranks: Iterable[int]) -> str:
    """Ranks for machines: (0, 1, 4, 5, 6, 7) as "0-1,4-7". `parse_ranks` reads it back."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in _runs(ranks))


def say_ranks(ranks: Iterable[int]) -> str:
    """Ranks for people: "rank 2", "ranks 0, 1, 4–7", "no rank"."""
    runs = _runs(ranks)
    if not runs:
        return "no rank"
    words: list[str] = []
    for first, last in runs:
        if last - first >= 2:
            words.append(f"{first}–{last}")
        else:
            words.extend(str(rank) for rank in range(first, last + 1))
    alone = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"{'rank' if alone else 'ranks'} {', '.join(words)}"
