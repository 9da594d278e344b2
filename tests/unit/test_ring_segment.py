"""Kept parts of rings that lie about their size: refused before anything is unpacked."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megatrace.collect import archive
from megatrace.collect.spool import pack
from megatrace.errors import TraceError
from megatrace.model.ringformat import RECORD, SEGMENT, Ring
from megatrace.readers import ring_segment
from megatrace.readers.opening import open_trace
from megatrace.readers.ring_segment import read_ring


def ring_of(n: int) -> Ring:
    records = np.zeros(n, RECORD)
    records["seq"] = np.arange(1, n + 1)
    records["time"] = np.arange(n) * 1000 + 10**18
    records["kind"], records["op"], records["source"] = 1, 1, 3
    about = {"boot": "x", "device": "0000:3b:00.0", "argv": ["train"]}
    return Ring("r", 0, "h", 7, 0, 10**18, 5, 0, records, records[:1], about, 9, 11)


@pytest.mark.parametrize("write", [lambda ring: pack(ring, ring.records), archive.archived])
def test_a_part_gives_back_records_clocks_and_head(write: object) -> None:
    assert callable(write)
    ring = ring_of(100)
    again = read_ring(write(ring), "part")
    assert (again.records == ring.records).all()
    assert (again.offset, again.anchored, again.stepped) == (5, 9, 11)
    assert again.about == {"boot": "x", "device": "0000:3b:00.0"}


def test_an_arrow_part_that_says_too_many_rows_is_refused_without_unpacking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pack(ring_of(300), ring_of(300).records)
    monkeypatch.setattr(ring_segment, "MAX_RECORDS", 299)
    monkeypatch.setattr(pa.ipc, "open_stream", None)
    with pytest.raises(ValueError, match="it says 300 records of"):
        read_ring(data, "part")


def test_an_arrow_part_whose_columns_unpack_to_more_than_its_rows_is_refused(tmp_path: Path) -> None:
    """A megabyte of zeros packs into some ten bytes; the length of a column stands before it."""
    data = bytearray(pack(ring_of(300), ring_of(300).records))
    at = data.find(struct.pack("<q", 2400))  # bytes of an int64 column of 300 rows
    assert at > 0
    struct.pack_into("<q", data, at, 1 << 40)
    with pytest.raises(ValueError, match=r"records of 1,099,511,\d\d\d,\d\d\d bytes; the largest ring has"):
        read_ring(bytes(data), "part")
    (tmp_path / "nccl-h-7-00000001.arrow").write_bytes(bytes(data))
    with pytest.raises(TraceError, match="the largest ring has"):
        open_trace([tmp_path])


def test_a_parquet_part_that_says_too_many_rows_is_refused_without_unpacking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = archive.archived(ring_of(300))
    monkeypatch.setattr(ring_segment, "MAX_RECORDS", 299)
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    with pytest.raises(ValueError, match="it says 300 records of"):
        read_ring(data, "part")


def test_damaged_parts_give_a_ring_or_a_reason() -> None:
    generator = np.random.default_rng(11)
    whole = pack(ring_of(50), ring_of(50).records)
    for _ in range(300):
        data = bytearray(whole)
        for at in generator.integers(8, len(data), 3).tolist():
            data[at] = int(generator.integers(256))
        try:
            read_ring(bytes(data), "part")
        except (ValueError, KeyError, TypeError, OverflowError, struct.error, RecursionError):
            continue


def test_a_part_that_is_another_table_is_refused() -> None:
    table = pa.table({"a": [1]}).replace_schema_metadata({SEGMENT: json.dumps({"version": 2}).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises((ValueError, KeyError)):
        read_ring(bytes(sink.getvalue()), "part")
