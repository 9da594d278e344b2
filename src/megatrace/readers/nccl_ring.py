"""Rings of NCCL's calls (``native/nccl_recorder.cc``), by its profiler plug-in or the preloaded library.

A call is one record, and more follow where more was seen: the other end of a message, start and end of the
kernel. NCCL numbers the members of a communicator; which rank of the job each is, the process that wrote the
ring knows, and so the rings together tell the members.

Plug-in and preloaded library call a communicator by different names. Where both wrote, the calls of one of
them are taken for the whole job: the one that saw more ranks, else more of each call, else the plug-in's,
which no call passes by.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import TraceError
from megatrace.model.events import NO_COMM, NO_COUNT, NO_PEER, NO_SEQ, UNSEEN, EventFlag, Events, Op
from megatrace.model.ringformat import MAX_BYTES, Ring, merged
from megatrace.model.trace import Communicator, Coverage, Gap, InputInfo, Observable, RankPlace, Trace
from megatrace.readers import registry
from megatrace.readers.ring_segment import is_ring, notes_of, read_ring
from megatrace.readers.source import ReadOptions, Source
from megatrace.units import say_ranks

PLUGIN, PRELOAD = b'"source": "nccl"', b'"source": "preload"'
NAMES = {PLUGIN: "the profiler plug-in", PRELOAD: "the preloaded library"}
CALL, START, END, PEER, FAILED, COMMUNICATOR = 1, 2, 3, 4, 5, 8
KERNELS = 1
"""In ``channel`` of a call: the events of its kernel were switched on. The other bits mark its group."""
NO_NUMBER = 0xFFFF_FFFF
MAX_RANKS = 1 << 20
SIZES = np.array([1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1], np.int64)
"""Bytes of an element by NCCL's number of its type."""
ALWAYS = frozenset(
    {
        Observable.ENQUEUE,
        Observable.COUNT,
        Observable.BYTES,
        Observable.PEER,
        Observable.SEQ,
        Observable.GROUP,
        Observable.NODE,
    }
)
KERNEL = frozenset({Observable.START, Observable.END, Observable.COMPLETION})


