"""One run judged by every method, and the sums of many.

A method names ranks. "Exact" is naming the culprits of the truth and nobody else; "in group" is naming one
of them and nobody outside their tensor groups, which is as close as methods come that time whole phases. Kind
and window do not count here, as most methods state neither; the fault matrix (``benchmarks.accuracy``) counts
them. What bubbles absorb need not be found, and naming its culprit is no mistake; naming anybody else, and
anybody in a healthy job, is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.running import Record
from benchmarks.accuracy.scoring import WAITED_NS, culprits_of, score
from benchmarks.rivals.counters import Counters
from benchmarks.rivals.draws import run
from benchmarks.rivals.fixed_threshold import FixedThreshold
from benchmarks.rivals.last_arrival import LastArrival
from benchmarks.rivals.operator_vote import OperatorVote
from benchmarks.rivals.seen import Named, Rival, Seen
from benchmarks.rivals.sensitivity import measured
from benchmarks.rivals.similarity import Similarity
from benchmarks.rivals.watchdog import Watchdog
from benchmarks.rivals.what_if import WhatIf
from megatrace.model.finding import Severity
from megatrace.simulator import Simulation

RIVALS: tuple[Rival, ...] = (
    Watchdog(),
    Counters(),
    LastArrival(),
    FixedThreshold(),
    Similarity(),
    OperatorVote(),
    WhatIf(),
)
OURS = "MegaTrace"
PUBLISHED: dict[str, dict[str, float]] = {
    OURS: {"hang": 1.0, "slow": 0.95},
    Watchdog.name: {"hang": 0.80},
    Counters.name: {"hang": 0.49},
    FixedThreshold.name: {"hang": 0.0, "slow": 0.84},
    Similarity.name: {"slow": 0.89},
    OperatorVote.name: {"slow": 0.93},
}
"""F1 as the paper of the comparison gives them; that of MegaTrace is the paper's own method."""
NEAR = 0.05
"""How near a method must come to its published figure to count as reproduced."""


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """One run of the comparison."""

    generator: str
    state: str
    seed: int

    @property
    def id(self) -> str:
        """GENERATOR:STATE:SEED."""
        return f"{self.generator}:{self.state}:{self.seed}"


def judge(job: Job) -> list[Record]:
    """One record: the truth, what each method named per threshold, and how right MegaTrace was."""
    simulation = run(job.generator, job.state, job.seed)
    events = simulation.trace.events
    standing = job.state == "hang"
    # Somebody looks at a job that stands when the first watchdog fires.
    seen = Seen(
        simulation.trace,
        simulation.scenario.layout,
        int(events.enqueue.max()) + WAITED_NS if standing else None,
    )
    named: dict[str, list[list[int]]] = {OURS: [sorted(ours(seen))]}
    for rival in RIVALS:
        named[rival.name] = (
            [sorted(rival.hang(seen))]
            if standing
            else [sorted(rival.slow(seen, limit)) for limit in rival.thresholds]
        )
    told = score(seen.diagnosis, simulation.truth, "ring")
    fault = simulation.truth.faults[0] if simulation.truth.faults else None
    record: Record = {
        "id": job.id,
        "generator": job.generator,
        "state": job.state,
        "seed": job.seed,
        "fault": fault.fault if fault else "",
        "positive": bool(fault and fault.positive),
        "exact": [sorted(ranks) for ranks in _exact(simulation)],
        "near": sorted(rank for r in (fault.ranks if fault else ()) for rank in seen.tensor_group(r)),
        "named": named,
        "full": not told.reasons,
        "why": list(told.reasons),
        "place": _place(simulation, seen),
        "finding": measured(seen) if job.state != "hang" else None,
    }
    return [record]


def ours(seen: Seen) -> Named:
    """Whom MegaTrace names in findings of P2 or worse."""
    serious = [finding for finding in seen.diagnosis.findings if finding.severity <= Severity.P2]
    return frozenset(rank for finding in serious for rank in culprits_of(finding, seen.diagnosis))


def _exact(simulation: Simulation) -> list[tuple[int, ...]]:
    """Sets of ranks that are exactly right from start and end."""
    sets: list[tuple[int, ...]] = []
    for fault in simulation.truth.faults:
        sets += [fault.ranks, fault.answers["ring"].ranks, *fault.answers["ring"].also]
    return sets


def _place(simulation: Simulation, seen: Seen) -> bool | None:
    """Whether stage, micro-batch and phase, as far as said, are right; None where nothing was said."""
    if not simulation.scenario.faults or not seen.diagnosis.findings:
        return None
    spec: Any = simulation.scenario.faults[0]
    where = seen.diagnosis.findings[0].where
    layout = simulation.scenario.layout
    ends = {layout.place(rank).stage for rank in (spec.rank, *simulation.truth.faults[0].ranks)}
    pairs = [
        (where.stage in ends if where.stage is not None else None, True),
        (where.micro_batch, getattr(spec, "micro_batch", None)),
        (where.phase, getattr(spec, "phase", None)),
    ]
    told = [said == true for said, true in pairs if said is not None and true is not None]
    return all(told) if told else None


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts of one method over runs. ``wrong`` are runs in which it named somebody who did nothing."""

    positives: int
    exact: int
    near: int
    wrong_exact: int
    wrong_near: int

    @property
    def f1_exact(self) -> float:
        """F1 of naming exactly the culprits."""
        return _f1(self.exact, self.wrong_exact, self.positives)

    @property
    def f1(self) -> float:
        """F1 of naming somebody in the culprits' tensor groups."""
        return _f1(self.near, self.wrong_near, self.positives)


def _f1(hits: int, wrong: int, positives: int) -> float:
    return 2 * hits / (hits + wrong + positives) if positives else 1.0


def summed(records: Iterable[Record], method: str, choice: int) -> Sums:
    """The sums of a method with its ``choice``-th threshold."""
    positives = exact = near = wrong_exact = wrong_near = 0
    for record in records:
        options: list[list[int]] = record["named"][method]
        named = options[min(choice, len(options) - 1)]
        is_exact = named in record["exact"]
        is_near = bool(set(named) & {r for ranks in record["exact"] for r in ranks}) and set(named) <= set(
            record["near"]
        )
        is_near = is_near or is_exact
        positives += record["positive"]
        exact += record["positive"] and is_exact
        near += record["positive"] and is_near
        wrong_exact += bool(named) and not is_exact
        wrong_near += bool(named) and not is_near
    return Sums(positives, exact, near, wrong_exact, wrong_near)


def tuned(records: Sequence[Record]) -> dict[str, int]:
    """Per rival: the threshold with the best F1 in group, from runs that are not scored."""
    slow = [record for record in records if record["state"] != "hang"]
    best: dict[str, int] = {}
    for rival in RIVALS:
        scores = [summed(slow, rival.name, choice).f1 for choice in range(len(rival.thresholds))]
        best[rival.name] = scores.index(max(scores))
    return best
