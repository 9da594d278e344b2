"""Who waits for whom: the graph over frontiers from which every hang verdict is read.

A rank *waits* at its first call that cannot have completed. What holds that call up is another rank that
has not made it (absent), has it behind an earlier open call of its own (queued), or has not started it on
its device (unstarted). A rank that waits at nothing, and a call that nobody holds up, are where chains
end: roots.

With completion times, an open call is one that has not ended. Without, a call is surely incomplete where a
partner has not made it, or has it behind a call that is itself surely incomplete; that is followed to its
fixed point.

Program order stands for dependence: a training step issues its calls in the order in which they depend on
each other. A Send and the Recv from the same peer right after it are one coalesced exchange and progress
together.

Does not say whether anything hangs: a moving job has such a graph at every moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.call_table import (
    NEVER,
    Calls,
    Instances,
    Pairs,
    ordered_pairs,
    runs,
    tabulate_calls,
)
from megatrace.model.events import NO_SEQ
from megatrace.model.frontier import ENDED, ENQUEUED, Frontier

I8 = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Hold(IntEnum):
    """Why a rank holds up a call."""

    ABSENT = 0
    """It has not made the call."""
    QUEUED = 1
    """It made the call, behind an earlier call that is open."""
    UNSTARTED = 2
    """It made the call and has nothing open before it, but its device did not start it."""
    UNRECORDED = 3
    """Nothing of it was recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitsFor:
    """The graph. ``step`` int64 [R]: step of the first open call, ``NEVER`` where none.

    waits: rank index ``wait_rank`` waits at instance ``wait_instance`` with its call ``wait_row`` (row of
    ``calls``). holds: rank index ``hold_rank`` (−1 − global rank where unrecorded) holds up
    ``hold_instance`` because ``hold_why``. Both ascending by instance.
    """

    frontier: Frontier
    calls: Calls
    instances: Instances
    pairs: Pairs
    step: I8
    wait_rank: I8
    wait_instance: I8
    wait_row: I8
    hold_instance: I8
    hold_rank: I8
    hold_why: NDArray[np.uint8]

    @property
    def waiting(self) -> Mask:
        """bool [R]: ranks with an open call."""
        return np.asarray(self.step != NEVER)

    def rows_of(self, instance: int) -> I8:
        """Rows of the calls that are one instance, ascending by rank."""
        group, base = int(self.instances.group[instance]), self.pairs.base
        if group < base:
            ranks = self.frontier.entry_rank[self.frontier.entry_comm == group].astype(np.int64)
        else:
            ends = np.sort([self.pairs.src[group - base], self.pairs.dst[group - base]])
            ranks = self.frontier.indices(ends)
        rows = self.calls.of_ranks(ranks[ranks >= 0])
        return np.asarray(rows[self.calls.instance[rows] == instance])

    def holders(self, instance: int) -> list[tuple[int, Hold]]:
        """(rank index, why) of those who hold up one instance."""
        part = slice(*np.searchsorted(self.hold_instance, [instance, instance + 1]))
        return [
            (int(r), Hold(int(w))) for r, w in zip(self.hold_rank[part], self.hold_why[part], strict=True)
        ]

    def waiters(self, instance: int) -> I8:
        """Rank indices that wait at one instance."""
        part = slice(*np.searchsorted(self.wait_instance, [instance, instance + 1]))
        return np.asarray(self.wait_rank[part])

    def held_up(self, ranks: NDArray[Any], instances: NDArray[Any] | None = None) -> Mask:
        """bool [R]: everyone who waits for these ranks or instances, directly or through others,
        themselves excluded."""
        away = self.distance(ranks, instances)
        away[ranks] = 0
        return np.asarray(away > 0)

    def distance(self, ranks: NDArray[Any], instances: NDArray[Any] | None = None) -> I8:
        """int64 [R]: steps from each rank along the chain to the nearest of these, −1 where it does not
        wait for them."""
        hit = np.zeros(len(self.frontier), np.bool_)
        hit[ranks] = True
        away = np.where(hit, 0, -1)
        stuck = np.zeros(len(self.instances.seq), np.bool_)
        if instances is not None:
            stuck[instances] = True
        real = self.hold_rank >= 0
        hold_rank, hold_instance = self.hold_rank[real], self.hold_instance[real]
        count = -1
        while int(np.count_nonzero(hit)) != count:
            count = int(np.count_nonzero(hit))
            stuck[hold_instance[hit[hold_rank]]] = True
            hit[self.wait_rank[stuck[self.wait_instance]]] = True
            away[hit & (away < 0)] = int(away.max()) + 1
        return away

    def finished(self, instance: int) -> I8:
        """Rank indices that completed an instance: as their calls say, or the counters of those whose call is
        no longer recorded."""
        rows = self.rows_of(instance)
        done = self.calls.rank[rows[self.calls.state[rows] == ENDED]]
        group, frontier = int(self.instances.group[instance]), self.frontier
        if group >= self.pairs.base:
            return np.asarray(done, np.int64)
        mine = (frontier.entry_comm == group) & (frontier.entry_ended >= self.instances.seq[instance])
        counted = np.setdiff1d(frontier.entry_rank[mine], self.calls.rank[rows])
        return np.union1d(done, counted).astype(np.int64)

    def directly(self, rank: int) -> I8:
        """Instances that a rank (index) holds up by not having made the call."""
        mine = (self.hold_rank == rank) & (self.hold_why == Hold.ABSENT)
        return np.asarray(self.hold_instance[mine])


