"""From what happened to what a recorder would have written: a ``Trace`` of all ranks.

Applies each node's clock, numbers operations per communicator as NCCL does (a communicator of one rank never
counts: its opCount stays 0), rewrites the calls of ranks that called something else than their peers, and
drops calls that no host made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_PEER, UNSEEN, Events
from megatrace.model.layout import Axis
from megatrace.model.trace import Communicator, Coverage, InputInfo, Observable, RankPlace, Trace
from megatrace.simulator.cluster import Cluster
from megatrace.simulator.effects import clocks, generator
from megatrace.simulator.program import AXES, Channel, Program, Row
from megatrace.simulator.state import Recorded

STREAM_BASE = 0x5585_C580_0000
"""A heap address as seen in real logs: streams are pointers of the process that made them."""
OBSERVED = frozenset(set(Observable) - {Observable.DTYPE})
_HASH = 0x4A54


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One rank's call in a row of an iteration differs from its program: it is another row, or has other
    elements."""

    rank: int
    iteration: int
    row: int
    instead: int | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Skip:
    """A call that a rank left out: later calls on the channel have numbers one lower there."""

    rank: int
    iteration: int
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class Numbering:
    """Communicators of a layout: ``of`` int32 [world] per channel (−1 outside), all ids in one sequence."""

    communicators: tuple[Communicator, ...]
    of: dict[Channel, NDArray[np.int32]]


def number_communicators(cluster: Cluster) -> Numbering:
    """Gives every group of every channel an id and a hash."""
    layout, seed = cluster.layout, cluster.scenario.seed
    found: list[Communicator] = []
    of: dict[Channel, NDArray[np.int32]] = {}
    for channel in Channel:
        axis = AXES[channel]
        groups = layout.groups(axis)
        ids = np.full(layout.world_size, -1, np.int32)
        ids[groups.reshape(-1)] = np.repeat(np.arange(len(groups)) + len(found), groups.shape[1])
        of[channel] = ids
        for index, members in enumerate(np.sort(groups, axis=1).tolist()):
            name = channel.value if axis is Axis.WORLD else f"{channel.value}{index}"
            found.append(Communicator(len(found), tuple(members), None, name, axis))
    hashes = _hashes(seed, len(found))
    return Numbering(tuple(replace(item, hash=value) for item, value in zip(found, hashes, strict=True)), of)


def _hashes(seed: int, number: int) -> list[int]:
    """Different hashes, so short that a line stays below the 128 bytes at which writers cut it."""
    random = generator(seed, _HASH)
    pool = np.unique(random.integers(-(10**9), 10**9, 2 * number + 16))
    pool = pool[pool != 0]
    return [int(value) for value in random.permutation(pool)[:number]]


