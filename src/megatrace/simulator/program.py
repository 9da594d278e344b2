"""What the ranks of one stage do in one iteration: kernels, calls, exchanges and waits, in the order of the
host.

All ranks of a stage run the same program, so an instruction is one node of the dependency graph for all of
them and the engine evaluates it as an array over [dp, cp, tp]. Waits stand where training frameworks put
them: the host waits for the device before and after a P2P exchange, when it reads the loss, and when it reads
the gradient norm. Between two waits it runs ahead, which is why calls inside a block follow each other
quickly whatever the device does.

Knows no times of a particular rank and no faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from megatrace.model.events import Op
from megatrace.model.layout import Axis, ParallelLayout
from megatrace.model.schedule import Phase


class Channel(Enum):
    """A family of communicators, one for every group of its axis; each has a stream of its own."""

    WORLD = "world"
    TENSOR = "tp"
    CONTEXT = "cp"
    EXPERT = "ep"
    DATA = "dp"
    PIPELINE = "pp"
    EMBEDDING = "embedding"
    GRAD_STATS = "grad_stats"
    MODEL = "model"


AXES: dict[Channel, Axis] = {
    Channel.WORLD: Axis.WORLD,
    Channel.TENSOR: Axis.TENSOR,
    Channel.CONTEXT: Axis.CONTEXT,
    Channel.EXPERT: Axis.EXPERT,
    Channel.DATA: Axis.DATA_CONTEXT,
    Channel.PIPELINE: Axis.PIPELINE,
    Channel.EMBEDDING: Axis.EMBEDDING,
    Channel.GRAD_STATS: Axis.WORLD,
    Channel.MODEL: Axis.MODEL,
}
CROSS_STAGE = frozenset({Channel.WORLD, Channel.EMBEDDING, Channel.GRAD_STATS, Channel.MODEL})
"""Channels whose groups span stages."""


class Lane(Enum):
    """A queue of the device. What lies in one lane runs in order; lanes overlap."""

    COMPUTE = "compute"
    """kernels, and collectives that the next kernel needs"""
    GRADS = "grads"
    GATHER = "gather"


class Until(Enum):
    """What a wait waits for."""

    DEVICE = "device"
    """the host, for everything launched"""
    LAST_CALL = "last_call"
    """the host, for the last collective of the compute lane, not for the kernels after it"""
    GRADS = "grads"
    """the device's compute lane, for the gradient lane"""
    GATHER_PREVIOUS = "gather_previous"
    """the device's compute lane, for all but the newest parameter gather"""


@dataclass(frozen=True, slots=True)
class Label:
    """Where in the iteration an instruction stands."""

    phase: Phase
    micro_batch: int | None = None
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels of ``work`` ns on the device, ``kernels`` of them; launching costs the host ``host`` ns."""

    label: Label
    work: float
    kernels: int = 12
    host: float = 0.0


class HostMark(Enum):
    """Places at which faults of the host side strike."""

    NONE = "none"
    LOAD = "load"
    SAVE = "save"


@dataclass(frozen=True, slots=True)
class HostWork:
    """The host computes for ``host`` ns."""

    label: Label
    host: float
    mark: HostMark = HostMark.NONE


@dataclass(frozen=True, slots=True)
class Call:
    """One collective. ``count`` elements of ``width`` bytes; ``uneven`` counts differ from rank to rank."""

    label: Label
    channel: Channel
    op: Op
    count: int
    width: int
    lane: Lane = Lane.COMPUTE
    host: float = 0.0
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One Send or Recv of an exchange. ``task`` is the forward or backward that it feeds or empties here."""

    op: Op
    peer_stage: int
    task: Label
    backward: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """Sends and Recvs with neighbouring stages issued as one group; the host then waits for all of them."""

    label: Label
    messages: tuple[Message, ...]
    count: int
    width: int
    host: float = 0.0


@dataclass(frozen=True, slots=True)
class RingStep:
    """Each rank sends to the next and receives from the previous member of its context-parallel group."""

    label: Label
    count: int
    width: int
    host: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """The host, or the device's compute lane, goes on only when something is done."""

    label: Label
    until: Until


Instruction: TypeAlias = Compute | HostWork | Call | Exchange | RingStep | Wait


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded call of a program: its instruction's index and what the recording says of it.

    ``seq`` counts within the program and channel; ``peer_stage`` for Sends and Recvs between stages, ``ring``
    ±1 for those of a context-parallel ring.
    """

    instruction: int
    op: Op
    channel: Channel
    count: int
    width: int
    seq: int
    peer_stage: int | None = None
    ring: int = 0
    uneven: bool = False


@dataclass(frozen=True)
class Program:
    """Instructions of one stage for one iteration, with the rows they record."""

    stage: int
    instructions: tuple[Instruction, ...]
    rows: tuple[Row, ...] = field(default=())
    first_row: tuple[int, ...] = field(default=())
    """Per instruction: index of its first row (the rows of the previous one where it records nothing)."""
    alone: frozenset[Channel] = frozenset()
    """Channels whose communicators have one rank in this job."""
    calls: dict[Channel, int] = field(default_factory=dict)
    """Operation numbers that the program uses up per channel."""

    @staticmethod
    def of(stage: int, instructions: Iterator[Instruction], layout: ParallelLayout) -> Program:
        """Numbers the calls of the instructions."""
        listed = tuple(instructions)
        rows: list[Row] = []
        first: list[int] = []
        used: dict[Channel, int] = {}
        for index, item in enumerate(listed):
            first.append(len(rows))
            new = tuple(_rows_of(index, item, used))
            rows += new
            if new:
                used[new[0].channel] = new[0].seq + 1
        alone = frozenset(channel for channel, axis in AXES.items() if layout.size(axis) == 1)
        return Program(stage, listed, tuple(rows), tuple(first), alone, used)

    def block(self, label: Label) -> tuple[int, ...]:
        """Indices of the instructions of one block."""
        return tuple(i for i, item in enumerate(self.instructions) if item.label == label)


def _rows_of(index: int, item: Instruction, used: dict[Channel, int]) -> Iterator[Row]:
    if isinstance(item, Call):
        seq = used.get(item.channel, 0)
        yield Row(index, item.op, item.channel, item.count, item.width, seq, uneven=item.uneven)
    elif isinstance(item, Exchange):
        # NCCL numbers the group as one operation: a coalesced Send and Recv share their opCount.
        seq = used.get(Channel.PIPELINE, 0)
        for message in item.messages:
            yield Row(index, message.op, Channel.PIPELINE, item.count, item.width, seq, message.peer_stage)
    elif isinstance(item, RingStep):
        seq = used.get(Channel.CONTEXT, 0)
        yield Row(index, Op.SEND, Channel.CONTEXT, item.count, item.width, seq, ring=1)
        yield Row(index, Op.RECV, Channel.CONTEXT, item.count, item.width, seq, ring=-1)
