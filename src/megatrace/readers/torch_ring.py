"""Rings that the hook of torch.distributed wrote (``collect.torch_ring``), and the groups that it named.

Two kinds of file of each process: the ring, with the last calls and when they were found done, and
``groups-….json`` with names and members of the process groups. A call starts when it is made, for what is
recorded here runs on the host; its end is when its ``Work`` was waited for. A call that nobody has waited for
yet (an isend in flight) blocks nobody, and whether it is done is not known: it counts as done at once. A ring
that went round tells what it lost.
"""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np

from megatrace.errors import TraceError
from megatrace.model.blind_spots import Unobserved, spot_named
from megatrace.model.events import NO_COMM, NO_COUNT, UNSEEN, EventFlag, Events
from megatrace.model.marks import MarkKind, Marks, NamedGroup
from megatrace.model.ringformat import MAX_BYTES, Ring, merged
from megatrace.model.trace import Communicator, Coverage, Gap, InputInfo, Observable, RankPlace, Trace
from megatrace.readers import registry
from megatrace.readers.ring_segment import is_ring, read_ring
from megatrace.readers.source import ReadOptions, Source

GROUPS = "megatrace.groups/1"
SOURCE = b'"source": "torch"'
CALL, MARK = 1, 20
WAITED = 1 << 7
MAX_GROUPS_BYTES = 64 << 20
"""A group of 65,536 ranks has 450 KB of members."""
SIZES = np.array([1, 1, 4, 4, 8, 8, 2, 4, 8, 2], np.int64)
"""Bytes of an element by NCCL's number of its type."""
SEEN = frozenset(set(Observable) - {Observable.STREAM, Observable.DTYPE})


@registry.register("torch", summary="rings of the torch.distributed hook, and the names of its groups")
class TorchRingReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._rings: list[Ring] = []
        self._told: dict[tuple[str, int], dict[str, Any]] = {}
        self._notes: list[str] = []

    def refuses(self, head: bytes) -> str | None:
        """The first bytes of a ring, or the schema of the groups."""
        if is_ring(head, SOURCE) or GROUPS.encode() in head[:200]:
            return None
        return "neither a ring of the hook nor the names of its groups"

    def add(self, source: Source) -> None:
        """Reads one file."""
        ring = is_ring(source.head, SOURCE)
        data = source.read_whole(self._limit if ring else MAX_GROUPS_BYTES)
        try:
            if ring:
                self._rings.append(read_ring(data, source.name))
            else:
                told = json.loads(data)
                self._told[str(told["host"]), int(told["pid"])] = told
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError, struct.error) as error:
            why = source.damage or f"is damaged ({error})"
            self._notes.append(f"{source.name} was not read: it {why}.")

    def finish(self) -> Trace:
        """Everything that was added. Raises TraceError where no call was recorded."""
        rings: dict[int, Ring] = {}
        for ring in merged(self._rings):
            rank = self._rank(ring)
            if rank is None:
                self._notes.append(f"{ring.name} was left out: nothing tells which rank wrote it.")
            elif len(ring.records):
                if rank in rings:
                    self._notes.append(f"{rings[rank].name} was left out: rank {rank} was started again.")
                rings[rank] = ring
        named = self._named()
        if not rings and not named:
            raise TraceError(" ".join(self._notes) or "the hook of torch.distributed recorded no call")
        communicators = self._communicators()
        index = {item.hash: item.id for item in communicators}
        parts = [calls_of(ring, rank, index) for rank, ring in sorted(rings.items())]
        gaps = tuple(
            Gap(rank, ring.started, int(part.enqueue[0]), ring.lost)
            for (rank, ring), part in zip(sorted(rings.items()), parts, strict=True)
            if ring.lost and len(part)
        )
        places = tuple(RankPlace(rank, ring.host, ring.local_rank) for rank, ring in sorted(rings.items()))
        events = Events.concatenate(parts) if parts else Events.empty()
        seen = SEEN if len(events) else frozenset()
        inputs = tuple(InputInfo(ring.name, "torch", seen, 1) for _, ring in sorted(rings.items()))
        marks = [marks_of(ring, rank) for rank, ring in sorted(rings.items())]
        return Trace(
            events,
            communicators,
            Coverage(
                seen,
                ranks_missing=self._missing(rings),
                gaps=gaps,
                lines=len(events),
                notes=tuple(self._notes),
                unobserved=self._unobserved(),
            ),
            inputs,
            places=places,
            marks=Marks.concatenate(marks) if sum(map(len, marks)) else None,
            named=named,
        )

    def _named(self) -> tuple[NamedGroup, ...]:
        """Groups of which NCCL ran the calls, as the first process that has each lists it."""
        found: dict[str, NamedGroup] = {}
        for told in self._told.values():
            for group in _groups(told):
                if group.get("recorded") is False and isinstance(group["hash"], str):
                    name = str(group.get("description") or group.get("name") or "")
                    found.setdefault(group["hash"], NamedGroup(name, _members(group)))
        return tuple(group for group in found.values() if len(group.members) > 1)

    def _unobserved(self) -> tuple[Unobserved, ...]:
        found: dict[Unobserved, None] = {}
        for told in self._told.values():
            hidden = told.get("unobserved")
            for word, source in hidden.items() if isinstance(hidden, dict) else ():
                spot = spot_named(str(word))
                if spot is not None:
                    found[Unobserved(spot, str(source))] = None
        return tuple(found)

    def _rank(self, ring: Ring) -> int | None:
        if ring.rank is not None:
            return ring.rank
        told = self._told.get((ring.host, ring.pid))
        return None if told is None or not isinstance(told.get("rank"), int) else int(told["rank"])

    def _missing(self, rings: dict[int, Ring]) -> tuple[int, ...]:
        worlds = [told.get("world_size") for told in self._told.values()]
        world = max(
            (int(size) for size in worlds if isinstance(size, int) and 0 < size <= 1 << 20), default=0
        )
        return tuple(rank for rank in range(world) if rank not in rings)

    def _communicators(self) -> tuple[Communicator, ...]:
        """Every group that any process named or used, numbered."""
        found: dict[int, Communicator] = {}
        for told in self._told.values():
            for group in _groups(told):
                if group.get("recorded") is False:
                    continue  # the rings of NCCL's calls have it under a name of NCCL's
                value = int.from_bytes(bytes.fromhex(group["hash"]), "little")
                members = _members(group)
                name = str(group.get("description") or group.get("name") or "")
                made = Communicator(len(found), members, value, name or None)
                found.setdefault(value, made)
        for ring in self._rings:
            for value in np.unique(ring.records["comm"]).tolist():
                found.setdefault(value, Communicator(len(found), None, value))
        return tuple(found.values())


