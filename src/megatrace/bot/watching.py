"""Looks at one machine all the time: each check in its period, and at once what the kernel speaks of.

Counters every half minute, configuration every hour, slow tools rarely: the period stands in the catalogue.
The first round is whole; after it, checks of ten minutes and more are spread over their period by the name of
the node, so that a thousand nodes do not ask their switches in the same second. An event runs the checks that
it concerns without waiting, at most once in half a second, for one fault writes many lines.

One thread; everything that can hang is in the worker of ``check_runner``. Tells changes to a callback and
stores nothing but the counters."""

from __future__ import annotations

import select
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatrace.bot.catalogue import CheckInfo
from megatrace.bot.check_runner import WorkerRunner
from megatrace.bot.counters import save
from megatrace.bot.folding import folded
from megatrace.bot.kernel_events import QUICK_CHECKS, Source
from megatrace.bot.watch_changes import Change, Open, changes
from megatrace.clock import NS_PER_S, Clock
from megatrace.model.check import CheckResult
from megatrace.model.system import System

SPREAD_FROM_S = 600.0
"""Seconds of a period from which on it is spread over nodes: shorter ones ask only the machine itself."""
SETTLE_S = 0.5
"""Seconds between an event and the look: the lines of one fault come within it."""
SAVE_S = 60.0


@dataclass
class Watch:
    """One machine being watched. ``tell`` gets every change as it happens."""

    infos: Sequence[CheckInfo]
    runner: WorkerRunner
    system: System
    clock: Clock
    tell: Callable[[Change], None]
    sources: Sequence[Source] = ()
    state: Path | None = None
    open: dict[str, Open] = field(default_factory=dict)
    rounds: int = 0
    _results: dict[str, CheckResult] = field(default_factory=dict)
    _due: dict[str, int] = field(default_factory=dict)
    _saved: int = 0

    def run(self, seconds: float | None = None) -> None:
        """Until the time is over; for ever without one."""
        begun = self.clock.monotonic()
        end = None if seconds is None else begun + round(seconds * NS_PER_S)
        self._look(self.infos)
        for info in self.infos:
            self._due[info.id] = begun + round(first_delay(info, self.system.name) * NS_PER_S)
        while end is None or self.clock.monotonic() < end:
            now = self.clock.monotonic()
            upcoming = min(self._due.values(), default=now + NS_PER_S)
            until = upcoming if end is None else min(upcoming, end)
            wanted = self._wait(max(0, until - now) / NS_PER_S)
            now = self.clock.monotonic()
            due = [info for info in self.infos if self._due[info.id] <= now or info.id in wanted]
            for info in due:
                if self._due[info.id] <= now:
                    self._due[info.id] = now + round(info.period_s * NS_PER_S)
            quick = [info for info in due if info.id in wanted and info.id in QUICK_CHECKS]
            for group in (quick, [info for info in due if info not in quick]):
                if group:
                    self._look(group)

    def _wait(self, seconds: float) -> set[str]:
        """Waits for an event or the time; after an event, until its other lines are there."""
        wanted = self._events(seconds)
        if wanted:
            self.clock.sleep(SETTLE_S)
            wanted |= self._events(0)
        return wanted

    def _events(self, seconds: float) -> set[str]:
        if not self.sources:
            self.clock.sleep(seconds)
            return set()
        live = [source for source in self.sources if not source.ended]
        ready = select.select(live, [], [], seconds)[0]
        return {name for source in ready for name in source.take()}

    def _look(self, infos: Iterable[CheckInfo]) -> None:
        results = self.runner.round(infos, self.system)
        self.rounds += 1
        # A cause may have been seen in an earlier round than what follows from it.
        self._results |= {result.check: result for result in results}
        ran = {result.check for result in results}
        every = [result for result in folded(self._results.values()) if result.check in ran]
        self.open, told = changes(self.open, every, self.system.now())
        for change in told:
            self.tell(change)
        now = self.clock.monotonic()
        if self.state is not None and now - self._saved >= SAVE_S * NS_PER_S:
            save(self.runner.counters, self.state)
            self._saved = now

    def close(self) -> None:
        """Ends the worker and the sources, and keeps the counters."""
        self.runner.close()
        for source in self.sources:
            source.close()
        if self.state is not None:
            save(self.runner.counters, self.state)


def first_delay(info: CheckInfo, node: str) -> float:
    """Seconds after the first round: the period, or a part of it that the node's name draws."""
    if info.period_s < SPREAD_FROM_S:
        return info.period_s
    draw = zlib.crc32(f"{node} {info.id}".encode()) / 2**32
    return max(30.0, info.period_s * draw)
