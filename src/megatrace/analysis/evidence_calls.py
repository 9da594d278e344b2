"""Calls in logs of NCCL_DEBUG=INFO: processes whose call of the same number differs, or that made fewer.

Communicator pointers differ from process to process and are compared with nobody's: processes with one communicator
of a size are taken to share it. With two of them there is no vote.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from megatrace.analysis.evidence_claim import ALL_LOGS, Claim, Order, claim, listed, on_node
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity, Where
from megatrace.model.series import LogFact
from megatrace.units import format_count

DATATYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
)


def judge_calls(calls: Sequence[LogFact]) -> list[Claim]:
    """Processes whose call of the same number on a communicator of the same size differs."""
    by_comm: dict[tuple[str | None, float | None, str], dict[int, LogFact]] = defaultdict(dict)
    for fact in calls:
        by_comm[fact.node, fact.number("pid"), fact.word("comm")][int(fact.number("op_count") or 0)] = fact
    sizes: dict[int, list[dict[int, LogFact]]] = defaultdict(list)
    for (node, pid, _), table in by_comm.items():
        size = int(next(iter(table.values())).number("nranks") or 0)
        alone = sum(
            1
            for (n, p, _), other in by_comm.items()
            if (n, p) == (node, pid) and int(next(iter(other.values())).number("nranks") or 0) == size
        )
        if alone == 1 and size > 1:
            sizes[size].append(table)
    claims = []
    for size, tables in sizes.items():
        wrong = _first_difference(tables)
        if wrong:
            claims.append(_different(size, wrong))
    if not claims and calls:
        claims += _behind(sizes)
    return claims


def _first_difference(tables: Sequence[dict[int, LogFact]]) -> list[LogFact]:
    """The calls of the first number at which two processes differ, one a process."""
    numbers = sorted({number for table in tables for number in table})
    for number in numbers:
        here = [table[number] for table in tables if number in table]
        symmetric = [f for f in here if f.name not in ("Send", "Recv")]
        if len({(f.name, f.number("count"), f.number("datatype")) for f in symmetric}) > 1:
            return symmetric
    return []


def _different(size: int, calls: Sequence[LogFact]) -> Claim:
    votes = Counter((f.name, f.number("count"), f.number("datatype")) for f in calls)
    ranked = votes.most_common()
    odd: list[LogFact] = []
    if len(ranked) > 1 and ranked[0][1] > ranked[1][1]:
        odd = [f for f in calls if (f.name, f.number("count"), f.number("datatype")) != ranked[0][0]]
    elif len(calls) == 2 and {f.name for f in calls} >= {"AllReduce"} and len({f.name for f in calls}) == 2:
        odd = [f for f in calls if f.name != "AllReduce"]
    first = calls[0]
    said = [f"{_gpu(f)} calls {_call(f)}" for f in calls]
    number = f"opCount {first.word('op_hex')} (hexadecimal, = {int(first.number('op_count') or 0)})"
    evidence = [
        f"at {number}: {'; '.join(said)}",
        f"only {len(calls)} of {size} ranks are in the file"
        if len(calls) < size
        else f"all {size} ranks are in the file",
    ]
    evidence.append(
        f"communicator pointers differ from process to process by nature; that these are one communicator is an assumption (each has nranks={size}, one such communicator a process)"
    )
    if odd and len(calls) == 2:
        evidence.append(
            f"with two ranks there is no vote: {_gpu(odd[0])} is suspected because AllReduce of gradients is what training repeats"
        )
    who = listed(_gpu(f) for f in odd)
    return claim(
        Order.DISAGREE, Kind.MISMATCH, Severity.P0, f"MISMATCH at opCount {first.word('op_hex')}: {listed(said)}" + (f"; suspect {who}" if odd else ""), calls, evidence=evidence,
        culprits=Culprits(devices=tuple(Device(f.node, f"GPU {f.word('gpu')}") for f in odd)), ambiguous=len(calls) == 2 or not odd, confidence=0.5 if len(calls) == 2 else 0.8,
        no=["not the network and no hardware: the programs call different collectives"], where=Where(op=first.name, seq=int(first.number("op_count") or 0)),
        remedy="Find the code path that makes the other call on that rank (evaluation, logging, checkpoint, a branch on data); every rank must make the same calls in the same order.",
        steps=(NextStep("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL NCCL_DEBUG_FILE=nccl.%h.%p.log …", "the calls of all ranks"),),
    )  # fmt: skip


def _call(fact: LogFact) -> str:
    kind = int(fact.number("datatype") or 0)
    name = DATATYPES[kind] if 0 <= kind < len(DATATYPES) else "unknown type"
    return f"{fact.name} of {format_count(int(fact.number('count') or 0))} × datatype {kind} ({name})"


def _gpu(fact: LogFact) -> str:
    return f"GPU {fact.word('gpu')}{on_node(fact.node)}"


def _behind(sizes: dict[int, list[dict[int, LogFact]]]) -> list[Claim]:
    """Processes whose last call on a communicator has a smaller number than that of the others."""
    claims = []
    for size, tables in sizes.items():
        ends = [table[max(table)] for table in tables if table]
        last = max((int(f.number("op_count") or 0) for f in ends), default=0)
        late = [f for f in ends if int(f.number("op_count") or 0) < last]
        if late and len(late) < len(ends):
            text = f"{listed(_gpu(f) for f in late)} made no call after opCount {late[0].word('op_hex')}, others went on to {last:x} (communicators of {size} ranks)"
            claims.append(
                claim(
                    Order.WAITING,
                    Kind.HANG_GROUP,
                    Severity.P3,
                    text,
                    late,
                    weak=True,
                    evidence=[
                        f"last call of {_gpu(f)}: {_call(f)}, opCount {f.word('op_hex')}" for f in ends[:6]
                    ],
                    either=(
                        "those that are behind stopped",
                        "the log ends before the job does: a snapshot of a moving job looks alike",
                    ),
                    steps=(ALL_LOGS,),
                )
            )
    return claims
