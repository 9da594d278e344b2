"""Time as something that is handed over, so that what depends on it can be tested in no time.

Functions that judge take `now` as a value; only shells (a command, a loop, an agent) hold a `Clock`. Wall
time is for saying when, monotonic time for measuring how long: NTP may step the first, never the second.
Nothing here aligns the clocks of several nodes; that is analysis.
"""

from __future__ import annotations

import time
from typing import Protocol

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """What a shell needs to know of time."""

    def now(self) -> int:
        """Wall time, ns since the Unix epoch (UTC)."""

    def monotonic(self) -> int:
        """A time in ns that never goes back; only differences mean something."""

    def sleep(self, seconds: float) -> None:
        """Waits at least that long."""


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    def now(self) -> int:
        """Wall time, ns since the Unix epoch (UTC)."""
        return time.time_ns()

    def monotonic(self) -> int:
        """CLOCK_MONOTONIC in ns."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Waits at least that long."""
        time.sleep(seconds)


class FakeClock:
    """A clock that stands still until told otherwise; `sleep` returns at once and moves it."""

    __slots__ = ("_monotonic", "_now", "slept")

    def __init__(self, now: int = 0) -> None:
        self._now = now
        self._monotonic = 0
        self.slept: list[float] = []

    def now(self) -> int:
        """The wall time it was set to, plus what went by since, in ns."""
        return self._now

    def monotonic(self) -> int:
        """What went by since it was made, in ns."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Notes the request in `slept` and moves on by that much."""
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Lets time go by. Raises ValueError on a negative amount: see `step` for that."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} s (step() sets the wall clock)")
        ns = round(seconds * NS_PER_S)
        self._now += ns
        self._monotonic += ns

    def step(self, seconds: float) -> None:
        """Steps the wall clock as NTP does, in either direction; monotonic time does not notice."""
        self._now += round(seconds * NS_PER_S)
