"""The verdict on what NCCL's RAS says of a job.

RAS sees who answers, errors that NCCL met, and launches. A rank that is dead or does not answer is named;
an error is named with its rank; counts that differ are a hang only if two answers show the same difference
and nothing moved. "OK" of RAS means that nobody is missing and all launched the same, not that anything
completes, so it is never called healthy here.
"""

from __future__ import annotations

from dataclasses import replace

from megatrace.analysis.ras_errors import error_findings, missing_findings, status_lines
from megatrace.analysis.ras_names import Names, nodes_of
from megatrace.analysis.ras_progress import LEAST_APART, Lag, apart, lags_of, moved, pure_laggards
from megatrace.model.finding import (
    ClockInfo,
    Culprits,
    Diagnosis,
    Evidence,
    Finding,
    JobSummary,
    Kind,
    NextStep,
    Severity,
    Verdict,
)
from megatrace.model.ras import RasSnapshot
from megatrace.model.series import FactKind, LogFact
from megatrace.model.trace import Trace
from megatrace.units import format_count, format_duration, say_ranks

SHOWN = 4
"""Differences that are spelt out."""
_AGAIN = (
    NextStep("megatrace ras HOST:28028", "asks a live job twice, some seconds apart: a hang stays as it is"),
    NextStep(
        "megatrace diagnose FIRST.json SECOND.json", "the same from two saved answers (ncclras -f json -v)"
    ),
)
_INSIDE = (
    NextStep("py-spy dump --pid PID", "on any node: whether the host waits in a call, and in which"),
    NextStep("megatrace diagnose DUMPS/", "flight-recorder dumps say whether the last calls completed"),
)


def diagnose_ras(trace: Trace) -> Diagnosis:
    """The verdict on the answers of a trace (``Trace.ras``, at least one)."""
    last = trace.ras[-1]
    earlier = next((one for one in reversed(trace.ras[:-1]) if _same_job(one, last)), None)
    names = Names(last)
    findings = [*missing_findings(last, names), *error_findings(last, names)]
    lags = lags_of(last)
    if not findings and lags and earlier is not None:
        standing = _standing(earlier, last, lags, names)
        findings += [] if standing is None else [standing]
    if not findings and not lags:
        findings += _timed_out(trace.facts)
    numbered = tuple(_identified(finding, i) for i, finding in enumerate(findings, start=1))
    verdict, headline, steps, alternatives = _concluded(last, earlier, lags, numbered, names)
    notes = trace.coverage.notes
    if last.timeouts:
        notes = (*notes, f"RAS met {last.timeouts} timeouts while it asked: its answer may lack ranks.")
    return Diagnosis(
        verdict=verdict,
        headline=headline,
        job=JobSummary(ranks=last.world, ranks_seen=last.world - len(_gone(last)), nodes=last.nodes),
        findings=numbered,
        clock=ClockInfo(t0=trace.ras[0].taken_at or 0),
        inputs=trace.inputs,
        alternatives=alternatives,
        next_steps=steps,
        places=names.places(last.world),
        coverage=replace(trace.coverage, notes=notes),
    )


def _timed_out(facts: tuple[LogFact, ...]) -> list[Finding]:
    """A watchdog timed out although all launched the same: the call stands inside, and RAS cannot see where.

    Whoever reports it first is a victim like all others.
    """
    timeouts = [fact for fact in facts if fact.kind is FactKind.WATCHDOG and fact.rank is not None]
    if not timeouts:
        return []
    first = min(timeouts, key=lambda fact: fact.number("seq") or 0.0)
    who = tuple(sorted({fact.rank for fact in timeouts if fact.rank is not None}))
    what = f"{first.word('op')} #{int(first.number('seq') or 0):,}"
    ran = format_duration((first.number("ran_ms") or 0.0) * 1e6)
    finding = Finding(
        kind=Kind.HANG_GROUP,
        severity=Severity.P0,
        summary=(
            f"{what} did not complete within {ran}, although RAS sees all ranks there and level: the job "
            "stood inside a call that all had launched"
        ),
        confidence=0.7,
        kind_alternatives=(Kind.HANG_NETWORK, Kind.HANG_DEVICE),
        ambiguous=True,
        victims=who,
        evidence=(
            Evidence(
                f"the watchdog of {say_ranks(who)} timed out in {what}; who reports it is not the cause"
            ),
            Evidence("RAS counts launches, not completions: OK does not mean that anything finishes"),
        ),
        remedy="Read the flight-recorder dumps of all ranks: they say who completed the call.",
    )
    return [finding]


def _same_job(a: RasSnapshot, b: RasSnapshot) -> bool:
    return bool({one.hash for one in a.communicators} & {one.hash for one in b.communicators})


def _gone(snapshot: RasSnapshot) -> set[int]:
    return {
        one.rank for item in snapshot.communicators if snapshot.global_ranks(item) for one in item.missing
    }


def _identified(finding: Finding, number: int) -> Finding:
    who = ",".join(map(str, finding.culprits.ranks)) or ",".join(finding.culprits.nodes) or "job"
    return replace(finding, id=f"f{number}", fingerprint=f"{finding.kind.value}:{who}")


