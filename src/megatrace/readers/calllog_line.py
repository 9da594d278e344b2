"""One line of the text call log: the grammar in its readable form.

Writers disagree on the layout, so a line is read token by token, fields in any order: a token is a
``[...]`` group or a bare word; ``Key value`` inside a group or two bare words make a field. Four
dialects are in use::

    [1755590104.253968145] [Rank 0] Fun AllReduce Data 1 stream 0x55919d27b4b0
    [save_count 1] [1755590104.253968145] [Rank 0] Fun AllReduce Data 1 stream 0x55919d27b4b0 opCount 0
    [save_count 1] [1755590104.253968145] [Rank 0] Fun Send Data 1 stream (nil) opCount 0 groupHash -819
    [10.0.0.1] [node1] [save_count 1] [...] [Rank 0] [PCI ..] [Func ncclSend] [Data 1] [stream 0x..] ...

``Data`` counts elements. The original formats the part from the timestamp on into ``char[128]``, so a
line whose body is exactly that long may have lost its end: what stands last is then not trusted
(`Flag.HASH_CUT`).

This module decides; ``native/logparse.cc`` and ``calllog_numpy`` are faster readers of the same grammar
and must agree with it on every sequence of bytes. It does not read files.
"""

from __future__ import annotations

import re
from enum import Enum, IntFlag
from typing import NamedTuple

from megatrace.model.events import Op

MAX_LINE = 4096
"""No dialect comes near; a longer "line" is not text."""
BODY_LIMITS = (127, 128)
"""``char[128]`` holds 127 bytes and a NUL; some builds lose the NUL and keep the 128th byte."""
NO_SEQ = -1

_INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1
_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1
_NS = 10**9


class Flag(IntFlag):
    """Bits of a parsed line's flags; the twin of the enum in ``native/logparse.h``."""

    NONE = 0
    HASH = 1
    HASH_CUT = 2
    SAVE_COUNT = 4
    SEQ = 8
    BRACKETED = 16


class Row(NamedTuple):
    """A call line: the columns of ``calllog_columns`` in their order."""

    rank: int
    op: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a row
    stream: int
    seq: int
    group_hash: int
    enqueue: int
    save_count: int
    flags: int


class Defect(Enum):
    """Why a line is no call."""

    BLANK = "blank"
    TORN = "cut off"
    TOO_LONG = "longer than any call"
    NUL = "NUL bytes"
    BINARY = "bytes that are not text"
    FOREIGN = "not a call"
    BROKEN = "a broken call"


OPS: dict[bytes, Op] = {
    b"AllReduce": Op.ALL_REDUCE,
    b"AllGather": Op.ALL_GATHER,
    b"ReduceScatter": Op.REDUCE_SCATTER,
    b"Broadcast": Op.BROADCAST,
    b"Bcast": Op.BROADCAST,
    b"Reduce": Op.REDUCE,
    b"Send": Op.SEND,
    b"Recv": Op.RECV,
    b"AllToAll": Op.ALL_TO_ALL,
    b"AlltoAll": Op.ALL_TO_ALL,
    b"Gather": Op.GATHER,
    b"Scatter": Op.SCATTER,
    b"Barrier": Op.BARRIER,
}

_KEYS = {
    b"save_count": "save_count",
    b"Rank": "rank",
    b"Fun": "op",
    b"Func": "op",
    b"Data": "count",
    b"stream": "stream",
    b"opCount": "seq",
    b"groupHash": "group_hash",
}
_REQUIRED = frozenset(("enqueue", "rank", "op", "count", "stream"))
_TOKEN = re.compile(rb"\[([^\[\]]*)\]|([^ \t\[\]]+)(?![^ \t])")
_WORD = re.compile(rb"[^ \t\[\]]*(?![^ \t])")
_BLANKS = re.compile(rb"[ \t]*")
_UNSIGNED = re.compile(rb"[0-9]{1,20}")
_HEX = re.compile(rb"0x[0-9A-Fa-f]{1,16}")
_TIMESTAMP = re.compile(rb"([0-9]{1,10})\.([0-9]{1,9})")
_NAME = re.compile(rb"[A-Za-z0-9_]{1,48}")
_CALL_MARK = re.compile(rb"\[Rank |Fun[c]? [A-Za-z]|\[save_count |stream 0x|opCount |^\[[0-9]+\.[0-9]+\]")


def _unsigned(text: bytes, limit: int) -> int | None:
    if not _UNSIGNED.fullmatch(text):
        return None
    value = int(text)
    return value if value <= limit else None


def _hash(text: bytes) -> int | None:
    if text.startswith(b"0x"):
        return int(text, 16) if _HEX.fullmatch(text) else None
    if text.startswith(b"-"):
        magnitude = _unsigned(text[1:], 2**63)
        return None if magnitude is None else -magnitude % 2**64
    return _unsigned(text, _UINT64_MAX)