def waits_for(frontier: Frontier) -> WaitsFor:
    """The graph of one frontier. Linear in ranks × tail."""
    pairs, pair_key = ordered_pairs(frontier)
    calls, instances = tabulate_calls(frontier, pairs, pair_key)
    if frontier.has_end:
        incomplete = np.flatnonzero((calls.state < ENDED) & (calls.instance >= 0))
        first = _first_rows(calls, incomplete)
        step = np.minimum(_steps_at(calls, first), _before_tail(frontier, calls))
        rows = incomplete[calls.step[incomplete] == step[calls.rank[incomplete]]]
    else:
        step, rows = _fixed_point(frontier, calls, instances, pairs)
    rows = rows[np.argsort(calls.instance[rows], kind="stable")]
    hold_instance, hold_rank, hold_why = _holds(frontier, calls, instances, pairs, step, rows)
    return WaitsFor(
        frontier=frontier,
        calls=calls,
        instances=instances,
        pairs=pairs,
        step=step,
        wait_rank=calls.rank[rows],
        wait_instance=calls.instance[rows],
        wait_row=rows,
        hold_instance=hold_instance,
        hold_rank=hold_rank,
        hold_why=hold_why,
    )


def _first_rows(calls: Calls, rows: I8) -> I8:
    """int64 [n]: of ascending rows of calls, the first one of each rank that has any."""
    return np.asarray(rows[np.diff(calls.rank[rows], prepend=-1) > 0])


def _steps_at(calls: Calls, first: I8) -> I8:
    """int64 [R]: the steps of these rows, one a rank at most; ``NEVER`` for ranks without one."""
    step = np.full(len(calls.bounds) - 1, NEVER, np.int64)
    step[calls.rank[first]] = calls.step[first]
    return step


def _before_tail(frontier: Frontier, calls: Calls) -> I8:
    """A rank whose oldest open collective lies before its tail waits there: at the call before the tail's
    first."""
    step = np.full(len(frontier), NEVER, np.int64)
    pending = _more_open(frontier, calls)
    rank = frontier.entry_rank[pending]
    width = max(frontier.members.size, 1)
    rows = calls.of_ranks(np.unique(rank))
    rows = rows[(calls.group[rows] >= 0) & (calls.group[rows] < frontier.members.size)]
    key = calls.rank[rows] * width + calls.group[rows]
    entry = frontier.entry_rank.astype(np.int64) * width + frontier.entry_comm  # ascending
    slot = np.minimum(np.searchsorted(entry, key), max(len(entry) - 1, 0))
    listed = entry[slot] == key if len(entry) else np.zeros(len(key), np.bool_)
    oldest = np.full(len(entry), NEVER, np.int64)
    oldest[slot[listed][::-1]] = calls.seq[rows][listed][::-1]
    wanted = frontier.entry_ended[pending] + 1
    wanted = np.where(frontier.entry_ended[pending] == NO_SEQ, frontier.entry_first[pending], wanted)
    older = wanted < oldest[pending]
    first = np.maximum(frontier.calls - frontier.tail, 0) - 1
    step[rank[older]] = first[rank[older]]
    return step


