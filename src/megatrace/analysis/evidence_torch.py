"""Watchdogs, desync reports and fingerprints of torch.distributed: who waits, in what, and for whom.

A watchdog speaks for a rank that waits: whoever prints first is a victim like the others. What tells is who is
silent, who has enqueued less, and which group blocked first (its time less the time it has waited). "[Rank 1]" inside
such a line is the rank in the group; the global one stands in the prefix, where there is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, plural
from megatrace.analysis.evidence_prints import judge_fingerprints
from megatrace.model.finding import Culprits, Kind, NextStep, Severity, Where
from megatrace.model.series import FactKind, LogFact
from megatrace.units import NS_PER_MS, format_duration, say_ranks

AT_ONCE = 1_000 * NS_PER_MS
"""Groups that blocked within a second of each other wait for one another, or for the same."""
_DUMP = NextStep(
    "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 …; megatrace diagnose DUMPS/",
    "a flight-recorder dump of every rank says who never made the call",
)
STACKS = NextStep("py-spy dump --pid PID", "on the ranks that are silent: where their host stands")


@dataclass(slots=True)
class _Stuck:
    """One collective that ranks wait in. ``waiters`` global ranks, or group ranks where no prefix names others."""

    group: str
    seq: int | None
    op: str = ""
    numel: int | None = None
    ran_ms: float | None = None
    timeout_ms: float | None = None
    waiters: set[int] = field(default_factory=set)
    local: dict[int, int] = field(default_factory=dict)
    enqueued: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    began: int | None = None
    facts: list[LogFact] = field(default_factory=list)

    def name(self) -> str:
        """ "ALLREDUCE #19 of PG 0"."""
        number = "" if self.seq is None else f" seq {self.seq}"
        return f"{self.op or 'a collective'}{number}{f' of {self.group}' if self.group else ''}"


def judge_torch(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about what torch.distributed says."""
    claims = judge_fingerprints(facts)
    named = _named_by_torch(facts)
    claims += named
    stuck = _stuck(facts)
    if stuck and not named:
        claims.append(_timeouts(stuck, facts))
    return claims


def rank_of(fact: LogFact) -> int | None:
    """The rank that speaks: of the prefix, else that in its group, which was the global one before prefixes."""
    if fact.rank is not None:
        return fact.rank
    for key in ("own_rank", "group_rank"):
        number = fact.number(key)
        if number is not None:
            return int(number)
    return None


def _stuck(facts: Sequence[LogFact]) -> list[_Stuck]:
    """Collectives that somebody's watchdog gave up on, the one that blocked first before the others."""
    found: dict[tuple[str, int | None], _Stuck] = {}
    group_of: dict[tuple[int | None, int | None], str] = {}
    mine = [f for f in facts if f.kind is FactKind.WATCHDOG and f.name in ("timeout", "position")]
    for fact in mine:
        key = (rank_of(fact), _int(fact, "seq"))
        if fact.name == "position" or fact.get("pg") is not None:
            group_of[key] = _group(fact)
    for fact in mine:
        rank, seq = rank_of(fact), _int(fact, "seq")
        group = _group(fact) or group_of.get((rank, seq), "")
        item = found.setdefault((group, seq), _Stuck(group, seq))
        _note(item, fact, rank)
    loose = [key for key in found if not key[0]]
    for home in loose:  # a watchdog line without its group: the only group with this number has it
        homes = [item for other, item in found.items() if other[0] and other[1] == home[1]]
        if len(homes) == 1:
            for fact in found[home].facts:
                _note(homes[0], fact, rank_of(fact))
            del found[home]
    return sorted(found.values(), key=lambda item: (item.began is None, item.began or 0))


def _note(item: _Stuck, fact: LogFact, rank: int | None) -> None:
    item.facts.append(fact)
    item.op = item.op or fact.word("op")
    numel = fact.number("numel_in")
    if numel is None and fact.get("shape") is not None and fact.word("shape").strip().isdigit():
        numel = float(fact.word("shape"))
    item.numel = item.numel if numel is None else int(numel)
    item.timeout_ms = item.timeout_ms or fact.number("timeout_ms")
    ran = fact.number("ran_ms")
    if ran is not None:
        item.ran_ms = max(item.ran_ms or 0, ran)
        if fact.time is not None:
            began = fact.time - int(ran * NS_PER_MS)
            item.began = began if item.began is None else min(item.began, began)
    if rank is None:
        return
    item.waiters.add(rank)
    for key in ("group_rank", "own_rank"):
        number = _int(fact, key)
        if number is not None and fact.rank is not None:
            item.local[rank] = number
            break
    for key, table in (("enqueued", item.enqueued), ("completed", item.completed)):
        number = _int(fact, key)
        if number is not None:
            table[rank] = number


