"""The programs that training frameworks run: Megatron-style 3-D parallel jobs.

Counts and order follow the call patterns of Megatron-LM as read from its source and from a real call log: two
all-reduces a layer forward and backward in the tensor-parallel group, one more forward on the first stage
(embedding) and backward on the last (output layer), three of one element a token for the vocabulary-parallel
loss, three broadcasts of the batch a micro-batch on both end stages, and an epilogue of small collectives.

Data-parallel-only patterns are in ``sharded``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatrace.model.events import Op
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Action, Phase, Schedule, Step
from megatrace.simulator.program import (
    Call,
    Channel,
    Compute,
    Exchange,
    HostMark,
    HostWork,
    Instruction,
    Label,
    Lane,
    Message,
    Program,
    RingStep,
    Until,
    Wait,
)
from megatrace.simulator.scenario import Scenario

MS = 1e6
HALF = 2
"""bytes of a bfloat16"""
SINGLE = 4
"""bytes of a float32"""
ATTENTION_SHARE = 0.45
"""of a layer's time, the rest is the MLP (dense transformer of sequence length about the hidden size)"""
TAIL_FORWARD = 0.4
TAIL_BACKWARD = 0.45
"""Of one layer's time, the kernels after the last all-reduce of a block (residual and norm forward; weight
gradients backward). Seen in a real log: a rank that is slowed by 1.45 comes 2.2 ms later to the Send of a
forward of 3.5 ms a layer, and 4.5 ms later to the block after a backward."""
SMALL_CALL = 0.12
"""Host cost of an epilogue call as a share of a call inside a block."""


@dataclass(frozen=True, slots=True)
class IterationKind:
    """What is special about an iteration."""

    startup: bool = False
    evaluate: bool = False
    checkpoint: bool = False
    log: bool = False


def megatron(scenario: Scenario, stage: int, kind: IterationKind) -> Program:
    """The program of a stage for one iteration."""
    return Program.of(stage, _Megatron(scenario, stage).iteration(kind), scenario.layout)


