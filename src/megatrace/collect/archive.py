"""Packs what was recorded of one process into one Parquet file, for years rather than for minutes.

A spool is many small parts, each of which must stand alone, and a ring is mostly empty room. Once a process
has ended, or has filled enough parts, its records go into one file: columns of differences
(``model.ringpacked``), times byte by byte beside each other (what two successive times share then stands
together), the rest as runs in a dictionary, all under zstd; a column that never changes is a word of the
head. Two kilobytes and some seven bytes a record where the ends of calls are kept, three where they are
not: less than an eighth of the records from about two thousand of them on.

Any Parquet tool opens it. What the columns mean is in ``model.ringformat``.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megatrace.model.ringformat import SEGMENT, Ring
from megatrace.model.ringpacked import differences, head_of

ENDING = ".parquet"
MARK = "ring"
"""The first column. It holds one text, the head of the ring in JSON, uncompressed: so the first bytes of the
file say what it is."""
LEVEL = 9
"""Of zstd: a third smaller than its usual level, and a ring is packed in some ten milliseconds."""


def archived(ring: Ring) -> bytes:
    """The records of a ring as a Parquet file. Raises ValueError where there is none."""
    if not len(ring.records):
        raise ValueError("a ring without records is not archived")
    columns = differences(ring, ring.records)
    constant = {name: int(column[0]) for name, column in columns.items() if bool((column == column[0]).all())}
    told = head_of(ring, ring.records) | {"constant": constant, "records": len(ring.records)}
    word = f"{SEGMENT.decode()} {json.dumps(told)}"
    kept = {name: column for name, column in columns.items() if name not in constant}
    once = pa.DictionaryArray.from_arrays(np.zeros(len(ring.records), np.int32), [word])
    table = pa.table({MARK: once, **kept})
    split = [name for name in kept if name == "time" or (name == "stream" and told["ends"])]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=len(ring.records),
        compression={name: "none" if name == MARK else "zstd" for name in table.column_names},
        compression_level=dict.fromkeys(kept, LEVEL),
        use_dictionary=[name for name in table.column_names if name not in split],
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        store_schema=False,
    )
    return bytes(sink.getvalue())
