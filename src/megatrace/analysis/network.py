"""Which path of the network is sick, from what was posted to its queues and what came out of them.

A path is (source port, destination port). Three states look alike to whoever waits for data, and differ in
the sender's queue: it is **empty** (the sender has nothing to send: look upstream), it is **full and
draining slowly** (the path is sick), or it is **full and not draining** (the path stands). So a path is
called sick only where its bandwidth *while busy* fell and its outstanding bytes stayed high; bandwidth over
all time falls for every path whenever the job slows down, whatever the cause.

Says nothing of paths whose queues were not recorded, and does not know why a path is sick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatrace.model.finding import (
    ClockInfo,
    Culprits,
    Diagnosis,
    Endpoint,
    Evidence,
    Finding,
    JobSummary,
    Kind,
    Link,
    Pictures,
    Severity,
    Status,
    Verdict,
    Window,
)
from megatrace.model.series import LogFact, Series, SeriesKind
from megatrace.model.trace import Trace
from megatrace.units import NS_PER_S, format_size

ARROW = " → "
"""Between the two ports in the name of a path's series."""

RANK = " rank "
"""Between node and rank in the name of an end of which no device is known: NCCL's proxy told of it."""

WORK_REQUEST = "work_request"
"""Name of the facts that are failed completions of the verbs recorder."""

DRAWN = 16
"""Paths that are drawn: more lines in one picture cannot be told apart."""

SICK = 0.5
"""A path below half of what its peers reach while busy. Two flows that share a port for a while get half
each, so that less is needed for blame; paths of one fabric differ by a few per cent otherwise."""
HIGH = 0.5
"""Outstanding bytes count as high where the queue holds them in more than half of the samples: a queue that
is mostly empty is not what the sender waits for."""
MIN_WINDOW_NS = NS_PER_S // 2
"""A shorter fall is a burst that met another one."""
MIN_SAMPLES = 8
"""Samples of a busy path from which a median means something."""
STALL_NS = 2 * NS_PER_S
"""A queue with requests in it and no completion for so long stands: retransmission gives up after 4.096 µs ×
2^20 × 7 tries at NCCL's default time-out, some 30 s, but a path that works never pauses longer than a few
round trips."""


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """One path: samples at ``times`` (int64 ns): ``outstanding`` bytes, ``bandwidth`` bytes/s while busy (NaN
    where it was idle since the last sample), ``depth`` requests; all float64."""

    name: str
    rank: int | None
    node: str | None
    device: str | None
    times: NDArray[np.int64]
    depth: NDArray[np.float64]
    outstanding: NDArray[np.float64]
    bandwidth: NDArray[np.float64]

    @property
    def busy(self) -> NDArray[np.bool_]:
        """Samples since whose predecessor something was on the way."""
        return ~np.isnan(self.bandwidth)

    @property
    def requests(self) -> str:
        """What its queue holds."""
        return "requests of NCCL's proxy" if RANK in self.name.partition(ARROW)[0] else "work requests"

    @property
    def ends(self) -> tuple[str, str]:
        """(source port, destination port)."""
        source, _, destination = self.name.partition(ARROW)
        return source, destination


@dataclass(frozen=True, slots=True)
class NetworkResult:
    """Findings, and sentences on what the network is not."""

    findings: tuple[Finding, ...] = ()
    exonerated: tuple[str, ...] = ()


def paths_of(series: Sequence[Series]) -> tuple[Path, ...]:
    """The paths for which depth, outstanding bytes and bandwidth were recorded at the same times."""
    by_name: dict[tuple[str, int | None], dict[SeriesKind, Series]] = {}
    for item in series:
        if ARROW in item.name:
            by_name.setdefault((item.name, item.rank), {})[item.kind] = item
    found = []
    for kinds in by_name.values():
        depth = kinds.get(SeriesKind.QUEUE_DEPTH)
        outstanding = kinds.get(SeriesKind.OUTSTANDING_BYTES)
        bandwidth = kinds.get(SeriesKind.BANDWIDTH)
        if depth is None or outstanding is None or bandwidth is None or not len(depth.times):
            continue
        if len(depth.times) == len(outstanding.times) == len(bandwidth.times):
            found.append(
                Path(
                    depth.name,
                    depth.rank,
                    depth.node,
                    depth.device,
                    depth.times,
                    depth.values,
                    outstanding.values,
                    bandwidth.values,
                )
            )
    return tuple(found)