def _int(fact: LogFact, key: str) -> int | None:
    number = fact.number(key)
    return None if number is None else int(number)


def _group(fact: LogFact) -> str:
    desc = fact.word("pg_desc") or fact.word("pg_name")
    pg = fact.word("pg")
    name = f"PG GUID {pg}" if pg and fact.get("pg_id") is not None else f"PG {pg}" if pg else ""
    return (
        f"{name} ({desc})".strip()
        if desc and desc != "default_pg"
        else f"{name} (default_pg)"
        if desc
        else name
    )


def _timeouts(stuck: list[_Stuck], facts: Sequence[LogFact]) -> Claim:
    groups = {item.group for item in stuck}
    return _one_group(stuck, facts) if len(groups) == 1 else _several(stuck)


def _several(stuck: list[_Stuck]) -> Claim:
    """More than one group stands: either they wait for each other, or the first to block holds the others up."""
    waiting = [f"{item.name()} ({_who(item)})" for item in stuck]
    begun = [item.began for item in stuck if item.began is not None]
    together = len(begun) == len(stuck) and max(begun) - min(begun) <= AT_ONCE
    evidence = [f"{item.name()}: {_who(item)} waited {_waited(item)}; {_progress(item)}" for item in stuck]
    if together:
        spread = format_duration(max(max(begun) - min(begun), 1))
        same = {item.ran_ms for item in stuck}
        alike = (
            f"all timed out at the same {int(stuck[0].ran_ms or 0)} ms"
            if len(same) == 1
            else "time less waiting"
        )
        evidence.append(f"{alike}: they blocked within {spread} of each other")
    evidence += _local_words(stuck)
    evidence.append(
        "lines about sockets and the abort of other calls that follow are after-effects of the watchdog"
    )
    ranks = {rank for item in stuck for rank in item.waiters}
    known = f"only {plural(len(ranks), 'rank')} of at least {max(ranks, default=0) + 1} in the file"
    if together:
        summary = f"{len(stuck)} groups are stuck at once: {listed(waiting)}; likely an order or concurrency fault between collectives (deadlock)"
    else:
        summary = f"{len(stuck)} groups are stuck, {stuck[0].name()} first: {listed(waiting)}"
    return claim(
        Order.WAITING, Kind.HANG_GROUP, Severity.P0, summary, [fact for item in stuck for fact in item.facts], evidence=evidence,
        or_kinds=(Kind.DEADLOCK, Kind.MISMATCH), ambiguous=True, confidence=0.6, victims=ranks,
        no=["not the network: nothing here shows a failed transfer", f"no single rank can be named: {known}"],
        remedy="Check the order in which ranks enter these groups, and whether several threads or streams issue collectives on one communicator "
        "(NCCL calls of one communicator must not run concurrently); take flight-recorder dumps of all ranks.",
        began=stuck[0].began,
        where=Where(op=stuck[0].op or None, communicator=stuck[0].group or None, seq=stuck[0].seq),
        steps=(_DUMP, STACKS),
    )  # fmt: skip


def _who(item: _Stuck) -> str:
    return say_ranks(item.waiters) if item.waiters else "a rank that is not named"


def _waited(item: _Stuck) -> str:
    if item.ran_ms is None:
        return "until its watchdog fired"
    return f"{item.ran_ms:.0f} ms ({format_duration(item.ran_ms * NS_PER_MS)})"


def _progress(item: _Stuck) -> str:
    done = sorted(set(item.completed.values()))
    queued = sorted(set(item.enqueued.values()))
    if not done and not queued:
        return "how far it had come is not printed"
    return f"last completed {listed(done)}, last enqueued {listed(queued)}"


