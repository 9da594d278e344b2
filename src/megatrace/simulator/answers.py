"""What is right to conclude from each fault, per kind of source: the table behind ``Truth``.

Reasons are those of the physics. Without completion ("text") a kernel that never ends looks the same on all
ranks whose hosts come to stand at the same wait for it (``standing_with``), so they are the answer. A host
that never made a call is seen by every source, but nothing in a call log tells a stuck host from a dead
process or from a branch that misses the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megatrace.model.events import Op
from megatrace.model.finding import Kind, Severity
from megatrace.model.layout import Axis
from megatrace.model.schedule import Phase
from megatrace.simulator import faults as f
from megatrace.simulator.cluster import Cluster
from megatrace.simulator.patterns import TAIL_BACKWARD
from megatrace.simulator.program import (
    AXES,
    Call,
    Channel,
    Exchange,
    Label,
    Lane,
    Message,
    RingStep,
    Until,
    Wait,
)
from megatrace.simulator.scenario import Scenario
from megatrace.simulator.stops import Hit, Stop, row_at
from megatrace.simulator.truth import Answer, FaultTruth

VISIBLE_OFFSET_MS = 0.5
"""Host jitter at a call is some 50 µs; an offset ten times that is seen in every block."""
ORDINARY_SAVE_MS = 3000.0
"""What saving may take in a healthy job: a rank's share of some 10 GB at a few GB/s."""
_NEVER_CALLED = (Kind.HANG_HOST, Kind.MISSING_CALL, Kind.DEAD_RANK)
_SLOW_NETWORK = (Kind.SLOW_NETWORK,)


def answers_for(fault: f.Fault, scenario: Scenario, cluster: Cluster, hit: Hit | None) -> FaultTruth:
    """The truth of one fault, without its window. ``hit`` is where it struck, for faults that stop a job."""
    case = _Case(scenario, cluster, hit)
    return _TABLE[type(fault)](case, fault)


def _truth(
    fault: f.Fault,
    kind: Kind,
    ranks: tuple[int, ...],
    answers: Answer | tuple[Answer, Answer],
    severity: Severity,
    **more: Any,
) -> FaultTruth:
    """``answers`` for (ring, text), or one for both."""
    ring, text = answers if isinstance(answers, tuple) else (answers, answers)
    return FaultTruth(fault.fault, kind, ranks, {"ring": ring, "text": text}, severity, **more)


def _at(fault: Any) -> dict[str, Any]:
    """Where a standstill strikes."""
    phase = getattr(fault, "phase", None)
    batch = getattr(fault, "micro_batch", None)
    if phase is not None and phase.value not in ("forward", "backward"):
        batch = None
    return {
        "first_iteration": fault.iteration,
        "last_iteration": fault.iteration,
        "phase": phase,
        "micro_batch": batch,
    }


