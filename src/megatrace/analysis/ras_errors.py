"""Ranks that are gone, and errors that NCCL itself met, from what RAS says."""

from __future__ import annotations

from collections.abc import Iterator

from megatrace.analysis.ras_names import Names, nodes_of
from megatrace.model.finding import Culprits, Evidence, Finding, Kind, Severity
from megatrace.model.ras import Absence, Process, RasCommunicator, RasSnapshot, Tally
from megatrace.units import format_count

_SAID = {
    Absence.DEAD: "considered dead: RAS has not reached {it} for about a minute",
    Absence.UNRESPONSIVE: "unresponsive: {it} did not answer RAS, and {is_} not yet considered dead",
    Absence.NO_COMMUNICATOR: "without this communicator: {it} answered, and never made it or gave it up",
    Absence.UNKNOWN: "missing from the answer",
}
_CONFIDENCE = {Absence.DEAD: 0.9, Absence.UNRESPONSIVE: 0.75, Absence.UNKNOWN: 0.6}
_PEER = "These ranks only report it: look for the peer that is gone."
_ERRORS: tuple[tuple[str, Kind, tuple[Kind, ...], str], ...] = (
    ("cuda", Kind.HANG_DEVICE, (Kind.SOFTWARE,), "Look at the kernel log of its node for an Xid first."),
    ("system", Kind.HANG_NETWORK, (Kind.SOFTWARE,), "NCCL_DEBUG=WARN names the call that failed."),
    ("remote", Kind.DEAD_RANK, (Kind.HANG_NETWORK,), _PEER),
    ("timeout", Kind.HANG_NETWORK, (Kind.DEAD_RANK,), _PEER),
    ("invalid", Kind.SOFTWARE, (), "The call has wrong arguments: NCCL's log (NCCL_DEBUG=WARN) names them."),
)  # fmt: skip
"""Word in NCCL's error → what it means first, what else, what to do. A remote error is a consequence: whoever
reports it is no culprit."""
_CONSEQUENCES = ("remote", "timeout")


def missing_findings(snapshot: RasSnapshot, names: Names) -> list[Finding]:
    """One finding a kind of absence, the worst first. Of each communicator the largest tells: others repeat
    it."""
    found: list[Finding] = []
    for why in (Absence.DEAD, Absence.UNRESPONSIVE, Absence.UNKNOWN):
        processes = _absent(snapshot, why)
        if processes and not (why is Absence.UNKNOWN and found):
            found.append(_missing(snapshot, names, why, processes))
    return found


def _absent(snapshot: RasSnapshot, why: Absence) -> dict[Process, tuple[RasCommunicator, int] | None]:
    """Processes that are gone, each with the largest communicator in which it has a rank."""
    found: dict[Process, tuple[RasCommunicator, int] | None] = {}
    for item in sorted(snapshot.communicators, key=lambda item: -item.size):
        for one in item.missing:
            if one.why is why and one.rank < item.size:
                found.setdefault(one.process, (item, one.rank))
    told = {(process.host, process.pid) for process in found}
    listed = {Absence.DEAD: snapshot.dead, Absence.UNRESPONSIVE: snapshot.unresponsive}.get(why, ())
    for process in listed:
        if (process.host, process.pid) not in told:
            found[process] = None
    return found


def _missing(
    snapshot: RasSnapshot,
    names: Names,
    why: Absence,
    processes: dict[Process, tuple[RasCommunicator, int] | None],
) -> Finding:
    said, ranks = [], set()
    for process, place in list(processes.items())[:8]:
        if place is not None:
            said.append(names.ranks(place[0], (place[1],)))
        else:
            rank = names.rank_of(process)
            said.append((f"rank {rank} on " if rank is not None else "") + names.place(process))
    for process, place in processes.items():
        rank = names.rank_of(process) if place is None else names.global_rank(*place)
        ranks |= set() if rank is None else {rank}
    one, dead = len(processes) == 1, why is Absence.DEAD
    more = "" if len(processes) <= 8 else f" and {len(processes) - 8} more"
    text = _SAID[why].format(it="it" if one else "they", is_="is" if one else "are")
    text = text.replace("reached they", "reached them")
    evidence = [Evidence(line) for line in _around(snapshot)]
    nodes = nodes_of(processes)
    if len(processes) > 1 and len(nodes) == 1:
        evidence.insert(0, Evidence(f"all of them are on {nodes[0]}: the node, or its network, is gone"))
    return Finding(
        kind=Kind.DEAD_RANK,
        severity=Severity.P0,
        summary=f"{', '.join(said)}{more} {'is' if one else 'are'} {text}",
        confidence=_CONFIDENCE[why],
        kind_alternatives=(Kind.HANG_NETWORK,) if dead else (Kind.HANG_HOST, Kind.HANG_NETWORK),
        culprits=Culprits(ranks=tuple(sorted(ranks)), nodes=() if ranks and len(nodes) != 1 else nodes),
        evidence=tuple(evidence),
        remedy=(
            "Look at that process and its node: is it running, is it stopped, can it be reached; then the "
            "kernel log. The others only wait."
        ),
    )


