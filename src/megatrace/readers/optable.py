"""Operation tables: Parquet or CSV with one row for each operation of a worker in a training step.

Columns, in any order; others are left alone:

==========  ===========================================================================================
step        training step
stage       pipeline stage
dp_rank     data-parallel rank
optype      what it is: forward-compute, backward-compute, forward-send, ... (``model.optable.OpType``)
start_ts    start in seconds, on one clock of all workers of a step
duration    length in seconds
rank        global rank; without it stage × replicas + dp_rank
seq_id      number among the operations of its type in the step; without it by the order of starts
mc          model chunk of the stage (virtual pipeline); -1 or absent: none
mb_id       micro-batch of a compute operation; -1 or absent: by order
==========  ===========================================================================================

The first six are needed. Rows of types that nobody knows and rows that lack a number are counted and left
out.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import TraceError
from megatrace.model.events import Events
from megatrace.model.optable import NUMBER, UNKNOWN, OpTable
from megatrace.model.ringformat import SEGMENT
from megatrace.model.trace import Coverage, InputInfo, Observable, Trace
from megatrace.readers import registry
from megatrace.readers.source import ReadOptions, Source

MAX_BYTES = 4 << 30
"""Bytes of one file: a billion operations, compressed."""
MAX_ROWS = 200_000_000
"""Rows of all files: some 10 GB of columns."""
NEEDED = ("step", "stage", "dp_rank", "optype", "start_ts", "duration")
OPTIONAL = ("rank", "seq_id", "mc", "mb_id")
_MAGIC = b"PAR1"
_LARGEST = 1 << 30
"""Numbers of stages, ranks and operations beyond this are none."""
_FARTHEST_S = 9e9
"""Seconds that fit int64 nanoseconds (the year 2255 as a start)."""
_LIMITS = {"start_ts": (-_FARTHEST_S, _FARTHEST_S), "mc": (UNKNOWN, _LARGEST), "mb_id": (UNKNOWN, _LARGEST)}
_SEEN = frozenset({Observable.START, Observable.END, Observable.SEQ, Observable.GROUP})

I8 = NDArray[np.int64]


@registry.register("optable", summary="operation tables (Parquet, CSV): one row an operation of a step")
class OpTableReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        self._limit = min(options.max_file_bytes, MAX_BYTES)
        self._tables: list[OpTable] = []
        self._inputs: list[InputInfo] = []
        self._notes: list[str] = []
        self._errors: list[TraceError] = []
        self._rows = self._bad = 0

    def refuses(self, head: bytes) -> str | None:
        """Parquet, or a CSV header with the columns that are needed."""
        if head.startswith(_MAGIC):
            return "a ring of calls that was kept" if SEGMENT in head else None
        line = head[:4096].split(b"\n")[0].decode("utf-8-sig", "replace")
        names = {name.strip().strip('"') for name in line.replace(";", ",").replace("\t", ",").split(",")}
        if set(NEEDED) <= names:
            return None
        return f"no Parquet file and no CSV with the columns {', '.join(NEEDED)}"

    def add(self, source: Source) -> None:
        """Reads one table; what is wrong with it as a whole is kept for ``finish``."""
        data = source.read_whole(self._limit)
        if source.damage:
            self._errors.append(TraceError(f"{source.name} {source.damage}", path=source.name))
            return
        try:
            columns = _columns(data)
            table, bad = _table(columns)
        except _unreadable() as error:
            said = " ".join(str(error).split())[:200]
            self._errors.append(
                TraceError(f"{source.name} is no operation table that can be read: {said}", path=source.name)
            )
            return
        if self._rows + len(table) > MAX_ROWS:
            self._notes.append(f"{source.name} was left out: more than {MAX_ROWS:,} operations in all.")
            return
        self._rows += len(table)
        self._bad += bad
        if bad:
            self._notes.append(
                f"{source.name}: {bad:,} of {bad + len(table):,} rows were left out: an operation that is "
                "not known, or a value that is none."
            )
        self._tables.append(table)
        self._inputs.append(InputInfo(source.name, "optable", _SEEN, len(np.unique(table.rank))))

    def finish(self) -> Trace:
        """A Trace without events. Raises TraceError where no table could be read."""
        whole = OpTable.concatenate(self._tables) if self._tables else None
        if whole is None or not len(whole):
            raise (
                self._errors[0]
                if self._errors
                else TraceError(f"{self._inputs[0].path}: the operation table has no row that can be used")
            )
        notes = (*self._notes, *(str(error) for error in self._errors))
        return Trace(
            Events.empty(),
            coverage=Coverage(_SEEN, lines=self._rows + self._bad, bad_lines=self._bad, notes=notes),
            inputs=tuple(self._inputs),
            operations=whole,
        )


def _unreadable() -> tuple[type[BaseException], ...]:
    """What pyarrow raises of bytes that are no table."""
    import pyarrow as pa

    return (pa.ArrowException, ValueError, OSError, MemoryError)


def _columns(data: bytes) -> dict[str, Any]:
    """The columns that are known as arrays of pyarrow. Raises what ``_unreadable`` lists."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if data.startswith(_MAGIC):
        file = pyarrow.parquet.ParquetFile(pa.BufferReader(data))
        names = [name for name in (*NEEDED, *OPTIONAL) if name in file.schema_arrow.names]
        _complete(names, file.schema_arrow.names)
        _bounded(file.metadata.num_rows)
        table = file.read(columns=names)
    else:
        line = data[:4096].split(b"\n")[0]
        delimiter = next((mark for mark in ("\t", ";") if mark.encode() in line), ",")
        table = pyarrow.csv.read_csv(
            io.BytesIO(data), parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter)
        )
        table = table.rename_columns([name.strip() for name in table.column_names])
        _complete(table.column_names, table.column_names)
    _bounded(table.num_rows)
    wanted = (name for name in (*NEEDED, *OPTIONAL) if name in table.column_names)
    return {name: table.column(name).combine_chunks() for name in wanted}


