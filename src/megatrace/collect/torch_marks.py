"""Marks in the ring of where the training is: optimizer steps, and the micro-batches of a pipeline.

No script is touched. PyTorch tells every optimizer's step to whoever asks; functions and methods that run one
micro-batch are looked for by name in the frameworks that have them, when they are imported, and replaced by
ones that write a mark and call the original. What is not there is not marked, and that is all.

Marks are written once this process has used a process group: a program of one process has no ring. Standard
library only: this runs inside the processes of a job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import torch_ring

MARK = 20
"""Kind of record."""
STEP, FORWARD, BACKWARD = 1, 2, 3
"""In the place of the operation: a step of the optimizer is done; a micro-batch goes forward, or backward."""
NOBODY = bytes(8)

OPTIMIZER = "torch.optim.optimizer"
PLACES: dict[str, tuple[tuple[str, str, int], ...]] = {
    "megatron.core.pipeline_parallel.schedules": (
        ("", "forward_step", FORWARD),
        ("", "backward_step", BACKWARD),
    ),
    "torch.distributed.pipelining.stage": (
        ("_PipelineStageBase", "forward_one_chunk", FORWARD),
        ("_PipelineStageBase", "backward_one_chunk", BACKWARD),
    ),
    "deepspeed.runtime.pipe.engine": (
        ("PipelineEngine", "_exec_forward_pass", FORWARD),
        ("PipelineEngine", "_exec_backward_pass", BACKWARD),
    ),
}
"""Module → (class or nothing, function, what it does to one micro-batch)."""
TAILS = {
    what: torch_ring.TAIL.pack(MARK, what, 255, 0, 0, torch_ring.TORCH) for what in (STEP, FORWARD, BACKWARD)
}
Put = Callable[[bytes, bytes, int, int, int], int]


class Marks:
    """Counts steps and micro-batches of this process, and writes them once it is told where.

    Several optimizers may make one step together (Megatron-LM chains them): the next step begins when one of
    them comes round again.
    """

    def __init__(self) -> None:
        self.put: Put | None = None
        self.in_use: Callable[[], bool] = lambda: False
        self.reset()

    def reset(self) -> None:
        """Nothing was counted."""
        self.step = 0
        self.stepped: set[int] = set()
        self.counts = {FORWARD: 0, BACKWARD: 0}

    def stepped_by(self, optimizer: object) -> None:
        """An optimizer has made its step."""
        if self.stepped and id(optimizer) not in self.stepped:
            self.stepped.add(id(optimizer))
            return
        self.stepped = {id(optimizer)}
        self._write(STEP, self.step)
        self.step += 1
        self.counts = {FORWARD: 0, BACKWARD: 0}

    def micro_batch(self, what: int) -> None:
        """The next micro-batch of this step goes forward or backward."""
        number = self.counts[what]
        self.counts[what] = number + 1
        self._write(what, number)

    def _write(self, what: int, number: int) -> None:
        if self.put is None or not self.in_use():
            return
        try:
            self.put(TAILS[what], NOBODY, number, self.step, -1)
        except Exception as error:  # noqa: BLE001 (a job is only observed)
            self.put = None
            sys.stderr.write(f"megatrace: steps and micro-batches are no longer marked: {error!r}\n")


MARKS = Marks()
"""Of this process."""


def watch_optimizers(module: ModuleType) -> None:
    """Asks ``torch.optim.optimizer`` to be told of every step; torch before 2.0 does not tell."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(lambda optimizer, *_: MARKS.stepped_by(optimizer))


def watch_micro_batches(module: ModuleType) -> None:
    """Replaces what runs one micro-batch in a framework, as far as it is there."""
    for holder, name, what in PLACES[module.__name__]:
        owner = getattr(module, holder, None) if holder else module
        original = owner.__dict__.get(name) if owner is not None else None
        if callable(original):
            setattr(owner, name, _marked(original, what))


def _marked(original: Callable[..., Any], what: int) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        MARKS.micro_batch(what)
        return original(*arguments, **named)

    run.__name__ = getattr(original, "__name__", "run")
    run.__doc__ = original.__doc__
    run.__wrapped__ = original  # type: ignore[attr-defined]
    return run
