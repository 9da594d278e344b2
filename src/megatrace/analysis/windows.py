"""When a fault was there: a window, now and then, or to the end.

A step is found as a change point in the seconds that a suspect costs: where the affected iterations lie dense
they are one window; scattered ones are intermittent, if there are too many to be chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.model.finding import Status

# From this share of affected iterations between the first and the last, they are one window.
DENSE = 0.6
# Longest run of undisturbed iterations inside a window: beyond it the fault went away and came back.
PAUSE = 3
# So many affected iterations in a row make a window; a fault that shows for fewer each time comes and goes.
STRETCH = 3


@dataclass(frozen=True, slots=True)
class Span:
    """Indices (not iteration numbers) first..last of the affected iterations, and how the fault behaves."""

    first: int
    last: int
    affected: int
    status: Status


def spans(affected: NDArray[np.bool_]) -> list[Span]:
    """Windows of a series of affected iterations; one intermittent span where they are scattered."""
    where = np.flatnonzero(affected)
    if not len(where):
        return []
    n = len(affected)
    breaks = np.flatnonzero(np.diff(where) > PAUSE)
    pieces = np.split(where, breaks + 1)
    solid = (len(piece) >= STRETCH and _density(piece) >= DENSE for piece in pieces)
    scattered = len(pieces) > 1 and not any(solid)
    if len(pieces) > 2 or scattered or (_density(where) < DENSE and len(pieces) == 1):
        return [Span(int(where[0]), int(where[-1]), len(where), Status.INTERMITTENT)]
    found: list[Span] = []
    for piece in pieces:
        # One quiet iteration at the end of a short log does not prove recovery, two do.
        status = Status.ONGOING if piece[-1] >= n - 2 else Status.RECOVERED
        found.append(Span(int(piece[0]), int(piece[-1]), len(piece), status))
    return found


def _density(where: NDArray[np.intp]) -> float:
    return len(where) / float(where[-1] - where[0] + 1)
