"""One inspection of one machine: which checks, run how, and the machine in a few words.

The functions that ``megatrace inspect``, the agent and the gates share. A live machine is looked at through a
worker, a recording in this process."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from megatrace.bot.catalogue import CheckInfo, infos, select
from megatrace.bot.check_runner import Switches, WorkerRunner, run_inline
from megatrace.bot.checks import CHECKS
from megatrace.bot.counters import Counters, load, save
from megatrace.bot.folding import folded
from megatrace.bot.live_system import LiveSystem
from megatrace.bot.recorded_system import RecordedSystem, Recording
from megatrace.model.check import CheckResult, Inspection
from megatrace.model.system import System, Unreadable

PACKAGE = "megatrace.bot.checks"
STATE_PLACES = ("/var/lib/megatrace", "~/.local/state/megatrace")
"""Where counters are kept: the first that can be written."""
STATE_FILE = "inspect-counters.json"


def catalogue() -> tuple[CheckInfo, ...]:
    """Every check there is."""
    return infos(CHECKS)


def inspect_recording(
    recording: Recording,
    wanted: Iterable[CheckInfo] | None = None,
    *,
    template: Mapping[str, object] | None = None,
    switches: Switches | None = None,
    counters: Counters | None = None,
) -> Inspection:
    """Judges a recorded machine; ``counters`` are those that it was recorded with, unless given."""
    begun = time.monotonic()
    system = RecordedSystem(recording)
    known = Counters(recording.counters) if counters is None else counters
    chosen = select(catalogue()) if wanted is None else tuple(wanted)
    results = run_inline(chosen, system, CHECKS, counters=known, template=template, switches=switches)
    return _inspection(system, results, begun, recording.notes)


def inspect_here(
    wanted: Iterable[CheckInfo],
    *,
    host: str = "/",
    template: Mapping[str, object] | None = None,
    switches: Switches | None = None,
    state: Path | None = None,
    record: bool = False,
) -> tuple[Inspection, Recording]:
    """Looks at this machine once; the recording is empty unless asked for."""
    begun = time.monotonic()
    system = LiveSystem(host)
    place = state or state_file()
    counters = load(place) if place is not None else Counters()
    before = counters.state()
    runner = WorkerRunner(PACKAGE, host, counters, template or {}, switches or Switches(), record)
    if record:
        before = Counters(before).state()
    try:
        results = runner.round(wanted, system)
    finally:
        runner.close()
    notes = () if place is not None and save(counters, place) else (_NO_STATE,)
    inspection = _inspection(system, results, begun, notes)
    recorded = runner.recorded
    recorded.name, recorded.time, recorded.root = system.name, inspection.time, system.root
    recorded.counters = before
    return inspection, recorded


_NO_STATE = "growth of counters is not judged: there is no place to keep them (name one with --state)"


def state_file() -> Path | None:
    """Where counters are kept between inspections; None where nothing can be written."""
    for place in STATE_PLACES:
        folder = Path(place).expanduser()
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return folder / STATE_FILE
    return None


def _inspection(
    system: System, results: Iterable[CheckResult], begun: float, notes: Iterable[str]
) -> Inspection:
    return Inspection(
        node=system.name,
        time=system.now(),
        about=about(system),
        results=folded(results),
        seconds=round(time.monotonic() - begun, 3),
        notes=tuple(notes),
    )


def about(system: System) -> str:
    """The machine in a few words: "8×H100 SXM · driver 575.57.08", from what the driver leaves in /proc."""
    models: dict[str, int] = {}
    for path in system.glob("/proc/driver/nvidia/gpus/*/information"):
        with suppress(Unreadable):
            found = re.search(r"^Model:\s*(.+)$", system.read(path), re.MULTILINE)
            name = found[1].strip().removeprefix("NVIDIA ") if found else "GPU"
            models[name] = models.get(name, 0) + 1
    parts = [f"{count}×{name}" for name, count in models.items()] or ["no GPU"]
    with suppress(Unreadable):
        found = re.search(
            r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", system.read("/proc/driver/nvidia/version")
        )
        parts += [f"driver {found[1]}"] if found else []
    return " · ".join(parts)