def _local_words(stuck: list[_Stuck]) -> list[str]:
    different = [(rank, local) for item in stuck for rank, local in item.local.items() if rank != local]
    if not different:
        return []
    said = listed([f'"[Rank {local}]" is global rank {rank}' for rank, local in different], 4)
    return [f"the rank in brackets is the one in its group: {said}"]


def _one_group(stuck: list[_Stuck], facts: Sequence[LogFact]) -> Claim:
    """One group: whoever is behind or silent is suspected, unless its file is missing; who speaks waits."""
    last = max(stuck, key=lambda item: len(item.waiters))
    ranks = {rank for item in stuck for rank in item.waiters}
    behind = _behind(stuck)
    silent = (
        tuple(sorted(set(range(max(ranks, default=-1) + 1)) - ranks)) if ranks and _whole(last, ranks) else ()
    )
    ops = {item.op for item in stuck if item.op and item.seq == last.seq}
    evidence = [
        f"{_who(item)} {'waits' if len(item.waiters) == 1 else 'wait'} in {item.name()}{_size(item)}: waited {_waited(item)}; {_progress(item)}"
        for item in stuck
    ]
    evidence += _local_words(stuck) + _hints(last)
    suspects, lacking = behind or silent, () if behind else _unread(silent, facts)
    steps: tuple[NextStep, ...] = (STACKS, _DUMP)
    if behind:
        summary = f"{say_ranks(behind)} never enqueued {last.name()}, which {say_ranks(ranks - set(behind))} {'waits' if len(ranks) - len(behind) == 1 else 'wait'} in"
    elif lacking:
        suspects, missing = (), f"the log of {say_ranks(lacking)}"
        summary = f"{say_ranks(ranks)} wait in {last.name()}{_size(last)}; {missing} is missing: who did not come is not known"
        evidence.append(
            f"no line of {say_ranks(lacking)} was read, which are whole nodes: their file is missing, or nothing was written there"
        )
        steps = (NextStep("megatrace diagnose LOGS/", f"with {missing} added"), *steps)
    elif silent and 2 * len(silent) <= len(ranks) + len(silent):
        never = "never reports" if len(silent) == 1 else "never report"
        summary = f"{say_ranks(ranks)} wait in {last.name()}{_size(last)}; {say_ranks(silent)} {never}: suspect {say_ranks(silent)}"
        evidence.append(
            f"{say_ranks(silent)} is the only one without a watchdog line: it does not wait in this collective"
            if len(silent) == 1
            else f"{say_ranks(silent)} are the only ones without a watchdog line: they do not wait in this collective"
        )
    else:
        suspects = ()
        summary = f"{_who(last)} {'waits' if len(ranks) == 1 else 'wait'} in {last.name()}{_size(last)} until the watchdog gave up; who did not come is not in this file"
    weak = not suspects and len(ranks) <= 1
    kind = Kind.MISSING_CALL if suspects else Kind.HANG_GROUP
    return claim(
        Order.WAITING, kind, Severity.P3 if weak else Severity.P0, summary, last.facts, evidence=evidence, weak=weak,
        culprits=Culprits(ranks=tuple(suspects)), victims=ranks - set(suspects), confidence=0.7 if suspects else 0.4, ambiguous=len(suspects) != 1,
        or_kinds=(Kind.HANG_HOST, Kind.DEAD_RANK) if suspects else (Kind.HANG_NETWORK, Kind.HANG_DEVICE, Kind.MISMATCH),
        no=["no network or GPU fault is shown: a watchdog only says that somebody waits"] + (["the ranks that print are victims: the first to time out is not the cause"] if ranks else []),
        began=last.began,
        remedy=_remedy(last, suspects), where=Where(op=listed(ops) if ops else None, communicator=last.group or None, seq=last.seq),
        steps=steps, either=() if suspects else ("a rank that is not in this file never made the call (other branch, exception, dead process)", "all have made it and the network or a GPU does not finish it"),
    )  # fmt: skip


LEAST_NODE = 4
"""Ranks of the smallest node that a job over several nodes runs on; that many neighbours do not fail at once."""


