"""The ring file that the hook of torch.distributed writes: the last 65,536 records of one process.

A file in shared memory outlives the process, so the last calls of one that was killed can be read. Written
from Python and not through the native library: packing 64 bytes into the mapping costs less than a call
through ctypes with as many arguments. ``model.ringformat`` has the layout, too; a test writes and reads.

The number of a record is written last, so that a reader never takes half of one. The space is reserved before
it is mapped: a full disk refuses here, and cannot kill the job later. Standard library only: this runs inside
the processes of a job.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

MAGIC = b"MTRING\x00\x01"
HEADER_BYTES = 4096
RECORD_BYTES = 64
BODY = struct.Struct("<Q8sQQQIi8s")
"""A record behind its number: time, communicator, number of the call, bytes, end, flags, peer, tail."""
TAIL = struct.Struct("<BBBBHH")
"""Kind, operation, data type, channel, thread, source."""
HEAD = struct.Struct("<8sIIQQQI")
"""magic, bytes of the header, bytes of a record, records, CLOCK_REALTIME and CLOCK_MONOTONIC of one moment in
ns, bytes of the JSON that follows."""
CALL = 1
"""Kind of record. When the call was found done goes into the same record: half the room, half the time."""
END_AT, FLAGS_AT = 40, 48
WAITED, FAILED = 1 << 7, 1 << 1
"""Flags: its caller waits for it, so from then on it may block; the wait for it raised (``EventFlag``)."""
HELD_AT = 4088
"""In the header, 8 bytes: CLOCK_MONOTONIC in ns until which this process is to post no Recv. Zero unless
somebody practises (``injection``)."""
ANCHOR = struct.Struct("<qQ")
ANCHOR_AT = 4064
"""In the header: CLOCK_REALTIME − CLOCK_MONOTONIC, and CLOCK_MONOTONIC when they were read last, ns."""
ANCHOR_CALLS = 255
"""A mask: after so many calls it is looked whether the clocks are due."""
ANCHOR_NS = 1_000_000_000
"""As seldom as that, reading both clocks costs nothing; somebody who sets the clock is noticed within it."""
BOOT = "/proc/sys/kernel/random/boot_id"
TORCH = 1
"""Source flag: recorded at the level of torch."""

DIRECTORY = "MEGATRACE_RING_DIR"
RECORDS = "MEGATRACE_RING_RECORDS"
DEFAULT_RECORDS = 1 << 16
"""4 MiB: some minutes of a training with a hundred calls a second, and the end of any other."""
Put = Callable[[bytes, bytes, int, int, int], int]
Mark = Callable[[int], None]
Held = Callable[[], int]
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")


class Ring:
    """The ring of this process, opened at its first record: whoever forks after importing torch is many.

    ``put(tail, comm, number, nbytes, peer)`` writes a call and returns its index; ``comm`` are the 8 bytes of
    the communicator's hash, ``tail`` comes from ``tail_of``. ``waited``, ``ended`` and ``failed`` mark the
    call of an index, if its record is still there.
    """

    def __init__(self, folder: str, records: int) -> None:
        self.folder, self.records = folder, records
        self.path = ""
        self.reset()

    def reset(self) -> None:
        """In a child after a fork: the mapping is the parent's, the child gets its own."""
        self.put: Put = self._first
        self.waited: Mark = _nothing
        self.ended: Mark = _nothing
        self.failed: Mark = _nothing
        self.held: Held = _never

    def open(self) -> None:
        """Makes the file now, where no record has done so."""
        if self.put == self._first:
            self.put, self.waited, self.ended, self.failed, self.held = _writers(self._open(), self.records)

    def _first(self, tail: bytes, comm: bytes, number: int, nbytes: int, peer: int) -> int:
        self.open()
        return self.put(tail, comm, number, nbytes, peer)

    def _open(self) -> mmap.mmap:
        """Makes the file. Raises OSError where there is no room for it."""
        host, pid = socket.gethostname(), os.getpid()
        self.path = f"{self.folder}/torch-{host}-{pid}.ring"
        size = HEADER_BYTES + self.records * RECORD_BYTES
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            mapping = mmap.mmap(descriptor, size)
        except OSError:
            os.unlink(self.path)  # noqa: PTH108
            raise
        finally:
            os.close(descriptor)
        told = {
            "source": "torch",
            "host": host,
            "pid": pid,
            "rank": next((os.environ[name] for name in RANKS if os.environ.get(name)), None),
            "local_rank": os.environ.get("LOCAL_RANK"),
            "world_size": os.environ.get("WORLD_SIZE"),
            "job": os.environ.get("MEGATRACE_JOB"),
            "boot": _boot(),
        }
        text = json.dumps(told).encode()[: ANCHOR_AT - HEAD.size]
        anchor = time.time_ns(), time.monotonic_ns()
        HEAD.pack_into(mapping, 0, MAGIC, HEADER_BYTES, RECORD_BYTES, self.records, *anchor, len(text))
        mapping[HEAD.size : HEAD.size + len(text)] = text
        ANCHOR.pack_into(mapping, ANCHOR_AT, anchor[0] - anchor[1], anchor[1])
        return mapping


