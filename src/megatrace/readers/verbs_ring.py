"""Rings of RDMA work requests (``native/work_requests_ring.cc``): series of paths, completions that failed.

Where a rank's work requests were not recorded, the requests of NCCL's proxy stand in (``step_paths``).

A path is what all queue pairs between two ports share. Of each: how many requests and bytes were on the way,
and the bandwidth while any were; the recorder sums these up for each queue pair, so nothing is lost where it
left samples out or the ring went round. A port is called by its node, device and number where one of the
rings belongs to it, else by its address.
"""

from __future__ import annotations

import ipaddress
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import TraceError
from megatrace.model.events import Events
from megatrace.model.ringformat import MAX_BYTES, Ring, merged
from megatrace.model.series import FactKind, LogFact, Series, SeriesKind
from megatrace.model.trace import Coverage, InputInfo, Trace
from megatrace.readers import registry, step_paths
from megatrace.readers.ring_segment import is_ring, notes_of, read_ring
from megatrace.readers.source import ReadOptions, Source
from megatrace.units import say_ranks

SOURCE = b'"source": "verbs"'
ANCHOR, SAMPLE, ERROR, DEVICE, PATH = 6, 10, 11, 12, 13
BINS = 4_000
"""Points of a series at most: more than a screen has columns."""
BIN_NS = 50_000_000
"""A bin must see many messages come and go, or its bandwidth is that of one: NCCL sends some 0.5 MB at a
time, which takes 10 µs at 400 Gb/s and 4 ms at 1 Gb/s."""
ROCE = 0x0000_FFFF
"""High half of the low half of a GID that holds an IPv4 address (RoCE v2)."""

STATUS = {
    4: "local protection error",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retry counter exceeded",
    13: "receiver not ready, retries exceeded",
    21: "response time-out",
}
"""Names of ``ibv_wc_status`` that matter; 5 (flushed) only echoes an earlier one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a queue pair leads: addresses are low halves of GIDs, 0 where not known."""

    device: str
    port: int
    own: int
    other: int
    lid: int
    peer_qp: int


@registry.register(
    "verbs", summary="rings of RDMA work requests: queue depth, bytes and bandwidth of each path"
)
class VerbsRingReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._rings: list[Ring] = []
        self._steps: list[Ring] = []
        self._notes: list[str] = []

    def refuses(self, head: bytes) -> str | None:
        """The first bytes of a ring, and who wrote it."""
        if is_ring(head, SOURCE) or is_ring(head, step_paths.SOURCE):
            return None
        return "not a ring of work requests"

    def add(self, source: Source) -> None:
        """Reads one ring."""
        data = source.read_whole(self._limit)
        try:
            rings = self._steps if is_ring(source.head, step_paths.SOURCE) else self._rings
            rings.append(read_ring(data, source.name))
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError, struct.error) as error:
            self._notes.append(f"{source.name} was not read: it {source.damage or f'is damaged ({error})'}.")

    def finish(self) -> Trace:
        """A Trace of series and facts, without calls. Raises TraceError where no ring could be read."""
        if not self._rings and not self._steps:
            raise TraceError(" ".join(self._notes) or "no ring of work requests was read")
        self._rings = merged(self._rings)
        places = [places_of(ring) for ring in self._rings]
        known = {
            place.own: f"{ring.host} {place.device}/{place.port}"
            for ring, here in zip(self._rings, places, strict=True)
            for place in here.values()
            if place.own
        }
        series: list[Series] = []
        facts: list[LogFact] = []
        for ring, here in zip(self._rings, places, strict=True):
            names = {key: path_name(ring, place, known) for key, place in here.items()}
            series += series_of(ring, here, names)
            facts += facts_of(ring, here, names)
        proxies = merged(self._steps)
        members = step_paths.members_of(proxies)
        steps = step_paths.out_of_reach(proxies, self._rings)
        for ring in steps:
            names = step_paths.names_of(ring, members)
            series += series_of(replace(ring, records=step_paths.samples_of(ring)), {}, names)
        if steps:
            ranks = say_ranks(sorted({ring.rank for ring in steps if ring.rank is not None}))
            self._notes.append(
                f"The queues of {ranks} are those of NCCL's proxy: their work requests were not recorded."
            )
        rings = [*self._rings, *steps]
        self._notes += notes_of(rings)
        return Trace(
            Events.empty(),
            coverage=Coverage(notes=tuple(self._notes)),
            inputs=tuple(InputInfo(ring.name, "verbs", frozenset(), 1) for ring in rings),
            series=tuple(series),
            facts=tuple(facts),
            snapshot_at=watched_until(self._rings),
        )


def watched_until(rings: Sequence[Ring]) -> int | None:
    """ns: when a process last polled a completion queue and found it watched; None where none told so."""
    times = [ring.records["time"][ring.records["kind"] == ANCHOR] for ring in rings]
    return max((int(found.max()) for found in times if len(found)), default=None)


