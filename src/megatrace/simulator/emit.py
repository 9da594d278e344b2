"""Writes a ``Trace`` as the call logs of real jobs: one ``rank_N.log`` a rank, in any of the four text
dialects.

Text is assembled as bytes by numpy, several ranks at once: every line is a row of fixed-width pieces of which
the valid bytes are kept. A job of thousands of ranks has millions of lines, and formatting them one by one
would take longer than simulating them.

Writes only what a text log can hold: the host's time, the name, the element count, the stream, and where the
dialect has them operation number and group hash. Never writes the truth.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megatrace.errors import UnknownName, UsageError
from megatrace.model.events import NO_COMM, Events, Op
from megatrace.model.trace import Trace

U1 = NDArray[np.uint8]
I8 = NDArray[np.int64]

DIALECTS = ("bare", "opCount", "groupHash", "bracketed")
NAMES = {
    Op.UNKNOWN: "Unknown",
    Op.ALL_REDUCE: "AllReduce",
    Op.ALL_GATHER: "AllGather",
    Op.REDUCE_SCATTER: "ReduceScatter",
    Op.BROADCAST: "Broadcast",
    Op.REDUCE: "Reduce",
    Op.SEND: "Send",
    Op.RECV: "Recv",
    Op.ALL_TO_ALL: "AllToAll",
    Op.GATHER: "Gather",
    Op.SCATTER: "Scatter",
    Op.BARRIER: "Barrier",
}
LINES_AT_ONCE = 60_000
"""About 10 MB of text: large enough that numpy's per-call cost vanishes, small enough for the cache and
memory."""
IDLE_NS = 300_000_000
"""A dump (``save_count``) ends where a rank made no call for this long, as seen in real logs."""
NS = 1_000_000_000

Progress = Callable[[int, int], None]


def write_text(
    trace: Trace, directory: Path, dialect: str = "groupHash", progress: Progress | None = None
) -> int:
    """Writes the logs into ``directory``, made if absent. Returns the number of lines.

    ``progress`` is called with (ranks written, ranks). Ranks in ``coverage.torn_tails`` end in the middle of
    a line. Raises ``UnknownName`` for a dialect there is not and ``UsageError`` where the directory cannot be
    written.
    """
    if dialect not in DIALECTS:
        raise UnknownName("dialect", dialect, DIALECTS)
    ranks, bounds = trace.events.offsets()
    nodes = {place.rank: place.node or "node0" for place in trace.places}
    torn = frozenset(trace.coverage.torn_tails)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        first = 0
        while first < len(ranks):
            last = int(np.searchsorted(bounds, bounds[first] + LINES_AT_ONCE, "right"))
            last = min(max(last - 1, first + 1), len(ranks))
            events = trace.events.take(slice(int(bounds[first]), int(bounds[last])))
            cuts = (bounds[first : last + 1] - bounds[first]).astype(np.int64)
            text, starts = _lines(events, trace, dialect, nodes, cuts)
            for index in range(first, last):
                rank = int(ranks[index])
                begin, end = starts[cuts[index - first]], starts[cuts[index - first + 1]]
                piece = text[begin:end]
                if rank in torn:
                    piece = np.concatenate([piece, text[begin : begin + 30]])
                (directory / f"rank_{rank}.log").write_bytes(piece.tobytes())
            if progress is not None:
                progress(last, len(ranks))
            first = last
    except OSError as error:
        raise UsageError(f"{directory}: the logs cannot be written: {error.strerror or error}") from None
    return len(trace.events)


def free_space(directory: Path) -> int:
    """Bytes free where the directory is or would be."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _lines(
    events: Events, trace: Trace, dialect: str, nodes: dict[int, str], cuts: I8
) -> tuple[U1, NDArray[np.int64]]:
    """(all bytes, start of each line and the end of the last) of the calls of some ranks."""
    pieces = list(_pieces(events, trace, dialect, nodes, cuts))
    width = sum(piece.shape[1] for piece, _ in pieces)
    n = len(events)
    text = np.empty((n, width), np.uint8)
    valid = np.zeros((n, width), bool)
    lengths = np.zeros(n, np.int64)
    at = 0
    for piece, length in pieces:
        w = piece.shape[1]
        text[:, at : at + w] = piece
        valid[:, at : at + w] = np.arange(w) < length[:, None]
        lengths += length
        at += w
    return text[valid], np.concatenate([[0], np.cumsum(lengths)])


