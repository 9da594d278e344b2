"""The entry point: a trace in, a diagnosis out.

Resolves communicators and layout, cuts iterations and phases, looks for hangs, then for slowness, and says
what was looked at. Pure: no files, no clock (``now`` is a value). Where something cannot be known the
diagnosis says so and names what to collect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatrace.analysis import align, baseline, summary
from megatrace.analysis import phases as phase_tables
from megatrace.analysis.align_limits import beyond_error
from megatrace.analysis.baseline import EarlierRun
from megatrace.analysis.blind_spots import with_blind_spots
from megatrace.analysis.conclude import Seen, conclude
from megatrace.analysis.costs import tabulate_costs, usual_time
from megatrace.analysis.early_ends import early_ends, early_note, ended_normally
from megatrace.analysis.evidence import diagnose_facts
from megatrace.analysis.evidence_joined import with_evidence
from megatrace.analysis.flat import ONE_TASK, tabulate_flat, tabulate_flat_work
from megatrace.analysis.hang import HangResult, Hints, find_hangs
from megatrace.analysis.infer_layout import Resolved, resolve
from megatrace.analysis.inspector import diagnose_inspector
from megatrace.analysis.locate import Locator, communicator_names, with_peers
from megatrace.analysis.marks import with_marks
from megatrace.analysis.network import WORK_REQUEST, diagnose_network, judge_network, shown
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.ras import diagnose_ras
from megatrace.analysis.slow import find_slow
from megatrace.analysis.standstill import with_standstill
from megatrace.analysis.states import diagnose_states
from megatrace.analysis.timeline import Known, gather
from megatrace.analysis.whatif_verdict import diagnose_operations
from megatrace.analysis.work import WorkTable, iteration_times, tabulate_work
from megatrace.model.finding import ClockInfo, Diagnosis, Finding, Severity
from megatrace.model.frontier import Frontier
from megatrace.model.timeline import Timeline
from megatrace.model.trace import Coverage, RankPlace, Trace
from megatrace.units import format_ranks

STEADY = 2
"""Iterations from which on the pauses of a job are known: one of them beside the first."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """Everything worked out on the way; ``diagnosis`` is what reports get, the rest serves tests and live
    use."""

    resolved: Resolved
    phases: PhaseTable | None
    table: WorkTable | None
    diagnosis: Diagnosis


def diagnose(
    trace: Trace,
    *,
    now: int | None = None,
    progress: Progress | None = None,
    earlier: EarlierRun | None = None,
    timeline: bool = False,
) -> Diagnosis:
    """The verdict on a trace. ``now``: ns since the epoch at which the job still stood as the trace ends;
    ``earlier``: a run of the same configuration to compare with; ``timeline``: keep the calls around the
    first finding for a viewer."""
    if trace.facts and not _recorded(trace):
        return diagnose_facts(trace)
    seen = with_marks(_of_recordings(trace, now, progress, earlier, timeline=timeline), trace)
    seen = with_blind_spots(seen, trace)
    return with_evidence(seen, trace) if trace.facts else seen


def _recorded(trace: Trace) -> bool:
    """Whether there is anything beside the facts of logs."""
    kept = trace.dumped is not None or trace.inspector is not None or trace.operations is not None
    requests = any(fact.name == WORK_REQUEST for fact in trace.facts)
    return kept or requests or bool(trace.ras or trace.series or len(trace.events))


def _of_recordings(
    trace: Trace,
    now: int | None,
    progress: Progress | None,
    earlier: EarlierRun | None,
    *,
    timeline: bool,
) -> Diagnosis:
    """The verdict on what was recorded of the job's communication, by the source that sees most."""
    if trace.dumped is not None:
        return diagnose_states(trace, now)
    if trace.ras and not len(trace.events):
        return diagnose_ras(trace)
    if trace.inspector is not None and not len(trace.events):
        return diagnose_inspector(trace)
    if trace.operations is not None and not len(trace.events):
        return diagnose_operations(trace)
    if not len(trace.events) and (trace.series or any(f.name == WORK_REQUEST for f in trace.facts)):
        return diagnose_network(trace, now)
    return analyse(trace, now=now, progress=progress, earlier=earlier, timeline=timeline).diagnosis


