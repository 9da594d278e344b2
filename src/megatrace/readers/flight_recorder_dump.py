"""One dump of a flight recorder as columns: entries, groups and counters of one process.

Takes the value that a pickle or a JSON text held, of whatever version (2.1 to 2.10 are known; 1.x and later
ones are read as far as their keys are the same). Values of a wrong type become "not known", never an error:
what is left is still evidence.

Does not know which rank wrote the dump: ``flight_recorder_ranks``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COUNT, NO_PEER, NO_SEQ, UNSEEN, Op
from megatrace.readers.flight_recorder_raw import ABSENT, LIMIT, Raw, number, raw_of

I8 = NDArray[np.int64]

MAX_NOTES = 8
"""Open calls of a rank whose shapes and stack frames are kept: the oldest ones are what it waits for."""

OPS: dict[str, Op] = {
    "all_reduce": Op.ALL_REDUCE,
    "allreduce": Op.ALL_REDUCE,
    "all_reduce_barrier": Op.BARRIER,
    "all_reduce_sparse": Op.ALL_REDUCE,
    "allreduce_coalesced": Op.ALL_REDUCE,
    "allreduce_coalesced_": Op.ALL_REDUCE,
    "all_gather": Op.ALL_GATHER,
    "_all_gather_base": Op.ALL_GATHER,
    "all_gather_into_tensor": Op.ALL_GATHER,
    "all_gather_into_tensor_coalesced": Op.ALL_GATHER,
    "all_gather_single": Op.ALL_GATHER,
    "reduce_scatter": Op.REDUCE_SCATTER,
    "_reduce_scatter_base": Op.REDUCE_SCATTER,
    "reduce_scatter_tensor": Op.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": Op.REDUCE_SCATTER,
    "reduce_scatter_single": Op.REDUCE_SCATTER,
    "broadcast": Op.BROADCAST,
    "_broadcast_oop": Op.BROADCAST,
    "reduce": Op.REDUCE,
    "_reduce_oop": Op.REDUCE,
    "all_to_all": Op.ALL_TO_ALL,
    "all_to_all_single": Op.ALL_TO_ALL,
    "alltoall_base": Op.ALL_TO_ALL,
    "gather": Op.GATHER,
    "scatter": Op.SCATTER,
    "barrier": Op.BARRIER,
    "send": Op.SEND,
    "recv": Op.RECV,
    "recvanysource": Op.RECV,
}
"""Names after the backend ("nccl:all_reduce"), in lower case."""

BYTES: dict[str, int] = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "complexfloat": 8, "complexdouble": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes of an element, by the names that the recorder writes, in lower case."""

_PEER = re.compile(r"(send|recv)\s+(\d{1,9})\s*(->|<-)\s*(\d{1,9})")
COALESCED = "coalesced"


@dataclass(frozen=True, slots=True)
class Call:
    """What a profiling name says: the operation, and the group ranks of a Send or Recv (−1 none)."""

    op: Op
    own: int = NO_PEER
    peer: int = NO_PEER
    closes: bool = False
    """The end of a coalesced group, which holds the state of all its calls."""
    stateless: bool = False
    """The backend never reports states: only "retired" tells that a call is over."""


@lru_cache(maxsize=65_536)
def call_of(name: str) -> Call:
    """ "nccl:send 0->1" → SEND, own 0, peer 1."""
    backend, _, rest = name.partition(":")
    word = (rest or backend).strip().lower()
    stateless = backend in ("gloo", "mpi", "ucc")
    if word == COALESCED:
        return Call(Op.UNKNOWN, closes=True, stateless=stateless)
    found = _PEER.match(word)
    if found is not None:
        op = Op.SEND if found.group(1) == "send" else Op.RECV
        return Call(op, int(found.group(2)), int(found.group(4)), stateless=stateless)
    first = word.split(" ")[0]
    return Call(OPS.get(first, OPS.get(first.strip("_"), Op.UNKNOWN)), stateless=stateless)


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


def parse_dump(value: object, source: str) -> Dump | None:
    """The dump in a decoded pickle or JSON value; None where it is none."""
    whole: Mapping[Any, Any]
    if isinstance(value, list):  # versions before 2.0 dumped the list alone
        whole = {"entries": value}
    elif isinstance(value, dict):
        whole = value
    else:
        return None
    entries = whole.get("entries")
    if not isinstance(entries, list) and not isinstance(whole.get("pg_config"), dict):
        return None
    raw, kept = raw_of(entries if isinstance(entries, list) else [])
    return dump_of(raw, whole, kept.__getitem__, source)


