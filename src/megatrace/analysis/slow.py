"""Which place made the job slow, since when, at what cost.

Order of judging: patterns that belong to nobody first (``patterns``), then single places by the seconds that
their excess alone puts on the critical path (``suspects``). A place is accused only if it does so again and
again, more often than chance would have it among all places; then its group's member, its kind and its window
are worked out.

Never decides by who was last how often, nor by summed lateness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis import member, sentences
from megatrace.analysis.costs import Costs, tabulate_costs
from megatrace.analysis.hosts import normal_on_good_hosts, slow_hosts
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.patterns import Pattern, find_patterns
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.suspects import COUNTS, Cause, Suspect, find_suspects
from megatrace.analysis.windows import Span, spans
from megatrace.analysis.work import WorkTable
from megatrace.model.finding import (
    Culprits,
    Evidence,
    Finding,
    Impact,
    Kind,
    Severity,
    Status,
    Where,
    Window,
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
# Share of a fault's excess in the first forward that makes it data loading, of at least so many tasks.
LOADING = 0.8
LOADING_TASKS = 6
# From this share of the iterations on a fault counts as always there.
ALWAYS = 0.8
# The host is to blame where the burst of calls inside a task grew by this factor; a slow device leaves it
# unchanged.
BURST = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class SlowContext:
    """What the judgement reads; everything in seconds after ``table.t0``."""

    resolved: Resolved
    phases: PhaseTable
    table: WorkTable
    costs: Costs

    def ranks_of(self, suspect: Suspect) -> tuple[int, ...]:
        """Ranks at the suspect's place: one member, or the whole group."""
        if suspect.cause is Cause.SYNC:
            return tuple(sorted(int(rank) for rank in self.table.grid[suspect.stage, :, suspect.member or 0]))
        grid = self.table.grid[suspect.stage, suspect.replica]
        if suspect.member is not None:
            return (int(grid[suspect.member]),)
        return tuple(sorted(int(rank) for rank in grid))


def find_slow(resolved: Resolved, phases: PhaseTable, table: WorkTable) -> tuple[Finding, ...]:
    """Findings of slowness, most expensive first; empty where nobody is slow."""
    costs = tabulate_costs(table, phases.schedule)
    if costs is None or len(costs.iterations) < 2:
        return ()
    findings: list[Finding | None] = []
    host_findings, costs = _host_findings(SlowContext(resolved, phases, table, costs))
    findings += host_findings
    patterns, remaining = find_patterns(costs)
    context = SlowContext(resolved, phases, table, remaining)
    findings += [_pattern_finding(context, pattern) for pattern in patterns]
    places = int(np.prod(costs.work.shape[1:4]))
    suspects = _unexplained(context, _repeated(find_suspects(remaining), remaining, places))
    for group in _grouped(context, suspects):
        findings += _suspect_findings(context, group)
    worth = 0.5 * COUNTS * costs.usual
    kept = [f for f in findings if f is not None and (f.impact.seconds_lost or 0.0) >= worth]
    kept.sort(key=lambda finding: -(finding.impact.seconds_lost or 0.0))
    return tuple(kept)


