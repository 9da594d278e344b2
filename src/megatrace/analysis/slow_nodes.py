"""Starved hosts as findings: all ranks of a node make their calls slowly.

They are judged before anything else, because a starved host makes every device, path and loader of its node
look slow. What ``hosts`` measures becomes findings here, one a node and window. Where nobody said which rank
runs where, ranks that are starved at the same time make one finding: one a rank would bury what happened.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis import sentences, slow_scene
from megatrace.analysis.costs import Costs
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.hosts import APART, normal_on_good_hosts, same_places, slow_hosts
from megatrace.analysis.slow_kinds import is_hidden
from megatrace.analysis.slow_scene import ALWAYS, SlowContext
from megatrace.analysis.windows import Span, spans
from megatrace.model.finding import Evidence, Finding, Kind, Severity, Where

F8 = NDArray[np.float64]

# A host that stood still once in the middle of its calls was no slower at making them.
LEAST = 2
# All ranks of a starved node are slow, in all iterations; some may hide it behind a full launch queue.
TOGETHER = 0.75
# Starved hosts are the same in every iteration (intersection over union near 1); of halves of all, drawn
# by chance, a third is.
STEADY = 0.6


def host_findings(context: SlowContext) -> tuple[list[Finding], Costs]:
    """Starved nodes, and the costs with their places made normal."""
    costs = context.costs
    hosts = slow_hosts(context.table, costs)
    if hosts is None or (context.phases.schedule is ONE_TASK and _by_turns(hosts.starved)):
        return [], costs
    always = hosts.starved.mean(axis=0) >= ALWAYS
    costs = costs.relative_to(normal_on_good_hosts(costs, always))
    context = replace(context, costs=costs)
    found: list[Finding] = []
    work, stagger, entry = costs.work, costs.stagger, costs.entry
    hidden = is_hidden(context)
    for mask in _masks(context, hosts.starved):
        by_rank = costs.work.shape[3] == mask.shape[2]
        places = np.asarray(mask if by_rank else mask.any(axis=2, keepdims=True))
        starved = hosts.starved[:, mask].mean(axis=1) >= 0.5
        late = costs.with_work(places) - costs.ideal()
        if hidden:  # such a host is late to the first call that others wait for
            late = late + costs.entry[:, mask].max(axis=1)
        lost = np.where(starved, late, 0.0)
        for span in spans(starved & (lost >= 0.5 * costs.counts)):
            hit = np.arange(span.first, span.last + 1)
            hit = hit[starved[hit]]
            if len(hit) < LEAST or lost[hit].mean() < costs.counts:
                continue
            if hosts.starved[hit][:, mask].mean() < TOGETHER:
                continue  # each of them once
            ranks = tuple(sorted(int(rank) for rank in context.table.grid[mask]))
            pace = float(np.median(hosts.ratio[hit][:, mask]))
            found.append(_host_finding(context, ranks, lost, span, hit, pace))
            normal = np.where(
                starved[:, None, None, None, None] & places[None, ..., None], costs.normal, work
            )
            work = np.minimum(work, normal)
            # Members whose hosts are late by turns wait for each other.
            held = starved[:, None, None, None] & np.asarray(places.any(axis=2))[None, ..., None]
            stagger = np.where(held, 0.0, stagger)
            entry = np.where(starved[:, None, None, None] & mask[None], 0.0, entry) if hidden else entry
    return found, replace(costs, work=work, stagger=stagger, entry=entry)


def _by_turns(starved: NDArray[np.bool_]) -> bool:
    """Whether other hosts are slow every time: those of a data-parallel job stop at full launch queues."""
    flat = starved.reshape(len(starved), -1)
    slow = flat[flat.any(axis=1)]
    return len(slow) > APART and same_places(slow) < STEADY


def _masks(context: SlowContext, starved: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """The starved places of each node, (stage, group, member); without names, of each set at one time."""
    place = context.resolved.trace.place_of
    by_node: dict[str, NDArray[np.bool_]] = {}
    unnamed: list[tuple[NDArray[np.bool_], NDArray[np.bool_]]] = []
    for index in np.argwhere(starved.any(axis=0)):
        at = (int(index[0]), int(index[1]), int(index[2]))
        here = starved[:, at[0], at[1], at[2]]
        node = place(int(context.table.grid[at])).node
        mask = by_node.get(node) if node else next((m for times, m in unnamed if _at_once(times, here)), None)
        if mask is None:
            mask = np.zeros(context.table.grid.shape, np.bool_)
            if node:
                by_node[node] = mask
            else:
                unnamed.append((here, mask))
        mask[at] = True
    return [mask for _, mask in sorted(by_node.items())] + [mask for _, mask in unnamed]


def _at_once(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    """Whether two ranks are starved in the same iterations, by half or more of those in which either is."""
    return int((one & other).sum()) * 2 >= int((one | other).sum())


def _host_finding(
    context: SlowContext, ranks: tuple[int, ...], lost: F8, span: Span, hit: NDArray[np.intp], pace: float
) -> Finding:
    costs = context.costs
    seconds, usual, slow_iteration = slow_scene.cost(costs, lost, hit)
    text = (
        f"its host{'s' if len(ranks) > 1 else ''} needed {pace:.1f}× as long per call inside a block of calls"
    )
    # One rank of a node alone: its device may keep the launch queue full.
    lone = len(ranks) == 1 and is_hidden(context)
    finding = Finding(
        kind=Kind.SLOW_HOST,
        kind_alternatives=(Kind.SLOW_COMPUTE,) if lone else (),
        severity=Severity.P1,
        status=span.status,
        summary="",
        confidence=0.93,
        culprits=slow_scene.culprits(context, Kind.SLOW_HOST, ranks),
        victims=slow_scene.victims(context, ranks),
        where=Where(iteration=int(costs.iterations[hit[0]])),
        window=slow_scene.window(context, span),
        impact=slow_scene.impact(context, seconds, usual, slow_iteration),
        evidence=(Evidence(text, round(pace, 2), "×"),),
        remedy=sentences.remedy(Kind.SLOW_HOST),
    )
    return sentences.summarised(context.resolved, finding, usual, slow_iteration, pace)
