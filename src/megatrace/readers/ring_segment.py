"""Kept parts of rings (``collect.spool``, ``collect.archive``): Arrow and Parquet files back into rings.

Is no reader of its own: the readers of rings take their parts as they take the rings.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.ringformat import FAMILY, MAX_BYTES, RECORD, SEGMENT, STEP_NS, Ring, parse_ring
from megatrace.model.ringpacked import ring_of
from megatrace.units import NS_PER_S, say_ranks

ARROW, PARQUET = b"ARROW1", b"PAR1"
MARK = "ring"
"""The first column of a Parquet file: the head of the ring, which so stands in the first bytes."""
HEAD_BYTES = 65_536
MAX_RECORDS = MAX_BYTES // RECORD.itemsize
ROOM = 1 << 16
"""Bytes of columns beside their values: each is padded to 64."""
_TOO_MANY = (
    f"it says {{:,}} records of {{:,}} bytes; the largest ring has {MAX_RECORDS:,} of {RECORD.itemsize}"
)
_PREFIX = 8
"""Bytes of an Arrow file before its stream of messages."""
_SCHEMA, _BATCH = 1, 3
"""Kinds of messages (``MessageHeader`` of Arrow's format)."""


def is_ring(head: bytes, source: bytes) -> bool:
    """Whether a file that begins so is a ring, or a part of one, that ``source`` wrote."""
    if head.startswith(FAMILY):
        return source in head[:4096]
    return (
        head.startswith((ARROW, PARQUET))
        and SEGMENT in head[:HEAD_BYTES]
        and (source.replace(b'"', b"") in head[:HEAD_BYTES])
    )


def read_ring(data: bytes, name: str) -> Ring:
    """A ring or a part of one. Raises ValueError, KeyError, TypeError, struct.error where it is neither."""
    if data.startswith(FAMILY):
        return parse_ring(data, name)
    import pyarrow as pa

    try:
        columns, told = _parquet(data) if data.startswith(PARQUET) else _arrow(data)
        if any(column.dtype.kind not in "iu" for column in columns.values()):
            raise ValueError("its columns are not whole numbers")
        return ring_of(columns, told, name)
    except (pa.ArrowException, zlib.error, OSError) as error:
        kind = "Parquet" if data.startswith(PARQUET) else "Arrow"
        raise ValueError(f"it is cut or no {kind} file: {error}") from None


def _arrow(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The stream of batches inside the file: the footer, which may name other ones, is not needed."""
    import pyarrow as pa

    if not data.endswith(ARROW):
        raise ValueError("it is cut")
    rows = unpacked = 0
    for kind, length, size in _batches(data):
        rows, unpacked = rows + length, unpacked + size
        if kind != _BATCH or length < 0 or rows > MAX_RECORDS or unpacked > ROOM + 2 * rows * RECORD.itemsize:
            raise ValueError(_TOO_MANY.format(rows, unpacked))
    with pa.ipc.open_stream(pa.BufferReader(data).read_buffer()[_PREFIX:]) as stream:
        table = stream.read_all()
        told = json.loads(stream.schema.metadata[SEGMENT])
    return {name: table.column(name).to_numpy() for name in table.column_names}, told


def _batches(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(kind of message, rows, bytes unpacked) of each, from its head, without unpacking anything: a file of a
    kilobyte may say that it holds a terabyte. Layout: Arrow's ``Message.fbs`` and its IPC format."""
    import pyarrow as pa

    source = pa.BufferReader(data).read_buffer()[_PREFIX:]
    for message in pa.ipc.MessageReader.open_stream(source):
        head = memoryview(message.metadata.to_pybytes())
        root = _number(head, "<I", 0)
        kind = _number(head, "<B", _field(head, root, 1))
        if kind == _SCHEMA:
            continue
        at = _field(head, root, 2)
        batch = at + _number(head, "<I", at)
        body = memoryview(message.body)
        place = _field(head, batch, 2)
        buffers = place + _number(head, "<I", place)
        size = 0
        for index in range(_number(head, "<I", buffers)):
            start, packed = struct.unpack_from("<qq", head, buffers + 4 + 16 * index)
            size += max(packed, _number(body, "<q", start) if packed >= 8 else 0)
        yield kind, _number(head, "<q", _field(head, batch, 0)), size


def _field(head: memoryview, table: int, number: int) -> int:
    """Where a field of a table of flatbuffers stands. Raises ValueError where it is left out."""
    fields = table - _number(head, "<i", table)
    if 4 + 2 * number >= _number(head, "<H", fields):
        raise ValueError("a head without the usual fields")
    offset = _number(head, "<H", fields + 4 + 2 * number)
    if not offset:
        raise ValueError("a head without the usual fields")
    return table + offset


def _number(data: memoryview, form: str, at: int) -> int:
    if at < 0:
        raise ValueError("a head that points before its start")
    (value,) = struct.unpack_from(form, data, at)
    return int(value)


def _parquet(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Columns that never change are words of the head."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(io.BytesIO(data)) as file:
        rows, groups = file.metadata.num_rows, file.metadata.num_row_groups
        unpacked = sum(file.metadata.row_group(at).total_byte_size for at in range(groups))
        if not 0 <= rows <= MAX_RECORDS or unpacked > MAX_BYTES:
            raise ValueError(_TOO_MANY.format(rows, unpacked))
        table = file.read()
    told = json.loads(str(table.column(MARK)[0]).removeprefix(SEGMENT.decode()))
    n = int(told["records"])
    if n != table.num_rows:
        raise ValueError("it says another number of records than it has")
    columns = {name: table.column(name).to_numpy() for name in table.column_names if name != MARK}
    return columns | {str(name): np.full(n, value) for name, value in told["constant"].items()}, told


def notes_of(rings: Sequence[Ring]) -> list[str]:
    """What the headers tell that a reader of the verdict has to know: clocks that were set, other jobs, other
    releases of NCCL."""
    notes = []
    steps = {ring.host: ring.stepped for ring in rings if abs(ring.stepped) >= STEP_NS}
    for host, step in sorted(steps.items()):
        notes.append(
            f"The clock of {host} was set by {step / NS_PER_S:+,.3f} s while the job ran; all its times are "
            "given on the clock as it was set last."
        )
    jobs = sorted({job for ring in rings for job in [ring.word("job")] if job})
    if len(jobs) > 1:
        notes.append(f"The rings are of several jobs: {', '.join(jobs[:4])}; they are read as one.")
    releases: dict[str, set[int]] = {}
    for ring in rings:
        release = ring.word("nccl")
        if release and ring.rank is not None:
            releases.setdefault(release, set()).add(ring.rank)
    if len(releases) > 1:
        said = "; ".join(f"{name} on {say_ranks(sorted(ranks))}" for name, ranks in sorted(releases.items()))
        notes.append(f"NCCL is not the same on all ranks: {said}.")
    return notes
