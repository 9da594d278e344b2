"""What can go wrong in a scenario, as data.

One class a fault, with the name under which it stands in YAML (``fault: slow_gpu``). Ranks, nodes, stages,
iterations and micro-batches count from 0; windows of iterations are inclusive and open-ended where
``last_iteration`` is left out. What a fault does to times is in ``effects`` and ``stops``, what may be
concluded from it in ``truth``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, Union

from pydantic import BaseModel, ConfigDict, Field

from megatrace.model.schedule import Phase

Index: TypeAlias = Annotated[int, Field(ge=0)]
Factor: TypeAlias = Annotated[float, Field(gt=0)]


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Windowed(_Spec):
    """A fault that changes times from ``first_iteration`` to ``last_iteration`` inclusive."""

    first_iteration: Index = 0
    last_iteration: Index | None = None

    def active(self, iteration: int) -> bool:
        """Whether the iteration lies in the window."""
        return self.first_iteration <= iteration and (
            self.last_iteration is None or iteration <= self.last_iteration
        )


class _Positioned(_Spec):
    """A fault that happens at one call of one block: the ``call``-th of (iteration, phase, micro-batch).

    ``phase: sync`` addresses the calls after the last backward; ``micro_batch`` then means nothing. A
    ``call`` beyond the last one means the last one.
    """

    iteration: Index
    micro_batch: Index = 0
    phase: Phase = Phase.FORWARD
    call: Index = 1


class SlowGpu(_Windowed):
    """Kernels of one rank take ``factor`` times as long.

    ``duty`` < 1 makes it intermittent: slow in that share of the iterations of the window, chosen by the
    seed. ``drift`` is added to the factor with every iteration of the window.
    """

    fault: Literal["slow_gpu"] = "slow_gpu"
    rank: Index
    factor: Factor = 2.0
    duty: Annotated[float, Field(gt=0, le=1)] = 1.0
    drift: float = 0.0


class SlowHost(_Windowed):
    """The processors of a node are starved: host work of all its ranks takes ``factor`` times as long."""

    fault: Literal["slow_host"] = "slow_host"
    node: Index
    factor: Factor = 6.0


class SlowLink(_Windowed):
    """The path between two ranks has 1/``factor`` of its bandwidth, in both directions."""

    fault: Literal["slow_link"] = "slow_link"
    src: Index
    dst: Index
    factor: Factor = 8.0


class SlowNic(_Windowed):
    """All paths between this rank and other nodes have 1/``factor`` of their bandwidth."""

    fault: Literal["slow_nic"] = "slow_nic"
    rank: Index
    factor: Factor = 8.0


class Delay(_Windowed):
    """One forward or backward of a rank starts ``delay_ms`` late on its device, once an iteration.

    A clock that drops for a moment, another job's kernel: everything else runs as fast as ever.
    """

    fault: Literal["delay"] = "delay"
    rank: Index
    delay_ms: Factor
    micro_batch: Index = 0
    phase: Phase = Phase.FORWARD


class DelayedMessage(_Windowed):
    """Once an iteration, a rank's result of a forward or backward takes ``delay_ms`` longer to its peer."""

    fault: Literal["delayed_message"] = "delayed_message"
    rank: Index
    delay_ms: Factor
    micro_batch: Index = 0
    phase: Phase = Phase.FORWARD


class DataLoaderStall(_Windowed):
    """A rank that loads data comes ``stall_ms`` late to the first forward of every ``every``-th iteration."""

    fault: Literal["data_loader_stall"] = "data_loader_stall"
    rank: Index
    stall_ms: Factor = 400.0
    every: Annotated[int, Field(ge=1)] = 1


class SequenceImbalance(_Windowed):
    """Sequence lengths differ: work per (replica, micro-batch) is scaled by a lognormal of this sigma."""

    fault: Literal["sequence_imbalance"] = "sequence_imbalance"
    sigma: Factor = 0.5


class StageImbalance(_Windowed):
    """The layers of one stage take ``factor`` times as long, on all its ranks (a bad split of the model)."""

    fault: Literal["stage_imbalance"] = "stage_imbalance"
    stage: Index
    factor: Factor = 1.5


class GcPauses(_Windowed):
    """Python's collector stops random ranks: ``per_iteration`` pauses of a random length somewhere in the
    job."""

    fault: Literal["gc_pauses"] = "gc_pauses"
    per_iteration: Factor = 2.0
    low_ms: Factor = 50.0
    high_ms: Factor = 500.0


class CheckpointStall(_Windowed):
    """Every ``every`` iterations, saving takes ``stall_ms`` longer on ``ranks`` (all where empty)."""

    fault: Literal["checkpoint_stall"] = "checkpoint_stall"
    ranks: tuple[Index, ...] = ()
    stall_ms: Factor = 3000.0
    every: Annotated[int, Field(ge=1)] = 10


