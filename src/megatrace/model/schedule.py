"""Pipeline schedules: the order of forwards and backwards on a stage, and the Sends and Recvs between stages.

From the public schedules of Megatron-LM (``core/pipeline_parallel/schedules.py``, non-interleaved and
interleaved 1F1B without communication overlap) and PyTorch's ``ScheduleGPipe``. Both the simulator and the
analysis use this module, so it has golden tables written by hand from those sources
(``tests/golden/schedule``): an error here would otherwise agree with itself.

Does not know times, ranks or tensors: only stages, micro-batches and model chunks, all counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from megatrace.model.job import ScheduleKind


class Phase(Enum):
    """The part of an iteration to which a call belongs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SYNC = "sync"
    OTHER = "other"


class Action(Enum):
    """One thing that a stage does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SEND_FORWARD = "send_forward"
    RECV_FORWARD = "recv_forward"
    SEND_BACKWARD = "send_backward"
    RECV_BACKWARD = "recv_backward"

    @property
    def is_compute(self) -> bool:
        """A forward or backward, not a transfer."""
        return self in (Action.FORWARD, Action.BACKWARD)

    @property
    def is_send(self) -> bool:
        """A Send, of an activation or a gradient."""
        return self in (Action.SEND_FORWARD, Action.SEND_BACKWARD)


@dataclass(frozen=True, slots=True)
class Task:
    """One forward or backward of one micro-batch through one model chunk."""

    phase: Phase
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a stage's program.

    ``micro_batch`` and ``chunk`` are those of the *task at this stage* that the action runs, feeds (Recv) or
    empties (Send). ``peer`` is the other stage of a Send or Recv. Steps with the same ``batch`` are issued as
    one coalesced group (``batch_isend_irecv``), in the order written.
    """

    action: Action
    micro_batch: int
    chunk: int
    batch: int
    peer: int | None = None


@dataclass(frozen=True)
class Schedule:
    """A schedule of ``micro_batches`` over ``pp`` stages with ``vpp`` model chunks each.

    ``group`` is Megatron's microbatch_group_size_per_vp_stage (default pp); used by INTERLEAVED only, which
    needs pp ≤ group ≤ micro_batches and a remainder of 0 or at least pp. ``ValueError`` otherwise.
    """

    kind: ScheduleKind
    pp: int
    micro_batches: int
    vpp: int = 1
    group: int | None = None

    def __post_init__(self) -> None:
        if min(self.pp, self.micro_batches, self.vpp) < 1:
            raise ValueError("schedule: pp, micro_batches and vpp must be at least 1")
        if self.kind is not ScheduleKind.INTERLEAVED and self.vpp != 1:
            raise ValueError(f"schedule: {self.kind.value} has one model chunk a stage, not {self.vpp}")
        if self.kind is ScheduleKind.INTERLEAVED and self.vpp > 1:
            self._check_interleaving()

    def _check_interleaving(self) -> None:
        """Megatron-LM's own conditions; outside them a stage would receive what nobody has sent yet."""
        if self.pp < 2:
            raise ValueError("schedule: interleaving needs at least two stages")
        size = self.group_size
        if not self.pp <= size <= self.micro_batches:
            raise ValueError(
                f"schedule: interleaving needs groups of pp {self.pp} to {self.micro_batches} micro-batches, "
                f"not {size}"
            )
        rest = self.micro_batches % size
        if 0 < rest < self.pp:
            raise ValueError(
                f"schedule: {self.micro_batches} micro-batches in groups of {size} leave {rest}, "
                f"fewer than pp {self.pp}"
            )

    @property
    def group_size(self) -> int:
        """Micro-batches that run through one model chunk before the next chunk's turn (INTERLEAVED)."""
        return self.pp if self.group is None else self.group

    @property
    def total(self) -> int:
        """Forwards (and backwards) of one stage in one iteration."""
        return self.micro_batches * self.vpp

    def warm_up(self, stage: int) -> int:
        """Forwards that a stage runs before its first backward of the steady phase."""
        self._check(stage)
        if self.kind is ScheduleKind.GPIPE:
            return self.total
        if self.kind is ScheduleKind.ONE_F_ONE_B or self.vpp == 1:
            return min(self.pp - stage - 1, self.total)
        return min((self.pp - stage - 1) * 2 + (self.vpp - 1) * self.group_size, self.total)

    @cached_property
    def _table(self) -> tuple[tuple[int, int], ...]:
        """(micro-batch, chunk) of the k-th forward; the k-th backward has chunk vpp − 1 − chunk."""
        if self.vpp == 1:
            return tuple((k, 0) for k in range(self.micro_batches))
        rows: list[tuple[int, int]] = []
        for first in range(0, self.micro_batches, self.group_size):
            last = min(first + self.group_size, self.micro_batches)
            rows += [(mb, chunk) for chunk in range(self.vpp) for mb in range(first, last)]
        return tuple(rows)

    def forward(self, k: int) -> Task:
        """The k-th forward of any stage."""
        micro_batch, chunk = self._table[k]
        return Task(Phase.FORWARD, micro_batch, chunk)

    def backward(self, k: int) -> Task:
        """The k-th backward of any stage."""
        micro_batch, chunk = self._table[k]
        return Task(Phase.BACKWARD, micro_batch, self.vpp - 1 - chunk)

    def tasks(self, stage: int) -> tuple[Task, ...]:
        """All forwards and backwards of a stage in the order in which it runs them."""
        warm = self.warm_up(stage)
        order = [self.forward(k) for k in range(warm)]
        for k in range(self.total - warm):
            order += [self.forward(warm + k), self.backward(k)]
        order += [self.backward(k) for k in range(self.total - warm, self.total)]
        return tuple(order)

    def program(self, stage: int) -> tuple[Step, ...]:
        """What a stage does in one iteration: tasks, Sends and Recvs, in issue order."""
        warm = self.warm_up(stage)
        builder = _Builder(self, stage)
        if self.vpp > 1:
            return builder.interleaved(warm)
        if self.kind is ScheduleKind.GPIPE:
            return builder.gpipe()
        return builder.plain(warm)

    def _check(self, stage: int) -> None:
        if not 0 <= stage < self.pp:
            raise ValueError(f"stage {stage} is outside 0..{self.pp - 1}")


