"""Groups from times alone, for logs that name no communicator.

Pipeline depth follows from the ends: only the first stage begins an iteration with a Send, and it is one
stage of all. Tensor groups follow from coupling: members of a group finish every collective together, so
their call times keep a far steadier distance than those of two replicas, which meet once an iteration. Ranks
are assumed to be numbered with tensor parallelism fastest, as every launcher in use does; a log in another
order is told apart as "not inferred".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.channels import Channels
from megatrace.analysis.iterations import Iterations
from megatrace.analysis.roles import Role
from megatrace.model.events import NO_SEQ, Events, Op

# A boundary between two tensor groups must be this much looser than the joints beside it. Hosts wake up some
# 50 µs apart inside a group; replicas, of which each waits for its own kernels, twice as far or more. The
# spread of one joint is known to a tenth or so.
LOOSER = 1.3
# ... and typically this much looser.
TYPICALLY = 1.5
# Share of boundaries that may look like joints.
MISPLACED = 0.05
# Calls compared per pair of neighbouring ranks; enough for a median, cheap for ten thousand ranks.
CALLS = 2048


@dataclass(frozen=True, slots=True)
class Ends:
    """What the ends of the pipeline look like: ranks of the first stage, of any other, and the depth if it
    shows."""

    first: tuple[int, ...]
    other: tuple[int, ...]
    depth: int | None

    def stage_size(self, world: int) -> tuple[int, int] | None:
        """(ranks of one stage, stages), or None where the ranks seen leave it open.

        Ranks of the first stage are the lowest, so its size lies between the highest of them and the lowest
        of the others; the depth, if it shows, narrows it further. Where the two are neighbours nothing is
        left open, and a depth that disagrees (interleaved stages receive before they send) is none.
        """
        if not self.first or not self.other:
            return None
        low, high = max(self.first) + 1, min(self.other)
        if low == high and world % low == 0:
            return low, max(world // low, self.depth or 0)
        if self.depth is not None:
            low = max(low, -(-world // self.depth))
        return (low, self.depth) if low == high and self.depth is not None else None


def pipeline_ends(events: Events, channels: Channels, role: NDArray[np.uint8], it: Iterations) -> Ends:
    """Which ranks begin an iteration with a Send, and how many Sends they make before the first Recv.

    In 1F1B the first stage sends pp micro-batches before it needs a gradient; where it sends all of them
    first (GPipe, or fewer micro-batches than stages) the depth does not show.
    """
    pipeline = role[channels.of_event] == Role.PIPELINE
    first: list[int] = []
    other: list[int] = []
    depths: list[int] = []
    for rank in it.ranks:
        of_rank = np.flatnonzero((it.rank == rank) & it.complete)
        if not len(of_rank):
            continue
        # An iteration of the usual length: with an evaluation in front the first stage sends more.
        i = of_rank[np.argsort((it.row - it.start)[of_rank], kind="stable")[len(of_rank) // 2]]
        rows = np.arange(it.start[i], it.row[i] + 1)
        p2p = events.op[rows[pipeline[rows]]]
        if not len(p2p):
            continue
        if p2p[0] != Op.SEND:
            other.append(int(rank))
            continue
        first.append(int(rank))
        recvs = np.flatnonzero(p2p == Op.RECV)
        sends = int(np.sum(p2p == Op.SEND))
        if len(recvs) and recvs[0] < sends:
            depths.append(int(recvs[0]))
    depth = int(np.median(depths)) if depths else None
    return Ends(tuple(first), tuple(other), depth)


def tensor_size(
    events: Events, channels: Channels, role: NDArray[np.uint8], stage_size: int, data_is_alone: bool
) -> int | None:
    """Members of a tensor group, a divisor of ``stage_size``, or None where the times do not tell."""
    tensor = np.flatnonzero(role == Role.TENSOR)
    if not len(tensor):
        return 1
    if data_is_alone or stage_size == 1:
        return stage_size
    looseness = _looseness(events, channels, tensor, stage_size)
    return _size_of_groups(looseness, stage_size)


def _size_of_groups(looseness: dict[int, float], stage_size: int) -> int | None:
    """The smallest size at which every boundary is looser than the joints on both sides of it.

    Compared with its neighbours only: who stands beside a slow group is a thousand times as far from it as
    replicas in step are from each other, and the slow member is further from its group than those, too.
    """
    for size in (d for d in range(2, stage_size) if stage_size % d == 0):
        ratios: list[float] = []
        for at in (at for at in looseness if (at + 1) % size == 0):
            beside = [looseness[i] for i in range(at + 1 - size, at + size) if i != at and i in looseness]
            if beside:
                ratios.append(looseness[at] / max(float(np.median(beside)), 1.0))
        if not ratios or float(np.median(ratios)) < TYPICALLY:
            continue
        if float(np.mean(np.asarray(ratios) < LOOSER)) <= MISPLACED:
            return size
    return None


def _looseness(
    events: Events, channels: Channels, tensor: NDArray[np.intp], stage_size: int
) -> dict[int, float]:
    """ns, by rank i: spread of the distance between the calls of ranks i and i + 1 of one stage."""
    rows_of: dict[int, NDArray[np.intp]] = {}
    for channel in tensor:
        rank = int(channels.rank[channel])
        part = events.rows_of(rank)
        rows = np.flatnonzero(channels.of_event[part] == channel) + part.start
        rows_of[rank] = rows[-CALLS:]
    result: dict[int, float] = {}
    for rank, rows in rows_of.items():
        other = rows_of.get(rank + 1)
        if other is None or (rank + 1) % stage_size == 0:
            continue
        mine, theirs = _same_calls(events, rows, other)
        if len(mine) < 16:
            continue
        distance = (events.enqueue[rows[mine]] - events.enqueue[other[theirs]]).astype(np.float64)
        result[rank] = _spread(distance)
    return result


def _same_calls(
    events: Events, rows: NDArray[np.intp], other: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices into both of the calls with one number; without numbers, counted from the end."""
    if bool(np.any(events.seq[rows] == NO_SEQ)) or bool(np.any(events.seq[other] == NO_SEQ)):
        both = min(len(rows), len(other))
        return np.arange(len(rows) - both, len(rows)), np.arange(len(other) - both, len(other))
    _, mine, theirs = np.intersect1d(events.seq[rows], events.seq[other], return_indices=True)
    return mine, theirs


def _spread(distance: NDArray[np.float64]) -> float:
    return float(np.median(np.abs(distance - np.median(distance))))
