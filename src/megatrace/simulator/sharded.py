"""Programs of jobs that only shard data and parameters: DDP, FSDP and ZeRO-3 patterns.

The host reads the loss once an iteration, so within one it runs ahead of its device as far as the launch
queue lets it: what a text log of such a job can tell about a slow device is little, and that is the point of
having them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatrace.model.events import Op
from megatrace.model.schedule import Phase
from megatrace.simulator.program import (
    Call,
    Channel,
    Compute,
    HostMark,
    HostWork,
    Instruction,
    Label,
    Lane,
    Program,
    Until,
    Wait,
)

if TYPE_CHECKING:
    from megatrace.simulator.patterns import IterationKind
    from megatrace.simulator.scenario import Scenario

MS = 1e6
KERNELS_PER_LAYER = 30
"""of a transformer layer run without fusion of its parts"""


def sharded(scenario: Scenario, stage: int, kind: IterationKind) -> Program:
    """The program of one iteration of a data-parallel-only job."""
    return Program.of(stage, _Sharded(scenario).iteration(kind), scenario.layout)


class _Sharded:
    def __init__(self, scenario: Scenario) -> None:
        self.s = scenario
        self.layers = scenario.layers_per_stage
        self.host = scenario.host_call_ms * MS
        self.parameters = 12 * scenario.hidden**2
        self.pieces = 2 if scenario.pattern == "zero3" else 1
        """Gathers a layer: ZeRO-3 gathers module by module, FSDP unit by unit."""

    def iteration(self, kind: IterationKind) -> Iterator[Instruction]:
        s = self.s
        if kind.startup:
            for _ in range(8):
                yield self.small(Label(Phase.OTHER), Op.ALL_REDUCE, 1)
            yield Wait(Label(Phase.OTHER), Until.DEVICE)
            yield HostWork(Label(Phase.OTHER), s.first_iteration_ms * MS)
        batches = s.evaluate_iterations if kind.evaluate else s.micro_batches
        for micro_batch in range(batches):
            yield from self.forward(Label(Phase.FORWARD, micro_batch), first=micro_batch == 0)
            if not kind.evaluate:
                yield from self.backward(Label(Phase.BACKWARD, micro_batch))
        yield from self.finish(kind)

    def small(self, label: Label, op: Op, count: int) -> Call:
        return Call(label, Channel.WORLD, op, count, 4, host=0.1 * self.host)

    def shard(self, op: Op, label: Label) -> Call:
        count = max(self.parameters // self.pieces // self.s.dp, 1)
        lane = Lane.GATHER if op is Op.ALL_GATHER else Lane.GRADS
        return Call(label, Channel.DATA, op, count, 2, lane, 0.1 * self.host)

    def units(self, label: Label, time: float, reduce: bool) -> Iterator[Instruction]:
        """Kernels of all layers, each unit after the gather of its parameters; the next gather is issued
        ahead."""
        units = self.layers * self.pieces
        gathers = self.s.pattern != "ddp"
        if gathers:
            yield self.shard(Op.ALL_GATHER, label)
        for unit in range(units):
            if gathers and unit + 1 < units:
                yield self.shard(Op.ALL_GATHER, label)
                yield Wait(label, Until.GATHER_PREVIOUS)
            yield Compute(label, time / units, KERNELS_PER_LAYER // self.pieces, self.host)
            if reduce and gathers:
                yield self.shard(Op.REDUCE_SCATTER, label)
            elif reduce:
                yield Call(
                    label, Channel.DATA, Op.ALL_REDUCE, self.parameters, 2, Lane.GRADS, host=0.1 * self.host
                )

    def forward(self, label: Label, first: bool) -> Iterator[Instruction]:
        yield HostWork(label, 0.0, HostMark.LOAD if first else HostMark.NONE)
        yield from self.units(label, self.layers * self.s.layer_forward_ms * MS, reduce=False)
        yield Compute(label, self.s.loss_ms * MS, 6)

    def backward(self, label: Label) -> Iterator[Instruction]:
        last = label.micro_batch == self.s.micro_batches - 1
        reduce = last or self.s.pattern != "ddp"
        yield from self.units(label, self.layers * self.s.layer_backward_ms * MS, reduce)

    def finish(self, kind: IterationKind) -> Iterator[Instruction]:
        s, sync = self.s, Label(Phase.SYNC)
        yield Wait(sync, Until.GRADS)
        if not kind.evaluate:
            yield self.small(sync, Op.ALL_REDUCE, 1)
            yield Compute(sync, s.optimizer_ms * MS, 40, self.host)
        yield Call(sync, Channel.DATA, Op.ALL_REDUCE, 1, 4, host=0.1 * self.host)
        yield Wait(sync, Until.DEVICE)
        if kind.log and not kind.evaluate:
            yield self.small(sync, Op.ALL_GATHER, 96)
            yield Wait(sync, Until.DEVICE)
        yield HostWork(sync, s.checkpoint_ms * MS if kind.checkpoint else 0.0, HostMark.SAVE)
        if kind.checkpoint:
            yield self.small(sync, Op.ALL_REDUCE, 1)
            yield Wait(sync, Until.DEVICE)
        yield HostWork(sync, 4 * s.host_step_ms * MS)
