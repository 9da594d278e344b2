"""Which place made the job slow, since when, at what cost.

Order of judging: patterns that belong to nobody first (``patterns``), then single places by the seconds that
their excess alone puts on the critical path (``suspects``). A place is accused only if it does so again and
again, more often than chance would have it among all places; then its group's member, its kind and its window
are worked out.

Never decides by who was last how often, nor by summed lateness.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis import sentences, slow_scene
from megatrace.analysis.costs import tabulate_costs
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.lone import with_lone_groups
from megatrace.analysis.patterns import Pattern, find_patterns
from megatrace.analysis.pauses import find_pauses
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.slow_kinds import is_hidden, is_path, judge
from megatrace.analysis.slow_nodes import host_findings
from megatrace.analysis.slow_scene import SlowContext
from megatrace.analysis.suspects import LOOKS, Cause, Suspect, find_suspects
from megatrace.analysis.traffic import traffic_of_all
from megatrace.analysis.unsteady import find_unsteady
from megatrace.analysis.windows import Span, spans
from megatrace.analysis.work import WorkTable, iteration_times
from megatrace.model.finding import (
    Evidence,
    Finding,
    Kind,
    Severity,
    Status,
    Where,
)
from megatrace.model.schedule import Phase

F8 = NDArray[np.float64]

# Chance, over all places together, at which as many affected iterations of one place are still luck.
LUCK = 0.01
# A single iteration accuses only where it cost this share of it; anything smaller alone is noise.
ONCE = 0.5
# Other places' delays count as rivals from this share of a suspect's typical delay on.
COMPARABLE = 0.25
# Two suspects whose affected iterations overlap this much are one fault if they are neighbours.
OVERLAP = 0.5


def find_slow(resolved: Resolved, phases: PhaseTable, table: WorkTable) -> tuple[Finding, ...]:
    """Findings of slowness, most expensive first; empty where nobody is slow."""
    costs = tabulate_costs(table, phases.schedule)
    if costs is None or len(costs.iterations) < 2:
        return ()
    starved, costs = host_findings(SlowContext(resolved, phases, table, costs))
    findings: list[Finding | None] = [*starved]
    flat = phases.schedule is ONE_TASK
    told = slow_scene.inside(costs, starved)
    unsteady, costs = find_unsteady(resolved, phases, table, costs, told) if flat else ([], costs)
    costs = with_lone_groups(table, costs)
    # Hosts of a data-parallel job wait for everybody: what they spend together is not theirs.
    together = not (flat and not table.by_rank and table.grid.shape[2] == 1)
    patterns, remaining = find_patterns(costs) if together and not unsteady else (unsteady, costs)
    patterns = [*patterns, *find_pauses(remaining, iteration_times(resolved, table.t0)[0])]
    context = SlowContext(resolved, phases, table, remaining)
    findings += [_pattern_finding(context, pattern) for pattern in patterns]
    places = int(np.prod(costs.work.shape[1:4]))
    lost = [pattern.lost for pattern in patterns if pattern.kind is Kind.JITTER]
    jitter = np.max([np.zeros(len(costs.iterations)), *lost], axis=0)
    batched = phases.schedule.vpp > 1 and not table.by_rank
    suspects = find_suspects(remaining, batched)
    suspects = [s for s in suspects if not any(_of_starved(context, s, f) for f in starved)]
    suspects = _unexplained(context, _repeated(context, suspects, places, jitter), jitter)
    for group in _grouped(context, suspects):
        findings += _suspect_findings(context, group)
    worth = 0.5 * costs.counts
    kept = [f for f in findings if f is not None and (f.impact.seconds_lost or 0.0) >= worth]
    kept.sort(key=lambda finding: -(finding.impact.seconds_lost or 0.0))
    note = None if any(f.kind is Kind.SLOW_NETWORK for f in kept) else traffic_of_all(context)
    return (*kept, note) if note is not None else tuple(kept)


ECHO = 3.0
"""A transfer is the echo of a slow rank at one of its ends if that costs so many times as much."""

FAINT = 8.0
"""Other work of its pipeline is one if it costs so many times as much: hosts that wait for a batch of Sends
and Recvs begin their next task late."""

WINDOW = 0.8
"""Share of affected iterations that makes a stretch one window."""


def _repeated(context: SlowContext, suspects: Sequence[Suspect], places: int, jitter: F8) -> list[Suspect]:
    """Suspects affected more often than chance: Poisson with the mean of the other places, over all places.

    ``jitter`` float64 [K]: seconds that it costs; it may hit any place. Without, one iteration may accuse.
    """
    costs = context.costs
    kept: list[Suspect] = []
    once = not jitter.any()
    # A host that stood still between two iterations is late for both: that is once.
    twice = is_hidden(context) or not once
    for suspect in suspects:
        if suspect.lost.max() < costs.counts:
            continue
        mine = suspect.affected(costs.usual)
        count = int(mine.sum())
        # Only what is of its own size competes with it: small noise elsewhere says nothing about a large
        # delay.
        size = COMPARABLE * float(np.median(suspect.lost[mine]))
        # What was found already is no chance either: several faults must not hide each other. Nor are other
        # paths of the same NIC.
        rivals = [
            int((other.lost >= size).sum())
            for other in suspects
            if other.cause is suspect.cause
            and other is not suspect
            and other not in kept
            and not (suspect.cause is Cause.TRANSFER and _together(context, suspect, other))
        ]
        others = (sum(rivals) + int((jitter >= size).sum())) / max(places - 1, 1)
        if count == 1 or (twice and count == 2 and bool((mine[1:] & mine[:-1]).any())):
            elsewhere = any(other is not suspect and (other.lost >= size).any() for other in suspects)
            if once and suspect.lost.max() >= ONCE * costs.usual and not elsewhere:
                kept.append(suspect)
            continue
        if others == 0 or places * _poisson_tail(count, others) < LUCK or _is_window(mine, others, len(mine)):
            kept.append(suspect)
    return kept


def _is_window(affected: NDArray[np.bool_], others: float, iterations: int) -> bool:
    """Whether a suspect was slow without a break, for long, while the other places were so but now and then.

    Chance does not come in a row: where the others are hit in a share p of the iterations, so many in a row
    have a probability of p to their number. Members of one expert group are slow together, as rivals.
    """
    where = np.flatnonzero(affected)
    length = int(where[-1] - where[0] + 1)
    rate = min(others / max(iterations, 1), 1.0)
    return len(where) >= WINDOW * length and rate <= 0.5 and rate ** len(where) < LUCK


def _unexplained(context: SlowContext, suspects: list[Suspect], jitter: F8) -> list[Suspect]:
    """Without late entries that follow from something else.

    The optimizer step of a rank whose own work is slow is slow too, and who waits for a slow gradient
    collective comes late to what follows. One slow NIC shows on the paths and in the gradients: the more
    telling stays. ``jitter`` float64 [K]: seconds that it costs; of all who are scattered one is the slowest.
    """
    usual = context.costs.usual
    suspects = [s for s in suspects if s.cause is not Cause.WORK or not _of_jitter(s.lost, jitter, usual)]
    sick = {rank for s in suspects if s.cause is Cause.WORK for rank in context.ranks_of(s)}
    held = jitter > 0.0  # with everybody scattered, somebody is always late
    for suspect in suspects:
        if suspect.cause is Cause.SYNC:
            held |= suspect.affected(usual)
    kept: list[Suspect] = []
    for suspect in suspects:
        mine = suspect.affected(usual)
        if suspect.cause is Cause.ENTRY and (
            sick & set(context.ranks_of(suspect)) or np.sum(held & mine) >= OVERLAP * max(int(mine.sum()), 1)
        ):
            continue
        if not any(_echo(context, suspect, larger) for larger in kept):
            kept.append(suspect)
    return kept


def _of_jitter(lost: F8, jitter: F8, usual: float) -> bool:
    """Whether what a place lost lies in jittery iterations, and is less than the jitter itself cost there."""
    mine = lost >= LOOKS * usual
    inside = mine & (jitter > 0.0)
    return bool(inside.sum() >= OVERLAP * mine.sum() and lost[inside].sum() < jitter[inside].sum())


def _of_starved(context: SlowContext, suspect: Suspect, host: Finding) -> bool:
    """Whether a transfer or a late entry is that of a starved host, which is late to everything it does."""
    window = host.window
    if suspect.cause not in (Cause.TRANSFER, Cause.ENTRY) or window is None or window.first_iteration is None:
        return False
    if not _ends(context, suspect) & set(host.culprits.ranks):
        return False
    last = context.costs.iterations[-1] if window.last_iteration is None else window.last_iteration
    inside = (context.costs.iterations >= window.first_iteration) & (context.costs.iterations <= last + 1)
    mine = suspect.affected(context.costs.usual)
    return bool(np.sum(mine & inside) >= OVERLAP * np.sum(mine))


def _ends(context: SlowContext, suspect: Suspect) -> set[int]:
    """The rank of a suspect with a member, and the one that feeds it."""
    grid, member = context.table.grid, suspect.member or 0
    ends = {int(grid[suspect.stage, suspect.replica, member])}
    if suspect.feeder is not None:
        ends.add(int(grid[suspect.feeder, suspect.replica, member]))
    return ends


def _echo(context: SlowContext, suspect: Suspect, larger: Suspect) -> bool:
    """Whether a transfer is only the echo of a slow rank at one of its ends, late to take part in it.

    Work of the same pipeline that is a small part of what a slow rank costs at the same time is one, too.
    """
    if larger.cause is not Cause.WORK or suspect.cause not in (Cause.TRANSFER, Cause.WORK):
        return False
    first, second = suspect.affected(context.costs.usual), larger.affected(context.costs.usual)
    if suspect.cause is Cause.WORK:
        small = larger.lost[first].sum() >= FAINT * suspect.lost[first].sum()
        return bool(small and suspect.replica == larger.replica and suspect.stage != larger.stage)
    if larger.lost.sum() < ECHO * suspect.lost.sum():
        return False
    shared = _ends(context, suspect) & set(context.ranks_of(larger))
    return bool(shared and np.sum(first & second) >= OVERLAP * np.sum(first))


def _poisson_tail(count: int, mean: float) -> float:
    """P(X ≥ count) for a Poisson variable."""
    term, below = exp(-mean), 0.0
    for i in range(count):
        below += term
        term *= mean / (i + 1)
    return max(1.0 - below, term)


def _grouped(context: SlowContext, suspects: list[Suspect]) -> list[list[Suspect]]:
    """Suspects of one node (or one tensor group) that are affected together are one fault."""
    groups: list[list[Suspect]] = []
    for suspect in suspects:
        for group in groups:
            if _together(context, group[0], suspect):
                group.append(suspect)
                break
        else:
            groups.append([suspect])
    return groups


def _together(context: SlowContext, a: Suspect, b: Suspect) -> bool:
    usual = context.costs.usual
    first, second = a.affected(usual), b.affected(usual)
    overlap = int(np.sum(first & second)) / max(int(np.sum(first | second)), 1)
    if overlap < OVERLAP:
        return False
    if a.cause is not b.cause:
        return _one_endpoint(context, a, b)
    if a.cause is Cause.SYNC:
        return True  # the slowest group holds up the others
    if a.cause is Cause.TRANSFER:
        ends = {(a.stage, a.replica, a.member), (a.feeder, a.replica, a.member)}
        return bool(ends & {(b.stage, b.replica, b.member), (b.feeder, b.replica, b.member)})
    if is_path(context, a, b):
        return True
    place = context.resolved.trace.place_of
    nodes = [place(context.ranks_of(s)[0]).node for s in (a, b)]
    return (nodes[0] is not None and nodes[0] == nodes[1]) or (a.stage, a.replica) == (b.stage, b.replica)


def _one_endpoint(context: SlowContext, a: Suspect, b: Suspect) -> bool:
    """A slow path and a slow gradient collective that share a rank are one NIC."""
    if {a.cause, b.cause} != {Cause.TRANSFER, Cause.SYNC}:
        return False
    path, group = (a, b) if a.cause is Cause.TRANSFER else (b, a)
    grid, member = context.table.grid, path.member or 0
    ends = {int(grid[path.stage, path.replica, member])}
    if path.feeder is not None:
        ends.add(int(grid[path.feeder, path.replica, member]))
    return bool(ends & set(context.ranks_of(group)))


def _suspect_findings(context: SlowContext, group: list[Suspect]) -> list[Finding]:
    lead = group[0]
    lost = np.max([suspect.lost for suspect in group], axis=0)
    affected = lost >= 0.5 * context.costs.counts
    found: list[Finding] = []
    for span in spans(affected):
        inside = np.arange(span.first, span.last + 1)
        mean = float(lost[inside[affected[inside]]].mean())
        if mean < max(ONCE * context.costs.usual if span.affected == 1 else 0.0, context.costs.counts):
            continue  # noise lengthens single iterations a little
        found.append(_finding(context, group, lead, lost, span, affected))
    return found


def _finding(
    context: SlowContext,
    group: list[Suspect],
    lead: Suspect,
    lost: F8,
    span: Span,
    affected: NDArray[np.bool_],
) -> Finding:
    costs = context.costs
    inside = np.arange(span.first, span.last + 1)
    hit = inside[affected[inside]]
    numbers = costs.iterations[hit]
    kind, alternatives, ranks, ambiguous, confidence, evidence = judge(context, group, lead, hit, numbers)
    window = slow_scene.window(context, span)
    seconds, usual, slow_iteration = slow_scene.cost(costs, lost, hit)
    single = lead.stage if len({s.stage for s in group}) == 1 else None
    finding = Finding(
        kind=kind,
        kind_alternatives=alternatives,
        severity=Severity.P1
        if span.status is not Status.INTERMITTENT or seconds > costs.usual
        else Severity.P2,
        status=span.status,
        summary="",
        confidence=confidence,
        ambiguous=ambiguous,
        culprits=slow_scene.culprits(context, kind, ranks),
        victims=slow_scene.victims(context, ranks),
        where=Where(stage=single, iteration=int(numbers[0]), phase=_phase(context, lead, hit)),
        window=window,
        impact=slow_scene.impact(context, seconds, usual, slow_iteration),
        evidence=tuple(evidence),
        remedy=sentences.remedy(kind),
        exonerated=_exonerated(context, group, hit),
    )
    return sentences.summarised(context.resolved, finding, usual, slow_iteration, _ratio(context, lead, hit))


def _ratio(context: SlowContext, lead: Suspect, hit: NDArray[np.intp]) -> float:
    """Work of the lead suspect against normal, in the affected iterations; 1 where it is not about work."""
    costs = context.costs
    if lead.cause is not Cause.WORK:
        return 1.0
    m = slice(None) if lead.member is None else slice(lead.member, lead.member + 1)
    work = costs.work[hit, lead.stage, lead.replica, m].sum(axis=-1)
    normal = costs.normal[hit, lead.stage, lead.replica, m].sum(axis=-1)
    return float(np.median(work / np.maximum(normal, 1e-9)))


def _phase(context: SlowContext, lead: Suspect, hit: NDArray[np.intp]) -> Phase | None:
    """The phase if only one of the two is slow."""
    if lead.cause is not Cause.WORK:
        return None
    costs = context.costs
    m = 0 if lead.member is None else lead.member
    forward = np.asarray([task.phase is Phase.FORWARD for task in context.phases.tasks[lead.stage]])
    work, normal = (
        costs.work[hit, lead.stage, lead.replica, m],
        costs.normal[hit, lead.stage, lead.replica, m],
    )
    ratios = [
        float(np.median(work[:, chosen].sum(axis=1) / np.maximum(normal[:, chosen].sum(axis=1), 1e-9)))
        for chosen in (forward, ~forward)
    ]
    if min(ratios) - 1 > 0.3 * (max(ratios) - 1):
        return None
    return Phase.FORWARD if ratios[0] > ratios[1] else Phase.BACKWARD


def _exonerated(context: SlowContext, group: list[Suspect], hit: NDArray[np.intp]) -> tuple[str, ...]:
    """Who only waited: the others' own work against normal, in the same iterations."""
    share = np.median(context.costs.excess_share[hit], axis=0)
    for suspect in group:
        everyone = suspect.member is None or share.shape[2] == 1
        share[suspect.stage, suspect.replica, slice(None) if everyone else suspect.member] = 0.0
    worst = float(np.abs(share).max(initial=0.0))
    if worst >= 0.2:
        return ()
    return (f"the other ranks only waited: their own work is within ±{max(100 * worst, 1):.0f} % of normal",)