def _host_findings(context: SlowContext) -> tuple[list[Finding], Costs]:
    """Starved nodes, and the costs with their places made normal."""
    costs, place = context.costs, context.resolved.trace.place_of
    hosts = slow_hosts(context.table, costs)
    if hosts is None:
        return [], costs
    by_node: dict[str, NDArray[np.bool_]] = {}
    always = hosts.starved.mean(axis=0) >= ALWAYS
    costs = costs.relative_to(normal_on_good_hosts(costs, always))
    context = replace(context, costs=costs)
    for index in np.argwhere(hosts.starved.mean(axis=0) > 0):
        rank = int(context.table.grid[tuple(index)])
        name = place(rank).node or f"rank {rank}"
        mask = by_node.setdefault(name, np.zeros(context.table.grid.shape, np.bool_))
        mask[tuple(index)] = True
    found: list[Finding] = []
    work = costs.work
    for _, mask in sorted(by_node.items()):
        by_rank = costs.work.shape[3] == mask.shape[2]
        places = np.asarray(mask if by_rank else mask.any(axis=2, keepdims=True))
        starved = hosts.starved[:, mask].mean(axis=1) >= 0.5
        lost = np.where(starved, costs.with_work(places) - costs.ideal(), 0.0)
        for span in spans(starved & (lost >= 0.5 * COUNTS * costs.usual)):
            hit = np.arange(span.first, span.last + 1)
            hit = hit[starved[hit]]
            if lost[hit].mean() < COUNTS * costs.usual:
                continue
            ranks = tuple(sorted(int(rank) for rank in context.table.grid[mask]))
            pace = float(np.median(hosts.ratio[hit][:, mask]))
            found.append(_host_finding(context, ranks, lost, span, hit, pace))
            normal = np.where(
                starved[:, None, None, None, None] & places[None, ..., None], costs.normal, work
            )
            work = np.minimum(work, normal)
    return found, replace(costs, work=work)


def _host_finding(
    context: SlowContext, ranks: tuple[int, ...], lost: F8, span: Span, hit: NDArray[np.intp], pace: float
) -> Finding:
    costs = context.costs
    seconds, usual, slow_iteration = _cost(costs, lost, hit)
    text = (
        f"its host{'s' if len(ranks) > 1 else ''} needed {pace:.1f}× as long per call inside a block of calls"
    )
    finding = Finding(
        kind=Kind.SLOW_HOST,
        severity=Severity.P1,
        status=span.status,
        summary="",
        confidence=0.93,
        culprits=_culprits(context, Kind.SLOW_HOST, ranks),
        victims=_victims(context, ranks),
        where=Where(iteration=int(costs.iterations[hit[0]])),
        window=_window(context, span),
        impact=_impact(context, seconds, usual, slow_iteration),
        evidence=(Evidence(text, round(pace, 2), "×"),),
        remedy=sentences.remedy(Kind.SLOW_HOST),
    )
    return sentences.summarised(context.resolved, finding, usual, slow_iteration, pace)


def _repeated(suspects: Sequence[Suspect], costs: Costs, places: int) -> list[Suspect]:
    """Suspects affected more often than chance: Poisson with the mean of the other places, over all
    places."""
    kept: list[Suspect] = []
    for suspect in suspects:
        if suspect.lost.max() < COUNTS * costs.usual:
            continue
        mine = suspect.affected(costs.usual)
        count = int(mine.sum())
        # Only what is of its own size competes with it: small noise elsewhere says nothing about a large
        # delay.
        size = COMPARABLE * float(np.median(suspect.lost[mine]))
        # What was found already is no chance either: several faults must not hide each other.
        rivals = [
            int((other.lost >= size).sum())
            for other in suspects
            if other.cause is suspect.cause and other is not suspect and other not in kept
        ]
        others = sum(rivals) / max(places - 1, 1)
        if count == 1:
            if suspect.lost.max() >= ONCE * costs.usual and others == 0:
                kept.append(suspect)
            continue
        if others == 0 or places * _poisson_tail(count, others) < LUCK:
            kept.append(suspect)
    return kept


def _unexplained(context: SlowContext, suspects: list[Suspect]) -> list[Suspect]:
    """Without late entries that follow from something else.

    The optimizer step of a rank whose own work is slow is slow too, and who waits for a slow gradient
    collective comes late to what follows. One slow NIC shows on the paths and in the gradients: the more
    telling stays.
    """
    usual = context.costs.usual
    sick = {rank for s in suspects if s.cause is Cause.WORK for rank in context.ranks_of(s)}
    held = np.zeros(len(context.costs.iterations), np.bool_)
    for suspect in suspects:
        if suspect.cause is Cause.SYNC:
            held |= suspect.affected(usual)
    kept: list[Suspect] = []
    for suspect in suspects:
        mine = suspect.affected(usual)
        if suspect.cause is Cause.ENTRY:
            if sick & set(context.ranks_of(suspect)) or np.mean(held[mine]) >= OVERLAP:
                continue
        kept.append(suspect)
    return kept


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
    if _is_path(context, a, b):
        return True
    place = context.resolved.trace.place_of
    nodes = [place(context.ranks_of(s)[0]).node for s in (a, b)]
    return (nodes[0] is not None and nodes[0] == nodes[1]) or (a.stage, a.replica) == (b.stage, b.replica)


