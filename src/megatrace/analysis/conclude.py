"""From findings to one verdict and one sentence.

Precedence failed > hang > slow > undecidable > healthy. Where nothing serious was found, this decides whether
enough was seen to say "healthy": iterations, a layout, whole iterations, and no stretch of long iterations
left unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis import summary
from megatrace.analysis.costs import usual_time
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.hang import HangResult
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.unexplained import Unexplained, find_unexplained
from megatrace.analysis.work import WorkTable
from megatrace.model.finding import Finding, Kind, NextStep, Severity, Verdict
from megatrace.model.trace import Observable
from megatrace.units import say_ranks

_ORDER = (Verdict.FAILED, Verdict.HANG, Verdict.SLOW)

_DECLARE = NextStep("megatrace diagnose PATH… --config job.yaml", "declares what the calls do not show")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the analysis saw; ``times`` float64 [K]: seconds of each iteration, NaN where lost."""

    resolved: Resolved
    phases: PhaseTable | None
    table: WorkTable | None
    times: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict in words."""

    verdict: Verdict
    headline: str
    next_steps: tuple[NextStep, ...] = ()
    alternatives: tuple[str, ...] = ()


def conclude(seen: Seen, findings: Sequence[Finding], hang: HangResult) -> Conclusion:
    """The verdict that the findings and the coverage bear."""
    serious = [finding for finding in findings if finding.severity <= Severity.P2]
    for verdict in _ORDER:
        matching = [finding for finding in serious if finding.kind.verdict is verdict]
        if matching:
            steps = _look(seen, matching[0])
            if verdict is Verdict.HANG:
                steps = (*hang.next_steps, _keep(seen, matching[0]))
            return Conclusion(verdict, matching[0].summary, steps)
    if hang.undecidable:
        return Conclusion(Verdict.UNDECIDABLE, hang.reason, hang.next_steps)
    unknown = _blind(seen) or _long(seen, findings) or _hidden(seen)
    return unknown or Conclusion(Verdict.HEALTHY, _healthy(seen))


_COMMANDS = {
    Kind.SLOW_COMPUTE: (
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,ECC",
        "throttling and memory errors show here",
    ),
    Kind.SLOW_HOST: ("top -b -n 1 | head -20; cat /proc/pressure/cpu", "other load on the node's processors"),
    Kind.SLOW_NETWORK: ("ibstat; rdma statistic show", "link speed, error and congestion counters"),
    Kind.SLOW_STORAGE: ("cat /proc/pressure/io; nfsiostat 1 3", "waiting for the file system"),
}


def _look(seen: Seen, finding: Finding) -> tuple[NextStep, ...]:
    """Where to look first, as a command on the culprit's node."""
    if finding.kind not in _COMMANDS:
        return ()
    command, why = _COMMANDS[finding.kind]
    ranks = finding.culprits.ranks
    node = seen.resolved.trace.place_of(ranks[0]).node if ranks else None
    return (NextStep(f"ssh {node} '{command}'" if node else command, why),)


def _keep(seen: Seen, finding: Finding) -> NextStep:
    """What keeps the evidence: the recordings of the culprits' nodes, or all of them."""
    places = [seen.resolved.trace.place_of(rank) for rank in finding.culprits.ranks]
    nodes = sorted({place.node for place in places if place.node} | set(finding.culprits.nodes))
    few = f" --nodes {','.join(nodes)}" if 0 < len(nodes) <= FEW_NODES else ""
    command = f"megatrace bundle PATH…{few} -o {nodes[0] if len(nodes) == 1 else 'hang'}.tar.zst"
    return NextStep(command, "keeps the recordings, without personal data, to show to others")


# More nodes than this are not a place to look at: then the whole job is worth keeping.
FEW_NODES = 4


def _blind(seen: Seen) -> Conclusion | None:
    """Why nothing can be said, and what to collect; None where enough was seen."""
    resolved = seen.resolved
    ranks = len(resolved.trace.events.ranks())
    if resolved.iterations is None:
        return Conclusion(
            Verdict.UNDECIDABLE,
            f"cannot tell: the calls of {ranks} rank{'s' if ranks != 1 else ''} show no repeating iteration; "
            "recordings of three whole iterations or more are needed",
        )
    if resolved.layout is None or seen.phases is None:
        missing = resolved.trace.coverage.ranks_missing
        lacking = f"; the logs of {say_ranks(missing)} are missing" if missing else ""
        slow = find_unexplained(seen.times, ())
        text = f"cannot tell who: {ranks} of {resolved.world} or more ranks seen, "
        text += f"and their parallel layout does not show{lacking}"
        if slow is not None:
            text = f"{_stretch(slow)}, but {text}"
        return Conclusion(Verdict.UNDECIDABLE, text, (_DECLARE,))
    if seen.table is None or np.isnan(seen.table.group).all():
        return Conclusion(Verdict.UNDECIDABLE, "cannot tell: no whole iteration was seen; collect for longer")
    return None


def _long(seen: Seen, findings: Sequence[Finding]) -> Conclusion | None:
    """Long iterations that nothing explains."""
    slow = find_unexplained(seen.times, findings)
    if slow is None:
        return None
    completed = seen.resolved.trace.coverage.has(Observable.START, Observable.END)
    why = (
        "no rank's own work, transfers or calls were longer"
        if completed
        else "host times alone show no rank that was slower than the others: record start and end times"
    )
    return Conclusion(Verdict.UNDECIDABLE, f"{_stretch(slow)}, but cannot tell why: {why}")


def _hidden(seen: Seen) -> Conclusion | None:
    """Host times of a job without pipeline and tensor groups: every host waits for everybody's device."""
    table, phases = seen.table, seen.phases
    if table is None or phases is None or phases.schedule is not ONE_TASK:
        return None
    if table.by_rank or table.grid.size < 2 or table.grid.shape[2] > 1:
        return None
    known = seen.times[~np.isnan(seen.times)]
    pace = f", all {len(known)} iterations of about {usual_time(known):.2f} s" if len(known) else ""
    text = f"no host was late{pace}, but cannot tell whether a device or a path is slow: every host of a "
    text += "data-parallel job waits for all; record start and end times"
    return Conclusion(Verdict.UNDECIDABLE, text)


def _stretch(slow: Unexplained) -> str:
    return (
        f"iterations {slow.first}–{slow.last} took {slow.factor:.1f}× as long as usual "
        f"({slow.usual_s:.2f} → {slow.factor * slow.usual_s:.2f} s)"
    )


def _healthy(seen: Seen) -> str:
    known = seen.times[~np.isnan(seen.times)]
    ranks = len(seen.resolved.trace.events.ranks())
    text = f"nothing wrong found: {ranks} of {seen.resolved.world} ranks, {len(seen.times)} iterations"
    if len(known):
        text += f", usually {usual_time(known):.2f} s"
    worst = summary.worst_imbalance(seen.table) if seen.table is not None else None
    if worst is not None:
        text += f", longest stage {worst:.2f}× the median stage"
    return text
