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
    *,
    settled: bool = False,
) -> I8:
    """int64 [pairs]: how many calls of each (rank, peer, direction) lie before the point from which both
    ends count.

    ``last`` row of each pair entry; ``inverse`` pair entry of each of ``rows`` (the P2P rows); ``peer``
    int32 per event. Zero where neither end lost records; ``UNALIGNED`` where one did and the two share no
    collective.
    """
    base = np.zeros(len(last), np.int64)
    ranks = events.rank[bounds[:-1]]
    index = np.searchsorted(ranks, peer[last])
    index = np.minimum(index, max(len(ranks) - 1, 0))
    own = np.searchsorted(ranks, events.rank[last])
    affected = (
        np.flatnonzero((lost[own] | lost[index]) & (ranks[index] == peer[last]))
        if len(last)
        else np.empty(0, np.int64)
    )
    if not len(affected):
        return base
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(last) + 1))
    anchors = _Anchors(events, bounds, seq, comm)
    for entry in affected:
        anchor = anchors.row(int(own[entry]), int(index[entry]))
        base[entry] = UNALIGNED
        mine = rows[order[starts[entry] : starts[entry + 1]]]
        if anchor is not None:
            base[entry] = np.searchsorted(mine, anchor)
        elif settled and events.end is not None:
            base[entry] = int((events.end[mine] != UNSEEN).sum())
    return base


class _Anchors:
    """The row at which a rank made the last collective that it shares with another rank (ranks as
    indices)."""

    def __init__(self, events: Events, bounds: I8, seq: I8, comm: I4) -> None:
        self.op, self.bounds, self.seq, self.comm = events.op, bounds, seq, comm
        self._of_rank: dict[int, dict[int, tuple[I8, I8]]] = {}

    def _collectives(self, rank: int) -> dict[int, tuple[I8, I8]]:
        """communicator → (sequence numbers ascending, rows) of a rank's collectives."""
        if rank not in self._of_rank:
            start, stop = int(self.bounds[rank]), int(self.bounds[rank + 1])
            comm, op = self.comm[start:stop], self.op[start:stop]
            rows = np.flatnonzero((comm >= 0) & (op != Op.SEND) & (op != Op.RECV))
            rows = rows[np.argsort(comm[rows], kind="stable")]
            names, first = np.unique(comm[rows], return_index=True)
            parts = np.split(start + rows, first[1:])
            self._of_rank[rank] = {
                int(name): (self.seq[part], part)
                for name, part in zip(names, parts, strict=False)
                if len(part)
            }
        return self._of_rank[rank]

    def row(self, rank: int, peer: int) -> int | None:
        """Row of ``rank`` at the last common collective, None where there is none.

        Both ends must name the same collective, so it is chosen by the program order of the lower of the two.
        """
        low, high = self._collectives(min(rank, peer)), self._collectives(max(rank, peer))
        best: tuple[int, int, int] | None = None
        for comm in low.keys() & high.keys():
            last = min(int(low[comm][0][-1]), int(high[comm][0][-1]))
            at = [int(np.searchsorted(side[comm][0], last)) for side in (low, high)]
            if any(int(side[comm][0][i]) != last for side, i in zip((low, high), at, strict=True)):
                continue
            candidate = (int(low[comm][1][at[0]]), int(high[comm][1][at[1]]), comm)
            best = candidate if best is None else max(best, candidate)
        if best is None:
            return None
        return best[0] if rank < peer else best[1]
