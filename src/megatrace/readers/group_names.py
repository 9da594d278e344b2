"""Gives the communicators of NCCL's rings the names and members that torch has for them.

NCCL knows a hash and the own place in it; torch knows that this is the tensor group of ranks 0 to 7. What
joins the two is who is in it: of the ranks whose NCCL calls were recorded, a communicator was used by exactly
those that are members of its group. So a communicator of which rings are missing gets its members, too.

Where several groups have the same members they are told apart by their order, which is that of their first
use on both sides, and only where both sides have equally many. A communicator that fits no group stays
without a name; a group that fits no communicator is one whose calls were not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from megatrace.model.blind_spots import BlindSpot, Unobserved
from megatrace.model.events import Events, Op
from megatrace.model.marks import NamedGroup
from megatrace.model.trace import Communicator
from megatrace.units import say_ranks

PAIR = 2


def with_names(
    communicators: Sequence[Communicator], events: Events, named: Sequence[NamedGroup]
) -> tuple[tuple[Communicator, ...], tuple[Unobserved, ...]]:
    """(communicators, groups whose calls are missing). ``events`` index ``communicators``."""
    if not named:
        return tuple(communicators), ()
    users = _users(communicators, events)
    seen = {rank for ranks in users.values() for rank in ranks}
    by_users: dict[tuple[int, ...], list[NamedGroup]] = {}
    for group in named:
        by_users.setdefault(tuple(rank for rank in group.members if rank in seen), []).append(group)
    used: dict[tuple[int, ...], list[int]] = {}
    for number, ranks in users.items():
        used.setdefault(ranks, []).append(number)
    found = list(communicators)
    matched = set(used)  # somebody's calls between these ranks are there, and perhaps those of all
    for ranks, numbers in used.items():
        groups = _fitting(by_users.get(ranks, []), [found[number] for number in numbers])
        for number, group in zip(numbers, groups, strict=bool(groups)):
            found[number] = replace(found[number], name=group.name or None, members=group.members)
    for number in _messages_only(events, [number for number in users if found[number].name is None]):
        around = _around(users[number], named)
        if around is not None:
            matched.add(tuple(rank for rank in around.members if rank in seen))
            found[number] = replace(found[number], name=around.name or None)
    return tuple(found), _missing(by_users, matched, seen)


def _users(communicators: Sequence[Communicator], events: Events) -> dict[int, tuple[int, ...]]:
    """Number of each communicator without a name that was used → the ranks that used it."""
    if events.comm is None or not len(events):
        return {}
    nameless = {item.id for item in communicators if item.name is None}
    pairs = np.unique(np.stack([events.comm, events.rank]), axis=1)
    found: dict[int, list[int]] = {}
    for comm, rank in zip(*pairs.tolist(), strict=True):
        if comm in nameless:
            found.setdefault(comm, []).append(rank)
    return {comm: tuple(sorted(ranks)) for comm, ranks in found.items()}


def _fitting(groups: list[NamedGroup], communicators: list[Communicator]) -> list[NamedGroup]:
    """A group for each communicator; none where that cannot be told."""
    fit = [
        group
        for group in groups
        if all(item.members is None or item.members == group.members for item in communicators)
    ]
    if len(fit) == len(communicators):
        return fit
    return fit * len(communicators) if len(fit) == 1 else []


def _messages_only(events: Events, numbers: Sequence[int]) -> list[int]:
    """Those of the communicators that carried nothing but messages."""
    if events.comm is None:
        return []
    message = (events.op == Op.SEND) | (events.op == Op.RECV)
    return [number for number in numbers if bool(message[events.comm == number].all())]


def _around(ranks: tuple[int, ...], named: Sequence[NamedGroup]) -> NamedGroup | None:
    """The smallest group that two ranks are in: torch makes a communicator of its own for each pair of it
    that exchanges messages. None where several are equally small."""
    around = [group for group in named if len(ranks) == PAIR and set(ranks) <= set(group.members)]
    size = min((len(group.members) for group in around), default=0)
    smallest = {group.members: group for group in around if len(group.members) == size}
    return next(iter(smallest.values())) if len(smallest) == 1 else None


def _missing(
    by_users: dict[tuple[int, ...], list[NamedGroup]], matched: set[tuple[int, ...]], seen: set[int]
) -> tuple[Unobserved, ...]:
    """Groups that torch used, all of whose members were recorded without any call on them; where nobody's
    calls were recorded, every group."""
    found = []
    for ranks, groups in by_users.items():
        for group in groups:
            if ranks not in matched and (not seen or ranks == group.members):
                source = f"torch used group {group.name or 'without a name'} of {say_ranks(group.members)}"
                found.append(Unobserved(BlindSpot.MISSING_CALLS, source, group.members))
    return tuple(found)