@dataclass(frozen=True, slots=True)
class _Case:
    """One fault in one job."""

    s: Scenario
    cluster: Cluster
    hit: Hit | None

    def group(self, axis: Axis, rank: int) -> tuple[int, ...]:
        return tuple(sorted(self.cluster.layout.group(axis, rank)))

    def node(self, node: int) -> tuple[int, ...]:
        first = node * self.s.ranks_per_node
        return tuple(range(first, min(first + self.s.ranks_per_node, self.s.world_size)))

    def struck_group(self, rank: int) -> tuple[int, ...]:
        """Members of the communicator of the struck call."""
        row = row_at(self.hit.program, self.hit.strike) if self.hit is not None else None
        if row is None or row.peer_stage is not None:
            return (rank,)
        return self.group(AXES[row.channel], rank)

    def groups(self, channel: Channel, ranks: set[int]) -> set[int]:
        """All members of these ranks' groups."""
        return {member for rank in ranks for member in self.group(AXES[channel], rank)}

    def peer(self, rank: int, message: Message) -> int:
        """The rank at the other end of a message between stages."""
        _, flat = self.cluster.locate(rank)
        return int(self.cluster.grid[message.peer_stage].reshape(-1)[flat])

    def slow_gpu(self, fault: f.SlowGpu) -> FaultTruth:
        exact = (fault.rank,)
        ring = Answer((Kind.SLOW_COMPUTE,), exact)
        # The only trace of it among its tensor peers: it comes later to the block after a backward.
        tail_ms = (fault.factor - 1) * TAIL_BACKWARD * self.s.layer_backward_ms
        if self.s.pattern != "megatron":
            # One wait an iteration, after a collective of all: every host stands there equally long.
            text = Answer((Kind.SLOW_COMPUTE,), tuple(range(self.s.world_size)), undecidable=True)
        elif self.s.tp > 1 and (self.s.pp == 1 or tail_ms < VISIBLE_OFFSET_MS):
            text = Answer((Kind.SLOW_COMPUTE,), self.group(Axis.TENSOR, fault.rank))
        else:
            text = ring
        return _truth(fault, Kind.SLOW_COMPUTE, exact, (ring, text), Severity.P1)

    def delay(self, fault: f.Delay) -> FaultTruth:
        exact = (fault.rank,)
        ring = Answer((Kind.SLOW_COMPUTE,), exact)
        # Its tensor peers wait for it in the first collective of the block, and their hosts with it.
        text = Answer((Kind.SLOW_COMPUTE,), self.group(Axis.TENSOR, fault.rank)) if self.s.tp > 1 else ring
        return _truth(fault, Kind.SLOW_COMPUTE, exact, (ring, text), Severity.P1)

    def delayed_message(self, fault: f.DelayedMessage) -> FaultTruth:
        stage, _ = self.cluster.locate(fault.rank)
        ahead = stage + (1 if fault.phase is Phase.FORWARD else -1)
        other = self.peer(fault.rank, Message(Op.SEND, ahead % self.s.pp, Label(fault.phase), False))
        ends = tuple(sorted((fault.rank, other)))
        near = tuple(sorted({r for end in ends for r in self.group(Axis.TENSOR, end)}))
        ring, text = Answer(_SLOW_NETWORK, ends), Answer(_SLOW_NETWORK, near, undecidable=True)
        links = ((fault.rank, other),)
        return _truth(fault, Kind.SLOW_NETWORK, ends, (ring, text), Severity.P1, links=links)

    def slow_host(self, fault: f.SlowHost) -> FaultTruth:
        ranks = self.node(fault.node)
        answer = Answer((Kind.SLOW_HOST,), ranks)
        return _truth(fault, Kind.SLOW_HOST, ranks, answer, Severity.P1, nodes=(fault.node,))

    def slow_link(self, fault: f.SlowLink) -> FaultTruth:
        ends = tuple(sorted((fault.src, fault.dst)))
        near = tuple(sorted({r for end in ends for r in self.group(Axis.TENSOR, end)}))
        data = self.group(Axis.DATA_CONTEXT, fault.src)
        if fault.dst in data:
            # Members of a collective end together: nothing tells which step of its ring was slow.
            ring, text = Answer(_SLOW_NETWORK, data), Answer(_SLOW_NETWORK, data, undecidable=True)
        else:
            ring, text = Answer(_SLOW_NETWORK, ends), Answer(_SLOW_NETWORK, near, undecidable=True)
        links = ((fault.src, fault.dst),)
        return _truth(fault, Kind.SLOW_NETWORK, ends, (ring, text), Severity.P1, links=links)

    def slow_nic(self, fault: f.SlowNic) -> FaultTruth:
        peers = self.far_peers(fault.rank)
        if len(peers) > 1:
            # One slow path names its two ends; only a second, independent peer tells which of them it is.
            ring = Answer(_SLOW_NETWORK, (fault.rank,))
        elif peers:
            ring = Answer(_SLOW_NETWORK, tuple(sorted((fault.rank, *peers))))
        else:
            # Only collectives leave the node. Their members end together, so the group is all that shows,
            # and where it is the only one of the job there is nothing to compare it with.
            group = self.group(Axis.DATA_CONTEXT, fault.rank)
            ring = Answer(_SLOW_NETWORK, group, undecidable=len(group) == self.s.world_size)
        # Host times show the same path at best: what takes long there may be waiting for anything.
        text = Answer(_SLOW_NETWORK, ring.ranks, undecidable=True)
        return _truth(fault, Kind.SLOW_NETWORK, (fault.rank,), (ring, text), Severity.P1)

    def far_peers(self, rank: int) -> list[int]:
        """Ranks of other nodes with which a rank exchanges messages: paths within a node touch no NIC."""
        stage, flat = self.cluster.locate(rank)
        near = {stage - 1, stage + 1}
        if self.s.vpp > 1:
            near = {n % self.s.pp for n in near}
        peers = [
            int(self.cluster.grid[n].reshape(-1)[flat]) for n in near if 0 <= n < self.s.pp and n != stage
        ]
        if self.s.cp > 1 and self.s.context_parallel_comm == "ring":
            members = self.group(Axis.CONTEXT, rank)
            at = members.index(rank)
            peers += [members[at - 1], members[(at + 1) % len(members)]]
        node = rank // self.s.ranks_per_node
        return sorted({peer for peer in peers if peer // self.s.ranks_per_node != node})

    def data_loader(self, fault: f.DataLoaderStall) -> FaultTruth:
        answer = Answer((Kind.SLOW_STORAGE, Kind.SLOW_HOST), (fault.rank,))
        return _truth(fault, Kind.SLOW_STORAGE, (fault.rank,), answer, Severity.P1)

    def sequence(self, fault: f.SequenceImbalance) -> FaultTruth:
        kinds = (Kind.IMBALANCE, Kind.JITTER)
        answers = (Answer(kinds, ()), Answer(kinds, (), undecidable=self.s.pattern != "megatron"))
        return _truth(fault, Kind.IMBALANCE, (), answers, Severity.P2)

    def stage(self, fault: f.StageImbalance) -> FaultTruth:
        answer = Answer((Kind.IMBALANCE,), (), undecidable=self.s.pp == 1)
        return _truth(fault, Kind.IMBALANCE, (), answer, Severity.P2, stage=fault.stage)

    def pauses(self, fault: f.GcPauses) -> FaultTruth:
        answer = Answer((Kind.JITTER, Kind.SLOW_HOST), ())
        return _truth(fault, Kind.JITTER, (), answer, Severity.P2)

    def checkpoint(self, fault: f.CheckpointStall) -> FaultTruth:
        # Where all ranks save equally long, the length alone tells, and a healthy job's may be the same.
        ordinary = not fault.ranks and self.s.checkpoint_ms + fault.stall_ms <= ORDINARY_SAVE_MS
        answer = Answer((Kind.SLOW_STORAGE, Kind.SLOW_HOST), fault.ranks, undecidable=ordinary)
        return _truth(fault, Kind.SLOW_STORAGE, fault.ranks, answer, Severity.P2)

    def jitter(self, fault: f.Jitter) -> FaultTruth:
        kinds = (Kind.JITTER, Kind.SLOW_UNIFORM)
        answers = (Answer(kinds, ()), Answer(kinds, (), undecidable=self.s.pattern != "megatron"))
        return _truth(fault, Kind.JITTER, (), answers, Severity.P2)

    def never_called(self, fault: Any, kind: Kind) -> FaultTruth:
        others = tuple(other for other in _NEVER_CALLED if other is not kind)
        answer = Answer((kind, *others), (fault.rank,))
        return _truth(fault, kind, (fault.rank,), answer, Severity.P0, **_at(fault))

    def stuck_kernel(self, fault: f.StuckKernelBefore) -> FaultTruth:
        group = standing_with(self, fault.rank)
        ring = Answer((Kind.HANG_DEVICE,), (fault.rank,))
        kinds = (Kind.HANG_GROUP, Kind.HANG_DEVICE, Kind.HANG_NETWORK)
        if len(group) == 1:
            kinds = (Kind.HANG_DEVICE, Kind.HANG_HOST, Kind.MISSING_CALL)
        text = Answer(kinds, group, undecidable=len(group) == self.s.world_size)
        return _truth(fault, Kind.HANG_DEVICE, (fault.rank,), (ring, text), Severity.P0, **_at(fault))

    def stuck_inside(self, fault: f.StuckInside) -> FaultTruth:
        group, standing = self.struck_group(fault.rank), standing_with(self, fault.rank)
        ring = Answer((Kind.HANG_NETWORK, Kind.HANG_GROUP), group)
        kinds = (Kind.HANG_GROUP, Kind.HANG_NETWORK, Kind.HANG_DEVICE)
        text = Answer(kinds, standing, undecidable=len(standing) == self.s.world_size)
        return _truth(fault, Kind.HANG_NETWORK, group, (ring, text), Severity.P0, **_at(fault))

    def wrong_size(self, fault: f.SizeMismatch) -> FaultTruth:
        row = row_at(self.hit.program, self.hit.strike) if self.hit is not None else None
        if row is None or not row.uneven:
            return self.differs(fault, Kind.MISMATCH)
        # Members of such an all-to-all pass different sizes every time, and a call records its total alone:
        # the part that does not fit what its receiver awaits shows in none of them. All start, nobody ends.
        group, standing = self.struck_group(fault.rank), standing_with(self, fault.rank)
        ring = Answer((Kind.HANG_NETWORK, Kind.HANG_GROUP, Kind.MISMATCH), group)
        kinds = (Kind.HANG_GROUP, Kind.HANG_NETWORK, Kind.HANG_DEVICE, Kind.MISMATCH)
        text = Answer(kinds, standing, undecidable=len(standing) == self.s.world_size)
        return _truth(fault, Kind.MISMATCH, (fault.rank,), (ring, text), Severity.P0, **_at(fault))

    def differs(self, fault: Any, kind: Kind, *others: Kind) -> FaultTruth:
        group = self.struck_group(fault.rank)
        # Of two that differ neither is the majority.
        ranks = group if len(group) == 2 and kind is Kind.MISMATCH else (fault.rank,)
        answer = Answer((kind, *others), ranks)
        return _truth(fault, kind, (fault.rank,), answer, Severity.P0, **_at(fault))

    def dead_node(self, fault: f.DeadNode) -> FaultTruth:
        ranks = self.node(fault.node)
        answer = Answer((Kind.DEAD_RANK, Kind.HANG_HOST, Kind.MISSING_CALL), ranks)
        return _truth(fault, Kind.DEAD_RANK, ranks, answer, Severity.P0, nodes=(fault.node,), **_at(fault))

    def dead_link(self, fault: f.DeadLink) -> FaultTruth:
        ends = tuple(sorted((fault.src, fault.dst)))
        ring = Answer((Kind.HANG_NETWORK, Kind.HANG_GROUP), ends)
        text = Answer((Kind.HANG_NETWORK, Kind.HANG_GROUP, Kind.HANG_HOST), ends)
        links = ((fault.src, fault.dst),)
        return _truth(fault, Kind.HANG_NETWORK, ends, (ring, text), Severity.P0, links=links, **_at(fault))


def standing_with(case: _Case, rank: int) -> tuple[int, ...]:
    """Ranks whose hosts come to stand at the same wait as the struck rank's, ascending.

    Hosts run ahead of their devices, so by the time they wait the stuck rank's peers stand there with it, and
    so do the peers of those: collectives of tensor, context and expert groups within one block tie all of
    them together. Gradients lie in a lane of their own and hold up nobody before somebody waits for them.
    """
    if case.hit is None:
        return (rank,)
    strike, program = case.hit.strike, case.hit.program
    compute = {rank} if strike.stop is Stop.KERNEL else set()
    grads: set[int] = set()
    called = False
    for number in range(strike.instruction, len(program.instructions)):
        item = program.instructions[number]
        if isinstance(item, Call | RingStep):
            channel = item.channel if isinstance(item, Call) else Channel.CONTEXT
            lane = item.lane if isinstance(item, Call) else Lane.COMPUTE
            inside = strike.stop in (Stop.INSIDE, Stop.BREAK) and number == strike.instruction
            struck = {rank} if inside else set()
            if lane is Lane.COMPUTE:
                compute = case.groups(channel, compute | struck)
                called = True
            else:
                grads = case.groups(channel, grads | compute | struck)
        elif isinstance(item, Exchange) and compute:
            return tuple(sorted(compute | {case.peer(r, m) for r in compute for m in item.messages}))
        elif isinstance(item, Wait):
            if item.until is Until.DEVICE or (item.until is Until.LAST_CALL and compute and called):
                break
            if item.until is not Until.LAST_CALL:
                compute |= grads
    return tuple(sorted(compute | grads))


_TABLE: dict[type[Any], Callable[[_Case, Any], FaultTruth]] = {
    f.SlowGpu: _Case.slow_gpu,
    f.SlowHost: _Case.slow_host,
    f.SlowLink: _Case.slow_link,
    f.SlowNic: _Case.slow_nic,
    f.Delay: _Case.delay,
    f.DelayedMessage: _Case.delayed_message,
    f.DataLoaderStall: _Case.data_loader,
    f.SequenceImbalance: _Case.sequence,
    f.StageImbalance: _Case.stage,
    f.GcPauses: _Case.pauses,
    f.CheckpointStall: _Case.checkpoint,
    f.Jitter: _Case.jitter,
    f.StuckHost: lambda case, fault: case.never_called(fault, Kind.HANG_HOST),
    f.StuckKernelBefore: _Case.stuck_kernel,
    f.StuckInside: _Case.stuck_inside,
    f.MissingRecv: lambda case, fault: case.never_called(fault, Kind.MISSING_CALL),
    f.MissingSend: lambda case, fault: case.never_called(fault, Kind.MISSING_CALL),
    f.SkippedCollective: lambda case, fault: case.differs(fault, Kind.MISSING_CALL, Kind.MISMATCH),
    f.OrderMismatch: lambda case, fault: case.differs(fault, Kind.MISMATCH),
    f.SizeMismatch: _Case.wrong_size,
    f.CommDeadlock: lambda case, fault: case.differs(fault, Kind.DEADLOCK, Kind.MISMATCH),
    f.DeadRank: lambda case, fault: case.never_called(fault, Kind.DEAD_RANK),
    f.DeadNode: _Case.dead_node,
    f.DeadLink: _Case.dead_link,
}