def _pieces(
    events: Events, trace: Trace, dialect: str, nodes: dict[int, str], cuts: I8
) -> Iterator[tuple[U1, NDArray[np.int64]]]:
    """The columns of a line, left to right: (bytes [lines, width] left-aligned, valid bytes of each)."""
    n = len(events)
    names = _strings([NAMES[op] for op in Op])
    bracketed = dialect == "bracketed"
    if bracketed:
        yield _by_rank([_address(nodes.get(int(r), "node0")) for r in events.ranks()], cuts)
    if dialect != "bare":
        yield _constant("[save_count ", n)
        yield _digits(_save_counts(events, cuts))
        yield _constant("] [", n)
    else:
        yield _constant("[", n)
    yield _digits(events.enqueue // NS)
    yield _constant(".", n)
    yield _nine(events.enqueue % NS)
    prefix, fun, data = ("] [PCI 0000:1b:00.0] [Func nccl", "] [Data ", "] [stream 0x")
    if not bracketed:
        prefix, fun, data = ("] Fun ", " Data ", " stream 0x")
    yield _constant("] [Rank ", n)
    yield _digits(events.rank.astype(np.int64))
    yield _constant(prefix, n)
    yield _choose(names, events.op.astype(np.int64))
    yield _constant(fun, n)
    assert events.count is not None
    yield _digits(events.count)
    yield _constant(data, n)
    assert events.stream is not None
    yield _hexadecimal(events.stream)
    if dialect != "bare":
        yield _constant("] [opCount " if bracketed else " opCount ", n)
        yield _digits(events.seq)
    if dialect in ("groupHash", "bracketed"):
        yield _constant("] [groupHash 0x" if bracketed else " groupHash ", n)
        yield _hashes(events, trace, bracketed)
    yield _constant("]\n" if bracketed else "\n", n)


def _address(node: str) -> str:
    """The first two fields of the bracketed dialect: a node's address and name."""
    number = int("".join(c for c in node if c.isdigit()) or 0)
    return f"[10.0.{number // 256 % 256}.{number % 256}] [{node}] "


def _by_rank(texts: list[str], cuts: I8) -> tuple[U1, NDArray[np.int64]]:
    return _choose(_strings(texts), np.repeat(np.arange(len(texts)), np.diff(cuts)))


def _hashes(events: Events, trace: Trace, hexadecimal: bool) -> tuple[U1, NDArray[np.int64]]:
    if hexadecimal:
        texts = [f"{(item.hash or 0) & 0xFFFFFFFFFFFFFFFF:x}" for item in trace.communicators]
    else:
        texts = [str(item.hash or 0) for item in trace.communicators]
    comm = events.comm if events.comm is not None else np.full(len(events), NO_COMM, np.int32)
    used, index = np.unique(comm, return_inverse=True)
    chosen = [texts[i] if 0 <= i < len(texts) else "0" for i in used.tolist()]
    return _choose(_strings(chosen), index.reshape(-1))


def _save_counts(events: Events, cuts: I8) -> I8:
    """1 for the first dump of each rank, one more after each pause."""
    pauses = np.diff(events.enqueue, prepend=events.enqueue[:1]) > IDLE_NS
    pauses[cuts[:-1][cuts[:-1] < len(events)]] = False
    counts = np.cumsum(pauses)
    return np.asarray(counts - np.repeat(counts[cuts[:-1]], np.diff(cuts)) + 1, np.int64)


def _constant(text: str, n: int) -> tuple[U1, NDArray[np.int64]]:
    row = np.frombuffer(text.encode(), np.uint8)
    return np.broadcast_to(row, (n, len(row))), np.full(n, len(row), np.int64)


def _strings(texts: list[str]) -> tuple[U1, NDArray[np.int64]]:
    """A table of byte strings: (bytes [texts, longest], lengths)."""
    encoded = [text.encode() for text in texts]
    table = np.zeros((len(encoded), max(map(len, encoded), default=0)), np.uint8)
    for row, item in enumerate(encoded):
        table[row, : len(item)] = np.frombuffer(item, np.uint8)
    return table, np.array([len(item) for item in encoded], np.int64)


def _choose(table: tuple[U1, NDArray[np.int64]], index: NDArray[np.intp]) -> tuple[U1, NDArray[np.int64]]:
    return table[0][index], table[1][index]


_THREE = np.array([list(f"{i:03d}".encode()) for i in range(1000)], np.uint8)


def _nine(values: I8) -> tuple[U1, NDArray[np.int64]]:
    """Nine digits with leading zeros, three at a time from a table."""
    out = np.empty((len(values), 9), np.uint8)
    low = values.astype(np.int32)
    out[:, 6:] = _THREE[low % 1000]
    low //= 1000
    out[:, 3:6] = _THREE[low % 1000]
    out[:, :3] = _THREE[low // 1000]
    return out, np.full(len(values), 9, np.int64)


def _digits(values: I8) -> tuple[U1, NDArray[np.int64]]:
    """Decimal numbers. Most columns repeat few values, so each distinct one is formatted once."""
    used, index = np.unique(values, return_inverse=True)
    return _choose(_strings([str(value) for value in used.tolist()]), index.reshape(-1))


def _hexadecimal(values: NDArray[np.uint64]) -> tuple[U1, NDArray[np.int64]]:
    used, index = np.unique(values, return_inverse=True)
    return _choose(_strings([f"{value:x}" for value in used.tolist()]), index.reshape(-1))
