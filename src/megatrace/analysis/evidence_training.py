"""Training logs: does the iteration time change, when, and is it the input that takes longer.

The current value of a line counts, never its running average. The time of an iteration is equal on all ranks, for
everybody waits for the slowest: it names nobody. Timers and times of single ranks are judged in ``evidence_parts``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.evidence_claim import Claim, Order, claim
from megatrace.analysis.reductions import median
from megatrace.model.finding import Impact, Kind, NextStep, Severity, Status
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
F8 = NDArray[np.float64]


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
    return claims


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
