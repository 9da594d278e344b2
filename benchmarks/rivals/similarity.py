"""Similarity of machine metrics (as Minder): in a balanced job all machines look alike, and the one that
stays far from the others for several windows is faulty.

Its metrics are those a second-by-second monitor has: busy time of the device, time in collectives and time in
transfers, one window an iteration. The paper denoises with an autoencoder; a median over three windows stands
for it here.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.seen import F8, NOBODY, Named, Seen

WINDOWS = 3
"""Consecutive windows in which the same machine must stand out: the paper's continuity check, shortened to
jobs of 16 windows."""


class Similarity:
    """The rank whose distance to all others stands out by ``threshold`` deviations, window after window."""

    name = "metric similarity (Minder-like)"
    thresholds = (2.0, 3.0, 4.0, 5.0, 8.0)

    def hang(self, seen: Seen) -> Named:
        """A machine that stands looks like all that wait for it."""
        del seen
        return NOBODY

    def slow(self, seen: Seen, threshold: float) -> Named:
        """The rank that stood out in ``WINDOWS`` windows in a row."""
        metrics = _metrics(seen)
        if metrics is None or len(metrics) < WINDOWS:
            return NOBODY
        order = np.sort(np.stack([metrics[:-2], metrics[1:-1], metrics[2:]]), axis=0)
        smooth = order[1]
        spread = smooth.std(axis=1, keepdims=True)
        scaled = (smooth - smooth.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-9)
        distance = np.linalg.norm(scaled[:, :, None] - scaled[:, None], axis=3).sum(axis=2)
        score = (distance - distance.mean(axis=1, keepdims=True)) / np.maximum(
            distance.std(axis=1, keepdims=True), 1e-9
        )
        worst, run, before = score.argmax(axis=1), 0, -1
        for window, rank in enumerate(worst.tolist()):
            outside = score[window, rank] > threshold
            run = run + 1 if outside and rank == before else int(outside)
            before = rank if outside else -1
            if run >= WINDOWS:
                return frozenset({rank})
        return NOBODY


def _metrics(seen: Seen) -> F8 | None:
    """float64 [windows, world, metrics]."""
    table = seen.table
    if table is None or table.own is None or table.comm is None:
        return None
    columns = []
    for values in (table.own, table.comm, table.transfer):
        busy = np.nansum(values, axis=4)[1:]
        flat = np.zeros((len(busy), seen.layout.world_size))
        flat[:, table.grid.reshape(-1)] = busy.reshape(len(busy), -1)
        columns.append(flat / table.iteration[1:, None])
    return np.stack(columns, axis=2)
