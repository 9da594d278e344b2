"""A node's board as its controller sees it: fans, power supplies, temperatures, the log of events."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megatrace.bot.board import Event, Health, Part, Sensor, events, sensors
from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem, Unknown
from megatrace.model.check import Step
from megatrace.model.finding import Severity
from megatrace.units import NS_PER_S

RECENT_H = 24.0
"""Hours after which an event is history: whoever repaired the board did not empty its log."""
AHEAD_H = 14.0
"""Hours that a controller's clock may be ahead: it is set to local time where nobody told it of zones."""
GRAVE = (
    (
        "PCIe fatal error",
        r"bus fatal|pci serr|bus uncorrectable|pcie? (?:fatal|uncorrect)",
        Step.POWER_CYCLE,
    ),
    (
        "uncorrectable memory error",
        r"\buncorrectable (?:ecc|machine|memory)|memory.*\buncorrect",
        Step.ISOLATE,
    ),
    (
        "power supply fault",
        r"power supply.*(?:failure detected|ac lost|ac out-of-range)|psu.*(?:fail|lost)",
        Step.ISOLATE,
    ),
    (
        "thermal trip",
        r"thermal trip|upper (?:critical|non-recoverable) +going high|over.?temperature",
        Step.ISOLATE,
    ),
    ("fan fault", r"fan.*(?:lower (?:critical|non-recoverable) +going low|fail)", Step.ISOLATE),
    (
        "processor fault",
        r"\bierr\b|machine check exception|frb[123]|caterr|processor.*(?:error|fault)",
        Step.ISOLATE,
    ),
    ("drive fault", r"drive slot.*(?:fault|predictive)|drive (?:fault|failed)", Step.ISOLATE),
    ("liquid leak", r"\bleak", Step.ISOLATE),
)
"""What an event is, how it is known, and what is done first."""
_KIND = re.compile(r"^(power supply|fan|temperature|processor|memory|drive slot)\s+", re.IGNORECASE)
_GRAVE = tuple((name, re.compile(form, re.IGNORECASE), step) for name, form, step in GRAVE)


@check(
    "BMC-01",
    summary="sensors, fans and power supplies that the board calls critical",
    subject="BMC",
    severity="P1",
    step="A3",
    scope="BMC",
    must=True,
    period_s=600,
    timeout_s=60,
)
def board_sensors(look: Look) -> Iterator[Problem]:
    """The state that the board's controller itself gives each of its sensors.

    A board with a dead fan or supply runs on: it slows its processors down, or waits for the second one to
    die. Source: Redfish (Thermal, Power and their successors) or `ipmitool sdr elist`. Threshold: the
    controller's own (critical, non-recoverable, input lost, redundancy lost); a warning of its own is a WARN;
    a fan or supply that is not there is no finding, since slots may be empty. Remedy: isolate the node at the
    job's end, have the named part looked at; inlet and hall temperature first where many nodes of a rack say
    the same."""
    found = sensors(look)
    if not found:
        raise Unknown("the controller lists no sensors")
    look.said = f"{len(found)} sensors"
    for sensor in found:
        if sensor.health is Health.CRITICAL and sensor.part is not Part.LEAK:
            yield look.fail(
                f"{sensor.part.value} {sensor.name} is critical: {sensor.said}",
                device=sensor.name,
                evidence=_serial(sensor),
                remedy=f"have {sensor.name} looked at; isolate the node at the job's end",
            )
        elif sensor.health is Health.WARNING and sensor.part is not Part.LEAK:
            yield look.warn(
                f"{sensor.part.value} {sensor.name} is near its limit: {sensor.said}", device=sensor.name,
                evidence=_serial(sensor), step=Step.OBSERVE,
            )  # fmt: skip


def _serial(sensor: Sensor) -> tuple[str, ...]:
    return (f"serial number {sensor.serial}",) if sensor.serial else ()


@check(
    "BMC-02",
    summary="grave events in the board's log",
    subject="BMC",
    severity="P1",
    step="A3",
    scope="BMC",
    must=True,
    period_s=600,
    timeout_s=60,
)
def event_log(look: Look) -> Iterator[Problem]:
    """New entries of the system event log: PCIe fatal, uncorrectable memory, supply, thermal trip, processor.

    The controller sees what kills the machine before the kernel can write it down. Source: Redfish
    LogServices or `ipmitool sel elist`. Threshold: an entry of the last 24 hours that was not taken back;
    older ones are history, because whoever repairs a board seldom empties its log. An entry without a time
    counts only when it came since the last look. Remedy: by type; a fatal PCIe error wants a cold power
    cycle, everything else a look at the part."""
    found = events(look)
    newest = max((event.number for event in found), default=0)
    grown = look.grown("board.events", float(newest), window_s=RECENT_H * 3600)
    since = newest if grown is None else newest - int(grown.amount)
    look.said = f"{len(found)} entries"
    for event in found:
        grave = _grave(event)
        if grave is None or event.gone or not _recent(event, look, since):
            continue
        name, step = grave
        sensor = _KIND.sub("", event.sensor)
        yield look.fail(
            f"the board's log records a {name}: {event.sensor}, {event.said}", device=sensor, step=step,
            since=event.time, evidence=(f"entry {event.number} of the log",), key=name,
            severity=Severity.P0 if name == "liquid leak" else None,
            remedy=f"{step.words}; then have {sensor} looked at",
        )  # fmt: skip


def _grave(event: Event) -> tuple[str, Step] | None:
    text = f"{event.sensor} {event.said}"
    for name, form, step in _GRAVE:
        if form.search(text):
            return name, step
    return ("fault", Step.ISOLATE) if event.severity == "Critical" else None


def _recent(event: Event, look: Look, since: int) -> bool:
    if event.time is None:
        return event.number > since
    age_h = (look.now - event.time) / NS_PER_S / 3600
    return -AHEAD_H <= age_h <= look.limit("hours", RECENT_H)


@check(
    "BMC-03",
    summary="a controller that does not answer",
    subject="BMC",
    severity="P2",
    step="A1",
    scope="BMC",
    period_s=600,
    timeout_s=60,
    hang="the controller",
    observe=True,
)
def reachable(look: Look) -> Iterator[Problem]:
    """Whether the controller answers at all.

    A node whose controller is dead cannot be power-cycled when that is needed. Source: any of the requests
    above. Threshold: one round without an answer, three tries each; watched only, because a controller that
    restarts is away for two minutes. Remedy: reset the controller (`ipmitool mc reset cold` on the node)."""
    try:
        look.said = f"{len(sensors(look))} sensors"
    except Unknown as error:
        yield look.warn(f"the board's controller gives no answer: {error}", device="BMC")
