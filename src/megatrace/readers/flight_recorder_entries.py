"""Entries of a dump as columns of calls, in a few passes over them.

The compiled reader fills the same columns by itself (``native/flight_recorder_columns.h``) for dumps that are
as recorders write them; this does for all others, and is what that must agree with.

Does not read files, and does not know which rank wrote a dump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COUNT, NO_PEER, NO_SEQ, UNSEEN, Op
from megatrace.readers.flight_recorder_names import BYTES, Call, call_of
from megatrace.readers.flight_recorder_raw import ABSENT, LIMIT, Raw

I8 = NDArray[np.int64]
B1 = NDArray[np.bool_]

MAX_NOTES = 8
"""Open calls of a rank whose shapes and stack frames are kept: the oldest ones are what it waits for."""

_NONE: dict[type[np.generic], NDArray[Any]] = {
    kind: np.empty(0, kind) for kind in (np.uint8, np.int32, np.int64, np.bool_)
}


@dataclass(slots=True)
class Note:
    """What is kept of an open entry (``row``) in words: shape and frame, as in ``model.states.CallNote``."""

    row: int
    shape: str
    frame: str


@dataclass(slots=True, eq=False)
class Dump:
    """One process' dump. Columns have one row an entry, oldest first; group names index ``names``.

    op uint8; group int32; seq int64 (collectives and P2P as the recorder counts them); peer int32 rank within
    the group; count, nbytes int64; created, started, ended int64 ns; coalesced bool. ``own``: the group and
    the rank within it that the first message names as its own, None where there is none.
    """

    source: str
    version: str = ""
    modified: int | None = None
    names: list[str] = field(default_factory=list)
    config: dict[str, tuple[str, tuple[int, ...] | None]] = field(default_factory=dict)
    """group name → (description, global ranks)"""
    status: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """local id of a group → last enqueued, started, completed"""
    ids: dict[str, str] = field(default_factory=dict)
    """local id of a group → its name"""
    op: NDArray[np.uint8] = field(default_factory=lambda: _NONE[np.uint8])
    group: NDArray[np.int32] = field(default_factory=lambda: _NONE[np.int32])
    seq: I8 = field(default_factory=lambda: _NONE[np.int64])
    own: tuple[int, int] | None = None
    peer: NDArray[np.int32] = field(default_factory=lambda: _NONE[np.int32])
    count: I8 = field(default_factory=lambda: _NONE[np.int64])
    nbytes: I8 = field(default_factory=lambda: _NONE[np.int64])
    created: I8 = field(default_factory=lambda: _NONE[np.int64])
    started: I8 = field(default_factory=lambda: _NONE[np.int64])
    ended: I8 = field(default_factory=lambda: _NONE[np.int64])
    coalesced: NDArray[np.bool_] = field(default_factory=lambda: _NONE[np.bool_])
    notes: list[Note] = field(default_factory=list)
    timeout: int | None = None
    has_start: bool = False
    lost: bool = False
    """The buffer rolled over: records at the front are missing."""
    bad: int = 0
    """Entries that were none."""

    def __len__(self) -> int:
        return len(self.op)


def read_entries(dump: Dump, raw: Raw, words: Callable[[int], tuple[str, str]]) -> None:
    """Fills in the columns of a dump from a row or more. ``words(i)``: shape and frame of the entry that is
    the i-th in the file."""
    record = raw.column("record_id")
    order = None
    if not bool((record[1:] >= record[:-1]).all()):
        order = np.argsort(record, kind="stable")
        raw = Raw(raw.table[:, order], raw.texts, raw.bad)
    rows = _fill(dump, raw)
    for row in np.flatnonzero(dump.ended == UNSEEN)[:MAX_NOTES].tolist():
        at = int(rows[row])
        shape, frame = words(at if order is None else int(order[at]))
        dump.notes.append(Note(row, shape, frame))


def _fill(dump: Dump, raw: Raw) -> I8:
    """The columns of entries in the order of their numbers; the row of each call that is kept."""
    name = _text(raw, "name")
    op, own, peer, shut, stateless = _calls(raw.texts)[name].T
    closes = shut > 0
    group = _groups(dump, raw)
    p2p = (op == Op.SEND) | (op == Op.RECV) | (raw.column("is_p2p") == 1)
    seq = np.where(p2p, raw.column("p2p_seq"), raw.column("collective_seq"))
    plain = raw.column("seq")
    seq = np.where(seq < 0, np.where(plain < 0, NO_SEQ, plain), seq)
    state = _text(raw, "state")
    begun = _is(raw, state, "started")
    created, started, ended, known = _times(raw, stateless > 0, state, begun)
    waiting = np.where((ended == UNSEEN) & (raw.column("timeout_ms") > 0), raw.column("timeout_ms"), LIMIT)
    dump.timeout = timeout_of(int(waiting.min()))
    dump.has_start = bool((known | begun).any())
    dump.lost = bool(raw.column("record_id")[0] > 0)
    member = _coalesced(_segments(group, seq, p2p, closes), closes, started, ended)
    rows = _rows_kept(group, seq, p2p, closes)
    count, nbytes = _sizes(raw, op)
    columns: dict[str, NDArray[Any]] = {
        "op": op.astype(np.uint8), "group": group.astype(np.int32), "seq": seq, "count": count,
        "nbytes": nbytes, "peer": peer.astype(np.int32), "created": created,
        "started": started, "ended": ended, "coalesced": member,
    }  # fmt: skip
    for key, column in columns.items():
        setattr(dump, key, column[rows])
    messages = rows[own[rows] != NO_PEER]
    dump.own = (int(group[messages[0]]), int(own[messages[0]])) if len(messages) else None
    return rows


def timeout_of(shortest: int) -> int | None:
    """ns of the shortest timeout in ms of a dump's open calls, ``LIMIT`` for none."""
    return None if shortest == LIMIT else min(shortest, 1 << 42) * 1_000_000


