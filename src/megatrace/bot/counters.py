"""Counters of machines over time: what they grew by, kept across restarts of whoever looks.

A counter's level says nothing: a port that saw 300 errors while it was cabled is healthy today. What counts
is growth between two looks, and how long that took. So the first look at a counter only remembers it, and a
rate needs time. A counter that fell was reset (driver loaded anew, GPU reset, reboot): it then counts from
zero, and its present value is what it grew by since. A boot in between resets everything.

Pure but for `load` and `save`; knows no counter by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from megatrace.units import NS_PER_S

MAX_SAMPLES = 40
"""Samples kept of a counter: an hour's window at a look every 90 s; older ones are thinned to the window's
edge."""
KEEP_S = 86_400.0
"""Seconds after which a sample explains nothing any more: the longest window of a check is a day."""
MAX_NOTES = 2_000
MAX_NOTE = 200
MAX_COUNTERS = 50_000
"""A node with 16 GPUs, 18 links each with 8 counters, and 16 ports with 60 has 3,300."""

LEVEL = "="
"""Begins the name of a quantity that is no counter (how many GPUs, how much memory): a boot does not reset
it."""
LASTING = "?"
"""Begins the name of a condition that holds since some time: a boot ends it."""
SURVIVORS = (LEVEL, "disk.")
"""A disk counts over its life, whatever the kernel does."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a counter grew by within ``seconds``; ``reset`` that it began anew in that time."""

    amount: float
    seconds: float
    reset: bool = False

    @property
    def per_hour(self) -> float:
        """Rate; 0 where there was no time."""
        return self.amount * 3_600.0 / self.seconds if self.seconds > 0 else 0.0

    def exceeds(self, per_hour: float) -> bool:
        """Whether it is more than so many an hour; within less than an hour it must be as many all the
        same."""
        return self.amount > per_hour * max(self.seconds, 3_600.0) / 3_600.0


class Counters:
    """Samples of counters by name: (time in s, value, grown in all, resets). Bounded in every direction."""

    def __init__(self, state: Mapping[str, object] | None = None) -> None:
        self._samples: dict[str, list[list[float]]] = {}
        self._notes: dict[str, str] = {}
        self._boot = ""
        if state:
            self._restore(state)

    def boot(self, boot_id: str) -> bool:
        """Tells which boot is looked at, and says whether it is another one than the last time.

        After a boot every counter of the kernel began anew.
        """
        another = bool(self._boot) and bool(boot_id) and boot_id != self._boot
        self._boot = boot_id or self._boot
        if another:
            self._samples = {
                name: samples for name, samples in self._samples.items() if not name.startswith(LASTING)
            }
            for name, samples in self._samples.items():
                if not name.startswith(SURVIVORS):
                    last = samples[-1]
                    samples.append([last[0], 0.0, last[2], last[3] + 1])
        return another

    def grown(self, name: str, value: float, now: int, window_s: float = 600.0) -> Growth | None:
        """Takes a reading and says what the counter grew by, over the window or, of a younger one, since it
        was first seen.

        None on the first sight of a counter: nothing is known of its past.
        """
        at = now / NS_PER_S
        samples = self._samples.get(name)
        if not samples:
            if len(self._samples) < MAX_COUNTERS:
                self._samples[name] = [[at, value, 0.0, 0.0]]
            return None
        last = samples[-1]
        if at > last[0] or value != last[1]:
            fell = value < last[1]
            step = value if fell else value - last[1]
            samples.append([max(at, last[0]), value, last[2] + step, last[3] + fell])
        before = [item for item in samples if item[0] <= at - window_s]
        begin = before[-1] if before else samples[0]
        self._samples[name] = _thinned(samples, at)
        end = samples[-1]
        return Growth(end[2] - begin[2], end[0] - begin[0], end[3] > begin[3])

    def level(self, name: str) -> float | None:
        """What a quantity was at the last look; None where there was none."""
        samples = self._samples.get(LEVEL + name)
        return samples[-1][1] if samples else None

    def levels(self, begin: str) -> dict[str, float]:
        """The quantities whose names begin so, as they were at the last look."""
        found = {name[1:]: samples[-1][1] for name, samples in self._samples.items() if name[0] == LEVEL}
        return {name: value for name, value in found.items() if name.startswith(begin)}

    def conditions(self, begin: str) -> tuple[str, ...]:
        """The conditions that hold, of names that begin so."""
        names = (name[1:] for name in self._samples if name[0] == LASTING)
        return tuple(name for name in names if name.startswith(begin))

    def lasting(self, name: str, holds: bool, now: int) -> float:
        """Seconds for which a condition has held at every look; 0 where it does not, or holds for the first
        time."""
        at = now / NS_PER_S
        if not holds:
            self._samples.pop(LASTING + name, None)
            return 0.0
        begun = self._samples.setdefault(LASTING + name, [[at, 1.0, 0.0, 0.0]])
        return max(0.0, at - begun[0][0])

    def note(self, name: str, text: str) -> None:
        """Remembers a word, such as what a cable leads to."""
        if len(self._notes) < MAX_NOTES:
            self._notes[name] = text[:MAX_NOTE]

    def noted(self, name: str) -> str | None:
        """The word that was remembered last."""
        return self._notes.get(name)

    def take(self, kind: str, name: str, value: float | str, now: int) -> None:
        """Repeats a reading of another process: "grown", "lasting" or "note"."""
        if kind == "note":
            self.note(name, str(value))
        elif kind == "lasting":
            self.lasting(name, float(value) > 0, now)
        else:
            self.grown(name, float(value), now)

    def state(self) -> dict[str, object]:
        """Everything, as JSON has it."""
        return {"boot": self._boot, "samples": self._samples, "notes": self._notes}

    def _restore(self, state: Mapping[str, object]) -> None:
        samples, notes = state.get("samples"), state.get("notes")
        for name, text in notes.items() if isinstance(notes, dict) else ():
            self.note(str(name), str(text))
        self._boot = str(state.get("boot", ""))
        for name, items in samples.items() if isinstance(samples, dict) else ():
            with suppress(TypeError, ValueError):
                rows = [[float(part) for part in item][:4] for item in items]
                if rows and all(len(row) == 4 for row in rows) and len(self._samples) < MAX_COUNTERS:
                    self._samples[str(name)] = rows


def _thinned(samples: list[list[float]], at: float) -> list[list[float]]:
    """Without what is too old, and at most so many: every second of the older half is dropped."""
    kept = [item for item in samples if item[0] >= at - KEEP_S] or samples[-1:]
    if len(kept) > MAX_SAMPLES:
        half = len(kept) // 2
        kept = kept[:half:2] + kept[half:]
    return kept


def load(path: Path) -> Counters:
    """What was kept; empty where there is nothing, or nothing whole."""
    try:
        state = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return Counters()
    return Counters(state if isinstance(state, dict) else None)


def save(counters: Counters, path: Path) -> bool:
    """Keeps it in one step, so that a crash leaves the old one; False where the place cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(counters.state()), "utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        return False
    return True
