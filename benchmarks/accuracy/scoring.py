"""The rule by which a diagnosis is right, fixed before the analysis was written.

A fault is positive when its same-seed counterfactual has iterations at least 5 % shorter in the fault's
window, or the job stands. What bubbles absorb is nobody's to find, but nobody may be accused for it either. A
hit names an acceptable kind (the finding's own, or one of at most two alternatives), exactly the culprits of
the truth or the smallest set that this source can separate, and, for faults that slow a job, a window that
overlaps the true one by half (intersection over union). "Cannot tell" is right where the truth says that this
source cannot, and where nobody said that the job still stood and the recording ends before a silence shows
that is longer than the pauses which this job made while it ran. A note (P3) of the right kind, ranks and
window says "cannot tell" about one thing in a job that is healthy otherwise: one verdict cannot say both. A
finding of P2 or worse that names a rank outside every fault is a false accusation, on a healthy job any
finding of P2 or worse is; where ranks are right but kind or window are not, it is a miss and no accusation,
though it counts against precision.

Judges nothing itself: what is separable stands in the simulator's ``answers``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from megatrace.analysis.diagnosing import diagnose
from megatrace.model.finding import Diagnosis, Finding, Kind, Severity, Verdict, Window
from megatrace.model.job import JobConfig, Sourced
from megatrace.model.schedule import Phase
from megatrace.model.trace import Trace
from megatrace.simulator import Answer, FaultTruth, Simulation, Truth, observe

ALTERNATIVES = 2
"""Kinds that a finding may name beside its own; with more it names nothing."""
OVERLAP = 0.5
WAITED_NS = 600_000_000_000
"""How much later somebody looks at a job that stands, where that is said: ten minutes, when the first
watchdog fires."""


@dataclass(frozen=True, slots=True)
class FaultScore:
    """One fault as one source saw it. ``why`` is empty for a hit and for what need not be found."""

    fault: str
    positive: bool
    hit: bool
    undecided: bool = False
    ambiguous: bool = False
    separable: bool = True
    where_right: bool | None = None
    """For standstills that are hit: iteration, stage, micro-batch and phase as far as said are right."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """One run: every fault, findings that fit no fault, and those of them that accuse somebody else."""

    faults: tuple[FaultScore, ...]
    wrong: tuple[str, ...] = ()
    accusations: tuple[str, ...] = ()
    verdict: str = ""
    headline: str = ""
    found: tuple[str, ...] = field(default=())

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong with it, a sentence each; empty where every positive fault was hit and nobody else
        accused, and nothing was said to be wrong where nothing was."""
        told = [f"{fault.fault}: {fault.why}" for fault in self.faults if fault.why]
        told += [f"false accusation: {text}" for text in self.accusations]
        if not any(fault.positive for fault in self.faults):
            told += [f"false alarm: {text}" for text in self.wrong if text not in self.accusations]
        return tuple(told)


def seen(simulation: Simulation, source: str) -> Trace:
    """What a source shows of a run, with what its user says of the job: all of it to a ring, which records
    it, and how many ranks a node has to a text log, which the layout must then be inferred from."""
    trace = observe(simulation.trace, source)
    if source == "ring":
        return trace
    return trace.with_job(JobConfig(ranks_per_node=Sourced(simulation.scenario.ranks_per_node, "scenario")))


def diagnosed(trace: Trace, waited: bool) -> tuple[Diagnosis, int | None]:
    """The diagnosis, and the time at which somebody said that the job still stood."""
    now = int(trace.events.enqueue.max()) + WAITED_NS if waited and len(trace.events) else None
    return diagnose(trace, now=now), now


def silence_shows(simulation: Simulation, fault: FaultTruth) -> bool:
    """Whether the recording itself shows that a job stands: from the strike to the last call of anybody more
    time passes than the longest pause that any rank made before, the first iteration (start-up) left out."""
    events, truth = simulation.trace.events, simulation.truth
    if fault.start_s is None or not len(events):
        return True
    start = simulation.scenario.start_time_ns
    strike = start + fault.start_s * 1e9
    steady = start + float(np.nan_to_num(truth.iteration_ms[0])) * 1e6
    gaps = np.diff(events.enqueue)
    inside = (np.diff(events.rank) == 0) & (events.enqueue[:-1] > steady) & (events.enqueue[1:] < strike)
    longest = int(gaps[inside].max()) if inside.any() else 0
    return float(events.enqueue.max()) - strike > longest


