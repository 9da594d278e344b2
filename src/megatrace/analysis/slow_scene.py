"""What the judgement of slowness reads, and the parts of a finding that every kind needs.

Cost, window, culprits and victims are worked out alike whether a device, a host, a path or nobody in
particular is to blame. Decides nothing: ``slow`` and the modules beside it do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.suspects import Cause, Suspect
from megatrace.analysis.windows import Span
from megatrace.analysis.work import WorkTable
from megatrace.model.finding import Culprits, Finding, Impact, Kind, Status, Window

F8 = NDArray[np.float64]

# From this share of the iterations on a fault counts as always there.
ALWAYS = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class SlowContext:
    """What the judgement reads; everything in seconds after ``table.t0``."""

    resolved: Resolved
    phases: PhaseTable
    table: WorkTable
    costs: Costs

    def ranks_of(self, suspect: Suspect) -> tuple[int, ...]:
        """Ranks at the suspect's place: one member, or the whole group."""
        if suspect.places:
            return tuple(sorted(int(self.table.grid[place]) for place in suspect.places))
        if suspect.cause is Cause.SYNC:
            return tuple(sorted(int(rank) for rank in self.table.grid[suspect.stage, :, suspect.member or 0]))
        grid = self.table.grid[suspect.stage, suspect.replica]
        if suspect.member is not None:
            return (int(grid[suspect.member]),)
        return tuple(sorted(int(rank) for rank in grid))


# From this share of an iteration's excess on a fault has all of it: host times see a task's length only where
# the host waited, and the optimizer step not at all.
MOSTLY = 0.4
# Hosts of a job without pipeline wait for everybody's device: of what a slow one costs, each shows a part.
PARTLY = 0.1


def cost(costs: Costs, lost: F8, hit: NDArray[np.intp]) -> tuple[float, float, float]:
    """(seconds of the job, usual iteration, iteration with the fault).

    The counterfactual covers the pipeline; the same fault also lengthens the optimizer step. Where it
    explains most of what an iteration was longer than usual, the whole excess is its. A fault that is always
    there leaves no usual iteration: then the counterfactual alone says what would be. One that costs a few
    per cent for most of the time makes the usual iteration look long: the others then tell.
    """
    slow = float(np.median(costs.measured[hit]))
    others = np.delete(costs.measured, hit)
    usual = min(costs.usual, float(np.median(others))) if len(others) > 1 else costs.usual
    excess = np.maximum(costs.measured[hit] - usual, 0.0)
    always = len(hit) >= ALWAYS * len(costs.measured) and float(lost[hit].mean()) > 2 * float(excess.mean())
    if always:
        return float(lost[hit].sum()), max(slow - float(np.median(lost[hit])), 0.0), slow
    explained = lost[hit] / np.maximum(excess, 1e-9)
    hosts_only = costs.graph.schedule.total == 1 and costs.quiet is None
    whole = (explained >= (PARTLY if hosts_only else MOSTLY)) & (explained <= 1.5)
    seconds = float(np.where(whole, excess, np.minimum(lost[hit], excess)).sum())
    return seconds, usual, slow


def impact(context: SlowContext, seconds: float, usual: float, slow_iteration: float) -> Impact:
    """The impact from (seconds of the job, usual iteration, iteration with the fault), all in seconds."""
    return Impact(
        slowdown=round(slow_iteration / usual, 3) if usual > 0 else None,
        seconds_lost=round(seconds, 3),
        gpu_hours_lost=round(seconds * context.resolved.world / 3600, 4),
    )


def window(context: SlowContext, span: Span) -> Window:
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


def inside(costs: Costs, findings: Sequence[Finding]) -> NDArray[np.bool_]:
    """bool [K]: iterations in the window of any of the findings."""
    result = np.zeros(len(costs.iterations), np.bool_)
    for finding in findings:
        if finding.window is not None and finding.window.first_iteration is not None:
            last = finding.window.last_iteration
            until = costs.iterations[-1] if last is None else last
            result |= (costs.iterations >= finding.window.first_iteration) & (costs.iterations <= until)
    return result


def culprits(context: SlowContext, kind: Kind, ranks: tuple[int, ...]) -> Culprits:
    """The ranks, and for a host also its nodes where they are known."""
    if kind is Kind.SLOW_HOST:
        nodes = {context.resolved.trace.place_of(rank).node for rank in ranks}
        return Culprits(ranks=ranks, nodes=tuple(sorted(node for node in nodes if node)))
    return Culprits(ranks=ranks)


def victims(context: SlowContext, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """All other ranks of the job: a synchronous job waits for its slowest."""
    return tuple(sorted(set(range(context.resolved.world)) - set(ranks)))
