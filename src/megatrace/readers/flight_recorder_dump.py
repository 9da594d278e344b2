"""One dump of a flight recorder as columns: entries, groups and counters of one process.

Takes the value that a pickle or a JSON text held, of whatever version (2.1 to 2.10 are known; 1.x and later
ones are read as far as their keys are the same). Values of a wrong type become "not known", never an error:
what is left is still evidence.

Does not know which rank wrote the dump: ``flight_recorder_ranks``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_COUNT, NO_PEER, NO_SEQ, UNSEEN, Op

I8 = NDArray[np.int64]

MAX_NOTES = 48
"""Open calls of a rank whose shapes and stack frames are kept: the oldest ones are what it waits for."""
_LIMIT = 1 << 62
"""Numbers beyond this are damage: times end in the year 2116."""

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
    dump = Dump(source, version=_text(whole.get("version"))[:16])
    read_groups(dump, whole)
    read_entries(dump, entries if isinstance(entries, list) else [])
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
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list | tuple) or not value:
        return None
    ranks = [rank for rank in value if type(rank) is int and 0 <= rank < 1 << 24]
    return tuple(ranks) if len(ranks) == len(value) == len(set(ranks)) else None


def read_entries(dump: Dump, entries: Sequence[object]) -> None:
    """Fills in the columns."""
    calls: dict[str, Call] = {}
    groups: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    kept: list[tuple[dict[str, Any], Call]] = []
    for entry in entries:
        if not isinstance(entry, dict):
            dump.bad += 1
            continue
        name = _text(entry.get("profiling_name"))
        call = calls.get(name)
        if call is None:
            call = calls.setdefault(name, call_of(name))
        kept.append((entry, call))
        rows.append(_row(dump, entry, call, groups))
    dump.names = list(groups)
    table = np.asarray(rows, np.int64).reshape(-1, _WIDTH)
    order = np.argsort(table[:, 0], kind="stable")
    fill_columns(dump, table[order])
    open_rows = [int(row) for row in np.flatnonzero(dump.ended == UNSEEN)[:MAX_NOTES]]
    source = _rows_kept(table[order])
    for row in open_rows:
        entry, _ = kept[int(order[source[row]])]
        dump.notes.append(Note(row, shape_of(entry), frame_of(entry.get("frames"))))


_WIDTH = 14
"""Columns of the table between entries and a Dump: record id, op, group, sequence number, own, peer, count,
bytes, created, started, ended, closes a coalesced group, P2P, state seen."""


def _row(dump: Dump, entry: dict[str, Any], call: Call, groups: dict[str, int]) -> tuple[int, ...]:
    name = _group_name(dump, entry)
    group = groups.setdefault(name, len(groups))
    state = entry.get("state")
    created = _number(entry.get("time_created_ns"), 0)
    started, ended = _time(entry, "time_discovered_started_ns"), _time(entry, "time_discovered_completed_ns")
    if ended == UNSEEN and (state == "completed" or (call.stateless and entry.get("retired") is True)):
        ended = created
    timing = started != UNSEEN or state == "started"
    if started == UNSEEN and (state == "started" or ended != UNSEEN):
        started = created
    p2p = call.op.is_p2p or entry.get("is_p2p") is True
    count, nbytes = _sizes(entry, call.op)
    timeout = _number(entry.get("timeout_ms"), 0)
    if ended == UNSEEN and timeout > 0:
        dump.timeout = min(dump.timeout or _LIMIT, timeout * 1_000_000)
    return (
        _number(entry.get("record_id"), 0), int(call.op), group, _sequence(entry, p2p), call.own, call.peer,
        count, nbytes, created, started, ended, call.closes, p2p, timing,
    )  # fmt: skip


def _group_name(dump: Dump, entry: dict[str, Any]) -> str:
    group = entry.get("process_group")
    name = _text(group[0]) if isinstance(group, tuple | list) and group else _text(group)
    key = _text(entry.get("pg_id"))
    name = name or key
    if key:
        dump.ids[key] = name
    if isinstance(group, tuple | list) and len(group) > 1 and name not in dump.config:
        dump.config[name] = (_text(group[1]), None)
    return name


def _sequence(entry: dict[str, Any], p2p: bool) -> int:
    for word in ("p2p_seq_id", "seq_id") if p2p else ("collective_seq_id", "seq_id"):
        number = _number(entry.get(word), NO_SEQ)
        if number != NO_SEQ:
            return number
    return NO_SEQ


def _sizes(entry: dict[str, Any], op: Op) -> tuple[int, int]:
    """(elements, bytes) of the input; of the output where that is what all members share."""
    sizes = entry.get("output_sizes" if op in (Op.SCATTER, Op.RECV) else "input_sizes")
    if not isinstance(sizes, list | tuple):
        return NO_COUNT, NO_COUNT
    total = 0
    for shape in sizes:
        elements = 1
        for side in shape if isinstance(shape, list | tuple) else ():
            if type(side) is not int or not 0 <= side < _LIMIT:
                return NO_COUNT, NO_COUNT
            elements *= side
            if elements > _LIMIT:
                return NO_COUNT, NO_COUNT
        total += elements
    if total > _LIMIT:
        return NO_COUNT, NO_COUNT
    width = BYTES.get(_dtype(entry).lower())
    return total, NO_COUNT if width is None else min(total * width, _LIMIT)


def _dtype(entry: dict[str, Any]) -> str:
    for key in ("input_dtypes", "output_dtypes"):
        value = entry.get(key)
        if isinstance(value, list | tuple) and value:
            return _text(value[0])[:32]
    return ""


def shape_of(entry: dict[str, Any]) -> str:
    """ "all_to_all [2048, 5120] BFloat16"."""
    name = _text(entry.get("profiling_name")).partition(":")[2][:64] or "call"
    sizes = entry.get("input_sizes")
    shapes = (
        []
        if not isinstance(sizes, list | tuple)
        else [str(list(s)) for s in sizes[:2] if isinstance(s, list)]
    )
    text = " ".join([name, ", ".join(shapes), _dtype(entry)])
    return " ".join(text.split())[:160]


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


def _rows_kept(table: I8) -> I8:
    """The rows of a table that stay: those that close a coalesced group, or repeat its number, do not."""
    closes, p2p = table[:, 11] > 0, table[:, 12] > 0
    repeats = np.zeros(len(table), np.bool_)
    if len(table) > 1:
        same = (table[1:, 2] == table[:-1, 2]) & (table[1:, 3] == table[:-1, 3]) & (table[1:, 3] >= 0)
        repeats[1:] = same & ~p2p[1:] & ~p2p[:-1]
    return np.flatnonzero(~closes & ~repeats)


def fill_columns(dump: Dump, table: I8) -> None:
    """From a table of entries, oldest first: coalesced groups get the state of the entry that closes them."""
    table = table.copy()
    closes, p2p = table[:, 11] > 0, table[:, 12] > 0
    member = np.zeros(len(table), np.bool_)
    for end in np.flatnonzero(closes).tolist():
        at = end - 1
        while (
            at >= 0 and (table[at, 2:4] == table[end, 2:4]).all() and p2p[at] == p2p[end] and not closes[at]
        ):
            table[at, 9:11] = table[end, 9:11]
            member[at] = True
            at -= 1
    dump.has_start = bool((table[:, 13] > 0).any())
    rows = _rows_kept(table)
    kept = table[rows]
    dump.op, dump.group = kept[:, 1].astype(np.uint8), kept[:, 2].astype(np.int32)
    dump.seq, dump.count, dump.nbytes = kept[:, 3], kept[:, 6], kept[:, 7]
    dump.own, dump.peer = kept[:, 4].astype(np.int32), kept[:, 5].astype(np.int32)
    dump.created, dump.started, dump.ended = kept[:, 8], kept[:, 9], kept[:, 10]
    dump.coalesced = member[rows]
    dump.lost = bool(len(table)) and int(table[0, 0]) > 0


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else ""


def _number(value: object, default: int) -> int:
    if type(value) is int and -1 <= value < _LIMIT:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return default


def _time(entry: dict[str, Any], key: str) -> int:
    value = _number(entry.get(key), 0)
    return value if value > 0 else UNSEEN
