"""What a health check says: one outcome, its findings, and why it could not say more.

The outcome tells whether the thing that was looked at is well; a finding says what is wrong with it, in the
same type that the analysis of a job uses. UNKNOWN is not OK: a check that could not look has not seen a
healthy machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from megatrace.model.finding import Finding, Severity


class Outcome(Enum):
    """How a check ended."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    SKIPPED = "SKIPPED"


class Scope(Enum):
    """What is looked at: where the check runs follows from it."""

    NODE = "node"
    BMC = "BMC"
    SWITCH = "switch"
    FABRIC = "fabric"
    SCHEDULER = "scheduler"
    JOB = "job"


class Cost(Enum):
    """What a check does to the machine. Only passive ones run beside a job."""

    PASSIVE = "passive"
    ACTIVE = "active"
    INTRUSIVE = "intrusive"


class Step(Enum):
    """First step of the recovery ladder that answers a fault."""

    OBSERVE = "A0"
    MEND = "A1"
    RESTART_JOB = "A2"
    ISOLATE = "A3"
    RESET_GPU = "A4"
    REBOOT = "A5"
    POWER_CYCLE = "A6"
    REPROVISION = "A7"
    REPLACE = "A8"
    BURN_IN = "A9"

    @property
    def words(self) -> str:
        """What is done, in words."""
        return _STEPS[self]


_STEPS = {
    Step.OBSERVE: "observe",
    Step.MEND: "mend in place",
    Step.RESTART_JOB: "restart the job",
    Step.ISOLATE: "isolate the node",
    Step.RESET_GPU: "reset the GPU",
    Step.REBOOT: "reboot",
    Step.POWER_CYCLE: "cold power cycle",
    Step.REPROVISION: "install anew",
    Step.REPLACE: "replace the part",
    Step.BURN_IN: "burn in",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One run of one check on one machine.

    ``reason`` says why where the outcome is UNKNOWN or SKIPPED, and what was seen where it is OK.
    ``observed``: the check only watches; its findings count for no exit code and no action. ``steps`` is the
    first step of the ladder of each finding, parallel to ``findings``. ``measured`` holds numbers for the
    fleet's median, by name with unit."""

    check: str
    outcome: Outcome
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    steps: tuple[Step, ...] = ()
    seconds: float = 0.0
    observed: bool = False
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def severity(self) -> Severity | None:
        """Of its worst finding; None without one."""
        return min((finding.severity for finding in self.findings), default=None)


@dataclass(frozen=True, slots=True)
class Inspection:
    """All checks of one machine at one time (``time``, ns). ``about`` is the machine in a few words."""

    node: str
    time: int
    about: str
    results: tuple[CheckResult, ...]
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def of(self, *outcomes: Outcome) -> tuple[CheckResult, ...]:
        """The results that ended so."""
        return tuple(result for result in self.results if result.outcome in outcomes)

    @property
    def troubles(self) -> tuple[tuple[CheckResult, Finding, Step], ...]:
        """Every finding with its check and step, worst first; those of observed checks last."""
        found = [
            (result, finding, step)
            for result in self.results
            for finding, step in zip(result.findings, result.steps, strict=True)
        ]
        return tuple(sorted(found, key=_worst))

    @property
    def exit_code(self) -> int:
        """10 a fault of P2 or worse, 11 something could not be looked at, 0 all well."""
        counted = [result for result in self.results if not result.observed]
        if any(finding.severity <= Severity.P2 for result in counted for finding in result.findings):
            return 10
        return 11 if any(result.outcome is Outcome.UNKNOWN for result in counted) else 0


def _worst(item: tuple[CheckResult, Finding, Step]) -> tuple[bool, int, str]:
    result, finding, _ = item
    return result.observed, int(finding.severity), result.check
