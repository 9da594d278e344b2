"""Logs beside recordings of the same job: what a kernel log adds to a hang that calls or dumps show.

Recordings say who stopped, and name no hardware; a log may say why. A firm cause in the logs (an Xid, a process that
was killed, an exception) comes first and what the recordings show follows from it, unless it came later. Logs without
a firm cause add notes and change no verdict.
"""

from __future__ import annotations

from dataclasses import replace

from megatrace.analysis.evidence import SLACK, diagnose_facts
from megatrace.model.finding import Diagnosis, Finding, Severity, Verdict
from megatrace.model.series import FactKind
from megatrace.model.trace import Trace
from megatrace.units import NS_PER_S

DAY = 86_400 * NS_PER_S
"""Logs without a zone may be off by as much as half of it; what is further away is another incident."""
YEAR_2000 = 946_684_800 * NS_PER_S
"""Smaller times count from a boot and cannot be compared with those of a log."""


def with_evidence(diagnosis: Diagnosis, trace: Trace) -> Diagnosis:
    """The diagnosis of the recordings with what the logs of the same trace say."""
    if not any(fact.kind is FactKind.LINES for fact in trace.facts):
        return diagnosis
    said = diagnose_facts(trace)
    failures = [item for item in said.findings if item.kind.verdict is Verdict.FAILED]
    firm = [item for item in failures if item.severity <= Severity.P2 and not _far(item, diagnosis)]
    others = [item for item in said.findings if item not in firm]
    notes = [replace(item, severity=max(item.severity, Severity.P3)) for item in others]
    if not firm:
        return replace(diagnosis, findings=_numbered([*diagnosis.findings, *notes]))
    first = firm[0]
    seen = [_following(item, first) for item in diagnosis.findings]
    return replace(
        diagnosis,
        verdict=Verdict.FAILED,
        headline=said.headline,
        findings=_numbered([*firm, *seen, *notes]),
        next_steps=(*said.next_steps, *diagnosis.next_steps),
        places=diagnosis.places or said.places,
    )


def _far(item: Finding, diagnosis: Diagnosis) -> bool:
    """Whether it happened on another day than what was recorded: an old line of a long log."""
    start = diagnosis.job.first_time or diagnosis.clock.t0
    end = diagnosis.job.last_time or start
    if item.window is None or start < YEAR_2000:
        return False
    return not start - DAY <= item.window.start <= end + DAY


def _following(item: Finding, cause: Finding) -> Finding:
    """A finding of the recordings as a consequence, where it is not the earlier one."""
    if (
        item.window is not None
        and cause.window is not None
        and cause.window.start > item.window.start + SLACK
    ):
        return item
    return replace(item, caused_by=("f1",))


def _numbered(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(replace(item, id=f"f{number}") for number, item in enumerate(findings, start=1))
