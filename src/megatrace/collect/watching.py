"""Suspects that a job stands, from its rings, while it can still be asked.

A watchdog ends a job that hangs (PyTorch's after ten minutes), and with it everything that its processes
know. So whoever started the job, or collects its rings, looks every second or two how far the newest record
of each ring is. Where none has moved for long, evidence is taken (``attaching``), once for each standstill.

A standstill of the recording is a suspicion: a checkpoint or a validation without communication looks the
same. It costs some seconds of asking, and no verdict follows from it here.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from megatrace.model.ringformat import HEAD, MAGIC, RECORD

SUSPECT_AFTER_S = 60.0
"""A training iteration of the largest models takes up to a minute, and records calls all through it."""
LONGER_THAN_USUAL = 3
"""A pause this many times the longest one that the job came back from is none of its habits."""
LATEST_S = 300.0
"""Half of PyTorch's ten minutes: whatever the habits, evidence is taken before the watchdog ends the job."""
MOST = 3
"""Standstills of a job of which evidence is taken: a job that pauses by habit must not fill the disk."""


@dataclass(slots=True)
class Stillness:
    """Whether a job that moved has stopped moving. ``after_s`` is the least silence that is suspected."""

    after_s: float = SUSPECT_AFTER_S
    heads: dict[str, int] = field(default_factory=dict)
    moved_at: float | None = None
    longest: float = 0.0
    suspected: bool = False
    taken: int = 0

    def look(self, heads: Mapping[str, int], now: float) -> float | None:
        """The silence in seconds at the moment that it becomes suspicious, else None.

        ``heads``: number of the newest record by ring; ``now`` in seconds of a clock that never goes back.
        """
        moved = any(head > self.heads.get(name, 0) for name, head in heads.items())
        self.heads.update(heads)
        if moved:
            if self.moved_at is not None and not self.suspected:
                self.longest = max(self.longest, now - self.moved_at)
            self.moved_at, self.suspected = now, False
            return None
        if self.moved_at is None or self.suspected or self.taken >= MOST:
            return None
        silence = now - self.moved_at
        if silence < self.needed:
            return None
        self.suspected = True
        self.taken += 1
        return silence

    @property
    def needed(self) -> float:
        """Seconds of silence from which on the job is suspected to stand."""
        usual = min(LONGER_THAN_USUAL * self.longest, LATEST_S)
        return max(self.after_s, usual)


def heads_of(rings: Iterable[Path], known: Mapping[str, int]) -> dict[str, int]:
    """Path → number of the newest record. Reads some 20 words of a ring, from where it was ``known`` to be.

    A file that is no ring, or just being made, or gone, is left out.
    """
    found = {}
    for path in rings:
        with suppress(OSError, ValueError, struct.error):
            found[str(path)] = newest(path, known.get(str(path), 0))
    return found


def newest(path: Path, since: int = 0) -> int:
    """Number of the newest record of a ring, at least ``since``. Raises OSError, ValueError, struct.error.

    Record k stands at place k − 1 modulo the capacity and carries k, so whether there is a k-th is one
    reading, and the largest is found by doubling and halving.
    """
    with path.open("rb") as file:
        magic, header, size, capacity, *_ = HEAD.unpack(file.read(HEAD.size))
        if magic != MAGIC or size != RECORD.itemsize or not capacity:
            raise ValueError("no ring")

        def reached(number: int) -> bool:
            file.seek(header + (number - 1) % capacity * size)
            return int.from_bytes(file.read(8), "little") >= number

        low, step = max(since, 0), 1
        while reached(low + step):
            low += step
            step *= 2
        while step > 1:
            step //= 2
            if reached(low + step):
                low += step
        return low


def clock() -> float:
    """Seconds of a clock that never goes back."""
    return time.monotonic()
