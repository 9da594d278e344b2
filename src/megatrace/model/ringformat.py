"""The file that our recorders leave behind: a header, places that are kept, and a ring of records.

Written while the job runs, possibly to the moment it was killed: a record counts only where its number
belongs to its place, and only the last uninterrupted run of numbers counts. What the columns of a record mean
depends on who wrote it (``torch_ring``, ``verbs_ring``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION = 1
FAMILY = b"MTRING\x00"
"""What a ring of any version begins with."""
MAGIC = FAMILY + bytes([VERSION])
HEAD = struct.Struct("<8sIIQQQI")
RECORD = np.dtype(
    [
        ("seq", "<u8"),
        ("time", "<u8"),
        ("comm", "<u8"),
        ("number", "<u8"),
        ("nbytes", "<u8"),
        ("stream", "<u8"),
        ("flags", "<u4"),
        ("peer", "<i4"),
        ("kind", "u1"),
        ("op", "u1"),
        ("dtype", "u1"),
        ("channel", "u1"),
        ("thread", "<u2"),
        ("source", "<u2"),
    ]
)
MAX_BYTES = 4096 + (64 << 26)
"""The largest ring that can be asked for."""
ANCHOR = struct.Struct("<qQ")
ANCHOR_AT = 4064
"""CLOCK_REALTIME − CLOCK_MONOTONIC, and CLOCK_MONOTONIC when that was read, both ns; 0 where the writer reads
them only once."""
KEPT_AT = 4096
"""Where the places that are kept begin; the ring begins behind them."""
STEP_NS = 1_000_000
"""A larger change of the difference of both clocks is somebody setting the clock: NTP slews both alike, and
two readings are some 100 ns apart."""

SEGMENT = b"megatrace.ring"
"""Key in the metadata of a spooled part of a ring (``collect.spool``), an Arrow IPC file."""


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """One ring: ``records`` in the order in which they were written, times in ns since the epoch.

    ``kept`` are records that the ring does not write over. ``rank`` and ``local_rank`` None where the process
    was not told; ``offset`` is what was added to the times, ns: one number for all of them, so that a clock
    that is set while the job runs bends nothing. ``anchored`` is when it was read last, ns since the boot;
    ``stepped`` is by how much the clock was set while the job ran. ``about`` is what the header tells.
    """

    name: str
    rank: int | None
    host: str
    pid: int
    local_rank: int | None
    started: int
    offset: int
    lost: int
    records: NDArray[np.void]
    kept: NDArray[np.void]
    about: Mapping[str, Any] = field(default_factory=dict)
    anchored: int = 0
    stepped: int = 0

    @property
    def begin(self) -> int:
        """When it was opened, ns since the epoch on the clock of its times."""
        return self.started + self.stepped

    def word(self, key: str) -> str | None:
        """A word of the header, None where it is absent or none."""
        value = self.about.get(key)
        return value if isinstance(value, str) and value else None

    def count(self, key: str) -> int | None:
        """A whole number of the header, None where it is absent or none."""
        return _count(self.about.get(key))

    def moved(self, offset: int) -> Ring:
        """The same with another difference of the clocks."""
        records = self.records.copy()
        records["time"] += np.uint64((offset - self.offset) % (1 << 64))
        return replace(self, offset=offset, stepped=self.stepped + offset - self.offset, records=records)


def parse_ring(data: bytes, name: str) -> Ring:
    """One ring file. Raises ValueError, struct.error where it is none or of another version."""
    magic, header, size, capacity, real, monotonic, length = HEAD.unpack_from(data)
    if magic.startswith(FAMILY) and magic != MAGIC:
        raise ValueError(f"it is of version {magic[-1]}, and this MegaTrace reads version {VERSION}")
    if magic != MAGIC or size != RECORD.itemsize or not KEPT_AT <= header <= len(data):
        raise ValueError("its header is of another version")
    told = json.loads(data[HEAD.size : HEAD.size + length].decode("utf-8", "replace"))
    offset, anchored = ANCHOR.unpack_from(data, ANCHOR_AT)
    offset = offset if anchored else real - monotonic
    whole = min(int(capacity), (len(data) - header) // size)
    records = np.frombuffer(data, RECORD, whole, header)
    # A record is whole where its number belongs to its place; the number is written last.
    at = np.flatnonzero(records["seq"])
    at = at[(records["seq"][at] - np.uint64(1)) % np.uint64(max(int(capacity), 1)) == at.astype(np.uint64)]
    at = at[np.argsort(records["seq"][at])]
    records = records[at].copy()
    records["time"] += np.uint64(offset % (1 << 64))
    kept = np.frombuffer(data, RECORD, (header - KEPT_AT) // size, KEPT_AT)
    # Records of the lap before the last that were not yet written over may have been by now: only the last
    # uninterrupted run counts.
    breaks = np.flatnonzero(np.diff(records["seq"].astype(np.int64)) != 1)
    if len(breaks):
        records = records[int(breaks[-1]) + 1 :]
    lost = int(records["seq"][0]) - 1 if len(records) else 0
    return Ring(
        name,
        _count(told.get("rank")),
        str(told.get("host", "")),
        int(told["pid"]),
        _count(told.get("local_rank")),
        real,
        offset,
        lost,
        records,
        kept[kept["seq"] != 0],
        told,
        anchored,
        offset - (real - monotonic),
    )


def merged(rings: Sequence[Ring]) -> list[Ring]:
    """One ring a process, of the parts that were spooled of it and the ring itself; in order of their start.

    Of a record that stands in several the one from the newest part counts: its call may have ended since.
    All rings of one boot of a machine get the same difference of its clocks, the one that was read last.
    """
    groups: dict[tuple[str, int, int], list[Ring]] = {}
    for ring in rings:
        groups.setdefault((ring.host, ring.pid, ring.started), []).append(ring)
    found = []
    for parts in groups.values():
        if len(parts) == 1:
            found.append(parts[0])
            continue
        parts = sorted(parts, key=lambda part: int(part.records["seq"][-1]) if len(part.records) else 0)
        parts = [part.moved(parts[-1].offset) for part in parts]
        records = np.concatenate([part.records for part in parts])
        order = np.argsort(records["seq"], kind="stable")
        records = records[order]
        last = np.append(records["seq"][1:] != records["seq"][:-1], len(records) > 0)[-len(records) :]
        records = records[last]
        lost = int(records["seq"][-1]) - len(records) if len(records) else 0
        kept = max((part.kept for part in parts), key=len)
        found.append(replace(parts[-1], records=records, lost=lost, kept=kept))
    return sorted(_one_clock(found), key=lambda ring: ring.begin)


def _one_clock(rings: Sequence[Ring]) -> list[Ring]:
    """A ring whose process ended, or stood still, before the clock was set does not know that it was."""
    newest: dict[tuple[str, str], Ring] = {}
    for ring in rings:
        boot = ring.word("boot")
        if boot is not None:
            known = newest.setdefault((ring.host, boot), ring)
            if ring.anchored > known.anchored:
                newest[ring.host, boot] = ring
    found = []
    for ring in rings:
        latest = newest.get((ring.host, ring.word("boot") or ""), ring)
        found.append(ring.moved(latest.offset) if abs(latest.offset - ring.offset) >= STEP_NS else ring)
    return found


def _count(value: object) -> int | None:
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9
        else None
    )