def judge_network(series: Sequence[Series], facts: Sequence[LogFact], until: int | None) -> NetworkResult:
    """What is wrong with the paths. ``until`` ns: how far the recording is known to be complete, None where
    only its last sample tells."""
    failed = [fact for fact in facts if fact.name == WORK_REQUEST]
    paths = paths_of(series)
    if not paths:
        return NetworkResult(tuple(_failure(fact) for fact in failed))
    end = max(int(path.times[-1]) for path in paths) if until is None else until
    stalled = [path for path in paths if _stalled(path, end)]
    broken = {fact.word("path") for fact in failed}
    findings = [_failure(fact) for fact in failed]
    stalled = [path for path in stalled if path.name not in broken]
    findings += [_stall(path, end) for path in stalled]
    findings += [
        finding for path in paths if path not in stalled for finding in [_sick(path, paths)] if finding
    ]
    notes = []
    idle = [path for path in paths if path.depth[-1] == 0 and end - int(path.times[-1]) >= STALL_NS]
    if idle and not findings:
        what = "its last request" if len(idle) == 1 else "their last requests"
        notes.append(
            f"not the network: {len(idle)} of {len(paths)} recorded paths completed {what} and "
            "were given nothing more to send"
        )
    return NetworkResult(tuple(findings), tuple(notes))


def _failure(fact: LogFact) -> Finding:
    path, what = fact.word("path"), fact.word("what")
    source, _, destination = path.partition(ARROW)
    links = (_link(path, fact.rank),) if destination else ()
    return Finding(
        Kind.HANG_NETWORK,
        Severity.P0,
        f"a work request from {source} to {destination or 'a port not known'} failed: {what}; "
        "its queue pair carries nothing more",
        confidence=0.95,
        culprits=Culprits(links=links),
        window=None if fact.time is None else Window(fact.time, None),
        evidence=(
            Evidence(
                f"the completion has status {fact.code} ({what})",
                None if fact.code is None else float(fact.code),
            ),
            Evidence(f"vendor error {fact.word('vendor')}", fact.number("vendor")),
        ),
        remedy=f"look at both ends of {path}: link state, retry counters, whether the other process lives",
        fingerprint=f"{Kind.HANG_NETWORK.value}:{path}",
    )


def _stalled(path: Path, end: int) -> bool:
    """Something is outstanding and has not moved for long, while the path was known to move before or not."""
    return bool(path.depth[-1] > 0) and end - _last_move(path) >= STALL_NS


def _last_move(path: Path) -> int:
    """ns of the last sample at which data came out: outstanding bytes fell or the queue was empty."""
    moved = np.flatnonzero((path.bandwidth > 0) | (path.depth == 0))
    return int(path.times[moved[-1]]) if len(moved) else int(path.times[0])


def _stall(path: Path, end: int) -> Finding:
    source, destination = path.ends
    since = _last_move(path)
    seconds = (end - since) / NS_PER_S
    return Finding(
        Kind.HANG_NETWORK,
        Severity.P0,
        f"the path from {source} to {destination} stands: {path.depth[-1]:.0f} {path.requests} with "
        f"{format_size(int(path.outstanding[-1]))} are posted, and none has completed for {seconds:.1f} s",
        confidence=0.9,
        culprits=_culprits(path),
        window=Window(since, None),
        evidence=(
            Evidence(
                f"{path.depth[-1]:.0f} {path.requests} are posted and not completed", float(path.depth[-1])
            ),
            Evidence(
                f"{format_size(path.outstanding[-1])} outstanding", float(path.outstanding[-1]), "bytes"
            ),
            Evidence(f"the last completion was {seconds:.1f} s before the end", seconds, "s"),
        ),
        remedy=f"look at both ends of {source} → {destination}: link state, retry counters, the switch port",
        fingerprint=f"{Kind.HANG_NETWORK.value}:{path.name}",
    )


def _sick(path: Path, paths: Sequence[Path]) -> Finding | None:
    usual = _usual(path, paths)
    if usual is None:
        return None
    slow = path.busy & (path.bandwidth < SICK * usual)
    window = _longest(path, slow)
    if window is None:
        return None
    first, last = window
    inside = slice(first, last + 1)
    share = float(np.mean(path.outstanding[inside] > 0))
    if share <= HIGH:
        return None
    reached = _busy_mean(path, inside)
    source, destination = path.ends
    recovered = last < len(path.times) - 1 and bool(
        np.nanmedian(path.bandwidth[last + 1 :]) >= SICK * usual if path.busy[last + 1 :].any() else False
    )
    return Finding(
        Kind.SLOW_NETWORK,
        Severity.P1,
        f"the path from {source} to {destination} carries {format_size(int(reached))}/s while busy, "
        f"{usual / reached:.1f}× less than usual, with data waiting in its queue",
        status=Status.RECOVERED if recovered else Status.ONGOING,
        confidence=0.9,
        culprits=_culprits(path),
        window=Window(int(path.times[first]), int(path.times[last]) if recovered else None),
        evidence=(
            Evidence(f"{format_size(int(reached))}/s while busy", reached, "bytes/s"),
            Evidence(f"{format_size(int(usual))}/s is usual while busy", usual, "bytes/s"),
            Evidence(f"its queue held data {share:.0%} of that time", share),
        ),
        remedy=f"look at both ends of {source} → {destination}: link speed, error and congestion counters",
        fingerprint=f"{Kind.SLOW_NETWORK.value}:{path.name}",
    )


