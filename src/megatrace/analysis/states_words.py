"""What only a dump can say, as evidence: how far members got, the shape of a call, the line that made it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megatrace.analysis.hang import HangResult
from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.finding import Culprits, Evidence, Finding, Kind, Severity
from megatrace.model.states import CallNote
from megatrace.model.trace import Trace
from megatrace.units import format_count, format_ranks, say_ranks

GROUPS = 3
"""Groups of which it is said how far each side got; the rest are counted."""
FEW_MISSING = 0.25
"""Share of all ranks without a dump up to which the missing ones are suspects; of more, too little was
seen."""


def dump_evidence(trace: Trace, graph: WaitsFor, finding: Finding) -> tuple[Evidence, ...]:
    """First the groups in which culprits are behind, then the call that stands and where it was made."""
    culprits = finding.culprits.ranks
    lags = [Evidence(text) for text in lag_lines(trace, graph, culprits)]
    own = next((note for note in trace.call_notes if note.rank in culprits), None)
    lines = lags[:1]
    waited = _note(trace, graph, culprits)
    for note, word in ((waited, "others wait in"), (own, "the call that stands there")):
        if note is not None and note.shape:
            made = f", called from {note.frame}" if note.frame else ""
            lines.append(Evidence(f"{word}: {note.shape}{made}"))
    lines += lags[1:]
    silent = sorted(set(culprits) & set(trace.coverage.ranks_silent))
    if silent:
        dumps = "the dump" if len(silent) == 1 else "the dumps"
        lines.append(
            Evidence(f"{dumps} of {say_ranks(silent)} {'is' if len(silent) == 1 else 'are'} there, and empty")
        )
    if finding.kind in (Kind.HANG_DEVICE, Kind.HANG_HOST) and not graph.frontier.has_start:
        lines.append(
            Evidence("calls alone do not tell a fault of the device from a host that stands: look at both")
        )
    return tuple(lines)


def lag_lines(trace: Trace, graph: WaitsFor, culprits: tuple[int, ...]) -> list[str]:
    """ "in group EXPERT 72 ranks 9, 14 are at #44,790, the other 6 at #44,796 (ALL_TO_ALL)", the group whose
    members have waited longest first."""
    frontier = graph.frontier
    lags: list[tuple[bool, int, int, str]] = []
    behind: dict[int, set[int]] = {}
    comms = {
        int(comm)
        for rank in culprits
        if (index := frontier.index_of(rank)) is not None
        for comm in frontier.entry_comm[frontier.entry_rank == index]
    }
    for comm in comms:
        mine = frontier.entry_comm == comm
        ranks, last = frontier.ranks[frontier.entry_rank[mine]], frontier.entry_last[mine]
        guilty = np.isin(ranks, culprits)
        if guilty.all() or not guilty.any() or last[guilty].max() >= last[~guilty].max():
            continue
        since = _waiting_since(graph, comm)
        name = trace.communicators[comm].name or f"communicator {comm}"
        here, there = last[guilty], last[~guilty]
        members = say_ranks(trace.communicators[comm].members or ())
        text = (
            f"in group {name} ({members}) {say_ranks(ranks[guilty].tolist())} "
            f"{'is' if guilty.sum() == 1 else 'are'} at {_numbers(here)}, the other "
            f"{format_count(int((~guilty).sum()))} at {_numbers(there)}"
        )
        mixed = bool(there.min() <= here.max())  # others are no further either
        lags.append((mixed, since, comm, text))
        behind[comm] = set(ranks[guilty].tolist())
    lags.sort()
    told: list[str] = []
    covered: set[int] = set()
    for _, _, comm, text in lags:  # first one group for each culprit
        if len(told) < GROUPS and not behind[comm] <= covered:
            told.append(text)
            covered |= behind[comm]
    told += [text for _, _, _, text in lags if text not in told][: GROUPS - len(told)]
    if len(lags) > len(told):
        told.append(f"the same in {len(lags) - len(told)} other groups that they share with others")
    return told


def _waiting_since(graph: WaitsFor, comm: int) -> int:
    """ns: the oldest call of a communicator at which somebody waits for a member that has not made it."""
    calls, frontier = graph.calls, graph.frontier
    here = np.isin(calls.instance, np.unique(graph.hold_instance)) & (calls.group == comm)
    absent = graph.instances.absent[np.maximum(calls.instance, 0)] & (calls.instance >= 0)
    rows = np.flatnonzero((calls.group == comm) & (here | absent))
    if not len(rows):
        return int(np.iinfo(np.int64).max)
    return int(frontier.tail_time[calls.rank[rows], calls.column[rows]].min())


def _numbers(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    low, high = int(values.min()), int(values.max())
    return f"#{low:,}" if low == high else f"#{low:,} to #{high:,}"


def _note(trace: Trace, graph: WaitsFor, culprits: tuple[int, ...]) -> CallNote | None:
    """The note on the oldest call that others made and the culprits did not."""
    notes = {(note.rank, note.comm, note.seq): note for note in trace.call_notes}
    frontier, calls = graph.frontier, graph.calls
    best: tuple[int, CallNote] | None = None
    for rank in culprits:
        index = frontier.index_of(rank)
        if index is None:
            continue
        wanted = graph.directly(index)
        rows = np.flatnonzero(np.isin(calls.instance, wanted))
        for row in rows.tolist():
            key = (int(frontier.ranks[calls.rank[row]]), int(calls.group[row]), int(calls.seq[row]))
            note = notes.get(key)
            time = int(frontier.tail_time[calls.rank[row], calls.column[row]])
            if note is not None and (best is None or time < best[0]):
                best = (time, note)
    return None if best is None else best[1]


def either_side(finding: Finding, graph: WaitsFor) -> Finding:
    """The finding, with the other possibility where most of a group's members lack a call: they may have left
    it out, or the few who wait in it made one too many. A majority proves nothing."""
    culprits = [
        index for rank in finding.culprits.ranks if (index := graph.frontier.index_of(rank)) is not None
    ]
    if finding.kind not in (Kind.HANG_HOST, Kind.MISSING_CALL) or len(culprits) < 2:
        return finding
    lacking = [set(graph.directly(index).tolist()) for index in culprits]
    common = set.intersection(*lacking)
    waiting = sorted({int(rank) for instance in common for rank in graph.waiters(instance)})
    if not waiting or len(waiting) > len(culprits):
        return finding
    waiters = say_ranks(int(graph.frontier.ranks[rank]) for rank in waiting)
    total = len(waiting) + len(culprits)
    where = finding.where
    what = f"{where.op} #{where.seq:,} of {where.communicator}" if where.seq is not None else "a call"
    text = (
        f"{len(culprits)} of {total} ranks ({format_ranks(finding.culprits.ranks)}) did not join {what}, in "
        f"which {waiters} wait: either they left it out, or {waiters} made a call that the others never make"
    )
    return replace(
        finding,
        kind=Kind.MISSING_CALL,
        kind_alternatives=(Kind.MISMATCH, Kind.HANG_HOST),
        ambiguous=True,
        confidence=0.6,
        summary=text,
        exonerated=(),
        remedy=f"Compare the code path of {waiters} with that of the others at this call.",
    )


def missing_finding(trace: Trace, hang: HangResult) -> Finding | None:
    """All chains end at a few ranks of which there is no dump: they died, or could not even write one."""
    missing = trace.coverage.ranks_missing
    if not hang.undecidable or hang.graph is None or not hang.suspects:
        return None
    total = len(hang.graph.frontier) + len(missing)
    if not set(hang.suspects) <= set(missing) or len(missing) > FEW_MISSING * total:
        return None
    who = tuple(sorted(hang.suspects))
    one = len(who) == 1
    waiting = int(hang.graph.waiting.sum())
    text = (
        f"{say_ranks(who)} wrote no dump, and the others wait for {'it' if one else 'them'}: "
        f"{'it' if one else 'they'} died, or stood so that not even a dump could be written"
    )
    return Finding(
        kind=Kind.DEAD_RANK,
        severity=Severity.P0,
        summary=text,
        confidence=0.7 if one else 0.5,
        kind_alternatives=(Kind.HANG_HOST, Kind.HANG_DEVICE),
        ambiguous=not one,
        culprits=Culprits(ranks=who),
        victims=tuple(int(rank) for rank in hang.graph.frontier.ranks),
        evidence=(
            Evidence(
                f"{format_count(waiting)} of {format_count(total)} ranks have an open call, and every chain "
                f"of waiting ends at {say_ranks(who)}",
                waiting,
                "ranks",
            ),
            Evidence("a rank whose dump is missing may itself be waiting for something that is not seen"),
        ),
        remedy=(
            "Look for the end of these processes first: exit codes, the kernel log, the launcher's output. "
            "With their dumps added the answer is certain."
        ),
    )


def healthy_words(trace: Trace, hang: HangResult) -> str:
    """What was looked at, where nothing is wrong."""
    graph = hang.graph
    ranks = 0 if graph is None else len(graph.frontier)
    text = f"nothing wrong found in the dumps of {format_count(ranks)} ranks: "
    if graph is not None and not graph.waiting.any():
        return text + f"all {len(trace.events):,} calls that they hold have completed"
    return text + hang.reason
