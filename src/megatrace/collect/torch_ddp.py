"""Lets the reductions of DistributedDataParallel pass through Python, where the hook can see them.

DDP reduces gradients from C++, past every method that the hook replaces. Its own extension point is a
communication hook: the one installed here does what the reducer does by default (divide, then all-reduce, one
bucket at a time), by way of ``ProcessGroup.allreduce``. Only for groups that the hook records in full: what
NCCL runs is seen below NCCL. A model that has a hook already keeps it.

Standard library only: this runs inside the processes of a job. ``MEGATRACE_TORCH_DDP=off`` leaves DDP alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

SWITCH = "MEGATRACE_TORCH_DDP"


def install(module: ModuleType, in_full: Callable[[Any], bool]) -> bool:
    """Has every DDP model take the hook at its first forward, if ``in_full(group)`` says so of its group.

    At the first forward and not when it is made, so that a hook of the user, which comes between the two, is
    there first. False where DDP is left alone.
    """
    model = getattr(module, "DistributedDataParallel", None)
    if model is None or os.environ.get(SWITCH, "on") == "off" or "_megatrace" in model.__dict__:
        return False
    original = model.forward

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        if not self.__dict__.get("_megatrace_asked"):
            self.__dict__["_megatrace_asked"] = True
            _take(self, in_full)
        return original(self, *arguments, **named)

    forward.__doc__ = original.__doc__
    model.forward = forward
    model._megatrace = True
    return True


def _take(model: Any, in_full: Callable[[Any], bool]) -> None:
    group = model.process_group
    if getattr(model, "_comm_hooks", None) != [] or not in_full(group):
        return
    try:
        model.register_comm_hook(group, reduce_bucket)
    except RuntimeError:
        return  # a built-in hook is there: it stays
    except Exception as error:  # noqa: BLE001 (a job is only observed)
        sys.stderr.write(f"megatrace: the reductions of DDP are not recorded: {error!r}\n")


def reduce_bucket(group: Any, bucket: Any) -> Any:
    """The mean of a bucket of gradients over a group, as DDP's reducer has it; a future of the tensor."""
    tensor = bucket.buffer()
    tensor.div_(group.size())
    return group.allreduce([tensor]).get_future().then(_first)


reduce_bucket.__annotations__.clear()  # DDP refuses a hook that is annotated with anything but its own types


def _first(future: Any) -> Any:
    return future.value()[0]
