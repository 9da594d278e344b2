"""Straight lines through what two clocks say of the same moments, without means.

A clock runs away from another one steadily for minutes to hours (temperature moves it by a part per million
or so), so the difference of two clocks is a line in time plus disturbances that lie on one side: a late
completion record, a host that was busy. Hence medians of windows and the median of slopes (Theil–Sen), which
a third of bad samples cannot move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]

# Windows that a run is cut into: 24 give 276 slopes, more are no more exact.
WINDOWS = 24
# Samples a line needs; below, the clocks are taken as running alike over what was seen.
ENOUGH = 6
# A slope is believed where it is this many times the scatter of the slopes: else it is drawn by noise.
CLEAR = 3.0
# No clock of a server is further off than this (crystals without any correction are within 100 ppm).
PPM_LIMIT = 500.0
# Share of samples that may lie outside of a bound: records that came late or got the wrong partner.
BAD = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """offset + slope · x for each of C columns; ``scatter`` float64 [C]: largest deviation of a window's
    median, ns. NaN where a column has no sample."""

    offset: F8
    slope: F8
    scatter: F8

    def at(self, x: F8) -> F8:
        """[I] or [I, C] → [I, C]."""
        x = x if x.ndim == 2 else x[:, None]
        return np.asarray(self.offset + self.slope * x)


def fit(x: F8, y: F8) -> Lines:
    """Lines through y [I, C] over x [I], NaN where not seen."""
    windows = np.array_split(np.argsort(x), max(min(WINDOWS, len(x) // 2), 1))
    at = np.asarray([np.median(x[part]) for part in windows])
    level = np.stack([nanmedian(y[part]) for part in windows])  # [W, C]
    slope = _slopes(at, level) if len(x) >= ENOUGH and len(windows) > 2 else np.zeros(y.shape[1])
    offset = nanmedian(y - slope * x[:, None])
    deviation = np.abs(level - (offset + slope * at[:, None]))
    return Lines(offset, slope, np.asarray(np.fmax.reduce(deviation, axis=0)))


def _slopes(at: F8, level: F8) -> F8:
    """float64 [C]: the median of the slopes between windows; 0 where noise alone explains it."""
    a, b = np.triu_indices(len(at), k=max(len(at) // 3, 1))  # far apart: near ones are all noise
    run = at[b] - at[a]
    usable = run > 0
    if not usable.any():
        return np.zeros(level.shape[1])
    slopes = (level[b[usable]] - level[a[usable]]) / run[usable, None]
    middle = nanmedian(slopes)
    spread = nanmedian(np.abs(slopes - middle))
    clear = (np.abs(middle) >= CLEAR * spread / np.sqrt(len(at))) & (np.abs(middle) <= PPM_LIMIT * 1e-6)
    return np.asarray(np.where(clear, middle, 0.0))


def nanmedian(values: F8) -> F8:
    """float64 [C]: median over axis 0 of what is there; NaN where nothing is."""
    ordered = np.sort(values, axis=0)  # NaN last
    count = np.sum(~np.isnan(values), axis=0)
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, max(len(values) - 1, 0))
    columns = np.arange(values.shape[1])
    return np.asarray(np.where(count > 0, (ordered[low, columns] + ordered[high, columns]) / 2, np.nan))


def lower_edge(values: F8) -> F8:
    """float64 [C]: the low end over axis 0, but for the share of bad samples; NaN where nothing is."""
    ordered = np.sort(values, axis=0)
    count = np.sum(~np.isnan(values), axis=0)
    index = np.minimum((count * BAD).astype(np.int64), max(len(values) - 1, 0))
    return np.asarray(ordered[index, np.arange(values.shape[1])])