def _is_path(context: SlowContext, a: Suspect, b: Suspect) -> bool:
    """Whether the work of two neighbouring stages is one slow path between them.

    Without calls inside a task, host times cannot tell a transfer from the work before or after it: a slow
    path makes both its ends look busy.
    """
    bare = not context.table.by_rank and bool(np.isnan(context.table.pace).all())
    neighbours = a.replica == b.replica and abs(a.stage - b.stage) == 1
    return bare and neighbours and a.cause is Cause.WORK and b.cause is Cause.WORK


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
    affected = lost >= 0.5 * COUNTS * context.costs.usual
    found: list[Finding] = []
    for span in spans(affected):
        inside = np.arange(span.first, span.last + 1)
        mean = float(lost[inside[affected[inside]]].mean())
        if mean < (ONCE if span.affected == 1 else COUNTS) * context.costs.usual:
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
    kind, alternatives, ranks, ambiguous, confidence, evidence = _judge(context, group, lead, hit, numbers)
    window = _window(context, span)
    seconds, usual, slow_iteration = _cost(costs, lost, hit)
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
        culprits=_culprits(context, kind, ranks),
        victims=_victims(context, ranks),
        where=Where(stage=single, iteration=int(numbers[0]), phase=_phase(context, lead, hit)),
        window=window,
        impact=_impact(context, seconds, usual, slow_iteration),
        evidence=tuple(evidence),
        remedy=sentences.remedy(kind),
        exonerated=_exonerated(context, group, hit),
    )
    return sentences.summarised(context.resolved, finding, usual, slow_iteration, _ratio(context, lead, hit))


def _judge(
    context: SlowContext,
    group: list[Suspect],
    lead: Suspect,
    hit: NDArray[np.intp],
    numbers: NDArray[np.int64],
) -> tuple[Kind, tuple[Kind, ...], tuple[int, ...], bool, float, list[Evidence]]:
    """(kind, alternatives, culprits, ambiguous, confidence, evidence) of one fault."""
    ranks = tuple(sorted({rank for suspect in group for rank in context.ranks_of(suspect)}))
    evidence = [sentences.work_evidence(context.costs, lead, hit)]
    if lead.cause is Cause.ENTRY:
        return Kind.SLOW_STORAGE, (Kind.SLOW_HOST,), ranks, False, 0.85, evidence
    if len(group) > 1 and _is_path(context, group[0], group[1]):
        evidence.append(sentences.path_evidence(ranks, sure=False))
        return Kind.SLOW_NETWORK, (Kind.SLOW_COMPUTE,), ranks, len(ranks) > 2, 0.7, evidence
    if _is_loading(context, lead, hit):
        evidence.append(sentences.loading_evidence(lead))
        rank = int(context.table.grid[lead.stage, lead.replica, lead.member or 0])
        culprits = (rank,) if lead.member is not None else ranks
        return Kind.SLOW_STORAGE, (Kind.SLOW_HOST,), culprits, len(culprits) > 1, 0.85, evidence
    if lead.cause is not Cause.WORK:
        ranks, sure = _network_culprits(context, group)
        evidence.append(sentences.path_evidence(ranks, sure))
        return Kind.SLOW_NETWORK, (), ranks, len(ranks) > 2, 0.9 if sure else 0.8, evidence
    growth = _burst_growth(context, group, numbers)
    node_wide = len(ranks) > 1 and growth >= BURST
    if growth >= BURST:
        text = f"the host itself needed {growth:.1f}× as long to make the calls of a block"
        evidence.append(Evidence(text, growth, "×"))
        if node_wide or context.table.by_rank:
            return Kind.SLOW_HOST, (), ranks, False, 0.9, evidence
        return Kind.SLOW_HOST, (Kind.SLOW_COMPUTE,), ranks, False, 0.85, evidence
    if context.table.by_rank:
        return Kind.SLOW_COMPUTE, (), ranks, False, 0.97, evidence
    # Groups that exchange data inside their tasks (experts, context) are slow together: one member carries
    # the offset, if any does.
    places = [
        (suspect, member.late_member(context.table, suspect.stage, suspect.replica, numbers))
        for suspect in group
    ]
    clear = [(suspect, late) for suspect, late in places if late.index is not None]
    if not clear:
        evidence.append(sentences.no_member_evidence(places[0][1]))
        return Kind.SLOW_COMPUTE, (Kind.SLOW_HOST,), ranks, len(ranks) > 1, 0.7, evidence
    suspect, late = max(clear, key=lambda item: item[1].offset_s)
    if late.blocks and context.table.grid.shape[2] > 1:
        evidence.append(sentences.member_evidence(context.table, suspect, late))
    culprit = int(context.table.grid[suspect.stage, suspect.replica, late.index])
    return Kind.SLOW_COMPUTE, (), (culprit,), False, round(min(0.97, 0.6 + 0.4 * late.share), 2), evidence


