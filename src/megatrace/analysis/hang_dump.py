"""Whether a job stood when its states were dumped.

A dump carries no time of its own, so silence cannot be measured. Most dumps are written because a watchdog
timed out, and then the job stands; but they can be had from a running job as well. Five things tell: the
files were written too soon after the newest record; one rank had completed what another had not even
called, so the dumps are of different moments of a job that moved; a device had not begun a call that none
of its peers had begun either, so it was computing; one call that all ranks are in, where starts are not
recorded and the files are not as old as a watchdog makes them; or chains of waiting end at most of the
ranks and in many places, as they do in a running job and not behind one fault.

Does not look at calls of the past.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.hang_stall import Stall, Standing, silence_needed
from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.events import NO_SEQ
from megatrace.model.frontier import STARTED
from megatrace.model.states import Dumped
from megatrace.units import format_duration

SPREAD = 0.5
"""Share of all ranks at the ends of chains from which on a job runs: behind a fault nearly all others wait.
Only where there are several ends: a call in flight holds all its members."""
FLYING = 2
"""Calls that all members made and none completed, from which on a job runs: one stands in a hang, and whoever
is not in it waits for it."""
LATE = 2
"""Timeouts after the newest call within which a watchdog has written its dump: it looks once a timeout at
most, and waits a minute for the others."""
SEVERAL = 3
"""Ends from which on they are several: two ranks may fail at once."""


def judge_dump(graph: WaitsFor, roots: Sequence[Root], dumped: Dumped) -> Stall:
    """Whether the job stood; the reason says on what that rests."""
    frontier = graph.frontier
    end = frontier.end
    ahead = _inconsistent(graph)
    if ahead is not None:
        return Stall(Standing.MOVES, end, 0, ahead)
    quiet = 0 if dumped.by is None else max(dumped.by - end, 0)
    if dumped.by is not None and quiet < silence_needed(frontier):
        reason = (
            f"the dumps were written within {format_duration(quiet)} of the newest call, "
            "sooner than any watchdog does"
        )
        return Stall(Standing.UNKNOWN, end, quiet, reason)
    known = [root for root in roots if root.kind is not RootKind.UNRECORDED]
    idle = [root for root in known if root.kind is RootKind.DEVICE and not _begun(graph, root)]
    if idle:
        reason = f"{len(idle)} devices had not begun a call that nobody had begun: they were computing"
        return Stall(Standing.UNKNOWN, end, 0, reason)
    flying = [root for root in known if root.kind is RootKind.GROUP]
    if len(flying) >= FLYING:
        reason = f"{len(flying)} calls of different groups were under way, as in a running job"
        return Stall(Standing.UNKNOWN, end, 0, reason)
    if flying and len(flying[0].ranks) == len(frontier) and not _overdue(dumped, quiet):
        reason = (
            f"one call was under way on all {len(frontier)} ranks, as at many moments of a running job, "
            "and nothing tells how long it had been"
        )
        return Stall(Standing.UNKNOWN, end, quiet, reason)
    ends = {rank for root in known for rank in root.ranks}
    if len(_places(graph, known)) >= SEVERAL and len(ends) >= SPREAD * len(frontier):
        reason = f"{len(ends)} of {len(frontier)} ranks wait for nobody, as in a running job"
        return Stall(Standing.UNKNOWN, end, 0, reason)
    timeout = "" if dumped.timeout is None else f" ({format_duration(dumped.timeout)} here)"
    reason = f"such dumps are written when a call has not completed within its timeout{timeout}"
    return Stall(Standing.STANDS, end, 0, reason)


def _overdue(dumped: Dumped, quiet: int) -> bool:
    """Whether the files were written when a watchdog would have: a timeout after the newest call, or soon
    after, or whether a log says that one fired. A copy has the time of the copying, mostly much later, and
    then nothing is known."""
    if dumped.fired:
        return True
    return dumped.timeout is not None and dumped.timeout <= quiet <= LATE * dumped.timeout


def _begun(graph: WaitsFor, root: Root) -> bool:
    """Whether anybody started one of the calls that a device has not: peers of a stuck device do at once."""
    for instance in root.instances:
        rows = graph.rows_of(instance)
        if bool((graph.calls.state[rows] >= STARTED).any()) or len(graph.finished(instance)):
            return True
    return False


def _places(graph: WaitsFor, roots: Sequence[Root]) -> set[int]:
    """Calls at which chains end: those that stand, and for each rank that is missing the first that wants
    it."""
    found: set[int] = set()
    for root in roots:
        found |= set(root.instances[:1])
        for rank in root.ranks if not root.instances else ():
            found |= {int(instance) for instance in graph.directly(rank)[:1]}
    return found


def _inconsistent(graph: WaitsFor) -> str | None:
    """A collective that one member has completed and another has not called: both cannot be of one
    moment."""
    frontier = graph.frontier
    if not frontier.has_end or not len(frontier.entry_comm):
        return None
    size = frontier.members.size
    ended = np.full(size, NO_SEQ, np.int64)
    np.maximum.at(ended, frontier.entry_comm, frontier.entry_ended)
    behind = np.flatnonzero(frontier.entry_last < ended[frontier.entry_comm])
    if not len(behind):
        return None
    late = int(behind[0])
    comm = int(frontier.entry_comm[late])
    first = int(np.flatnonzero((frontier.entry_comm == comm) & (frontier.entry_ended == ended[comm]))[0])
    ranks = frontier.ranks[frontier.entry_rank[[first, late]]]
    return (
        f"rank {ranks[0]} had completed a call that rank {ranks[1]} had not made when it was dumped: "
        "the dumps are of different moments of a job that moved"
    )