def _usual(path: Path, paths: Sequence[Path]) -> float | None:
    """Bytes/s that a path like this reaches while busy: the median of the others, or its own past where it
    has no peers. None where neither was seen."""
    others = [float(np.nanmedian(other.bandwidth)) for other in paths if other is not path and _known(other)]
    if len(others) >= 2:
        return float(np.median(others))
    if not _known(path):
        return None
    half = path.bandwidth[: len(path.bandwidth) // 2]
    own = float(np.nanmedian(half)) if np.count_nonzero(~np.isnan(half)) >= MIN_SAMPLES else None
    return max([*others, own]) if own is not None else None


def _known(path: Path) -> bool:
    return int(np.count_nonzero(path.busy)) >= MIN_SAMPLES


def _longest(path: Path, slow: NDArray[np.bool_]) -> tuple[int, int] | None:
    """(first, last) sample of the longest stretch whose busy samples are all slow; None where it is short."""
    best: tuple[int, int] | None = None
    first: int | None = None
    last = 0
    for at in np.flatnonzero(path.busy):
        if not slow[at]:
            first = None
            continue
        first = int(at) if first is None else first
        last = int(at)
        if best is None or path.times[last] - path.times[first] > path.times[best[1]] - path.times[best[0]]:
            best = first, last
    if best is None or path.times[best[1]] - path.times[best[0]] < MIN_WINDOW_NS:
        return None
    return best if np.count_nonzero(path.busy[best[0] : best[1] + 1]) >= MIN_SAMPLES else None


def _busy_mean(path: Path, inside: slice) -> float:
    return max(float(np.nanmedian(path.bandwidth[inside])), 1.0)


def _culprits(path: Path) -> Culprits:
    return Culprits(links=(_link(path.name, path.rank),))


def _link(name: str, rank: int | None) -> Link:
    source, _, destination = name.partition(ARROW)
    return Link(_end(source, rank), _end(destination, None))


def _end(name: str, rank: int | None) -> Endpoint:
    """ "node7 mlx5_0/1" is a device of a node, "node7 rank 3" a rank whose device is not known;
    "port 0x…" and "LID 7" are addresses of nobody known."""
    at, said, number = name.rpartition(RANK)
    if said and number.isascii() and number.isdigit():
        return Endpoint(rank=int(number), node=at)
    node, blank, device = name.partition(" ")
    if blank and "/" in device:
        return Endpoint(rank=rank, node=node, device=device)
    return Endpoint(rank=rank, device=name)


def shown(series: Sequence[Series], findings: Sequence[Finding]) -> tuple[Series, ...]:
    """The series to draw: those of blamed paths first, then the fullest queues; at most ``DRAWN`` paths."""
    blamed = {found.fingerprint.partition(":")[2] for found in findings}

    def key(path: Path) -> tuple[bool, float]:
        return path.name not in blamed, -float(path.outstanding.max())

    names = [(path.name, path.rank) for path in sorted(paths_of(series), key=key)[:DRAWN]]
    order = {name: at for at, name in enumerate(names)}
    kept = [item for item in series if (item.name, item.rank) in order]
    return tuple(sorted(kept, key=lambda item: order[item.name, item.rank]))


def diagnose_network(trace: Trace, now: int | None) -> Diagnosis:
    """The verdict where work requests were recorded and calls were not."""
    until = trace.snapshot_at if now is None else now
    found = judge_network(trace.series, trace.facts, until)
    paths = paths_of(trace.series)
    times = [int(path.times[0]) for path in paths]
    ranks = sorted({path.rank for path in paths if path.rank is not None})
    if found.findings:
        verdict, headline = found.findings[0].kind.verdict, found.findings[0].summary
    else:
        verdict = Verdict.HEALTHY
        headline = f"nothing wrong found on {len(paths)} recorded paths; the job's calls were not recorded"
        headline = "; ".join([headline, *found.exonerated])
    return Diagnosis(
        verdict=verdict,
        headline=headline,
        job=JobSummary(ranks=len(ranks), ranks_seen=len(ranks), first_time=min(times, default=None)),
        findings=tuple(replace(item, id=f"f{at}") for at, item in enumerate(found.findings, start=1)),
        clock=ClockInfo(t0=min(times, default=0)),
        inputs=trace.inputs,
        coverage=trace.coverage,
        pictures=Pictures(series=shown(trace.series, found.findings)),
    )
