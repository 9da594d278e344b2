"""What is right to conclude from each fault, per kind of source: the table behind ``Truth``.

Reasons are those of the physics. Without completion ("text") a kernel that never ends looks the same on all members
of the group whose hosts stand at the same wait, so the group is the answer. A host that never made a call is seen by
every source, but nothing in a call log tells a stuck host from a dead process or from a branch that misses the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from megatrace.model.finding import Kind, Severity
from megatrace.model.layout import Axis
from megatrace.simulator import faults as f
from megatrace.simulator.cluster import Cluster
from megatrace.simulator.patterns import TAIL_BACKWARD
from megatrace.simulator.program import AXES, Program
from megatrace.simulator.scenario import Scenario
from megatrace.simulator.stops import Strike, row_at
from megatrace.simulator.truth import Answer, FaultTruth

Hit: TypeAlias = tuple[Strike, Program] | None
VISIBLE_OFFSET_MS = 0.5
"""Host jitter at a call is some 50 µs; an offset ten times that is seen in every block."""

_NEVER_CALLED = (Kind.HANG_HOST, Kind.MISSING_CALL, Kind.DEAD_RANK)


def answers_for(fault: f.Fault, scenario: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    """The truth of one fault, without its window."""
    make = _TABLE[type(fault)]
    return make(fault, scenario, cluster, hit)


def _truth(
    fault: f.Fault,
    kind: Kind,
    ranks: tuple[int, ...],
    ring: Answer,
    text: Answer,
    severity: Severity,
    **more: Any,
) -> FaultTruth:
    return FaultTruth(fault.fault, kind, ranks, {"ring": ring, "text": text}, severity, **more)


def _group(cluster: Cluster, axis: Axis, rank: int) -> tuple[int, ...]:
    return tuple(sorted(cluster.layout.group(axis, rank)))


def _slow_gpu(fault: f.SlowGpu, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    exact = (fault.rank,)
    ring = Answer((Kind.SLOW_COMPUTE,), exact)
    if s.pattern != "megatron":
        # One wait an iteration, after a collective of all: every host stands there equally long.
        everyone = tuple(range(s.world_size))
        text = Answer((Kind.SLOW_COMPUTE,), everyone, undecidable=True)
    elif s.tp > 1 and (s.pp == 1 or _tail_ms(fault, s) < VISIBLE_OFFSET_MS):
        text = Answer((Kind.SLOW_COMPUTE,), _group(cluster, Axis.TENSOR, fault.rank))
    else:
        text = Answer((Kind.SLOW_COMPUTE,), exact)
    return _truth(fault, Kind.SLOW_COMPUTE, exact, ring, text, Severity.P1)


def _tail_ms(fault: f.SlowGpu, s: Scenario) -> float:
    """By how much the slow rank comes later to the block after a backward: the only trace of it among its peers."""
    return (fault.factor - 1) * TAIL_BACKWARD * s.layer_backward_ms


def _slow_host(fault: f.SlowHost, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    ranks = _node(s, fault.node)
    answer = Answer((Kind.SLOW_HOST,), ranks)
    return _truth(fault, Kind.SLOW_HOST, ranks, answer, answer, Severity.P1, nodes=(fault.node,))


def _slow_link(fault: f.SlowLink, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    ends = tuple(sorted((fault.src, fault.dst)))
    near = {r for end in ends for r in _group(cluster, Axis.TENSOR, end)}
    return _truth(
        fault,
        Kind.SLOW_NETWORK,
        ends,
        Answer((Kind.SLOW_NETWORK,), ends),
        Answer((Kind.SLOW_NETWORK,), tuple(sorted(near)), undecidable=True),
        Severity.P1,
        links=((fault.src, fault.dst),),
    )


def _slow_nic(fault: f.SlowNic, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    stage, flat = cluster.locate(fault.rank)
    neighbours = [n for n in (stage - 1, stage + 1) if 0 <= n < s.pp]
    peers = [int(cluster.grid[n].reshape(-1)[flat]) for n in neighbours]
    # One slow path names its two ends; only a second, independent peer tells which of them it is.
    ring = (fault.rank,) if len(peers) > 1 else tuple(sorted((fault.rank, *peers)))
    text = Answer((Kind.SLOW_NETWORK,), _group(cluster, Axis.TENSOR, fault.rank), undecidable=True)
    return _truth(
        fault, Kind.SLOW_NETWORK, (fault.rank,), Answer((Kind.SLOW_NETWORK,), ring), text, Severity.P1
    )


def _loader(fault: f.DataLoaderStall, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    answer = Answer((Kind.SLOW_STORAGE, Kind.SLOW_HOST), (fault.rank,))
    return _truth(fault, Kind.SLOW_STORAGE, (fault.rank,), answer, answer, Severity.P1)


def _imbalance(fault: f.SequenceImbalance, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    ring = Answer((Kind.IMBALANCE, Kind.JITTER), ())
    text = Answer((Kind.IMBALANCE, Kind.JITTER), (), undecidable=s.pattern != "megatron")
    return _truth(fault, Kind.IMBALANCE, (), ring, text, Severity.P2)


def _stage(fault: f.StageImbalance, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    answer = Answer((Kind.IMBALANCE,), (), undecidable=s.pp == 1)
    return _truth(fault, Kind.IMBALANCE, (), answer, answer, Severity.P2, stage=fault.stage)


def _pauses(fault: f.GcPauses, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    answer = Answer((Kind.JITTER, Kind.SLOW_HOST), ())
    return _truth(fault, Kind.JITTER, (), answer, answer, Severity.P2)


def _checkpoint(fault: f.CheckpointStall, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    answer = Answer((Kind.SLOW_STORAGE, Kind.SLOW_HOST), fault.ranks)
    return _truth(fault, Kind.SLOW_STORAGE, fault.ranks, answer, answer, Severity.P2)


def _jitter(fault: f.Jitter, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    ring = Answer((Kind.JITTER, Kind.SLOW_UNIFORM), ())
    text = Answer((Kind.JITTER, Kind.SLOW_UNIFORM), (), undecidable=s.pattern != "megatron")
    return _truth(fault, Kind.JITTER, (), ring, text, Severity.P2)


def _never_called(kind: Kind) -> Callable[..., FaultTruth]:
    def make(fault: Any, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
        answer = Answer((kind, *(other for other in _NEVER_CALLED if other is not kind)), (fault.rank,))
        return _truth(fault, kind, (fault.rank,), answer, answer, Severity.P0, **_at(fault))

    return make


def _at(fault: Any) -> dict[str, Any]:
    iteration = fault.iteration
    phase = getattr(fault, "phase", None)
    batch = fault.micro_batch if phase is not None and phase.value in ("forward", "backward") else None
    return {"first_iteration": iteration, "last_iteration": iteration, "phase": phase, "micro_batch": batch}


def _channel_group(cluster: Cluster, hit: Hit, rank: int) -> tuple[int, ...]:
    """Members of the communicator of the struck call."""
    row = row_at(hit[1], hit[0]) if hit is not None else None
    if row is None or row.peer_stage is not None:
        return (rank,)
    return _group(cluster, AXES[row.channel], rank)


def _stuck_kernel(fault: f.StuckKernelBefore, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    group = _channel_group(cluster, hit, fault.rank)
    ring = Answer((Kind.HANG_DEVICE,), (fault.rank,))
    kinds = (Kind.HANG_GROUP, Kind.HANG_DEVICE, Kind.HANG_NETWORK)
    if len(group) == 1:
        kinds = (Kind.HANG_DEVICE, Kind.HANG_HOST, Kind.MISSING_CALL)
    text = Answer(kinds, group, undecidable=len(group) == s.world_size)
    return _truth(fault, Kind.HANG_DEVICE, (fault.rank,), ring, text, Severity.P0, **_at(fault))


def _stuck_inside(fault: f.StuckInside, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    group = _channel_group(cluster, hit, fault.rank)
    ring = Answer((Kind.HANG_NETWORK, Kind.HANG_GROUP), group)
    text = Answer((Kind.HANG_GROUP, Kind.HANG_NETWORK, Kind.HANG_DEVICE), group, len(group) == s.world_size)
    return _truth(fault, Kind.HANG_NETWORK, group, ring, text, Severity.P0, **_at(fault))


def _mismatch(kind: Kind, *others: Kind) -> Callable[..., FaultTruth]:
    def make(fault: Any, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
        group = _channel_group(cluster, hit, fault.rank)
        # Of two that differ neither is the majority.
        ranks = group if len(group) == 2 and kind is Kind.MISMATCH else (fault.rank,)
        answer = Answer((kind, *others), ranks)
        return _truth(fault, kind, (fault.rank,), answer, answer, Severity.P0, **_at(fault))

    return make


def _dead_node(fault: f.DeadNode, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    ranks = _node(s, fault.node)
    answer = Answer((Kind.DEAD_RANK, Kind.HANG_HOST, Kind.MISSING_CALL), ranks)
    return _truth(
        fault, Kind.DEAD_RANK, ranks, answer, answer, Severity.P0, nodes=(fault.node,), **_at(fault)
    )


def _dead_link(fault: f.DeadLink, s: Scenario, cluster: Cluster, hit: Hit) -> FaultTruth:
    ends = tuple(sorted((fault.src, fault.dst)))
    ring = Answer((Kind.HANG_NETWORK, Kind.HANG_GROUP), ends)
    text = Answer((Kind.HANG_NETWORK, Kind.HANG_GROUP, Kind.HANG_HOST), ends)
    links = ((fault.src, fault.dst),)
    return _truth(fault, Kind.HANG_NETWORK, ends, ring, text, Severity.P0, links=links, **_at(fault))


def _node(s: Scenario, node: int) -> tuple[int, ...]:
    first = node * s.ranks_per_node
    return tuple(range(first, min(first + s.ranks_per_node, s.world_size)))


_TABLE: dict[type[Any], Callable[..., FaultTruth]] = {
    f.SlowGpu: _slow_gpu,
    f.SlowHost: _slow_host,
    f.SlowLink: _slow_link,
    f.SlowNic: _slow_nic,
    f.DataLoaderStall: _loader,
    f.SequenceImbalance: _imbalance,
    f.StageImbalance: _stage,
    f.GcPauses: _pauses,
    f.CheckpointStall: _checkpoint,
    f.Jitter: _jitter,
    f.StuckHost: _never_called(Kind.HANG_HOST),
    f.StuckKernelBefore: _stuck_kernel,
    f.StuckInside: _stuck_inside,
    f.MissingRecv: _never_called(Kind.MISSING_CALL),
    f.MissingSend: _never_called(Kind.MISSING_CALL),
    f.SkippedCollective: _mismatch(Kind.MISSING_CALL, Kind.MISMATCH),
    f.OrderMismatch: _mismatch(Kind.MISMATCH),
    f.SizeMismatch: _mismatch(Kind.MISMATCH),
    f.CommDeadlock: _mismatch(Kind.DEADLOCK, Kind.MISMATCH),
    f.DeadRank: _never_called(Kind.DEAD_RANK),
    f.DeadNode: _dead_node,
    f.DeadLink: _dead_link,
}