@registry.register("nccl", summary="rings of NCCL's calls, by its profiler plug-in or a preloaded library")
class NcclRingReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._rings: dict[bytes, list[Ring]] = {PLUGIN: [], PRELOAD: []}
        self._notes: list[str] = []

    def refuses(self, head: bytes) -> str | None:
        """The first bytes of a ring, and who wrote it."""
        return None if _writer(head) else "not a ring of NCCL's calls"

    def add(self, source: Source) -> None:
        """Reads one ring."""
        writer = _writer(source.head)
        data = source.read_whole(self._limit)
        try:
            self._rings[writer or PLUGIN].append(read_ring(data, source.name))
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError, struct.error) as error:
            self._notes.append(f"{source.name} was not read: it {source.damage or f'is damaged ({error})'}.")

    def finish(self) -> Trace:
        """Everything that was added. Raises TraceError where no call was recorded."""
        seen = {writer: self._by_rank(rings) for writer, rings in self._rings.items()}
        writer = max((PLUGIN, PRELOAD), key=lambda at: (len(seen[at]), _sight(seen[at].values())))
        rings = seen[writer]
        if not rings:
            raise TraceError(" ".join(self._notes) or "the rings of NCCL hold no call")
        self._notes += notes_of(list(rings.values()))
        self._note_other(PLUGIN if writer == PRELOAD else PRELOAD, writer, seen)
        groups = communicators_of(rings)
        kernels = all(watched(ring) for ring in rings.values())
        if not kernels and any((ring.records["kind"] == END).any() for ring in rings.values()):
            self._notes.append(
                "Ends of kernels were recorded for a part of the calls only and are not used: without them a "
                "call that has not ended looks like one that was not watched."
            )
        parts = [calls_of(ring, rank, groups, kernels) for rank, ring in rings.items()]
        gaps = tuple(
            Gap(rank, ring.begin, int(part.enqueue[0]), ring.lost)
            for (rank, ring), part in zip(rings.items(), parts, strict=True)
            if ring.lost and len(part)
        )
        streams = any(part.stream is not None and bool(part.stream.any()) for part in parts)
        sight = (
            ALWAYS | (KERNEL if kernels else frozenset()) | ({Observable.STREAM} if streams else frozenset())
        )
        events = Events.concatenate(parts)
        return Trace(
            events if streams else events.with_columns(stream=None),
            tuple(group.communicator for group in groups.values()),
            Coverage(
                sight,
                ranks_missing=_missing(rings, groups),
                gaps=gaps,
                lines=len(events),
                notes=tuple(self._notes),
            ),
            tuple(InputInfo(ring.name, "nccl", sight, 1) for ring in rings.values()),
            places=tuple(
                RankPlace(rank, ring.host, ring.local_rank, ring.word("device"))
                for rank, ring in rings.items()
            ),
        )

    def _by_rank(self, rings: Sequence[Ring]) -> dict[int, Ring]:
        """Rings that hold a call, ascending by rank; of a rank that was started again the last."""
        found: dict[int, Ring] = {}
        for ring in merged(rings):
            rank = ring.rank
            if not (ring.records["kind"] == CALL).any():
                continue
            if rank is None:
                self._notes.append(f"{ring.name} was left out: nothing tells which rank wrote it.")
                continue
            if _several(ring):
                self._notes.append(f"{ring.name} was left out: its process serves several ranks.")
                continue
            if rank in found:
                self._notes.append(f"{found[rank].name} was left out: rank {rank} was started again.")
            found[rank] = ring
        return dict(sorted(found.items()))

    def _note_other(self, other: bytes, taken: bytes, seen: Mapping[bytes, Mapping[int, Ring]]) -> None:
        twice = sorted(set(seen[other]) & set(seen[taken]))
        alone = sorted(set(seen[other]) - set(seen[taken]))
        if twice:
            self._notes.append(
                f"{NAMES[other].capitalize()} saw the calls of {say_ranks(twice)} once more; those of "
                f"{NAMES[taken]} are taken."
            )
        if alone:
            self._notes.append(
                f"The calls of {say_ranks(alone)} were left out: only {NAMES[other]} saw them, and it names "
                "communicators in another way."
            )


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator, and the rank of the job that each of its members is, by the number it has there."""

    communicator: Communicator
    rank_of: NDArray[np.int32]
    """``NO_PEER`` where the ring of that member is not there"""


def communicators_of(rings: Mapping[int, Ring]) -> dict[int, Group]:
    """By the name that the ring calls a communicator; members where all of them are known."""
    sizes: dict[int, int] = {}
    places: dict[int, dict[int, int]] = {}
    for rank, ring in rings.items():
        for record in ring.kept[ring.kept["kind"] == COMMUNICATOR]:
            name, index = int(record["comm"]), int(record["peer"])
            sizes[name] = max(sizes.get(name, 0), int(record["number"]))
            places.setdefault(name, {})[index] = rank
        for name in np.unique(ring.records["comm"][ring.records["kind"] == CALL]).tolist():
            places.setdefault(name, {})
    found: dict[int, Group] = {}
    for name, known in places.items():
        size = min(sizes.get(name, 0), MAX_RANKS)
        table = np.full(max([size, *(index + 1 for index in known if index < MAX_RANKS)]), NO_PEER, np.int32)
        for index, rank in known.items():
            if 0 <= index < len(table):
                table[index] = rank
        members = tuple(sorted(set(table.tolist())))
        whole = size > 0 and len(members) == len(table) == size and members[0] >= 0
        found[name] = Group(Communicator(len(found), members if whole else None, name), table)
    return found


def calls_of(ring: Ring, rank: int, groups: Mapping[int, Group], kernels: bool) -> Events:
    """The calls of one rank, with what later records tell of each."""
    records = ring.records
    calls = records[(records["kind"] == CALL) & (records["op"] > 0) & (records["op"] < 12)]
    n, keys = len(calls), _keys(calls)
    message = (calls["op"] == Op.SEND) | (calls["op"] == Op.RECV)
    peer, number = calls["peer"].astype(np.int64), calls["flags"].astype(np.int64)
    later = records[records["kind"] == PEER]
    rows, at = _joined(keys, later)
    peer[rows], number[rows] = later["peer"][at], later["flags"][at]
    comm = np.full(n, NO_COMM, np.int32)
    other = np.full(n, NO_PEER, np.int32)
    for name in np.unique(calls["comm"]).tolist():
        group, mine = groups[name], np.flatnonzero(calls["comm"] == np.uint64(name))
        comm[mine] = group.communicator.id
        known = mine[message[mine] & (peer[mine] >= 0) & (peer[mine] < len(group.rank_of))]
        other[known] = group.rank_of[peer[known]]
    counted = message & (peer >= 0) & (number != NO_NUMBER)
    seq = np.where(message, np.where(counted, number, NO_SEQ), calls["number"].astype(np.int64))
    typed = calls["dtype"] < len(SIZES)
    nbytes = calls["nbytes"].astype(np.int64)
    size = SIZES[np.where(typed, calls["dtype"], 0)]
    flags = np.zeros(n, np.uint8)
    flags[_joined(keys, records[records["kind"] == FAILED])[0]] |= np.uint8(EventFlag.FAILED)
    flags[_grouped(calls)] |= np.uint8(EventFlag.COALESCED)
    return Events(
        rank=np.full(n, rank, np.int32),
        op=calls["op"].copy(),
        seq=seq,
        enqueue=calls["time"].astype(np.int64),
        count=np.where(typed, nbytes // size, NO_COUNT),
        stream=calls["stream"].copy(),
        comm=comm,
        start=_times(keys, records[records["kind"] == START][::-1]) if kernels else None,
        end=_times(keys, records[records["kind"] == END]) if kernels else None,
        nbytes=nbytes,
        peer=other,
        flags=flags,
    )


def _several(ring: Ring) -> bool:
    """Whether the process is more than one member of a communicator."""
    kept = ring.kept[ring.kept["kind"] == COMMUNICATOR]
    members = set(zip(kept["comm"].tolist(), kept["peer"].tolist(), strict=True))
    return len(members) > len({name for name, _ in members})


def watched(ring: Ring) -> bool:
    """Whether the kernel of every call that is still there was watched."""
    calls = ring.records[ring.records["kind"] == CALL]
    return bool((calls["channel"] & KERNELS).all())


def _writer(head: bytes) -> bytes | None:
    return next((writer for writer in (PLUGIN, PRELOAD) if is_ring(head, writer)), None)


def _sight(rings: Iterable[Ring]) -> tuple[bool, bool]:
    """(ends of kernels, streams): what tells two recordings of the same calls apart."""
    found = list(rings)
    ends = bool(found) and all(watched(ring) for ring in found)
    streams = any(bool(ring.records["stream"][ring.records["kind"] == CALL].any()) for ring in found)
    return ends, streams


def _keys(records: NDArray[np.void]) -> NDArray[np.uint64]:
    """What joins the records of one call: communicator of the process, message or not, number."""
    message = ((records["op"] == Op.SEND) | (records["op"] == Op.RECV)).astype(np.uint64)
    number = records["number"].astype(np.uint64) & np.uint64((1 << 47) - 1)
    place = records["thread"].astype(np.uint64) << np.uint64(48)
    keys: NDArray[np.uint64] = place | message << np.uint64(47) | number
    return keys


def _joined(keys: NDArray[np.uint64], later: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows of ``keys``, rows of ``later``) of the same calls; of several later ones the last."""
    if not len(keys) or not len(later):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(keys, kind="stable")
    theirs = _keys(later)
    at = np.minimum(np.searchsorted(keys[order], theirs), len(keys) - 1)
    hit = np.flatnonzero(keys[order][at] == theirs)
    return order[at[hit]], hit


