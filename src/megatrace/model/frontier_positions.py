"""Counters beside calls: a frontier that also knows what sources count but no longer record.

A flight recorder lists the calls that are open, and counts all of them; of a rank with nothing open it lists
none. Counters raise what a frontier read off the calls, and ranks without a call get a place in it.

Does not invent calls: tails stay what was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COMM, NO_PEER, NO_SEQ
from megatrace.model.frontier import Frontier
from megatrace.model.states import Positions

I8 = NDArray[np.int64]


def with_ranks(frontier: Frontier, silent: Sequence[int]) -> Frontier:
    """The frontier with ranks of which only the presence is known, as they stood before all calls."""
    ranks = np.union1d(frontier.ranks, np.asarray(sorted(silent), np.int32)).astype(np.int32)
    if len(ranks) == len(frontier):
        return frontier
    index = np.searchsorted(ranks, frontier.ranks)
    start = int(frontier.first_time.min()) if len(frontier) else 0

    def spread(column: NDArray[Any], fill: int) -> NDArray[Any]:
        out = np.full((len(ranks), *column.shape[1:]), fill, column.dtype)
        out[index] = column
        return out

    return replace(
        frontier,
        ranks=ranks,
        calls=spread(frontier.calls, 0),
        first_time=spread(frontier.first_time, start),
        last_time=spread(frontier.last_time, start),
        last_call=spread(frontier.last_call, start),
        longest_gap=spread(frontier.longest_gap, 0),
        lost=spread(frontier.lost, 1),
        entry_rank=index[frontier.entry_rank].astype(np.int32),
        pair_rank=index[frontier.pair_rank].astype(np.int32),
        tail_comm=spread(frontier.tail_comm, NO_COMM),
        tail_op=spread(frontier.tail_op, 0),
        tail_state=spread(frontier.tail_state, 0),
        tail_seq=spread(frontier.tail_seq, NO_SEQ),
        tail_count=spread(frontier.tail_count, -1),
        tail_peer=spread(frontier.tail_peer, NO_PEER),
        tail_time=spread(frontier.tail_time, 0),
    )


def with_positions(frontier: Frontier, positions: Positions) -> Frontier:
    """The frontier with what counters add. Counters of ranks that it does not have are left out."""
    width = max(frontier.members.size, 1)
    index = frontier.indices(positions.rank)
    rows = np.flatnonzero((index >= 0) & (positions.comm >= 0) & (positions.comm < width))
    key = index[rows] * width + positions.comm[rows]
    have = frontier.entry_rank.astype(np.int64) * width + frontier.entry_comm
    keys = np.union1d(have, key)
    old, new = np.searchsorted(keys, have), np.searchsorted(keys, key)

    def raised(column: I8, counter: I8) -> I8:
        out = np.full(len(keys), NO_SEQ, np.int64)
        out[old] = column
        np.maximum.at(out, new, counter[rows])
        return out

    last = raised(frontier.entry_last, positions.enqueued)
    first = last.copy()
    first[old] = frontier.entry_first
    rank = (keys // width).astype(np.int32)
    time = frontier.first_time[rank] if len(frontier) else np.empty(0, np.int64)
    time[old] = frontier.entry_time
    mixed = np.zeros(len(keys), np.uint64)
    mixed[old] = frontier.entry_hash
    return replace(
        frontier,
        entry_rank=rank,
        entry_comm=(keys % width).astype(np.int32),
        entry_first=first,
        entry_last=last,
        entry_started=raised(frontier.entry_started, positions.started),
        entry_ended=raised(frontier.entry_ended, positions.completed),
        entry_time=time,
        entry_hash=mixed,
    )
