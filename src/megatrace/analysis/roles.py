"""What each channel is for: tensor, pipeline, data, context or expert traffic, or bookkeeping.

Decided from what the channel carries, because a call log names no group: Sends and Recvs are pipeline (or,
where they outnumber the pipeline's by far, context) traffic; the anchor's channel synchronises gradients;
all-to-all is expert traffic; the busiest channel of heavy collectives is tensor parallel; of the rest, what
is called throughout the iteration is context traffic, what is called at its end are gradients in buckets.

Does not know ranks or sizes of groups: ``infer_layout`` does.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.anchors import LIGHT_COUNT
from megatrace.analysis.channels import Channels
from megatrace.model.events import Events, Op
from megatrace.model.layout import Axis


class Role(IntEnum):
    """The use of a channel."""

    OTHER = 0
    TENSOR = 1
    PIPELINE = 2
    DATA = 3
    CONTEXT = 4
    EXPERT = 5


AXES: dict[Role, tuple[Axis, ...]] = {
    Role.TENSOR: (Axis.TENSOR,),
    Role.PIPELINE: (Axis.PIPELINE,),
    Role.DATA: (Axis.DATA, Axis.DATA_CONTEXT, Axis.EXPERT_DATA),
    Role.CONTEXT: (Axis.CONTEXT,),
    Role.EXPERT: (Axis.EXPERT,),
}
"""The axes of which a channel of a role may be a group."""

# A tensor-parallel channel carries at least two heavy collectives in every iteration; gradient buckets may do
# so too, but then there is a pipeline or the anchor's own channel that tells them apart.
TENSOR_CALLS_PER_ITERATION = 2.0

BUCKETED = 0.5
"""Share of an iteration's calls that lie between two calls of a channel for gradients: these come in the last
micro-batch only, keys and values in every layer of every micro-batch."""


def channel_roles(
    events: Events, channels: Channels, anchors: NDArray[np.int64], members: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """uint8 [channels], a ``Role`` each. ``members`` int64 [channels]: known group size, 0 where unknown."""
    role = np.zeros(len(channels), np.uint8)
    heavy = _heavy_calls(events, channels)
    per_anchor = np.bincount(channels.of_event[anchors], minlength=len(channels))
    ranks, first = np.unique(channels.rank, return_index=True)
    bounds = np.append(first, len(channels))
    iterations = np.zeros(len(channels))
    for i, rank in enumerate(ranks):
        part = slice(int(bounds[i]), int(bounds[i + 1]))
        iterations[part] = max(int(per_anchor[part].max(initial=0)), 1)
        role[part] = _roles_of_rank(
            channels, part, heavy[part], per_anchor[part], iterations[part], members[part]
        )
        unnamed = _unnamed(channels, part, role[part], heavy[part], members[part])
        for channel in np.arange(part.start, part.stop)[unnamed]:
            of_rank = channels.of_event[events.rows_of(int(rank))]
            role[channel] = _spread_or_bucketed(of_rank == channel, int(iterations[channel]))
    return role


def _unnamed(
    channels: Channels,
    part: slice,
    role: NDArray[np.uint8],
    heavy: NDArray[np.int64],
    members: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Channels of one rank that carry heavy collectives for which no use was found."""
    alone = channels.constant[part] | (members == 1)
    return np.asarray((role == Role.OTHER) & (2 * heavy > channels.total[part]) & ~alone)


def _spread_or_bucketed(own: NDArray[np.bool_], iterations: int) -> Role:
    """Context traffic or gradients, from where among a rank's calls (bool, one a call) those of the channel
    lie."""
    gaps = np.diff(np.flatnonzero(own))
    absent = int(np.sum(gaps > BUCKETED * len(own) / iterations))
    return Role.DATA if absent >= max(iterations - 1, 1) else Role.CONTEXT


def _heavy_calls(events: Events, channels: Channels) -> NDArray[np.int64]:
    if events.count is None:
        return channels.total
    heavy = channels.of_event[events.count > LIGHT_COUNT]
    return np.bincount(heavy, minlength=len(channels)).astype(np.int64)


def _roles_of_rank(
    channels: Channels,
    part: slice,
    heavy: NDArray[np.int64],
    anchored: NDArray[np.int64],
    iterations: NDArray[np.float64],
    members: NDArray[np.int64],
) -> NDArray[np.uint8]:
    calls, p2p = channels.calls[part], channels.p2p[part]
    alone = channels.constant[part] | (members == 1)
    role = np.zeros(len(heavy), np.uint8)
    role[p2p] = Role.PIPELINE
    rings = np.flatnonzero(p2p)
    if len(rings) > 1:
        # Context parallelism in its ring form exchanges keys and values in every layer; the pipeline only
        # between stages. Two pipeline channels (one a direction) carry equal numbers.
        totals = calls[rings].sum(axis=1)
        role[rings[totals > 2.5 * totals.min()]] = Role.CONTEXT
    role[calls[:, Op.ALL_TO_ALL] > 0] = Role.EXPERT
    data = np.flatnonzero((anchored > 0) & (heavy > 0) & ~p2p)
    if len(data):
        role[data[np.argmax(anchored[data])]] = Role.DATA
    busy = np.where((role == Role.OTHER) & ~alone, heavy, 0)
    if not len(data) and not p2p.any() and np.count_nonzero(busy) == 1:
        # All heavy calls on one channel, bookkeeping on another: every training job reduces gradients, few
        # only exchange activations.
        role[int(np.argmax(busy))] = Role.DATA
        busy[:] = 0
    if len(busy) and busy.max() >= TENSOR_CALLS_PER_ITERATION * iterations[0]:
        role[int(np.argmax(busy))] = Role.TENSOR
    # A parameter gather on a channel of its own, or gradients of experts: few, heavy, large.
    rest = (role == Role.OTHER) & (heavy > 0) & (heavy <= 4 * iterations)
    reduces = calls[:, Op.REDUCE_SCATTER] + calls[:, Op.ALL_REDUCE] + calls[:, Op.ALL_GATHER]
    role[rest & (reduces > 0) & (channels.max_count[part] > LIGHT_COUNT)] = Role.DATA
    return role
