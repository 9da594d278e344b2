"""A pickle that holds only data, read by a machine that knows nothing else.

Dumps of the flight recorder come from other people's machines, and a pickle is a program: one opcode imports
a function, another calls it. This machine has the opcodes that build None, numbers, text, lists, tuples and
dictionaries, and stops at any other. Every value costs a byte of the file or more, keys are text or numbers
(hashing nested tuples can take forever), the memo holds only what was put into it, and nothing recurses: time
and memory are linear in the size of the file.

The compiled reader (``flight_recorder_native``) does the same for dumps; this one is for machines without it,
and the measure of what it must accept.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

MAX_TEXT = 1 << 20
"""Bytes of one text: the longest in a dump is the list of all ranks of a job, 8 bytes a rank."""

MAX_CONTAINERS = 4_000_000
"""Lists and dictionaries of one dump. An entry with all its stack frames has some forty, and a buffer of
20,000 entries is large."""

_DECIMAL = re.compile(rb"-?[0-9]{1,19}")
_LARGEST = 1 << 63
_MARK = object()


class PickleRefused(ValueError):
    """Bytes that are no pickle, or one that does more than hold data. The message says which, and where."""


class _Machine:
    """One reading. ``data`` the whole file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.containers = 0

    def run(self) -> object:
        data, size, actions = self.data, len(self.data), _ACTIONS
        while self.at < size:
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self.pop()
            action = actions[code]
            if action is None:
                raise PickleRefused(_reason(code, self.at - 1))
            action(self)
        raise PickleRefused("is cut off: it ends before its last value")

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise PickleRefused("is cut off: it ends in the middle of a value")
        part = self.data[self.at : end]
        self.at = end
        return part

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at, self.at + MAX_TEXT)
        if end < 0:
            raise PickleRefused("is cut off: it ends in the middle of a value")
        part = self.data[self.at : end]
        self.at = end + 1
        return part

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def push(self, value: object) -> None:
        self.stack.append(value)

    def begin(self, value: list[Any] | dict[Any, Any]) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise PickleRefused(f"holds more than {MAX_CONTAINERS:,} lists, more than any dump has")
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise PickleRefused("is damaged: a value is missing")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise PickleRefused("is damaged: a mark is missing")

    def text(self, size: int) -> None:
        if size > MAX_TEXT:
            raise PickleRefused(f"holds a text of {size:,} bytes, more than any dump has")
        self.push(self.take(size).decode("utf-8", "replace"))

    def of(self, kind: type) -> Any:
        value = self.stack[-1] if self.stack else None
        if type(value) is not kind:
            raise PickleRefused("is damaged: values are put into something that is no list or dictionary")
        return value

    def put(self, index: int) -> None:
        if index > len(self.data):
            raise PickleRefused("is damaged: it numbers more values than it has bytes")
        value = self.pop()
        self.memo[index] = value
        self.push(value)

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise PickleRefused("is damaged: a value is used before it is made")
        self.push(self.memo[index])

    def items(self, values: list[Any]) -> None:
        target = self.of(dict)
        if len(values) % 2:
            raise PickleRefused("is damaged: a dictionary has a key without a value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int, type(None), bool):
                raise PickleRefused("has a dictionary whose keys are neither text nor numbers")
            target[key] = value

    def last(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))


def loads(data: bytes) -> object:
    """The value of a pickle that holds only data. Raises PickleRefused."""
    return _Machine(data).run()


def _long(m: _Machine, size: int) -> None:
    if size > 8:
        raise PickleRefused(f"holds a number of {size:,} bytes, more than any time or size has")
    m.push(m.number(size, signed=True))


def _decimal(m: _Machine) -> None:
    text = m.line().rstrip(b"L")
    if text in (b"00", b"01"):
        m.push(text == b"01")
        return
    value = int(text) if _DECIMAL.fullmatch(text) else _LARGEST
    if not -_LARGEST <= value < _LARGEST:
        raise PickleRefused("is damaged: a number does not read as one")
    m.push(value)


def _append(m: _Machine) -> None:
    value = m.pop()
    m.of(list).append(value)


def _set_item(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    m.items([key, value])


def _appends(m: _Machine) -> None:
    values = m.since_mark()
    m.of(list).extend(values)


def _dictionary(m: _Machine) -> None:
    values = m.since_mark()
    m.begin({})
    m.items(values)


def _plain_text(m: _Machine, size: int) -> None:
    if size > MAX_TEXT:
        raise PickleRefused(f"holds a text of {size:,} bytes, more than any dump has")
    m.push(m.take(size).decode("utf-8", "replace"))


_NAMED: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.take(1),  # protocol
    b"\x95": lambda m: m.take(8),  # frame: only a hint for reading ahead
    b"(": lambda m: m.push(_MARK),
    b"0": lambda m: m.pop(),
    b"1": lambda m: m.since_mark(),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number(1)),
    b"M": lambda m: m.push(m.number(2)),
    b"J": lambda m: m.push(m.number(4, signed=True)),
    b"I": _decimal,
    b"L": _decimal,
    b"\x8a": lambda m: _long(m, m.number(1)),
    b"\x8b": lambda m: _long(m, m.number(4)),
    b"G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    b"X": lambda m: m.text(m.number(4)),
    b"\x8c": lambda m: m.text(m.number(1)),
    b"\x8d": lambda m: m.text(m.number(8)),
    b"U": lambda m: _plain_text(m, m.number(1)),
    b"T": lambda m: _plain_text(m, m.number(4)),
    b"C": lambda m: _plain_text(m, m.number(1)),
    b"B": lambda m: _plain_text(m, m.number(4)),
    b"]": lambda m: m.begin([]),
    b"}": lambda m: m.begin({}),
    b")": lambda m: m.push(()),
    b"a": _append,
    b"e": _appends,
    b"l": lambda m: m.begin(m.since_mark()),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.last(1),
    b"\x86": lambda m: m.last(2),
    b"\x87": lambda m: m.last(3),
    b"s": _set_item,
    b"u": lambda m: m.items(m.since_mark()),
    b"d": _dictionary,
    b"q": lambda m: m.put(m.number(1)),
    b"r": lambda m: m.put(m.number(4)),
    b"\x94": lambda m: m.put(len(m.memo)),
    b"h": lambda m: m.get(m.number(1)),
    b"j": lambda m: m.get(m.number(4)),
}
_ACTIONS: list[Callable[[_Machine], object] | None] = [_NAMED.get(bytes([code])) for code in range(256)]
_STOP = ord(".")

_CALLS = frozenset(b"cRibo\x81\x92\x93\x82\x83\x84PQ")
"""GLOBAL, REDUCE, INST, BUILD, OBJ, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, EXT1, 2 and 4, PERSID, BINPERSID."""


def _reason(code: int, at: int) -> str:
    if code in _CALLS:
        return (
            f"asks to import or call code (byte {at:,}): a dump of a flight recorder never does, "
            "so nothing of it was loaded"
        )
    return f"has a byte at {at:,} that no flight recorder writes ({code:#04x})"