def _more_open(frontier: Frontier, calls: Calls) -> I8:
    """int64: entries with calls that have not ended, of those ranks that have more of them than their tails
    show."""
    pending = np.flatnonzero(frontier.entry_ended < frontier.entry_last)
    ended = np.maximum(frontier.entry_ended, frontier.entry_first - 1)[pending]
    number = np.zeros(len(frontier), np.int64)
    np.add.at(number, frontier.entry_rank[pending], frontier.entry_last[pending] - ended)
    shown = np.flatnonzero((calls.state < ENDED) & (calls.group < frontier.members.size))
    shown = shown[calls.group[shown] >= 0]
    more = number > np.bincount(calls.rank[shown], minlength=len(frontier))
    return np.asarray(pending[more[frontier.entry_rank[pending]]])


def _fixed_point(frontier: Frontier, calls: Calls, instances: Instances, pairs: Pairs) -> tuple[I8, I8]:
    """Steps of the first surely incomplete calls, and the rows of these, without completion times.

    A call that is surely incomplete makes all later ones of its group incomplete as well: each group has a
    number from which on they are, that falls until nothing changes. Only ranks of groups where it fell are
    looked at again, and only before the first incomplete call that is known of them.
    """
    least = np.append(instances.made, NEVER)  # −1, no group, finds the last place
    np.add(least, 1, out=least, where=least < NEVER)
    first = calls.bounds[1:].copy()
    ranks = _ahead(frontier, pairs, instances.made)
    while len(ranks):
        rows = _first_rows(calls, _incomplete(calls, least, ranks, first))
        first[calls.rank[rows]] = rows
        ranks = _pulled(frontier, calls, pairs, least, rows)
    step = np.full(len(frontier), NEVER, np.int64)
    waiting = np.flatnonzero(first < calls.bounds[1:])
    step[waiting] = calls.step[first[waiting]]
    rows = _same_step(calls, first[waiting])
    return step, rows[calls.seq[rows] >= least.take(calls.group[rows])]


def _incomplete(calls: Calls, least: I8, ranks: I8, first: I8) -> I8:
    """int64: rows of incomplete calls of these ranks, before the first one that is known of each rank."""
    if 2 * len(ranks) < len(first):
        rows = runs(calls.bounds[ranks], first[ranks])
        return np.asarray(rows[calls.seq[rows] >= least.take(calls.group[rows])])
    rows = np.flatnonzero(calls.seq >= least.take(calls.group))  # the others' calls have not changed
    return np.asarray(rows[rows < first[calls.rank[rows]]])


def _ahead(frontier: Frontier, pairs: Pairs, made: I8) -> I8:
    """int64: ranks (indices) that have made a call that somebody recorded has not."""
    found = np.zeros(len(frontier), np.bool_)
    found[frontier.entry_rank[frontier.entry_last > made[frontier.entry_comm]]] = True
    for ranks, posted in ((pairs.src, pairs.sent), (pairs.dst, pairs.received)):
        index = frontier.indices(ranks[posted - 1 > made[pairs.base :]])
        found[index[index >= 0]] = True
    return np.flatnonzero(found)


def _pulled(frontier: Frontier, calls: Calls, pairs: Pairs, least: I8, first: I8) -> I8:
    """Lowers ``least`` of groups whose calls were made behind one of these incomplete ones (rows, one a
    rank); the ranks of these groups."""
    end = calls.bounds[calls.rank[first] + 1]
    rows = runs(first + 1, end)
    group, seq = calls.group[rows], calls.seq[rows]
    behind = np.flatnonzero(seq < least.take(group))
    step = np.repeat(calls.step[first], end - first - 1)[behind]
    behind = behind[(calls.step[rows[behind]] > step) & (group[behind] >= 0)]
    if not len(behind):
        return behind
    np.minimum.at(least, group[behind], seq[behind])
    fell = np.zeros(len(least), np.bool_)
    fell[group[behind]] = True
    touched = np.zeros(len(frontier), np.bool_)
    touched[frontier.entry_rank[fell[frontier.entry_comm]]] = True
    both = fell[pairs.base : -1]
    ends = frontier.indices(np.concatenate([pairs.src[both], pairs.dst[both]]))
    touched[ends[ends >= 0]] = True
    return np.flatnonzero(touched)