def _text(raw: Raw, name: str) -> I8:
    """A column of indices into ``texts``; −1, the place after the last one, for none."""
    column = raw.column(name)
    return np.where(column == ABSENT, -1, column)


def name_groups(dump: Dump, texts: Sequence[str], said: Iterable[Sequence[int]]) -> list[int]:
    """The index in ``dump.names`` of each group; learns names of local ids, too.

    Of a group an entry says (name, description, number, id as text): indices of ``texts`` but for the number,
    negative for none.
    """
    names: dict[str, int] = {}
    index = []
    for group, desc, number, text in said:
        key = texts[text] if text >= 0 else str(number) if number >= 0 else ""
        name = (texts[group] if group >= 0 else "") or key
        if key:
            dump.ids[key] = name
        if desc >= 0 and name not in dump.config:
            dump.config[name] = (texts[desc], None)
        index.append(names.setdefault(name, len(names)))
    dump.names = list(names)
    return index


def _groups(dump: Dump, raw: Raw) -> I8:
    """int64: the group of each entry, an index into ``dump.names``, in the order in which they come."""
    said = np.stack([raw.column(name) for name in ("group", "desc", "pg_id", "pg_id_text")])
    keys = np.maximum(said[[0, 2, 3]], -1)
    mixed = (keys[0] * 1_000_003 + keys[1]) * 1_000_003 + keys[2]
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = name_groups(dump, raw.texts, said[:, first[order]].T.tolist())
    return np.asarray(place[inverse])


def _calls(texts: Sequence[str]) -> I8:
    """int64 [texts + 1, 5]: operation, own rank, peer, closes, stateless; the last row is for no name."""
    calls = [*map(call_of, texts), Call(Op.UNKNOWN)]
    return np.asarray([(c.op, c.own, c.peer, c.closes, c.stateless) for c in calls], np.int64)


def _sizes(raw: Raw, op: I8) -> tuple[I8, I8]:
    """(elements, bytes) of each call."""
    out = (op == Op.SCATTER) | (op == Op.RECV)
    count = np.where(out, raw.column("count_out"), raw.column("count_in"))
    count = np.where(count == ABSENT, NO_COUNT, count)
    widths = np.asarray([*(BYTES.get(text.lower(), NO_COUNT) for text in raw.texts), NO_COUNT], np.int64)
    width = widths[_text(raw, "dtype")]
    safe = (count >= 0) & (width > 0) & (count < LIMIT >> 4)
    return count, np.where(safe, np.where(safe, count, 0) * width, NO_COUNT)


def _is(raw: Raw, column: I8, word: str) -> B1:
    """Rows whose text is a word."""
    found = np.asarray([*(text == word for text in raw.texts), False], np.bool_)
    return np.asarray(found[column])


def _times(raw: Raw, stateless: B1, state: I8, begun: B1) -> tuple[I8, I8, I8, B1]:
    """(created, started, ended, start was noted) with what states say where no time was noted: at the
    earliest when the call was made."""
    created = np.maximum(raw.column("created"), 0)
    start, end = raw.column("started"), raw.column("ended")
    known = start > 0
    done = _is(raw, state, "completed") | (stateless & (raw.column("retired") == 1))
    ended = np.where(end > 0, end, np.where(done, created, UNSEEN))
    begun = begun | (ended != UNSEEN)
    return created, np.where(known, start, np.where(begun, created, UNSEEN)), ended, known


def _segments(group: I8, seq: I8, p2p: B1, closes: B1) -> I8 | None:
    """For each row the last row of its run: rows in a row with the same group, number and kind, ended by one
    that closes a coalesced group. None where nothing is coalesced."""
    if not bool(closes.any()):
        return None
    begins = np.ones(len(group), np.bool_)
    begins[1:] = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1]) | (p2p[1:] != p2p[:-1]) | closes[:-1]
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:] - 1, len(group) - 1)
    return np.asarray(lasts[np.cumsum(begins) - 1])


def _coalesced(lasts: I8 | None, closes: B1, started: I8, ended: I8) -> B1:
    """Which calls are of a coalesced group; they get the state of the entry that closes it (in place)."""
    if lasts is None:
        return np.zeros(len(closes), np.bool_)
    member = closes[lasts] & ~closes
    started[member], ended[member] = started[lasts[member]], ended[lasts[member]]
    return np.asarray(member)


def _rows_kept(group: I8, seq: I8, p2p: B1, closes: B1) -> I8:
    """The rows that stay: those that close a coalesced group, or repeat a collective's number, do not."""
    repeats = np.zeros(len(group), np.bool_)
    same = (group[1:] == group[:-1]) & (seq[1:] == seq[:-1]) & (seq[1:] >= 0)
    repeats[1:] = same & ~p2p[1:] & ~p2p[:-1]
    return np.flatnonzero(~closes & ~repeats)
