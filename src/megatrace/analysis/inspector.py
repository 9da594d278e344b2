"""Who is late in every call, and which group is slower than its like, from completed collectives.

All members leave a collective together, so whoever spends the least time in it came last and was waited
for: the difference to a member's own time is that member's wait. The least time of all is what the transfer
itself took. A rank that comes last nearly always, and for which the others wait a large part of their time,
is the straggler; a communicator whose transfers take longer than those of its like is on a slow path.

Only what completed is here: no hang can be seen, and no cause told apart (a slow device and a slow host both
come late).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatrace.model.finding import (
    ClockInfo,
    Culprits,
    Diagnosis,
    Evidence,
    Finding,
    Impact,
    JobSummary,
    Kind,
    NextStep,
    Severity,
    Verdict,
)
from megatrace.model.inspector import InspectorCalls, InspectorComm
from megatrace.model.trace import RankPlace, Trace
from megatrace.units import format_count, format_duration, format_percent

LEAST_CALLS = 20
"""Calls of a communicator from which a habit is one: five in a row happen by chance in a group of two."""
NEARLY_ALWAYS = 0.7
"""Share of calls in which the straggler comes last; in a group of two, chance alone gives a half."""
WAITED = 0.2
"""Share of the others' time in calls that they wait for it; less is what jitter costs."""
LEAST_WAIT_US = 50.0
"""µs a call: kernels of one collective do not start closer together than that."""
SLOWER = 1.5
"""Times the median of its like from which a group's transfers are slow: rails and topology differ by less."""
ALIKE = 3
"""Groups of one kind from which their median means something."""


@dataclass(frozen=True, slots=True, eq=False)
class _Meetings:
    """Calls of which at least two members were seen, one row each: comm, op int32; size int64 bytes; members
    int64; last int32 rank that came last; wait, transfer float64 µs (mean wait of the others; least time)."""

    comm: NDArray[np.int32]
    op: NDArray[np.int32]
    nbytes: NDArray[np.int64]
    members: NDArray[np.int64]
    last: NDArray[np.int32]
    wait: NDArray[np.float64]
    transfer: NDArray[np.float64]


def diagnose_inspector(trace: Trace) -> Diagnosis:
    """The verdict on a trace with ``inspector``."""
    calls = trace.inspector
    assert calls is not None
    ranks = _Ranks(calls)
    met = _meetings(calls)
    findings = [*_stragglers(calls, met, ranks), *_slow_groups(calls, met, ranks)]
    findings.sort(key=lambda finding: -(finding.impact.seconds_lost or 0.0))
    numbered = tuple(_identified(finding, i) for i, finding in enumerate(findings, start=1))
    verdict, headline = _said(calls, met, numbered)
    times = calls.dumped[calls.dumped > 0]
    return Diagnosis(
        verdict=verdict,
        headline=headline,
        job=JobSummary(ranks=ranks.world, ranks_seen=len(ranks.processes), nodes=len(ranks.hosts) or None),
        findings=numbered,
        clock=ClockInfo(t0=int(times.min()) if len(times) else 0),
        inputs=trace.inputs,
        next_steps=_STEPS if verdict is not Verdict.HEALTHY else (),
        places=ranks.places(),
        coverage=trace.coverage,
    )


_STEPS = (
    NextStep("nvidia-smi -q -d PERFORMANCE,CLOCK", "on the node named: throttling comes late in every call"),
    NextStep("megatrace diagnose LOGS/", "call logs or a ring recording tell a slow device from a slow host"),
)