def _groups(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups of a process that can be understood."""
    listed = told.get("groups")
    found = []
    for group in listed if isinstance(listed, list) else ():
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            bytes.fromhex(group["hash"])
            _members(group)
            found.append(group)
    return found


def _members(group: dict[str, Any]) -> tuple[int, ...]:
    return tuple(sorted({int(rank) for rank in group["ranks"]}))


def marks_of(ring: Ring, rank: int) -> Marks:
    """The steps and micro-batches that a process marked."""
    marks = ring.records[(ring.records["kind"] == MARK) & np.isin(ring.records["op"], list(MarkKind))]
    return Marks(
        np.full(len(marks), rank, np.int32),
        marks["time"].astype(np.int64),
        marks["op"].astype(np.uint8),
        marks["number"].astype(np.int64),
        marks["nbytes"].astype(np.int64),
    )


def calls_of(ring: Ring, rank: int, index: dict[int | None, int]) -> Events:
    """The calls of one rank, each with its end where that was written."""
    records = ring.records
    known = (records["kind"] == CALL) & (records["op"] > 0) & (records["op"] < 12)
    calls = records[known]
    n = len(calls)
    enqueue = calls["time"].astype(np.int64)
    done, waited = calls["stream"].astype(np.int64), calls["flags"] & WAITED != 0
    failed = calls["flags"] & EventFlag.FAILED != 0
    end = np.where(done > 0, done + ring.offset, np.where(waited, UNSEEN, enqueue))
    nbytes = calls["nbytes"].astype(np.int64)
    typed = calls["dtype"] < len(SIZES)
    size = SIZES[np.where(typed, calls["dtype"], 0)]
    comm = np.array([index.get(int(value), NO_COMM) for value in calls["comm"]], np.int32)
    return Events(
        rank=np.full(n, rank, np.int32),
        op=calls["op"].copy(),
        seq=calls["number"].astype(np.int64),
        enqueue=enqueue,
        count=np.where(typed, nbytes // size, NO_COUNT),
        comm=comm,
        start=enqueue.copy(),
        end=end,
        nbytes=nbytes,
        peer=calls["peer"].copy(),
        flags=np.where(failed, EventFlag.FAILED, 0).astype(np.uint8),
    )
