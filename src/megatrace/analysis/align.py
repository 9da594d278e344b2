"""Clock offset and drift of every node, worked out from the calls alone, with a bound on the error.

Nodes' clocks differ by 0.1 to tens of milliseconds and drift by parts per million; a rank on a node whose
clock is behind looks late in every call. Ranks of one node share a clock, so the unknowns are one line
(offset, drift) per node. Three kinds of evidence, best first:

* A collective ends nearly at once on all members (``align_meetings``). How nearly is bounded by the time that
  the last member to come spent in it, a duration and so independent of clocks: nobody can be through before
  it has come.
* The same call gives hard bounds: nobody ends before everybody has begun.
* Sends and Recvs in both directions bound two nodes that share no collective (``align_messages``).

From the first node on, clocks are joined along the communicators with the smallest error. With host times
only a call counts where the hosts are proven to wait for its result. A node that cannot be joined, or whose
evidence contradicts itself, is listed as unaligned and left as it is: never guessed.

Where nobody says which node a rank runs on, all ranks are taken to share one clock, as in a job on one
machine, unless the calls leave no other explanation; then every rank is a clock of its own.

Does not touch durations on one node, and does not know what is late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.align_fit import Lines, fit, lower_edge, nanmedian
from megatrace.analysis.align_meetings import Meeting, collect
from megatrace.analysis.align_messages import Messages, collect_messages
from megatrace.analysis.align_proof import RESOLUTION_NS, host_pace, waited_for
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.locate import with_peers
from megatrace.analysis.phases import PhaseTable
from megatrace.model.events import UNSEEN
from megatrace.model.finding import ClockInfo
from megatrace.model.trace import Gap, Observable, Trace

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]

# Without known nodes a rank gets a clock of its own only if it is this far off: below, no verdict could
# change ...
DEMANDED_NS = 1e6
# ... and this many times the bound on the error.
DEMANDED = 3.0
# Offset, as a share of an iteration, from which an iteration paired by time may be the neighbour of the right
# one: half of one is where pairing turns over, less half of that for what ranks are apart in truth.
UNPAIRED = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """Clocks c of a job: a node's, or a rank's where nodes are not known. ns.

    nodes       name of each clock's node ("rank N" where it is a rank's own)
    clock_of    int64 [ranks up to the highest]: the clock of a rank
    t0          time at which ``offset_ns`` holds
    offset_ns   float64 [C]: what a clock shows beyond the reference clock at ``t0``
    drift_ppm   float64 [C]: how much faster it runs
    error_ns    float64 [C]: bound on what is left after alignment; inf where not aligned
    reference   index of the clock that all others are compared with
    """

    nodes: tuple[str, ...]
    clock_of: I8
    t0: int
    offset_ns: F8
    drift_ppm: F8
    error_ns: F8
    reference: int = 0

    @property
    def unaligned_nodes(self) -> tuple[str, ...]:
        """Nodes whose clocks could not be compared with the reference's."""
        return tuple(name for name, error in zip(self.nodes, self.error_ns, strict=True) if np.isinf(error))

    def error_between(self, a: I8, b: I8) -> F8:
        """Bound in ns on the error of a time difference between ranks a and b (broadcast); 0 on one clock."""
        first, second = self.clock_of[a], self.clock_of[b]
        return np.asarray(np.where(first == second, 0.0, self.error_ns[first] + self.error_ns[second]))

    def clock_info(self, t0: int) -> ClockInfo:
        """What reports say. Nothing where all ranks share one clock."""
        if len(self.nodes) < 2:
            return ClockInfo(t0=t0)
        known = self.error_ns[np.isfinite(self.error_ns)]
        error = float(known.max()) / 1e3 if len(known) > 1 else None
        return ClockInfo(t0, self.nodes[self.reference], error, self.unaligned_nodes)


def one_clock(ranks: int) -> Alignment:
    """All ranks on one clock."""
    zero = np.zeros(1)
    return Alignment(("",), np.zeros(ranks, np.int64), 0, zero, zero, zero)