def _bounded(rows: int) -> None:
    if rows > MAX_ROWS:
        raise ValueError(f"it has {rows:,} rows, more than {MAX_ROWS:,}")


def _complete(names: list[str], there: list[str]) -> None:
    missing = [name for name in NEEDED if name not in names]
    if missing:
        shown = ", ".join(map(str, there[:12]))
        raise ValueError(
            f"it lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; it has {shown}"
        )


def _table(columns: dict[str, Any]) -> tuple[OpTable, int]:
    """(the rows that can be used, how many cannot)."""
    kinds = _kinds(columns["optype"])
    numbers = {name: _number(column, name) for name, column in columns.items() if name != "optype"}
    good = kinds >= 0
    for name, values in numbers.items():
        low, high = _LIMITS.get(name, (0, _LARGEST))
        good &= (values >= low) & (values <= high)  # false for NaN, too
    whole = {name: values[good] for name, values in numbers.items()}
    step, stage, replica = (whole[name].astype(np.int64) for name in ("step", "stage", "dp_rank"))
    kind = kinds[good].astype(np.uint8)
    start = np.round(whole["start_ts"] * 1e9).astype(np.int64)
    none = np.full(len(step), UNKNOWN, np.int32)
    replicas = int(replica.max()) + 1 if len(replica) else 1
    rank = whole["rank"] if "rank" in whole else stage * replicas + replica
    seq = whole["seq_id"] if "seq_id" in whole else _numbered(step, stage, replica, kind, start)
    table = OpTable(
        step=step,
        replica=replica.astype(np.int32),
        stage=stage.astype(np.int32),
        rank=rank.astype(np.int32),
        optype=kind,
        start=start,
        duration=np.round(whole["duration"] * 1e9).astype(np.int64),
        seq=seq.astype(np.int32),
        chunk=whole["mc"].astype(np.int32) if "mc" in whole else none,
        micro_batch=whole["mb_id"].astype(np.int32) if "mb_id" in whole else none,
    )
    return table, int((~good).sum())


def _kinds(column: Any) -> NDArray[np.int64]:
    """int64: the number of each row's type, -1 where nobody knows it."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    known = {kind.value: number for kind, number in NUMBER.items()}
    number = np.array([known.get(str(name), -1) for name in column.dictionary.to_pylist()] + [-1], np.int64)
    at = column.indices.fill_null(len(number) - 1).to_numpy(zero_copy_only=False)
    found: NDArray[np.int64] = number[at.astype(np.intp)]
    return found


def _number(column: Any, name: str) -> NDArray[np.float64]:
    """float64, NaN where there is none."""
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ValueError(f"its column {name} holds {column.type}, no numbers")
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)


def _numbered(step: I8, stage: I8, replica: I8, kind: NDArray[np.uint8], start: I8) -> I8:
    """int64: each row's number among those of its type in its step on its worker, by their starts."""
    order = np.lexsort((start, kind, replica, stage, step))
    keys = np.stack([step, stage, replica, kind.astype(np.int64)])[:, order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(keys, axis=1) != 0).any(axis=0)
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - first
    return number