class _Ranks:
    """The job's ranks: those of the communicator in which every process is; else processes in order."""

    def __init__(self, calls: InspectorCalls) -> None:
        seen = sorted({(host, pid) for comm in calls.comms for _, host, pid in comm.places})
        self.processes, self.hosts = seen, {host for host, _ in seen if host}
        largest = max(calls.comms, key=lambda comm: comm.size)
        self.world = max(largest.size, len(seen))
        spans = {(host, pid) for _, host, pid in largest.places}
        self.known = set(seen) <= spans
        self._rank = {(host, pid): rank for rank, host, pid in largest.places} if self.known else {}

    def of(self, comm: InspectorComm, rank: int) -> int | None:
        """The job's rank of a communicator's rank, None where it does not follow."""
        place = next(((host, pid) for number, host, pid in comm.places if number == rank), None)
        return None if place is None else self._rank.get(place)

    def name(self, comm: InspectorComm, rank: int) -> str:
        """ "rank 3 (node1, process 12)"."""
        where = next((f"{host}, process {pid}" for number, host, pid in comm.places if number == rank), "")
        known = self.of(comm, rank)
        said = f"rank {known}" if known is not None else f"rank {rank} of {group_name(comm)}"
        return f"{said} ({where})" if where else said

    def places(self) -> tuple[RankPlace, ...]:
        """Nodes of the job's ranks."""
        host = {rank: host for (host, _), rank in self._rank.items()}
        return tuple(RankPlace(rank, host.get(rank)) for rank in range(self.world)) if host else ()


def group_name(comm: InspectorComm) -> str:
    """ "communicator tp_0 (0x9e7a479f95a66c, 32 ranks)"."""
    return f"communicator {comm.name + ' ' if comm.name else ''}({comm.hash}, {comm.size} ranks)"


def _meetings(calls: InspectorCalls) -> _Meetings:
    order = np.lexsort((calls.rank, calls.seq, calls.op, calls.comm))
    comm, op, seq = calls.comm[order], calls.op[order], calls.seq[order]
    time, rank, nbytes = calls.exec_us[order], calls.rank[order], calls.nbytes[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(comm) != 0) | (np.diff(op) != 0) | (np.diff(seq) != 0)
    first = np.flatnonzero(new)
    members = np.diff(np.append(first, len(order)))
    least = np.minimum.reduceat(time, first) if len(first) else np.empty(0)
    wait = (np.add.reduceat(time, first) - members * least) / np.maximum(members - 1, 1)
    which = np.repeat(np.arange(len(first)), members)
    holds = np.flatnonzero(time == least[which])
    last = np.zeros(len(first), np.int32)
    last[which[holds][::-1]] = rank[holds][::-1]
    keep = members >= 2
    return _Meetings(
        comm[first][keep],
        op[first][keep],
        nbytes[first][keep],
        members[keep],
        last[keep],
        wait[keep],
        least[keep],
    )


def _stragglers(calls: InspectorCalls, met: _Meetings, ranks: _Ranks) -> list[Finding]:
    """One finding a rank, from the communicator in which it costs most."""
    best: dict[object, Finding] = {}
    for number, comm in enumerate(calls.comms):
        rows = np.flatnonzero(met.comm == number)
        if len(rows) < LEAST_CALLS:
            continue
        who, times = np.unique(met.last[rows], return_counts=True)
        rank, share = int(who[np.argmax(times)]), float(times.max() / len(rows))
        mine = rows[met.last[rows] == rank]
        wait, total = float(met.wait[mine].sum()), float((met.wait[rows] + met.transfer[rows]).sum())
        each = float(np.median(met.wait[mine]))
        if share < NEARLY_ALWAYS or wait < WAITED * total or each < LEAST_WAIT_US:
            continue
        found = _straggler(comm, rank, share, wait, total, each, len(rows), ranks)
        key = found.culprits.ranks or found.summary
        if key not in best or (best[key].impact.seconds_lost or 0) < wait / 1e6:
            best[key] = found
    return list(best.values())


def _straggler(
    comm: InspectorComm,
    rank: int,
    share: float,
    wait: float,
    total: float,
    each: float,
    calls: int,
    ranks: _Ranks,
) -> Finding:
    known = ranks.of(comm, rank)
    host = next((host for number, host, _ in comm.places if number == rank), "")
    return Finding(
        kind=Kind.SLOW_COMPUTE,
        severity=Severity.P1,
        summary=(
            f"{ranks.name(comm, rank)} comes last in {format_percent(share)} of {format_count(calls)} "
            f"collectives of {group_name(comm)}: the others wait {format_duration(each * 1e3)} for it in each"
        ),
        confidence=0.85 if share > 0.9 else 0.7,
        kind_alternatives=(Kind.SLOW_HOST,),
        culprits=Culprits(
            ranks=() if known is None else (known,), nodes=(host,) if host and known is None else ()
        ),
        impact=Impact(seconds_lost=wait / 1e6),
        evidence=(
            Evidence(
                f"the others spend {format_percent(wait / total)} of their time in these calls waiting",
                100 * wait / total,
                "%",
            ),
            Evidence("it spends the least time in them, as whoever comes last does"),
        ),
        exonerated=("not the network: the transfer itself takes as long for all members",),
        remedy=(
            f"Compare the clocks, temperature and other load of {host or 'its node'} with its peers'; "
            "drain it if it is the device."
        ),
    )


