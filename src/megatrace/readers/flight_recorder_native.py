"""The compiled reader of flight-recorder pickles (``native/flight_recorder.cc``).

The same values as ``flight_recorder_pickle``, ``flight_recorder_raw`` and ``flight_recorder_entries``
together, some hundred times as fast: calls go straight from the file into columns that many dumps share. A
dump that is put together otherwise than recorders do comes as numbers (``raw``), and the rest is done as for
any other.
Called through ctypes, which releases the GIL.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np

from megatrace import native
from megatrace.readers.flight_recorder_dump import begin_dump, dump_of, ranks_of, words_of
from megatrace.readers.flight_recorder_entries import MAX_NOTES, Dump, Note, name_groups, timeout_of
from megatrace.readers.flight_recorder_names import BYTES, call_of
from megatrace.readers.flight_recorder_pickle import PickleRefused
from megatrace.readers.flight_recorder_raw import ABSENT, AT, COLUMNS, TEXTS, Raw

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
OUT: dict[str, type[np.generic]] = {
    "op": np.uint8, "group": np.int32, "seq": np.int64, "peer": np.int32, "count": np.int64,
    "nbytes": np.int64, "created": np.int64, "started": np.int64, "ended": np.int64, "coalesced": np.bool_,
}  # fmt: skip
"""Columns that are filled in; the twin of ``megatrace_fr_columns``."""
WORD = np.dtype(
    [("own", "i4"), ("peer", "i4"), ("op", "u1"), ("flags", "u1"), ("width", "i1"), ("unused", "u1")]
)
"""What a text means; the twin of ``megatrace_fr_word``."""
CLOSES, STATELESS, STARTED, COMPLETED = 1, 2, 4, 8
MOST_GROUPS = 256
"""Groups of a dump that ``megatrace_fr_facts`` holds."""
NOTES, TABLES = 7, 10 + 2 * MAX_NOTES
"""Where the notes of ``megatrace_fr_facts`` begin, and its three tables: 4, 3 and 4 columns of groups."""
ROOM, MORE = 1 << 15, 1 << 20
"""Rows of the first columns, and of those that follow: some 500 dumps, and columns of 8 MB, for which numpy
asks for large pages. To touch so much memory page by page would take as long as to read the dumps."""
MOST_TEXTS = 1 << 16
"""Texts after which they are forgotten and numbered anew: a job of 10,000 ranks has some 30,000."""


class Columns:
    """Columns that several dumps fill, one after the other, up to row ``used``."""

    def __init__(self, rows: int) -> None:
        self.rows, self.used = rows, 0
        self.arrays = {name: np.empty(rows, kind) for name, kind in OUT.items()}
        self.pointers = (ctypes.c_void_p * len(OUT))(*(array.ctypes.data for array in self.arrays.values()))


class NativeReader:
    """Reads one pickle after the other."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._data = library, b""
        self._buffer = ctypes.create_string_buffer(1 << 16)
        self._texts: list[str] = []
        self._words = np.zeros(1 << 10, WORD)
        self._columns = Columns(0)
        self._facts = np.empty(TABLES + 11 * MOST_GROUPS, np.int64)
        tables = np.split(self._facts[TABLES:], [4 * MOST_GROUPS, 7 * MOST_GROUPS])
        self._groups, self._config, self._status = (table.reshape(MOST_GROUPS, -1) for table in tables)
        self._facts_at, self._words_at = self._facts.ctypes.data, self._words.ctypes.data
        self._handle = library.megatrace_fr_new()
        if not self._handle:
            raise MemoryError(REASONS[6])

    def dump(self, data: bytes, name: str) -> Dump:
        """The dump in a pickle. Raises PickleRefused with the reason."""
        self.read(data)
        return self._straight(name) or dump_of(self.raw(), self.rest(), self.entry, name)

    def read(self, data: bytes) -> bool:
        """Reads a pickle, to which all below belongs then; whether it is put together as recorders do it.

        Raises PickleRefused with the reason.
        """
        if len(self._texts) > MOST_TEXTS:
            self._library.megatrace_fr_forget(self._handle)
            self._texts = []
        self._data = data
        reason = int(self._library.megatrace_fr_read(self._handle, data, len(data)))
        if reason:
            at = int(self._library.megatrace_fr_position(self._handle))
            code = data[at] if at < len(data) else 0
            raise PickleRefused(REASONS[reason].format(at=at, code=code))
        return bool(self._library.megatrace_fr_straight(self._handle))

    def _straight(self, source: str) -> Dump | None:
        """The dump, where its calls can be had as columns."""
        library, handle = self._library, self._handle
        entries = int(library.megatrace_fr_entries(handle))
        if not entries:
            return None
        if self._columns.rows - self._columns.used < entries:
            self._columns = Columns(max(entries, MORE if self._columns.rows else ROOM))
        columns, facts = self._columns, self._facts
        self._learn()
        first = columns.used
        rows = int(
            library.megatrace_fr_calls(handle, self._words_at, columns.pointers, first, self._facts_at)
        )
        if rows < 0:
            return None
        timeout, started, lost, own, own_group, groups, notes, *noted, version, configs, statuses = facts[
            :TABLES
        ].tolist()
        bad = int(library.megatrace_fr_bad(handle))
        if configs < 0 or statuses < 0:
            dump = begin_dump(self.rest(), source, bad)
        else:
            dump = self._begin(version, configs, statuses, Dump(source, bad=bad))
        name_groups(dump, self._texts, self._groups[:groups].tolist())
        if len(dump.names) != groups:
            return None
        dump.timeout, dump.has_start, dump.lost = timeout_of(timeout), bool(started), bool(lost)
        dump.own = None if own < 0 else (own_group, own)
        columns.used += rows
        for name, array in columns.arrays.items():
            setattr(dump, name, array[first : columns.used])
        for row, entry in zip(noted[:notes], noted[MAX_NOTES:], strict=False):
            dump.notes.append(Note(row, *words_of(self.entry(entry))))
        return dump

    def _begin(self, version: int, configs: int, statuses: int, dump: Dump) -> Dump:
        """As ``begin_dump`` does."""
        texts = self._texts
        dump.version = texts[version][:16] if version >= 0 else ""
        for name, desc, ranks in self._config[:configs].tolist():
            said = texts[desc] if desc >= 0 else ""
            dump.config[texts[name]] = (said, ranks_of(texts[ranks]) if ranks >= 0 else None)
        for key, enqueued, started, completed in self._status[:statuses].tolist():
            dump.status[texts[key]] = (enqueued, started, completed)
        return dump

    def _learn(self) -> None:
        """Decodes texts that are new, and works out what they mean."""
        known, size = len(self._texts), int(self._library.megatrace_fr_texts(self._handle))
        if size == known:
            return
        lengths = np.empty(size - known, np.uint32)
        place = self._library.megatrace_fr_text_bytes(self._handle, known, lengths.ctypes.data)
        data, at = ctypes.string_at(place, int(lengths.sum())), 0
        for length in lengths.tolist():
            self._texts.append(data[at : at + length].decode("utf-8", "replace"))
            at += length
        if size > len(self._words):
            self._words = np.resize(self._words, 2 * size)
            self._words_at = self._words.ctypes.data
        self._words[known:size] = [_meaning(text) for text in self._texts[known:]]

    def raw(self) -> Raw:
        """The entries as numbers."""
        library, handle = self._library, self._handle
        table = np.empty((len(COLUMNS), int(library.megatrace_fr_entries(handle))), np.int64)
        if not library.megatrace_fr_fill(handle, table.ctypes.data):
            raise PickleRefused(REASONS[6])
        self._learn()
        rows = [AT[name] for name in TEXTS]
        used, place = np.unique(table[rows], return_inverse=True)  # of all texts those of this dump
        none = int(len(used) > 0 and used[0] == ABSENT)
        table[rows] = np.where(table[rows] == ABSENT, ABSENT, place.reshape(len(rows), -1) - none)
        texts = [self._texts[number] for number in used[none:].tolist()]
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


