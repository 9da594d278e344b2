"""Fingerprints of collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL): two ranks were about to do different things.

Which of the two is wrong does not follow from the message: with two ranks there is no vote. A fingerprint of zeros
comes from a rank that was going down. No hardware is ever the cause. The check raises before the call is made: the
job fails, it does not hang.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed
from megatrace.model.finding import Culprits, Kind, NextStep, Severity, Where
from megatrace.model.series import FactKind, LogFact
from megatrace.units import format_count

_LOGGING = ("_sync_ddp", "log_dict", "sync_dist", "_log", "log", "reduce_metrics", "sync")
MAX_FACTOR = 1024
"""Parts that a dimension may have been split into: a group of ranks."""


def judge_fingerprints(facts: Sequence[LogFact]) -> list[Claim]:
    """One claim for all messages about one collective."""
    found = [f for f in facts if f.kind is FactKind.FINGERPRINT and f.get("rank_a") is not None]
    return [_mismatch(found, facts)] if found else []


def _mismatch(found: Sequence[LogFact], facts: Sequence[LogFact]) -> Claim:
    fact = next((f for f in found if f.get("rank_b") is not None), found[0])
    a, b = int(fact.number("rank_a") or 0), fact.number("rank_b")
    other = None if b is None else int(b)
    zero = _odd(fact)
    summary, evidence = _difference(fact, a, other)
    evidence += _wrapper(fact) + _where_in_code(facts)
    ranks: tuple[int, ...] = ()
    if zero is not None:
        ranks = (a if zero == "a" else other or 0,)
        own = [f for f in facts if f.kind is FactKind.EXCEPTION and f.rank == ranks[0]]
        evidence.append(
            f"the fingerprint of rank {ranks[0]} has no shape (sequence number {fact.word('seq_' + zero)}, {fact.word('op_' + zero)}): unreliable, as from a rank that died or aborted"
        )
        if own:
            evidence.append(f"rank {ranks[0]} has a traceback of its own: its first error is the cause")
        summary = f"suspect rank {ranks[0]}: {summary}"
    elif other is not None:
        evidence.append("either rank may be the odd one: two ranks are no vote")
    remedy = _remedy(fact, ranks)
    return claim(
        Order.DISAGREE, Kind.MISMATCH if zero is None else Kind.SOFTWARE, Severity.P1, summary, found, evidence=evidence,
        culprits=Culprits(ranks=ranks), ambiguous=not ranks, confidence=0.7 if ranks else 0.8, ended=True,
        no=["no hardware and no network fault: the ranks' programs disagree: a software or configuration error"],
        where=Where(op=fact.word("op_a") or None, seq=int(fact.number("seq_a") or 0)), remedy=remedy,
        steps=(NextStep("megatrace diagnose LOGS_OF_ALL_RANKS/", "the same message of the other ranks says which one is alone"),),
    )  # fmt: skip


def _odd(fact: LogFact) -> str | None:
    """Which side is a fingerprint of zeros."""
    sides = [side for side in "ab" if fact.get(f"zeroed_{side}") is not None]
    return sides[0] if len(sides) == 1 else None


def _difference(fact: LogFact, a: int, b: int | None) -> tuple[str, list[str]]:
    seq, op = fact.word("seq_a"), fact.word("op_a")
    first = (
        " (the very first collective)"
        if fact.number("seq_a") == 0 and fact.number("seq_b") in (0, None)
        else ""
    )
    if b is None:
        return (
            f"mismatch of calls: rank {a} is about to run {op} (seq {seq}, shape [{fact.word('shape_a')}]), other ranks something else",
            [
                "the message is cut: the second rank and its call are unknown",
                "an order mismatch is likely: different ranks are in different collectives",
            ],
        )
    if fact.word("op_a") != fact.word("op_b"):
        text = f"order mismatch: rank {a} runs {op} (seq {seq}) where rank {b} runs {fact.word('op_b')} (seq {fact.word('seq_b')})"
        return text, [
            "different operations at the same place: the ranks take different branches, or one made a call more or less"
        ]
    if fact.word("seq_a") != fact.word("seq_b"):
        return (
            f"sequence mismatch: rank {a} is at {op} seq {seq}, rank {b} at seq {fact.word('seq_b')}: one of them made more calls",
            ["one rank made collectives that the other did not make"],
        )
    shapes = _dims(fact.word("shape_a")), _dims(fact.word("shape_b"))
    if shapes[0] != shapes[1]:
        same = f"same seq {seq}, same {op}" + (
            ", same dtype" if fact.word("dtype_a") == fact.word("dtype_b") else ""
        )
        text = f"size mismatch at seq {seq}{first}, not order: rank {a} has {_shape(shapes[0])}, rank {b} {_shape(shapes[1])} in {op}"
        return text, [same, *_shape_words(shapes[0], shapes[1], a, b, op)]
    if fact.word("dtype_a") != fact.word("dtype_b"):
        return (
            f"type mismatch at seq {seq}: rank {a} has {fact.word('dtype_a')}, rank {b} {fact.word('dtype_b')} in {op}",
            ["mixed precision is set up differently on the two ranks"],
        )
    return f"ranks {a} and {b} disagree about {op} seq {seq}", [
        fact.word("aspects") or "the message does not say in what"
    ]


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,18}", text, re.ASCII))


def _shape(dims: tuple[int, ...]) -> str:
    if len(dims) == 1:
        return f"{format_count(dims[0])} elements"
    return f"[{', '.join(map(str, dims))}]"


def _shape_words(a: tuple[int, ...], b: tuple[int, ...], rank_a: int, rank_b: int, op: str) -> list[str]:
    words = []
    if len(a) == len(b) == 1 and "ALLREDUCE" in op:
        words.append(
            "the ranks do not have the same set of gradients: a part of the model is unused on one of them (find_unused_parameters, a branch without this batch's data)"
        )
    if len(a) == len(b) > 1:
        at = [i for i in range(len(a)) if a[i] != b[i]]
        if len(at) == 1:
            i = at[0]
            words.append(f"the shapes differ only in dimension {i}, by {abs(a[i] - b[i]):,}")
            words += _split(a, b, i, rank_a, rank_b)
    return words


def _split(a: tuple[int, ...], b: tuple[int, ...], at: int, rank_a: int, rank_b: int) -> list[str]:
    """Whether one length is a multiple of another dimension and the other is not: padded and unpadded."""
    for padded, raw, who, whose in ((b, a, rank_b, rank_a), (a, b, rank_a, rank_b)):
        for part in padded[:at] + padded[at + 1 :]:
            if (
                part > MAX_FACTOR // 8
                and padded[at] % part == 0
                and raw[at] % part
                and 1 < padded[at] // part <= MAX_FACTOR
            ):
                times = padded[at] // part
                return [
                    f"{part} × {times} = {padded[at]}: rank {who} has the padded length, rank {whose} an unpadded one: a bug of padding or divisibility in how the input is split over {times} ranks"
                ]
    return ["lengths that differ by a little come from padding or an uneven split of the input"]


def _wrapper(fact: LogFact) -> list[str]:
    head = fact.text.partition("Detected mismatch")[0]
    if re.search(r"cuda|gpu", head, re.IGNORECASE):
        return [
            '"cuda" or "GPU" before the message is the label of the program around it, not an error of CUDA or of a GPU'
        ]
    return []


def _where_in_code(facts: Sequence[LogFact]) -> list[str]:
    names = [
        f.word("functions").split()
        for f in facts
        if f.kind is FactKind.EXCEPTION and f.get("functions") is not None
    ]
    seen = list(
        dict.fromkeys(
            name for part in names for name in part if name not in ("wrapper", "<module>", "main", "__call__")
        )
    )
    if not seen:
        return []
    words = [f"the stack goes through {listed(seen[-8:])}"]
    if {"broadcast", "barrier"} <= set(seen):
        words.append(
            "one rank is in a broadcast (object broadcast), others are in a barrier: they left the same code by different ways"
        )
    logging = next((name for name in _LOGGING if name in seen), None)
    if logging is not None:
        words.append(
            f"{logging} reduces logged metrics: keys that are logged on some ranks only make such a mismatch"
        )
    return words


def _remedy(fact: LogFact, ranks: Sequence[int]) -> str:
    if ranks:
        return f"Read the whole traceback of rank {ranks[0]} for its first error; the message of the others only follows."
    if fact.word("op_a") == fact.word("op_b") and fact.word("shape_a") == fact.word("shape_b"):
        return "Compare how the two ranks set up precision (autocast, model.half(), the types of the optimizer's buffers) and where this tensor gets its type."
    if fact.word("op_a") == fact.word("op_b"):
        return "Compare what the two ranks feed in: batch, sequence length, parts of the model that are skipped; pad, or make every rank run every part."
    return "Look at user code that depends on the rank: logging and metric keys, if rank == 0, early returns, evaluation on some ranks only. Every rank must make the same calls in the same order."
