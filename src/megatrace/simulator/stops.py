"""Where faults that bring a job to a standstill strike: from a fault's words to an instruction of a program.

A stop says what happens to one rank when its stage's program reaches an instruction. Everything that follows
from it (who waits for whom, how far every other host gets) is left to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from megatrace.errors import ConfigError
from megatrace.model.events import Op
from megatrace.model.schedule import Phase
from megatrace.simulator.faults import (
    CommDeadlock,
    DeadLink,
    DeadNode,
    DeadRank,
    Fault,
    MissingRecv,
    MissingSend,
    OrderMismatch,
    Positioned,
    SizeMismatch,
    SkippedCollective,
    StuckHost,
    StuckInside,
    StuckKernelBefore,
)
from megatrace.simulator.program import Call, Channel, Compute, Exchange, Label, Lane, Program, Row


class Stop(Enum):
    """What happens to a rank at an instruction."""

    HOST = "host"
    """the host does not get there"""
    MESSAGE = "message"
    """the host makes the calls of the exchange before this message and no further"""
    KERNEL = "kernel"
    """the device's compute lane does not get there"""
    INSIDE = "inside"
    """the call starts and never ends, for all members"""
    SKIP = "skip"
    """this rank leaves the call out; the communicator is out of step from here"""
    BREAK = "break"
    """the call does not fit what the peers call: it never ends, nor does anything after it there"""
    DEATH = "death"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Strike:
    """One stop of one rank. ``message`` indexes the messages of an exchange."""

    stop: Stop
    rank: int
    instruction: int
    message: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a fault struck. ``seq`` is the operation number of the call, where it counts."""

    strike: Strike
    program: Program
    seq: int | None


def strike_of(fault: Fault, program: Program) -> Strike | None:
    """The strike of a fault in its rank's program; None for faults that stop nothing by a call."""
    if isinstance(fault, MissingRecv | MissingSend):
        instruction, message = message_of(fault, program)
        return Strike(Stop.MESSAGE, fault.rank, instruction, message)
    if isinstance(fault, StuckHost):
        return Strike(Stop.HOST, fault.rank, call_of(fault, program, messages=True))
    if isinstance(fault, DeadRank):
        return Strike(Stop.DEATH, fault.rank, call_of(fault, program, messages=True))
    if isinstance(fault, StuckKernelBefore):
        return Strike(Stop.KERNEL, fault.rank, kernel_before(fault, program))
    simple = {StuckInside: Stop.INSIDE, SkippedCollective: Stop.SKIP, SizeMismatch: Stop.BREAK}
    stop = simple.get(type(fault))
    if stop is not None and isinstance(fault, StuckInside | SkippedCollective | SizeMismatch):
        return Strike(stop, fault.rank, call_of(fault, program))
    if isinstance(fault, OrderMismatch):
        return Strike(Stop.BREAK, fault.rank, swapped_calls(fault, program)[0])
    if isinstance(fault, CommDeadlock):
        return Strike(Stop.BREAK, fault.rank, crossed_calls(program)[0])
    return None


def block_label(fault: Positioned | CommDeadlock, program: Program) -> Label:
    """The label of the block that a fault names (the first chunk that has it)."""
    if isinstance(fault, CommDeadlock) or fault.phase in (Phase.SYNC, Phase.OTHER):
        return Label(Phase.SYNC)
    for item in program.instructions:
        if item.label.phase is fault.phase and item.label.micro_batch == fault.micro_batch:
            return item.label
    raise ConfigError("fault", fault, f"a {fault.phase.value} that this iteration has")


def call_of(fault: Positioned, program: Program, *, messages: bool = False) -> int:
    """The instruction of the fault's call: the ``call``-th collective of its block, or the last one.

    A block without collectives has none to stop before: with ``messages`` its exchange is taken, then its
    first kernel; without, that is an error.
    """
    indices = program.block(block_label(fault, program))
    calls = shared_calls(program, indices)
    if calls:
        return calls[min(fault.call, len(calls) - 1)]
    if messages:
        exchanges = [i for i in indices if isinstance(program.instructions[i], Exchange)]
        return (exchanges or list(indices))[0]
    raise ConfigError(
        f"faults ({fault.fault})", fault.phase.value, "a phase in which this rank makes a collective call"
    )