def estimate(resolved: Resolved, phases: PhaseTable | None = None) -> Alignment:
    """The alignment of a job. ``phases`` name the partners of Sends and Recvs where the source does not."""
    events = resolved.trace.events
    ranks = max(resolved.world, int(events.rank.max(initial=-1)) + 1)
    nodes, clock_of, known = _clocks(resolved.trace, ranks)
    if len(nodes) < 2 or not len(events):
        return one_clock(ranks)
    found = _Joining(resolved, phases, nodes, clock_of).run()
    if known:
        return found
    joined = np.isfinite(found.error_ns)
    off = np.abs(found.offset_ns[joined])
    demanded = off > np.maximum(DEMANDED_NS, DEMANDED * found.error_ns[joined])
    return found if demanded.any() else one_clock(ranks)


def apply(trace: Trace, alignment: Alignment) -> Trace:
    """The trace with call times and gaps on the reference clock; unaligned nodes keep their own."""
    if not alignment.offset_ns.any() and not alignment.drift_ppm.any():
        return trace
    events = trace.events
    ranks, bounds = events.offsets()
    columns: dict[str, NDArray[np.int64]] = {}
    for name in ("enqueue", "start", "end"):
        column = getattr(events, name)
        if column is None:
            continue
        moved = column.copy()
        for rank, (low, high) in zip(ranks, pairwise(bounds), strict=True):
            part = moved[low:high]
            part[...] = np.where(part == UNSEEN, UNSEEN, part - _ahead(alignment, int(rank), part))
        columns[name] = moved
    gaps = tuple(_moved_gap(gap, alignment) for gap in trace.coverage.gaps)
    return replace(trace, events=events.with_columns(**columns), coverage=replace(trace.coverage, gaps=gaps))


def _moved_gap(gap: Gap, alignment: Alignment) -> Gap:
    start, end = (int(t - _ahead(alignment, gap.rank, np.asarray([t]))[0]) for t in (gap.start, gap.end))
    return replace(gap, start=start, end=end)


def _ahead(alignment: Alignment, rank: int, times: I8) -> I8:
    """int64 ns: how far a rank's clock is ahead of the reference at these times of its own."""
    clock = alignment.clock_of[rank]
    offset, drift = alignment.offset_ns[clock], alignment.drift_ppm[clock] * 1e-6
    if drift == 0.0:
        return np.full(times.shape, round(float(offset)), np.int64)
    return np.asarray(np.rint(offset + drift * (times - alignment.t0)), dtype=np.int64)


def _clocks(trace: Trace, ranks: int) -> tuple[tuple[str, ...], I8, bool]:
    """(names, clock of each rank, whether nodes are known)."""
    places = {place.rank: place.node for place in trace.places}
    names = [places[rank] if rank in places else trace.place_of(rank).node for rank in range(ranks)]
    known = any(name is not None for name in names)
    index: dict[str, int] = {}
    # A rank without a node among ranks with one may run anywhere.
    clock = [index.setdefault(name or f"rank {rank}", len(index)) for rank, name in enumerate(names)]
    return tuple(index), np.asarray(clock, np.int64), known