def analyse(
    trace: Trace,
    *,
    now: int | None = None,
    progress: Progress | None = None,
    earlier: EarlierRun | None = None,
    timeline: bool = False,
) -> Analysis:
    """Like ``diagnose``, with the intermediate results."""
    tell = progress or (lambda _: None)
    tell("layout and iterations")
    resolved = resolve(trace)
    tell("phases")
    table: PhaseTable | None = None
    slices = phase_tables.cut(resolved)
    found = phase_tables.infer_schedule(resolved, slices) if slices is not None else None
    if slices is not None and found is not None:
        table = phase_tables.tabulate_phases(resolved, slices, *found)
    elif slices is not None and resolved.layout is not None and resolved.layout.pp == 1:
        table = tabulate_flat(resolved, slices)
    tell("clocks")
    alignment = align.estimate(resolved, table)
    resolved = replace(resolved, trace=align.apply(resolved.trace, alignment))
    work: WorkTable | None = None
    findings: tuple[Finding, ...] = ()
    if table is not None:
        tell("work and waiting")
        work = (tabulate_flat_work if table.schedule is ONE_TASK else tabulate_work)(resolved, table)
        work = beyond_error(work, table.schedule, alignment)
        tell("slowness")
        findings = find_slow(resolved, table, work)
    end = now
    if end is None and len(trace.events):
        end = max(int(trace.events.enqueue.max()), trace.snapshot_at or 0)
    findings = (*judge_network(trace.series, trace.facts, end).findings, *findings)
    tell("hangs")
    hang = _hangs(resolved, table, now)
    tell("verdict")
    diagnosis = _conclude(resolved, table, work, findings, hang, earlier)
    diagnosis = replace(diagnosis, clock=alignment.clock_info(diagnosis.clock.t0))
    if trace.series:
        pictures = replace(diagnosis.pictures, series=shown(trace.series, diagnosis.findings))
        diagnosis = replace(diagnosis, pictures=pictures)
    if timeline:
        tell("the calls to show")
        diagnosis = replace(diagnosis, timeline=_timeline(resolved, table, work, diagnosis))
    return Analysis(resolved, table, work, diagnosis)


def _hangs(resolved: Resolved, table: PhaseTable | None, now: int | None) -> HangResult:
    """Whether the job stands, from where every rank's calls end."""
    trace, early = with_peers(resolved, table), early_ends(resolved)
    locator = Locator(replace(resolved, trace=trace), table)
    if early:
        trace = replace(trace, events=trace.events.take(~np.isin(trace.events.rank, early)))
    frontier = Frontier.from_events(trace.events, trace.communicators, trace.snapshot_at, tail=None)
    hints = Hints(
        until=now,
        ended_normally=ended_normally(resolved, early),
        steady=_steady(resolved),
        names=communicator_names(trace.communicators, resolved.layout),
    )
    return find_hangs(
        frontier,
        resolved.layout,
        where=locator.where,
        place_of=trace.place_of,
        coverage=trace.coverage,
        history=trace.events,
        hints=hints,
    )


def _steady(resolved: Resolved) -> int | None:
    """ns: when all ranks seen had made the first of their anchors."""
    it = resolved.iterations
    if it is None or it.count < STEADY:
        return None
    first = np.flatnonzero(np.diff(it.rank, prepend=-1))
    return int(resolved.trace.events.enqueue[it.row[first]].max())


