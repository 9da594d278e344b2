"""The columns into which call log parsers write, reused from block to block.

Both parsers (compiled, numpy) fill the same buffers and report the same numbers, so everything after
them exists once. Memory is bounded by the block: whoever drives a parser copies the rows out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

BLOCK = 1 << 19
"""Bytes read at a time unless a parser wants another size. The block and its columns stay in a core's
second-level cache (1 MB on current servers)."""
MARGIN = 64
"""Readable bytes before and after the text, so that a parser may load whole words around a field."""

ROW_DTYPES: dict[str, DTypeLike] = {
    "rank": np.int32,
    "op": np.uint8,
    "count": np.int64,
    "stream": np.uint64,
    "seq": np.int64,
    "group_hash": np.uint64,
    "enqueue": np.int64,
    "save_count": np.uint32,
    "flags": np.uint8,
}
"""``calllog_line.Row`` field by field."""

_SHORTEST = 37
"""Bytes of the shortest call, "[1.0][Rank 0]Fun X Data 1 stream 0x0" and its newline: a block cannot hold
more rows than lines of this length."""
_REJECT_CAPACITY = 4096


class TextBuffer:
    """Bytes to parse, with a margin on both sides. ``text`` is the part between the margins."""

    def __init__(self, size: int = BLOCK) -> None:
        self.whole: NDArray[np.uint8] = np.zeros(size + 2 * MARGIN, np.uint8)
        self.text = self.whole[MARGIN : MARGIN + size]
        self.view = self.text.data
        self.address = int(self.text.ctypes.data)

    def __len__(self) -> int:
        return len(self.text)


class ColumnBuffer:
    """Room for the rows and the refused lines of one block."""

    def __init__(self, rows: int = BLOCK // _SHORTEST + 1, rejects: int = _REJECT_CAPACITY) -> None:
        self.columns: dict[str, NDArray[np.generic]] = {
            name: np.empty(rows, dtype) for name, dtype in ROW_DTYPES.items()
        }
        self.reject_line: NDArray[np.int64] = np.empty(rejects, np.int64)
        self.reject_offset: NDArray[np.int64] = np.empty(rejects, np.int64)
        self.row_capacity = rows
        self.reject_capacity = rejects


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one call of a parser did. ``consumed`` ends behind a newline; ``lines == rows + rejects``."""

    rows: int
    rejects: int
    consumed: int
    flags_or: int
    """bits that some row has"""
    flags_and: int
    """bits that all rows have; 0xFF where there are none"""

    @property
    def lines(self) -> int:
        """Lines handled, blank ones included."""
        return self.rows + self.rejects


def room_for(block: int) -> ColumnBuffer:
    """Columns that hold whatever a block of so many bytes holds."""
    return ColumnBuffer(block // _SHORTEST + 1)


class Parser(Protocol):
    """Turns the complete lines of ``text[start:stop]`` into rows ``0:rows`` of the columns.

    Refused lines go to ``reject_line`` (0 = the first line of this call) and ``reject_offset`` (from
    ``start``). May stop when it has handled as many lines as there is room for rows, or refused as many as
    there is room for; the caller goes on from ``start + consumed``. With fewer of both, no complete line is
    left.
    """

    name: str
    block: int
    """bytes that it likes to have at once"""

    @property
    def out(self) -> ColumnBuffer:
        """Where the rows are, until the next call."""
        ...

    def parse(self, buffer: TextBuffer, start: int, stop: int) -> Parsed:
        """See the class."""
        ...