def dump_of(raw: Raw, rest: Mapping[Any, Any], entry: Callable[[int], dict[str, Any]], source: str) -> Dump:
    """The dump of entries as numbers, of everything else in it, and of a way to see one entry whole."""
    dump = Dump(source, version=_text(rest.get("version"))[:16], bad=raw.bad)
    read_groups(dump, rest)
    if raw.table.size:
        read_entries(dump, raw, entry)
    return dump


def read_groups(dump: Dump, whole: Mapping[Any, Any]) -> None:
    """Fills in what the dump says of groups and of how far they got."""
    config = whole.get("pg_config")
    for name, item in config.items() if isinstance(config, dict) else ():
        if isinstance(item, dict):
            dump.config[_text(name)] = (_text(item.get("desc")), _ranks(item.get("ranks")))
    status = whole.get("pg_status")
    for key, item in status.items() if isinstance(status, dict) else ():
        if isinstance(item, dict):
            wanted = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
            dump.status[_text(key)] = tuple(_number(item.get(word), NO_SEQ) for word in wanted)  # type: ignore[assignment]


def _ranks(value: object) -> tuple[int, ...] | None:
    """Ranks of a group: "[0, 1]" as the recorder writes it, or a list."""
    return _ranks_of_text(value) if isinstance(value, str) else _checked(value)


