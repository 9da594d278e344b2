"""Parts of a training step and ranks beside each other: which part takes the time, which rank takes longer.

Times of work that contains a collective are equal on all ranks, for everybody waits for the slowest: of them the
shortest waiter is the suspect, if any. Whether a job became slower is told in ``evidence_training``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, plural
from megatrace.analysis.evidence_training import MOST
from megatrace.model.finding import Culprits, Impact, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.units import format_number

CLOSE = 0.02
"""Spread among ranks, below which no rank stands out: what clocks and noise do."""
_WAITS = ("wait", "allreduce", "all-reduce", "all_reduce", "comm", "nccl", "sync", "barrier", "reduce")
_SYNCED = ("backward", "bwd", "step", "iteration", "iter", "total", "epoch", "elapsed")


def judge_parts(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about timers and times of ranks."""
    timers = [f for f in facts if f.kind is FactKind.TIMERS]
    claims = _parts([f for f in timers if f.name == "line"]) + _ranges(
        [f for f in timers if f.name == "min_max"]
    )
    claims += _ranks([f for f in facts if f.kind is FactKind.RANK_TIME and f.number("ms") is not None])
    return claims + _named([f for f in facts if f.name == "straggler_line"])


def _parts(lines: Sequence[LogFact]) -> list[Claim]:
    """Timers of one line: the part that takes most of the step."""
    if not lines:
        return []
    sums: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for name, ms in line.fields:
            if isinstance(ms, int | float) and math.isfinite(ms) and ms >= 0:
                sums[name].append(float(ms))
    usual = {name: float(np.median(values)) for name, values in sums.items()}
    own = {name: ms for name, ms in usual.items() if not _nested(name, usual)}
    total = sum(own.values())
    if total <= 0:
        return []
    name, most = max(own.items(), key=lambda item: item[1])
    share = most / total
    said = ", ".join(
        f"{key} {format_number(ms / 1000)} s" if ms >= 1000 else f"{key} {format_number(ms)} ms"
        for key, ms in sorted(own.items(), key=lambda item: -item[1])
    )
    head = f"{name} = {format_number(most / 1000)} s of about {format_number(total / 1000)} s ({100 * share:.0f} %)"
    alone = f"{plural(len(lines), 'line')} of one rank: nothing can be said of stragglers"
    kind, meaning, remedy = _part_words(name)
    if share < MOST or kind is None:
        return [
            claim(
                Order.NOTE,
                Kind.SLOW_UNIFORM,
                Severity.INFO,
                f"the largest part of a step is {head}",
                lines,
                evidence=[said, alone],
            )
        ]
    return [
        claim(
            Order.SPEED,
            kind,
            Severity.P2,
            f"{head}: {meaning}",
            lines,
            evidence=[said, alone],
            confidence=0.7,
            or_kinds=(Kind.SLOW_NETWORK,) if kind is not Kind.SLOW_NETWORK else (),
            no=_not_parts(name, own, total),
            remedy=remedy,
            steps=(
                NextStep("nvidia-smi topo -m; nvidia-smi nvlink -s", "the type of link between the GPUs"),
                NextStep("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET …", "which network NCCL uses"),
            ),
        )
    ]


def _nested(name: str, usual: dict[str, float]) -> bool:
    """Whether a timer is part of another one that is there, so that it must not count twice."""
    if any(name != other and name.startswith((f"{other}-", f"{other}_", f"{other} ")) for other in usual):
        return True
    return name in ("forward-backward", "iteration-time", "interval-time") and any(
        key.startswith("forward") and key != name for key in usual
    )