def _slow_groups(calls: InspectorCalls, met: _Meetings, ranks: _Ranks) -> list[Finding]:
    """Communicators whose transfers take longer than those of the same size, spread, operation and bytes."""
    found: dict[int, tuple[float, float, str]] = {}
    kinds = np.asarray([(comm.size, comm.nodes or 0) for comm in calls.comms], np.int64)[met.comm]
    whole = met.members == kinds[:, 0]  # the least time is the transfer only where all were seen
    key = np.stack([kinds[:, 0], kinds[:, 1], met.op, met.nbytes], axis=1)[whole]
    comm, transfer = met.comm[whole], met.transfer[whole]
    if not len(key):
        return []
    _, kind = np.unique(key, axis=0, return_inverse=True)
    for one in np.unique(kind):
        rows = np.flatnonzero(kind == one)
        groups, counts = np.unique(comm[rows], return_counts=True)
        groups = groups[counts >= LEAST_CALLS // 2]
        if len(groups) < ALIKE:
            continue
        level = np.asarray([np.median(transfer[rows[comm[rows] == group]]) for group in groups])
        usual = float(np.median(level))
        for group, mine in zip(groups.tolist(), level.tolist(), strict=True):
            if mine >= SLOWER * usual and mine - usual >= LEAST_WAIT_US:
                lost = (mine - usual) / 1e6 * int((comm[rows] == group).sum())
                said = f"{calls.ops[int(key[rows[0], 2])]} of {int(key[rows[0], 3]):,} bytes"
                old = found.get(group, (0.0, 1.0, ""))
                found[group] = (old[0] + lost, max(old[1], mine / usual), old[2] or said)
    return [_slow_group(calls.comms[group], *what, ranks) for group, what in found.items()]


def _slow_group(comm: InspectorComm, lost: float, factor: float, what: str, ranks: _Ranks) -> Finding:
    known = [ranks.of(comm, rank) for rank, _, _ in comm.places]
    hosts = sorted({host for _, host, _ in comm.places if host})
    return Finding(
        kind=Kind.SLOW_NETWORK,
        severity=Severity.P1,
        summary=(
            f"{group_name(comm)} is on a slow path: {what} takes it {factor:.1f}× as long as the groups like "
            "it, with nobody late"
        ),
        confidence=0.7,
        kind_alternatives=(Kind.SLOW_COMPUTE,),
        ambiguous=True,
        culprits=Culprits(
            ranks=tuple(sorted(rank for rank in known if rank is not None)),
            nodes=tuple(hosts) if None in known else (),
        ),
        impact=Impact(seconds_lost=lost),
        evidence=(Evidence(f"its members are on {', '.join(hosts[:8]) or 'unknown nodes'}"),),
        remedy="Test the paths between these nodes one by one (ib_write_bw), and look at port counters.",
    )


def _identified(finding: Finding, number: int) -> Finding:
    who = ",".join(map(str, finding.culprits.ranks)) or ",".join(finding.culprits.nodes) or "group"
    return replace(finding, id=f"f{number}", fingerprint=f"{finding.kind.value}:{who}")


def _said(calls: InspectorCalls, met: _Meetings, findings: tuple[Finding, ...]) -> tuple[Verdict, str]:
    if findings:
        return Verdict.SLOW, findings[0].summary
    if len(met.comm) < LEAST_CALLS:
        text = (
            f"cannot tell: of {format_count(len(calls))} completed calls only {format_count(len(met.comm))} "
            "were seen on two ranks or more; add the files of the other ranks"
        )
        return Verdict.UNDECIDABLE, text
    text = (
        f"nobody comes late and no group is slow in {format_count(len(met.comm))} completed collectives of "
        f"{len(calls.comms)} communicators; a hang does not show in them: only what completed is there"
    )
    return Verdict.HEALTHY, text