def _concluded(
    last: RasSnapshot,
    earlier: RasSnapshot | None,
    lags: list[Lag],
    findings: tuple[Finding, ...],
    names: Names,
) -> tuple[Verdict, str, tuple[NextStep, ...], tuple[str, ...]]:
    """(verdict, headline, next steps, what else is to be said)."""
    lines = tuple(lag_line(lag, names) for lag in lags[:SHOWN]) + status_lines(last, names)
    serious = [finding for finding in findings if finding.severity <= Severity.P2]
    if serious:
        return serious[0].kind.verdict, serious[0].summary, (), lines
    if earlier is not None and moved(earlier, last):
        return Verdict.HEALTHY, _moving(earlier, last), (), ()
    if lags:
        return Verdict.UNDECIDABLE, _maybe(lags[0], lags, names), _AGAIN, lines[1:]
    if lines:
        return Verdict.UNDECIDABLE, f"cannot tell from one answer: {lines[0]}", _AGAIN, lines[1:]
    if earlier is not None and moved(earlier, last) is False:
        time = apart(earlier, last)
        during = "" if time is None else f" for {format_duration(time)}"
        text = (
            f"no rank launched a collective{during}, and none is behind: the job is idle, outside of NCCL, "
            "or stands in a call that all have made; RAS does not see which"
        )
        return Verdict.UNDECIDABLE, text, _INSIDE, ()
    return Verdict.UNDECIDABLE, _all_level(last), (*_AGAIN[:1], *_INSIDE), ()


def _moving(earlier: RasSnapshot, last: RasSnapshot) -> str:
    time = apart(earlier, last)
    during = "between the two answers" if time is None else f"within {format_duration(time)}"
    return f"no hang: the job launched collectives {during}, and no rank is missing"


def _all_level(last: RasSnapshot) -> str:
    if not last.communicators and not last.groups:
        return "cannot tell: RAS knows of no communicator"
    counts = [number for item in last.communicators for _, number in item.counts]
    if counts and not any(counts):
        return f"no collective has run yet on any of {format_count(last.world)} ranks: the job is starting"
    return (
        f"RAS sees nothing wrong: {format_count(last.world)} ranks answer and have launched the same "
        "collectives. That does not say that they complete: RAS says OK of a job that hangs inside a call"
    )


def _maybe(worst: Lag, lags: list[Lag], names: Names) -> str:
    """One answer, and counts that differ."""
    text = lag_line(worst, names)
    if worst.lead == 1:
        return (
            f"cannot tell from one answer: {text}; a lead of one is normal in a running job. "
            "It is a hang only if the counts stay, and then those behind hold it up"
        )
    more = f" (and {len(lags) - 1} more differences)" if len(lags) > 1 else ""
    return f"cannot tell from one answer whether the job moves: {text}{more}"


def lag_line(lag: Lag, names: Names) -> str:
    """Who is behind whom in one communicator, the ones behind first: RAS lists the smaller side only."""
    behind = _side(lag, names, lag.behind, lag.behind_count)
    ahead = _side(lag, names, lag.ahead, lag.ahead_count)
    low = f"#{lag.low:,}" if lag.low else "none at all"
    return (
        f"{names.communicator(lag.communicator)}: {behind} "
        f"{'is' if lag.behind_count == 1 else 'are'} behind at {lag.operation} {low}, "
        f"{ahead} {'is' if lag.ahead_count == 1 else 'are'} ahead at #{lag.high:,}"
    )


def _side(lag: Lag, names: Names, ranks: tuple[int, ...] | None, count: int) -> str:
    if ranks is None:
        return f"{format_count(count)} ranks that RAS does not list"
    return names.ranks(lag.communicator, ranks)


def _standing(earlier: RasSnapshot, last: RasSnapshot, lags: list[Lag], names: Names) -> Finding | None:
    """The same difference in two answers while nothing moved."""
    time = apart(earlier, last)
    if moved(earlier, last) is not False or time is None or time < LEAST_APART:
        return None  # the same answer twice, for all that is known
    pure = [(lag, ranks) for lag, ranks in pure_laggards(lags) if ranks]
    processes = [lag.communicator.process_of(rank) for lag, ranks in pure for rank in ranks]
    known = [names.global_rank(lag.communicator, rank) for lag, ranks in pure for rank in ranks]
    ranks = tuple(sorted({rank for rank in known if rank is not None}))
    lag, who = pure[0] if pure else (lags[0], ())
    many = 2 * len(who) > lag.communicator.size or not who
    said = names.ranks(lag.communicator, who) if who else f"{format_count(lag.behind_count)} ranks"
    evidence = [Evidence(f"nothing moved between two answers {format_duration(time)} apart")]
    evidence += [Evidence(lag_line(item, names)) for item in lags[:SHOWN]]
    if many:
        evidence.append(
            Evidence("most ranks are behind: the few ahead may as well have made a call too many")
        )
    return Finding(
        kind=Kind.HANG_GROUP if many else Kind.HANG_HOST,
        severity=Severity.P0,
        summary=(
            f"{said} never launched {lag.operation} #{lag.low + 1:,} of "
            f"{names.communicator(lag.communicator)}, which {format_count(lag.ahead_count)} others wait in"
        ),
        confidence=0.6 if many else 0.85,
        kind_alternatives=(Kind.HANG_HOST if many else Kind.HANG_DEVICE, Kind.MISSING_CALL),
        ambiguous=many or len(who) > 1,
        culprits=Culprits(ranks=ranks, nodes=() if ranks else nodes_of(processes)),
        evidence=tuple(evidence),
        remedy="Take stacks of the ranks that are behind first (py-spy dump): RAS sees only launches.",
    )
