"""The compiled reader of flight-recorder pickles (``native/flight_recorder.cc``).

The same values as ``flight_recorder_pickle`` and ``flight_recorder_raw`` together, some hundred times as
fast. Called through ctypes, which releases the GIL.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np

from megatrace import native
from megatrace.readers.flight_recorder_pickle import PickleRefused
from megatrace.readers.flight_recorder_raw import COLUMNS, Raw

REASONS = {
    1: "is cut off: it ends before its last value",
    2: "is damaged",
    3: "asks to import or call code (byte {at:,}): a dump of a flight recorder never does, "
    "so nothing of it was loaded",
    4: "has a byte at {at:,} that no flight recorder writes ({code:#04x})",
    5: "holds a text, a number or more lists than any dump has",
    6: "needs more memory to read than there is",
    7: "holds no entries and no groups",
}


class NativeReader:
    """Reads one pickle after the other; what it gives belongs to the one read last."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._data = library, b""
        self._buffer = ctypes.create_string_buffer(1 << 16)
        self._handle = library.megatrace_fr_new()
        if not self._handle:
            raise MemoryError(REASONS[6])

    def read(self, data: bytes) -> None:
        """Reads a pickle. Raises PickleRefused with the reason."""
        self._data = data
        reason = int(self._library.megatrace_fr_read(self._handle, data, len(data)))
        if reason:
            at = int(self._library.megatrace_fr_position(self._handle))
            code = data[at] if at < len(data) else 0
            raise PickleRefused(REASONS[reason].format(at=at, code=code))

    def raw(self) -> Raw:
        """The entries as numbers."""
        library, handle = self._library, self._handle
        table = np.empty((len(COLUMNS), int(library.megatrace_fr_entries(handle))), np.int64)
        if not library.megatrace_fr_fill(handle, table.ctypes.data):
            raise PickleRefused(REASONS[6])
        places = np.empty((2, int(library.megatrace_fr_texts(handle))), np.uint64)
        library.megatrace_fr_places(handle, places[0].ctypes.data, places[1].ctypes.data)
        offsets, lengths = places.tolist()
        texts = [
            self._data[offset : offset + length].decode("utf-8", "replace")
            for offset, length in zip(offsets, lengths, strict=True)
        ]
        return Raw(table, texts, int(library.megatrace_fr_bad(handle)))

    def rest(self) -> dict[str, Any]:
        """Everything but the entries."""
        value = self._json(-1)
        return value if isinstance(value, dict) else {}

    def entry(self, index: int) -> dict[str, Any]:
        """One entry as Python values."""
        value = self._json(index)
        return value if isinstance(value, dict) else {}

    def _json(self, which: int) -> object:
        while True:
            room = len(self._buffer)
            size = int(self._library.megatrace_fr_json(self._handle, which, self._buffer, room))
            if size <= room:
                break
            if size > 16 * len(self._data) + 4096:
                return {}
            self._buffer = ctypes.create_string_buffer(size)
        try:
            return json.loads(ctypes.string_at(self._buffer, size).decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return {}

    def __del__(self) -> None:
        if self._handle:
            self._library.megatrace_fr_free(self._handle)
            self._handle = None


def native_reader() -> NativeReader | None:
    """The compiled reader, None where the library is not there or older than it."""
    library = native.library()
    if library is None or not hasattr(library, "megatrace_fr_read"):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_uint64
    signatures: dict[str, tuple[list[Any], Any]] = {
        "new": ([], pointer),
        "read": ([pointer, ctypes.c_char_p, size], ctypes.c_int32),
        "position": ([pointer], size),
        "entries": ([pointer], size),
        "bad": ([pointer], size),
        "fill": ([pointer, pointer], ctypes.c_int32),
        "texts": ([pointer], size),
        "places": ([pointer, pointer, pointer], None),
        "json": ([pointer, ctypes.c_int64, ctypes.c_char_p, size], size),
        "free": ([pointer], None),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, f"megatrace_fr_{name}")
        function.argtypes, function.restype = arguments, result
    return NativeReader(library)