class _Builder:
    """Writes the program of one stage."""

    def __init__(self, schedule: Schedule, stage: int) -> None:
        self.schedule = schedule
        self.stage = stage
        self.steps: list[Step] = []
        self.batch = 0

    def _compute(self, action: Action, task: Task) -> None:
        self.steps.append(Step(action, task.micro_batch, task.chunk, self.batch))
        self.batch += 1

    def _exchange(self, *wanted: tuple[Action, Task | None]) -> None:
        """One coalesced group; a None task or an end of the pipeline drops its step."""
        before = len(self.steps)
        for action, task in wanted:
            peer = None if task is None else self._peer(action, task)
            if task is not None and peer is not None:
                self.steps.append(Step(action, task.micro_batch, task.chunk, self.batch, peer))
        if len(self.steps) > before:
            self.batch += 1

    def _peer(self, action: Action, task: Task) -> int | None:
        last_stage, last_chunk = self.schedule.pp - 1, self.schedule.vpp - 1
        if action in (Action.SEND_FORWARD, Action.RECV_BACKWARD):
            if self.stage < last_stage:
                return self.stage + 1
            return 0 if task.chunk < last_chunk else None
        if self.stage > 0:
            return self.stage - 1
        return last_stage if task.chunk > 0 else None

    def plain(self, warm: int) -> tuple[Step, ...]:
        s = self.schedule
        steady = s.total - warm
        for k in range(warm):
            self._exchange((Action.RECV_FORWARD, s.forward(k)))
            self._compute(Action.FORWARD, s.forward(k))
            self._exchange((Action.SEND_FORWARD, s.forward(k)))
        if steady:
            self._exchange((Action.RECV_FORWARD, s.forward(warm)))
        for k in range(steady):
            forward, backward = s.forward(warm + k), s.backward(k)
            self._compute(Action.FORWARD, forward)
            self._exchange((Action.SEND_FORWARD, forward), (Action.RECV_BACKWARD, backward))
            self._compute(Action.BACKWARD, backward)
            following = s.forward(warm + k + 1) if k + 1 < steady else None
            self._exchange((Action.SEND_BACKWARD, backward), (Action.RECV_FORWARD, following))
        for k in range(steady, s.total):
            self._exchange((Action.RECV_BACKWARD, s.backward(k)))
            self._compute(Action.BACKWARD, s.backward(k))
            self._exchange((Action.SEND_BACKWARD, s.backward(k)))
        return tuple(self.steps)

    def gpipe(self) -> tuple[Step, ...]:
        s = self.schedule
        for k in range(s.total):
            self._exchange((Action.RECV_FORWARD, s.forward(k)))
            self._compute(Action.FORWARD, s.forward(k))
            self._exchange((Action.SEND_FORWARD, s.forward(k)))
        for k in range(s.total):
            self._exchange((Action.RECV_BACKWARD, s.backward(k)))
            self._compute(Action.BACKWARD, s.backward(k))
            self._exchange((Action.SEND_BACKWARD, s.backward(k)))
        return tuple(self.steps)

    def _input_received(self, k: int) -> Task | None:
        """The forward whose input arrives while this stage prepares its forward ``k``.

        Stage 0 is fed by the last stage, which runs pp − 1 forwards behind it: what arrives belongs to the
        next chunk.
        """
        s = self.schedule
        if self.stage > 0:
            return s.forward(k) if k < s.total else None
        source = k - s.pp
        if source < 0 or k >= s.total:
            return None
        task = s.forward(source)
        return Task(Phase.FORWARD, task.micro_batch, task.chunk + 1) if task.chunk < s.vpp - 1 else None

    def _gradient_received(self, k: int) -> Task | None:
        """The same for backwards: the last stage is fed by stage 0, pp − 1 backwards behind it."""
        s = self.schedule
        if self.stage < s.pp - 1:
            return s.backward(k) if k < s.total else None
        source = k - s.pp
        if source < 0 or k >= s.total:
            return None
        task = s.backward(source)
        return Task(Phase.BACKWARD, task.micro_batch, task.chunk - 1) if task.chunk > 0 else None

    def interleaved(self, warm: int) -> tuple[Step, ...]:
        s = self.schedule
        steady = s.total - warm
        if self.stage > 0:
            self._exchange((Action.RECV_FORWARD, s.forward(0)))
        for k in range(warm):
            self._compute(Action.FORWARD, s.forward(k))
            gradient = self._gradient_received(0) if k == warm - 1 and steady else None
            self._exchange(
                (Action.RECV_FORWARD, self._input_received(k + 1)),
                (Action.SEND_FORWARD, s.forward(k)),
                (Action.RECV_BACKWARD, gradient),
            )
        for k in range(steady):
            self._one_forward_one_backward(warm + k, k)
        if not steady:
            self._exchange((Action.RECV_BACKWARD, self._gradient_received(0)))
        for k in range(steady, s.total):
            self._compute(Action.BACKWARD, s.backward(k))
            self._exchange(
                (Action.SEND_BACKWARD, s.backward(k)),
                (Action.RECV_BACKWARD, self._gradient_received(k + 1)),
            )
        return tuple(self.steps)

    def _one_forward_one_backward(self, f: int, b: int) -> None:
        """One step of the interleaved steady phase: the f-th forward and the b-th backward.

        With two stages both neighbours are the same rank, and one group of all four transfers could not tell
        an activation from a gradient: Megatron-LM allows that only with transfers after each task.
        """
        forward, backward = self.schedule.forward(f), self.schedule.backward(b)
        self._compute(Action.FORWARD, forward)
        activations = (Action.RECV_FORWARD, self._input_received(f + 1)), (Action.SEND_FORWARD, forward)
        if self.schedule.pp == 2:
            self._exchange(*activations)
        self._compute(Action.BACKWARD, backward)
        sent = (Action.SEND_BACKWARD, backward)
        received = (Action.RECV_BACKWARD, self._gradient_received(b + 1))
        if self.schedule.pp == 2:
            self._exchange(sent, received)
        else:
            self._exchange(sent, *activations, received)