def _part_words(name: str) -> tuple[Kind | None, str, str]:
    low = name.lower()
    if "optim" in low or low in ("step", "optimizer_step"):
        return (
            Kind.SLOW_UNIFORM,
            "the slow part is the optimizer with its exchange of parameters, bound by communication or by host memory",
            "Look at the communication of the optimizer step (ZeRO stage, offload, bucket sizes) and at the type of link between the GPUs (NVLink, PCIe, network).",
        )
    if any(word in low for word in ("reduce", "gather", "comm", "sync", "send", "recv")):
        return (
            Kind.SLOW_NETWORK,
            "the slow part is communication",
            "Check which network NCCL uses and its bandwidth (nccl-tests); overlap it with compute.",
        )
    if "batch" in low or "data" in low or "load" in low:
        return (
            Kind.SLOW_STORAGE,
            "the slow part is the input pipeline",
            "More data loader workers, faster storage, a local cache.",
        )
    if "checkpoint" in low or "save" in low:
        return (
            Kind.SLOW_STORAGE,
            "the slow part is writing checkpoints",
            "Write asynchronously, or to faster storage.",
        )
    return None, "", ""


def _not_parts(name: str, own: dict[str, float], total: float) -> list[str]:
    words = []
    compute = sum(
        ms for key, ms in own.items() if key.lower().startswith(("forward", "backward", "fwd", "bwd"))
    )
    data = sum(ms for key, ms in own.items() if "data" in key.lower() or "batch" in key.lower())
    if compute and not name.lower().startswith(("forward", "backward")):
        words.append(f"not forward or backward: {100 * compute / total:.0f} % of the step")
    if data and "data" not in name.lower():
        words.append(f"not the input of data: {100 * data / total:.1f} % of the step")
    return words


def _ranges(rows: Sequence[LogFact]) -> list[Claim]:
    """Megatron's "(min, max) time across ranks": a wide range says that ranks differ, not which."""
    claims = []
    worst: dict[str, tuple[float, float]] = {}
    for row in rows:
        low, high = row.number("low") or 0.0, row.number("high") or 0.0
        name = row.word("timer")
        if high >= 1 and high - low > worst.get(name, (0.0, 0.0))[1] - worst.get(name, (0.0, 0.0))[0]:
            worst[name] = (low, high)
    wide = {
        name: pair
        for name, pair in worst.items()
        if pair[1] > 1.3 * max(pair[0], 1e-9)
        and name in ("forward-compute", "backward-compute", "batch-generator")
    }
    if wide:
        name, (low, high) = max(wide.items(), key=lambda item: item[1][1] - item[1][0])
        claims.append(
            claim(
                Order.SPEED,
                Kind.SLOW_COMPUTE,
                Severity.P3,
                f"ranks differ in {name}: {low:.0f} to {high:.0f} ms; which rank cannot be told from (min, max)",
                rows,
                weak=True,
                or_kinds=(Kind.IMBALANCE,),
                evidence=[f"{key}: {a:.0f} to {b:.0f} ms" for key, (a, b) in wide.items()],
                confidence=0.4,
                either=("one slow rank", "stages of the pipeline with different work (first and last stage)"),
                steps=(
                    NextStep(
                        "--timing-log-option all --timing-log-level 2", "Megatron prints each rank's own time"
                    ),
                ),
            )
        )
    return claims


def _ranks(rows: Sequence[LogFact]) -> list[Claim]:
    groups: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.rank is not None:
            groups[row.word("timer")][row.rank].append(row.number("ms") or 0.0)
    claims = []
    for name, table in groups.items():
        if len(table) >= 2:
            claims.append(
                _compared(name, {rank: float(np.median(values)) for rank, values in table.items()}, rows)
            )
    return claims


