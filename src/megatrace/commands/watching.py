"""`megatrace inspect --watch`: a line for every finding that comes, gets worse or goes, while it happens.

Is no verb of its own. What is looked at when is ``bot.watching``'s business; here it is started, told, and
ended."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from megatrace.bot.catalogue import CheckInfo
from megatrace.bot.check_runner import Switches, WorkerRunner
from megatrace.bot.counters import Counters, load
from megatrace.bot.inspecting import PACKAGE, about, state_file
from megatrace.bot.kernel_events import GpuEvents, library_is_there, sources
from megatrace.bot.live_system import LiveSystem
from megatrace.bot.watch_changes import Change, What
from megatrace.bot.watching import Watch
from megatrace.clock import SystemClock
from megatrace.model.check_json import finding_values
from megatrace.model.finding import Severity
from megatrace.reports.wording import plain
from megatrace.units import format_duration

EVENTS_FILE = "nvml-events"


def watch_here(
    wanted: Sequence[CheckInfo],
    switches: Switches,
    host: str,
    state: Path | None,
    seconds: float | None,
    as_json: bool,
) -> int:
    """Watches this machine until it is told to end; 10 where a finding of P2 or worse is open then, else
    0."""
    place = state or state_file()
    counters = Counters() if place is None else load(place)
    events, missing = sources(host)
    system = LiveSystem(host)
    template: dict[str, object] = {}
    if place is not None and host == "/" and library_is_there():
        journal = place.with_name(EVENTS_FILE)
        events.append(GpuEvents(journal, SystemClock()))
        template["nvml.events"] = str(journal)
    tell = _tell_json if as_json else _tell
    runner = WorkerRunner(PACKAGE, host, counters, template, switches)
    watch = Watch(wanted, runner, system, SystemClock(), tell, events, place)
    if not as_json:
        print(f"watching {system.name} · {about(system)} · {len(wanted)} checks", file=sys.stderr)
    for note in missing:
        print(f"note: {note}", file=sys.stderr)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        watch.run(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        watch.close()
        signal.signal(signal.SIGTERM, before)
    counted = [item for item in watch.open.values() if not item.observed]
    return 10 if any(item.finding.severity <= Severity.P2 for item in counted) else 0


def _end(*_: object) -> None:
    raise KeyboardInterrupt


def _tell(change: Change) -> None:
    item = change.item
    word = "observed" if item.observed else change.what.value
    lasted = f" after {format_duration(change.time - item.since)}" if change.what is What.GONE else ""
    remedy = f" → {plain(item.finding.remedy) or item.step.words}" if change.what is not What.GONE else ""
    said = f"{item.finding.severity.name} {item.check:<7} {plain(item.finding.summary)}"
    print(f"{word:<8} {said}{lasted}{remedy}", flush=True)


def _tell_json(change: Change) -> None:
    item = change.item
    values = {
        "schema": "megatrace.change/1",
        "what": change.what.value,
        "time_ns": str(change.time),
        "since_ns": str(item.since),
        "check": item.check,
        "observed": item.observed,
        "step": item.step.value,
        "finding": finding_values(item.finding),
    }
    print(json.dumps(values, ensure_ascii=False), flush=True)