class _Joining:
    """Joins clocks to the reference one by one, those with the smallest error first."""

    def __init__(
        self, resolved: Resolved, phases: PhaseTable | None, nodes: tuple[str, ...], clock_of: I8
    ) -> None:
        events = resolved.trace.events
        self.resolved, self.phases, self.nodes, self.clock_of = resolved, phases, nodes, clock_of
        self.t0 = int(events.enqueue.min())
        seen = resolved.trace.coverage.has(Observable.START, Observable.END)
        self.completed = seen and events.start is not None and events.end is not None
        self.evidence: list[Meeting | Messages] = []
        self.usual: list[float] = []
        self.beside: list[list[int]] = [[] for _ in nodes]
        self.offset, self.slope = np.zeros(len(nodes)), np.zeros(len(nodes))
        self.error = np.full(len(nodes), np.inf)
        self.by_number = self.completed and bool(resolved.channels.counted.any())
        self.queue: list[tuple[float, int]] = []

    def run(self) -> Alignment:
        """Meetings first; messages only for what they leave."""
        meetings = collect(self.resolved, self.clock_of, self.t0, self.completed)
        ranks = len(self.clock_of)
        pace = host_pace(meetings, len(self.nodes))
        useful = [m if self.completed else waited_for(m, ranks, pace) for m in meetings]
        self._add([m for m in useful if m is not None])
        present = np.unique(self.clock_of[self.resolved.trace.events.ranks()])
        reference = next((int(c) for c in present if self.beside[c]), int(present[0]))
        self.error[reference] = 0.0
        self._reached(reference)
        self._join()
        if np.isinf(self.error[present]).any():
            trace = with_peers(self.resolved, self.phases)
            self._add(collect_messages(trace, self.resolved, self.clock_of, self.t0, self.completed))
            for clock in np.flatnonzero(np.isfinite(self.error)):
                self._reached(int(clock))
            self._join()
        self._cross_check()
        self._forget_ambiguous(reference)
        return Alignment(
            self.nodes, self.clock_of, self.t0, self.offset, self.slope * 1e6, self.error, reference
        )

    def _add(self, evidence: list[Meeting] | list[Messages]) -> None:
        for item in evidence:
            for clock in item.clocks:
                self.beside[clock].append(len(self.evidence))
            self.evidence.append(item)
            self.usual.append(item.usual_error)

    def _reached(self, clock: int) -> None:
        for index in self.beside[clock]:
            heappush(self.queue, (float(self.error[clock]) + self.usual[index], index))

    def _join(self) -> None:
        while self.queue:
            _, index = heappop(self.queue)
            item = self.evidence[index]
            new = np.isinf(self.error[item.clocks])
            if not new.any() or new.all():
                continue
            hub = int(np.argmin(self.error[item.clocks]))
            lines, error = self._compare(item, hub, np.flatnonzero(new))
            error = error + self.error[item.clocks[hub]]
            good = np.isfinite(error)
            clocks = item.clocks[new][good]
            self.offset[clocks], self.slope[clocks] = lines.offset[good], lines.slope[good]
            self.error[clocks] = error[good]
            for clock in clocks:
                self._reached(int(clock))

    def _cross_check(self) -> None:
        """Where evidence that was not needed says otherwise, the bound grows until it covers both."""
        stated = self.error.copy()
        for item in self.evidence:
            known = np.flatnonzero(np.isfinite(stated[item.clocks]))
            if not isinstance(item, Meeting) or len(known) < 2:
                continue
            clocks = item.clocks[known]
            end = item.end[:, known]
            end = end - (self.offset[clocks] + self.slope[clocks] * end)
            hub = int(np.argmin(stated[clocks]))
            rows = _quick(item, end[:, hub])
            if not rows.any():
                continue
            apart = np.abs(nanmedian(end[rows] - end[rows, hub : hub + 1]))
            allowed = stated[clocks] + stated[clocks[hub]] + item.usual_error * item.unequal[known]
            worse = apart > allowed
            self.error[clocks[worse]] = np.maximum(self.error[clocks[worse]], (apart + allowed)[worse])

    def _forget_ambiguous(self, reference: int) -> None:
        """Iterations without numbers are paired by time: clocks further apart than a part of one may be
        paired wrong.
        """
        it = self.resolved.iterations
        if it is None or it.absolute or self.by_number:
            return
        length = (
            float(np.nanmedian(np.diff(it.times(self.resolved.trace.events), axis=1)))
            if it.count > 1
            else np.nan
        )
        unsure = np.abs(self.offset - self.offset[reference]) > UNPAIRED * length
        self.error[unsure] = np.inf
        self.offset[unsure] = self.slope[unsure] = 0.0

    def _compare(self, item: Meeting | Messages, hub: int, columns: I8) -> tuple[Lines, F8]:
        clock = int(item.clocks[hub])
        if isinstance(item, Meeting):
            begin, end = (self._aligned(clock, times[:, hub]) for times in (item.begin, item.end))
            return _by_meeting(item, hub, begin, end, columns)
        sent, received = self._aligned(clock, item.sent[hub]), self._aligned(clock, item.received[hub])
        return _by_messages(item, sent, received, 1 - hub)

    def _aligned(self, clock: int, times: F8) -> F8:
        return np.asarray(times - (self.offset[clock] + self.slope[clock] * times))


