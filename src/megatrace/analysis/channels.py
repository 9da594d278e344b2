"""Channels: the streams of one rank on which one kind of communicator issues its calls.

A text log without group hashes names a communicator only by a stream pointer, which means nothing on another
rank. A channel is one (rank, communicator) or, where no communicator is known, one (rank, stream); this
module tabulates what each did, so that ``infer_layout`` can tell tensor from pipeline from data traffic and
match channels across ranks.

Does not decide anything about groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COMM, NO_SEQ, Events, Op

OPS = len(Op)


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """A table of channels, ascending by rank, and the channel of every event.

    of_event   int32 [events]
    rank       int32 [channels]
    key        uint64 [channels]: the communicator id, or the stream pointer with ``by_stream`` True
    by_stream  bool [channels]
    calls      int64 [channels, ops]: calls by ``Op``;  total int64 [channels]: all of them
    p2p        bool [channels]: mostly Sends and Recvs
    max_count  int64 [channels]: largest element count of a call
    first_row  int64 [channels]: row of the first call
    counted    bool [channels]: the source's operation number rises by one with every call (else it proves no
               gap)
    constant   bool [channels]: the operation number is 0 throughout, as for a communicator with one member
    """

    of_event: NDArray[np.int32]
    rank: NDArray[np.int32]
    key: NDArray[np.uint64]
    by_stream: NDArray[np.bool_]
    calls: NDArray[np.int64]
    total: NDArray[np.int64]
    p2p: NDArray[np.bool_]
    max_count: NDArray[np.int64]
    first_row: NDArray[np.int64]
    counted: NDArray[np.bool_]
    constant: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rank)


def tabulate(events: Events) -> Channels:
    """The channels of a trace. O(n) per rank: unique keys are found inside each rank's slice."""
    n = len(events)
    of_event = np.empty(n, np.int32)
    ranks: list[int] = []
    keys: list[int] = []
    streams: list[bool] = []
    first_rows: list[int] = []
    rank_list, bounds = events.offsets()
    comm = events.comm if events.comm is not None else np.full(n, NO_COMM, np.int32)
    stream = events.stream if events.stream is not None else np.zeros(n, np.uint64)
    for i, rank in enumerate(rank_list):
        rows = slice(int(bounds[i]), int(bounds[i + 1]))
        known = comm[rows] >= 0
        key = np.where(known, comm[rows].astype(np.uint64) * 2 + 1, stream[rows] & ~np.uint64(1))
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        order = np.argsort(first)
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        of_event[rows] = len(ranks) + position[inverse]
        for j in order:
            is_stream = not bool(known[first[j]])
            ranks.append(int(rank))
            streams.append(is_stream)
            keys.append(int(stream[rows][first[j]]) if is_stream else int(comm[rows][first[j]]))
            first_rows.append(rows.start + int(first[j]))
    return _with_counts(events, of_event, ranks, keys, streams, first_rows)


def _with_counts(
    events: Events,
    of_event: NDArray[np.int32],
    ranks: list[int],
    keys: list[int],
    streams: list[bool],
    first_rows: list[int],
) -> Channels:
    c = len(ranks)
    calls = np.bincount(of_event.astype(np.int64) * OPS + events.op, minlength=c * OPS).reshape(c, OPS)
    total = np.asarray(calls.sum(axis=1), np.int64)
    max_count = np.zeros(c, np.int64)
    if events.count is not None:
        np.maximum.at(max_count, of_event, events.count)
    steps, ones = np.zeros(c, np.int64), np.zeros(c, np.int64)
    highest = np.full(c, NO_SEQ, np.int64)
    np.maximum.at(highest, of_event, events.seq)
    order = np.argsort(of_event, kind="stable")
    same = of_event[order][1:] == of_event[order][:-1]
    step = np.diff(events.seq[order])
    where = of_event[order][1:][same]
    steps = np.bincount(where, minlength=c)
    ones = np.bincount(where[step[same] == 1], minlength=c)
    # 90 %: a ring overwrite breaks the count at a handful of rows; a counter of another kind breaks it
    # everywhere.
    counted = (steps > 0) & (ones >= 0.9 * steps)
    constant = (steps > 0) & (highest == 0)
    return Channels(
        of_event=of_event,
        rank=np.asarray(ranks, np.int32),
        key=np.asarray(keys, np.uint64),
        by_stream=np.asarray(streams, np.bool_),
        calls=np.asarray(calls, np.int64),
        total=total,
        p2p=2 * (calls[:, Op.SEND] + calls[:, Op.RECV]) > total,
        max_count=max_count,
        first_row=np.asarray(first_rows, np.int64),
        counted=np.asarray(counted, np.bool_),
        constant=np.asarray(constant, np.bool_),
    )