def _around(snapshot: RasSnapshot) -> Iterator[str]:
    """What the others show: whether anything ran, whether NCCL met errors."""
    counts = [number for item in snapshot.communicators for _, number in item.counts]
    counts += [tally.value for item in snapshot.communicators for tally in item.tallies if not tally.text]
    if counts and not any(counts):
        yield "all collective counts are 0: the job has not run a collective yet, it is starting"
    errors = [t for item in snapshot.communicators for t in item.tallies if t.what.endswith("error")]
    if counts and not errors:
        yield "no rank that answered reports an error (async_error 0, success)"
    if snapshot.timeouts:
        yield f"RAS met {snapshot.timeouts} timeouts while it asked"


def error_findings(snapshot: RasSnapshot, names: Names) -> list[Finding]:
    """Errors that NCCL met, own ones before those that ranks report of others."""
    errors = [
        (item, tally)
        for item in snapshot.communicators
        for tally in item.tallies
        if tally.what.endswith("error")
    ]
    errors.sort(key=lambda pair: (_is_consequence(pair[1]), pair[1].count))
    found: list[Finding] = []
    seen: set[tuple[str, tuple[int, ...] | None]] = set()
    for item, tally in errors:
        ranks = _globals(item, tally, names)
        key = (tally.text, ranks or tally.ranks)
        if key not in seen:
            seen.add(key)
            found.append(_error(item, tally, names, ranks))
    return found[:8]


def _is_consequence(tally: Tally) -> bool:
    return any(word in tally.text.lower() for word in _CONSEQUENCES)


def _globals(item: RasCommunicator, tally: Tally, names: Names) -> tuple[int, ...]:
    known = [names.global_rank(item, rank) for rank in tally.ranks or ()]
    return tuple(sorted(rank for rank in known if rank is not None))


def _error(item: RasCommunicator, tally: Tally, names: Names, ranks: tuple[int, ...]) -> Finding:
    low = tally.text.lower()
    _, kind, others, remedy = next(
        (row for row in _ERRORS if row[0] in low),
        ("", Kind.SOFTWARE, (), "NCCL's log (NCCL_DEBUG=WARN) says more."),
    )
    who = names.ranks(item, tally.ranks) if tally.ranks else f"{format_count(tally.count)} ranks"
    consequence = _is_consequence(tally)
    processes = [item.process_of(rank) for rank in tally.ranks or ()]
    return Finding(
        kind=kind,
        severity=Severity.P1 if consequence else Severity.P0,
        summary=f"{who} reported {tally.text} ({tally.what}) in {names.communicator(item)}",
        confidence=0.6 if consequence else 0.8,
        kind_alternatives=others,
        ambiguous=consequence or len(ranks) > 1,
        culprits=Culprits() if consequence else Culprits(ranks, nodes=() if ranks else nodes_of(processes)),
        victims=ranks if consequence else (),
        evidence=(Evidence("NCCL reports it of itself; RAS passes it on"),),
        remedy=remedy,
    )


def status_lines(snapshot: RasSnapshot, names: Names) -> tuple[str, ...]:
    """Communicators whose ranks are in different states: some have finished, aborted or not begun."""
    lines = []
    for item in snapshot.communicators:
        states = [tally for tally in item.tallies if tally.what == "status"]
        parts = []
        for tally in states:
            who = names.ranks(item, tally.ranks) if tally.ranks is not None and tally.count <= 8 else ""
            parts.append(f"{who or f'{format_count(tally.count)} ranks'} {tally.text}")
        absent = [one for one in item.missing if one.why is Absence.NO_COMMUNICATOR]
        if absent and not any(tally.text == "NOCOMM" for tally in states):
            who = names.ranks(item, [one.rank for one in absent])
            parts.append(f"{who} without it: they answered, and never made it or gave it up")
        if parts:
            lines.append(f"{names.communicator(item)} is in different states: {'; '.join(parts)}")
    return tuple(lines[:4])