class Jitter(_Windowed):
    """Kernel times of all ranks spread by ``sigma`` more (one-sided), evenly over ranks."""

    fault: Literal["jitter"] = "jitter"
    sigma: Factor = 0.3


class StuckHost(_Positioned):
    """The host of a rank stops before it makes the call; kernels already launched run on."""

    fault: Literal["stuck_host"] = "stuck_host"
    rank: Index


class StuckKernelBefore(_Positioned):
    """The kernel before the call never ends on this rank; its host runs ahead to its next wait."""

    fault: Literal["stuck_kernel_before"] = "stuck_kernel_before"
    rank: Index


class StuckInside(_Positioned):
    """The collective that this rank takes part in starts on all members and ends on none."""

    fault: Literal["stuck_inside"] = "stuck_inside"
    rank: Index


class MissingRecv(_Positioned):
    """The rank never posts the Recv that feeds this forward or backward, and stays where it is."""

    fault: Literal["missing_recv"] = "missing_recv"
    rank: Index


class MissingSend(_Positioned):
    """The rank never posts the Send of this forward's or backward's result, and stays where it is."""

    fault: Literal["missing_send"] = "missing_send"
    rank: Index


class SkippedCollective(_Positioned):
    """The rank leaves out one collective and goes on; what it calls next on that communicator never
    completes."""

    fault: Literal["skipped_collective"] = "skipped_collective"
    rank: Index


class OrderMismatch(_Positioned):
    """The rank makes two calls of one communicator in the wrong order; neither completes on any member.

    ``call`` names the first of the two; it moves on to the next place where the two differ in kind or size.
    """

    fault: Literal["order_mismatch"] = "order_mismatch"
    rank: Index
    phase: Phase = Phase.SYNC


class SizeMismatch(_Positioned):
    """The rank passes ``factor`` times as many elements as its peers; the call completes on no member."""

    fault: Literal["size_mismatch"] = "size_mismatch"
    rank: Index
    factor: Factor = 0.5


class CommDeadlock(_Spec):
    """At the end of an iteration the rank enters two communicators in the opposite order of its peers."""

    fault: Literal["comm_deadlock"] = "comm_deadlock"
    rank: Index
    iteration: Index


class DeadRank(_Positioned):
    """The process of a rank ends before it makes the call: its host and its device stop at once."""

    fault: Literal["dead_rank"] = "dead_rank"
    rank: Index


class DeadNode(_Positioned):
    """All ranks of a node end at the moment when its first rank would make the call."""

    fault: Literal["dead_node"] = "dead_node"
    node: Index


class DeadLink(_Spec):
    """Nothing passes between two ranks any more, from the transfer of this forward on."""

    fault: Literal["dead_link"] = "dead_link"
    src: Index
    dst: Index
    iteration: Index
    micro_batch: Index = 0


class LateDeaths(_Spec):
    """After the job has come to stand, ``count`` other nodes die one by one at random times.

    They die between the moment of the first stop and the moment when the last host has come to stand, so
    their logs end earlier than those of their peers: victims that look like culprits.
    """

    fault: Literal["late_deaths"] = "late_deaths"
    count: Annotated[int, Field(ge=1)] = 3


Fault: TypeAlias = Annotated[
    Union[  # noqa: UP007  (pydantic reads the discriminator from the union)
        SlowGpu,
        SlowHost,
        SlowLink,
        SlowNic,
        Delay,
        DelayedMessage,
        DataLoaderStall,
        SequenceImbalance,
        StageImbalance,
        GcPauses,
        CheckpointStall,
        Jitter,
        StuckHost,
        StuckKernelBefore,
        StuckInside,
        MissingRecv,
        MissingSend,
        SkippedCollective,
        OrderMismatch,
        SizeMismatch,
        CommDeadlock,
        DeadRank,
        DeadNode,
        DeadLink,
        LateDeaths,
    ],
    Field(discriminator="fault"),
]

Positioned: TypeAlias = (
    StuckHost
    | StuckKernelBefore
    | StuckInside
    | MissingRecv
    | MissingSend
    | SkippedCollective
    | OrderMismatch
    | SizeMismatch
    | DeadRank
    | DeadNode
)

STANDSTILLS = (
    StuckHost,
    StuckKernelBefore,
    StuckInside,
    MissingRecv,
    MissingSend,
    SkippedCollective,
    OrderMismatch,
    SizeMismatch,
    CommDeadlock,
    DeadRank,
    DeadNode,
    DeadLink,
)
"""Faults after which the job stands."""


def sporadic(fault: Fault) -> bool:
    """Whether a fault strikes some iterations of its window only."""
    if isinstance(fault, SlowGpu):
        return fault.duty < 1.0
    if isinstance(fault, DataLoaderStall):
        return fault.every > 1
    return isinstance(fault, CheckpointStall | GcPauses)
