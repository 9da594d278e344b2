"""A JSON file of trace events as a stream: one event at a time, never the whole file.

Kineto writes one object with a header and ``traceEvents``, a list that may be larger than the memory. The
text is decoded block by block and each event by itself; numbers with a fraction stay text, because a time of
16 digits and three decimals does not fit a float. What cannot be parsed is skipped to the next event and
counted: a file whose writer was killed still has everything before its end.

Does not know what an event means.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from megatrace.readers.source import Source

BLOCK = 1 << 20
"""Bytes read at a time: large against an event (some 400 bytes), small against a memory."""
MAX_VALUE = 1 << 26
"""Characters of one event or header value; the lists of groups of 100,000 ranks have a few MB."""
MAX_EVENT = 4 << 20
"""Characters after which an event that cannot be parsed is broken and not long: one with all ranks of a large
group or a deep stack has some 100 KB."""
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[, \t\r\n]*")
_KEY = re.compile(r'"([^"\\]{1,200})"[ \t\r\n]*:[ \t\r\n]*')
_NEXT = re.compile(r"[}\]][ \t\r\n]*,[ \t\r\n]*(?=\{)")
"""Where the next event begins after one that cannot be parsed."""
_BAD = (ValueError, RecursionError)


class EventStream:
    """The events of one file. ``header`` fills with the other keys of the object while events are read."""

    def __init__(self, source: Source) -> None:
        self.header: dict[str, Any] = {}
        self.bad = 0
        self.torn = False
        """whether the file ended before its list of events did"""
        self.read_bytes = 0
        self._source = source
        self._view = memoryview(bytearray(BLOCK))
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._text = ""
        self._at = 0
        self._ended = False
        # raw_decode would make a message with line and column of every cut event; its scanner does not.
        self._scan: Any = json.JSONDecoder(strict=False, parse_float=str).scan_once  # type: ignore[attr-defined]

    def events(self) -> Iterator[dict[str, Any]]:
        """Every object of the list, in the order of the file. Raises nothing for any bytes."""
        if self._peek() == "[":
            yield from self._list()
            return
        self._at += 1
        while self._key():
            if self._name == "traceEvents" and self._peek() == "[":
                yield from self._list()
            else:
                self._header_value()
            if self._peek() != ",":
                break
            self._at += 1

    def _peek(self) -> str:
        """The next character that is no space, "" at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Reads one block more behind what is left; False at the end of the file."""
        if self._ended:
            return False
        size = self._source.readinto(self._view)
        self.read_bytes += size
        self._ended = not size
        self._text = self._text[self._at :] + self._decode(bytes(self._view[:size]), not size)
        self._at = 0
        return not self._ended or self._at < len(self._text)

    def _key(self) -> bool:
        self._peek()
        while (found := _KEY.match(self._text, self._at)) is None:
            if len(self._text) - self._at > 1024 or not self._more():
                return False
        self._name = found[1]
        self._at = found.end()
        return True

    def _header_value(self) -> None:
        value = self._value()
        if value is None:
            self._at = len(self._text)
        else:
            self.header[self._name] = value[0]

    def _value(self) -> tuple[Any] | None:
        """The value at the cursor in a tuple, None where it cannot be parsed; fetches what it needs."""
        self._peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (StopIteration, *_BAD):
                if len(self._text) - self._at > MAX_VALUE or not self._more():
                    return None
                continue
            if end == len(self._text) and not self._ended and self._more():
                continue  # a number may go on in the next block
            self._at = end
            return (value,)

    def _list(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        scan, between = self._scan, _BETWEEN.match
        while True:
            self._at = between(self._text, self._at).end()  # type: ignore[union-attr]
            try:
                value, self._at = scan(self._text, self._at)
            except (StopIteration, *_BAD):
                char = self._peek()
                if char == ",":
                    continue
                if char in ("]", ""):
                    self.torn = not char
                    self._at += len(char)
                    return
                value = self._late_event()
            if type(value) is dict:
                yield value
            elif value is not None:
                self.bad += 1

    def _late_event(self) -> Any:
        """An event that the block cuts, or that is broken: with more text it is one or the other."""
        while len(self._text) - self._at < MAX_EVENT and self._more():
            try:
                value, self._at = self._scan(self._text, self._at)
            except (StopIteration, *_BAD):
                continue
            return value
        found = _NEXT.search(self._text, self._at)
        if found is None:
            self.torn = self._ended
            self._at = len(self._text)
        else:
            self._at = found.end()
        self.bad += found is not None or not self._ended
        return None
