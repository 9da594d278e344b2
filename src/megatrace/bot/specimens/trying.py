"""Breaks made machines and looks at what the checks say: found, located, what else was said.

What the tests, the benchmark of coverage and ``megatrace inspect --specimen`` share.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from megatrace.bot.catalogue import CheckInfo
from megatrace.bot.counters import Counters
from megatrace.bot.inspecting import inspect_recording
from megatrace.bot.specimens.faults import Fault
from megatrace.bot.specimens.files import written
from megatrace.bot.specimens.machine import Machine, machine
from megatrace.bot.specimens.variants import healthy
from megatrace.model.check import Inspection, Outcome
from megatrace.model.finding import Finding, Severity


@dataclass(frozen=True, slots=True)
class Tried:
    """What was said of one fault on one type of machine. ``device`` what had to be named."""

    fault: Fault
    kind: str
    device: str
    before: Inspection
    after: Inspection

    @property
    def mine(self) -> tuple[Finding, ...]:
        """Findings of the check that must find it."""
        return tuple(
            finding for result, finding, _ in self.after.troubles if result.check == self.fault.check
        )

    @property
    def found(self) -> bool:
        """Whether that check found it: as severe as expected, or as the consequence of what another check
        found."""
        return any(
            finding.severity <= Severity[self.fault.severity] or finding.caused_by for finding in self.mine
        )

    @property
    def located(self) -> bool:
        """Whether a finding of that check names the device."""
        return any(self.device in _named(finding) for finding in self.mine)

    @property
    def others(self) -> tuple[str, ...]:
        """What other checks said of P2 or worse that is not called a consequence."""
        return tuple(
            f"{result.check} {finding.summary}"
            for result, finding, _ in self.after.troubles
            if result.check != self.fault.check and finding.severity <= Severity.P2 and not result.observed
        )


def _named(finding: Finding) -> str:
    who = finding.culprits
    ends = [end.device or "" for link in who.links for end in (link.src, link.dst)]
    return " ".join([*(item.device or "" for item in who.devices), *ends, *who.nodes])


def try_fault(fault: Fault, kind: str, seed: int = 0, wanted: tuple[CheckInfo, ...] | None = None) -> Tried:
    """Looks at a healthy machine, breaks it, and looks again as often as the fault says."""
    draw = Random(f"{fault.name} {kind} {seed}")
    made = machine(kind)
    if fault.job:
        made.job()
    return broken(made, fault, draw, wanted)


def broken(made: Machine, fault: Fault, draw: Random, wanted: tuple[CheckInfo, ...] | None = None) -> Tried:
    """The same for a machine that is given."""
    counters = Counters()
    before = inspect_recording(written(made), wanted, counters=counters)
    device = fault.apply(made, draw)
    after = before
    for seconds in fault.looks:
        made.later(seconds)
        after = inspect_recording(written(made), wanted, counters=counters, template=fault.template)
    return Tried(fault, made.kind.name, device, before, after)


def try_healthy(seed: int, wanted: tuple[CheckInfo, ...] | None = None) -> tuple[str, tuple[str, ...]]:
    """(the machine in words, every alarm on it): findings of P2 or worse, and checks that could not look."""
    made, between, words = healthy(seed)
    draw = Random(seed)
    counters = Counters()
    looks = [inspect_recording(written(made), wanted, counters=counters)]
    made.later(60)
    between(made, draw)
    for seconds in (0, 60):
        made.later(seconds)
        looks.append(inspect_recording(written(made), wanted, counters=counters))
    alarms = [
        f"{result.check} {finding.summary}"
        for look in looks
        for result, finding, _ in look.troubles
        if finding.severity <= Severity.P2 and not result.observed
    ]
    alarms += [
        f"{item.check} cannot tell: {item.reason}" for look in looks for item in look.of(Outcome.UNKNOWN)
    ]
    return words, tuple(dict.fromkeys(alarms))
