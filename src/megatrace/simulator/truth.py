"""What is true about a simulated job (schema ``megatrace.truth/1``): who did it, when, and what may be
concluded.

A source that sees less can separate less. So the truth holds, per kind of source ("ring": start, end and
peer; "text": host enqueue times only), which kinds are right answers, the smallest set of ranks that the
evidence can be narrowed down to, and whether "cannot tell" is right as well. Written beside the logs, never
among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.finding import Kind, Severity, Verdict
from megatrace.model.schedule import Phase
from megatrace.simulator.cluster import F8, Cluster
from megatrace.simulator.faults import STANDSTILLS, Fault, LateDeaths
from megatrace.simulator.scenario import Scenario
from megatrace.simulator.stops import Hit, stands_at

SCHEMA = "megatrace.truth/1"
POSITIVE_SHARE = 0.95
"""A fault counts where iterations without it are at least 5 % shorter; less is often absorbed by bubbles."""
WORK_RANKS = 64
"""Own work per rank and iteration is written for jobs up to this size; the value in memory always has it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is right to say from one kind of source.

    ``kinds``: any of them is right. ``ranks``: the smallest set of ranks that can be separated, empty where
    nobody is to be named. ``undecidable``: saying that it cannot be told is right too. ``also``: other sets
    of ranks that this source cannot tell from ``ranks``.
    """

    kinds: tuple[Kind, ...]
    ranks: tuple[int, ...]
    undecidable: bool = False
    also: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class FaultTruth:
    """One fault. Iterations inclusive; ``positive`` and ``slowdown`` None until a counterfactual was run."""

    fault: str
    kind: Kind
    ranks: tuple[int, ...]
    answers: Mapping[str, Answer]
    severity: Severity
    nodes: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    stage: int | None = None
    first_iteration: int | None = None
    last_iteration: int | None = None
    start_s: float | None = None
    end_s: float | None = None
    micro_batch: int | None = None
    phase: Phase | None = None
    op: str | None = None
    seq: int | None = None
    peer: int | None = None
    positive: bool | None = None
    slowdown: float | None = None
    affected: tuple[int, ...] = ()
    """Iterations that are at least 5 % shorter without the fault."""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The truth about one run.

    ``iteration_ms`` float64 [iterations], NaN from a standstill on; ``work_ms`` float32 [world, iterations]:
    time of the kernels that a rank's own device had to do, waiting excluded.
    """

    scenario: str
    seed: int
    verdict: Verdict
    faults: tuple[FaultTruth, ...]
    iteration_ms: F8
    work_ms: NDArray[np.float32]
    counterfactual_ms: F8 | None = None
    late_deaths_s: Mapping[int, float] = field(default_factory=dict)
    """Per rank that died after the job stood: seconds after the start."""

    def culprits(self) -> tuple[int, ...]:
        """Ranks of all faults."""
        return tuple(sorted({rank for fault in self.faults for rank in fault.ranks}))

    def as_json(self) -> dict[str, Any]:
        """The published form."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "seed": self.seed,
            "verdict": self.verdict.value,
            "iteration_ms": _numbers(self.iteration_ms),
            "counterfactual_ms": None if self.counterfactual_ms is None else _numbers(self.counterfactual_ms),
            "faults": [_fault_json(fault) for fault in self.faults],
            "late_deaths": [
                {"rank": r, "time_s": round(t, 6)} for r, t in sorted(self.late_deaths_s.items())
            ],
            "work_ms": [_numbers(row) for row in self.work_ms] if len(self.work_ms) <= WORK_RANKS else None,
        }


def _numbers(values: NDArray[Any]) -> list[float | None]:
    return [round(float(value), 3) if np.isfinite(value) else None for value in values]


def _fault_json(fault: FaultTruth) -> dict[str, Any]:
    return {
        "fault": fault.fault,
        "kind": fault.kind.value,
        "severity": fault.severity.name,
        "culprits": {
            "ranks": list(fault.ranks),
            "nodes": list(fault.nodes),
            "links": [{"src": src, "dst": dst} for src, dst in fault.links],
        },
        "answers": {
            source: {
                "kinds": [kind.value for kind in answer.kinds],
                "ranks": list(answer.ranks),
                "undecidable": answer.undecidable,
                "also": [list(ranks) for ranks in answer.also],
            }
            for source, answer in fault.answers.items()
        },
        "where": {
            "stage": fault.stage,
            "micro_batch": fault.micro_batch,
            "phase": fault.phase.value if fault.phase else None,
            "op": fault.op,
            "seq": fault.seq,
            "peer": fault.peer,
        },
        "window": {
            "first_iteration": fault.first_iteration,
            "last_iteration": fault.last_iteration,
            "start_s": fault.start_s,
            "end_s": fault.end_s,
        },
        "positive": fault.positive,
        "affected_iterations": list(fault.affected),
        "slowdown": fault.slowdown,
    }


def describe(
    scenario: Scenario,
    cluster: Cluster,
    ends: F8,
    work: F8,
    struck_at: Mapping[int, float],
    hits: Mapping[int, Hit],
    deaths: F8 | None,
) -> Truth:
    """The truth of a run, from its scenario and what the engine saw."""
    from megatrace.simulator.answers import answers_for  # the table is long and needs the types above

    finite = np.where(np.isfinite(ends), ends, np.nan)
    told: list[FaultTruth] = []
    for number, fault in enumerate(scenario.faults):
        if isinstance(fault, LateDeaths):
            continue
        hit = hits.get(number)
        truth = answers_for(fault, scenario, cluster, hit)
        truth = _windowed(truth, fault, scenario, ends)
        told.append(_located(truth, cluster, hit, struck_at, deaths))
    standing = any(isinstance(fault, STANDSTILLS) for fault in scenario.faults)
    verdict = Verdict.HANG if standing else Verdict.SLOW if told else Verdict.HEALTHY
    late: dict[int, float] = {}
    if deaths is not None and any(isinstance(fault, LateDeaths) for fault in scenario.faults):
        culprits = {rank for fault in told for rank in fault.ranks}
        late = {
            int(r): float(deaths[r]) / 1e9
            for r in np.flatnonzero(np.isfinite(deaths))
            if int(r) not in culprits
        }
    return Truth(
        scenario.name,
        scenario.seed,
        verdict,
        tuple(told),
        np.diff(finite) / 1e6,
        (work / 1e6).astype(np.float32),
        late_deaths_s=late,
    )


def compared(fault: FaultTruth, with_ms: F8, without_ms: F8, sporadic: bool) -> FaultTruth:
    """Whether a fault that slows a job counts, from iteration times with and without it.

    ``slowdown`` is the ratio of the sums over the iterations that the fault lengthened by 5 % or more, 1.0
    where there are none. A lasting fault must also lengthen its whole window by as much. A job's first
    iteration counts for nothing: it starts up, and no source shows where it began.
    """
    first, last = fault.first_iteration or 0, fault.last_iteration
    window = slice(first, None if last is None else last + 1)
    a, b = with_ms[window], without_ms[window]
    known = np.isfinite(a) & np.isfinite(b) & (np.arange(first, first + len(a)) > 0)
    hit = known & (np.where(known, b, 1.0) <= POSITIVE_SHARE * np.where(known, a, 0.0))
    if not hit.any():
        return replace(fault, positive=False, slowdown=1.0)
    affected = tuple(int(i) + first for i in np.flatnonzero(hit))
    positive = sporadic or bool(b[known].sum() <= POSITIVE_SHARE * a[known].sum())
    slowdown = float(a[hit].sum() / b[hit].sum())
    return replace(fault, positive=positive, slowdown=slowdown, affected=affected)


def _windowed(truth: FaultTruth, fault: Fault, scenario: Scenario, ends: F8) -> FaultTruth:
    """Adds the window of iterations and seconds of a fault that changes times."""
    first = getattr(fault, "first_iteration", None)
    if first is None:
        return truth
    last = getattr(fault, "last_iteration", None)
    last = scenario.iterations - 1 if last is None else min(last, scenario.iterations - 1)
    start, end = float(ends[first]) / 1e9, float(ends[last + 1]) / 1e9
    return replace(
        truth,
        first_iteration=first,
        last_iteration=last,
        start_s=start if np.isfinite(start) else None,
        end_s=end if np.isfinite(end) else None,
    )


def _located(
    truth: FaultTruth,
    cluster: Cluster,
    hit: Hit | None,
    struck_at: Mapping[int, float],
    deaths: F8 | None,
) -> FaultTruth:
    """Adds stage, call and time of a standstill."""
    stages = {cluster.locate(rank)[0] for rank in truth.ranks}
    if truth.stage is None and len(stages) == 1:
        truth = replace(truth, stage=stages.pop())
    struck = hit.strike.rank if hit is not None else truth.links[0][0] if truth.links else None
    time = None if struck is None else struck_at.get(struck)
    if truth.kind is Kind.DEAD_RANK and truth.nodes and deaths is not None:
        time = float(deaths[truth.ranks[0]])
    if time is not None and np.isfinite(time):
        truth = replace(truth, start_s=time / 1e9)
    if hit is None:
        return truth
    found = stands_at(hit.program, hit.strike)
    if found is None:
        return truth
    row, label = found
    # What can be told of a stop is the call that it keeps from coming, so that is where it is.
    inside = label.phase in (Phase.FORWARD, Phase.BACKWARD)
    truth = replace(truth, phase=label.phase, micro_batch=label.micro_batch if inside else None)
    peer = None
    if row.peer_stage is not None:
        _, flat = cluster.locate(hit.strike.rank)
        peer = int(cluster.grid[row.peer_stage].reshape(-1)[flat])
    return replace(truth, op=row.op.name, seq=hit.seq, peer=peer)
