"""Entries of many dumps as columns, in a few passes over all of them.

A dump has some thousand entries, and numpy needs as long to begin as to work on so few; so dumps are gathered
(``Pending``) and read together. Nothing here crosses the border between two dumps: the group of an entry
has a number of its own in every dump.

Does not read files, and does not know which rank wrote a dump.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COUNT, NO_SEQ, UNSEEN, Op
from megatrace.readers.flight_recorder_names import BYTES, Call, call_of
from megatrace.readers.flight_recorder_raw import ABSENT, AT, LIMIT, Raw

I8 = NDArray[np.int64]
B1 = NDArray[np.bool_]

MAX_NOTES = 8
"""Open calls of a rank whose shapes and stack frames are kept: the oldest ones are what it waits for."""


@dataclass(slots=True)
class Note:
    """What is kept of an open entry (``row``) in words: shape and frame, as in ``model.states.CallNote``."""

    row: int
    shape: str
    frame: str


@dataclass(slots=True, eq=False)
class Dump:
    """One process' dump. Columns have one row an entry, oldest first; group names index ``names``.

    op uint8; group int32; seq int64 (collectives and P2P as the recorder counts them); own, peer int32 ranks
    within the group; count, nbytes int64; created, started, ended int64 ns; coalesced bool.
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
    op: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    group: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    seq: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    own: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    peer: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    count: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    nbytes: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    created: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    started: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    ended: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    coalesced: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    notes: list[Note] = field(default_factory=list)
    timeout: int | None = None
    has_start: bool = False
    lost: bool = False
    """The buffer rolled over: records at the front are missing."""
    bad: int = 0
    """Entries that were none."""

    def __len__(self) -> int:
        return len(self.op)


@dataclass(slots=True, eq=False)
class Pending:
    """A dump whose columns are still to be filled in from ``raw``, which has a row or more.

    ``words(i)``: shape and frame of the entry that is the i-th in the file.
    """

    dump: Dump
    raw: Raw
    order: I8 | None
    """The place in the file of each row, None where rows are in the order of the file."""
    words: Callable[[int], tuple[str, str]]


def pending(dump: Dump, raw: Raw, words: Callable[[int], tuple[str, str]]) -> Pending:
    """Puts the entries into the order of their numbers; learns the names of their groups."""
    record = raw.column("record_id")
    order = None
    if not bool((record[1:] >= record[:-1]).all()):
        order = np.argsort(record, kind="stable")
        raw = Raw(raw.table[:, order], raw.texts, raw.bad)
    return Pending(dump, raw, order, words)


def open_rows(raw: Raw) -> I8 | None:
    """Rows of calls that are open, told from each row alone; None where that is not enough."""
    calls = [call_of(text) for text in raw.texts]
    if any(call.closes for call in calls):
        return None
    rows = np.flatnonzero(raw.column("ended") <= 0)
    if not len(rows):
        return rows
    columns = _calls(raw.texts)
    done = raw.table[AT["state"], rows] == _place(raw.texts, "completed")
    stateless = columns[raw.table[AT["name"], rows].clip(-1), 4] > 0
    done |= stateless & (raw.table[AT["retired"], rows] == 1)
    return np.asarray(rows[~done])


def _place(texts: Sequence[str], word: str) -> int:
    return texts.index(word) if word in texts else -2


def _calls(texts: Sequence[str]) -> I8:
    """int64 [texts + 1, 5]: operation, own rank, peer, closes, stateless; the last row is for no name."""
    calls = [*map(call_of, texts), Call(Op.UNKNOWN)]
    return np.asarray([(c.op, c.own, c.peer, c.closes, c.stateless) for c in calls], np.int64)