def shared_calls(program: Program, indices: tuple[int, ...]) -> list[int]:
    """Those instructions that are collectives with other ranks: one rank alone waits for nobody."""
    return [
        i
        for i in indices
        if isinstance(call := program.instructions[i], Call) and call.channel not in program.alone
    ]


def kernel_before(fault: StuckKernelBefore, program: Program) -> int:
    """The last kernel launched before the fault's call in its block, else the first one after it."""
    indices = program.block(block_label(fault, program))
    before = call_of(fault, program, messages=True)
    kernels = [i for i in indices if isinstance(program.instructions[i], Compute)]
    if not kernels:
        return before
    return max((i for i in kernels if i <= before), default=kernels[0])


def message_of(fault: MissingRecv | MissingSend, program: Program) -> tuple[int, int]:
    """(instruction, message) of the Recv that feeds, or the Send that empties, the fault's task."""
    op = Op.RECV if isinstance(fault, MissingRecv) else Op.SEND
    for index, item in enumerate(program.instructions):
        if not isinstance(item, Exchange):
            continue
        for number, message in enumerate(item.messages):
            task = message.task
            if message.op is op and task.phase is fault.phase and task.micro_batch == fault.micro_batch:
                return index, number
    raise ConfigError(
        f"faults ({fault.fault}).rank",
        fault.rank,
        f"a rank whose stage has a {op.name.capitalize()} for the {fault.phase.value} of a micro-batch",
    )


def swapped_calls(fault: OrderMismatch, program: Program) -> tuple[int, int]:
    """Two calls of the block that follow each other on one communicator and differ in kind or size."""
    indices = program.block(block_label(fault, program))
    calls = shared_calls(program, indices)
    found: list[tuple[int, int]] = []
    for number, first in enumerate(calls):
        a = program.instructions[first]
        assert isinstance(a, Call)
        for second in calls[number + 1 :]:
            b = program.instructions[second]
            assert isinstance(b, Call)
            if a.channel is b.channel:
                if (a.op, a.count) != (b.op, b.count):
                    found.append((first, second))
                break
        if found and number >= fault.call:
            break
    if not found:
        raise ConfigError(
            "faults (order_mismatch)",
            fault.phase.value,
            "a phase with two different calls of one communicator",
        )
    return found[-1]


def crossed_calls(program: Program) -> tuple[int, int]:
    """Two calls at the end of an iteration on different communicators that both block their callers."""
    calls = [
        i
        for i, item in enumerate(program.instructions)
        if isinstance(item, Call) and item.label.phase is Phase.SYNC
    ]
    for first in calls:
        a = program.instructions[first]
        if isinstance(a, Call) and a.channel is Channel.GRAD_STATS:
            after = [i for i in calls if i > first and _channel(program, i) is Channel.WORLD]
            if after:
                return first, after[0]
    raise ConfigError(
        "faults (comm_deadlock)", "pattern", "a pattern whose iterations end in two communicators"
    )


def _channel(program: Program, index: int) -> Channel | None:
    item = program.instructions[index]
    return item.channel if isinstance(item, Call) else None


def row_at(program: Program, strike: Strike) -> Row | None:
    """The recorded call that a strike concerns: the instruction's own, or the next one."""
    start = program.first_row[strike.instruction] + strike.message
    return program.rows[start] if start < len(program.rows) else None


def stands_at(program: Program, strike: Strike) -> tuple[Row, Label] | None:
    """The first call that a strike keeps from being made, or from ending, and the task that it belongs to.

    A block may have no call after the place where a rank stopped; and what its device gathers ahead does not
    wait for its kernels.
    """
    for row in program.rows[program.first_row[strike.instruction] + strike.message :]:
        item = program.instructions[row.instruction]
        if strike.stop is Stop.KERNEL and isinstance(item, Call) and item.lane is Lane.GATHER:
            continue
        if isinstance(item, Exchange):
            at = strike.message if row.instruction == strike.instruction else 0
            return row, item.messages[at].task
        return row, item.label
    return None


def struck(fault: Fault, iteration: int) -> bool:
    """Whether a fault's strike falls into an iteration."""
    return not isinstance(fault, DeadNode | DeadLink) and getattr(fault, "iteration", None) == iteration