def decidable(simulation: Simulation, waited: bool) -> Truth:
    """The truth as it may be told from this recording: without ``waited``, a standstill after which nothing
    was recorded for long looks like a recording that was cut."""
    truth = simulation.truth
    if waited:
        return truth
    faults = []
    for fault in truth.faults:
        if fault.slowdown is None and not silence_shows(simulation, fault):
            answers = {key: replace(answer, undecidable=True) for key, answer in fault.answers.items()}
            fault = replace(fault, answers=answers)
        faults.append(fault)
    return replace(truth, faults=tuple(faults))


def score(diagnosis: Diagnosis, truth: Truth, source: str) -> Score:
    """The score of a diagnosis from one kind of source (an observation's name)."""
    view = "ring" if source == "ring" else "text"
    serious = [finding for finding in diagnosis.findings if finding.severity <= Severity.P2]
    told = tuple(_fault_score(fault, serious, diagnosis, view) for fault in truth.faults)
    fitting = {
        number
        for number, finding in enumerate(serious)
        for fault in truth.faults
        if _miss(finding, fault, fault.answers[view], diagnosis) is None or _harmless(finding, fault, view)
    }
    identified = {serious[number].id for number in fitting}
    wrong, accusations = [], []
    for number, finding in enumerate(serious):
        if number in fitting or (finding.caused_by and set(finding.caused_by) <= identified):
            continue
        wrong.append(_line(finding))
        named = culprits_of(finding, diagnosis) or not truth.faults
        if named and not any(_explains(fault, finding, view) for fault in truth.faults):
            accusations.append(_line(finding))
    return Score(
        told,
        tuple(wrong),
        tuple(accusations),
        diagnosis.verdict.value,
        diagnosis.headline,
        tuple(_line(finding) for finding in serious),
    )


def culprits_of(finding: Finding, diagnosis: Diagnosis) -> tuple[int, ...]:
    """Ranks that a finding names, its nodes and the ends of its links included."""
    named = set(finding.culprits.ranks)
    if not named:
        nodes = set(finding.culprits.nodes)
        named |= {place.rank for place in diagnosis.places if place.node in nodes}
        ends = [end.rank for link in finding.culprits.links for end in (link.src, link.dst)]
        named |= {rank for rank in ends if rank is not None}
    return tuple(sorted(named))


def _fault_score(fault: FaultTruth, serious: list[Finding], diagnosis: Diagnosis, view: str) -> FaultScore:
    answer = fault.answers[view]
    positive = bool(fault.positive)
    # hang_group among the right kinds: what lies inside that group nobody can tell, whoever looks.
    closed = Kind.HANG_GROUP in answer.kinds
    separable = not (answer.undecidable or closed) and set(answer.ranks) == set(fault.ranks)
    misses = [(finding, _miss(finding, fault, answer, diagnosis)) for finding in serious]
    hits = [finding for finding, miss in misses if miss is None]
    if hits:
        best = min(hits, key=lambda finding: finding.ambiguous)
        right = _where_right(best, fault) if fault.slowdown is None else None
        return FaultScore(
            fault.fault, positive, True, ambiguous=best.ambiguous, separable=separable, where_right=right
        )
    undecided = diagnosis.verdict is Verdict.UNDECIDABLE
    # A standstill outranks what cannot be told of a slowdown before it: one verdict cannot say both.
    outranked = fault.slowdown is not None and diagnosis.verdict in (Verdict.HANG, Verdict.FAILED)
    noted = any(
        finding.severity > Severity.P2 and _miss(finding, fault, answer, diagnosis) is None
        for finding in diagnosis.findings
    )
    if answer.undecidable and (undecided or outranked or noted):
        return FaultScore(fault.fault, positive, True, undecided=True, ambiguous=True, separable=separable)
    why = ""
    if positive:
        why = (
            "; ".join(miss for _, miss in misses if miss) or f"no finding, verdict {diagnosis.verdict.value}"
        )
    return FaultScore(fault.fault, positive, False, undecided, undecided, separable, why=why)


def _miss(finding: Finding, fault: FaultTruth, answer: Answer, diagnosis: Diagnosis) -> str | None:
    """Why a finding is not this fault, None where it is."""
    kinds = _kinds(finding)
    if not kinds & set(answer.kinds):
        return f"kind {'/'.join(sorted(k.value for k in kinds))}, not {answer.kinds[0].value}"
    ranks = culprits_of(finding, diagnosis)
    if set(ranks) not in (set(fault.ranks), set(answer.ranks), *map(set, answer.also)):
        return f"culprits {_listed(ranks)}, not {_listed(answer.ranks)}"
    if fault.positive and fault.slowdown is not None:
        overlap = _overlap(finding.window, fault, diagnosis)
        if overlap < OVERLAP:
            true = f"{fault.first_iteration}–{fault.last_iteration}"
            return f"window {_window(finding)} overlaps {true} by {overlap:.2f}"
    return None


