"""The reader of operation tables: Parquet and CSV, what is left out, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from benchmarks.optable_data import Job, operation_table
from megatrace.errors import TraceError
from megatrace.model.optable import OP_TYPES, OpTable
from megatrace.readers import registry
from megatrace.readers.opening import open_trace
from megatrace.readers.optable import NEEDED

JOB = Job(pp=2, dp=2, micro_batches=4, steps=3)


def columns(table: OpTable) -> pa.Table:
    return pa.table(
        {
            "step": table.step,
            "stage": table.stage,
            "dp_rank": table.replica,
            "rank": table.rank,
            "optype": [OP_TYPES[number].value for number in table.optype],
            "start_ts": table.start / 1e9,
            "duration": table.duration / 1e9,
            "seq_id": table.seq,
            "mc": table.chunk,
            "mb_id": table.micro_batch,
        }
    )


def read(*paths: Path) -> OpTable:
    table = open_trace(list(paths)).operations
    assert table is not None
    return table


def same(a: OpTable, b: OpTable, without: Sequence[str] = ()) -> None:
    for name in OpTable.__slots__:
        if name not in without:
            # start_ts is a float of seconds: a microsecond a decade.
            assert np.abs(getattr(a, name).astype(np.int64) - getattr(b, name)).max() <= 1_000, name


@pytest.fixture
def table() -> OpTable:
    return operation_table(JOB)[0]


def test_parquet_and_csv_hold_the_same(table: OpTable, tmp_path: Path) -> None:
    arrow = columns(table)
    pa.parquet.write_table(arrow, tmp_path / "t.parquet")
    pa.csv.write_csv(arrow, tmp_path / "t.csv")
    same(read(tmp_path / "t.parquet"), table)
    same(read(tmp_path / "t.csv"), table)


def test_numbers_and_ranks_follow_where_they_are_left_out(table: OpTable, tmp_path: Path) -> None:
    pa.parquet.write_table(columns(table).select(NEEDED), tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet")
    same(found, table, without=("chunk", "micro_batch"))
    assert (found.chunk == -1).all()


def test_files_of_several_ranks_are_one_table(table: OpTable, tmp_path: Path) -> None:
    arrow = columns(table)
    for rank in range(4):
        pa.parquet.write_table(
            arrow.filter(pa.compute.equal(arrow["rank"], rank)), tmp_path / f"{rank}.parquet"
        )
    assert len(read(tmp_path)) == len(table)


def test_rows_that_are_no_operations_are_counted(table: OpTable, tmp_path: Path) -> None:
    arrow = columns(table)
    kinds = arrow["optype"].to_pylist()
    lengths = arrow["duration"].to_pylist()
    kinds[3], lengths[5], lengths[7] = "make-coffee", None, -1.0
    arrow = arrow.set_column(4, "optype", pa.array(kinds)).set_column(6, "duration", pa.array(lengths))
    pa.parquet.write_table(arrow, tmp_path / "t.parquet")
    trace = open_trace([tmp_path / "t.parquet"])
    assert trace.operations is not None
    assert len(trace.operations) == len(table) - 3
    assert trace.coverage.bad_lines == 3
    assert "3 of" in trace.coverage.notes[0]


def test_other_tables_are_refused_with_what_they_lack(table: OpTable, tmp_path: Path) -> None:
    pa.parquet.write_table(columns(table).drop_columns(["stage", "duration"]), tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=r"lacks the columns stage, duration; it has step, dp_rank"):
        open_trace([tmp_path / "t.parquet"])
    reader = registry.get("optable")
    assert reader is not None


def test_a_column_of_words_is_no_number(table: OpTable, tmp_path: Path) -> None:
    arrow = columns(table)
    words = arrow.set_column(0, "step", pa.array(["one"] * len(table)))
    pa.parquet.write_table(words, tmp_path / "t.parquet")
    with pytest.raises(TraceError, match="its column step holds string, no numbers"):
        open_trace([tmp_path / "t.parquet"])


def test_damaged_files_end_in_a_sentence(table: OpTable, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(columns(table.take(np.arange(40))), path)
    whole = path.read_bytes()
    rng = random.Random(3)
    outcomes = set()
    for _ in range(300):
        data = bytearray(whole[: rng.randrange(4, len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(4, len(data)) if len(data) > 4 else 0] = rng.randrange(256)
        path.write_bytes(bytes(data))
        try:
            outcomes.add(type(open_trace([path])).__name__)
        except TraceError:
            outcomes.add("TraceError")
    assert "TraceError" in outcomes
