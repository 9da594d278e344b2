"""Lateness against other clocks, less what their alignment may be wrong by.

What a rank did on its own clock is exact; how late it was against ranks of other nodes is known to within the
bound of the alignment. So that no rank is accused for its node's clock, that bound is taken off every such
lateness here, once, before anything is judged. Where clocks could not be aligned, lateness between them is
unknown.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.align import Alignment
from megatrace.analysis.work import WorkTable
from megatrace.model.graph import IterationGraph
from megatrace.model.schedule import Schedule

F8 = NDArray[np.float64]


def beyond_error(table: WorkTable, schedule: Schedule, alignment: Alignment) -> WorkTable:
    """The table with transfers, entries and offsets within groups less the bound; NaN (unknown) where it is
    inf.
    """
    if len(alignment.nodes) < 2:
        return table
    grid = table.grid.astype(np.int64)
    stages, _, _ = grid.shape
    sender = IterationGraph.of(schedule).sender.reshape(stages, -1)
    tasks = sender.shape[1]
    feeder = np.where(sender >= 0, sender // tasks, np.arange(stages)[:, None])
    source = np.moveaxis(grid[feeder], 1, 3)  # [S, T, D, M] → [S, D, M, T]
    by_path = alignment.error_between(grid[..., None], source) / 1e9
    by_stage = _against_others(alignment, grid.reshape(stages, -1)).reshape(grid.shape)
    by_group = _against_others(alignment, grid)
    return replace(
        table,
        transfer=_less(table.transfer, by_path),
        entry=_less(table.entry, by_stage),
        offset=_less(table.offset, by_group[..., None]),
    )


def _less(late: F8, error: F8) -> F8:
    """Lateness beyond the error; where it is within, nothing; where early, as it was."""
    known = np.where(np.isfinite(error), error, np.nan)
    return np.asarray(np.where(late > 0, np.maximum(late - known, 0.0), late + 0 * known))


def _against_others(alignment: Alignment, ranks: NDArray[np.int64]) -> F8:
    """float64 like ``ranks`` [..., N], seconds: bound for a rank's lateness against the middle of its row.

    Zero where the whole row is on one clock; inf for all where less than half of it is aligned.
    """
    clock = alignment.clock_of[ranks]
    error = alignment.error_ns[clock]
    usable = np.isfinite(error)
    others = np.where(usable, error, 0.0).max(axis=-1, keepdims=True)
    others = np.where(usable.mean(axis=-1, keepdims=True) > 0.5, others, np.inf)
    alone = (clock == clock[..., :1]).all(axis=-1, keepdims=True)
    return np.asarray(np.where(alone, 0.0, error + others) / 1e9)