def _is_loading(context: SlowContext, lead: Suspect, hit: NDArray[np.intp]) -> bool:
    """Whether all of the excess lies before the iteration's first forward, on a stage that loads data.

    Tokens go into the first stage, labels into the last; a device or a path that is slow is so in every task.
    """
    costs = context.costs
    stages, tasks = costs.graph.schedule.pp, costs.graph.tasks
    if lead.stage not in (0, stages - 1) or tasks < LOADING_TASKS:
        return False
    m = lead.member or 0
    if lead.cause is Cause.WORK:
        excess = costs.work[hit, lead.stage, lead.replica, m] - costs.normal[hit, lead.stage, lead.replica, m]
    elif lead.cause is Cause.TRANSFER:
        where = (hit, lead.stage, lead.replica, m)
        excess = costs.transfer[where] - costs.normal_transfer[where]
    else:
        return False
    excess = np.maximum(excess, 0.0)
    return bool(np.median(excess[:, 0] / np.maximum(excess.sum(axis=1), 1e-9)) >= LOADING)


def _network_culprits(context: SlowContext, group: list[Suspect]) -> tuple[tuple[int, ...], bool]:
    """(ranks, whether one endpoint is proven): an endpoint only if two paths to different peers share it."""
    grid = context.table.grid
    paths = {
        (int(grid[s.feeder, s.replica, s.member or 0]), int(grid[s.stage, s.replica, s.member or 0]))
        for s in group
        if s.feeder is not None
    }
    held = {rank for s in group if s.cause is Cause.SYNC for rank in context.ranks_of(s)}
    if not paths:
        lead = max(group, key=lambda s: float(s.lost.sum()))
        return context.ranks_of(lead), False
    peers: dict[int, set[int]] = {}
    for src, dst in paths:
        peers.setdefault(src, set()).add(dst)
        peers.setdefault(dst, set()).add(src)
    shared = [
        rank
        for rank, others in peers.items()
        if len(others) + (rank in held) > 1 and all(rank in path for path in paths)
    ]
    if shared:
        return (shared[0],), True
    return tuple(sorted(peers)), False


def _burst_growth(context: SlowContext, group: list[Suspect], numbers: NDArray[np.int64]) -> float:
    """How much longer the hosts of a fault need for a block's calls than they or their peers normally do."""
    pace = context.table.pace
    ratios: list[float] = []
    for suspect in group:
        members = slice(None) if suspect.member is None else slice(suspect.member, suspect.member + 1)
        mine = pace[:, suspect.stage, suspect.replica, members]
        inside = _nanmedian(mine[numbers])
        outside = _nanmedian(np.delete(mine, numbers, axis=0))
        peers = _nanmedian(np.delete(pace[numbers, suspect.stage], suspect.replica, axis=1))
        normal = np.fmin(outside, peers)
        if normal > 0:
            ratios.append(inside / normal)
    return float(np.median(ratios)) if ratios else 0.0


