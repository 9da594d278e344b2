"""The compiled call log parser (``native/logparse.cc``) behind the `Parser` protocol.

Called through ctypes, which releases the GIL for the time of a block. The structures below are the twins
of those in ``native/logparse.h``; ``megatrace_abi_version`` guards them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace import native
from megatrace.readers.calllog_columns import BLOCK, ROW_DTYPES, ColumnBuffer, Parsed, TextBuffer


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
    block = BLOCK

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


class NativeCodes:
    """``megatrace_log_codes`` for one table of hashes (see `calllog_hash.Interner`)."""

    def __init__(self, library: ctypes.CDLL, keys: NDArray[np.uint64], codes: NDArray[np.int32]) -> None:
        self._look_up: Any = library.megatrace_log_codes
        pointer, size = ctypes.c_void_p, ctypes.c_uint64
        self._look_up.argtypes = [pointer, pointer, size, pointer, pointer, ctypes.c_uint32, pointer]
        self._look_up.restype = size
        self._table = keys, codes  # keeps them alive
        self._addresses = int(keys.ctypes.data), int(codes.ctypes.data)
        self._bits = len(keys).bit_length() - 2

    def __call__(self, hashes: NDArray[np.uint64], flags: NDArray[np.uint8], out: NDArray[np.int32]) -> int:
        """Fills ``out``, all three contiguous and equally long; how many rows the table does not have."""
        if not len(hashes) == len(flags) == len(out):
            raise ValueError("columns of different lengths")
        arguments = (hashes.ctypes.data, flags.ctypes.data, len(out), *self._addresses, self._bits)
        return int(self._look_up(*arguments, out.ctypes.data))


def native_parser() -> NativeParser | None:
    """The compiled parser, or None where the library is not there (``native.status()`` says why)."""
    library = native.library()
    return None if library is None else NativeParser(library)
