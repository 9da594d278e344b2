"""Training logs: does the iteration time change, when, and what part of it; who is a straggler, where that shows.

The current value of a line counts, never its running average. Times of work that contains a collective (a whole
iteration, the backward of data-parallel training) are equal on all ranks, for everybody waits for the slowest: they
name nobody, and the one that waits least is the suspect.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, plural
from megatrace.analysis.reductions import median
from megatrace.model.finding import Culprits, Impact, Kind, NextStep, Severity, Status
from megatrace.model.series import FactKind, LogFact
from megatrace.units import format_number

CHANGE = 0.03
"""Share of the iteration time from which a lasting change is one: steps repeat to about one percent."""
NOISE = 4.0
"""Times the scatter within both parts that their difference must have."""
MOST = 0.5
"""Share of a step from which one part of it explains a slow step."""
LEAST_POINTS = 4
"""Steps from which a change can be told: of fewer the scatter is not known."""
CLOSE = 0.02
"""Spread among ranks, below which no rank stands out: what clocks and noise do."""
F8 = NDArray[np.float64]
_WAITS = ("wait", "allreduce", "all-reduce", "all_reduce", "comm", "nccl", "sync", "barrier", "reduce")
_SYNCED = ("backward", "bwd", "step", "iteration", "iter", "total", "epoch", "elapsed")


@dataclass(frozen=True, slots=True)
class _Change:
    """From ``before`` to ``after`` (seconds), first seen at step ``onset``, complete at ``whole``."""

    before: float
    after: float
    last_usual: int
    onset: int
    whole: int
    at: int
    lasting: bool


def judge_training(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about speed."""
    groups: dict[tuple[str, int | None, int | None], list[LogFact]] = defaultdict(list)
    for fact in facts:
        if fact.kind is FactKind.ITERATION and _pace_of(fact) is not None:
            groups[fact.source, fact.rank, fact.local_rank].append(fact)
    claims = []
    for same in list(groups.values())[:64]:
        claims += _pace(same, len(groups))
    timers = [f for f in facts if f.kind is FactKind.TIMERS]
    claims += _parts([f for f in timers if f.name == "line"]) + _ranges(
        [f for f in timers if f.name == "min_max"]
    )
    claims += _ranks([f for f in facts if f.kind is FactKind.RANK_TIME and f.number("ms") is not None])
    return claims + _named([f for f in facts if f.name == "straggler_line"])


def _pace_of(fact: LogFact) -> float | None:
    """Seconds of an iteration; of a sample or token where only throughput is printed."""
    time = fact.number("time")
    if time is not None:
        return time
    rate = fact.number("rate") or fact.number("tps")
    return 1 / rate if rate and rate > 0 else None


def _timed(points: Sequence[LogFact]) -> bool:
    return points[0].number("time") is not None


def _pace(points: Sequence[LogFact], speakers: int) -> list[Claim]:
    times = np.array([_pace_of(point) or math.nan for point in points], np.float64)
    steps = [int(point.number("step") or 0) for point in points]
    good = np.isfinite(times) & (times > 0)
    points = [point for point, fine in zip(points, good, strict=True) if fine]
    steps = [step for step, fine in zip(steps, good, strict=True) if fine]
    times = times[good]
    if len(times) < LEAST_POINTS:
        return []
    found = _change(times, steps)
    if found is None or found.after < found.before:
        usual = float(np.median(times))
        return [
            claim(
                Order.NOTE,
                Kind.SLOW_UNIFORM,
                Severity.INFO,
                f"{f'iterations take {_s(usual)}' if _timed(points) else f'throughput is {format_number(1 / usual, 4)} a second'} throughout ({len(times)} seen, steps {steps[0]} to {steps[-1]}): no lasting change",
                points,
                evidence=_loss(points),
            )
        ]
    return [_slow(points, found, speakers)]


