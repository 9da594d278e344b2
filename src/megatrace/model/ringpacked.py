"""Records of a ring as columns of differences, which pack to a fraction of their 64 bytes, and back.

What follows from the record before is taken off: numbers of records and times from the one before; the end of
a call from its start; the number of a call, and that of a message, from the last one of the same kind on the
same communicator, with the same peer. What is left repeats from iteration to iteration, or is small.

Writes no file: parts of rings are Arrow files (``collect.spool``) and Parquet files (``collect.archive``).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.ringformat import RECORD, Ring

TORCH, VERBS, NCCL, PRELOAD, PROXY = 1, 2, 3, 4, 5
SOURCES = {TORCH: "torch", VERBS: "verbs", NCCL: "nccl", PRELOAD: "preload", PROXY: "proxy"}
"""Who wrote a record → the word in the header of its ring."""
VERSION = 2
"""Of the columns; raised when what stands in them changes."""
NUMBERED = ("number", "flags")
"""Columns that count within a communicator, a peer, a direction."""


def differences(ring: Ring, records: NDArray[np.void]) -> dict[str, NDArray[Any]]:
    """One column for each field of a record; signed 64-bit where differences are kept."""
    columns: dict[str, NDArray[Any]] = {key: np.ascontiguousarray(records[key]) for key in RECORD.names or ()}
    if ends_inside(records):
        done = columns["stream"] > 0
        columns["stream"] = columns["stream"].astype(np.int64)
        columns["stream"][done] -= columns["time"][done].astype(np.int64) - ring.offset
    order, first = _alike(columns)
    for key in NUMBERED:
        values = columns[key].astype(np.int64)[order]
        step = np.diff(values, prepend=np.int64(0))
        step[first] = values[first]
        columns[key] = np.empty_like(step)
        columns[key][order] = step
    for key in ("seq", "time"):
        columns[key] = np.diff(columns[key].astype(np.int64), prepend=np.int64(0))
    return columns


def records_of(columns: Mapping[str, NDArray[Any]], offset: int, ends: bool) -> NDArray[np.void]:
    """The records again. Raises KeyError, ValueError where columns are missing or of other lengths."""
    full = {key: np.asarray(columns[key]) for key in RECORD.names or ()}
    records = np.zeros(len(full["seq"]), RECORD)
    for key in ("seq", "time"):
        full[key] = np.cumsum(full[key].astype(np.int64))
    order, first = _alike(full)
    for key in NUMBERED:
        step = full[key].astype(np.int64)[order]
        total = np.cumsum(step)
        begins = np.flatnonzero(first)
        before = np.where(begins > 0, total[begins - 1], 0)
        values = total - np.repeat(before, np.diff(begins, append=len(step)))
        full[key] = np.empty_like(values)
        full[key][order] = values
    for key, column in full.items():
        records[key] = column.astype(RECORD[key])
    if ends:
        done = records["stream"] > 0
        records["stream"][done] += records["time"][done] - np.uint64(offset)
    return records


def head_of(ring: Ring, records: NDArray[np.void]) -> dict[str, Any]:
    """What a part of a ring says of itself, for JSON."""
    return {
        "version": VERSION,
        "source": f"source: {SOURCES[int(records['source'][0])]}",
        "host": ring.host,
        "pid": ring.pid,
        "rank": ring.rank,
        "local_rank": ring.local_rank,
        "started": ring.started,
        "offset": ring.offset,
        "ends": ends_inside(records),
        "about": {key: value for key, value in ring.about.items() if key != "argv"},
        "anchored": ring.anchored,
        "stepped": ring.stepped,
        "kept": base64.b64encode(zlib.compress(ring.kept.tobytes())).decode(),
    }


def ring_of(columns: Mapping[str, NDArray[Any]], told: Mapping[str, Any], name: str) -> Ring:
    """The part of a ring with these columns and this head. Raises ValueError, KeyError, TypeError, zlib.error
    where it is damaged or of another version."""
    if told["version"] != VERSION:
        raise ValueError("it is of another version")
    records = records_of(columns, int(told["offset"]), bool(told["ends"]))
    return Ring(
        name,
        told["rank"],
        str(told["host"]),
        int(told["pid"]),
        told["local_rank"],
        int(told["started"]),
        int(told["offset"]),
        int(records["seq"][0]) - 1 if len(records) else 0,
        records,
        np.frombuffer(zlib.decompress(base64.b64decode(told["kept"])), RECORD),
        dict(told.get("about", {})),
        int(told.get("anchored", 0)),
        int(told.get("stepped", 0)),
    )


def ends_inside(records: NDArray[np.void]) -> bool:
    """Whether the records of a ring hold the end of their call in place of a stream."""
    return bool(len(records)) and int(records["source"][0]) == TORCH


def _alike(columns: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(order that puts records that count together beside each other, where each such run begins)."""
    keys = [columns[key].astype(np.int64) for key in ("op", "peer", "thread", "kind")]
    keys.append(columns["comm"].astype(np.uint64).view(np.int64))
    order = np.lexsort(keys)
    first = np.ones(len(order), np.bool_)
    if len(order):
        first[1:] = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    return order, first
