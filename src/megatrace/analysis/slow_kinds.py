"""What kind of fault a suspect is, and whom exactly it names.

The evidence table: a device where its own work grew and its host did not, a host where the burst of calls
grew too, a path where transfers did, storage where the first call came late. Where the source cannot tell two
kinds apart both are said, and where it cannot tell members apart all are named.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis import member, sentences
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.slow_scene import SlowContext
from megatrace.analysis.suspects import Cause, Suspect
from megatrace.model.finding import Evidence, Kind

F8 = NDArray[np.float64]

# Share of a fault's excess in the first forward that makes it data loading, of at least so many tasks.
LOADING = 0.8
LOADING_TASKS = 6
# The host is to blame where the burst of calls inside a task grew by this factor; a slow device leaves it
# unchanged.
BURST = 1.5


def judge(
    context: SlowContext,
    group: list[Suspect],
    lead: Suspect,
    hit: NDArray[np.intp],
    numbers: NDArray[np.int64],
) -> tuple[Kind, tuple[Kind, ...], tuple[int, ...], bool, float, list[Evidence]]:
    """(kind, alternatives, culprits, ambiguous, confidence, evidence) of one fault."""
    ranks = tuple(sorted({rank for suspect in group for rank in context.ranks_of(suspect)}))
    evidence = [sentences.work_evidence(context.costs, lead, hit)]
    if lead.cause is Cause.ENTRY and is_hidden(context):
        # A full launch queue makes a host late for its device, too.
        return Kind.SLOW_STORAGE, (Kind.SLOW_HOST, Kind.SLOW_COMPUTE), ranks, False, 0.6, evidence
    if lead.cause is Cause.ENTRY:
        return Kind.SLOW_STORAGE, (Kind.SLOW_HOST,), ranks, False, 0.85, evidence
    if len(group) > 1 and is_path(context, group[0], group[1]):
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
        return _of_collectives(context, group)
    peers: dict[int, set[int]] = {}
    for src, dst in paths:
        peers.setdefault(src, set()).add(dst)
        peers.setdefault(dst, set()).add(src)
    # A collective of both ends is no second peer: it goes over the same path.
    held -= {rank for rank, others in peers.items() if rank in held and others & held}
    shared = [
        rank
        for rank, others in peers.items()
        if len(others) + (rank in held) > 1 and all(rank in path for path in paths)
    ]
    if shared:
        return (shared[0],), True
    return tuple(sorted(peers)), False


def _of_collectives(context: SlowContext, group: list[Suspect]) -> tuple[tuple[int, ...], bool]:
    """The one rank that all slow collectives share, else the members of the slowest."""
    named = [context.ranks_of(suspect) for suspect in group]
    shared = set(named[0]).intersection(*named)
    if len(named) > 1 and len(shared) == 1:
        return (shared.pop(),), True
    slowest = max(range(len(group)), key=lambda i: float(group[i].lost.sum()))
    return named[slowest], False


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


def is_path(context: SlowContext, a: Suspect, b: Suspect) -> bool:
    """Whether the work of two neighbouring stages is one slow path between them.

    Without calls inside a task, host times cannot tell a transfer from the work before or after it: a slow
    path makes both its ends look busy.
    """
    bare = not context.table.by_rank and bool(np.isnan(context.table.pace).all())
    neighbours = a.replica == b.replica and abs(a.stage - b.stage) == 1
    return bare and neighbours and a.cause is Cause.WORK and b.cause is Cause.WORK


def is_hidden(context: SlowContext) -> bool:
    """Whether only hosts are seen, of a job whose hosts run ahead of their devices all the time."""
    table = context.table
    return context.phases.schedule is ONE_TASK and not table.by_rank and table.grid.shape[2] == 1
