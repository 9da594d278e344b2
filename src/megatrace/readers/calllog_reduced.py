"""Call logs as they stand after the parsing of their text, before any judgement over all files.

Reading text is the expensive and independent part of a diagnosis: it may happen in another process, on
another machine, or earlier. What comes out is everything that the rest needs, nothing summed or left out, so
a verdict is the same whoever read the text: the rows of each file in their order, the hashes that its codes
stand for, and what was wrong with its lines. ``packed`` writes many of them into one Parquet file.

Decides no order: whoever merges puts the files into the order in which one process would have read them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import CorruptTrace
from megatrace.model.events import Op
from megatrace.readers.calllog_columns import ROW_DTYPES
from megatrace.readers.calllog_line import Defect
from megatrace.readers.calllog_notes import FileReport

KEPT: Mapping[str, Any] = {name: dtype for name, dtype in ROW_DTYPES.items() if name != "group_hash"} | {
    "group": np.int32
}
"""The columns that are kept of every call."""
MAGIC = b"PAR1"
MARK = "megatrace.calllog/1"
"""Format and version. A column holds this text alone, uncompressed, so the file begins with it."""
MAX_BYTES = 64 << 30
"""As large as a call log may be."""
_ABOUT = b"files"


@dataclass(frozen=True, slots=True, eq=False)
class ReducedLog:
    """One file. ``columns`` as in ``KEPT``; of ``group`` i means ``hashes[i]``, -2 - i ``partials[i]``."""

    place: int
    """Its place among all files of the job."""
    report: FileReport
    columns: dict[str, NDArray[Any]]
    hashes: tuple[int, ...]
    partials: tuple[int, ...]


def is_packed(head: bytes) -> bool:
    """Whether a file that begins like this was made by ``packed``."""
    return head.startswith(MAGIC) and MARK.encode() in head[:1024]


def packed(logs: Sequence[ReducedLog]) -> bytes:
    """All of them as one Parquet file."""
    import pyarrow as pa  # takes as long to import as the rest of the readers together
    import pyarrow.parquet as pq

    rows = sum(log.report.rows for log in logs)
    joined = {
        name: np.concatenate([log.columns[name] for log in logs]) if logs else np.empty(0, dtype)
        for name, dtype in KEPT.items()
    }
    mark = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [MARK])
    table = pa.table({"mark": mark, **joined})
    table = table.replace_schema_metadata({_ABOUT: json.dumps([_told(log) for log in logs])})
    numbers = dict.fromkeys(("enqueue", "seq", "count", "save_count", "stream"), "DELTA_BINARY_PACKED")
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression={name: "none" if name == "mark" else "zstd" for name in table.column_names},
        use_dictionary=[name for name in table.column_names if name not in numbers],
        column_encoding=numbers,
        write_statistics=False,
    )
    return bytes(sink.getvalue())


def unpacked(data: bytes, path: str) -> list[ReducedLog]:
    """The inverse of ``packed``. Raises CorruptTrace."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data))
        told = json.loads((table.schema.metadata or {})[_ABOUT])
        columns = {name: table[name].to_numpy().astype(dtype, copy=False) for name, dtype in KEPT.items()}
        found, begin = [], 0
        for one in told:
            end = begin + int(one["rows"])
            found.append(_log(one, {name: column[begin:end] for name, column in columns.items()}))
            begin = end
        if begin != table.num_rows:
            raise ValueError(f"{table.num_rows:,} rows, its files have {begin:,}")
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise CorruptTrace(
            path, f"no whole reduced call log ({error})", do="reduce its files again"
        ) from error
    return found


def _told(log: ReducedLog) -> dict[str, Any]:
    report = log.report
    return {
        "place": log.place,
        "hashes": list(log.hashes),
        "partials": list(log.partials),
        "name": report.name,
        "rows": report.rows,
        "lines": report.lines,
        "size": report.size,
        "defects": {defect.name: count for defect, count in report.defects.items()},
        "first_line": {defect.name: line for defect, line in report.first_line.items()},
        "refused": [lines.tolist() for lines in report.refused],
        "refused_kept": report.refused_kept,
        "layouts": sorted(report.layouts),
        "torn_rank": report.torn_rank,
        "damage": report.damage,
    }


def _log(told: Mapping[str, Any], columns: dict[str, NDArray[Any]]) -> ReducedLog:
    hashes, partials = (tuple(int(value) for value in told[name]) for name in ("hashes", "partials"))
    group = columns["group"]
    if len(group) and not (-1 - len(partials) <= int(group.min()) and int(group.max()) < len(hashes)):
        raise ValueError("a call names a communicator that is not listed")
    if len(group) and (int(columns["rank"].min()) < 0 or int(columns["op"].max()) > max(Op)):
        raise ValueError("a call is of no rank or of no kind")
    report = FileReport(
        name=str(told["name"]),
        first_row=0,
        rows=int(told["rows"]),
        lines=int(told["lines"]),
        size=int(told["size"]),
        defects={Defect[name]: int(count) for name, count in told["defects"].items()},
        first_line={Defect[name]: int(line) for name, line in told["first_line"].items()},
        refused=[np.array(lines, np.int64) for lines in told["refused"]],
        refused_kept=int(told["refused_kept"]),
        layouts={int(layout) for layout in told["layouts"]},
        torn_rank=None if told["torn_rank"] is None else int(told["torn_rank"]),
        damage=str(told["damage"]),
    )
    return ReducedLog(int(told["place"]), report, columns, hashes, partials)
