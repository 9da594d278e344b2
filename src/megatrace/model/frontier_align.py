"""Counting Sends and Recvs from the same point at both ends, where a recording lost records.

The k-th Send from a to b belongs to the k-th Recv at b from a. Where a ring was overwritten, the two ends
no longer start at the same k; the last collective in which both took part is a point that both passed with
everything before it matched, so both count from there. Without a common collective, both count from their
first message that has not completed, where states were dumped: on a job that stands a message has completed
at both ends or at neither. Without lost records both count from their first call.

Does not guess: a pair without a common collective, and without completions, cannot be paired.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import UNSEEN, Events, Op

I8 = NDArray[np.int64]
I4 = NDArray[np.int32]


UNALIGNED = -1


def pair_bases(
    events: Events,
    bounds: I8,
    seq: I8,
    comm: I4,
    lost: NDArray[np.bool_],
    peer: I4,
    last: I8,
    inverse: NDArray[Any],
    rows: NDArray[Any],
    ends: I8,
    *,
    settled: bool = False,
) -> I8:
    """int64 [pairs]: how many calls of each (rank, peer, direction) lie before the point from which both
    ends count.

    ``last`` row of each pair entry; ``inverse`` pair entry of each of ``rows`` (the P2P rows); ``peer``
    int32 per event; ``ends`` row of the last collective of each (rank, communicator), ascending by both. Zero
    where neither end lost records; ``UNALIGNED`` where one did and the two share no collective.
    """
    base = np.zeros(len(last), np.int64)
    if not len(last):
        return base
    ranks = events.rank[bounds[:-1]]
    index = np.minimum(np.searchsorted(ranks, peer[last]), len(ranks) - 1)
    own = np.searchsorted(ranks, events.rank[last])
    affected = np.flatnonzero((lost[own] | lost[index]) & (ranks[index] == peer[last]))
    if not len(affected):
        return base
    anchors = _Anchors(events.op, bounds, seq, comm, ends)
    found = np.full(len(last), UNSEEN)
    found[affected] = anchors.rows(own[affected], index[affected])
    before = rows < found[inverse]
    base += np.bincount(inverse[before], minlength=len(last))
    alone = affected[found[affected] == UNSEEN]
    base[alone] = UNALIGNED
    if settled and events.end is not None:
        done = np.bincount(inverse[events.end[rows] != UNSEEN], minlength=len(last))
        base[alone] = done[alone]
    return base


class _Anchors:
    """The rows at which ranks made the last collective that they share with others (ranks as indices)."""

    def __init__(self, op: NDArray[np.uint8], bounds: I8, seq: I8, comm: I4, ends: I8) -> None:
        self.op, self.bounds, self.seq, self.comm, self.ends = op, bounds, seq, comm, ends
        self.width = int(comm[ends].max(initial=0)) + 1
        self.rank = np.searchsorted(bounds, ends, "right") - 1
        self.key = self.rank * self.width + comm[ends]

    def rows(self, rank: I8, peer: I8) -> I8:
        """int64: the row of each rank at the last collective that it shares with its peer, ``UNSEEN`` where
        there is none.

        Both ends must name the same collective, so it is chosen by the program order of the lower of the two.
        """
        low, high = np.minimum(rank, peer), np.maximum(rank, peer)
        pairs, of = np.unique(low * len(self.bounds) + high, return_inverse=True)
        low, high = np.divmod(pairs, len(self.bounds))
        first, stop = np.searchsorted(self.rank, low), np.searchsorted(self.rank, low, "right")
        pair = np.repeat(np.arange(len(pairs)), stop - first)
        mine = np.arange(len(pair)) - np.repeat(np.cumsum(stop - first) - stop, stop - first)
        wanted = high[pair] * self.width + self.comm[self.ends[mine]]
        theirs = np.minimum(np.searchsorted(self.key, wanted), len(self.key) - 1)
        both = self.key[theirs] == wanted
        pair, mine, theirs = pair[both], mine[both], theirs[both]
        last = np.minimum(self.seq[self.ends[mine]], self.seq[self.ends[theirs]])
        at_low, at_high = self._at(mine, last), self._at(theirs, last)
        both = (at_low != UNSEEN) & (at_high != UNSEEN)
        pair, at_low, at_high = pair[both], at_low[both], at_high[both]
        order = np.lexsort((at_low, pair))
        latest = np.full((2, len(pairs)), UNSEEN)
        latest[:, pair[order]] = at_low[order], at_high[order]  # of repeated indices numpy keeps the last
        return np.asarray(np.where(rank < peer, latest[0, of], latest[1, of]))

    def _at(self, entry: I8, seq: I8) -> I8:
        """int64: the row of each (rank, communicator) with a number, ``UNSEEN`` where there is none."""
        found = np.where(self.seq[self.ends[entry]] == seq, self.ends[entry], UNSEEN)
        behind = np.flatnonzero(found == UNSEEN)
        if not len(behind):
            return found
        entries, of = np.unique(entry[behind], return_inverse=True)
        parts = [self._calls(int(i)) for i in entries]
        size = np.asarray([len(part) for part in parts])
        calls, first = np.concatenate(parts), np.cumsum(size) - size
        # Numbers rise within each part, and parts are kept apart by a number larger than any.
        step = int(self.seq[calls].max()) + 2
        keys = np.repeat(np.arange(len(parts)), size) * step + self.seq[calls]
        place = np.minimum(np.searchsorted(keys, of * step + seq[behind]), (first + size - 1)[of])
        found[behind] = np.where(self.seq[calls[place]] == seq[behind], calls[place], UNSEEN)
        return found

    def _calls(self, entry: int) -> I8:
        """int64: the rows of the collectives of one (rank, communicator)."""
        start, stop = int(self.bounds[self.rank[entry]]), int(self.ends[entry]) + 1
        op = self.op[start:stop]
        mine = self.comm[start:stop] == self.comm[self.ends[entry]]
        return np.asarray(start + np.flatnonzero(mine & (op != Op.SEND) & (op != Op.RECV)))
