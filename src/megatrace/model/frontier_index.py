"""Index arithmetic for frontiers: members of communicators as one flat array, last rows per key, order
within a key.

Kept apart from ``frontier`` because the aligned P2P counts and the analysis of hangs use the same few
passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_PEER
from megatrace.model.trace import Communicator

I8 = NDArray[np.int64]
I4 = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Members of all communicators: those of communicator c are ``ranks[bounds[c]:bounds[c + 1]]``
    (global, ascending).

    A communicator whose members are not known has none here. ``bounds`` int64 [C + 1], ``ranks`` int32.
    """

    bounds: I8
    ranks: I4

    @staticmethod
    def of(communicators: Sequence[Communicator]) -> Members:
        """From ``Trace.communicators`` (``communicators[i].id == i``)."""
        sizes = [len(item.members or ()) for item in communicators]
        ranks = [rank for item in communicators for rank in (item.members or ())]
        bounds = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]) if sizes else np.zeros(1, np.int64)
        return Members(bounds.astype(np.int64), np.asarray(ranks, np.int32))

    @property
    def size(self) -> int:
        """Communicators."""
        return len(self.bounds) - 1

    def counts(self) -> I8:
        """int64 [C]: members of each, 0 where not known."""
        return np.diff(self.bounds)

    def of_comm(self, comm: int) -> I4:
        """Global ranks of one communicator, empty where not known or out of range."""
        if not 0 <= comm < self.size:
            return np.empty(0, np.int32)
        return self.ranks[self.bounds[comm] : self.bounds[comm + 1]]


def last_of(key: NDArray[Any], value: NDArray[Any], size: int) -> I8:
    """int64 [size]: the last value of each key, −1 for a key that does not occur."""
    out = np.full(size, -1, np.int64)
    out[key] = value  # of repeated indices numpy keeps the last
    return out


def group_order(key: NDArray[Any]) -> I8:
    """int64: the how-manieth of its key each element is, from 0, in the order given."""
    n = len(key)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = (
        np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if n else np.empty(0, np.int64)
    )
    start = np.repeat(first, np.diff(np.append(first, n)))
    out = np.empty(n, np.int64)
    out[order] = np.arange(n) - start
    return out


def peers_of_pairs(members: Members, comm: I4, rank: I4) -> I4:
    """int32: the other member of a two-member communicator, ``NO_PEER`` for any other communicator."""
    if not members.size:
        return np.full(len(comm), NO_PEER, np.int32)
    two = members.counts() == 2
    known = (comm >= 0) & two[np.maximum(comm, 0)]
    at = members.bounds[:-1][np.where(known, comm, 0)]
    safe = np.minimum(at, max(len(members.ranks) - 2, 0))
    if not known.any():
        return np.full(len(comm), NO_PEER, np.int32)
    first, second = members.ranks[safe], members.ranks[safe + 1]
    other = np.where(first == rank, second, first)
    return np.where(known, other, NO_PEER).astype(np.int32)