class Recorder:
    """Collects what the engine ran, and writes it as one ``Trace``."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.parts: list[list[Recorded]] = [[] for _ in range(cluster.layout.pp)]

    def add(self, recorded: list[Recorded]) -> None:
        """Takes what the stages recorded in one iteration."""
        for part in recorded:
            self.parts[part.program.stage].append(part)

    def last_call_times(self) -> list[float]:
        """Per recorded part: ns at which its last call was made."""
        every = (part.enqueue for parts in self.parts for part in parts)
        return [float(np.max(times, where=np.isfinite(times), initial=0.0)) for times in every]

    def trace(self, rewrites: list[Rewrite], skips: list[Skip], until: float = np.inf) -> Trace:
        """Everything, on the clocks of the nodes. ``until`` ns after the start cuts off what came later."""
        cluster = self.cluster
        numbering = number_communicators(cluster)
        counts = np.zeros(cluster.layout.world_size, np.int64)
        for stage, parts in enumerate(self.parts):
            made = sum(np.sum(_made(part, until), axis=0) for part in parts)
            counts[cluster.grid[stage].reshape(-1)] = made
        columns = _Columns(cluster, numbering, counts)
        for stage, parts in enumerate(self.parts):
            columns.fill(stage, parts, rewrites, skips, until)
        scenario = cluster.scenario
        places = tuple(
            RankPlace(rank, f"node{node}", local, f"gpu{local}")
            for rank in range(scenario.world_size)
            for node, local in [divmod(rank, scenario.ranks_per_node)]
        )
        return Trace(
            columns.events(),
            numbering.communicators,
            Coverage(observables=OBSERVED, lines=int(counts.sum())),
            (InputInfo(scenario.name, "simulator", OBSERVED, int((counts > 0).sum())),),
            scenario.job(),
            places,
            snapshot_at=None if not np.isfinite(until) else scenario.start_time_ns + int(until),
        )


def _made(part: Recorded, until: float) -> NDArray[np.bool_]:
    return np.asarray(part.enqueue <= min(until, np.finfo(np.float64).max))


class _Columns:
    """The output arrays, filled stage by stage."""

    def __init__(self, cluster: Cluster, numbering: Numbering, counts: NDArray[np.int64]) -> None:
        self.cluster, self.numbering, self.counts = cluster, numbering, counts
        self.base = np.concatenate([[0], np.cumsum(counts)])
        n = int(self.base[-1])
        self.rank = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.op, self.flags = np.empty(n, np.uint8), np.zeros(n, np.uint8)
        self.seq, self.count, self.nbytes = (np.empty(n, np.int64) for _ in range(3))
        self.enqueue, self.start, self.end = (np.empty(n, np.int64) for _ in range(3))
        self.stream = np.empty(n, np.uint64)
        self.comm, self.peer = np.empty(n, np.int32), np.empty(n, np.int32)
        self._rows: dict[int, _Rows] = {}
        offset, drift = clocks(cluster)
        self.offset, self.drift = offset, drift

    def rows_of(self, program: Program) -> _Rows:
        if id(program) not in self._rows:  # the value holds the program, so its id stays its own
            self._rows[id(program)] = _Rows(program, self.cluster)
        return self._rows[id(program)]

    def events(self) -> Events:
        return Events(**{item.name: getattr(self, item.name) for item in fields(Events)})

    def fill(
        self, stage: int, parts: list[Recorded], rewrites: list[Rewrite], skips: list[Skip], until: float
    ) -> None:
        """Writes the calls of one stage into the rows of its ranks."""
        ranks = self.cluster.grid[stage].reshape(-1).astype(np.int64)
        column = {int(rank): i for i, rank in enumerate(ranks)}
        used: dict[Channel, int] = {}
        skipped: dict[Channel, NDArray[np.int64]] = {}
        cursor = self.base[ranks]
        for part in parts:
            made = _made(part, until)
            table = _Table(self, part, ranks, used, skipped)
            for rewrite in rewrites:
                if rewrite.iteration == part.iteration and rewrite.rank in column:
                    table.rewrite(column[rewrite.rank], rewrite)
            for skip in skips:
                if skip.iteration == part.iteration and skip.rank in column:
                    table.skip(column[skip.rank], skip)
                    lost = skipped.setdefault(
                        part.program.rows[skip.row].channel, np.zeros(len(ranks), np.int64)
                    )
                    lost[column[skip.rank]] += 1
            cursor = self._scatter(table, part, made, cursor, ranks, until)
            for channel, number in part.program.calls.items():
                used[channel] = used.get(channel, 0) + number

    def _scatter(
        self,
        table: _Table,
        part: Recorded,
        made: NDArray[np.bool_],
        cursor: NDArray[np.int64],
        ranks: NDArray[np.int64],
        until: float,
    ) -> NDArray[np.int64]:
        by_rank = np.ascontiguousarray(made.T)
        within = np.cumsum(by_rank, axis=1)
        target = (cursor[:, None] + within - 1)[by_rank]
        nodes = ranks // self.cluster.scenario.ranks_per_node
        rate, offset = 1 + self.drift[nodes], self.offset[nodes]
        for name, times in (("enqueue", part.enqueue), ("start", part.start), ("end", part.end)):
            local = times.T * rate[:, None] + offset[:, None]
            chosen = np.where(until >= times.T, local, np.inf)[by_rank]
            seen = np.isfinite(chosen)
            whole = np.full(len(chosen), UNSEEN, np.int64)
            whole[seen] = self.cluster.scenario.start_time_ns + chosen[seen].astype(np.int64)
            getattr(self, name)[target] = whole
        for name in ("op", "seq", "count", "nbytes", "stream", "comm", "peer", "flags"):
            getattr(self, name)[target] = table.column(name)[by_rank]
        return cursor + within[:, -1] if within.shape[1] else cursor


class _Rows:
    """What all ranks of a stage share about the rows of a program, as arrays over rows."""

    def __init__(self, program: Program, cluster: Cluster) -> None:
        rows, channels = program.rows, list(Channel)
        sizes = np.array([cluster.members(channel) for channel in channels])
        self.program = program
        self.op = np.array([int(row.op) for row in rows], np.uint8)
        self.flags = np.array([_coalesced(rows, i) for i in range(len(rows))], np.uint8)
        self.channel = np.array([channels.index(row.channel) for row in rows], np.int64)
        self.counting = sizes[self.channel] > 1
        self.seq = np.array([row.seq for row in rows], np.int64)
        self.count = np.array([row.count for row in rows], np.int64)
        self.width = np.array([row.width for row in rows], np.int64)
        self.uneven = [i for i, row in enumerate(rows) if row.uneven]
        self.peers = [i for i, row in enumerate(rows) if row.peer_stage is not None or row.ring]


class _Table:
    """What the recording says of each row and rank of one part: views [ranks, rows] until rewritten."""

    def __init__(
        self,
        columns: _Columns,
        part: Recorded,
        ranks: NDArray[np.int64],
        used: dict[Channel, int],
        skipped: dict[Channel, NDArray[np.int64]],
    ) -> None:
        self.part, self.rows, self.ranks = part, part.program.rows, ranks
        self.cluster, self.numbering = columns.cluster, columns.numbering
        self.shape = (len(ranks), len(self.rows))
        static = columns.rows_of(part.program)
        base = np.array([used.get(channel, 0) for channel in Channel], np.int64)
        seq = np.where(static.counting, static.seq + base[static.channel], 0)
        self._columns: dict[str, NDArray[Any]] = {
            name: np.broadcast_to(values, self.shape)
            for name, values in (("op", static.op), ("seq", seq), ("flags", static.flags))
        }
        self._counts(static)
        self._places(static)
        for channel, lost in skipped.items():
            inside = np.array([row.channel is channel for row in self.rows], bool)
            self._columns["seq"] = self._columns["seq"] - lost[:, None] * inside

    def _counts(self, static: _Rows) -> None:
        count = np.broadcast_to(static.count, self.shape)
        nbytes = np.broadcast_to(static.count * static.width, self.shape)
        if self.part.counts is not None:
            count = count.copy()
            count[:, static.uneven] = self.part.counts.T
            nbytes = count * static.width
        self._columns["count"] = count
        self._columns["nbytes"] = nbytes

    def _places(self, static: _Rows) -> None:
        comm = np.stack([self.numbering.of[channel][self.ranks] for channel in Channel])
        self._columns["comm"] = comm[static.channel].T
        streams = np.stack([self._stream(channel) for channel in Channel]).astype(np.uint64)
        self._columns["stream"] = streams[static.channel].T
        peer = np.full(self.shape, NO_PEER, np.int32)
        here = self.part.program.stage
        grid = self.cluster.grid
        ring = {step: np.roll(grid[here], -step, axis=1).reshape(-1) for step in (1, -1)}
        for index in static.peers:
            row = self.rows[index]
            peer[:, index] = ring[row.ring] if row.peer_stage is None else grid[row.peer_stage].reshape(-1)
        self._columns["peer"] = peer

    def column(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def _own(self, name: str) -> NDArray[Any]:
        values = np.array(self._columns[name])
        self._columns[name] = values
        return values

    def rewrite(self, index: int, rewrite: Rewrite) -> None:
        """Makes one rank's row look like another one, or scales its elements."""
        here = self.rows[rewrite.row]
        if rewrite.instead is not None:
            there = self.rows[rewrite.instead]
            values = {"op": int(there.op), "count": there.count, "nbytes": there.count * there.width}
            if there.channel is not here.channel:
                # Another communicator has its own numbers; calls that change places within one keep theirs.
                values["seq"] = int(self._columns["seq"][index, rewrite.instead])
                values["comm"] = int(self.numbering.of[there.channel][self.ranks[index]])
                values["stream"] = int(self._stream(there.channel)[index])
            for name, value in values.items():
                self._own(name)[index, rewrite.row] = value
        if rewrite.factor != 1.0:
            elements = max(int(here.count * rewrite.factor), 1)
            elements += elements == here.count  # half of one element is one: it has to differ
            self._own("count")[index, rewrite.row] = elements
            self._own("nbytes")[index, rewrite.row] = elements * here.width

    def _stream(self, channel: Channel) -> NDArray[np.int64]:
        # Handles lie some kilobytes apart and differ between processes.
        return STREAM_BASE + (self.ranks % 251) * 0x9E70 + list(Channel).index(channel) * 0x16B0

    def skip(self, index: int, skip: Skip) -> None:
        """Calls after the one left out have numbers one lower on its channel."""
        channel = self.rows[skip.row].channel
        values = self._own("seq")
        later = [i for i in range(skip.row + 1, len(self.rows)) if self.rows[i].channel is channel]
        values[index, later] = values[index, later].astype(np.int64) - 1


def _coalesced(rows: tuple[Row, ...], index: int) -> int:
    """COALESCED for rows that share their instruction with another one."""
    row = rows[index]
    near = rows[max(index - 1, 0) : index] + rows[index + 1 : index + 2]
    return int(any(other.instruction == row.instruction for other in near))