def _conclude(
    resolved: Resolved,
    table: PhaseTable | None,
    work: WorkTable | None,
    slow: Sequence[Finding],
    hang: HangResult,
    earlier: EarlierRun | None,
) -> Diagnosis:
    findings = (*hang.findings, *slow)
    events = resolved.trace.events
    t0 = int(events.enqueue.min()) if len(events) else 0
    times, anchors = iteration_times(resolved, t0)
    job = summary.job_summary(resolved, None if _flat(table) else table, times, _baseline(work))
    if work is not None and table is not None and not np.isnan(times).all():
        stages = summary.stage_times(work, table.tasks, summary.quiet_iterations(findings, len(times)))
        usual = usual_time(times[~np.isnan(times)])
        outside = baseline.compare(resolved.trace.job, job, usual, findings, stages, earlier)
        job = replace(job, baseline=outside.against)
        findings = (*findings, *([outside.finding] if outside.finding else ()))
    if hang.possible is not None and any(finding.severity <= Severity.P2 for finding in findings):
        findings = tuple(sorted((hang.possible, *findings), key=lambda one: one.severity > Severity.P0))
    numbered = tuple(_identified(finding, i) for i, finding in enumerate(findings, start=1))
    said = conclude(Seen(resolved, table, work, times), numbered, hang)
    costs = tabulate_costs(work, table.schedule) if work is not None and table is not None else None
    quiet = summary.quiet_iterations(numbered, len(times))
    drawn, group = _drawn(resolved, work, numbered)
    pictures = with_standstill(
        summary.pictures(table, work, times, anchors, costs, drawn, group),
        Known(resolved, table, work, costs, times, anchors, t0),
        numbered,
    )
    return Diagnosis(
        verdict=said.verdict,
        headline=said.headline,
        job=job,
        findings=numbered,
        clock=ClockInfo(t0=t0),
        inputs=resolved.trace.inputs,
        stages=summary.stage_times(work, table.tasks, quiet)
        if work is not None and table is not None
        else (),
        alternatives=said.alternatives,
        next_steps=said.next_steps,
        places=_places(resolved),
        coverage=_coverage(resolved),
        warnings=resolved.warnings,
        pictures=pictures,
    )


def _timeline(
    resolved: Resolved, table: PhaseTable | None, work: WorkTable | None, diagnosis: Diagnosis
) -> Timeline | None:
    """The calls around the first finding."""
    t0 = diagnosis.clock.t0
    costs = tabulate_costs(work, table.schedule) if work is not None and table is not None else None
    known = Known(resolved, table, work, costs, *iteration_times(resolved, t0), t0)
    return gather(known, diagnosis.findings)


def _flat(table: PhaseTable | None) -> bool:
    """Whether iterations have no phases: there is no schedule to report."""
    return table is not None and table.schedule is ONE_TASK


def _coverage(resolved: Resolved) -> Coverage:
    """What was covered, with a note on logs that end long before the others."""
    coverage, early = resolved.trace.coverage, early_ends(resolved)
    if not early:
        return coverage
    return replace(coverage, notes=(*coverage.notes, early_note(resolved, early)))


def _identified(finding: Finding, number: int) -> Finding:
    ranks = finding.culprits.ranks
    who = format_ranks(ranks) if ranks else ",".join(finding.culprits.nodes) or f"stage{finding.where.stage}"
    return replace(finding, id=f"f{number}", fingerprint=finding.fingerprint or f"{finding.kind.value}:{who}")


def _places(resolved: Resolved) -> tuple[RankPlace, ...]:
    places = tuple(resolved.trace.place_of(rank) for rank in range(resolved.world))
    return places if any(place.node is not None for place in places) else ()


def _baseline(work: WorkTable | None) -> str | None:
    if work is None:
        return None
    return (
        "own past + peers"
        if work.group.shape[2] * (work.group.shape[3] if work.by_rank else 1) > 2
        else "own past"
    )


def _drawn(
    resolved: Resolved, work: WorkTable | None, findings: Sequence[Finding]
) -> tuple[int | None, tuple[int, int] | None]:
    """Iteration for the Gantt chart and the culprit's (stage, replica)."""
    if work is None:
        return None, None
    seen = np.flatnonzero(~np.isnan(work.group).all(axis=(1, 2, 3)))
    drawn = int(seen[-1]) if len(seen) else None
    if not findings:
        return drawn, None
    first = findings[0]
    if first.window is not None and first.window.first_iteration is not None:
        last = first.window.last_iteration
        middle = first.window.first_iteration if last is None else (first.window.first_iteration + last) // 2
        drawn = middle
    if first.culprits.ranks and resolved.layout is not None:
        place = resolved.layout.place(first.culprits.ranks[0])
        return drawn, (place.stage, place.dp)
    return drawn, None
