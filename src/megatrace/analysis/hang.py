"""Does the job stand, and who did it: hang verdicts from frontiers.

One pure function for a trace on a laptop and for what node agents report of a live job. It reads the
waits-for graph, finds where the chains end, checks that the job stands at all, and puts into words who
stopped, where in the job, who waits, and why it is believed. With completion times it names a rank, a
device, a link or the network; without them it names the smallest set of ranks that the log can separate,
and says so.

Does not look at stacks, kernel logs or counters: ``evidence`` joins those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from megatrace.analysis.hang_ahead import with_those_ahead
from megatrace.analysis.hang_claim import Scene
from megatrace.analysis.hang_dump import judge_dump
from megatrace.analysis.hang_finding import Reporter
from megatrace.analysis.hang_node import aftermath
from megatrace.analysis.hang_pace import History, Pace
from megatrace.analysis.hang_roots import Root, RootKind, find_roots
from megatrace.analysis.hang_stall import Stall, Standing, judge, silence_needed
from megatrace.analysis.hang_tied import Meetings, not_tied, with_those_tied
from megatrace.analysis.hang_words import Words
from megatrace.analysis.waits_for import WaitsFor, waits_for
from megatrace.model.events import NO_PEER, Events, Op
from megatrace.model.finding import Culprits, Finding, Kind, NextStep, Severity, Where, Window
from megatrace.model.frontier import Frontier
from megatrace.model.layout import ParallelLayout
from megatrace.model.states import Dumped
from megatrace.model.trace import Coverage, RankPlace
from megatrace.units import format_duration, say_ranks

SIMULTANEOUS = 1_000_000
"""ns. Stops closer than that cannot be ordered: hosts make a call every 0.1 to 1 ms."""
INCOMPLETE = 0.8
"""Confidence at most while logs of ranks that others wait for are missing."""
SOMEBODY = 0.5
"""Confidence where the job stands and the recording does not tell whom to look at."""
DOUBTFUL = 0.3
"""Confidence where a hang and a cut recording look alike: of two explanations the cut is the more common."""


@dataclass(frozen=True, slots=True)
class HangResult:
    """What was found. ``reason`` is a whole sentence in every case; ``undecidable`` where it might be a
    hang and the input does not tell; ``suspects`` global ranks then; ``next_steps`` what would decide
    it."""

    findings: tuple[Finding, ...] = ()
    reason: str = ""
    undecidable: bool = False
    suspects: tuple[int, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    possible: Finding | None = None
    """Where it is undecidable, what a verdict that would outrank "cannot tell" says beside its own: a note of
    who may have stopped, or that the job stands, of whom the recording does not say."""
    graph: WaitsFor | None = None
    """Who waits for whom, None where there were no calls."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What the caller knows besides positions.

    until            ns: nothing more had been recorded by then (``--now``, a snapshot's own time); None
                     unknown
    earlier          a frontier of the same job taken before
    ended_normally   the iteration at the end is complete; False: cut in the middle of one; None unknown
    dead             global rank → time of death (None unknown), from kernel logs, schedulers or RAS
    steady           ns: when the first iteration was over, of which start-up is a part; None unknown
    clock_error      ns by which clocks of nodes may differ
    names            name of each communicator
    dumped           when states were dumped, which have no times of completion: nothing then tells who
                     stopped first; None for recordings
    """

    until: int | None = None
    earlier: Frontier | None = None
    ended_normally: bool | None = None
    dead: Mapping[int, int | None] = field(default_factory=dict)
    steady: int | None = None
    clock_error: int = 0
    names: tuple[str | None, ...] = ()
    dumped: Dumped | None = None


def _nowhere(*_: int) -> Where:
    return Where()


def find_hangs(
    frontier: Frontier,
    layout: ParallelLayout | None = None,
    *,
    where: Callable[[int, int], Where] = _nowhere,
    place_of: Callable[[int], RankPlace] = RankPlace,
    coverage: Coverage | None = None,
    history: Events | None = None,
    hints: Hints | None = None,
) -> HangResult:
    """The hang, or the reason why there is none.

    ``where(rank, call)`` places the ``call``-th recorded call (from 0) of a global rank in the job.
    ``history``: the trace's events, from which a silent rank's usual pace is read; without it its longest
    pause has to do.
    """
    if not len(frontier):
        return HangResult(reason="no calls were recorded, so nothing can be said about a hang")
    graph = waits_for(frontier)
    hints, coverage = hints or Hints(), coverage or Coverage()
    result = _find(graph, layout, where, place_of, coverage, history, hints)
    return replace(result, graph=graph)


def _find(
    graph: WaitsFor,
    layout: ParallelLayout | None,
    where: Callable[[int, int], Where],
    place_of: Callable[[int], RankPlace],
    coverage: Coverage,
    history: Events | None,
    hints: Hints,
) -> HangResult:
    frontier = graph.frontier
    past = None if history is None else History(history)
    roots = with_those_ahead(graph, find_roots(graph, None if past is None else past.agreed))
    until = hints.until if hints.until is not None else frontier.snapshot_at
    if not roots:
        return _nobody_waits(graph, until, hints)
    stall = _stall(graph, roots, until, hints, past, place_of)
    words = Words(graph, layout, place_of, hints.names)
    met = Meetings(frontier, layout)
    if hints.dumped is None:
        first, later = _first(roots, aftermath(graph, met, roots, place_of, past))
    else:
        first, later = _together(roots)
    first = with_those_tied(graph, met, first, later, past)
    later = [root for root in later if root not in first]
    first = not_tied(graph, met, first)
    stands = stall.standing is Standing.STANDS
    lone = _merely_ended(graph, first, words, coverage, hints)
    if lone is not None:
        return lone
    if all(root.kind is RootKind.UNRECORDED for root in first):
        return _unrecorded(first[0], stall) if stands else _not_standing(graph, first, stall, hints)
    if layout is None and _partners_unknown(graph, first):
        return _not_told(graph, first, stall) if stands else _not_standing(graph, first, stall, hints)
    reporter = Reporter(Scene(graph, words, layout, place_of), where, past, stall, hints.dead)
    if not stands and not reporter.proven(first):
        result = _not_standing(graph, first, stall, hints)
        return (
            replace(result, possible=_possible(reporter, first, later, result)) if result.suspects else result
        )
    finding = reporter.finding([root for root in first if root.kind is not RootKind.UNRECORDED], later)
    if (graph.hold_rank < 0).any():
        # Somebody waits for a rank of which nothing was recorded: it may hold up those who look guilty.
        finding = replace(finding, confidence=min(finding.confidence, INCOMPLETE))
    return HangResult((finding,), finding.summary)


def _stall(
    graph: WaitsFor,
    roots: list[Root],
    until: int | None,
    hints: Hints,
    past: History | None,
    place_of: Callable[[int], RankPlace],
) -> Stall:
    if hints.dumped is not None and until is None:
        return judge_dump(graph, roots, hints.dumped)
    return judge(
        graph,
        roots,
        until=until,
        earlier=hints.earlier,
        pace=_no_pace if past is None else past.pace,
        clock_error=hints.clock_error,
        pause=None if past is None or hints.steady is None else past.longest_pause(hints.steady),
        node_of=lambda rank: place_of(rank).node,
    )


def _together(roots: list[Root]) -> tuple[list[Root], list[Root]]:
    """All roots at once, for states without times; calls that do not fit explain the standstill of others."""
    wrong = [root for root in roots if root.kind is RootKind.MISMATCH]
    if wrong:
        return wrong[:1], [root for root in roots if root.kind is not RootKind.MISMATCH]
    known = [root for root in roots if root.kind is not RootKind.UNRECORDED]
    return known or roots, []


def _no_pace(_: int) -> Pace | None:
    return None


def _first(roots: list[Root], died: set[int]) -> tuple[list[Root], list[Root]]:
    """The roots that stopped first, and those that stopped later.

    Everybody comes to stand after the first stop, and what dies afterwards was only waiting: it is no
    cause of what happened before. ``died``: rank indices of nodes that died of the standstill.
    """
    known = [root for root in roots if root.kind is not RootKind.UNRECORDED and not died & set(root.ranks)]
    if not known:
        return roots, []
    rest = [root for root in roots if root.kind is not RootKind.UNRECORDED and died & set(root.ranks)]
    wrong = [root for root in known if root.kind is RootKind.MISMATCH]
    if wrong:
        # Waiting explains why a rank stops, never why it calls something else than its peers.
        return wrong[:1], [root for root in known if root.kind is not RootKind.MISMATCH] + rest
    start = known[0].stopped
    first = [root for root in known if root.stopped - start <= SIMULTANEOUS]
    return first, [root for root in known if root.stopped - start > SIMULTANEOUS] + rest


def _merely_ended(
    graph: WaitsFor, roots: list[Root], words: Words, coverage: Coverage, hints: Hints
) -> HangResult | None:
    """A log without completions that lacks one rank's very last call, while everybody else's ends with
    that call."""
    frontier = graph.frontier
    if frontier.has_end or len(roots) != 1 or roots[0].kind is not RootKind.BEHIND or len(roots[0].ranks) > 1:
        return None
    rank = roots[0].ranks[0]
    held = graph.directly(rank)
    waiting = np.flatnonzero(graph.waiting)
    at_end = graph.step[waiting] == frontier.calls[waiting] - 1
    if len(held) != 1 or not at_end.all() or hints.ended_normally is False or hints.until is not None:
        return None
    end = int(frontier.end - frontier.last_call[rank])
    torn = int(frontier.ranks[rank]) in coverage.torn_tails
    # All stopped within one usual pause: whoever was a call short may have been cut, or the last record was
    # lost.
    if not torn and end > int(np.median(frontier.longest_gap)):
        return None
    text = (
        f"{words.rank(rank)} lacks only {words.instance(int(held[0]))}, the last call of all others, "
        f"and its log ends {format_duration(end)} before theirs: the end of a log, not a hang"
    )
    return HangResult(reason=text)


def _nobody_waits(graph: WaitsFor, until: int | None, hints: Hints) -> HangResult:
    """All calls have their partners. Silence in the middle of an iteration then still means that something
    stands."""
    frontier = graph.frontier
    reason = "no rank waits for a call that another rank has not made"
    if until is None:
        # Hosts without an open call compute: such a job moves. Without completions hosts may stand at a wait.
        moving = frontier.has_end and not graph.waiting.any()
        if moving or hints.ended_normally is not False:
            return HangResult(reason=reason)
        text = (
            f"{reason}, but the recording ends in the middle of an iteration: cannot tell whether the job "
            "stands there or the recording was cut"
        )
        return HangResult(reason=text, undecidable=True, next_steps=_LOOK_AGAIN)
    quiet = until - frontier.end
    stood = hints.until is not None or hints.ended_normally is False
    if not stood or quiet < silence_needed(frontier):
        return HangResult(reason=reason)
    text = (
        f"the job stands: nobody made a call for {format_duration(quiet)}; but {reason}, so the recording "
        "does not show at whom"
    )
    step = NextStep("py-spy dump --pid PID", "on every node: the stacks tell at which call the job stands")
    everybody = tuple(frontier.ranks.tolist())
    possible = _somebody(text, everybody, frontier.end)
    return HangResult(reason=text, undecidable=True, next_steps=(step,), possible=possible)


def _somebody(text: str, ranks: tuple[int, ...], since: int) -> Finding:
    """That the job stands since a time (ns), because of one of these global ranks."""
    culprits = Culprits(ranks)
    return Finding(
        Kind.HANG_GROUP, Severity.P0, text, confidence=SOMEBODY, ambiguous=True, culprits=culprits,
        window=Window(since, None),
    )  # fmt: skip


_LOOK_AGAIN = (
    NextStep("megatrace diagnose PATH --now TIME", "if nothing was written until TIME, the job stands"),
    NextStep("py-spy dump --pid PID", "on the nodes, twice: a stack that stays the same shows who stands"),
)


def _not_standing(graph: WaitsFor, roots: list[Root], stall: Stall, hints: Hints) -> HangResult:
    ranks = tuple(
        int(graph.frontier.ranks[i]) for root in roots for i in root.ranks if root.kind is not _UNKNOWN
    )
    if stall.standing is Standing.MOVES:
        return HangResult(reason=f"no hang: {stall.reason}")
    if hints.until is None and hints.ended_normally and not graph.frontier.has_end:
        return HangResult(reason="no hang: the calls of all ranks end after an iteration, as a job does")
    if hints.dumped is not None:
        text = f"cannot tell whether the job stood when it was dumped: {stall.reason}"
        return HangResult(reason=text, undecidable=True, next_steps=_LOOK_AGAIN)
    text = (
        f"{say_ranks(ranks)} may have stopped, but {stall.reason}: a hang and a cut recording look alike here"
    )
    return HangResult(reason=text, undecidable=True, suspects=ranks[:16], next_steps=_LOOK_AGAIN)


def _possible(reporter: Reporter, first: list[Root], later: list[Root], result: HangResult) -> Finding:
    """The finding if it is a hang, as a note: nothing shows that the job stands, so nobody is its victim."""
    named = [root for root in first if root.kind is not RootKind.UNRECORDED]
    finding = reporter.finding(named, later)
    return replace(
        finding, severity=Severity.P3, summary=result.reason, confidence=DOUBTFUL, ambiguous=True, victims=(),
        evidence=(), exonerated=(), chain=(), remedy="",
    )  # fmt: skip


def _partners_unknown(graph: WaitsFor, roots: list[Root]) -> bool:
    """Whether the ends stand at messages of which the log does not say with whom: the partner may hold them
    up."""
    frontier = graph.frontier
    ranks = [rank for root in roots for rank in root.ranks if root.kind is RootKind.BEHIND]
    op, peer = frontier.tail_op[ranks, -1], frontier.tail_peer[ranks, -1]
    return bool((((op == Op.SEND) | (op == Op.RECV)) & (peer == NO_PEER)).any())


def _not_told(graph: WaitsFor, roots: list[Root], stall: Stall) -> HangResult:
    ranks = tuple(sorted(int(graph.frontier.ranks[i]) for root in roots for i in root.ranks))
    text = (
        f"the job stands ({stall.reason}), and {say_ranks(ranks)} stopped first, at messages of which the "
        "log does not say with whom: the culprit may be the partner"
    )
    step = NextStep(
        "megatrace diagnose PATH… --config job.yaml", "with the parallel layout, partners are known"
    )
    possible = _somebody(text, ranks, stall.since)
    return HangResult(
        reason=text, undecidable=True, suspects=ranks[:16], next_steps=(step,), possible=possible
    )


_UNKNOWN = RootKind.UNRECORDED


def _unrecorded(root: Root, stall: Stall) -> HangResult:
    text = (
        f"the job stands ({stall.reason}), and all wait for {say_ranks(root.ranks)}, whose logs are missing"
    )
    step = NextStep("megatrace diagnose PATH", f"with the logs of {say_ranks(root.ranks)} added")
    possible = _somebody(text, root.ranks, stall.since)
    return HangResult(
        reason=text, undecidable=True, suspects=root.ranks, next_steps=(step,), possible=possible
    )