def places_of(ring: Ring) -> dict[int, Place]:
    """Where each queue pair leads, by its key; the last connection counts."""
    devices: dict[int, str] = {}
    found: dict[int, Place] = {}
    for record in ring.kept:
        key = int(record["stream"])
        if record["kind"] == DEVICE:
            raw = int(record["comm"]).to_bytes(8, "little") + int(record["number"]).to_bytes(8, "little")
            devices[key >> 32] = raw.rstrip(b"\0").decode("ascii", "replace")
        elif record["kind"] == PATH:
            found[key] = Place(
                devices.get(key >> 32, f"device {key >> 32}"),
                int(record["channel"]),
                int(record["number"]),
                int(record["comm"]),
                int(record["peer"]),
                int(record["flags"]),
            )
    return found


def path_name(ring: Ring, place: Place, known: Mapping[int, str]) -> str:
    """``source → destination``."""
    source = f"{ring.host} {place.device}/{place.port}"
    return f"{source} → {known.get(place.other) or address(place)}"


def address(place: Place) -> str:
    """A port that none of the rings belongs to."""
    if place.other >> 32 == ROCE:
        return str(ipaddress.IPv4Address(place.other & 0xFFFF_FFFF))
    return f"port {place.other:#018x}" if place.other else f"LID {place.lid}"


def series_of(ring: Ring, places: Mapping[int, Place], names: Mapping[int, str]) -> list[Series]:
    """Depth, outstanding bytes and bandwidth of every path of one process."""
    samples = ring.records[ring.records["kind"] == SAMPLE]
    if not len(samples):
        return []
    by_path: dict[str, list[int]] = defaultdict(list)
    for key in np.unique(samples["stream"]).tolist():
        by_path[names.get(key, f"{ring.host} queue pair {key & 0xFFFF_FFFF} → not known")].append(key)
    first, last = int(samples["time"][0]), int(samples["time"].max())
    width = max(BIN_NS, (last - first) // BINS + 1)
    found: list[Series] = []
    for name, keys in by_path.items():
        mine = samples[np.isin(samples["stream"], np.array(keys, np.uint64))]
        device = places[keys[0]].device if keys[0] in places else None
        times, columns = _binned(mine, keys, first, width, ring.lost > 0)
        for kind, values in columns.items():
            found.append(Series(kind, name, ring.rank, ring.host, device, times, values))
    return found


def _binned(
    samples: NDArray[np.void], keys: Sequence[int], first: int, width: int, cut: bool
) -> tuple[NDArray[np.int64], dict[SeriesKind, NDArray[np.float64]]]:
    """Sums over the queue pairs of a path, one value a bin in which any of them was sampled."""
    time = samples["time"].astype(np.int64)
    bins, where = np.unique((time - first) // width, return_inverse=True)
    n = len(bins)
    times = np.zeros(n, np.int64)
    np.maximum.at(times, where, time)
    depth, outstanding, moved, busy = (np.zeros(n) for _ in range(4))
    for key in keys:
        own = np.flatnonzero(samples["stream"] == np.uint64(key))
        at = where[own]
        last = np.append(at[1:] != at[:-1], True)  # the last sample of each bin
        rows, slots = own[last], at[last]
        slot = np.searchsorted(slots, np.arange(n), "right") - 1  # a queue keeps its state between samples
        seen = slot >= 0
        safe = rows[np.maximum(slot, 0)]
        depth += np.where(seen, samples["flags"][safe], 0)
        outstanding += np.where(seen, samples["nbytes"][safe].astype(np.float64), 0)
        total, busy_ns = samples["number"][rows].astype(np.int64), samples["comm"][rows].astype(np.int64)
        origin = (total[0], busy_ns[0]) if cut else (0, 0)
        moved[slots] += np.diff(total, prepend=origin[0])
        busy[slots] = np.maximum(busy[slots], np.diff(busy_ns, prepend=origin[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        bandwidth = np.where(busy > 0, moved / busy * 1e9, np.nan)
    return times, {
        SeriesKind.QUEUE_DEPTH: depth,
        SeriesKind.OUTSTANDING_BYTES: outstanding,
        SeriesKind.BANDWIDTH: bandwidth,
    }


def facts_of(ring: Ring, places: Mapping[int, Place], names: Mapping[int, str]) -> list[LogFact]:
    """The first failed completion of every queue pair."""
    found = []
    for record in ring.records[ring.records["kind"] == ERROR]:
        key, status = int(record["stream"]), int(record["peer"])
        what = STATUS.get(status, "work request failed")
        path = names.get(key, f"{ring.host} queue pair {key & 0xFFFF_FFFF}")
        text = f"{path}: {what} (status {status}, vendor error {int(record['flags'])})"
        device = places[key].device if key in places else None
        time = int(record["time"])
        found.append(
            LogFact(
                FactKind.NETWORK_ERROR,
                text,
                time,
                ring.rank,
                ring.host,
                device,
                status,
                name="work_request",
                fields=(("path", path), ("what", what), ("vendor", int(record["flags"]))),
                source=ring.name,
            )
        )
    return found
