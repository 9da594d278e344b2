"""The machines: which rank is where, how far apart two ranks are, how long a collective takes.

Times of collectives follow the usual cost model of ring and tree algorithms: latency of the steps plus the
bytes that cross the slowest member's link. Groups of one rank cost nothing. All arrays of a stage have the
shape [dp, cp, tp].
"""

from __future__ import annotations

from functools import cached_property
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import Op
from megatrace.simulator.faults import SlowLink, SlowNic
from megatrace.simulator.program import AXES, CROSS_STAGE, Channel
from megatrace.simulator.scenario import Scenario

F8 = NDArray[np.float64]
I4 = NDArray[np.int32]
B1 = NDArray[np.bool_]

US = 1e3


class Cluster:
    """Geometry of a scenario. Times in ns."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.layout = scenario.layout
        self.grid: I4 = self.layout.grid()
        self.shape = self.grid.shape[1:]
        self._costs: dict[tuple[object, ...], F8] = {}

    @cached_property
    def nodes(self) -> I4:
        """int32 [pp, dp, cp, tp]: the node of each place."""
        return np.asarray(self.grid // self.scenario.ranks_per_node, np.int32)

    @cached_property
    def place_of(self) -> NDArray[np.int64]:
        """int64 [world, 2]: stage and flat index within the stage's arrays of each rank."""
        stage, *inner = np.unravel_index(np.argsort(self.grid, axis=None), self.grid.shape)
        flat = np.ravel_multi_index(tuple(inner), self.shape)
        return np.stack([stage, flat], axis=1).astype(np.int64)

    @cached_property
    def experts(self) -> NDArray[np.int64]:
        """int64 [groups, ep]: flat indices within a stage of the members of its expert groups."""
        ranks = np.moveaxis(self.layout.expert_grid()[0], 1, -1).reshape(-1, self.layout.ep)
        return np.asarray(self.place_of[ranks, 1])

    def locate(self, rank: int) -> tuple[int, int]:
        """(stage, flat index in the stage's arrays) of a rank."""
        stage, flat = self.place_of[rank]
        return int(stage), int(flat)

    def spread(self, channel: Channel, values: F8) -> F8:
        """The maximum of ``values`` [dp, cp, tp] over each group of an in-stage channel, at every member."""
        if channel is Channel.TENSOR:
            return _everywhere(values.max(axis=2, keepdims=True), values.shape)
        if channel is Channel.CONTEXT:
            return _everywhere(values.max(axis=1, keepdims=True), values.shape)
        if channel is Channel.DATA:
            return _everywhere(values.max(axis=(0, 1), keepdims=True), values.shape)
        if channel is Channel.EXPERT:
            out = np.empty(values.size)
            out[self.experts] = values.reshape(-1)[self.experts].max(axis=1, keepdims=True)
            return out.reshape(values.shape)
        raise ValueError(f"channel {channel.value} spans stages")

    def reduce_for(self, channel: Channel, values: F8) -> F8:
        """What one stage brings to a collective across stages: its own maximum, shaped to broadcast."""
        if channel in (Channel.WORLD, Channel.GRAD_STATS):
            return np.asarray(values.max(axis=(0, 1, 2), keepdims=True))
        if channel is Channel.MODEL:
            return np.asarray(values.max(axis=2, keepdims=True))
        return values

    def stages_of(self, channel: Channel) -> tuple[int, ...]:
        """Stages that take part in a channel across stages."""
        pp = self.layout.pp
        return (0, pp - 1) if channel is Channel.EMBEDDING else tuple(range(pp))

    @cached_property
    def sizes(self) -> dict[Channel, int]:
        """Members of one communicator of each channel."""
        return {channel: self.layout.size(axis) for channel, axis in AXES.items()}

    def members(self, channel: Channel) -> int:
        """Members of one communicator of a channel."""
        return self.sizes[channel]

    def crosses(self, channel: Channel, stage: int) -> bool:
        """Whether groups of this channel span nodes (the network is then the slower part)."""
        nodes = self.nodes[stage]
        if channel in CROSS_STAGE or channel is Channel.DATA:
            span = self.nodes if channel in CROSS_STAGE else nodes
            return bool(span.min() != span.max())
        low = -self.spread(channel, -nodes.astype(np.float64))
        return bool((low != self.spread(channel, nodes.astype(np.float64))).any())

    def collective(
        self, stage: int, channel: Channel, op: Op, nbytes: int, links: tuple[SlowLink | SlowNic, ...]
    ) -> F8:
        """ns that a collective takes once all are there, to broadcast over [dp, cp, tp].

        ``nbytes`` is what each rank passes; an all-gather moves that once for every other member.
        """
        key = (stage, channel, op, nbytes, links)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._collective(stage, channel, op, nbytes, links)
            self._costs[key] = cost
        return cost

    def _collective(
        self, stage: int, channel: Channel, op: Op, nbytes: int, links: tuple[SlowLink | SlowNic, ...]
    ) -> F8:
        n = self.members(channel)
        if n == 1:
            return np.zeros((1, 1, 1))
        s = self.scenario
        crosses = self.crosses(channel, stage)
        bandwidth = s.network_bandwidth if crosses else s.node_bandwidth
        latency = (s.network_latency_us if crosses else s.node_latency_us) * US
        volume, steps = _volume(op, n, nbytes)
        slower = self.slower(stage, channel, links) if crosses else np.ones((1, 1, 1))
        return np.asarray(latency * steps + volume / bandwidth * slower)

    def slower(self, stage: int, channel: Channel, links: tuple[SlowLink | SlowNic, ...]) -> F8:
        """By how much slow links stretch the transfers of each group of a channel."""
        factor = np.ones(self.shape)
        for link in links:
            ranks = (link.rank,) if isinstance(link, SlowNic) else (link.src, link.dst)
            places = [self.locate(rank) for rank in ranks]
            here = np.zeros(self.shape)
            for place_stage, flat in places:
                if place_stage == stage or channel in CROSS_STAGE:
                    here.reshape(-1)[flat] = 1.0
            if isinstance(link, SlowLink) and not self._adjacent(channel, link):
                continue
            touched = here if channel in CROSS_STAGE else self.spread(channel, here)
            if channel in (Channel.WORLD, Channel.GRAD_STATS):
                touched = np.ones(self.shape)
            factor = np.where(touched > 0, np.maximum(factor, link.factor), factor)
        return factor

    def _adjacent(self, channel: Channel, link: SlowLink) -> bool:
        """Whether the ring of a group runs over the path between two ranks."""
        group = sorted(self.layout.group(AXES[channel], link.src))
        if link.dst not in group:
            return False
        step = abs(group.index(link.src) - group.index(link.dst))
        return step in (1, len(group) - 1)

    def transfer(self, stage: int, peer: int, nbytes: int, links: tuple[SlowLink | SlowNic, ...]) -> F8:
        """ns that a message between the same places of two stages takes, [dp, cp, tp]."""
        key = ("p2p", stage, peer, nbytes, links)
        cost = self._costs.get(key)
        if cost is None:
            s = self.scenario
            far = self.nodes[stage] != self.nodes[peer]
            bandwidth = np.where(far, s.network_bandwidth, s.node_bandwidth)
            latency = np.where(far, s.network_latency_us, s.node_latency_us) * US
            for link in links:
                bandwidth = bandwidth / np.where(self.touches(stage, peer, link) & far, link.factor, 1.0)
            cost = latency + nbytes / bandwidth
            self._costs[key] = cost
        return cost

    def touches(self, stage: int, peer: int, link: SlowLink | SlowNic) -> B1:
        """Where the path between two stages is the slow one."""
        here, there = self.grid[stage], self.grid[peer]
        if isinstance(link, SlowNic):
            return np.asarray((here == link.rank) | (there == link.rank))
        forth = (here == link.src) & (there == link.dst)
        return np.asarray(forth | ((here == link.dst) & (there == link.src)))


def _everywhere(values: F8, shape: tuple[int, ...]) -> F8:
    """Each group's value at all its members (np.broadcast_to costs ten times as much on small arrays)."""
    out = np.empty(shape)
    out[...] = values
    return out


def _volume(op: Op, n: int, nbytes: int) -> tuple[float, float]:
    """(bytes over the slowest link, latency steps) of a collective of n members."""
    depth = float(ceil(log2(n)))
    if op is Op.ALL_REDUCE:
        return 2 * (n - 1) / n * nbytes, 2 * depth
    if op in (Op.ALL_GATHER, Op.REDUCE_SCATTER):
        return float((n - 1) * nbytes), depth
    if op is Op.ALL_TO_ALL:
        return (n - 1) / n * nbytes, depth
    return float(nbytes), depth
