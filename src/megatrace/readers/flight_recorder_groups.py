"""Dumps of all ranks as one: their groups as communicators, their calls as events.

Groups of the same name and the same members are one. Does not judge, and keeps no order but that of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_PEER, EventFlag, Events
from megatrace.model.trace import Communicator
from megatrace.readers.flight_recorder_entries import Dump


class Groups:
    """The communicators of all dumps, which have to live as long as this."""

    def __init__(self, pairs: Sequence[tuple[int, Dump]]) -> None:
        self.communicators: list[Communicator] = []
        self._number: dict[tuple[str, tuple[int, ...] | None], int] = {}
        self._known: dict[tuple[str, int], int] = {}
        self._order: list[tuple[int, ...]] = []
        users: dict[str, set[int]] = {}
        for rank, dump in pairs:
            for name in {*dump.names, *dump.config}:
                if dump.config.get(name, ("", None))[1] is None:
                    users.setdefault(name, set()).add(rank)
        self._users = {name: tuple(sorted(ranks)) for name, ranks in users.items()}
        for rank, dump in pairs:
            for name in dump.config:
                self.of(rank, dump, name)

    def of(self, rank: int, dump: Dump, name: str) -> int:
        """The communicator of a group that a rank's dump names."""
        desc, ranks = dump.config.get(name, ("", None))
        # Dumps share their tuples of ranks, and hashing thousands of numbers again and again takes long.
        known = self._known.get((name, id(ranks)))
        if known is not None:
            return known
        key = (name, ranks)
        if key not in self._number:
            self._number[key] = len(self.communicators)
            members = tuple(sorted(ranks)) if ranks is not None else self._users.get(name, (rank,))
            self._order.append(ranks if ranks is not None else members)
            title = name if not desc or desc in ("undefined", "default_pg") else f"{desc} {name}"
            title = "default_pg" if desc == "default_pg" else title
            self.communicators.append(Communicator(len(self.communicators), members, name=title[:120]))
        self._known[name, id(ranks)] = self._number[key]
        return self._number[key]

    def peers(self, comm: NDArray[np.int32], peer: NDArray[np.int32]) -> NDArray[np.int32]:
        """Global ranks of peers that are given as ranks within their communicators; −1 none."""
        found = np.full(len(comm), NO_PEER, np.int32)
        rows = np.flatnonzero(peer >= 0)
        if not len(rows):
            return found
        sizes = np.asarray([len(order) for order in self._order], np.int64)
        flat = np.asarray([rank for order in self._order for rank in order], np.int32)
        first = np.cumsum(sizes) - sizes
        rows = rows[peer[rows] < sizes[comm[rows]]]
        found[rows] = flat[first[comm[rows]] + peer[rows]]
        return found

    def known_ranks(self) -> set[int]:
        """Ranks that any group names."""
        return {rank for communicator in self.communicators for rank in communicator.members or ()}


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """Which rank calls on which communicator, one number a pair: ``rank`` and ``comm`` [uses], and the number
    of each call, ``of`` int32 [calls]."""

    rank: NDArray[np.int32]
    comm: NDArray[np.int32]
    of: NDArray[np.int32]


def joined_events(pairs: Sequence[tuple[int, Dump]], table: Groups, *, started: bool) -> tuple[Events, Uses]:
    """The calls of all dumps, which are in the order of their ranks; without starts where no dump has any."""
    pairs = [pair for pair in pairs if len(pair[1])]
    none = np.empty(0, np.int32)
    if not pairs:
        return Events.empty(), Uses(none, none, none)
    dumps = [dump for _, dump in pairs]
    sizes = [len(dump) for dump in dumps]
    ranks = np.asarray([rank for rank, _ in pairs], np.int32)
    names = np.asarray([len(dump.names) for dump in dumps], np.int32)
    numbers = [table.of(rank, dump, name) for rank, dump in pairs for name in dump.names]
    comms = np.asarray(numbers, np.int32)
    use = np.concatenate([dump.group for dump in dumps])
    use += np.repeat(np.cumsum(names, dtype=np.int32) - names, sizes)
    comm = comms[use]
    events = Events(
        rank=np.repeat(ranks, sizes),
        op=np.concatenate([dump.op for dump in dumps]),
        seq=np.concatenate([dump.seq for dump in dumps]),
        enqueue=np.concatenate([dump.created for dump in dumps]),
        count=np.concatenate([dump.count for dump in dumps]),
        comm=comm,
        start=np.concatenate([dump.started for dump in dumps]) if started else None,
        end=np.concatenate([dump.ended for dump in dumps]),
        nbytes=np.concatenate([dump.nbytes for dump in dumps]),
        peer=table.peers(comm, np.concatenate([dump.peer for dump in dumps])),
        flags=np.concatenate([dump.coalesced for dump in dumps]) * np.uint8(EventFlag.COALESCED),
    )
    return events, Uses(np.repeat(ranks, names), comms, use)