def _timestamp(text: bytes) -> int | None:
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        return None
    seconds = int(found[1])
    # One second less than what int64 nanoseconds hold, so that the fraction always fits.
    return seconds * _NS + int(found[2].ljust(9, b"0")) if seconds <= _INT64_MAX // _NS - 1 else None


def _op(text: bytes) -> int | None:
    if not _NAME.fullmatch(text):
        return None
    name = text[4:] if text.startswith(b"nccl") and len(text) > 4 else text
    # A call that this release has no name for is still a call.
    return int(OPS.get(name, Op.UNKNOWN))


def _value(key: str, text: bytes) -> int | None:
    """The value of a field, None where it is not one."""
    if key == "op":
        return _op(text)
    if key == "rank":
        return _unsigned(text, _INT32_MAX)
    if key == "group_hash":
        return _hash(text)
    if key == "stream":
        return 0 if text == b"(nil)" else int(text, 16) if _HEX.fullmatch(text) else None
    return _unsigned(text, _INT64_MAX)


class _Line:
    """The state of reading one line."""

    __slots__ = ("at", "body", "fields", "flags", "last_bare", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0
        self.body: int | None = None
        self.fields: dict[str, int] = {}
        self.flags = Flag.NONE
        self.last_bare = ""

    def at_limit(self) -> bool:
        """The body is exactly as long as the writer's buffer allows: its end may be missing."""
        return self.body is not None and len(self.text) - self.body in BODY_LIMITS

    def skip_blanks(self) -> None:
        found = _BLANKS.match(self.text, self.at)
        assert found is not None  # it matches the empty string
        self.at = found.end()

    def put(self, key: str, value: int | None) -> bool:
        if value is None or key in self.fields:
            return False
        self.fields[key] = value
        return True

    def take_group(self, content: bytes, start: int) -> bool:
        key, blank, text = content.partition(b" ")
        if not blank:
            time = _timestamp(content)
            if time is None:
                return True  # an address, a host name: not ours
            self.body = start
            return self.put("enqueue", time)
        name = _KEYS.get(key)
        if name is None:
            return True  # [PCI ...] and whatever else a writer adds
        if name in ("op", "count", "stream"):
            self.flags |= Flag.BRACKETED
        return self.put(name, _value(name, text))

    def take_word(self, word: bytes) -> bool:
        cut = self.at_limit()
        name = _KEYS.get(word, "")
        self.last_bare = name
        if not name:
            if cut and self.at == len(self.text) and b"groupHash".startswith(word):
                self.flags |= Flag.HASH_CUT
                return True
            return False
        self.skip_blanks()
        found = _WORD.match(self.text, self.at)
        if found is None:
            return False
        value, self.at = found[0], found.end()
        if cut and self.at == len(self.text):
            if name == "group_hash":
                self.flags |= Flag.HASH_CUT
                return self.put(name, 0 if value in (b"", b"-", b"0x") else _hash(value))
            if name == "seq" and value:
                return self.put(name, NO_SEQ)  # the number itself may be cut
        return self.put(name, _value(name, value))


def parse_line(line: bytes) -> Row | None:
    """A line without its newline as a call, or None where it is not a whole, valid one."""
    text = line.rstrip(b"\r")
    if len(text) > MAX_LINE:
        return None
    state = _Line(text)
    state.skip_blanks()
    while state.at < len(text):
        found = _TOKEN.match(text, state.at)
        if found is None:
            return None
        start, state.at = state.at, found.end()
        ok = state.take_word(found[2]) if found[1] is None else state.take_group(found[1], start)
        if not ok:
            return None
        state.skip_blanks()
    fields = state.fields
    if not fields.keys() >= _REQUIRED:
        return None
    flags = state.flags
    if state.last_bare == "seq" and state.at_limit():
        flags |= Flag.HASH_CUT  # the buffer ended right after the opCount: a hash, if there was one, is lost
    if "group_hash" in fields and not flags & Flag.HASH_CUT:
        flags |= Flag.HASH
    seq = fields.get("seq", NO_SEQ)
    if seq != NO_SEQ:
        flags |= Flag.SEQ
    if "save_count" in fields:
        flags |= Flag.SAVE_COUNT
    return Row(
        rank=fields["rank"],
        op=fields["op"],
        count=fields["count"],
        stream=fields["stream"],
        seq=seq,
        group_hash=fields.get("group_hash", 0),
        enqueue=fields["enqueue"],
        save_count=min(fields.get("save_count", 0), _UINT32_MAX),
        flags=int(flags),
    )


def defect_of(line: bytes) -> Defect:
    """Why a line (without its newline) that `parse_line` refuses is no call."""
    text = line.strip(b" \t\r")
    if not text:
        return Defect.BLANK
    if len(line.rstrip(b"\r")) > MAX_LINE:
        return Defect.TOO_LONG
    if b"\0" in text:
        return Defect.NUL
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return Defect.BINARY
    return Defect.BROKEN if _CALL_MARK.search(text) else Defect.FOREIGN