class _Megatron:
    """Writes the instructions of one stage."""

    def __init__(self, scenario: Scenario, stage: int) -> None:
        self.s = scenario
        self.stage = stage
        tokens = scenario.sequence_length * scenario.micro_batch_size // scenario.cp
        self.tokens = max(tokens, 1)
        self.shard = scenario.tp if scenario.sequence_parallel else 1
        self.activation = max(self.tokens * scenario.hidden // self.shard, 1)
        self.call_host = scenario.host_call_ms * MS
        self.small_host = self.call_host * SMALL_CALL
        self.layers = scenario.layers_per_stage // scenario.vpp

    def iteration(self, kind: IterationKind) -> Iterator[Instruction]:
        if kind.startup:
            yield from self.startup()
        if kind.evaluate:
            for _ in range(self.s.evaluate_iterations):
                yield from self.steps(forward_only(self.s), evaluate=True)
                yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 1)
                yield Wait(Label(Phase.OTHER), Until.DEVICE)
            return
        yield from self.steps(self.s.plan)
        yield from self.epilogue(kind)

    def startup(self) -> Iterator[Instruction]:
        other = Label(Phase.OTHER)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 10, Phase.OTHER)
        yield from self.calls(Channel.WORLD, Op.BROADCAST, 24, 1, Phase.OTHER)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 2, Phase.OTHER)
        yield from self.calls(Channel.WORLD, Op.ALL_GATHER, 8, 1, Phase.OTHER)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 3, Phase.OTHER)
        yield Wait(other, Until.DEVICE)
        yield HostWork(other, self.s.first_iteration_ms * MS)

    def steps(self, plan: Schedule, evaluate: bool = False) -> Iterator[Instruction]:
        """The pipeline part: blocks, and exchanges between waits."""
        steps = plan.program(self.stage)
        if evaluate:
            kept = (Action.FORWARD, Action.SEND_FORWARD, Action.RECV_FORWARD)
            steps = tuple(step for step in steps if step.action in kept)
        last: Label | None = None
        index = 0
        loaded = False
        while index < len(steps):
            step = steps[index]
            if step.action.is_compute:
                phase = Phase.FORWARD if step.action is Action.FORWARD else Phase.BACKWARD
                label = Label(phase, step.micro_batch, step.chunk)
                if not loaded:
                    yield HostWork(label, 0.0, HostMark.LOAD)
                    loaded = True
                yield from self.forward(label) if phase is Phase.FORWARD else self.backward(label)
                last = label
                index += 1
                continue
            group = [step]
            while index + len(group) < len(steps) and steps[index + len(group)].batch == step.batch:
                group.append(steps[index + len(group)])
            yield from self.exchange(group, last)
            last = None
            index += len(group)

    def exchange(self, group: list[Step], after: Label | None) -> Iterator[Instruction]:
        label = after or Label(Phase.OTHER)
        if after is not None:
            # The input gradient is ready with the last all-reduce; weight gradients may still be running.
            reduced = after.phase is Phase.BACKWARD and self.s.tp > 1
            until = Until.LAST_CALL if reduced else Until.DEVICE
            yield Wait(label, until)
        messages = []
        for step in group:
            backward = step.action in (Action.SEND_BACKWARD, Action.RECV_BACKWARD)
            task = Label(Phase.BACKWARD if backward else Phase.FORWARD, step.micro_batch, step.chunk)
            assert step.peer is not None
            op = Op.SEND if step.action.is_send else Op.RECV
            messages.append(Message(op, step.peer, task, backward))
        yield Exchange(label, tuple(messages), self.activation, HALF, self.small_host)
        yield Wait(label, Until.DEVICE)
        yield HostWork(label, self.s.host_step_ms * MS)

    def is_first(self, label: Label) -> bool:
        return self.stage == 0 and label.chunk == 0

    def is_last(self, label: Label) -> bool:
        return self.stage == self.s.pp - 1 and label.chunk == self.s.vpp - 1

    def tensor(self, label: Label, op: Op = Op.ALL_REDUCE) -> Iterator[Instruction]:
        """A collective of activations in the tensor-parallel group, if there is one."""
        if self.s.tp > 1:
            yield Call(label, Channel.TENSOR, op, self.activation, HALF, host=self.call_host)

    def forward(self, label: Label) -> Iterator[Instruction]:
        first, last = self.is_first(label), self.is_last(label)
        if (first or last) and self.s.tp > 1:
            yield from self.batch(label, first)
        layer = self.s.layer_forward_ms * MS
        tail = min(TAIL_FORWARD, self.layers / 2) * layer
        scale = (self.layers * layer - tail) / (self.layers * layer) if layer else 0.0
        if first:
            yield Compute(label, 0.1 * layer, 3)
            yield from self.tensor(label, Op.REDUCE_SCATTER if self.s.sequence_parallel else Op.ALL_REDUCE)
        for _ in range(self.layers):
            yield from self.layer(label, layer * scale)
        yield Compute(label, tail, 4, self.host_of_compute())
        if last:
            yield Compute(label, self.s.loss_ms * MS, 6)
            if self.s.tp > 1:
                for _ in range(3):
                    yield Call(
                        label, Channel.TENSOR, Op.ALL_REDUCE, self.tokens, SINGLE, host=self.small_host
                    )
            yield Wait(label, Until.DEVICE)

    def batch(self, label: Label, first: bool) -> Iterator[Instruction]:
        tokens, square = self.tokens, self.tokens * self.s.sequence_length
        counts = (8 * tokens, square, 8 * tokens) if first else (8 * tokens, 4 * tokens, square)
        for count in counts:
            yield Call(label, Channel.TENSOR, Op.BROADCAST, count, 1, host=self.small_host / 2)

    def host_of_compute(self) -> float:
        """Without calls between kernels the host still has to launch them."""
        return self.call_host if self.s.tp == 1 else 0.0

    def layer(self, label: Label, time: float) -> Iterator[Instruction]:
        forward = label.phase is Phase.FORWARD
        parts = ("attention", "mlp") if forward else ("mlp", "attention")
        for part in parts:
            share = ATTENTION_SHARE if part == "attention" else 1 - ATTENTION_SHARE
            if not self.s.sequence_parallel:
                yield from self.part(label, part, time * share)
                yield from self.tensor(label)
                continue
            yield from self.tensor(label, Op.ALL_GATHER)
            if forward:
                yield from self.part(label, part, time * share)
            else:
                yield from self.part(label, part, time * share / 2)
                yield from self.tensor(label, Op.ALL_GATHER)
                yield Compute(label, time * share / 2)
            yield from self.tensor(label, Op.REDUCE_SCATTER)

    def part(self, label: Label, part: str, time: float) -> Iterator[Instruction]:
        host = self.host_of_compute()
        if part == "attention" and self.s.cp > 1:
            yield from self.attention(label, time)
        elif part == "mlp" and self.s.ep > 1:
            count = max(self.activation // self.s.ep, 1)
            yield Compute(label, 0.2 * time, 6, host)
            yield Call(label, Channel.EXPERT, Op.ALL_TO_ALL, count, HALF, host=self.small_host, uneven=True)
            yield Compute(label, 0.6 * time, 6, host)
            yield Call(label, Channel.EXPERT, Op.ALL_TO_ALL, count, HALF, host=self.small_host, uneven=True)
            yield Compute(label, 0.2 * time, 4, host)
        else:
            yield Compute(label, time, 12, host)

    def attention(self, label: Label, time: float) -> Iterator[Instruction]:
        host = self.host_of_compute()
        count = 2 * max(self.activation // self.s.tp, 1)
        if self.s.context_parallel_comm == "all_gather":
            op = Op.ALL_GATHER if label.phase is Phase.FORWARD else Op.REDUCE_SCATTER
            yield Call(label, Channel.CONTEXT, op, count, HALF, host=self.small_host)
            yield Compute(label, time, 12, host)
            return
        piece = time / self.s.cp
        yield Compute(label, piece, 6, host)
        for _ in range(self.s.cp - 1):
            yield RingStep(label, count, HALF, self.small_host)
            yield Compute(label, piece, 6, host)

    def backward(self, label: Label) -> Iterator[Instruction]:
        layer = self.s.layer_backward_ms * MS
        tail = min(TAIL_BACKWARD, self.layers / 2) * layer
        scale = (self.layers * layer - tail) / (self.layers * layer) if layer else 0.0
        if self.is_last(label):
            yield Compute(label, self.s.loss_ms * MS, 6)
            yield from self.tensor(label, Op.ALL_GATHER if self.s.sequence_parallel else Op.ALL_REDUCE)
        overlap = self.s.overlap_grad_reduce and label.micro_batch == self.s.micro_batches - 1
        for _ in range(self.layers):
            yield from self.layer(label, layer * scale)
            if overlap:
                yield self.gradients(label, self.layers)
        yield Compute(label, tail, 4, self.host_of_compute())

    def parameters(self) -> int:
        """Parameters of one rank."""
        s = self.s
        ends = s.vocabulary * s.hidden if self.stage in (0, s.pp - 1) else 0
        return max((12 * s.layers_per_stage * s.hidden**2 + ends) // s.tp, 1)

    def gradients(self, label: Label, buckets: int) -> Call:
        members = self.s.dp * self.s.cp
        count = max(self.parameters() // buckets // self.s.vpp, 1)
        op = Op.ALL_REDUCE
        if self.s.distributed_optimizer:
            op, count = Op.REDUCE_SCATTER, max(count // members, 1)
        return Call(label, Channel.DATA, op, count, SINGLE, Lane.GRADS, self.small_host)

    def calls(
        self, channel: Channel, op: Op, count: int, times: int, phase: Phase = Phase.SYNC
    ) -> Iterator[Instruction]:
        for _ in range(times):
            yield Call(Label(phase), channel, op, count, SINGLE, host=self.small_host)

    def epilogue(self, kind: IterationKind) -> Iterator[Instruction]:
        s, sync = self.s, Label(Phase.SYNC)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 1)
        yield Wait(sync, Until.DEVICE)
        if s.sequence_parallel and s.tp > 1:
            norms = max(4 * s.layers_per_stage * s.hidden, 1)
            yield Call(sync, Channel.TENSOR, Op.ALL_REDUCE, norms, SINGLE, host=self.small_host)
        if not s.overlap_grad_reduce:
            for _ in range(s.vpp):
                yield self.gradients(sync, 1)
        if s.tied_embeddings and s.pp > 1 and self.stage in (0, s.pp - 1):
            count = max(s.vocabulary * s.hidden // s.tp, 1)
            yield Call(sync, Channel.EMBEDDING, Op.ALL_REDUCE, count, SINGLE, host=self.small_host)
        yield Wait(sync, Until.GRADS)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 5)
        yield Wait(sync, Until.DEVICE)
        yield HostWork(sync, s.host_step_ms * MS)
        yield from self.calls(Channel.GRAD_STATS, Op.ALL_REDUCE, 1, 1)
        yield Wait(sync, Until.DEVICE)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 1)
        yield Wait(sync, Until.DEVICE)
        yield Compute(sync, s.optimizer_ms * MS, 40)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 1)
        yield Wait(sync, Until.DEVICE)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 1)
        if s.distributed_optimizer:
            count = max(HALF * self.parameters() // (s.dp * s.cp), 1)
            yield Call(sync, Channel.DATA, Op.ALL_GATHER, count, 1, host=self.small_host)
        yield from self.statistics()
        yield Wait(sync, Until.DEVICE)
        if kind.log:
            yield from self.logging()
        yield HostWork(sync, s.checkpoint_ms * MS if kind.checkpoint else 0.0, HostMark.SAVE)
        if kind.checkpoint:
            yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 1)
            yield Wait(sync, Until.DEVICE)
        yield HostWork(sync, 4 * s.host_step_ms * MS)

    def statistics(self) -> Iterator[Instruction]:
        """Loss and norms: on the last stage one of them is the loss over the data-parallel group."""
        last = self.stage == self.s.pp - 1
        yield from self.calls(Channel.MODEL, Op.ALL_REDUCE, 1, 2)
        if last:
            yield from self.calls(Channel.DATA, Op.ALL_REDUCE, 2, 1)
        yield from self.calls(Channel.MODEL, Op.ALL_REDUCE, 1, 1)

    def logging(self) -> Iterator[Instruction]:
        sync = Label(Phase.SYNC)
        yield from self.calls(Channel.WORLD, Op.ALL_GATHER, 96, 1)
        yield HostWork(sync, 4 * self.s.host_step_ms * MS)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 2)
        yield from self.calls(Channel.WORLD, Op.ALL_GATHER, 96, 1)
        yield from self.calls(Channel.WORLD, Op.ALL_REDUCE, 1, 1)
        yield Wait(sync, Until.DEVICE)


def forward_only(scenario: Scenario) -> Schedule:
    """An evaluation runs the forwards of a GPipe schedule (interleaved ones where chunks wrap around)."""
    if scenario.vpp > 1:
        return scenario.plan
    return Schedule(ScheduleKind.GPIPE, scenario.pp, scenario.micro_batches)
