"""The verdict on text evidence: logs, outputs of tools, alerts, in any mixture, of one job or one machine.

Each judge makes claims from the facts that it knows; here the first cause is told from its consequences. A claim
higher on the ladder (`Order`) that is not later explains those below it: they stay in the report as what follows.
Claims of different clocks are joined by rank and node where both name them. Where only consequences are seen, or
evidence is thin, the verdict is that nothing can be told, with what to collect.

A log cannot prove that a machine is healthy; a file without a known fault is called so, with what was looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megatrace.analysis.evidence_alerts import judge_alerts
from megatrace.analysis.evidence_claim import ALL_LOGS, Claim, Order, plural
from megatrace.analysis.evidence_ends import judge_ends
from megatrace.analysis.evidence_failures import judge_failures
from megatrace.analysis.evidence_gpu import judge_gpus
from megatrace.analysis.evidence_host import judge_host
from megatrace.analysis.evidence_nccl import judge_nccl
from megatrace.analysis.evidence_parts import judge_parts
from megatrace.analysis.evidence_store import judge_store
from megatrace.analysis.evidence_switches import judge_driver
from megatrace.analysis.evidence_tools import judge_tools
from megatrace.analysis.evidence_torch import judge_torch
from megatrace.analysis.evidence_training import judge_training
from megatrace.analysis.evidence_watched_ports import judge_watched_ports
from megatrace.model.finding import ClockInfo, Diagnosis, Finding, JobSummary, NextStep, Severity, Verdict
from megatrace.model.series import FactKind, LogFact
from megatrace.model.trace import RankPlace, Trace
from megatrace.units import NS_PER_S, format_duration

SLACK = 120 * NS_PER_S
"""A cause may be written this much later than its consequence: logs of several machines, buffers of several
processes, and drivers that print after they have given up."""
STALE = 1_800 * NS_PER_S + SLACK
"""A cause this long before belongs to something else, as long as the longest usual watchdog (30 minutes)."""
MAX_STEPS = 6
"""Commands that are proposed: more nobody runs at night."""

_ANYTHING = (
    ALL_LOGS,
    NextStep("dmesg -T | grep -e NVRM -e mlx5 -e 'Killed process'", "on every node: what its kernel reports"),
    NextStep("py-spy dump --pid PID", "on the nodes, if the job still runs: where it stands"),
)
"""What to collect where errors were read and none of them tells a cause."""

_JUDGES = (
    judge_gpus, judge_driver, judge_host, judge_failures, judge_ends, judge_torch, judge_store, judge_nccl,
    judge_training, judge_parts, judge_tools, judge_alerts,
    judge_watched_ports,
)  # fmt: skip


def diagnose_facts(trace: Trace) -> Diagnosis:
    """The verdict on the facts of a trace (``Trace.facts``, at least one)."""
    facts = sorted(trace.facts, key=lambda fact: (fact.source, fact.line))
    claims = [claim for judge in _JUDGES for claim in judge(facts)]
    claims = _explained(sorted(claims, key=_rank))
    numbered = [replace(item, finding=_numbered(item.finding, i)) for i, item in enumerate(claims, start=1)]
    numbered = _linked(numbered)
    verdict, headline, either = _concluded(numbered, facts)
    ranks = sorted({fact.rank for fact in facts if fact.rank is not None})
    times = [fact.time for fact in facts if fact.time is not None and fact.clock == "wall"]
    starts = [item.finding.window.start for item in numbered if item.finding.window is not None]
    return Diagnosis(
        verdict=verdict,
        headline=headline,
        job=JobSummary(
            ranks=_world(facts, ranks),
            ranks_seen=len(ranks),
            first_time=min(times, default=None),
            last_time=max(times, default=None),
        ),
        findings=tuple(item.finding for item in numbered),
        clock=ClockInfo(t0=min([*times, *starts], default=0)),
        inputs=trace.inputs,
        alternatives=either,
        next_steps=_steps(numbered) or (_ANYTHING if verdict is Verdict.UNDECIDABLE else ()),
        places=_places(facts),
        coverage=trace.coverage,
    )


def _rank(item: Claim) -> tuple[bool, bool, int, int, int]:
    """Serious and firm ones first, then by the ladder, by severity, by time."""
    minor = item.finding.severity > Severity.P2
    return minor, item.weak, int(item.order), int(item.finding.severity), item.time or 0


def _explained(claims: list[Claim]) -> list[Claim]:
    """Consequences of a firm cause become notes, so that they count for no verdict."""
    result = list(claims)
    for at, item in enumerate(claims):
        cause = next((other for other in claims[:at] if _causes(other, item)), None)
        if cause is not None:
            finding = replace(
                item.finding,
                severity=max(item.finding.severity, Severity.P3),
                caused_by=(str(claims.index(cause)),),
            )
            result[at] = replace(item, finding=finding, weak=False)
    return _unrelated(result)


def _unrelated(claims: list[Claim]) -> list[Claim]:
    """Says of a notice far from the first cause that it has nothing to do with it."""
    if not claims or claims[0].finding.severity > Severity.P2 or claims[0].time is None:
        return claims
    first = claims[0]
    said: list[str] = []
    for item in claims[1:]:
        if item.order is Order.NOTE and item.finding.severity is Severity.INFO and item.time is not None:
            gap = item.time - (first.time or 0)
            if item.clock == first.clock and abs(gap) > SLACK:
                when = "earlier" if gap < 0 else "later"
                text = item.finding.summary.partition(": ")[2].partition(":")[0]
                said.append(f"not the notice {format_duration(abs(gap))} {when} ({text}): it is unrelated")
    finding = replace(first.finding, exonerated=(*first.finding.exonerated, *said))
    return [replace(first, finding=finding), *claims[1:]]


def _causes(cause: Claim, item: Claim) -> bool:
    """Whether one claim can be what brought the other about."""
    if (
        cause.weak
        or cause.finding.severity > Severity.P2
        or cause.order >= item.order
        or item.order >= Order.SPEED
    ):
        return False
    if item.order < Order.KILLED and cause.order is not Order.HARDWARE:
        return False
    if cause.finding.caused_by:
        return False
    if cause.time is None or item.time is None or cause.clock != item.clock:
        return True
    if cause.clock == "boot" and not (cause.sources & item.sources):
        return True
    return -SLACK <= item.time - cause.time <= STALE


def _numbered(finding: Finding, number: int) -> Finding:
    who = finding.culprits
    parts = [*map(str, who.ranks), *who.nodes, *(f"{d.node or ''}/{d.device or ''}" for d in who.devices)]
    return replace(
        finding,
        id=f"f{number}",
        fingerprint=f"{finding.kind.value}:{','.join(dict.fromkeys(parts)) or 'job'}",
    )


def _linked(claims: list[Claim]) -> list[Claim]:
    return [
        replace(
            item,
            finding=replace(item.finding, caused_by=tuple(f"f{int(i) + 1}" for i in item.finding.caused_by)),
        )
        for item in claims
    ]


def _concluded(claims: Sequence[Claim], facts: Sequence[LogFact]) -> tuple[Verdict, str, tuple[str, ...]]:
    """(verdict, headline, explanations that fit as well)."""
    serious = [item for item in claims if item.finding.severity <= Severity.P2 and not item.weak]
    if serious:
        first = min(serious, key=lambda item: (_PRECEDENCE[item.verdict], claims.index(item)))
        return first.verdict, first.finding.summary, first.either
    weak = [item for item in claims if item.weak]
    if weak:
        first = weak[0]
        return Verdict.UNDECIDABLE, first.finding.summary, first.either
    left = [fact for fact in facts if fact.kind in _ERRORS and fact.name not in _HARMLESS]
    if left and not claims:
        said = f'"{left[0].text[:160].strip()}"'
        return (
            Verdict.UNDECIDABLE,
            f"{plural(len(left), 'line')} of errors, and none that tells a cause: {said}",
            (),
        )
    return Verdict.HEALTHY, _healthy(claims, facts), ()


_ERRORS = frozenset(
    {
        FactKind.XID,
        FactKind.OUT_OF_MEMORY,
        FactKind.WATCHDOG,
        FactKind.EXCEPTION,
        FactKind.PROCESS_EXIT,
        FactKind.STORE,
        FactKind.NCCL,
        FactKind.NETWORK_ERROR,
        FactKind.STORAGE,
        FactKind.FINGERPRINT,
    }
)
"""Kinds of facts of which none may be passed over in silence."""
_HARMLESS = frozenset({"traceback", "frames", "nfs_up", "wqe_summary", "cancelled"})


_PRECEDENCE = {
    Verdict.FAILED: 0,
    Verdict.HANG: 1,
    Verdict.SLOW: 2,
    Verdict.UNDECIDABLE: 3,
    Verdict.HEALTHY: 4,
}


def _healthy(claims: Sequence[Claim], facts: Sequence[LogFact]) -> str:
    read = []
    for fact in facts:
        if fact.kind is FactKind.LINES:
            lines = int(fact.number("lines") or 0)
            read.append(
                f"{plural(lines, 'line')} of {_article(fact.word('shape'))} read"
                if lines
                else fact.word("shape")
            )
    looked = "; ".join(dict.fromkeys(read)) or "the input was read"
    if claims:
        noted = plural(len(claims), "note")
        return f"nothing that stops or slows a job; {noted}; {looked}"
    return f"no finding: {looked}, and nothing wrong is reported in it"


def _article(shape: str) -> str:
    return f"{'an' if shape[:1] in 'aeiou' else 'a'} {shape}" if shape else "a log"


def _world(facts: Sequence[LogFact], ranks: Sequence[int]) -> int:
    """Ranks of the job where a log says how many there are, else 0."""
    named = [
        int(fact.number("nranks") or 0)
        for fact in facts
        if fact.kind in (FactKind.NCCL_CALL, FactKind.NCCL_SETUP)
    ]
    world = max(named, default=0)
    return world if world > max(ranks, default=-1) else 0


def _places(facts: Sequence[LogFact]) -> tuple[RankPlace, ...]:
    places: dict[int, RankPlace] = {}
    for fact in facts:
        if fact.rank is not None and (fact.node or fact.local_rank is not None):
            old = places.get(fact.rank, RankPlace(fact.rank))
            local = old.local_rank if old.local_rank is not None else fact.local_rank
            places[fact.rank] = RankPlace(
                fact.rank, old.node or fact.node, local, None if local is None else f"gpu{local}"
            )
    return tuple(places[rank] for rank in sorted(places))


def _steps(claims: Sequence[Claim]) -> tuple[NextStep, ...]:
    """Commands of the root first, each once."""
    steps: dict[str, NextStep] = {}
    for item in claims:
        for step in item.steps:
            steps.setdefault(step.command, step)
    return tuple(steps.values())[:MAX_STEPS]
