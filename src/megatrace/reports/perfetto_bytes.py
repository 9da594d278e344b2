"""Writes the trace format of Perfetto: tracks, slices, instants and flow arrows as protobuf bytes.

Only the dozen fields that such a trace needs, numbered as in Perfetto's ``trace_packet.proto``,
``track_event.proto`` and ``track_descriptor.proto`` (unchanged since Perfetto 3, 2020; the order of siblings
since 47): a dependency on protobuf and its generated classes would be a hundred times this code. A name that
comes often is written once and referred to by number, which makes a call 20 to 30 bytes.

Times are int ns after the zero that the caller chose. Knows nothing of ranks or calls.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

BOOTTIME, REALTIME = 6, 1
"""Clocks of Perfetto: packets count in the first; the second says what date that was."""
SEQUENCE = 1
CLEARED, NEEDS_STATE = 1, 2
BEGIN, END, INSTANT = 1, 2, 3
EXPLICIT = 3
"""Child tracks in the order of their ``sibling_order_rank``."""

Value = str | int | float | bool
Arguments = Mapping[str, Value | Sequence[str]]


def varint(value: int) -> bytes:
    """A number of protobuf; negative ones take ten bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """An integer field."""
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A field of text."""
    return block(field, value.encode("utf-8", "replace"))


def _double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


class TraceWriter:
    """Collects packets. Events of one track are to be written in the order of their time."""

    def __init__(self, wall: int) -> None:
        """``wall``: ns since the epoch of time zero, 0 where no date is known."""
        self._parts: list[bytes] = []
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._new: list[bytes] = []
        self._tracks = 0
        snapshot = b"".join(
            block(1, number(1, clock) + number(2, time))
            for clock, time in ((BOOTTIME, 0), (REALTIME, wall))
            if clock == BOOTTIME or wall > 0
        )
        self._packet(number(13, CLEARED) + block(6, snapshot))

    def track(self, name: str, parent: int = 0, description: str = "") -> int:
        """A new track below another one, after its elder siblings; returns its number.

        Tracks without a parent are in the viewer's own order, that of their names.
        """
        self._tracks += 1
        content = number(1, self._tracks) + text(2, name) + number(11, EXPLICIT) + number(12, self._tracks)
        content += number(15, 2)  # siblings of the same name stay apart
        if parent:
            content += number(5, parent)
        if description:
            content += text(14, description)
        self._packet(block(60, content))
        return self._tracks

    def begin(self, track: int, time: int, name: str, arguments: Arguments | None = None) -> None:
        """A slice begins; without an `end` it is shown as one that did not finish."""
        self._event(BEGIN, track, time, name, arguments or {})

    def end(self, track: int, time: int) -> None:
        """The slice that began last on the track ends."""
        event = number(9, END) + number(11, track)
        self._packet(number(8, max(time, 0)) + block(11, event))

    def instant(
        self, track: int, time: int, name: str, arguments: Arguments | None = None, *, flow: int = 0,
        last: bool = False,
    ) -> None:  # fmt: skip
        """Something without a length. ``flow``: number of an arrow that leaves here, or (``last``) ends."""
        self._event(INSTANT, track, time, name, arguments or {}, flow, last)

    def slice(
        self, track: int, start: int, end: int | None, name: str, arguments: Arguments | None = None, *,
        flow: int = 0, last: bool = False,
    ) -> None:  # fmt: skip
        """A slice with both its ends; ``end`` None where it did not finish."""
        self._event(BEGIN, track, start, name, arguments or {}, flow, last)
        if end is not None:
            self.end(track, max(end, start))

    def encoded(self) -> bytes:
        """The whole trace."""
        return b"".join(self._parts)

    def _event(
        self,
        kind: int,
        track: int,
        time: int,
        name: str,
        arguments: Arguments,
        flow: int = 0,
        last: bool = False,
    ) -> None:
        event = number(9, kind) + number(11, track) + number(10, self._interned(self._names, name, 2))
        for key, value in arguments.items():
            event += block(4, number(1, self._interned(self._keys, key, 3)) + _value(value))
        if flow:  # a fixed64 field
            event += varint((48 if last else 47) << 3 | 1) + flow.to_bytes(8, "little")
        content = number(8, max(time, 0)) + block(11, event)
        if self._new:
            content += block(12, b"".join(self._new))
            self._new = []
        self._packet(content + _NEEDS)

    def _interned(self, known: dict[str, int], word: str, field: int) -> int:
        """The number of a word; a new one is written along with the packet. ``field``: the table it is in."""
        found = known.get(word)
        if found is None:
            found = known[word] = len(known) + 1
            self._new.append(block(field, number(1, found) + text(2, word)))
        return found

    def _packet(self, content: bytes) -> None:
        self._parts.append(block(1, content + _SEQUENCE))


def _value(value: Value | Sequence[str]) -> bytes:
    if isinstance(value, bool):
        return number(2, int(value))
    if isinstance(value, int):
        return number(4, value)
    if isinstance(value, float):
        return _double(5, value)
    if isinstance(value, str):
        return text(6, value)
    return b"".join(block(12, text(6, item)) for item in value)


_SEQUENCE = number(10, SEQUENCE)
_NEEDS = number(13, NEEDS_STATE)
