"""What every operation of a training step waits for: the dependency graph that a what-if replay runs over.

One graph serves all steps and replicas, because all run the same operations. A worker has one stream for
compute, one for each direction of messages, one for data-parallel collectives; within a stream operations
follow each other. Across streams a receive comes before the compute that uses it, a send after the compute
that made it. Across workers both ends of a message, and all members of a collective, begin when the last of
them has come. This is the model of Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025), section 3.

What happens between operations (data loading, launching) is not in the table, so the replay has none of it.
The order within a stream is taken from the recorded starts, never from a schedule that somebody declared.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from megatrace.model.optable import NUMBER, OP_TYPES, UNKNOWN, OpGrid, OpType, Unreplayable

I4 = NDArray[np.int32]

_PEER = {
    OpType.FORWARD_RECV: (OpType.FORWARD_SEND, OpType.FORWARD, -1),
    OpType.BACKWARD_RECV: (OpType.BACKWARD_SEND, OpType.BACKWARD, 1),
}
"""receive: what its peer does, the compute on both ends, and how many model chunks away the peer stands"""
_ACROSS_REPLICAS = (
    OpType.PARAMS_GATHER,
    OpType.GRADS_SCATTER,
    OpType.SEPARATE_GRADS,
    OpType.CLIP,
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Nodes of several stages that begin together; ``replicas``: with the same nodes of all other
    replicas."""

    nodes: tuple[int, ...]
    replicas: bool


@dataclass(frozen=True, slots=True, eq=False)
class OpGraph:
    """``before[n]``: the nodes that must end before n starts. ``meetings`` in an order in which each comes
    after all that it depends on; a node that meets nobody is a meeting of its own. ``synced`` bool [N]:
    whether it waits for others."""

    before: tuple[tuple[int, ...], ...]
    meetings: tuple[Meeting, ...]
    synced: NDArray[np.bool_]


def build(grid: OpGrid) -> OpGraph:
    """The graph of a grid. Raises Unreplayable where sends, receives and compute do not match."""
    builder = _Builder(grid)
    builder.streams()
    builder.messages()
    builder.collectives()
    builder.ends()
    return builder.graph()


