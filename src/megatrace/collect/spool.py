"""Keeps what rings would write over: copies their new records into compressed files, within a budget of disk.

A ring holds the last 65,536 calls; spooled every few seconds, the whole job is kept. A part holds the records
since the last one, and once more those whose calls had not ended then. Parts of a process become one Parquet
file (``archive``) when they are many, and at the end. When the budget is used up the oldest files go.

Rings are found in the memory maps of all processes, so those of other containers are, too, and in shared
memory, where those of dead processes lie.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megatrace.collect import archive, processes
from megatrace.errors import CollectError
from megatrace.model.ringformat import SEGMENT, Ring, merged, parse_ring
from megatrace.model.ringpacked import TORCH, differences, head_of, ring_of

SHARED_MEMORY = Path("/dev/shm")
CALL = 1
ENDING = ".arrow"
MANY = 64
"""Parts of one process from which on they are packed into one file: ten minutes of them at the usual pace."""


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
                names = b""
                with suppress(OSError):  # the process has ended, and somebody has put its files away
                    names = beside.read_bytes()
                if names:
                    self._write(self.folder / beside.name, names)
        self.pack_parts(MANY)
        self._rotate()
        return kept

    def pack_parts(self, least: int = 1) -> int:
        """Packs the parts of every process that has at least so many into one file; the number of files.

        A part that cannot be read stays as it is. Raises CollectError where the disk takes nothing.
        """
        parts: dict[str, list[Path]] = {}
        for path in sorted(self.folder.glob(f"*{ENDING}")):
            parts.setdefault(path.stem.rpartition("-")[0], []).append(path)
        made = 0
        for stem, paths in parts.items():
            if len(paths) < least:
                continue
            read = {path: ring for path in paths for ring in [_unpacked(path)] if ring is not None}
            for ring in merged(list(read.values())):
                self.parts += 1
                made += 1
                self._write(self.folder / f"{stem}-{self.parts:08d}{archive.ENDING}", archive.archived(ring))
            for path in read:
                path.unlink()
        return made

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
        files = (path for ending in (ENDING, archive.ENDING) for path in self.folder.glob(f"*{ending}"))
        parts = sorted(files, key=lambda path: path.stat().st_mtime_ns)
        used = sum(path.stat().st_size for path in parts)
        while parts and used > self.budget:
            oldest = parts.pop(0)
            used -= oldest.stat().st_size
            oldest.unlink()


def pack(ring: Ring, records: NDArray[np.void]) -> bytes:
    """Some records of a ring as an Arrow IPC file."""
    told = json.dumps(head_of(ring, records)).encode()
    table = pa.table(differences(ring, records)).replace_schema_metadata({SEGMENT: told})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _unpacked(path: Path) -> Ring | None:
    """The part in a file, None where it is damaged or of another version."""
    try:
        with pa.ipc.open_file(pa.BufferReader(path.read_bytes())) as file:
            table = file.read_all()
            told = json.loads(file.schema.metadata[SEGMENT])
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        return ring_of(columns, told, path.name)
    except (OSError, pa.ArrowException, zlib.error, ValueError, KeyError, TypeError, OverflowError):
        return None
