"""Records what torch.distributed does in a process of the job: the calls, the groups, the iterations.

The methods of the class ``ProcessGroup`` are replaced by ones that write a record and call the original, so
every caller is seen, also one that imported ``all_reduce`` early. What NCCL runs is recorded below NCCL; of
such groups only name and members are written down here. Everything else (gloo, MPI) is recorded in full: when
a call was made, and when its ``Work`` was found done. Calls that C++ makes on a group (functional
collectives, DTensor) pass by; the reducer of DDP is seen through a communication hook that does what the
reducer would do.

Runs inside the job: standard library only, no import of torch, and an error of ours switches it off.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import torch_calls, torch_groups, torch_marks, torch_ring
from .torch_calls import DTYPES, MESSAGES, RECV, SEND, payload
from .torch_ring import tail_of

HOLD_S = 0.05
"""Between two looks whether a Recv is still to be held back."""


class Hook:
    """All that the hook knows in one process. ``on`` becomes False at the first error of ours.

    ``waiting`` maps the address of a ``Work`` to its call. One that its caller drops is found when another
    gets its address, so there are never more than ``Work`` objects at one time.
    """

    def __init__(self, module: ModuleType, ring: torch_ring.Ring) -> None:
        self.ring = ring
        self.groups = torch_groups.Groups(module, ring)
        self.waiting: dict[int, int] = {}
        self.on = True

    def switch_off(self, error: Exception) -> None:
        """Says it once; the job goes on unrecorded from here."""
        if self.on:
            self.on = False
            sys.stderr.write(f"megatrace: torch.distributed is no longer recorded: {error!r}\n")

    def hold(self) -> None:
        """Posts no Recv while somebody practises that; it is posted when the time is over."""
        while self.ring.held() > time.monotonic_ns():
            time.sleep(HOLD_S)


def install(module: ModuleType) -> Hook | None:
    """Patches the classes of ``torch.distributed``, once. None where there is no ring to write into."""
    process_group = module.ProcessGroup
    if hasattr(process_group, "_megatrace"):
        return None
    ring = torch_ring.open_ring()
    if ring is None:
        return None
    hook = Hook(module, ring)
    torch_marks.MARKS.put = _mark(hook)
    torch_marks.MARKS.in_use = lambda: hook.on and bool(hook.groups.known)
    for name, (op, at) in torch_calls.CALLS.items():
        if name in process_group.__dict__:
            original = getattr(process_group, name)  # the function itself, not what makes a method of it
            setattr(process_group, name, _call(hook, original, op, at))
    work = module.Work
    for name, wrap in (("wait", _wait), ("get_future", _future)):
        if name in work.__dict__:
            setattr(work, name, wrap(hook, getattr(work, name)))
    process_group._megatrace = hook
    os.register_at_fork(after_in_child=lambda: _forked(hook))
    return hook


def in_full(group: Any) -> bool:
    """Whether the calls of a group are recorded here, and not below NCCL. False without a hook."""
    hook = getattr(type(group), "_megatrace", None)
    if hook is None or not hook.on:
        return False
    known = hook.groups.known.get(group) or hook.groups.learn(group)
    return bool(known.recorded and not known.mixed)


def _forked(hook: Hook) -> None:
    """A child is another process with another rank: it starts with nothing known."""
    hook.waiting.clear()
    hook.ring.reset()
    hook.groups.reset()
    torch_marks.MARKS.reset()


def _mark(hook: Hook) -> torch_marks.Put:
    """Writes a mark. By name at each time: the ring's own function changes when it is opened."""
    return lambda *values: hook.ring.put(*values)


def _call(hook: Hook, original: Callable[..., Any], op: int, at: int) -> Callable[..., Any]:
    """A method that records and then does what the original does."""
    groups, ring, waiting = hook.groups, hook.ring, hook.waiting
    known, begin = groups.known, _beginner(hook, op, at)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        index = None
        if hook.on:
            try:
                group = known.get(self) or groups.learn(self)
                if group.recorded:
                    index = begin(group, arguments)
            except Exception as error:  # noqa: BLE001 (a job is only observed)
                hook.switch_off(error)
        if named or not 1 <= len(arguments) <= 2:
            work = original(self, *arguments, **named)
        elif len(arguments) == 2:  # as torch does; unpacking costs pybind11 half a microsecond
            work = original(self, arguments[0], arguments[1])
        else:
            work = original(self, arguments[0])
        if index is not None:  # written out, for a call of Python's would cost more than what it does
            if work is None:
                ring.ended(index)
                return work
            key = id(work)
            if key in waiting:  # the earlier Work of this address was dropped by its caller
                ring.ended(waiting[key])
            waiting[key] = index
        return work

    made = _held_back(hook, method) if op == RECV else method
    made.__name__ = getattr(original, "__name__", "call")
    made.__doc__ = original.__doc__
    return made


def _held_back(hook: Hook, method: Callable[..., Any]) -> Callable[..., Any]:
    """A Recv that is not posted, and not recorded as made, while somebody practises that."""

    def receive(self: Any, *arguments: Any, **named: Any) -> Any:
        hook.hold()
        return method(self, *arguments, **named)

    return receive


def _beginner(hook: Hook, op: int, at: int) -> Callable[[torch_groups.Group, tuple[Any, ...]], int | None]:
    """Writes that a call of one kind is made and returns its index; None where it is recorded elsewhere."""
    tails: dict[Any, bytes] = {}
    ring, message, sends = hook.ring, op in MESSAGES, op == SEND

    def begin(group: torch_groups.Group, arguments: tuple[Any, ...]) -> int | None:
        nbytes, tensor = 0, None
        if 0 <= at < len(arguments):
            given = arguments[at]
            if type(given) is list and len(given) == 1:
                given = given[0]  # what nearly every call passes
            try:
                nbytes, tensor = given.nbytes, given
            except AttributeError:
                nbytes, tensor = payload(given)
        if tensor is None:
            dtype = None
        elif group.mixed and tensor.is_cuda:
            return None
        else:
            dtype = tensor.dtype
        tail = tails.get(dtype)
        if tail is None:
            tail = tails[dtype] = tail_of(op, DTYPES.get(str(dtype), 255))
        if message:
            peer, number = group.message(sends, arguments[1] if len(arguments) > 1 else -1)
        else:
            peer, number = -1, group.number
            group.number = number + 1
        return ring.put(tail, group.hash, number, nbytes, peer)

    return begin


def _wait(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    """``Work.wait``: when it returns, the call is done."""
    waiting, ring = hook.waiting, hook.ring

    def wait(self: Any, *arguments: Any, **named: Any) -> Any:
        index = waiting.pop(id(self), None)
        if index is None:
            return original(self, *arguments, **named)
        ring.waited(index)
        try:
            done = original(self, *arguments, **named) if arguments or named else original(self)
        except BaseException:
            ring.failed(index)
            raise
        ring.ended(index)
        return done

    wait.__doc__ = original.__doc__
    return wait


def _future(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    """``Work.get_future``: whoever asks for it does not wait, so the future tells when the call is done."""
    waiting, ring = hook.waiting, hook.ring

    def get_future(self: Any) -> Any:
        future = original(self)
        index = waiting.pop(id(self), None)
        if index is not None:
            future.add_done_callback(lambda _: ring.ended(index))
        return future

    get_future.__doc__ = original.__doc__
    return get_future
