"""The compiled call log parser (``native/logparse.cc``) behind the `Parser` protocol.

Called through ctypes, which releases the GIL for the time of a block. The structures below are the twins
of those in ``native/logparse.h``; ``megatrace_abi_version`` guards them.
"""

from __future__ import annotations

import ctypes
from typing import Any

from megatrace import native
from megatrace.readers.calllog_columns import ROW_DTYPES, ColumnBuffer, Parsed, TextBuffer


class _Columns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ROW_DTYPES),
        ("row_capacity", ctypes.c_uint64),
        ("reject_line", ctypes.c_void_p),
        ("reject_offset", ctypes.c_void_p),
        ("reject_capacity", ctypes.c_uint64),
    ]


class _Result(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("rows", "rejects", "consumed", "flags_or", "flags_and")]


class NativeParser:
    """One parser with its own buffers; one thread at a time."""

    name = "native"

    def __init__(self, library: ctypes.CDLL, out: ColumnBuffer | None = None) -> None:
        self.out = ColumnBuffer() if out is None else out
        self._parse: Any = library.megatrace_log_parse
        self._parse.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
        self._parse.restype = None
        self._result = _Result()
        self._columns = _Columns(
            *(column.ctypes.data for column in self.out.columns.values()),
            self.out.row_capacity,
            self.out.reject_line.ctypes.data,
            self.out.reject_offset.ctypes.data,
            self.out.reject_capacity,
        )
        self._addresses = ctypes.addressof(self._columns), ctypes.addressof(self._result)

    def parse(self, buffer: TextBuffer, start: int, stop: int) -> Parsed:
        """See `Parser`. Raises ValueError where the range is not inside the buffer."""
        if not 0 <= start <= stop <= len(buffer):
            raise ValueError(f"bytes {start}:{stop} of a buffer of {len(buffer)}")
        result = self._result
        self._parse(buffer.address + start, stop - start, *self._addresses)
        return Parsed(result.rows, result.rejects, result.consumed, result.flags_or, result.flags_and)


def native_parser() -> NativeParser | None:
    """The compiled parser, or None where the library is not there (``native.status()`` says why)."""
    library = native.library()
    return None if library is None else NativeParser(library)
