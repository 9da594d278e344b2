"""Where every rank stands: the last calls of each rank, small enough to be sent by ten thousand ranks.

A hang is decided by positions, not by history: per (rank, communicator) the last collective that was
enqueued, started and completed; per (rank, peer, direction) how many Sends and Recvs; and the last calls
of a rank in the order in which its host made them. That is 2–4 KB a rank whatever the length of the job,
so the same function judges a trace on a laptop and what node agents report of a live job.

P2P calls are numbered per ordered pair of ranks, first in, first out: a communicator-wide number would
shift with every exchange of somebody else. Where a recording lost records, both ends count from the last
collective in which both took part (``frontier_align``).

Does not decide what is a hang, and knows no phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COMM, NO_COUNT, NO_PEER, NO_SEQ, UNSEEN, Events, Op
from megatrace.model.frontier_align import UNALIGNED, pair_bases
from megatrace.model.frontier_bytes import decode, encode
from megatrace.model.frontier_index import Members, entry_keys, group_order, last_of, peers_of_pairs, reach
from megatrace.model.trace import Communicator

I8 = NDArray[np.int64]
I4 = NDArray[np.int32]
U1 = NDArray[np.uint8]
U8 = NDArray[np.uint64]

TAIL = 64
"""Calls kept of each rank. A host runs ahead of its device by one micro-batch (some 25 calls in a 12-layer
stage); 64 hold two of those and stay within 4 KB a rank."""

ENQUEUED, STARTED, ENDED = 0, 1, 2
"""States of a call in ``tail_state``. Without start and end times every call stays ENQUEUED."""

HASH_STEP = np.uint64(0x9E3779B97F4A7C15)
"""Odd multiplier of the rolling hash (2^64 over the golden ratio): neighbouring operations spread over all
bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Positions of R ranks. Rank indices below are indices into ``ranks``; times int64 ns; all arrays
    aligned.

    ranks          int32 [R] global ranks, ascending
    calls          int64 [R] calls recorded of the rank
    first_time     int64 [R] its first call; ``last_time`` int64 [R] its last call, start or completion
    last_call      int64 [R] time of its last call
    longest_gap    int64 [R] longest time between two calls of the rank
    lost           bool [R] the recording lacks calls in the middle or at the front

    entry_*        one entry a (rank, communicator) with collectives, ascending by (rank, communicator): rank
                   index and communicator int32; ``first`` and ``last`` int64 sequence numbers enqueued;
                   ``started`` and ``ended`` int64 last sequence numbers (``NO_SEQ`` none or not observable);
                   ``time`` int64 of the last call; ``hash`` uint64 over (seq, op, count) of the calls from
                   ``first`` to ``last``
    pair_*         one entry a (rank, peer, direction): rank index, global peer int32, ``send`` bool;
                   ``posted``, ``started``, ``ended`` int64 counts since the pair's base; ``time`` int64 of
                   the last call
    tail_*         [R, K] last K calls of a rank in program order, right-aligned (column K − 1 is the last;
                   columns before its first call have op 0): communicator int32 (``NO_COMM``), op and state
                   uint8, seq int64 (of a P2P call: its number within (rank, peer, direction), from 0), count
                   int64, peer int32 global, time int64
    """

    ranks: I4
    calls: I8
    first_time: I8
    last_time: I8
    last_call: I8
    longest_gap: I8
    lost: NDArray[np.bool_]
    entry_rank: I4
    entry_comm: I4
    entry_first: I8
    entry_last: I8
    entry_started: I8
    entry_ended: I8
    entry_time: I8
    entry_hash: U8
    pair_rank: I4
    pair_peer: I4
    pair_send: NDArray[np.bool_]
    pair_posted: I8
    pair_started: I8
    pair_ended: I8
    pair_time: I8
    tail_comm: I4
    tail_op: U1
    tail_state: U1
    tail_seq: I8
    tail_count: I8
    tail_peer: I4
    tail_time: I8
    members: Members
    has_start: bool
    has_end: bool
    snapshot_at: int | None = None

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def tail(self) -> int:
        """K, the calls kept of each rank."""
        return int(self.tail_op.shape[1])

    @property
    def end(self) -> int:
        """Time of the last thing that anybody did, ns; 0 for an empty frontier."""
        return int(self.last_time.max()) if len(self) else 0

    def index_of(self, rank: int) -> int | None:
        """Index of a global rank, or None where nothing of it was recorded."""
        at = int(np.searchsorted(self.ranks, rank))
        return at if at < len(self.ranks) and int(self.ranks[at]) == rank else None

    def indices(self, ranks: NDArray[Any]) -> I8:
        """int64: indices of global ranks, −1 where nothing of one was recorded."""
        if len(self.ranks) and int(self.ranks[-1]) - int(self.ranks[0]) == len(self.ranks) - 1:
            at = np.asarray(ranks, np.int64) - int(self.ranks[0])  # mostly all ranks of a job are there
            return np.where((at >= 0) & (at < len(self.ranks)), at, -1)
        at = np.searchsorted(self.ranks, ranks)
        safe = np.minimum(at, max(len(self.ranks) - 1, 0))
        found = (at < len(self.ranks)) & (self.ranks[safe] == ranks) if len(self.ranks) else at < 0
        return np.where(found, safe, -1).astype(np.int64)

    def moved_since(self, earlier: Frontier) -> I4:
        """int32: global ranks that made or completed a call after ``earlier``, or are new."""
        before = earlier.indices(self.ranks)
        known = before >= 0
        moved = ~known
        old = before[known]
        moved[known] = (self.calls[known] != earlier.calls[old]) | (
            self.last_time[known] != earlier.last_time[old]
        )
        return self.ranks[moved]

    def arrays(self) -> list[tuple[str, NDArray[Any]]]:
        """(name, array) of every column, in the order of the binary form."""
        names = [item.name for item in fields(self) if item.name not in _NOT_COLUMNS]
        return [(name, getattr(self, name)) for name in names]

    def to_bytes(self) -> bytes:
        """The binary form (``frontier_bytes``), versioned, little-endian."""
        flags = int(self.has_start) | int(self.has_end) << 1
        time = UNSEEN if self.snapshot_at is None else self.snapshot_at
        columns = [array for _, array in self.arrays()]
        return encode([self.members.bounds, self.members.ranks, *columns], flags, time)

    @staticmethod
    def from_bytes(data: bytes) -> Frontier:
        """The inverse of ``to_bytes``. Raises ValueError with the reason for anything else."""
        names = [item.name for item in fields(Frontier) if item.name not in _NOT_COLUMNS]
        flags, time, arrays = decode(data, len(names) + 2)
        return Frontier(
            **dict(zip(names, arrays[2:], strict=True)),
            members=Members(arrays[0], arrays[1]),
            has_start=bool(flags & 1),
            has_end=bool(flags & 2),
            snapshot_at=None if time == UNSEEN else time,
        )

    @staticmethod
    def from_events(
        events: Events,
        communicators: Sequence[Communicator] = (),
        snapshot_at: int | None = None,
        *,
        tail: int | None = TAIL,
        peers: NDArray[np.int32] | None = None,
        settled: bool = False,
    ) -> Frontier:
        """The frontier of a trace.

        ``peers``: int32 per event, the other end of each Send and Recv where the source has no peer column
        and the layout tells. ``tail``: calls kept a rank; None: so many that the first open call of every
        rank is among them, within ``MOST_CELLS``, which a trace on disk can afford and an agent cannot.
        ``settled``: completions are states of one moment (``frontier_align``).
        """
        if tail is None:
            tail = reach(events, TAIL)
        return _Builder(events, communicators, tail, peers, settled).build(snapshot_at)


_NOT_COLUMNS = frozenset({"members", "has_start", "has_end", "snapshot_at"})


class _Builder:
    """Reduces columns to positions. All steps are passes over columns; no loop runs over ranks."""

    def __init__(
        self,
        events: Events,
        communicators: Sequence[Communicator],
        tail: int,
        peers: NDArray[np.int32] | None,
        settled: bool,
    ) -> None:
        self.settled = settled
        self.events = events
        self.communicators = communicators
        self.size = max(tail, 1)
        self.ranks, self.bounds = events.offsets()
        self.rank_index = np.repeat(np.arange(len(self.ranks), dtype=np.int32), np.diff(self.bounds))
        self.members = Members.of(communicators)
        n = len(events)
        self.comm = events.comm if events.comm is not None else np.full(n, NO_COMM, np.int32)
        self.count = events.count if events.count is not None else np.full(n, NO_COUNT, np.int64)
        self.p2p = (events.op == Op.SEND) | (events.op == Op.RECV)
        self.p2p_rows = np.flatnonzero(self.p2p)
        self.peer = self._peers(peers)
        self.seq = self._sequence()
        self.lost = np.zeros(len(self.ranks), np.bool_)
        self.ends = np.empty(0, np.int64)

    def _peers(self, given: NDArray[np.int32] | None) -> I4:
        """The global peer of each P2P row (``NO_PEER`` elsewhere): as recorded, as given, or the pair's
        other end."""
        peer = np.full(len(self.events), NO_PEER, np.int32)
        rows = self.p2p_rows
        recorded = self.events.peer if self.events.peer is not None else peer
        found = recorded[rows]
        if given is not None:
            found = np.where(found == NO_PEER, given[rows], found)
        other = peers_of_pairs(self.members, self.comm[rows], self.events.rank[rows])
        peer[rows] = np.where(found == NO_PEER, other, found)
        return peer

    def _sequence(self) -> I8:
        """Sequence numbers: the source's for collectives (counted where it has none), FIFO numbers for
        P2P."""
        seq = self.events.seq.astype(np.int64, copy=True)
        bare = np.flatnonzero((seq == NO_SEQ) & ~self.p2p)
        if len(bare):
            key = self.rank_index[bare].astype(np.int64) * (self.members.size + 1) + self.comm[bare] + 1
            seq[bare] = group_order(key)
        rows = self.p2p_rows
        if len(rows):
            seq[rows] = group_order(self._pair_key(rows))
        return seq

    def _pair_key(self, rows: NDArray[Any]) -> I8:
        """One number a (rank, peer, direction)."""
        width = int(max(self.ranks.max(initial=0), self.peer.max(initial=0))) + 2
        key = self.rank_index[rows].astype(np.int64) * width + self.peer[rows] + 1
        return np.asarray(key * 2 + (self.events.op[rows] == Op.SEND), dtype=np.int64)

    def build(self, snapshot_at: int | None) -> Frontier:
        entries = self._entries()  # also finds out which ranks lost records, which the pairs must know
        pairs = self._pairs()
        return Frontier(
            ranks=self.ranks,
            **self._per_rank(),
            **entries,
            **pairs,
            **self._tails(),
            members=self.members,
            has_start=self.events.start is not None,
            has_end=self.events.end is not None,
            snapshot_at=snapshot_at,
        )

    def _per_rank(self) -> dict[str, Any]:
        events, bounds = self.events, self.bounds
        if not len(events):
            none = np.empty(0, np.int64)
            names = ("calls", "first_time", "last_time", "last_call", "longest_gap")
            return {**dict.fromkeys(names, none), "lost": np.empty(0, np.bool_)}
        last_call = np.maximum.reduceat(events.enqueue, bounds[:-1])
        last = last_call
        for column in (events.start, events.end):
            if column is not None:
                last = np.maximum(last, np.maximum.reduceat(column, bounds[:-1]))
        gaps = np.diff(events.enqueue, prepend=events.enqueue[:1])
        gaps[bounds[:-1]] = 0
        return {
            "calls": np.diff(bounds),
            "first_time": events.enqueue[bounds[:-1]],
            "last_time": last,
            "last_call": last_call,
            "longest_gap": np.maximum.reduceat(gaps, bounds[:-1]),
            "lost": self.lost,
        }

    def _entries(self) -> dict[str, Any]:
        rows = np.flatnonzero(~self.p2p & (self.comm >= 0) & (self.comm < self.members.size))
        comm, rank = self.comm[rows], self.rank_index[rows]
        key, size = entry_keys(rank, comm, self.members, self.ranks)
        last = last_of(key, rows, size)
        first = last_of(key[::-1], rows[::-1], size)
        present = np.flatnonzero(last >= 0)
        present = present[np.lexsort((self.comm[last[present]], self.rank_index[last[present]]))]
        first, last = first[present], last[present]
        self.ends = last
        made = np.bincount(key, minlength=size)[present]
        # Numbers rise by one and start at 0 (NCCL) or 1 (PyTorch), or records are missing.
        lost = (self.seq[last] - self.seq[first] + 1 != made) | (self.seq[first] > 1)
        self.lost[self.rank_index[last[lost]]] = True
        ended = self._reached(key, rows, self.events.end, size)[present]
        started = self._reached(key, rows, self.events.start, size)[present]
        signature = (self.events.op[rows].astype(np.uint64) << np.uint64(56)) ^ self.count[rows].astype(
            np.uint64
        )
        mixed = (signature * HASH_STEP + self.seq[rows].astype(np.uint64)) * HASH_STEP
        mixed ^= mixed >> np.uint64(29)
        return {
            "entry_rank": self.rank_index[last],
            "entry_comm": self.comm[last],
            "entry_first": self.seq[first],
            "entry_last": self.seq[last],
            "entry_started": np.maximum(started, ended),
            "entry_ended": ended,
            "entry_time": self.events.enqueue[last],
            "entry_hash": _sums(key, mixed, size)[present],
        }

    def _reached(self, key: I8, rows: NDArray[Any], column: I8 | None, size: int) -> I8:
        """The last sequence number per key whose column was seen, ``NO_SEQ`` where none."""
        if column is None:
            return np.full(size, NO_SEQ, np.int64)
        seen = column[rows] != UNSEEN
        last = last_of(key[seen], rows[seen], size)
        return np.where(last >= 0, self.seq[np.maximum(last, 0)], NO_SEQ)

    def _pairs(self) -> dict[str, Any]:
        rows = self.p2p_rows
        rows = rows[self.peer[rows] != NO_PEER]
        keys, inverse = np.unique(self._pair_key(rows), return_inverse=True)
        size = len(keys)
        last = last_of(inverse, rows, size)
        rank, peer = self.rank_index[last], self.peer[last]
        send = self.events.op[last] == Op.SEND
        base = pair_bases(
            self.events, self.bounds, self.seq, self.comm, self.lost, self.peer, last, inverse, rows,
            self.ends, settled=self.settled,
        )  # fmt: skip
        known = base != UNALIGNED
        self.seq[rows] -= base[inverse]
        self.peer[rows[~known[inverse]]] = (
            NO_PEER  # cannot be paired: nothing may be concluded from its counts
        )

        def counted(column: I8 | None) -> I8:
            if column is None:
                return np.zeros(size, np.int64)
            seen = column[rows] != UNSEEN
            at = last_of(inverse[seen], rows[seen], size)
            return np.where(at >= 0, self.seq[np.maximum(at, 0)] + 1, 0)

        ended = counted(self.events.end)
        columns = {
            "pair_rank": rank.astype(np.int32),
            "pair_peer": peer.astype(np.int32),
            "pair_send": send,
            "pair_posted": self.seq[last] + 1,
            "pair_started": np.maximum(counted(self.events.start), ended),
            "pair_ended": ended,
            "pair_time": self.events.enqueue[last],
        }
        return {name: column[known] for name, column in columns.items()}

    def _tails(self) -> dict[str, Any]:
        columns = self.bounds[1:, None] - self.size + np.arange(self.size)
        valid = columns >= self.bounds[:-1, None]
        rows = np.where(valid, columns, 0)

        def kept(column: NDArray[Any], fill: int) -> NDArray[Any]:
            if not len(column):
                return np.full(rows.shape, fill, column.dtype)
            return np.where(valid, column[rows], np.asarray(fill, column.dtype))

        state = np.full(rows.shape, ENQUEUED, np.uint8)
        for value, column in ((STARTED, self.events.start), (ENDED, self.events.end)):
            if column is not None:
                state[kept(column, UNSEEN) != UNSEEN] = value
        return {
            "tail_comm": kept(self.comm, NO_COMM),
            "tail_op": kept(self.events.op, 0),
            "tail_state": state,
            "tail_seq": kept(self.seq, NO_SEQ),
            "tail_count": kept(self.count, NO_COUNT),
            "tail_peer": kept(self.peer, NO_PEER),
            "tail_time": kept(self.events.enqueue, 0),
        }


def _sums(key: I8, values: U8, size: int) -> U8:
    """uint64 [size]: sum modulo 2^64 of the values of each key, independent of their order."""
    total = np.zeros(size, np.uint64)
    if len(key):
        # Two 32-bit halves: a float64 sum of halves is exact up to 2^21 calls an entry, and bincount is a
        # fast scatter.
        low = np.bincount(key, (values & np.uint64(0xFFFFFFFF)).astype(np.float64), minlength=size)
        high = np.bincount(key, (values >> np.uint64(32)).astype(np.float64), minlength=size)
        total = low.astype(np.uint64) + (high.astype(np.uint64) << np.uint64(32))
    return total