class _Builder:
    """Collects the edges of one grid. ``pp`` stages; ``chunks`` of all stages together, in model order."""

    def __init__(self, grid: OpGrid) -> None:
        self.grid = grid
        self.pp = len(grid.stages)
        self.begin = grid.start.mean(axis=(1, 2))
        self.before: list[list[int]] = [[] for _ in range(len(grid))]
        self.known: dict[tuple[int, tuple[OpType, ...]], list[int]] = {}
        self.meets: dict[int, tuple[int, ...]] = {}
        compute = grid.nodes(OpType.FORWARD, OpType.BACKWARD)
        if not len(compute):
            raise Unreplayable("the table has no forward-compute and no backward-compute")
        chunk = np.maximum(grid.chunk, 0)
        self.chunks = self.pp * (int(chunk[compute].max()) + 1)
        self.place = chunk * self.pp + grid.stage
        """the model chunk of a compute node, counted over the whole model"""

    def of(self, stage: int, *wanted: OpType) -> list[int]:
        """The nodes of these types on one stage, as they follow each other."""
        if (stage, wanted) in self.known:
            return self.known[stage, wanted]
        nodes = self.grid.nodes(*wanted)
        nodes = nodes[self.grid.stage[nodes] == stage]
        nodes = nodes[np.lexsort((self.grid.seq[nodes], self.begin[nodes]))]
        return self.known.setdefault((stage, wanted), nodes.tolist())

    def chain(self, nodes: list[int]) -> None:
        """Each after the one before it."""
        for a, b in pairwise(nodes):
            self.before[b].append(a)

    def streams(self) -> None:
        """Compute, the four directions of messages, and the data-parallel collectives of every stage."""
        for stage in range(self.pp):
            self.chain(self.of(stage, OpType.FORWARD, OpType.BACKWARD))
            self.chain(self.of(stage, OpType.PARAMS_GATHER, OpType.GRADS_SCATTER))
            for receive, (send, _, _) in _PEER.items():
                self.chain(self.of(stage, receive))
                self.chain(self.of(stage, send))

    # ---- messages

    def messages(self) -> None:
        """Sends and receives with the compute that makes or uses them, and with each other."""
        ends: dict[tuple[OpType, int, int], int] = {}
        for receive, (send, compute, away) in _PEER.items():
            for stage in range(self.pp):
                for node, made in self.matched(stage, send, compute, -away):
                    self.before[node].append(made)
                    ends[send, self.place[made] - away, self.batch(made)] = node
                for node, used in self.matched(stage, receive, compute, away):
                    self.before[used].append(node)
                    self.receives_after(node, used, stage, compute)
                    ends[receive, int(self.place[used]), self.batch(used)] = node
            self.first_backward(receive, send)
        for (kind, place, batch), node in ends.items():
            if kind not in _PEER:
                continue
            peer = ends.get((_PEER[kind][0], place, batch))
            if peer is not None:
                self.meets[node] = self.meets[peer] = (node, peer)

    def matched(self, stage: int, kind: OpType, compute: OpType, away: int) -> list[tuple[int, int]]:
        """(message, compute) of those messages that have a peer, in their order."""
        messages, tasks = self.of(stage, kind), self.of(stage, compute)
        inner = [n for n in tasks if 0 <= self.place[n] + away < self.chunks]
        if not messages and not inner:
            return []
        if len(messages) == len(inner):
            return list(zip(messages, inner, strict=True))
        if len(messages) == len(tasks):  # recorded for the ends of the model, too, where nothing is sent
            return [pair for pair in zip(messages, tasks, strict=True) if pair[1] in set(inner)]
        raise Unreplayable(
            f"stage {self.grid.stages[stage]} has {len(messages)} {kind.value} for {len(inner)} "
            f"{compute.value} operations in a step that need one"
        )

    def batch(self, node: int) -> int:
        """The micro-batch of a compute node, by its order in its chunk where the table does not say."""
        known = int(self.grid.micro_batch[node])
        if known != UNKNOWN:
            return known
        alike = (self.grid.optype == self.grid.optype[node]) & (self.place == self.place[node])
        return int((alike & (self.begin < self.begin[node])).sum())

    def receives_after(self, node: int, used: int, stage: int, compute: OpType) -> None:
        """A receive is posted when the compute of the same direction before the one that uses it is done."""
        tasks = self.of(stage, compute)
        at = tasks.index(used)
        if at:
            self.before[node].append(tasks[at - 1])

    def first_backward(self, receive: OpType, send: OpType) -> None:
        """The first backward messages are posted with the last forward before the first backward."""
        if receive is not OpType.BACKWARD_RECV:
            return
        for stage in range(self.pp):
            tasks = self.of(stage, OpType.FORWARD, OpType.BACKWARD)
            kinds = [OP_TYPES[self.grid.optype[n]] for n in tasks]
            at = kinds.index(OpType.BACKWARD) if OpType.BACKWARD in kinds else 0
            for kind in (receive, send):
                nodes = self.of(stage, kind)
                if nodes and at >= 2:
                    self.before[nodes[0]].append(tasks[at - 2])

    # ---- collectives

    def collectives(self) -> None:
        """Parameters before the first forward of their chunk, gradients after its last backward."""
        overlapped = bool(len(self.grid.nodes(OpType.SEPARATE_GRADS)))
        for stage in range(self.pp):
            forward, backward = self.of(stage, OpType.FORWARD), self.of(stage, OpType.BACKWARD)
            for node in self.firsts(list(reversed(self.of(stage, OpType.PARAMS_GATHER)))):
                later = [n for n in forward if self.same_chunk(n, node)]
                if later:
                    self.before[later[0]].append(node)
            if overlapped:
                for node in self.firsts(self.of(stage, OpType.GRADS_SCATTER)):
                    earlier = [n for n in backward if self.same_chunk(n, node)]
                    if earlier:
                        self.before[node].append(earlier[-1])
            self.tail(stage, overlapped)
        self.together(OpType.EMBEDDING_GRADS)
        self.together(OpType.CLIP)

    def firsts(self, nodes: list[int]) -> list[int]:
        """The first node of each chunk."""
        seen: dict[int, int] = {}
        for node in nodes:
            seen.setdefault(int(self.grid.chunk[node]), node)
        return list(seen.values())

    def same_chunk(self, task: int, collective: int) -> bool:
        """Whether a collective is for the chunk that a task computes; one without a chunk is for all."""
        chunk = self.grid.chunk[collective]
        return bool(chunk in (UNKNOWN, self.grid.chunk[task]))

    def tail(self, stage: int, overlapped: bool) -> None:
        """What follows a stage's last compute, one after the other, up to the optimizer."""
        tasks = self.of(stage, OpType.FORWARD, OpType.BACKWARD)
        scatter = self.of(stage, OpType.GRADS_SCATTER)
        order = [tasks[-1], *self.of(stage, OpType.COLLECTOR)]
        order += self.of(stage, OpType.LAYERNORM_GRADS)
        order += self.of(stage, OpType.EMBEDDING_GRADS)
        order += self.of(stage, OpType.SEPARATE_GRADS) if overlapped else scatter
        order += [*self.of(stage, OpType.CLIP), *self.of(stage, OpType.OPTIMIZER)]
        self.chain(order)
        after = [n for n in order[1:] if OP_TYPES[self.grid.optype[n]] is not OpType.COLLECTOR]
        if overlapped and scatter and after:
            self.before[after[0]].append(scatter[-1])

    def together(self, kind: OpType) -> None:
        """The nodes of one type and number on all stages that have it begin together."""
        nodes = self.grid.nodes(kind)
        for seq in np.unique(self.grid.seq[nodes]):
            members = tuple(int(n) for n in nodes[self.grid.seq[nodes] == seq])
            self.meets.update(dict.fromkeys(members, members))

    # ---- the whole

    def ends(self) -> None:
        """Messages of which only one end was found are no meeting."""
        lonely = [
            n
            for n in self.grid.nodes(*_PEER, *(send for send, _, _ in _PEER.values()))
            if int(n) not in self.meets
        ]
        for node in lonely:
            self.meets[int(node)] = (int(node),)

    def graph(self) -> OpGraph:
        """The edges in an order that a replay can follow."""
        wide = {NUMBER[kind] for kind in _ACROSS_REPLICAS}
        wide = wide if len(self.grid.replicas) > 1 else set()
        groups = {n: self.meets.get(n, (n,)) for n in range(len(self.grid))}
        before = tuple(tuple(dict.fromkeys(nodes)) for nodes in self.before)
        order = _ordered(before, groups)
        meetings = tuple(
            Meeting(nodes, any(int(self.grid.optype[n]) in wide for n in nodes)) for nodes in order
        )
        synced = np.zeros(len(self.grid), np.bool_)
        for meeting in meetings:
            if meeting.replicas or len(meeting.nodes) > 1:
                synced[list(meeting.nodes)] = True
        return OpGraph(before, meetings, synced)


def _ordered(
    before: tuple[tuple[int, ...], ...], groups: dict[int, tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Every group once, after the groups of all that its members wait for (Kahn's algorithm)."""
    waits = dict.fromkeys(groups.values(), 0)
    after: dict[tuple[int, ...], list[tuple[int, ...]]] = {group: [] for group in waits}
    for node, earlier in enumerate(before):
        for needed in earlier:
            after[groups[needed]].append(groups[node])
            waits[groups[node]] += 1
    ready = deque(group for group, count in waits.items() if not count)
    order = []
    while ready:
        group = ready.popleft()
        order.append(group)
        for other in after[group]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    if len(order) < len(waits):
        raise Unreplayable("the recorded starts order operations in a circle: each waits for another")
    return order
