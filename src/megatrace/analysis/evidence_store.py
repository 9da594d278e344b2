"""The heartbeat monitor and the rendezvous store of torch.distributed: a thread that stands, a server that is gone.

The store's server is the process of rank 0: who cannot reach it is a victim of what happened there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from megatrace.analysis.evidence_claim import Claim, Order, claim, plural
from megatrace.analysis.evidence_torch import STACKS, rank_of
from megatrace.model.finding import Culprits, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.units import format_count, say_ranks


def judge_store(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about monitors and stores."""
    stuck = any(f.kind is FactKind.WATCHDOG and f.name in ("timeout", "position") for f in facts)
    return _monitors(facts, stuck) + _stores(facts)


def _monitors(facts: Sequence[LogFact], stuck: bool) -> list[Claim]:
    """The heartbeat monitor: a watchdog thread that does not move, or a signal from another rank."""
    claims = []
    found = [f for f in facts if f.kind is FactKind.WATCHDOG and f.name in ("heartbeat", "stuck", "gil")]
    if found:
        ranks = {rank for f in found if (rank := rank_of(f)) is not None}
        gil = any(f.name == "gil" for f in found)
        text = (
            "the host holds Python's GIL"
            if gil
            else "its watchdog thread made no progress: a CUDA or NCCL call does not return, or the GIL is held"
        )
        claims.append(
            claim(
                Order.AFTERMATH if stuck else Order.WAITING,
                Kind.HANG_HOST,
                Severity.P1,
                f"{say_ranks(ranks) if ranks else 'a rank'}: {text}",
                found,
                evidence=list(dict.fromkeys(f.text[:200] for f in found))[:3],
                or_kinds=(Kind.HANG_DEVICE,),
                culprits=Culprits(ranks=tuple(sorted(ranks))) if len(ranks) == 1 else None,
                ambiguous=len(ranks) != 1,
                confidence=0.5,
                remedy="Take stacks (py-spy dump --native) and the kernel log of that node; look for Xid lines.",
                steps=(
                    STACKS,
                    NextStep("dmesg -T | grep -e NVRM -e mlx5", "whether a driver reports an error"),
                ),
            )
        )
    signalled = [
        f for f in facts if f.name in ("observed", "first_signal") and f.get("from_rank") is not None
    ]
    if signalled:
        first = int(signalled[0].number("from_rank") or 0)
        claims.append(
            claim(
                Order.NOTE,
                Kind.HANG_GROUP,
                Severity.P3,
                f"rank {first} was the first whose watchdog fired; it waits like the others",
                signalled,
                evidence=[signalled[0].text[:200]],
            )
        )
    return claims


def _stores(facts: Sequence[LogFact]) -> list[Claim]:
    """Rendezvous and the key-value store: somebody did not come, or the server is gone."""
    found = [f for f in facts if f.kind is FactKind.STORE]
    by: dict[str, list[LogFact]] = defaultdict(list)
    for fact in found:
        by[fact.name].append(fact)
    claims = []
    if "waiting" in by:
        first = by["waiting"][0]
        joined, expected = int(first.number("joined") or 0), int(first.number("expected") or 0)
        claims.append(claim(Order.WAITING, Kind.DEAD_RANK, Severity.P1, f"only {joined} of {format_count(expected)} processes came to the rendezvous within {int(first.number('seconds') or 0)} s", by["waiting"],
                            evidence=[first.text[:200], "which of them is missing is not in this message"], remedy="Look at the logs of the nodes that printed nothing; check MASTER_ADDR, MASTER_PORT, the node count and the firewall.", ambiguous=True, confidence=0.6, or_kinds=(Kind.CONFIGURATION,)))  # fmt: skip
    if "address_in_use" in by:
        claims.append(claim(Order.SOFTWARE, Kind.CONFIGURATION, Severity.P1, "the rendezvous port is in use: another job, or a left-over process, has it", by["address_in_use"], evidence=[by["address_in_use"][0].text[:200]], remedy="Choose another --master-port (or --rdzv-endpoint with port 0), or end the left-over process."))  # fmt: skip
    lost = [
        f for name in ("store_timeout", "store_lost", "store_connect", "rendezvous") for f in by.get(name, [])
    ]
    if lost:
        claims.append(
            claim(
                Order.AFTERMATH,
                Kind.DEAD_RANK,
                Severity.P3,
                f"the store of torch.distributed could not be reached or did not answer ({plural(len(lost), 'line')}): its server is the process of rank 0 (or the agent of node 0)",
                lost,
                evidence=list(dict.fromkeys(f.text[:200] for f in lost))[:3],
                weak=True,
                remedy="Look at the first error of rank 0 and of its node: whoever prints this is a victim.",
                either=(
                    "rank 0 or its node died first",
                    "the network between this node and MASTER_ADDR is blocked or wrong",
                ),
                steps=(NextStep("megatrace diagnose LOGS_OF_ALL_RANKS/", "the first error over all ranks"),),
            )
        )
    return claims
