"""Keeps what rings would write over: copies their new records into compressed files, within a budget of disk.

A ring holds the last 65,536 calls; spooled every few seconds, the whole job is kept. A part holds the records
since the last one, and once more those whose calls had not ended then; times and numbers as differences,
which zstd packs to a fraction of the 64 bytes of a record. When the budget is used up the oldest parts go.

Rings are found in the memory maps of all processes, so those of other containers are, too, and in shared
memory, where those of dead processes lie.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megatrace.collect import processes
from megatrace.errors import CollectError
from megatrace.model.ringformat import RECORD, SEGMENT, Ring, parse_ring

SHARED_MEMORY = Path("/dev/shm")
CALL, TORCH = 1, 1
SOURCES = {TORCH: "torch", 2: "verbs", 3: "nccl", 4: "preload"}
"""Who wrote a record → the word in the header of its ring."""
ENDING = ".arrow"


def find_rings(proc: Path = processes.PROC, shared: Path = SHARED_MEMORY) -> tuple[Path, ...]:
    """Every ring file that can be reached from here, once each."""
    found: dict[tuple[int, int], Path] = {}
    mapped = [Path(path) for pid in processes.all_pids(proc) for path in processes.rings_of(pid, proc)]
    for path in [*shared.glob("megatrace-*/**/*.ring"), *mapped]:
        try:
            info = path.stat()
        except OSError:
            continue
        found.setdefault((info.st_dev, info.st_ino), path)
    return tuple(sorted(found.values()))


@dataclass(slots=True)
class Spool:
    """A folder of parts, at most ``budget`` bytes of them."""

    folder: Path
    budget: int
    done: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """(host, pid, start) → number of the last record that is kept with its end"""
    parts: int = 0

    def round(self, rings: Iterable[Path]) -> int:
        """Keeps what is new in these rings; the number of records kept. Raises CollectError where the disk
        takes nothing."""
        kept = 0
        for path in rings:
            try:
                ring = parse_ring(path.read_bytes(), path.name)
            except (OSError, ValueError, KeyError, TypeError, OverflowError):
                continue  # just being made, or gone
            kept += self._keep(ring)
            for beside in path.parent.glob(f"groups-*-{ring.pid}.json"):
                self._write(self.folder / beside.name, beside.read_bytes())
        self._rotate()
        return kept

    def _keep(self, ring: Ring) -> int:
        who = ring.host, ring.pid, ring.started
        since = self.done.get(who, 0)
        new = ring.records[ring.records["seq"] > since]
        if not len(new):
            return 0
        open_ = (new["source"] == TORCH) & (new["kind"] == CALL) & (new["stream"] == 0)
        self.done[who] = int(new["seq"][np.flatnonzero(open_)[0]]) - 1 if open_.any() else int(new["seq"][-1])
        self.parts += 1
        name = f"{Path(ring.name).stem}-{self.parts:08d}{ENDING}"
        self._write(self.folder / name, pack(ring, new))
        return len(new)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}")
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError as error:
            raise CollectError(f"{path} cannot be written: {error.strerror}") from None

    def _rotate(self) -> None:
        parts = sorted(self.folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime_ns)
        used = sum(path.stat().st_size for path in parts)
        while parts and used > self.budget:
            oldest = parts.pop(0)
            used -= oldest.stat().st_size
            oldest.unlink()


def pack(ring: Ring, records: NDArray[np.void]) -> bytes:
    """Some records of a ring as an Arrow IPC file."""
    source = int(records["source"][0])
    ends = source == TORCH
    columns = {key: np.ascontiguousarray(records[key]) for key in RECORD.names or ()}
    if ends:
        done = columns["stream"] > 0
        columns["stream"][done] -= columns["time"][done] - np.uint64(ring.offset)
    for key in ("seq", "time"):
        columns[key] = np.diff(columns[key].astype(np.int64), prepend=np.int64(0)).astype(np.uint64)
    told = {
        "source": f"source: {SOURCES[source]}",
        "host": ring.host,
        "pid": ring.pid,
        "rank": ring.rank,
        "local_rank": ring.local_rank,
        "started": ring.started,
        "offset": ring.offset,
        "ends": ends,
        "kept": base64.b64encode(zlib.compress(ring.kept.tobytes())).decode(),
    }
    table = pa.table(columns).replace_schema_metadata({SEGMENT: json.dumps(told).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
