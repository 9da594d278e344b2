"""The binary form of a frontier, as node agents send it: raw little-endian arrays behind a short header.

Layout: magic, version, flags, time of the snapshot, number of arrays; then per array its element code,
number of dimensions and shape, and its bytes, aligned to nothing. There is nothing in it that a reader
would execute.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"MTFR"
VERSION = 1
_HEADER = struct.Struct("<4sHHqI")
_ARRAY = struct.Struct("<BBxxII")
_DTYPES = ("<i8", "<i4", "|u1", "<u8", "|b1")
LARGEST = 1 << 31
"""Bytes of one array that are believed: 65,536 ranks with tails of 1,024 calls stay below."""


def encode(arrays: Iterable[NDArray[Any]], flags: int, time: int) -> bytes:
    """All arrays (one or two dimensions) with the header."""
    parts = []
    for array in arrays:
        whole = np.ascontiguousarray(array)
        dtype = whole.dtype.newbyteorder("<")
        code = [np.dtype(name) for name in _DTYPES].index(dtype)
        shape = (*whole.shape, 0)[:2]
        parts.append(_ARRAY.pack(code, whole.ndim, *shape) + whole.astype(dtype, copy=False).tobytes())
    return _HEADER.pack(MAGIC, VERSION, flags, time, len(parts)) + b"".join(parts)


def decode(data: bytes, wanted: int) -> tuple[int, int, list[NDArray[Any]]]:
    """(flags, time, arrays). Raises ValueError with the reason for anything that ``encode`` did not make."""
    if len(data) < _HEADER.size:
        raise ValueError(f"frontier: {len(data)} bytes are too few for a header")
    magic, version, flags, time, count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError("frontier: not a frontier (wrong magic)")
    if version != VERSION:
        raise ValueError(f"frontier: version {version}, this program reads {VERSION}; update the older side")
    if count != wanted:
        raise ValueError(f"frontier: {count} arrays where {wanted} are expected")
    at, arrays = _HEADER.size, []
    for _ in range(count):
        array, at = _array(data, at)
        arrays.append(array)
    if at != len(data):
        raise ValueError(f"frontier: {len(data) - at} bytes too many")
    return flags, time, arrays


def _array(data: bytes, at: int) -> tuple[NDArray[Any], int]:
    if at + _ARRAY.size > len(data):
        raise ValueError(f"frontier: cut off at byte {len(data)}")
    code, dimensions, rows, columns = _ARRAY.unpack_from(data, at)
    if code >= len(_DTYPES) or dimensions not in (1, 2):
        raise ValueError(f"frontier: unknown array at byte {at}")
    dtype = np.dtype(_DTYPES[code])
    shape = (rows, columns) if dimensions == 2 else (rows,)
    size = rows * (columns if dimensions == 2 else 1)
    start = at + _ARRAY.size
    if size * dtype.itemsize > min(LARGEST, len(data) - start):
        raise ValueError(f"frontier: cut off at byte {len(data)}")
    array = np.frombuffer(data, dtype, size, start).reshape(shape)
    return array.astype(dtype.newbyteorder("=")), start + size * dtype.itemsize