def _grouped(calls: NDArray[np.void]) -> NDArray[np.bool_]:
    """Calls that were made in one NCCL group with the one before or behind: they say the same mark, which is
    that of no group where it is 0."""
    mark = calls["channel"] >> 1
    same = np.zeros(len(calls) + 1, np.bool_)
    same[1:-1] = (mark[1:] == mark[:-1]) & (mark[1:] > 0)
    return same[1:] | same[:-1]


def _times(keys: NDArray[np.uint64], later: NDArray[np.void]) -> NDArray[np.int64]:
    times = np.full(len(keys), UNSEEN, np.int64)
    rows, at = _joined(keys, later)
    times[rows] = later["time"][at].astype(np.int64)
    return times


def _missing(rings: Mapping[int, Ring], groups: Mapping[int, Group]) -> tuple[int, ...]:
    """Ranks without a ring: of as many as the launcher said, else of the largest communicator, where its
    numbers are the ranks of the job."""
    world = max((ring.count("world_size") or 0 for ring in rings.values()), default=0)
    if max(rings) < world <= MAX_RANKS:
        return tuple(sorted(set(range(world)) - set(rings)))
    table = max((group.rank_of for group in groups.values()), key=len, default=np.empty(0, np.int32))
    known = np.flatnonzero(table >= 0)
    if not bool((table[known] == known).all()):
        return ()
    return tuple(rank for rank in np.flatnonzero(table < 0).tolist() if rank not in rings)
