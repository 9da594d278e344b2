"""Files of NCCL's Inspector plug-in: one JSON object a line, one completed call each (format v4.0).

A line has a header (communicator, rank in it), metadata (host, process, when it was written) and the call:
operation, number, bytes, how long it took. It cannot show calls that did not complete, so it cannot show a
hang; it shows who is late in every call and which group is slower than its like.

Ranks are those of the communicator. Sends and Recvs are counted, no more.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from megatrace.errors import TraceError
from megatrace.model.events import Events
from megatrace.model.inspector import InspectorCalls, InspectorComm
from megatrace.model.trace import Coverage, InputInfo, Observable, Trace
from megatrace.readers import registry
from megatrace.readers.source import ReadOptions, Source

MAX_ROWS = 20_000_000
"""Calls kept of all files: some 1.5 GB."""
MAX_LINE = 1 << 20
"""Bytes of one line: a verbose one with the events of 64 channels has 20 KB."""
MAX_SIZE = 1 << 20
_SEEN = frozenset({Observable.BYTES, Observable.SEQ, Observable.GROUP, Observable.NODE})
_BLOCK = 1 << 20


@registry.register("inspector", summary="NCCL Inspector JSON lines (v4.0): completed calls with their times")
class InspectorReader:
    """See ``readers.Reader``."""

    def __init__(self, options: ReadOptions) -> None:
        del options  # all of them concern how bytes are fetched
        self._comms: dict[str, int] = {}
        self._known: list[InspectorComm] = []
        self._places: list[dict[int, tuple[str, int]]] = []
        self._ops: dict[str, int] = {}
        self._timing: dict[str, None] = {}
        self._rows: list[tuple[int, int, int, int, int, float, int]] = []
        self._lines = self._bad = self._messages = self._dropped = 0
        self._inputs: list[str] = []
        self._writers: list[set[tuple[str, int]]] = []
        """processes that wrote each input"""
        self._notes: list[str] = []

    def refuses(self, head: bytes) -> str | None:
        """A line with a header and a call, or with the version of the format."""
        begins = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{"
        call = b'"coll_perf"' in head or b'"p2p_perf"' in head or b'"dump_stats"' in head
        if begins and b'"header"' in head and (call or b'"inspector_output_format_version"' in head):
            return None
        return "no JSON line with a header and a coll_perf or p2p_perf"

    def add(self, source: Source) -> None:
        """Reads all lines of one file; broken ones are counted."""
        self._inputs.append(source.name)
        self._writers.append(set())
        view, rest = memoryview(bytearray(_BLOCK)), b""
        while size := source.readinto(view):
            *lines, rest = (rest + bytes(view[:size])).split(b"\n")
            for line in lines:
                self._line(line)
            if len(rest) > MAX_LINE:
                self._bad, rest = self._bad + 1, b""
            if len(self._rows) >= MAX_ROWS:
                self._notes.append(f"{source.name}: only the first {MAX_ROWS:,} calls were read.")
                return
        self._line(rest)
        if source.damage:
            self._notes.append(f"{source.name} {source.damage}: what stands before it was read.")

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        self._lines += 1
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            self._bad += 1
            return
        header, metadata = _part(value, "header"), _part(value, "metadata")
        stats = _part(value, "dump_stats")
        for part in stats.values():
            self._dropped += _whole(part.get("dropped_since_last_dump")) if isinstance(part, dict) else 0
        self._messages += isinstance(value, dict) and "p2p_perf" in value
        call = _part(value, "coll_perf")
        if not header or not call:
            self._bad += not stats and not (isinstance(value, dict) and "p2p_perf" in value)
            return
        self._call(header, metadata, call)

    def _call(self, header: dict[str, Any], metadata: dict[str, Any], call: dict[str, Any]) -> None:
        size, rank = _whole(header.get("n_ranks")), _whole(header.get("rank"))
        time = call.get("coll_exec_time_us")
        if not 0 < size <= MAX_SIZE or rank >= size or not _is_time(time):
            self._bad += 1
            return
        comm = self._comm(header, size)
        host, pid = metadata.get("hostname"), _whole(metadata.get("pid"))
        place = (host[:120] if isinstance(host, str) else "", pid)
        self._places[comm].setdefault(rank, place)
        self._writers[-1].add(place)
        name = call.get("coll")
        op = self._ops.setdefault(name[:40] if isinstance(name, str) else "unknown", len(self._ops))
        timing = call.get("coll_timing_source")
        if isinstance(timing, str) and len(self._timing) < 16:
            self._timing.setdefault(timing[:40])
        sizes = call.get("coll_msg_size_bytes")
        written = _whole(metadata.get("dump_timestamp_us")) * 1000 % (1 << 62)
        seq = _whole(call.get("coll_sn"))
        self._rows.append((comm, rank, seq, op, _whole(sizes), float(time or 0), written))

    def _comm(self, header: dict[str, Any], size: int) -> int:
        key = f"{header.get('id')}/{size}"[:80]
        if key not in self._comms:
            name = header.get("comm_name")
            nodes = _whole(header.get("nnodes")) or None
            self._comms[key] = len(self._known)
            self._known.append(
                InspectorComm(
                    str(header.get("id"))[:40], name[:80] if isinstance(name, str) else "", size, nodes
                )
            )
            self._places.append({})
        return self._comms[key]

    def finish(self) -> Trace:
        """A Trace without events. Raises TraceError where no line was a call."""
        if not self._rows:
            raise TraceError(
                f"{self._inputs[0]}: no completed collective in {self._lines:,} lines of NCCL's Inspector",
                path=self._inputs[0],
            )
        columns = list(zip(*self._rows, strict=True))
        comms = tuple(
            replace(item, places=tuple((rank, *place) for rank, place in sorted(places.items())))
            for item, places in zip(self._known, self._places, strict=True)
        )
        calls = InspectorCalls(
            comms, tuple(self._ops), np.asarray(columns[0], np.int32), np.asarray(columns[1], np.int32),
            np.asarray(columns[2], np.int64), np.asarray(columns[3], np.int32),
            np.asarray(columns[4], np.int64), np.asarray(columns[5], np.float64),
            np.asarray(columns[6], np.int64), tuple(self._timing), self._messages, self._dropped,
        )  # fmt: skip
        if self._dropped:
            self._notes.append(f"The Inspector says that it lost {self._dropped:,} records.")
        return Trace(
            Events.empty(),
            coverage=Coverage(_SEEN, lines=self._lines, bad_lines=self._bad, notes=tuple(self._notes)),
            inputs=tuple(
                InputInfo(name, "inspector", _SEEN, len(writers))
                for name, writers in zip(self._inputs, self._writers, strict=True)
            ),
            inspector=calls,
        )


def _part(value: object, key: str) -> dict[str, Any]:
    part = value.get(key) if isinstance(value, dict) else None
    return part if isinstance(part, dict) else {}


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and isinstance(value, int | float) and 0 < value < 1e12


def _whole(value: object) -> int:
    """A number from 0 on; 0 for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