def _same_step(calls: Calls, row: I8) -> I8:
    """int64, ascending: these rows, one a rank, and those after them that have the same step."""
    found = [row]
    while len(row):
        row = row[row + 1 < calls.bounds[calls.rank[row] + 1]] + 1
        row = row[calls.step[row] == calls.step[row - 1]]
        found.append(row)
    return np.sort(np.concatenate(found))


def _holds(
    frontier: Frontier, calls: Calls, instances: Instances, pairs: Pairs, step: I8, rows: I8
) -> tuple[I8, I8, NDArray[np.uint8]]:
    """Holders of every instance at which somebody waits: instance, rank index, why; ascending by instance."""
    wanted = np.unique(calls.instance[rows])
    group = instances.group[wanted]
    collective = group < pairs.base
    counts = (
        np.where(collective, frontier.members.counts()[np.where(collective, group, 0)], 2)
        if len(group)
        else group
    )
    instance = np.repeat(wanted, counts)
    start = np.cumsum(counts) - counts
    nth = np.arange(len(instance)) - np.repeat(start, counts)
    of_collective = np.repeat(collective, counts)
    base = np.repeat(np.where(collective, frontier.members.bounds[np.where(collective, group, 0)], 0), counts)
    member = np.empty(len(instance), np.int64)
    member[of_collective] = frontier.members.ranks[(base + nth)[of_collective]]
    pair = np.repeat(np.where(collective, 0, group - pairs.base), counts)[~of_collective]
    sender = nth[~of_collective] == 0
    member[~of_collective] = np.where(sender, pairs.src[pair], pairs.dst[pair])
    index = frontier.indices(member)
    why = _reasons(frontier, calls, instance, index, step)
    absent = _absent(frontier, instances, instance, index)
    posted = np.where(sender, pairs.sent[pair], pairs.received[pair])
    absent[~of_collective] = (posted >= 0) & (posted <= instances.seq[instance[~of_collective]])
    why[absent] = Hold.ABSENT
    why[index < 0] = Hold.UNRECORDED
    holding = why != _HOLDS_NOT
    rank = np.where(index >= 0, index, -1 - member)
    return instance[holding], rank[holding], why[holding]


_HOLDS_NOT = 255


def _reasons(frontier: Frontier, calls: Calls, instance: I8, index: I8, step: I8) -> NDArray[np.uint8]:
    """Why each (instance, rank index) holds the instance up, of those who made the call."""
    why = np.full(len(instance), _HOLDS_NOT, np.uint8)
    if not len(instance):
        return why
    ranks = len(frontier)
    asked = np.zeros(int(instance.max()) + 2, np.bool_)
    asked[instance] = True
    asked[-1] = False
    # Calls without an instance, −1, and those beyond the last asked for find the last place.
    order = np.flatnonzero(asked.take(calls.instance, mode="clip") & (calls.instance >= 0))
    order = order[np.argsort(calls.instance[order], kind="stable")]
    if not len(order):
        return why
    key = calls.instance[order] * ranks + calls.rank[order]
    wanted = instance * ranks + index
    at = np.minimum(np.searchsorted(key, wanted), len(order) - 1)
    found = (index >= 0) & (key[at] == wanted)
    row = order[at]
    open_call = found & (calls.state[row] < ENDED)
    if frontier.has_start:
        why[open_call & (calls.state[row] == ENQUEUED)] = Hold.UNSTARTED
    queued = open_call & (calls.step[row] > step[np.maximum(index, 0)])
    if frontier.has_start:
        queued &= calls.state[row] == ENQUEUED
    why[queued] = Hold.QUEUED
    return why


def _absent(frontier: Frontier, instances: Instances, instance: I8, index: I8) -> Mask:
    """Whether a member has not made a collective. A member without entry has made none, unless records
    were lost."""
    width = max(frontier.members.size, 1)
    group, seq = instances.group[instance], instances.seq[instance]
    key = frontier.entry_rank.astype(np.int64) * width + frontier.entry_comm
    wanted = index * width + np.minimum(group, width - 1)
    at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    if not len(key):
        return np.zeros(len(instance), np.bool_)
    found = (key[at] == wanted) & (index >= 0)
    mute = ~found & (index >= 0) & instances.absent[instance] & ~frontier.lost[np.maximum(index, 0)]
    return np.asarray((found & (frontier.entry_last[at] < seq)) | mute)
