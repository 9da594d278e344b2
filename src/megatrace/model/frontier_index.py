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

from megatrace.model.events import NO_PEER, UNSEEN, Events
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


def slots_of(members: Members, ranks: I4) -> I8 | None:
    """int64 [C]: a small number for each communicator, different for any two that share one of the ranks.

    So (rank, communicator) fits a table of ranks × (slots + 1) although thousands of communicators exist:
    the groups of one axis are disjoint and share a slot. None where the members of a communicator are not
    known, or where a rank is in more than ``MOST_SLOTS`` communicators.
    """
    counts = members.counts()
    if not members.size or not counts.all() or not len(ranks):
        return None
    slots = np.full(members.size, -1, np.int64)
    left, of = members.ranks, np.repeat(np.arange(members.size), counts)
    first = np.empty(int(left.max()) + 1, np.int64)
    for slot in range(MOST_SLOTS):
        # Communicators that come first for all their members are disjoint.
        first[left[::-1]] = of[::-1]
        starts = np.flatnonzero(np.diff(of, prepend=-1))
        taken = np.logical_and.reduceat(first[left] == of, starts)
        slots[of[starts[taken]]] = slot
        keep = slots[of] < 0
        left, of = left[keep], of[keep]
        if not len(left):
            return slots
    return None


MOST_SLOTS = 64
"""A rank of a job with every kind of parallelism is in some twenty communicators."""


def entry_keys(rank_index: I4, comm: I4, members: Members, ranks: I4) -> tuple[I8, int]:
    """A key below ``size`` for each row, one a (rank, communicator), and ``size``. All communicators are
    known."""
    slots = slots_of(members, ranks)
    if slots is not None:
        width = int(slots.max()) + 1
        key = rank_index.astype(np.int64)
        key *= width
        key += slots[comm]
        named = np.zeros(len(ranks) * width, np.int32)
        named[key] = comm
        if bool((named[key] == comm).all()):  # nobody called on a communicator of which it is no member
            return key, len(named)
    pairs, key = compacted(rank_index, comm, len(ranks), max(members.size, 1))
    return key, len(pairs)


def last_of(key: NDArray[Any], value: NDArray[Any], size: int) -> I8:
    """int64 [size]: the last value of each key, −1 for a key that does not occur."""
    out = np.full(size, -1, np.int64)
    out[key] = value  # of repeated indices numpy keeps the last
    return out


TABLE = 1 << 24
"""Cells of the lookup table of ``compacted``: 128 MB, however many ranks and communicators there are."""


def compacted(rank: NDArray[Any], comm: NDArray[Any], ranks: int, width: int) -> tuple[I8, I8]:
    """(rank · width + comm of every pair that occurs, ascending; the index of each element's pair in it).

    ``rank`` int [n] ascending, ``comm`` int [n]. A rank is in a dozen of thousands of communicators, so a
    table of all pairs would be mostly empty; it is made for a block of ranks at a time.
    """
    present: list[I8] = []
    index = np.empty(len(rank), np.int64)
    step = max(1, TABLE // max(width, 1))
    found = 0
    for first in range(0, ranks, step):
        edges = np.asarray([first, min(first + step, ranks)], rank.dtype)
        part = slice(*np.searchsorted(rank, edges))
        key = (rank[part].astype(np.int64) - first) * width + comm[part]
        table = np.full(step * width, -1, np.int64)
        table[key] = 0
        pairs = np.flatnonzero(table == 0)
        table[pairs] = np.arange(found, found + len(pairs))
        index[part] = table[key]
        found += len(pairs)
        present.append(pairs + first * width)
    return (np.concatenate(present) if present else np.empty(0, np.int64)), index


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


MOST_CELLS = 1 << 22
"""Ranks times calls kept where the tail is as long as it has to be: some 140 MB."""


def reach(events: Events, least: int) -> int:
    """Calls from the first one that has not ended to the last, of the rank with most of them.

    A host that prefetches parameters of every layer runs ahead by hundreds of calls. Without completions four
    times ``least`` are kept: nothing tells how far hosts are ahead.
    """
    if not len(events):
        return least
    ranks, bounds = events.offsets()
    most = max(MOST_CELLS // len(ranks), least)
    if events.end is None:
        return min(4 * least, most)
    part = np.arange(len(events)) >= np.repeat(bounds[1:] - most, np.diff(bounds))
    rows = np.flatnonzero(part & (events.end == UNSEEN))
    if not len(rows):
        return least
    ahead = bounds[np.searchsorted(bounds, rows, "right")] - rows
    return int(np.clip(ahead.max() + 1, least, most))