class _Batch:
    """The tables of several dumps side by side."""

    def __init__(self, items: Sequence[Pending]) -> None:
        self.texts = [text for item in items for text in item.raw.texts]
        sizes = [item.raw.table.shape[1] for item in items]
        self.bounds = np.concatenate([[0], np.cumsum(sizes)])
        before = np.concatenate([[0], np.cumsum([len(item.raw.texts) for item in items])[:-1]])
        self._table = items[0].raw.table if len(items) == 1 else None
        self._items = items
        self._shift = before.repeat(sizes)

    def column(self, name: str) -> I8:
        """One column of all dumps."""
        if self._table is not None:
            return np.asarray(self._table[AT[name]])
        return np.concatenate([item.raw.table[AT[name]] for item in self._items])

    def text(self, name: str) -> I8:
        """Indices into ``texts``; −1, the place after the last one, for none."""
        own = self.column(name)
        return np.where(own == ABSENT, -1, own + self._shift)


def read_entries(items: Sequence[Pending]) -> None:
    """Fills in the columns of all dumps."""
    batch = _Batch(items)
    name, bounds = batch.text("name"), batch.bounds
    table = _calls(batch.texts)
    op, own, peer, shut, stateless = (np.ascontiguousarray(column)[name] for column in table.T)
    closes = shut > 0
    local, group = _groups(items)
    p2p = (op == Op.SEND) | (op == Op.RECV) | (batch.column("is_p2p") == 1)
    seq = np.where(p2p, batch.column("p2p_seq"), batch.column("collective_seq"))
    if bool((seq < 0).any()):
        plain = batch.column("seq")
        seq = np.where(seq < 0, np.where(plain < 0, NO_SEQ, plain), seq)
    state = batch.text("state")
    begun = _is(batch, state, "started")
    created, started, ended, known = _times(batch, stateless > 0, state, begun)
    _of_dumps(items, batch, ended, known | begun)
    key_ends = _segments(group, seq, p2p, closes)
    member = _coalesced(key_ends, closes, started, ended)
    rows = _rows_kept(group, seq, p2p, closes)
    count, nbytes = _sizes(batch, op)
    columns: dict[str, NDArray[Any]] = {
        "op": op.astype(np.uint8), "group": local.astype(np.int32), "seq": seq, "count": count,
        "nbytes": nbytes, "own": own.astype(np.int32), "peer": peer.astype(np.int32), "created": created,
        "started": started, "ended": ended, "coalesced": member,
    }  # fmt: skip
    if len(rows) < len(op):
        columns = {key: column[rows] for key, column in columns.items()}
    _cut(items, columns, rows, bounds)


def _cut(items: Sequence[Pending], columns: dict[str, NDArray[Any]], rows: I8, bounds: I8) -> None:
    """Gives each dump its part, and words to its first open calls."""
    cuts = np.searchsorted(rows, bounds).tolist()
    for i, item in enumerate(items):
        part = slice(cuts[i], cuts[i + 1])
        for key, column in columns.items():
            setattr(item.dump, key, column[part])
        for row in np.flatnonzero(item.dump.ended == UNSEEN)[:MAX_NOTES].tolist():
            at = int(rows[cuts[i] + row] - bounds[i])
            shape, frame = item.words(at if item.order is None else int(item.order[at]))
            item.dump.notes.append(Note(row, shape, frame))


def _of_dumps(items: Sequence[Pending], batch: _Batch, ended: I8, begun: B1) -> None:
    """What is known of a dump as a whole: its timeout, whether starts are seen, whether its front is
    missing."""
    starts = batch.bounds[:-1]
    timeout = batch.column("timeout_ms")
    waiting = np.where((ended == UNSEEN) & (timeout > 0), timeout, LIMIT)
    least = np.minimum.reduceat(waiting, starts).tolist()
    any_begun = np.logical_or.reduceat(begun, starts).tolist()
    lost = (batch.column("record_id")[starts] > 0).tolist()
    for item, shortest, has_start, rolled in zip(items, least, any_begun, lost, strict=True):
        item.dump.timeout = None if shortest == LIMIT else min(shortest, 1 << 42) * 1_000_000
        item.dump.has_start, item.dump.lost = has_start, rolled


