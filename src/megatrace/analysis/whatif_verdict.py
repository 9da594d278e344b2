"""The verdict on an operation table: one slow worker, a stage or micro-batches out of balance, or nothing.

Asked in this order, because a slow worker also makes its stage slow: do few workers explain what stragglers
cost, does one stage explain it on every replica, does the length of micro-batches? Each takes half of the
cost at least. Where nothing does, the verdict is that it cannot be told, with the shares that were found.

A worker is named only beside another that does the same: with one replica, a slow worker and a long stage
look alike, and both are said. Causes within a worker (device or host) do not show in a table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.sentences import remedy
from megatrace.analysis.whatif import Study, study
from megatrace.analysis.whatif_lengths import forward_backward, own_compute
from megatrace.analysis.whatif_pictures import layout_of, pictures, stage_times
from megatrace.model.finding import (
    Culprits,
    Diagnosis,
    Evidence,
    Finding,
    Impact,
    JobSummary,
    Kind,
    NextStep,
    Severity,
    Status,
    Verdict,
    Where,
    Window,
)
from megatrace.model.optable import OpType, Unreplayable
from megatrace.model.trace import Trace
from megatrace.model.whatif import WhatIfResult
from megatrace.units import format_percent, say_ranks

STRAGGLING = 1.1
"""Slowdown from which a job straggles: less is what even healthy jobs lose (the paper's figure)."""
EXPLAINS = 0.5
"""Share of the cost from which a cause is the main one."""
SINGLED_OUT = 0.9
"""Share of what the slowest 3 % explain that fewer of them must explain to be named alone."""
LONGER = 1.05
"""Times its peers' own compute from which a worker or a stage is longer: medians repeat to about 1 %."""
EVERYWHERE = 0.9
"""Share of steps and of replicas in which a stage that is out of balance is longer: it always is."""
TOGETHER = 0.9
"""Correlation of the forward with the backward of a micro-batch from which its length decides both (the
paper's figure)."""

_STEPS = (
    NextStep("megatrace diagnose PATH… --html report.html", "shows the work of every worker in every step"),
    NextStep("megatrace profile PATH…", "prints the slowdown of every type of operation, stage and worker"),
)


def diagnose_operations(trace: Trace) -> Diagnosis:
    """The verdict on a trace with ``operations``."""
    table = trace.operations
    assert table is not None
    seen = len(np.unique(table.rank))
    try:
        found = study(table)
    except Unreplayable as error:
        text = f"cannot tell: the operations of {seen} workers cannot be replayed: {error}"
        job = JobSummary(ranks=seen, ranks_seen=seen)
        return Diagnosis(Verdict.UNDECIDABLE, text, job, inputs=trace.inputs, coverage=trace.coverage)
    findings = judge(found)
    return _told(trace, found, findings)


def judge(found: Study) -> tuple[Finding, ...]:
    """At most one finding: what explains half of what stragglers cost."""
    if found.result.slowdown < STRAGGLING:
        return ()
    for look in (_worker, _stage, _micro_batches):
        finding = look(found)
        if finding is not None:
            return (replace(finding, id="f1", fingerprint=_fingerprint(finding)),)
    return ()


def _fingerprint(finding: Finding) -> str:
    ranks = ",".join(map(str, finding.culprits.ranks))
    where = finding.where.stage
    return f"{finding.kind.value}:{ranks or ('micro-batches' if where is None else f'stage{where}')}"


# ---- few workers


def _worker(found: Study) -> Finding | None:
    r, grid = found.result, found.replay.grid
    if r.slowest_share is None or len(grid.replicas) < 2:
        return None
    slowest = _fewest(found)
    share = found.share(found.all_but(slowest))
    if share < EXPLAINS:
        return None
    own = own_compute(grid)  # [stages, replicas, steps]
    ratios = np.stack([_against_peers(own, stage, replica) for stage, replica in slowest])
    hit = np.asarray((ratios >= LONGER).any(axis=0), np.bool_)
    if not hit.any() or (np.median(ratios[:, hit], axis=1) < LONGER).any():
        return None  # its messages are slow, not its compute: either end of them may be
    ranks = tuple(sorted(int(grid.rank[place]) for place in slowest))
    factor = float(np.median(ratios[0, hit]))
    who = _name(found, slowest[0]) if len(ranks) == 1 else say_ranks(ranks)
    text = f"{who} computed {factor:.1f}× slower than its peers {_when(grid.steps, hit)}: {_cost(r, share)}"
    if len(ranks) > 1:
        text = text.replace("its peers", "their peers")
    first = slowest[0]
    return Finding(
        kind=Kind.SLOW_COMPUTE,
        severity=Severity.P1,
        summary=text,
        status=_status(hit),
        confidence=0.95 if share >= SINGLED_OUT else 0.8,
        kind_alternatives=(Kind.SLOW_HOST,),
        culprits=Culprits(ranks=ranks),
        victims=tuple(sorted(set(grid.rank.reshape(-1).tolist()) - set(ranks))),
        where=Where(
            stage=int(grid.stages[first[0]]) if len({place[0] for place in slowest}) == 1 else None,
            training_step=int(grid.steps[np.flatnonzero(hit)[0]]),
        ),
        window=_window(r, hit),
        impact=_impact(r, share),
        evidence=(
            Evidence(
                f"made equal to the others, {'it' if len(ranks) == 1 else 'they'} would save "
                f"{format_percent(share)} of what stragglers cost",
                round(share, 4),
            ),
            *_shares(r),
            Evidence(
                f"the same stage on other replicas computed {1e3 * _peers(own, first, hit):,.0f} ms a step, "
                f"it {1e3 * float(np.median(own[first][hit])):,.0f} ms",
                round(factor, 3),
                "×",
            ),
        ),
        exonerated=("not the split of the model: the same stage is shorter on the other replicas",),
        remedy=remedy(Kind.SLOW_COMPUTE),
    )


def _fewest(found: Study) -> list[tuple[int, int]]:
    """The fewest of the slowest 3 % of workers that explain nearly as much as all of them."""
    slowest = found.slowest()
    whole = found.share(found.all_but(slowest))
    for count in range(1, len(slowest)):
        if found.share(found.all_but(slowest[:count])) >= SINGLED_OUT * whole:
            return slowest[:count]
    return slowest


def _against_peers(own: NDArray[np.float64], stage: int, replica: int) -> NDArray[np.float64]:
    """float64 [steps]: a worker's compute against the median of its stage on the other replicas."""
    others = np.delete(own[stage], replica, axis=0)
    return np.asarray(own[stage, replica] / np.maximum(np.median(others, axis=0), 1e-9), np.float64)


def _peers(own: NDArray[np.float64], place: tuple[int, int], hit: NDArray[np.bool_]) -> float:
    others = np.delete(own[place[0]], place[1], axis=0)
    return float(np.median(np.median(others, axis=0)[hit]))


def _name(found: Study, place: tuple[int, int]) -> str:
    grid = found.replay.grid
    parts = [f"stage {grid.stages[place[0]]}"] if len(grid.stages) > 1 else []
    return f"rank {grid.rank[place]} ({', '.join([*parts, f'DP {grid.replicas[place[1]]}'])})"


def _when(steps: NDArray[np.int64], hit: NDArray[np.bool_]) -> str:
    if hit.all():
        return f"in all {len(hit)} steps"
    at = np.flatnonzero(hit)
    stretch = at[-1] - at[0] + 1 == len(at)
    if len(at) == 1:
        return f"in step {steps[at[0]]}"
    between = f"{steps[at[0]]}–{steps[at[-1]]}"
    return f"in steps {between}" if stretch else f"in {len(at)} of {len(hit)} steps between {between}"


def _window(r: WhatIfResult, hit: NDArray[np.bool_] | None = None) -> Window:
    """The steps that were hit, all of them where nobody says; time counts from the table's first step."""
    at = np.arange(len(r.steps)) if hit is None else np.flatnonzero(hit)
    ends = np.cumsum(r.recorded_s) * 1e9
    first, last = int(at[0]), int(at[-1])
    ongoing = last == len(r.steps) - 1
    begin = 0 if not first else int(ends[first - 1])
    return Window(begin, None if ongoing else int(ends[last]), first, last)


def _status(hit: NDArray[np.bool_]) -> Status:
    if hit[-1]:
        return Status.ONGOING
    return Status.RECOVERED if (np.diff(hit.astype(np.int8)) != 0).sum() <= 2 else Status.INTERMITTENT


# ---- a stage, micro-batches


def _stage(found: Study) -> Finding | None:
    r, grid = found.result, found.replay.grid
    if not r.stage_shares or len(grid.stages) < 2:
        return None
    number, share = r.stage_shares[0]
    at = int(np.flatnonzero(grid.stages == number)[0])
    own = own_compute(grid)
    ratio = own[at] / np.maximum(np.median(np.delete(own, at, axis=0), axis=0), 1e-9)  # [replicas, steps]
    if share < EXPLAINS or (ratio >= LONGER).mean() < EVERYWHERE:
        return None
    single = len(grid.replicas) == 1
    longer = float(np.median(ratio))
    steps = "in every step" if (ratio >= LONGER).all() else "in nearly every step"
    where = "" if single else f" and on all {len(grid.replicas)} replicas"
    text = f"stage {number} is {longer:.1f}× as long as the others {steps}{where}: {_cost(r, share)}"
    others = () if single else ("not one sick worker: the stage is longer on every replica, by the same",)
    return Finding(
        kind=Kind.IMBALANCE,
        severity=Severity.P2,
        summary=text,
        confidence=0.6 if single else 0.95,
        kind_alternatives=(Kind.SLOW_COMPUTE,) if single else (),
        ambiguous=single,
        where=Where(stage=int(number)),
        window=_window(r),
        impact=_impact(r, share),
        evidence=(*_lengths(found, at), *_shares(r), *_alone(single)),
        exonerated=others,
        remedy=remedy(Kind.IMBALANCE),
    )


def _alone(single: bool) -> tuple[Evidence, ...]:
    text = "there is one replica: a worker that is slow all the time would look the same"
    return (Evidence(text),) if single else ()


def _lengths(found: Study, at: int) -> tuple[Evidence, ...]:
    grid, said = found.replay.grid, []
    for kind in (OpType.FORWARD, OpType.BACKWARD):
        nodes = grid.nodes(kind)
        here, there = nodes[grid.stage[nodes] == at], nodes[grid.stage[nodes] != at]
        if len(here) and len(there):
            mine, others = float(np.median(grid.duration[here])), float(np.median(grid.duration[there]))
            text = f"{kind.value} of a micro-batch: {1e3 * mine:,.1f} ms there, "
            text += f"{1e3 * others:,.1f} ms on the other stages"
            said.append(Evidence(text, round(1e3 * mine, 3), "ms"))
    return tuple(said)


def _micro_batches(found: Study) -> Finding | None:
    r = found.result
    if r.compute_share is None or r.compute_share < EXPLAINS:
        return None
    together = forward_backward(found.replay.grid)
    if together is None or together < TOGETHER:
        return None
    text = f"micro-batches are uneven, on no worker in particular: {_cost(r, r.compute_share)}"
    said = f"where the forward of a micro-batch is long, so is its backward (correlation {together:.2f}): "
    return Finding(
        kind=Kind.IMBALANCE,
        severity=Severity.P2,
        summary=text,
        confidence=0.85,
        window=_window(r),
        impact=_impact(r, r.compute_share),
        evidence=(
            Evidence(said + "its length in tokens decides", round(together, 4)),
            Evidence(
                f"compute made equal would save {format_percent(r.compute_share)} of what stragglers cost",
                round(r.compute_share, 4),
            ),
            *_shares(r),
        ),
        remedy=remedy(Kind.IMBALANCE),
    )


# ---- words


def _cost(r: WhatIfResult, share: float) -> str:
    lost = r.lost_s * min(share, 1.0)
    return (
        f"a step takes {r.replayed_s.mean():.2f} s and would take {r.equal_s.mean():.2f} s if all were equal "
        f"({r.slowdown:.2f}×), {lost:.1f} s of the job's time"
    )


def _impact(r: WhatIfResult, share: float) -> Impact:
    lost = r.lost_s * min(share, 1.0)
    return Impact(
        slowdown=round(r.slowdown, 4),
        seconds_lost=round(lost, 3),
        gpu_hours_lost=round(lost * r.by_worker.size / 3600, 4),
    )


def _shares(r: WhatIfResult) -> tuple[Evidence, ...]:
    said = []
    if r.slowest_share is not None:
        text = f"the slowest 3 % of workers ({say_ranks(r.slowest)}) made equal would save "
        text += f"{format_percent(r.slowest_share)} of that (M_W)"
        said.append(Evidence(text, round(r.slowest_share, 4)))
    if r.last_stage_share is not None and len(r.by_stage) > 1:
        text = f"the last stage made equal would save {format_percent(r.last_stage_share)} of that (M_S)"
        said.append(Evidence(text, round(r.last_stage_share, 4)))
    return tuple(said)


@dataclass(frozen=True, slots=True)
class _Said:
    verdict: Verdict
    headline: str


def _said(r: WhatIfResult, findings: tuple[Finding, ...], workers: int) -> _Said:
    if findings:
        return _Said(Verdict.SLOW, findings[0].summary)
    if r.slowdown < STRAGGLING:
        text = (
            f"nothing wrong found: {workers:,} workers, {len(r.steps)} steps of about "
            f"{np.median(r.recorded_s):.2f} s, {r.slowdown:.2f}× of what they would take if all were equal"
        )
        return _Said(Verdict.HEALTHY, text)
    most = ", ".join(f"{name} {value:.2f}×" for name, value in r.by_type[:2])
    replica, slow = r.by_replica[0]
    if slow >= STRAGGLING and len(r.by_replica) > 1:
        most += f", replica {replica} {slow:.2f}×"
    text = (
        f"cannot tell who: steps take {r.slowdown:.2f}× of what they would if all were equal, and neither "
        f"few workers nor one stage explain half of it; alone as recorded: {most}"
    )
    return _Said(Verdict.UNDECIDABLE, text)


def _told(trace: Trace, found: Study, findings: tuple[Finding, ...]) -> Diagnosis:
    r, grid = found.result, found.replay.grid
    workers = grid.rank.size
    said = _said(r, findings, workers)
    layout = layout_of(grid)
    job = JobSummary(
        ranks=workers,
        ranks_seen=workers,
        layout=layout,
        layout_source=None if layout is None else "inferred",
        micro_batches=r.micro_batches,
        iterations=len(r.steps),
        iteration_median_ms=float(np.median(r.recorded_s) * 1e3),
        iteration_p95_ms=float(np.quantile(r.recorded_s, 0.95) * 1e3),
        baseline="all operations of a type equal",
    )
    warnings = [*grid.notes]
    if r.between >= STRAGGLING:
        warnings.append(
            f"{format_percent(1 - 1 / r.between)} of a step passes between operations (data loading, "
            "launching): the table does not show what happens there."
        )
    return Diagnosis(
        verdict=said.verdict,
        headline=said.headline,
        job=job,
        findings=findings,
        inputs=trace.inputs,
        stages=stage_times(grid),
        next_steps=_STEPS if said.verdict is Verdict.UNDECIDABLE else (),
        coverage=trace.coverage,
        warnings=tuple(warnings),
        pictures=pictures(found.replay),
    )
