"""Which member of a tensor group is slow, where only host times are known.

A group's members finish each collective together, so their work looks equal. But the host of the slow one
reaches the block of calls later and carries that one offset through the burst: the median over a block's
calls is one observation of the offset, and there are as many observations as blocks. It shows in the blocks
before which a host waited for its own device, which may be half of them or all; blocks in which nobody is
clearly last say nothing. A member is named when it is the last in nearly all blocks that have a clear last;
otherwise the group is named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.work import WorkTable

F8 = NDArray[np.float64]

# A member is clearly last if it comes this much after the next one. Host jitter between two processes of one
# node is some 50 µs; constant skew inside healthy pairs of a real Megatron log reaches 0.27 ms.
LEAD_S = 300e-6
# It has to be the one in this share of the blocks with a clear last; by chance it is 1/M.
CONSISTENT = 0.8
# Such blocks must be this share of all, and as many: fewer are noise.
SHOWN = 0.15
BLOCKS = 8
# ... and the offset must have grown by this factor against the same member's own past, if there is one.
GROWN = 2.0


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
    last, lead = _leads(inside)
    decisive = lead >= LEAD_S
    if decisive.sum() < max(BLOCKS, SHOWN * inside.shape[1]):
        return Member(None, float(np.median(lead)), 0.0, 0.0, int(decisive.sum()))
    counts = np.bincount(last[decisive], minlength=members)
    index = int(np.argmax(counts))
    share = float(counts[index] / counts.sum())
    late = float(np.median(lead[decisive & (last == index)]))
    normal = _own_past(outside, index)
    clear = share >= CONSISTENT and late >= GROWN * normal
    return Member(index if clear else None, late, normal, share, int(decisive.sum()))


def _leads(blocks: F8) -> tuple[NDArray[np.intp], F8]:
    """[M, blocks] → (who was last, by how much after the next), per block."""
    ordered = np.sort(blocks, axis=0)
    return np.argmax(blocks, axis=0), np.asarray(ordered[-1] - ordered[-2])


def _own_past(outside: F8, index: int) -> float:
    """Seconds by which the member was last in ordinary blocks; 0 where it was not, or there were none."""
    if outside.shape[1] < BLOCKS:
        return 0.0
    last, lead = _leads(outside)
    return float(np.median(np.where(last == index, lead, 0.0)))


def _blocks(offset: F8) -> F8:
    """[K, M, T] → [M, blocks], blocks that all members were seen in."""
    flat = np.moveaxis(offset, 1, 0).reshape(offset.shape[1], -1)
    return np.asarray(flat[:, ~np.isnan(flat).any(axis=0)])
