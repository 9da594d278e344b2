"""The file that our recorders leave behind: a header, places that are kept, and a ring of records.

Written while the job runs, possibly to the moment it was killed: a record counts only where its number
belongs to its place, and only the last uninterrupted run of numbers counts. What the columns of a record mean
depends on who wrote it (``torch_ring``, ``verbs_ring``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

MAGIC = b"MTRING\x00\x01"
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
KEPT_AT = 4096
"""Where the places that are kept begin; the ring begins behind them."""


SEGMENT = b"megatrace.ring"
"""Key in the metadata of a spooled part of a ring (``collect.spool``), an Arrow IPC file."""


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """One ring: ``records`` in the order in which they were written, times in ns since the epoch.

    ``kept`` are records that the ring does not write over. ``rank`` and ``local_rank`` None where the process
    was not told; ``offset`` is what was added to the times, ns.
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


def parse_ring(data: bytes, name: str) -> Ring:
    """One ring file. Raises ValueError, struct.error where it is none or of another version."""
    magic, header, size, capacity, real, monotonic, length = HEAD.unpack_from(data)
    if magic != MAGIC or size != RECORD.itemsize or not KEPT_AT <= header <= len(data):
        raise ValueError("its header is of another version")
    told = json.loads(data[HEAD.size : HEAD.size + length])
    whole = min(int(capacity), (len(data) - header) // size)
    records = np.frombuffer(data, RECORD, whole, header)
    # A record is whole where its number belongs to its place; the number is written last.
    at = np.flatnonzero(records["seq"])
    at = at[(records["seq"][at] - np.uint64(1)) % np.uint64(max(int(capacity), 1)) == at.astype(np.uint64)]
    at = at[np.argsort(records["seq"][at])]
    records = records[at].copy()
    records["time"] += np.uint64(real - monotonic)
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
        real - monotonic,
        lost,
        records,
        kept[kept["seq"] != 0],
    )


def merged(rings: Sequence[Ring]) -> list[Ring]:
    """One ring a process, of the parts that were spooled of it and the ring itself; in order of their start.

    Of a record that stands in several the one from the newest part counts: its call may have ended since.
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
        records = np.concatenate([part.records for part in parts])
        order = np.argsort(records["seq"], kind="stable")
        records = records[order]
        last = np.append(records["seq"][1:] != records["seq"][:-1], len(records) > 0)[-len(records) :]
        records = records[last]
        lost = int(records["seq"][-1]) - len(records) if len(records) else 0
        kept = max((part.kept for part in parts), key=len)
        found.append(replace(parts[-1], records=records, lost=lost, kept=kept))
    return sorted(found, key=lambda ring: ring.started)


def _count(value: object) -> int | None:
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9
        else None
    )
