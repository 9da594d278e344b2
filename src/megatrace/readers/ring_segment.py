"""Spooled parts of rings (``collect.spool``): Arrow IPC files back into the ring that they are of.

Is no reader of its own: the readers of rings take their parts as they take the rings.
"""

from __future__ import annotations

import base64
import io
import json
import zlib

import numpy as np

from megatrace.model.ringformat import MAGIC, RECORD, SEGMENT, Ring, parse_ring

ARROW = b"ARROW1"


def is_ring(head: bytes, source: bytes) -> bool:
    """Whether a file that begins so is a ring, or a part of one, that ``source`` wrote."""
    if head.startswith(MAGIC):
        return source in head[:4096]
    return head.startswith(ARROW) and SEGMENT in head[:65_536] and source.replace(b'"', b"") in head[:65_536]


def read_ring(data: bytes, name: str) -> Ring:
    """A ring or a part of one. Raises ValueError, KeyError, TypeError, struct.error where it is neither."""
    if data.startswith(MAGIC):
        return parse_ring(data, name)
    import pyarrow as pa

    try:
        with pa.ipc.open_file(io.BytesIO(data)) as file:
            table = file.read_all()
            told = json.loads(file.schema.metadata[SEGMENT])
    except (pa.ArrowException, zlib.error) as error:
        raise ValueError(f"it is cut or no Arrow file: {error}") from None
    columns = {key: table.column(key).to_numpy() for key in RECORD.names or ()}
    records = np.zeros(table.num_rows, RECORD)
    for key in ("seq", "time"):
        columns[key] = np.cumsum(columns[key])
    for key, column in columns.items():
        records[key] = column
    if told["ends"]:  # kept as the time since the call
        done = records["stream"] > 0
        records["stream"][done] += records["time"][done] - np.uint64(told["offset"])
    kept = np.frombuffer(zlib.decompress(base64.b64decode(told["kept"])), RECORD)
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
        kept,
    )