def _change(times: F8, steps: Sequence[int]) -> _Change | None:
    """The split into two levels that fits best, None where it is within the noise."""
    count = len(times)
    best, cut = math.inf, 0
    logs = np.log(times)
    for at in range(2, count - 1 if count > LEAST_POINTS + 1 else count):
        left, right = logs[:at], logs[at:]
        cost = float(np.abs(left - np.median(left)).sum() + np.abs(right - np.median(right)).sum())
        if cost < best - 1e-12:
            best, cut = cost, at
    left, right = times[:cut], times[cut:]
    before = float(np.median(left))
    rising = len(right) <= 3 and bool(np.all(np.diff(right) > 0))  # the end of a ramp, not its middle
    after = float(right[-1]) if rising else float(np.median(right))
    scatter = float(median(np.abs(np.concatenate([left - np.median(left), right - np.median(right)])), 0))
    jump = after - before
    if len(right) <= 3 and jump > 0 and bool(np.any(left > before + 0.5 * jump)):
        return None  # such a step was seen before and passed: a checkpoint or an evaluation, now at the end
    if abs(jump) < max(CHANGE * before, NOISE * scatter):
        return None
    first = next(i for i in range(count) if i >= cut or times[i] > before + 0.1 * jump > before)
    first = max(first, 1) if first >= cut - 2 else cut
    end = float(np.median(times[-max(1, min(3, count // 4)) :]))
    return _Change(before, after, steps[first - 1], steps[first], steps[cut], cut, end > before + 0.33 * jump)


def _slow(points: Sequence[LogFact], found: _Change, speakers: int) -> Claim:
    factor = found.after / found.before
    onset = (
        f"between iterations {found.last_usual} and {found.onset}"
        if found.onset == found.whole
        else f"at iteration {found.onset}–{found.whole}"
    )
    if _timed(points):
        change = f"{_s(found.before)} → {_s(found.after)} per iteration ({_percent(factor)})"
    else:
        change = f"throughput {format_number(1 / found.before, 4)} → {format_number(1 / found.after, 4)} a second ({_percent(1 / factor)})"
    evidence = [f"onset {onset}: {change}"]
    evidence += _throughput(points, found.at)
    lasting = (
        "lasting to the end of the log, in mid-run without a restart"
        if found.lasting
        else "it has passed at the end of the log"
    )
    evidence.append(lasting)
    before, after = points[: found.at], points[found.at :]
    data = _share_of_data(after)
    evidence += _loss(points)
    status = Status.ONGOING if found.lasting else Status.RECOVERED
    impact = Impact(slowdown=round(factor, 4))
    if data is not None and data >= MOST:
        compute = [_rest(part) for part in (before, after)]
        evidence += [f"data loading takes {100 * data:.1f} % of the time from there on: input-bound (prefetch buffer or page cache ran dry, storage slow)",
                     f"the compute part (time without data) is {_s(compute[0])} before and {_s(compute[1])} after" + (": unchanged" if compute[1] < 1.3 * compute[0] else ""),
                     "current values are used; the averages in parentheses lag behind"]  # fmt: skip
        return claim(
            Order.SPEED, Kind.SLOW_STORAGE, Severity.P1, f"iterations slow down {onset}: {change}; data loading is {100 * data:.1f} % of it: input-bound", points, evidence=evidence,
            or_kinds=(Kind.SLOW_HOST,), no=["not the GPU: the compute part did not change"], confidence=0.85, impact=impact, status=status,
            remedy="Look at the input pipeline: storage throughput, page cache, number of data loader workers, decoding on the host.",
            steps=(NextStep("cat /proc/pressure/io; nfsiostat 1 3; iostat -x 1 3", "whether storage is what the loaders wait for"),),
        )  # fmt: skip
    who = _speaker(points[0], speakers)
    return claim(
        Order.SPEED, Kind.SLOW_UNIFORM, Severity.P1, f"iterations slow down {onset}: {change}; which rank or node cannot be told from this log", points, evidence=[*evidence, who],
        or_kinds=(Kind.SLOW_COMPUTE, Kind.SLOW_NETWORK, Kind.SLOW_HOST), confidence=0.8, impact=impact, status=status,
        no=["no rank or node can be named: all ranks of a synchronous job show the same iteration time"],
        remedy="Test every node alone (a matrix multiplication on each GPU, an all-reduce inside each node and between pairs), or halve the set of nodes until the slow half is one node.",
        steps=(NextStep("megatrace run -- YOUR_COMMAND", "records the calls of all ranks: they show who is waited for"), NextStep("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK,ECC", "on every node: a GPU that throttles")),
    )  # fmt: skip


def _speaker(point: LogFact, speakers: int) -> str:
    if speakers > 1:
        return f"{speakers} ranks print these lines, and all wait for the slowest"
    if point.local_rank is not None:
        return f"only rank {point.local_rank} of a node prints these lines ([default{point.local_rank}])"
    if point.rank is not None:
        return f"only rank {point.rank} prints these lines"
    return "one rank prints these lines"


def _throughput(points: Sequence[LogFact], cut: int) -> list[str]:
    words = []
    for key, name in (
        ("tflops", "TFLOP/s"),
        ("samples per second", "samples/s"),
        ("rate", "samples/s"),
        ("tps", "tokens/s"),
    ):
        values = [(i, number) for i, p in enumerate(points) if (number := p.number(key)) is not None]
        left, right = [v for i, v in values if i < cut], [v for i, v in values if i >= cut]
        if left and right:
            a = float(np.median(left))
            b = right[-1] if len(right) <= 3 else float(np.median(right))
            words.append(
                f"{name} {format_number(a, 4)} → {format_number(b, 4)} ({_percent(b / a)})" if a else ""
            )
    return [word for word in words if word]


def _percent(factor: float) -> str:
    if factor >= 3:
        return f"× {factor:.0f}"
    return f"{'+' if factor >= 1 else '−'}{abs(factor - 1) * 100:.1f} %"


def _s(seconds: float) -> str:
    return (
        f"{seconds * 1000:.0f} ms"
        if seconds < 0.1
        else f"{format_number(seconds, 4 if seconds >= 100 else 2)} s"
    )


def _share_of_data(points: Sequence[LogFact]) -> float | None:
    pairs = [(p.number("data"), p.number("time")) for p in points]
    shares = [data / time for data, time in pairs if data is not None and time]
    return float(np.median(shares)) if shares else None


def _rest(points: Sequence[LogFact]) -> float:
    return float(np.median([(p.number("time") or 0) - (p.number("data") or 0) for p in points]))


def _loss(points: Sequence[LogFact]) -> list[str]:
    """Whether the loss goes on as before: a slow job is no wrong job."""
    losses = [number for p in points if (number := p.number("lm loss") or p.number("loss")) is not None]
    if len(losses) < 2 or not all(math.isfinite(loss) for loss in losses):
        return []
    first, last = losses[0], losses[-1]
    if abs(last - first) <= 0.2 * max(abs(first), 1e-9):
        return [
            f"the loss is normal ({format_number(first, 4)} → {format_number(last, 4)}): a matter of speed, not of numbers"
        ]
    return []


# ---- parts of a step


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


# ---- ranks


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