def _by_meeting(item: Meeting, hub: int, hub_begin: F8, hub_end: F8, columns: I8) -> tuple[Lines, F8]:
    """(lines of the columns' clocks, bound on their error against the hub) from the hub's aligned times."""
    begin, end = item.begin[:, columns], item.end[:, columns]
    quick = _quick(item, hub_end)
    if not quick.any():
        nothing = np.full(len(columns), np.nan)
        return Lines(nothing, nothing, nothing), np.full(len(columns), np.inf)
    lines = fit(hub_end[quick], end[quick] - hub_end[quick, None])
    # Truth minus line lies between −below and above: nobody ends before everybody has begun.
    above = lower_edge(end - lines.at(hub_end) - hub_begin[:, None])
    below = lower_edge(hub_end[:, None] - (begin - lines.at(hub_end)))
    tolerance = lines.scatter + RESOLUTION_NS
    shift = np.where(above < 0, above, np.where(below < 0, -below, 0.0))
    contradicts = above + below < -tolerance
    lines = Lines(lines.offset + shift, lines.slope, lines.scatter)
    together = float(np.median(item.cost[quick])) if item.settled == np.inf else item.settled
    together = together * np.maximum(item.unequal[columns], item.unequal[hub])
    if (
        item.settled == np.inf
    ):  # hosts' next calls are ends by inference only: they may contradict, but not sharpen
        together = np.fmin(together, np.maximum(above - shift, below + shift))
    error = together + np.abs(shift) + tolerance
    return lines, np.where(contradicts | np.isnan(error), np.inf, error)


def _quick(item: Meeting, hub_end: F8) -> NDArray[np.bool_]:
    return np.asarray(~np.isnan(hub_end) & (item.cost <= 2 * np.quantile(item.cost, 0.25)), dtype=np.bool_)


def _by_messages(item: Messages, hub_sent: F8, hub_received: F8, column: int) -> tuple[Lines, F8]:
    """The same from Sends and Recvs between two clocks: the line in the middle between the bounds."""
    upper_at, upper = hub_sent, item.received[column] - hub_sent
    lower_at, lower = hub_received, item.sent[column] - hub_received
    middle_at, middle = _middles(upper_at, upper, lower_at, lower)
    lines = fit(middle_at, middle[:, None])
    above = float(lower_edge((upper - lines.at(upper_at)[:, 0])[:, None])[0])
    below = float(lower_edge((lines.at(lower_at)[:, 0] - lower)[:, None])[0])
    shift = (above - below) / 2
    width = (above + below) / 2
    lines = Lines(lines.offset + shift, lines.slope, lines.scatter)
    error = width + RESOLUTION_NS if width >= 0 else np.inf
    return lines, np.asarray([error])


def _middles(upper_at: F8, upper: F8, lower_at: F8, lower: F8) -> tuple[F8, F8]:
    """(time, middle between the tightest bounds) of stretches of the run in which there are both."""
    edges = np.linspace(min(upper_at.min(), lower_at.min()), max(upper_at.max(), lower_at.max()) + 1, 9)
    at, middle = [], []
    for low, high in pairwise(edges):
        high_bound = upper[(upper_at >= low) & (upper_at < high)]
        low_bound = lower[(lower_at >= low) & (lower_at < high)]
        if len(high_bound) and len(low_bound):
            at.append((low + high) / 2)
            middle.append((high_bound.min() + low_bound.max()) / 2)
    if not at:
        return np.asarray([edges[0]]), np.asarray([(upper.min() + lower.max()) / 2])
    return np.asarray(at), np.asarray(middle)