def _pattern_finding(context: SlowContext, pattern: Pattern) -> Finding | None:
    costs = context.costs
    affected = pattern.lost >= 0.5 * costs.counts
    if not affected.any():
        return None
    hit = np.flatnonzero(affected)
    status = Status.ONGOING if hit[-1] >= len(affected) - 2 else Status.RECOVERED
    if pattern.kind is Kind.SLOW_STORAGE:
        status = Status.INTERMITTENT  # pauses, with usual iterations between them
    whole = Span(int(hit[0]), int(hit[-1]), len(hit), status)
    if pattern.lost[hit].mean() < costs.counts:
        return None
    seconds, usual, slow_iteration = slow_scene.cost(costs, pattern.lost, hit)
    finding = Finding(
        kind=pattern.kind,
        severity=pattern.severity,
        status=whole.status,
        summary="",
        confidence=0.9,
        where=Where(stage=pattern.stage, iteration=int(costs.iterations[hit[0]])),
        window=slow_scene.window(context, whole),
        impact=slow_scene.impact(context, seconds, usual, slow_iteration),
        evidence=(Evidence(pattern.detail, round(pattern.ratio, 3), "×"),),
        remedy=sentences.remedy(pattern.kind),
    )
    return sentences.pattern_summarised(finding, usual, slow_iteration)