def _sizes(batch: _Batch, op: I8) -> tuple[I8, I8]:
    """(elements, bytes) of each call."""
    count = batch.column("count_in")
    out = (op == Op.SCATTER) | (op == Op.RECV)
    if bool(out.any()):
        count = np.where(out, batch.column("count_out"), count)
    count = np.where(count == ABSENT, NO_COUNT, count)
    widths = np.asarray([*(BYTES.get(text.lower(), NO_COUNT) for text in batch.texts), NO_COUNT], np.int64)
    width = widths[batch.text("dtype")]
    safe = (count >= 0) & (width > 0) & (count < LIMIT >> 4)
    return count, np.where(safe, np.where(safe, count, 0) * width, NO_COUNT)


def _is(batch: _Batch, column: I8, word: str) -> B1:
    """Rows whose text is a word."""
    found = np.asarray([*(text == word for text in batch.texts), False], np.bool_)
    return np.asarray(found[column])


def _times(batch: _Batch, stateless: B1, state: I8, begun: B1) -> tuple[I8, I8, I8, B1]:
    """(created, started, ended, start was noted) with what states say where no time was noted: at the
    earliest when the call was made."""
    created = np.maximum(batch.column("created"), 0)
    start, end = batch.column("started"), batch.column("ended")
    known = start > 0
    done = _is(batch, state, "completed") | (stateless & (batch.column("retired") == 1))
    ended = np.where(end > 0, end, np.where(done, created, UNSEEN))
    begun = begun | (ended != UNSEEN)
    return created, np.where(known, start, np.where(begun, created, UNSEEN)), ended, known


def _groups(items: Sequence[Pending]) -> tuple[I8, I8]:
    """The group of each entry: an index into its dump's ``names``, and a number that no other dump has."""
    parts, shifts, shift = [], [], 0
    for item in items:
        parts.append(_groups_of(item.dump, item.raw))
        shifts.append(shift)
        shift += len(item.dump.names)
    local = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return local, local + np.repeat(shifts, [len(part) for part in parts])


def _groups_of(dump: Dump, raw: Raw) -> I8:
    """int64: the group of each entry, an index into ``dump.names``; learns names of local ids, too."""
    group, desc = raw.column("group"), raw.column("desc")
    number, text = raw.column("pg_id"), raw.column("pg_id_text")
    first, inverse = _combinations(group, number, text, len(raw.texts))
    names: dict[str, int] = {}
    index = []
    for row in first:
        key = raw.texts[text[row]] if text[row] >= 0 else str(number[row]) if number[row] >= 0 else ""
        name = (raw.texts[group[row]] if group[row] >= 0 else "") or key
        if key:
            dump.ids[key] = name
        if desc[row] >= 0 and name not in dump.config:
            dump.config[name] = (raw.texts[desc[row]], None)
        index.append(names.setdefault(name, len(names)))
    dump.names = list(names)
    return np.asarray(index, np.int64)[inverse]


def _combinations(group: I8, number: I8, text: I8, texts: int) -> tuple[list[int], I8]:
    """The first row of each combination, and the combination of each row. Few are in many rows, so each is
    looked at once."""
    at = np.full(texts + 1, -1, np.int64)
    at[np.maximum(group, -1)[::-1]] = np.arange(len(group) - 1, -1, -1)
    example = at[np.maximum(group, -1)]  # mostly a name of a group has one id
    if bool((number == number[example]).all() and (text == text[example]).all()):
        order = np.flatnonzero(at >= 0)
        place = np.zeros(texts + 1, np.int64)
        place[order] = np.arange(len(order))
        return at[order].tolist(), place[np.maximum(group, -1)]
    mixed = (np.maximum(group, -1) * 1_000_003 + np.maximum(number, -1)) * 1_000_003 + np.maximum(text, -1)
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    return first.tolist(), inverse


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
