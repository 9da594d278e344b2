"""Which member of a tensor group is slow, where only host times are known.

A group's members finish each collective together, so their work looks equal. But the host of the slow one
reaches the block of calls later and carries that one offset through the burst: the median over a block's
calls is one observation of the offset, and there are as many observations as blocks. A member is named when
it is the latest in nearly every block, by more than the noise of the other groups; otherwise the group is
named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.work import WorkTable

F8 = NDArray[np.float64]

# Host jitter between two processes of one node is tens of microseconds.
FLOOR_S = 100e-6
# The member has to be the latest in this share of the blocks; by chance it is 1/M.
CONSISTENT = 0.7
# ... and to be ahead of the second latest by this factor.
CLEAR = 2.0
BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Member:
    """The verdict inside a group: index (None where it cannot be told), offset in seconds, share of
    blocks."""

    index: int | None
    offset_s: float
    normal_s: float
    share: float
    blocks: int


def late_member(table: WorkTable, stage: int, replica: int, iterations: NDArray[np.int64]) -> Member:
    """The member of a group that was late throughout the given iterations."""
    offset = table.offset[:, stage, replica]  # [K, M, T]
    members = offset.shape[1]
    inside = _blocks(offset[iterations])
    outside = _blocks(np.delete(offset, iterations, axis=0))
    if members == 1:
        return Member(0, 0.0, 0.0, 1.0, inside.shape[1])
    if inside.shape[1] < BLOCKS:
        return Member(None, 0.0, 0.0, 0.0, inside.shape[1])
    typical = np.median(inside, axis=1)
    index = int(np.argmax(typical))
    share = float(np.mean(np.argmax(inside, axis=0) == index))
    normal = float(np.median(outside[index])) if outside.shape[1] else 0.0
    second = float(np.sort(typical)[-2])
    late = float(typical[index])
    clear = late >= max(FLOOR_S, CLEAR * second, CLEAR * normal) and share >= CONSISTENT
    return Member(index if clear else None, late, normal, share, inside.shape[1])


def _blocks(offset: F8) -> F8:
    """[K, M, T] → [M, blocks], blocks that all members were seen in."""
    flat = np.moveaxis(offset, 1, 0).reshape(offset.shape[1], -1)
    return np.asarray(flat[:, ~np.isnan(flat).any(axis=0)])