def _kinds(finding: Finding) -> set[Kind]:
    others = finding.kind_alternatives if len(finding.kind_alternatives) <= ALTERNATIVES else ()
    return {finding.kind, *others}


def _harmless(finding: Finding, fault: FaultTruth, view: str) -> bool:
    """A finding about a fault that bubbles absorbed: need not be there, may be, as long as it names nobody
    else."""
    return not fault.positive and _explains(fault, finding, view)


def _explains(fault: FaultTruth, finding: Finding, view: str) -> bool:
    """Whether a finding's culprits are some of a fault's, or neither names anybody and the kind is right."""
    named = set(finding.culprits.ranks)
    answer = fault.answers[view]
    allowed = {*fault.ranks, *answer.ranks, *(rank for ranks in answer.also for rank in ranks)}
    if not named:
        return bool(_kinds(finding) & {fault.kind, *fault.answers[view].kinds}) or (
            not allowed and finding.where.stage == fault.stage
        )
    return named <= allowed


def _overlap(window: Window | None, fault: FaultTruth, diagnosis: Diagnosis) -> float:
    """Intersection over union of iterations; of the fault's window or of the part of it that was affected,
    whichever fits better (a drift starts unseen, every tenth iteration leaves the ends open)."""
    if window is None or fault.first_iteration is None or fault.last_iteration is None:
        return 0.0
    if diagnosis.job.iteration_numbering == "relative" or window.first_iteration is None:
        return _overlap_in_time(window, fault, diagnosis)
    seen_last = window.last_iteration
    if seen_last is None:
        seen_last = max(fault.last_iteration, (diagnosis.job.iterations or 0) - 1)
    mine = (window.first_iteration, seen_last)
    spans = [(fault.first_iteration, fault.last_iteration)]
    if fault.affected:
        spans.append((fault.affected[0], fault.affected[-1]))
    return max(_ratio(mine[0], mine[1] + 1, first, last + 1) for first, last in spans)


def _overlap_in_time(window: Window, fault: FaultTruth, diagnosis: Diagnosis) -> float:
    first, last = diagnosis.job.first_time, diagnosis.job.last_time
    if first is None or last is None or fault.start_s is None:
        return 0.0
    t0 = diagnosis.clock.t0
    end = fault.end_s * 1e9 if fault.end_s is not None else float(last - t0)
    begin = max(fault.start_s * 1e9, float(first - t0))
    until = float(last - t0) if window.end is None else float(window.end - t0)
    return _ratio(float(window.start - t0), until, begin, end)


def _ratio(a: float, b: float, c: float, d: float) -> float:
    union = max(b, d) - min(a, c)
    return max(0.0, min(b, d) - max(a, c)) / union if union > 0 else 0.0


def _where_right(finding: Finding, fault: FaultTruth) -> bool:
    """Whether iteration, stage, micro-batch and phase agree; a part that is not known is not wrong.

    The simulator's iterations end with the optimizer step, those of a diagnosis with the gradient
    synchronisation: calls in between belong to the next one there, with no phase of it.
    """
    where, first = finding.where, fault.first_iteration
    if where.phase is Phase.OTHER and fault.phase in (Phase.SYNC, None) and where.iteration is not None:
        where = replace(where, phase=fault.phase, iteration=where.iteration - (where.iteration != first))
    phases = (where.phase, fault.phase)
    pairs: list[tuple[object, object]] = [
        (where.iteration, first),
        (where.stage, fault.stage),
        phases,
    ]
    if fault.phase in (Phase.FORWARD, Phase.BACKWARD):
        pairs.append((where.micro_batch, fault.micro_batch))
    return all(said is None or true is None or said == true for said, true in pairs)


def _listed(ranks: Iterable[int]) -> str:
    text = ",".join(map(str, sorted(ranks)))
    return text if len(text) <= 60 else text[:57] + "…"


def _window(finding: Finding) -> str:
    window = finding.window
    return "none" if window is None else f"{window.first_iteration}–{window.last_iteration}"


def _line(finding: Finding) -> str:
    others = "".join(f"/{kind.value}" for kind in finding.kind_alternatives)
    who = _listed(finding.culprits.ranks) or "–"
    kind = f"{finding.severity.name} {finding.kind.value}{others}"
    return f"{kind} of ranks {who} in iterations {_window(finding)}"
