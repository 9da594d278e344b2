"""Numbers as the kernel writes them, read from text that may be anything: a file that is cut, or of another
version."""

from __future__ import annotations

import math
import re

MAX_CPUS = 1 << 16
"""Processors of one machine: the largest have some thousand."""
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def number(text: str) -> float | None:
    """A finite number; None for anything else.

    >>> number("12"), number("nan"), number("²"), number("")
    (12.0, None, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def cpu_set(text: str) -> set[int]:
    """ "0-3,8" as {0, 1, 2, 3, 8}; parts that are none are left out.

    >>> sorted(cpu_set("0-3,8")), sorted(cpu_set("x,5-,9-7"))
    ([0, 1, 2, 3, 8], [])
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is not None:
            first, last = int(match[1]), int(match[2] or match[1])
            found.update(range(first, min(last, first + MAX_CPUS) + 1))
    return found