def _compared(name: str, table: dict[int, float], rows: Sequence[LogFact]) -> Claim:
    values = np.array(list(table.values()))
    usual = float(np.median(values))
    spread = (values.max() - values.min()) / max(usual, 1e-9)
    low = min(table, key=lambda rank: (table[rank], rank))
    high = max(table, key=lambda rank: (table[rank], -rank))
    waits, synced = (
        any(word in name.lower() for word in _WAITS),
        any(word in name.lower() for word in _SYNCED),
    )
    said = ", ".join(f"rank {rank} {format_number(ms, 4)} ms" for rank, ms in sorted(table.items())[:16])
    ask = (
        NextStep(
            "megatrace run -- YOUR_COMMAND", "arrival of every rank at every collective: who is waited for"
        ),
        NextStep(
            "megatrace diagnose DUMPS/",
            "flight-recorder dumps, or NCCL kernel times of a profile: who waits least",
        ),
    )
    if spread < CLOSE and (synced or waits):
        gap = sorted(values)[1] - values.min()
        return claim(
            Order.SPEED, Kind.SLOW_COMPUTE, Severity.P3, f"no straggler can be named from {name}: its times are equal on all ranks ({format_number(float(values.min()), 4)} to {format_number(float(values.max()), 4)} ms)", rows, weak=True,
            evidence=[said, "a synchronous all-reduce inside equalises wall times: everybody waits for the slowest, so equal times do not mean balance",
                      f"if anything, the shortest waits least and is the suspect: rank {low}, by {format_number(gap, 2)} ms; that is within the noise"],
            remedy="Measure each rank's time before the collective (or the NCCL kernels' wait, or flight-recorder dumps), with torch.cuda.synchronize() in front of it.", confidence=0.2, steps=ask,
        )  # fmt: skip
    if spread < CLOSE:
        return claim(
            Order.NOTE,
            Kind.SLOW_COMPUTE,
            Severity.INFO,
            f"no rank stands out in {name}: {format_number(float(values.min()), 4)} to {format_number(float(values.max()), 4)} ms",
            rows,
            evidence=[said],
        )
    odd = low if waits else high
    others = [ms for rank, ms in table.items() if rank != odd]
    usual = max(float(np.median(others)), 1e-9)
    alone = abs(table[odd] - float(np.median(others))) > 3 * max(float(np.ptp(others)), CLOSE * usual)
    if not alone:
        return claim(
            Order.SPEED,
            Kind.IMBALANCE,
            Severity.P3,
            f"ranks differ in {name} ({format_number(float(values.min()), 4)} to {format_number(float(values.max()), 4)} ms), and none stands out",
            rows,
            weak=True,
            evidence=[said],
            confidence=0.3,
            steps=ask,
        )
    why = (
        "waits least, so the others wait for it"
        if waits
        else f"takes {format_number(table[odd] / usual)}× as long as the others"
    )
    return claim(
        Order.SPEED, Kind.SLOW_COMPUTE, Severity.P1, f"rank {odd} is the straggler in {name}: {format_number(table[odd], 4)} ms, others {format_number(float(np.median(others)), 4)} ms; it {why}", rows,
        evidence=[said], culprits=Culprits(ranks=(odd,)), victims=set(table) - {odd}, confidence=0.75, or_kinds=(Kind.SLOW_HOST, Kind.IMBALANCE),
        impact=Impact(slowdown=None if waits else round(table[odd] / usual, 3)),
        remedy=f"Look at the GPU and the host of rank {odd}: clocks, temperature, other load; move it to another node as a test.",
        steps=(NextStep("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK,ECC", "on its node: throttling and memory errors"),),
    )  # fmt: skip


def _named(lines: Sequence[LogFact]) -> list[Claim]:
    """Lines of straggler detectors, as they are."""
    if not lines:
        return []
    said = list(dict.fromkeys(line.text[:200] for line in lines))
    return [
        claim(
            Order.SPEED,
            Kind.SLOW_COMPUTE,
            Severity.P3,
            f"a straggler detector of the job reports: {listed(said[:2])}",
            lines,
            weak=True,
            evidence=said[:6],
            confidence=0.4,
            remedy="Look at the ranks that it names; compare with a recording of the calls.",
            steps=(NextStep("megatrace run -- YOUR_COMMAND", "records the calls: who is waited for"),),
        )
    ]
