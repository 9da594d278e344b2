"""Kept parts of rings (``collect.spool``, ``collect.archive``): Arrow and Parquet files back into rings.

Is no reader of its own: the readers of rings take their parts as they take the rings.
"""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.ringformat import MAGIC, MAX_BYTES, RECORD, SEGMENT, Ring, parse_ring
from megatrace.model.ringpacked import ring_of

ARROW, PARQUET = b"ARROW1", b"PAR1"
MARK = "ring"
"""The first column of a Parquet file: the head of the ring, which so stands in the first bytes."""
HEAD_BYTES = 65_536


def is_ring(head: bytes, source: bytes) -> bool:
    """Whether a file that begins so is a ring, or a part of one, that ``source`` wrote."""
    if head.startswith(MAGIC):
        return source in head[:4096]
    return (
        head.startswith((ARROW, PARQUET))
        and SEGMENT in head[:HEAD_BYTES]
        and (source.replace(b'"', b"") in head[:HEAD_BYTES])
    )


def read_ring(data: bytes, name: str) -> Ring:
    """A ring or a part of one. Raises ValueError, KeyError, TypeError, struct.error where it is neither."""
    if data.startswith(MAGIC):
        return parse_ring(data, name)
    import pyarrow as pa

    try:
        columns, told = _parquet(data) if data.startswith(PARQUET) else _arrow(data)
        return ring_of(columns, told, name)
    except (pa.ArrowException, zlib.error, OSError) as error:
        kind = "Parquet" if data.startswith(PARQUET) else "Arrow"
        raise ValueError(f"it is cut or no {kind} file: {error}") from None


def _arrow(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    import pyarrow as pa

    with pa.ipc.open_file(io.BytesIO(data)) as file:
        table = file.read_all()
        told = json.loads(file.schema.metadata[SEGMENT])
    return {name: table.column(name).to_numpy() for name in table.column_names}, told


def _parquet(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Columns that never change are words of the head."""
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    told = json.loads(str(table.column(MARK)[0]).removeprefix(SEGMENT.decode()))
    n = int(told["records"])
    if not 0 <= n <= MAX_BYTES // RECORD.itemsize or n != table.num_rows:
        raise ValueError("it says another number of records than it has")
    columns = {name: table.column(name).to_numpy() for name in table.column_names if name != MARK}
    return columns | {str(name): np.full(n, value) for name, value in told["constant"].items()}, told