def _boot() -> str | None:
    """Which start of the machine this is: its rings share their clocks."""
    try:
        with open(BOOT, encoding="ascii") as file:  # noqa: PTH123
            return file.read(64).strip()
    except OSError:
        return None


def _nothing(index: int) -> None:
    """Before the first record there is none to mark."""


def _never() -> int:
    """Nobody holds a process that has no ring."""
    return 0


def _writers(mapping: mmap.mmap, records: int) -> tuple[Put, Mark, Mark, Mark, Held]:
    """(put, waited, ended, failed, held) as closures: names looked up in an object would double the cost."""
    counter = itertools.count().__next__  # one step of the interpreter, so that threads never get the same
    now, body, mask = time.monotonic_ns, BODY.pack_into, records - 1
    octets = memoryview(mapping)
    numbers = octets.cast("Q")

    def put(tail: bytes, comm: bytes, number: int, nbytes: int, peer: int) -> int:
        index = counter()
        at = HEADER_BYTES + ((index & mask) << 6)
        body(mapping, at + 8, now(), comm, number, nbytes, 0, 0, peer, tail)
        numbers[at >> 3] = index + 1
        if not index & ANCHOR_CALLS:
            anchor()
        return index

    def anchor() -> None:
        read = now()
        if read - numbers[(ANCHOR_AT >> 3) + 1] >= ANCHOR_NS:
            ANCHOR.pack_into(mapping, ANCHOR_AT, time.time_ns() - now(), read)

    def waited(index: int) -> None:
        at = HEADER_BYTES + ((index & mask) << 6)
        if numbers[at >> 3] == index + 1:
            octets[at + FLAGS_AT] = WAITED

    def ended(index: int) -> None:
        at = (HEADER_BYTES + ((index & mask) << 6)) >> 3
        if numbers[at] == index + 1:
            numbers[at + (END_AT >> 3)] = now()

    def failed(index: int) -> None:
        at = HEADER_BYTES + ((index & mask) << 6)
        if numbers[at >> 3] == index + 1:
            octets[at + FLAGS_AT] = WAITED | FAILED

    def held() -> int:
        return numbers[HELD_AT >> 3]

    return put, waited, ended, failed, held


def tail_of(op: int, dtype: int) -> bytes:
    """The last 8 bytes of a record."""
    return TAIL.pack(CALL, op, dtype, 0, 0, TORCH)


def open_ring() -> Ring | None:
    """The ring of this process, not yet made; None, and one line, where there is no place for it."""
    folder = os.environ.get(DIRECTORY) or f"/dev/shm/megatrace-{os.getuid()}"
    words = os.environ.get(RECORDS, "")
    records = int(words) if words.isdigit() and 0 < int(words) <= 1 << 26 else DEFAULT_RECORDS
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.stderr.write(f"megatrace: nothing is recorded: {folder}: {error.strerror}\n")
        return None
    return Ring(folder, 1 << (records - 1).bit_length())
