"""The call log parser for installations without the compiled one: the same rows, from numpy alone.

All lines of a block are read at once: one pass finds the separators (bytes up to 0x20), which give every
token's place in lines of the layout that the writers emit; each field is then loaded as 64-bit words at
those places, checked byte by byte with word arithmetic, and converted in three multiplications. A line
that differs from that layout in a single byte is left to ``calllog_line.parse_line``, which decides: no
shortcut here ever refuses a line by itself, and none accepts one that the grammar does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from megatrace.model.events import Op
from megatrace.readers.calllog_columns import MARGIN, ROW_DTYPES, ColumnBuffer, Parsed, TextBuffer
from megatrace.readers.calllog_line import BODY_LIMITS, NO_SEQ, Flag, parse_line

Words = NDArray[np.uint64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


_u = np.uint64


def _w(text: str) -> np.uint64:
    """Up to eight characters as the word that a little-endian load of them gives."""
    word: np.uint64 = _u(int.from_bytes(text.encode(), "little"))
    return word


_ZEROS = _w("00000000")
_SIXES = _u(0x0606060606060606)
_HIGH = _u(0xF0F0F0F0F0F0F0F0)
_ONES = _u(0x0101010101010101)
_KEEP_LAST = np.array([0] + [(2**64 - 1) << 8 * (8 - k) & (2**64 - 1) for k in range(1, 9)], np.uint64)
"""``_KEEP_LAST[k]`` keeps the last k characters of a word."""
_KEEP_FIRST = tuple(_u(2 ** (8 * k) - 1) for k in range(9))
_OP_WORDS = tuple(
    (op, len(name), _w(f"Fun {name} "[:8]), _w(f"Fun {name} "[8:16]), _w(f"Fun {name} "[16:24]))
    for op, name in (
        (Op.ALL_REDUCE, "AllReduce"),
        (Op.ALL_GATHER, "AllGather"),
        (Op.REDUCE_SCATTER, "ReduceScatter"),
        (Op.BROADCAST, "Broadcast"),
        (Op.REDUCE, "Reduce"),
        (Op.SEND, "Send"),
        (Op.RECV, "Recv"),
    )
)
_TIME_SIZE = 22
_TIME_WORDS = np.array([_w("[0000000"), _w("000.0000"), _w("00000] [")], np.uint64)
"""A timestamp and the next bracket; xor takes the fixed characters to 0 and leaves the digits as 0..9."""
_TIME_FIXED = np.array([0xFF, 0xFF000000, 0xFFFFFF0000000000], np.uint64)
_MAX_SECONDS = int(np.iinfo(np.int64).max) // 10**9 - 1
_SHAPES = {9: (False, False), 11: (True, False), 13: (True, True)}
"""Tokens from the timestamp on -> (has opCount, has groupHash)."""


def _four_digit_halves(y: Words) -> Words:
    """Words of eight digit values (first in the lowest byte) -> values of the first and last four in
    32-bit halves."""
    y = ((y * _u(2561)) >> _u(8)) & _u(0x00FF00FF00FF00FF)
    halves: Words = ((y * _u(6553601)) >> _u(16)) & _u(0x0000FFFF0000FFFF)
    return halves


def _decimal(y: Words) -> Words:
    return (_four_digit_halves(y) * _u(42949672960001)) >> _u(32)


def _not_digits(y: Words) -> Words:
    """Non-zero in the high half of a byte whose value is above 9."""
    return (y | (y + _SIXES)) & _HIGH


def _hexadecimal(word: Words, keep: Words) -> tuple[Words, Words]:
    """(value, wrong) of the kept characters of words of lower-case hex, which are what ``%p`` prints."""
    digit = (word & _u(0x0F0F0F0F0F0F0F0F)) + ((word >> _u(6)) & _ONES) * _u(9)
    letter = ((digit + _SIXES) >> _u(4)) & _ONES
    # The second term: "g" gives 16, which would pass as a letter of its own.
    wrong = (((digit + _ZEROS + letter * _u(0x27)) ^ word) | (digit & _HIGH)) & keep
    digit &= keep
    digit = ((digit * _u(0x1001)) >> _u(8)) & _u(0x00FF00FF00FF00FF)
    digit = ((digit * _u(0x1000001)) >> _u(16)) & _u(0x0000FFFF0000FFFF)
    value: Words = (digit * _u(0x1000000000001)) >> _u(32)
    return value, wrong


class _Lines:
    """Lines of one shape: the same tokens, not the same lengths.

    ``start`` is the place of each line's first byte, ``ends[j]`` that of the separator behind its token
    j. ``ok`` is what the checks so far leave.
    """

    def __init__(self, whole: NDArray[np.uint8], start: Index, ends: Index) -> None:
        self.whole = whole
        self.start = start
        self.ends = ends
        self.ok: Mask = np.ones(len(start), np.bool_)

    def load(self, at: Index, words: int) -> Words:
        """Shape (len(at), words), or (len(at),) for one: words from any byte of the text."""
        size = 8 * words
        view = as_strided(
            self.whole[:size].view(f"V{size}"), shape=(len(self.whole) - size + 1,), strides=(1,)
        )
        loaded = view[at].view(np.uint64)
        return loaded.reshape(-1, words) if words > 1 else loaded

    def need(self, condition: Mask) -> None:
        self.ok &= condition

    def literal(self, at: Index, text: str) -> Words:
        """Checks up to eight characters; returns the word loaded."""
        word = self.load(at, 1)
        self.need((word & _KEEP_FIRST[len(text)] if len(text) < 8 else word) == _w(text))
        return word

    def number(self, begin: Index, end: Index, closing: str = "") -> Words:
        """Up to 8 digits (7 with a closing character, which is then the one before ``end``), else not ok."""
        word = self.load(end - 8, 1)
        size = end - begin
        if closing:
            self.need(word >> _u(56) == _w(closing))
            word = word << _u(8)
            size -= 1
        self.need((size >= 1) & (size <= 8 - len(closing)))
        y = (word ^ _ZEROS) & _KEEP_LAST.take(size, mode="clip")
        self.need(_not_digits(y) == 0)
        return _decimal(y)

    def long_number(self, end: Index, size: Index, words: int) -> list[Words]:
        """The values of the last words * 8 characters, of which ``size`` belong to the number; first
        word first."""
        rows = self.load(end - 8 * words, words) ^ _ZEROS
        values = []
        for j in range(words):
            y = rows[:, j] & _KEEP_LAST.take(size - 8 * (words - 1 - j), mode="clip")
            self.need(_not_digits(y) == 0)
            values.append(_decimal(y))
        return values

    def timestamp(self, begin: Index, end: Index) -> Words:
        y = self.load(begin, 3) ^ _TIME_WORDS
        wrong = _not_digits(y) | (y & _TIME_FIXED)
        self.need((wrong[:, 0] | wrong[:, 1] | wrong[:, 2]) == 0)
        self.need(end - begin == _TIME_SIZE)
        halves = _four_digit_halves(y)
        middle = halves[:, 1]
        tens = ((halves[:, 0] * _u(42949672960001)) >> _u(32)) * _u(10_000) + (middle & _u(0xFFFFFFFF))
        self.need(tens <= _u(10 * _MAX_SECONDS))
        time: Words = tens * _u(10**8) + (middle >> _u(32)) * _u(10**5)
        time += (halves[:, 2] & _u(0xFFFFFFFF)) * _u(10) + ((y[:, 2] >> _u(32)) & _u(0xF))
        return time

    def op(self, begin: Index, size: Index) -> NDArray[np.uint8]:
        words = self.load(begin, 3)
        op = np.zeros(len(begin), np.uint8)
        for code, length, c0, c1, c2 in _OP_WORDS:
            hit = words[:, 0] == c0
            if not hit.any():
                continue
            hit &= size == length
            if c1:
                hit &= (words[:, 1] & _KEEP_FIRST[min(length - 3, 8)]) == c1
            if c2:
                hit &= (words[:, 2] & _KEEP_FIRST[length - 11]) == c2
            op += hit * np.uint8(code)
        self.need(op != 0)
        return op

    def count(self, begin: Index, end: Index) -> Words:
        size = end - begin
        if not len(size) or int(size.max()) <= 8:
            return self.number(begin, end)
        self.need((size >= 1) & (size <= 16))
        high, low = self.long_number(end, size, 2)
        return high * _u(10**8) + low

    def stream(self, begin: Index, end: Index) -> Words:
        head = self.load(begin, 1)
        null = (head & _KEEP_FIRST[5]) == _w("(nil)")
        null &= end - begin == 5
        size = end - begin - 2
        rows = self.load(end - 16, 2)
        high, wrong_high = _hexadecimal(rows[:, 0], _KEEP_LAST.take(size - 8, mode="clip"))
        low, wrong_low = _hexadecimal(rows[:, 1], _KEEP_LAST.take(size, mode="clip"))
        pointer = (head & _KEEP_FIRST[2]) == _w("0x")
        pointer &= (size >= 1) & (size <= 16) & ((wrong_high | wrong_low) == 0)
        self.need(null | pointer)
        value = (high << _u(32)) | low
        value[null] = 0
        return value

    def hash(self, begin: Index, end: Index) -> Words:
        negative = self.whole[begin] == ord("-")
        size = end - begin - negative
        self.need((size >= 1) & (size <= 20))
        high, middle, low = self.long_number(end, size, 3)
        rest = middle * _u(10**8) + low
        # 2^64 - 1 is 1844 6744073709551615; the magnitude of a negative one is at most 2^63.
        self.need((high < _u(1844)) | ((high == _u(1844)) & (rest <= _u(6744073709551615))))
        value = high * _u(10**16) + rest
        self.need(~negative | (value <= _u(2**63)))
        return np.where(negative, ~value + _u(1), value)

    def read(self, saved: bool) -> dict[str, NDArray[Any]]:
        """All columns. A row counts only where ``ok`` holds afterwards."""
        ends, n = self.ends, len(self.start)
        flags = np.zeros(n, np.uint8)
        begin, save_count = self.start, np.zeros(n, np.uint32)
        if saved:
            self.literal(begin, "[save_co")
            self.literal(begin + 8, "unt ")
            save_count = self.number(begin + 12, ends[1], "]").astype(np.uint32)
            flags |= np.uint8(Flag.SAVE_COUNT)
            begin, ends = ends[1] + 1, ends[2:]
        has_seq, has_hash = _SHAPES[len(ends)]
        columns: dict[str, NDArray[Any]] = {"save_count": save_count}
        columns["enqueue"] = self.timestamp(begin, ends[0]).view(np.int64)
        self.literal(ends[0] + 1, "[Rank ")
        columns["rank"] = self.number(ends[1] + 1, ends[2], "]").astype(np.int32)
        columns["op"] = self.op(ends[2] + 1, ends[4] - ends[3] - 1)
        self.literal(ends[4] + 1, "Data ")
        columns["count"] = self.count(ends[5] + 1, ends[6]).view(np.int64)
        self.literal(ends[6] + 1, "stream ")
        columns["stream"] = self.stream(ends[7] + 1, ends[8])
        size = ends[-1] - begin
        cut = (size == BODY_LIMITS[0]) | (size == BODY_LIMITS[1])
        if has_seq:
            self.literal(ends[8] + 1, "opCount ")
            columns["seq"] = self.count(ends[9] + 1, ends[10]).view(np.int64)
            flags |= np.uint8(Flag.SEQ)
        else:
            columns["seq"] = np.full(n, NO_SEQ, np.int64)
        if has_hash:
            self.literal(ends[10] + 1, "groupHas")
            self.literal(ends[10] + 9, "h ")
            columns["group_hash"] = self.hash(ends[11] + 1, ends[12])
            flags |= np.where(cut, np.uint8(Flag.HASH_CUT), np.uint8(Flag.HASH))
        else:
            columns["group_hash"] = np.zeros(n, np.uint64)
            self.need(~cut)
        columns["flags"] = flags
        return columns


class NumpyParser:
    """One parser with its own buffers; one thread at a time."""

    name = "numpy"

    def __init__(self, out: ColumnBuffer | None = None) -> None:
        self.out = ColumnBuffer() if out is None else out

    def parse(self, buffer: TextBuffer, start: int, stop: int) -> Parsed:
        """See `Parser`."""
        whole, base = buffer.whole, MARGIN + start
        text = whole[base : MARGIN + stop]
        newline = text == ord("\n")
        lines = int(np.count_nonzero(newline))
        if not lines:
            return Parsed(0, 0, 0)
        separator = text == ord(" ")
        separator |= newline
        ends = np.flatnonzero(separator)
        ends += base
        last = np.flatnonzero(whole[ends] == ord("\n"))
        last = last[: self.out.row_capacity]
        return self._lines(whole, base, ends, last)

    def _lines(self, whole: NDArray[np.uint8], base: int, ends: Index, last: Index) -> Parsed:
        """``last[i]`` is the index in ``ends`` of line i's newline."""
        n = len(last)
        stops = ends[last]
        starts = np.empty(n, np.int64)
        starts[0] = base
        starts[1:] = stops[:-1] + 1
        tokens = np.diff(last, prepend=-1)
        saved = whole[starts + 1] == ord("s")
        good = np.zeros(n, np.bool_)
        for size, with_save, rows in _shapes(tokens, saved):
            places = ends[last[rows] - np.arange(size - 1, -1, -1)[:, None]]
            places[-1] -= whole[places[-1] - 1] == ord("\r")
            shape = _Lines(whole, starts[rows], places)
            for name, values in shape.read(with_save).items():
                self.out.columns[name][rows] = values
            good[rows] = shape.ok
        for row in np.flatnonzero(~good).tolist():
            found = parse_line(whole[starts[row] : stops[row]].tobytes())
            if found is not None:
                good[row] = True
                for name, value in zip(ROW_DTYPES, found, strict=True):
                    self.out.columns[name][row] = value
        return self._finish(good, starts, stops, base)

    def _finish(self, good: Mask, starts: Index, stops: Index, base: int) -> Parsed:
        """Closes the gaps that refused lines leave in the columns."""
        refused = np.flatnonzero(~good)[: self.out.reject_capacity]
        n = len(good)
        if len(refused):
            if len(refused) == self.out.reject_capacity:
                n = int(refused[-1]) + 1
            kept = np.flatnonzero(good[:n])
            for column in self.out.columns.values():
                column[: len(kept)] = column[kept]
            self.out.reject_line[: len(refused)] = refused
            self.out.reject_offset[: len(refused)] = starts[refused] - base
        return Parsed(n - len(refused), len(refused), int(stops[n - 1]) + 1 - base)


def _shapes(tokens: Index, saved: Mask) -> Iterator[tuple[int, bool, Index | slice]]:
    """(tokens, whether a save_count leads, the lines) of every layout that the writers emit."""
    if tokens[0] == tokens[-1] and bool((tokens == tokens[0]).all()) and bool((saved == saved[0]).all()):
        size = int(tokens[0]) - 2 * bool(saved[0])
        if size in _SHAPES:
            yield int(tokens[0]), bool(saved[0]), slice(None, len(tokens))
        return
    for with_save in (False, True):
        for size in _SHAPES:
            total = size + 2 * with_save
            rows = np.flatnonzero((tokens == total) & (saved == with_save))
            if len(rows):
                yield total, with_save, rows