def _nanmedian(values: F8) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


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


def _cost(costs: Costs, lost: F8, hit: NDArray[np.intp]) -> tuple[float, float, float]:
    """(seconds of the job, usual iteration, iteration with the fault).

    The counterfactual covers the pipeline; the same fault also lengthens the optimizer step. Where it
    explains most of what an iteration was longer than usual, the whole excess is its. A fault that is always
    there leaves no usual iteration: then the counterfactual alone says what would be.
    """
    slow = float(np.median(costs.measured[hit]))
    excess = np.maximum(costs.measured[hit] - costs.usual, 0.0)
    always = len(hit) >= ALWAYS * len(costs.measured) and float(lost[hit].mean()) > 2 * float(excess.mean())
    if always:
        return float(lost[hit].sum()), max(slow - float(np.median(lost[hit])), 0.0), slow
    explained = lost[hit] / np.maximum(excess, 1e-9)
    whole = (explained >= 0.6) & (explained <= 1.5)
    seconds = float(np.where(whole, excess, np.minimum(lost[hit], excess)).sum())
    return seconds, costs.usual, slow


def _impact(context: SlowContext, seconds: float, usual: float, slow_iteration: float) -> Impact:
    return Impact(
        slowdown=round(slow_iteration / usual, 3) if usual > 0 else None,
        seconds_lost=round(seconds, 3),
        gpu_hours_lost=round(seconds * context.resolved.world / 3600, 4),
    )


def _window(context: SlowContext, span: Span) -> Window:
    """From the anchor before the first affected iteration to the anchor of the last."""
    costs, table = context.costs, context.table
    first, last = int(costs.iterations[span.first]), int(costs.iterations[span.last])
    end_s = float(table.anchor[last])
    start_s = (
        end_s - float(table.iteration[last])
        if first == last
        else float(table.anchor[first] - table.iteration[first])
    )
    end = None if span.status is Status.ONGOING else table.t0 + round(end_s * 1e9)
    return Window(table.t0 + round(start_s * 1e9), end, first, last)


def _culprits(context: SlowContext, kind: Kind, ranks: tuple[int, ...]) -> Culprits:
    if kind is Kind.SLOW_HOST:
        nodes = {context.resolved.trace.place_of(rank).node for rank in ranks}
        return Culprits(ranks=ranks, nodes=tuple(sorted(node for node in nodes if node)))
    return Culprits(ranks=ranks)


def _victims(context: SlowContext, ranks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(range(context.resolved.world)) - set(ranks)))


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
    affected = pattern.lost >= 0.5 * COUNTS * costs.usual
    if not affected.any():
        return None
    hit = np.flatnonzero(affected)
    whole = Span(
        int(hit[0]),
        int(hit[-1]),
        len(hit),
        Status.ONGOING if hit[-1] >= len(affected) - 2 else Status.RECOVERED,
    )
    if pattern.lost[hit].mean() < COUNTS * costs.usual:
        return None
    seconds, usual, slow_iteration = _cost(costs, pattern.lost, hit)
    finding = Finding(
        kind=pattern.kind,
        severity=Severity.P2,
        status=whole.status,
        summary="",
        confidence=0.9,
        where=Where(stage=pattern.stage, iteration=int(costs.iterations[hit[0]])),
        window=_window(context, whole),
        impact=_impact(context, seconds, usual, slow_iteration),
        evidence=(Evidence(pattern.detail, round(pattern.ratio, 3), "×"),),
        remedy=sentences.remedy(pattern.kind),
    )
    return sentences.pattern_summarised(finding, usual, slow_iteration)