def _meaning(text: str) -> tuple[int, int, int, int, int, int]:
    """A row of ``WORD``."""
    call = call_of(text)
    flags = CLOSES * call.closes | STATELESS * call.stateless
    flags |= STARTED * (text == "started") | COMPLETED * (text == "completed")
    return call.own, call.peer, call.op, flags, BYTES.get(text.lower(), -1), 0


def native_reader() -> NativeReader | None:
    """The compiled reader, None where the library is not there or older than it."""
    library = native.library()
    if library is None or not hasattr(library, "megatrace_fr_calls"):
        return None
    pointer, size, number = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32
    signatures: dict[str, tuple[list[Any], Any]] = {
        "new": ([], pointer),
        "read": ([pointer, ctypes.c_char_p, size], number),
        "position": ([pointer], size),
        "straight": ([pointer], number),
        "entries": ([pointer], size),
        "bad": ([pointer], size),
        "fill": ([pointer, pointer], number),
        "calls": ([pointer, pointer, pointer, size, pointer], ctypes.c_int64),
        "texts": ([pointer], size),
        "text_bytes": ([pointer, size, pointer], pointer),
        "forget": ([pointer], None),
        "json": ([pointer, ctypes.c_int64, ctypes.c_char_p, size], size),
        "free": ([pointer], None),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, f"megatrace_fr_{name}")
        function.argtypes, function.restype = arguments, result
    return NativeReader(library)