def _unread(silent: tuple[int, ...], facts: Sequence[LogFact]) -> tuple[int, ...]:
    """The silent ranks where they are whole nodes of which nothing at all was read, else none.

    A launcher writes one file a node: how many ranks each of those that were read holds is the size of a node.
    """
    if len(silent) < LEAST_NODE or silent[-1] - silent[0] + 1 != len(silent):
        return ()
    of_source: dict[str, set[int]] = defaultdict(set)
    for fact in facts:
        rank = rank_of(fact)
        if rank is not None:
            of_source[fact.source].add(rank)
    if any(ranks & set(silent) for ranks in of_source.values()):
        return ()
    held = {len(ranks) for ranks in of_source.values()}
    size = held.pop() if len(held) == 1 and min(held) >= LEAST_NODE else LEAST_NODE
    return silent if silent[0] % size == 0 and len(silent) % size == 0 else ()


def _whole(item: _Stuck, ranks: set[int]) -> bool:
    """Whether the group is that of all ranks, so that silence means something."""
    default = not item.group or "default" in item.group or item.group in ("PG 0", "PG GUID 0")
    return default and len(ranks) > 1


def _behind(stuck: list[_Stuck]) -> tuple[int, ...]:
    """Ranks whose host has enqueued less than what others wait in."""
    wanted = max((item.seq or 0 for item in stuck), default=0)
    enqueued = {rank: number for item in stuck for rank, number in item.enqueued.items()}
    behind = tuple(sorted(rank for rank, number in enqueued.items() if number < wanted))
    return behind if len(behind) < len(enqueued) else ()


def _size(item: _Stuck) -> str:
    return "" if item.numel is None else f" ({plural(item.numel, 'element')})"


def _hints(item: _Stuck) -> list[str]:
    hints = []
    if item.numel == 1 and item.op.startswith("ALLREDUCE"):
        hints.append(
            "a 1-element all-reduce that some ranks never join means uneven numbers of batches, an early exit from the loop, or a barrier that not all ranks reach"
        )
    if item.seq is not None and item.seq <= 2:
        hints.append(
            "it is one of the first collectives: the set-up (interfaces, firewall, NCCL version, a rank that did not start) is as likely as the program"
        )
    if item.op in ("BROADCAST", "_BROADCAST_OOP") and (item.numel or 0) < 64:
        hints.append(
            "a small broadcast is usually an object or a flag from one rank: is the sender busy with a checkpoint or an evaluation?"
        )
    return hints


def _remedy(item: _Stuck, suspects: Sequence[int]) -> str:
    who = (
        f"Read the log of {say_ranks(suspects)} first: its first error, or where it stands (py-spy dump). "
        if suspects
        else "Collect the logs and flight-recorder dumps of all ranks. "
    )
    if item.numel == 1:
        who += "Check the length of the dataset on each rank; use drop_last, or DDP's join()."
    return who


def _named_by_torch(facts: Sequence[LogFact]) -> list[Claim]:
    """Reports that name who is absent: desync debug, monitoredBarrier."""
    claims = []
    for name in ("absent", "barrier_absent", "barrier_peer"):
        found = [
            f for f in facts if f.kind is FactKind.WATCHDOG and f.name == name and f.get("who") is not None
        ]
        if not found:
            continue
        ranks = tuple(
            sorted(
                {
                    int(part)
                    for f in found
                    for part in f.word("who").replace(",", " ").split()
                    if part.isdigit()
                }
            )
        )
        seq = next((_int(f, "seq") for f in found if f.get("seq") is not None), None)
        joined = [f for f in facts if f.kind is FactKind.WATCHDOG and f.name == "desync"]
        waiting = {
            int(part) for f in joined for part in f.word("who").replace(",", " ").split() if part.isdigit()
        }
        what = f"collective #{seq}" if name == "absent" else "the monitored barrier"
        claims.append(
            claim(
                Order.WAITING,
                Kind.MISSING_CALL,
                Severity.P0,
                f"{say_ranks(ranks)} never joined {what}"
                + (f", which {say_ranks(waiting)} wait in" if waiting else ""),
                found,
                evidence=[f.text[:200] for f in (*found[:3], *joined[:2])],
                culprits=Culprits(ranks=ranks),
                victims=waiting,
                confidence=0.85,
                ambiguous=len(ranks) > 1,
                no=["the ranks that print are victims"],
                remedy=f"Read the log of {say_ranks(ranks)} for its first error; take its stack (py-spy dump).",
                or_kinds=(Kind.HANG_HOST, Kind.DEAD_RANK),
                steps=(STACKS,),
                where=Where(seq=seq),
            )
        )
    return claims[:1]
