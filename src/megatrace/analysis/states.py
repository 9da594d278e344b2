"""The verdict on dumped states: calls with "completed or not", without times of completion and iterations.

A flight recorder keeps the last calls of every process and knows which of them are open. That is enough for
the waits-for graph, so the same rules that judge a recording judge a dump (``hang``); what a dump lacks is a
past to compare with and a time of its own (``hang_dump``). On top come the words that only a dump has: how
far each member of a group got, the shape of the call that stands, the line of the program that made it.

Does not look for slowness: completion times in a dump are those at which a watchdog looked.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megatrace.analysis.hang import HangResult, Hints, find_hangs
from megatrace.analysis.named_layout import layout_of_names
from megatrace.analysis.states_words import dump_evidence, either_side, healthy_words, missing_finding
from megatrace.model.finding import ClockInfo, Diagnosis, Finding, JobSummary, NextStep, Severity, Verdict
from megatrace.model.frontier import Frontier
from megatrace.model.frontier_positions import with_positions, with_ranks
from megatrace.model.layout import ParallelLayout
from megatrace.model.series import FactKind
from megatrace.model.states import Dumped
from megatrace.model.trace import RankPlace, Trace
from megatrace.units import format_ranks

_AGAIN = (
    NextStep(
        "megatrace diagnose PATH --now TIME",
        "if the job stood until TIME without another call, that decides it",
    ),
    NextStep(
        "py-spy dump --pid PID", "on the nodes of the ranks named, twice: a stack that stays shows who stands"
    ),
)


def diagnose_states(trace: Trace, now: int | None = None) -> Diagnosis:
    """The verdict on a trace with ``dumped``. ``now``: ns at which the job still stood."""
    frontier = frontier_of(trace)
    world = max([*trace.coverage.ranks_missing, *frontier.ranks.tolist(), -1]) + 1
    layout = layout_of_names(trace.communicators, world)
    hang = find_hangs(
        frontier,
        place_of=trace.place_of,
        coverage=trace.coverage,
        hints=Hints(
            until=now,
            names=tuple(communicator.name for communicator in trace.communicators),
            dumped=_dumped(trace),
        ),
    )
    findings = tuple(_completed(finding, trace, hang, layout) for finding in hang.findings)
    if not findings:
        found = missing_finding(trace, hang)
        findings = () if found is None else (found,)
    findings = tuple(_identified(finding, i) for i, finding in enumerate(findings, start=1))
    verdict, headline, steps = _concluded(trace, frontier, hang, findings)
    return Diagnosis(
        verdict=verdict,
        headline=headline,
        job=_job(trace, frontier, layout, world),
        findings=findings,
        clock=ClockInfo(t0=_t0(trace)),
        inputs=trace.inputs,
        next_steps=steps,
        places=_places(trace, world),
        coverage=trace.coverage,
    )


def _dumped(trace: Trace) -> Dumped | None:
    """What is known of when the dumps were made, also from a log beside them."""
    if trace.dumped is None:
        return None
    fired = any(fact.kind is FactKind.WATCHDOG and fact.name == "timeout" for fact in trace.facts)
    return replace(trace.dumped, fired=fired)


def frontier_of(trace: Trace) -> Frontier:
    """Where every rank stands, by its calls and by what was counted."""
    frontier = Frontier.from_events(trace.events, trace.communicators, None, tail=None, settled=True)
    counted = () if trace.positions is None else trace.positions.rank.tolist()
    frontier = with_ranks(frontier, [*trace.coverage.ranks_silent, *counted])
    return frontier if trace.positions is None else with_positions(frontier, trace.positions)


def _completed(finding: Finding, trace: Trace, hang: HangResult, layout: ParallelLayout | None) -> Finding:
    """The finding with what only dumps say, and the stage that its culprits share."""
    assert hang.graph is not None
    extra = dump_evidence(trace, hang.graph, finding)
    where = finding.where
    ranks = finding.culprits.ranks
    if layout is not None and layout.pp > 1 and ranks and max(ranks) < layout.world_size:
        stages = {layout.place(rank).stage for rank in ranks}
        where = replace(where, stage=stages.pop()) if len(stages) == 1 else where
    finding = replace(finding, evidence=(*extra, *finding.evidence), where=where, window=None)
    return either_side(finding, hang.graph)


def _identified(finding: Finding, number: int) -> Finding:
    who = format_ranks(finding.culprits.ranks) or finding.where.communicator or "job"
    return replace(finding, id=f"f{number}", fingerprint=f"{finding.kind.value}:{who}")


def _concluded(
    trace: Trace, frontier: Frontier, hang: HangResult, findings: tuple[Finding, ...]
) -> tuple[Verdict, str, tuple[NextStep, ...]]:
    serious = [finding for finding in findings if finding.severity <= Severity.P2]
    if serious:
        return Verdict.HANG, serious[0].summary, hang.next_steps
    if hang.undecidable:
        return Verdict.UNDECIDABLE, hang.reason, hang.next_steps or _AGAIN
    if not len(frontier):
        return Verdict.UNDECIDABLE, "cannot tell: the dumps hold no call and no group", _AGAIN
    return Verdict.HEALTHY, healthy_words(trace, hang), ()


def _job(trace: Trace, frontier: Frontier, layout: ParallelLayout | None, world: int) -> JobSummary:
    events = trace.events
    nodes = {place.node for place in _places(trace, world)} - {None}
    return JobSummary(
        ranks=world,
        ranks_seen=len(frontier),
        nodes=len(nodes) or None,
        layout=layout,
        layout_source=None if layout is None else "inferred",
        first_time=int(events.enqueue.min()) if len(events) else None,
        last_time=int(events.enqueue.max()) if len(events) else None,
    )


def _t0(trace: Trace) -> int:
    times = trace.events.enqueue
    known = times[times > 0]
    return int(np.min(known)) if len(known) else 0


def _places(trace: Trace, world: int) -> tuple[RankPlace, ...]:
    if not trace.places and trace.job.ranks_per_node is None:
        return ()
    places = tuple(trace.place_of(rank) for rank in range(world))
    return places if any(place.node is not None for place in places) else ()