@lru_cache(maxsize=4096)
def _ranks_of_text(text: str) -> tuple[int, ...] | None:
    """Every member of a group writes the same text."""
    try:
        return _checked(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _checked(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or not value:
        return None
    ranks = [rank for rank in value if type(rank) is int and 0 <= rank < 1 << 20]
    return tuple(ranks) if len(ranks) == len(value) == len(set(ranks)) else None


def read_entries(dump: Dump, raw: Raw, entry: Callable[[int], dict[str, Any]]) -> None:
    """Fills in the columns."""
    calls = [call_of(text) for text in raw.texts]
    widths = [BYTES.get(text.lower(), NO_COUNT) for text in raw.texts]
    nothing = Call(Op.UNKNOWN)
    columns = np.asarray(
        [(call.op, call.own, call.peer, call.closes, call.stateless) for call in (*calls, nothing)], np.int64
    )
    order = np.argsort(raw.column("record_id"), kind="stable")
    if bool((order[1:] > order[:-1]).all()):
        order = np.arange(len(order))
    else:
        raw = Raw(raw.table[:, order], raw.texts, raw.bad)
    name = raw.column("name")
    op, own, peer, closes, stateless = columns[np.where(name == ABSENT, len(calls), name)].T
    group = _groups(dump, raw)
    p2p = (op == Op.SEND) | (op == Op.RECV) | (raw.column("is_p2p") == 1)
    seq = np.where(p2p, raw.column("p2p_seq"), raw.column("collective_seq"))
    seq = np.where(seq < 0, np.where(raw.column("seq") < 0, NO_SEQ, raw.column("seq")), seq)
    created, started, ended = _times(raw, stateless > 0)
    timeout = raw.column("timeout_ms")[(ended == UNSEEN) & (raw.column("timeout_ms") > 0)]
    dump.timeout = int(min(timeout.min(), 1 << 42)) * 1_000_000 if len(timeout) else None
    begun = _is(raw, "state", "started")
    dump.has_start = bool(((raw.column("started") > 0) | begun).any())
    dump.lost = bool(raw.column("record_id")[0] > 0)
    member = _coalesced(group, seq, p2p, closes > 0, started, ended)
    rows = _rows_kept(group, seq, p2p, closes > 0)
    count = np.where((op == Op.SCATTER) | (op == Op.RECV), raw.column("count_out"), raw.column("count_in"))
    count = np.where(count == ABSENT, NO_COUNT, count)
    dtype = raw.column("dtype")
    width = np.asarray([*widths, NO_COUNT], np.int64)[np.where(dtype == ABSENT, len(widths), dtype)]
    safe = (count >= 0) & (width > 0) & (count < LIMIT >> 4)
    dump.op, dump.group = op[rows].astype(np.uint8), group[rows].astype(np.int32)
    dump.seq, dump.count = seq[rows], count[rows]
    dump.nbytes = np.where(safe, count * np.where(safe, width, 0), NO_COUNT)[rows]
    dump.own, dump.peer = own[rows].astype(np.int32), peer[rows].astype(np.int32)
    dump.created, dump.started, dump.ended = created[rows], started[rows], ended[rows]
    dump.coalesced = member[rows]
    for row in np.flatnonzero(dump.ended == UNSEEN)[:MAX_NOTES].tolist():
        whole = entry(int(order[rows[row]]))
        dump.notes.append(Note(row, shape_of(whole), frame_of(whole.get("frames"))))


def _is(raw: Raw, column: str, word: str) -> NDArray[np.bool_]:
    """Rows whose text is a word."""
    number = raw.texts.index(word) if word in raw.texts else -2
    return np.asarray(raw.column(column) == number)


def _times(raw: Raw, stateless: NDArray[np.bool_]) -> tuple[I8, I8, I8]:
    """(created, started, ended) with what states say where no time was noted: at the earliest when the call
    was made."""
    created = np.maximum(raw.column("created"), 0)
    started, ended = (
        np.where(raw.column(name) > 0, raw.column(name), UNSEEN) for name in ("started", "ended")
    )
    done = _is(raw, "state", "completed") | (stateless & (raw.column("retired") == 1))
    ended = np.where((ended == UNSEEN) & done, created, ended)
    begun = _is(raw, "state", "started") | (ended != UNSEEN)
    return created, np.where((started == UNSEEN) & begun, created, started), ended


def _groups(dump: Dump, raw: Raw) -> I8:
    """int64: the group of each entry, an index into ``dump.names``; learns names of local ids, too."""
    group, desc = raw.column("group"), raw.column("desc")
    number, text = raw.column("pg_id"), raw.column("pg_id_text")
    # Few combinations in many rows: each is looked at once.
    mixed = (np.maximum(group, -1) * 1_000_003 + np.maximum(number, -1)) * 1_000_003 + np.maximum(text, -1)
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    names: dict[str, int] = {}
    index = []
    for row in first.tolist():
        key = raw.texts[text[row]] if text[row] >= 0 else str(number[row]) if number[row] >= 0 else ""
        name = (raw.texts[group[row]] if group[row] >= 0 else "") or key
        if key:
            dump.ids[key] = name
        if desc[row] >= 0 and name not in dump.config:
            dump.config[name] = (raw.texts[desc[row]], None)
        index.append(names.setdefault(name, len(names)))
    dump.names = list(names)
    return np.asarray(index, np.int64)[inverse]


def _coalesced(
    group: I8, seq: I8, p2p: NDArray[np.bool_], closes: NDArray[np.bool_], started: I8, ended: I8
) -> NDArray[np.bool_]:
    """Which calls are of a coalesced group; they get the state of the entry that closes it (in place)."""
    member = np.zeros(len(group), np.bool_)
    ends = np.flatnonzero(closes).tolist()
    if not ends:
        return member
    key = list(zip(group.tolist(), seq.tolist(), p2p.tolist(), strict=True))
    shut = closes.tolist()
    rows, sources = [], []
    for end in ends:
        at = end - 1
        while at >= 0 and not shut[at] and key[at] == key[end]:
            rows.append(at)
            sources.append(end)
            at -= 1
    started[rows], ended[rows] = started[sources], ended[sources]
    member[rows] = True
    return member


def _rows_kept(group: I8, seq: I8, p2p: NDArray[np.bool_], closes: NDArray[np.bool_]) -> I8:
    """The rows that stay: those that close a coalesced group, or repeat a collective's number, do not."""
    repeats = np.zeros(len(group), np.bool_)
    same = (group[1:] == group[:-1]) & (seq[1:] == seq[:-1]) & (seq[1:] >= 0)
    repeats[1:] = same & ~p2p[1:] & ~p2p[:-1]
    return np.flatnonzero(~closes & ~repeats)


def shape_of(entry: dict[str, Any]) -> str:
    """ "all_to_all [2048, 5120] BFloat16"."""
    name = _text(entry.get("profiling_name")).partition(":")[2][:64] or "call"
    sizes = entry.get("input_sizes")
    listed = sizes[:2] if isinstance(sizes, list | tuple) else ()
    shapes = ", ".join(str(list(shape)) for shape in listed if isinstance(shape, list | tuple))
    dtypes = entry.get("input_dtypes")
    dtype = _text(dtypes[0])[:32] if isinstance(dtypes, list | tuple) and dtypes else ""
    return " ".join(f"{name} {shapes} {dtype}".split())[:160]


_LIBRARY = re.compile(
    r"torch/(distributed|nn|autograd|_dynamo|utils|optim)/|/contextlib\.py|c10d_logger|/threading\.py"
)


def frame_of(frames: object) -> str:
    """The innermost stack frame outside of the library: "sync_buffers (gaussian_splatting.py:650)"."""
    best = ""
    for frame in frames if isinstance(frames, list | tuple) else ():
        if not isinstance(frame, dict):
            continue
        path, name = _text(frame.get("filename")), _text(frame.get("name"))
        if not path or path == "??":
            continue
        line = _number(frame.get("line"), 0)
        said = f"{name[:80]} ({path.replace(chr(92), '/').rpartition('/')[2][:80]}:{line})"
        if not _LIBRARY.search(path):
            return said
        best = best or said
    return best


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else ""


def _number(value: object, default: int) -> int:
    found = number(value)
    return default if found == ABSENT else found
