"""The call log parser for installations without the compiled one: the same rows, from numpy alone.

All lines of a block are read at once: one pass finds the separators (bytes up to 0x20), which give every
token's place in lines of the layout that the writers emit; each field is then loaded as 64-bit words at
those places, checked byte by byte with word arithmetic, and converted in three multiplications. A line
that differs from that layout in a single byte is left to ``calllog_line.parse_line``, which decides: no
shortcut here ever refuses a line by itself, and none accepts one that the grammar does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from megatrace.model.events import Op
from megatrace.readers.calllog_columns import (
    BLOCK,
    MARGIN,
    ROW_DTYPES,
    ColumnBuffer,
    Parsed,
    TextBuffer,
    room_for,
)
from megatrace.readers.calllog_line import BODY_LIMITS, NO_SEQ, Flag, parse_line

Words = NDArray[np.uint64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


_u = np.uint64


@lru_cache(maxsize=64)
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


def _four_digit_halves(digits: Words) -> Words:
    """Words of eight digit values (first in the lowest byte) -> the first and the last four, in halves."""
    y: Words = digits * _u(2561)
    y >>= _u(8)
    y &= _u(0x00FF00FF00FF00FF)
    y *= _u(6553601)
    y >>= _u(16)
    y &= _u(0x0000FFFF0000FFFF)
    return y


def _decimal(digits: Words) -> Words:
    y = _four_digit_halves(digits)
    y *= _u(42949672960001)
    y >>= _u(32)
    return y


def _not_digits(y: Words) -> Words:
    """Non-zero in the high half of a byte whose value is above 9."""
    wrong: Words = y + _SIXES
    wrong |= y
    wrong &= _HIGH
    return wrong


def _hexadecimal(word: Words, keep: Words) -> tuple[Words, Words]:
    """(value, wrong) of the kept characters of words of lower-case hex, which are what ``%p`` prints."""
    digit = word >> _u(6)
    digit &= _ONES
    digit *= _u(9)
    digit += word & _u(0x0F0F0F0F0F0F0F0F)
    wrong = digit + _SIXES
    wrong >>= _u(4)
    wrong &= _ONES
    wrong *= _u(0x27)
    wrong += digit
    wrong += _ZEROS
    wrong ^= word
    wrong |= digit & _HIGH  # "g" gives 16, which would pass as a letter of its own
    wrong &= keep
    digit &= keep
    for times, right, mask in ((0x1001, 8, 0x00FF00FF00FF00FF), (0x1000001, 16, 0x0000FFFF0000FFFF)):
        digit *= _u(times)
        digit >>= _u(right)
        digit &= _u(mask)
    digit *= _u(0x1000000000001)
    digit >>= _u(32)
    return digit, wrong


class _Loader:
    """Loads words from any byte of a text."""

    def __init__(self, whole: NDArray[np.uint8]) -> None:
        self.whole = whole
        self._at = [
            as_strided(whole[:size].view(f"V{size}"), shape=(len(whole) - size + 1,), strides=(1,))
            for size in (8, 16, 24)
        ]

    def __call__(self, at: Index, words: int) -> Words:
        """Shape (len(at), words), or (len(at),) for one word."""
        loaded: Words = self._at[words - 1][at].view(np.uint64)
        return loaded.reshape(-1, words) if words > 1 else loaded


class _Lines:
    """Lines of one shape: the same tokens, not the same lengths.

    ``start`` is the place of each line's first byte, ``ends[j]`` that of the separator behind its token j.
    ``ok`` is what the checks so far leave.
    """

    def __init__(self, load: _Loader, start: Index, ends: Index) -> None:
        self.load = load
        self.start = start
        self.ends = ends
        self.ok: Mask = np.ones(len(start), np.bool_)

    def need(self, condition: Mask) -> None:
        self.ok &= condition

    def literal(self, at: Index, text: str) -> None:
        """Checks up to eight characters."""
        self.need((self.load(at, 1) & _KEEP_FIRST[len(text)]) == _w(text))

    def labelled(self, at: Index, label: str, end: Index, *, closing: bool = False) -> Words:
        """A label of up to eight characters, then up to 8 digits, then perhaps "]": else not ok.

        The label leaves room for 16 - its length in the two words that are loaded.
        """
        skip = len(label)
        words = self.load(at, 2)
        first, y = words[:, 0], words[:, 1]
        self.need((first & _KEEP_FIRST[skip]) == _w(label))
        if skip < 8:
            y = y << _u(64 - 8 * skip)
            y |= first >> _u(8 * skip)
        size = end - at
        size -= skip + closing
        most = 7 if closing else 8
        shift = ((most - size) << 3).view(np.uint64)  # one digit: its byte must go to the last place
        self.need(shift <= _u(8 * (most - 1)))  # also of negative ones, which are large as unsigned
        y = y ^ _ZEROS
        y <<= shift & _u(63)
        if closing:
            self.need((y >> _u(56)) == _u(ord("]") ^ ord("0")))
            y <<= _u(8)
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

    def count(self, at: Index, label: str, end: Index) -> Words:
        """A label and up to 16 digits."""
        size = end - at
        size -= len(label)
        if int(size.max(initial=0)) <= 8:
            return self.labelled(at, label, end)
        self.literal(at, label)
        self.need((size >= 1) & (size <= 16))
        high, low = self.long_number(end, size, 2)
        value: Words = high * _u(10**8) + low
        return value

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
        value: Words = (high << _u(32)) | low
        value[null] = 0
        return value

    def hash(self, begin: Index, end: Index) -> Words:
        negative = self.load.whole[begin] == ord("-")
        size = end - begin - negative
        self.need((size >= 1) & (size <= 20))
        high, middle, low = self.long_number(end, size, 3)
        rest = middle * _u(10**8) + low
        # 2^64 - 1 is 1844 6744073709551615; the magnitude of a negative one is at most 2^63.
        self.need((high < _u(1844)) | ((high == _u(1844)) & (rest <= _u(6744073709551615))))
        value: Words = high * _u(10**16) + rest
        self.need(~negative | (value <= _u(2**63)))
        signed: Words = np.where(negative, ~value + _u(1), value)
        return signed

    def read(self, saved: bool) -> dict[str, NDArray[Any]]:
        """All columns. A row counts only where ``ok`` holds afterwards."""
        ends, n = self.ends, len(self.start)
        flags = np.zeros(n, np.uint8)
        begin, save_count = self.start, np.zeros(n, np.uint32)
        if saved:
            self.literal(begin, "[save")
            save_count = self.labelled(begin + 5, "_count ", ends[1], closing=True).astype(np.uint32)
            flags |= np.uint8(Flag.SAVE_COUNT)
            begin, ends = ends[1] + 1, ends[2:]
        has_seq, has_hash = _SHAPES[len(ends)]
        columns: dict[str, NDArray[Any]] = {"save_count": save_count}
        columns["enqueue"] = self.timestamp(begin, ends[0]).view(np.int64)
        columns["rank"] = self.labelled(ends[0] + 1, "[Rank ", ends[2], closing=True).astype(np.int32)
        columns["op"] = self.op(ends[2] + 1, ends[4] - ends[3] - 1)
        columns["count"] = self.count(ends[4] + 1, "Data ", ends[6]).view(np.int64)
        self.literal(ends[6] + 1, "stream ")
        columns["stream"] = self.stream(ends[7] + 1, ends[8])
        size = ends[-1] - begin
        cut = (size == BODY_LIMITS[0]) | (size == BODY_LIMITS[1])
        if has_seq:
            columns["seq"] = self.count(ends[8] + 1, "opCount ", ends[10]).view(np.int64)
            flags |= np.uint8(Flag.SEQ)
        else:
            columns["seq"] = np.full(n, NO_SEQ, np.int64)
        if has_hash:
            words = self.load(ends[10] + 1, 2)
            self.need((words[:, 0] == _w("groupHas")) & ((words[:, 1] & _u(0xFFFF)) == _w("h ")))
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
    block = 4 * BLOCK
    """A block costs some 250 calls into numpy, half a millisecond whatever its size (measured: 770, 580, 510
    and 410 ns a line at 1/4, 1/2, 1 and 2 MiB)."""

    def __init__(self, out: ColumnBuffer | None = None) -> None:
        self.out = room_for(self.block) if out is None else out
        self._load: _Loader | None = None

    def parse(self, buffer: TextBuffer, start: int, stop: int) -> Parsed:
        """See `Parser`."""
        if self._load is None or self._load.whole is not buffer.whole:
            self._load = _Loader(buffer.whole)
        base = MARGIN + start
        text = buffer.whole[base : MARGIN + stop]
        newline = text == ord("\n")
        lines = int(np.count_nonzero(newline))
        if not lines:
            return Parsed(0, 0, 0, 0, 0xFF)
        separator = text == ord(" ")
        separator |= newline
        ends = np.flatnonzero(separator)
        ends += base
        last = _line_ends(buffer.whole, ends, lines, base + int(np.argmax(newline)))
        return self._lines(self._load, base, ends, last[: self.out.row_capacity])

    def _lines(self, load: _Loader, base: int, ends: Index, last: Index) -> Parsed:
        """``last[i]`` is the index in ``ends`` of line i's newline."""
        n, whole = len(last), load.whole
        stops = ends[last]
        starts = np.empty(n, np.int64)
        starts[0] = base
        starts[1:] = stops[:-1] + 1
        tokens = np.diff(last, prepend=-1)
        saved = whole[starts + 1] == ord("s")
        good = np.zeros(n, np.bool_)
        for size, with_save, rows in _shapes(tokens, saved):
            if isinstance(rows, slice):
                places = np.ascontiguousarray(ends[: n * size].reshape(n, size).T)
            else:
                places = ends[last[rows] - np.arange(size - 1, -1, -1)[:, None]]
            places[-1] -= whole[places[-1] - 1] == ord("\r")
            shape = _Lines(load, starts[rows], places)
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
        rows = n - len(refused)
        flags: Any = self.out.columns["flags"][:rows]
        some = int(np.bitwise_or.reduce(flags)) if rows else 0
        every = int(np.bitwise_and.reduce(flags)) if rows else 0xFF
        return Parsed(rows, len(refused), int(stops[n - 1]) + 1 - base, some, every)


def _line_ends(whole: NDArray[np.uint8], ends: Index, lines: int, first: int) -> Index:
    """Which of the separators are newlines, given how many are and the place of the first.

    Where all lines have as many tokens as the first, as in most blocks, one look per line proves it.
    """
    size = int(np.searchsorted(ends, first)) + 1
    guess = ends[size - 1 : lines * size : size]
    if len(guess) == lines and bool((whole[guess] == ord("\n")).all()):
        return np.arange(size - 1, lines * size, size)
    return np.flatnonzero(whole[ends] == ord("\n"))


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
