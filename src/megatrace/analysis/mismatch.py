"""Calls that do not fit each other: the same number on the same communicator, but another operation or
size.

NCCL matches collectives by their order alone, so a rank that calls something else, or the right things in
the wrong order, or leaves one out, makes the whole communicator hang or corrupts its data in silence. The
first number at which members differ is where it happened; what follows tells which of the three it was.

Members of an all-to-all may pass different sizes (uneven splits): its sizes are compared only where the
communicator's members passed equal ones every time before, as with padded experts or sequence parallelism.
P2P is not looked at: a Send and its Recv may be chunked differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.events import NO_COUNT, Op
from megatrace.model.frontier import ENDED, HASH_STEP

I8 = NDArray[np.int64]


class Misfit(Enum):
    """In which way a rank's calls differ from its peers'."""

    OPERATION = "operation"
    SIZE = "size"
    ORDER = "order"
    """two calls swapped"""
    SKIPPED = "skipped"
    """one call left out: everything after it comes one number early"""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call does, as NCCL sees it; ``count`` is NO_COUNT where it does not tell calls apart."""

    op: Op
    count: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first call at which a communicator's members differ.

    ``odd`` rank indices whose call differs from the others'; ``ambiguous`` where nothing tells which side
    is wrong.
    """

    instance: int
    misfit: Misfit
    odd: tuple[int, ...]
    theirs: Signature
    usual: Signature
    ambiguous: bool


Agreed = Callable[[int, tuple[int, int], int], bool]

EVEN = 3
"""All-to-alls before, of equal sizes on all members, that show that uneven splits are not in use: routed
tokens are never equal on all members even once."""


def _agreed(*_: object) -> bool:
    return True


def find_mismatches(graph: WaitsFor, agreed: Agreed = _agreed) -> tuple[Mismatch, ...]:
    """The first mismatch of every communicator, ascending by instance. Finished calls are past and not
    looked at.

    ``agreed(communicator, global ranks, number)``: whether two members' calls below that number fitted. A
    real communicator does not survive calls that do not fit: where earlier ones did not either, its members
    were inferred wrongly, and nothing is said of it.
    """
    calls, frontier = graph.calls, graph.frontier
    rows = _in_doubt(graph)
    op = frontier.tail_op[calls.rank[rows], calls.column[rows]]
    count = frontier.tail_count[calls.rank[rows], calls.column[rows]]
    count = np.where(_uneven(graph, rows, op, count), NO_COUNT, count)
    pending = calls.state[rows] < ENDED
    rows, op, count = rows[pending], op[pending], count[pending]
    if not len(rows):
        return ()
    instance = calls.instance[rows]
    first = np.flatnonzero(np.diff(instance, prepend=-1))
    nth = np.cumsum(np.diff(instance, prepend=-1) > 0) - 1
    differs = (op != op[first][nth]) | (
        (count != count[first][nth]) & (count >= 0) & (count[first][nth] >= 0)
    )
    found: dict[int, Mismatch] = {}
    for one in np.unique(instance[differs]):
        comm = int(graph.instances.group[one])
        if comm not in found:
            found[comm] = _judge(graph, int(one))
    return tuple(item for item in found.values() if _believed(graph, item, agreed))


def _in_doubt(graph: WaitsFor) -> I8:
    """Rows of calls of those communicators whose members' positions or rolling hashes differ, by instance.

    Where all made the same calls from the first to the last, there is nothing to compare.
    """
    calls, frontier = graph.calls, graph.frontier
    key = frontier.entry_hash + frontier.entry_first.astype(np.uint64) * HASH_STEP
    key = (key ^ (key >> np.uint64(31))) * HASH_STEP + frontier.entry_last.astype(np.uint64)
    low, high = np.full(graph.pairs.base, ~np.uint64(0)), np.zeros(graph.pairs.base, np.uint64)
    np.minimum.at(low, frontier.entry_comm, key)
    np.maximum.at(high, frontier.entry_comm, key)
    doubt = np.append(low < high, np.False_)  # −1: no communicator
    rows = calls.of_ranks(np.unique(frontier.entry_rank[doubt[frontier.entry_comm]]))
    group = calls.group[rows]
    rows = rows[(group < graph.pairs.base) & doubt.take(np.minimum(group, graph.pairs.base))]
    rows = rows[calls.group[rows] >= 0]
    return np.asarray(rows[_order(calls.instance[rows])])


def _order(key: I8) -> I8:
    """int64: the order of keys (not negative), equal ones as they come.

    Sorting values is eight times as fast as sorting indices, so the index is put below the key where both fit
    into 63 bits.
    """
    n = len(key)
    bits = max(n - 1, 1).bit_length()
    if not n or int(key.max()).bit_length() + bits > 63:
        return np.argsort(key, kind="stable")
    packed = np.sort((key << bits) | np.arange(n))
    return np.asarray(packed & ((1 << bits) - 1))


def _uneven(graph: WaitsFor, rows: I8, op: NDArray[np.uint8], count: I8) -> NDArray[np.bool_]:
    """bool: all-to-alls whose sizes say nothing. ``rows`` of collectives, by instance, with their operations
    and sizes.

    The first of a communicator that are equal on all who made them are its habit; one that differs after
    ``EVEN`` of them, and not before, does not fit.
    """
    uneven = np.asarray(op == Op.ALL_TO_ALL)
    mine = np.flatnonzero(uneven)
    if not len(mine):
        return uneven
    instance = graph.calls.instance[rows[mine]]
    first = np.flatnonzero(np.diff(instance, prepend=-1))
    most, least = np.maximum.reduceat(count[mine], first), np.minimum.reduceat(count[mine], first)
    several = np.diff(np.append(first, len(mine))) > 1
    # Instances are in the order of their communicators and then of their numbers.
    group = graph.instances.group[instance[first]]
    even, odd = (most == least) & (least > 0) & several, most != least
    start = np.flatnonzero(np.diff(group, prepend=-1))
    of = np.cumsum(np.diff(group, prepend=-1) > 0) - 1
    before = np.cumsum(odd) - odd
    before -= before[start][of]
    evens = np.cumsum(even & (before == 0)) - (even & (before == 0))
    evens -= evens[start][of]
    settled = (before == 0) & (evens >= EVEN)
    uneven[mine] = ~np.repeat(settled, np.diff(np.append(first, len(mine))))
    return uneven


def _believed(graph: WaitsFor, mismatch: Mismatch, agreed: Agreed) -> bool:
    comm, seq = int(graph.instances.group[mismatch.instance]), int(graph.instances.seq[mismatch.instance])
    signatures = _signatures(graph, mismatch.instance)
    odd = mismatch.odd[0]
    right = next(rank for rank, value in signatures.items() if value != signatures[odd])
    return agreed(comm, (int(graph.frontier.ranks[odd]), int(graph.frontier.ranks[right])), seq)


def _judge(graph: WaitsFor, instance: int) -> Mismatch:
    sides: dict[Signature, list[int]] = {}
    for rank, signature in _signatures(graph, instance).items():
        sides.setdefault(signature, []).append(rank)
    ordered = sorted(sides.items(), key=lambda side: (-len(side[1]), side[1]))
    ambiguous = len(ordered) > 1 and len(ordered[0][1]) == len(ordered[1][1])
    if ambiguous:
        for seen in (_numbered_elsewhere, _seen_elsewhere):
            votes = [seen(graph, instance, side[1], side[0]) for side in ordered]
            if len(ordered) == 2 and (votes[0] > 0) != (votes[1] > 0):
                ambiguous = False
                ordered = ordered if votes[0] else ordered[::-1]
                break
    usual, right = ordered[0]
    odd = tuple(rank for _, ranks in ordered[1:] for rank in ranks)
    misfit = _misfit(graph, instance, odd[0], right[0])
    if ambiguous:
        odd = tuple(sorted((*odd, *right)))
    return Mismatch(instance, misfit, odd, ordered[1][0], usual, ambiguous)


def blame(graph: WaitsFor, mismatch: Mismatch, rank: int) -> Mismatch:
    """An ambiguous mismatch of which it is known that this rank (index) is the odd one."""
    signatures = _signatures(graph, mismatch.instance)
    theirs = signatures[rank]
    right = next((other for other, value in signatures.items() if value != theirs), None)
    if right is None:
        return mismatch
    misfit = _misfit(graph, mismatch.instance, rank, right)
    return Mismatch(mismatch.instance, misfit, (rank,), theirs, signatures[right], ambiguous=False)


def _signature(graph: WaitsFor, row: int, *, sized: bool) -> Signature:
    """What one call (row) does. ``sized``: sizes of all-to-alls count as well."""
    rank, column = graph.calls.rank[row], graph.calls.column[row]
    op = Op(int(graph.frontier.tail_op[rank, column]))
    bare = op is Op.ALL_TO_ALL and not sized
    return Signature(op, NO_COUNT if bare else int(graph.frontier.tail_count[rank, column]))


def _sized(graph: WaitsFor, rows: I8) -> bool:
    """Whether the members of a call (rows) that does not fit called the same: then it is the size."""
    return len(np.unique(graph.frontier.tail_op[graph.calls.rank[rows], graph.calls.column[rows]])) == 1


def _signatures(graph: WaitsFor, instance: int) -> dict[int, Signature]:
    """Rank index → what it called, for a call that does not fit."""
    rows = graph.rows_of(instance)
    sized = _sized(graph, rows)
    return {int(graph.calls.rank[row]): _signature(graph, int(row), sized=sized) for row in rows}


def _series(graph: WaitsFor, rank: int, comm: int, *, sized: bool) -> dict[int, Signature]:
    """seq → signature of one rank's tail calls on one communicator."""
    rows = np.flatnonzero((graph.calls.rank == rank) & (graph.calls.group == comm))
    return {int(graph.calls.seq[row]): _signature(graph, int(row), sized=sized) for row in rows}


def _misfit(graph: WaitsFor, instance: int, odd: int, right: int) -> Misfit:
    comm, seq = int(graph.instances.group[instance]), int(graph.instances.seq[instance])
    sized = _sized(graph, graph.rows_of(instance))
    theirs, usual = (_series(graph, rank, comm, sized=sized) for rank in (odd, right))
    here, there = theirs.get(seq), usual.get(seq)
    next_here, next_there = theirs.get(seq + 1), usual.get(seq + 1)
    assert here is not None
    assert there is not None
    if next_there is not None and here == next_there:
        later = [number for number in theirs if number > seq and number + 1 in usual]
        shifted = bool(later) and all(theirs[number] == usual[number + 1] for number in later)
        # Two alike calls around a third look swapped where one was left out; what comes after them tells.
        apart = seq + 2 in theirs and seq + 2 in usual and theirs[seq + 2] != usual[seq + 2]
        if next_here == there and not (shifted and apart):
            return Misfit.ORDER
        if next_here is None or shifted:
            # A rank that stops after the early call may have swapped two calls as well as left one out; its
            # peers waited before they made the second.
            return Misfit.SKIPPED if later or max(usual) > seq + 1 else Misfit.ORDER
    if next_here is not None and next_here == there and here.op is not there.op:
        return Misfit.ORDER
    return Misfit.SIZE if here.op is there.op else Misfit.OPERATION


def _numbered_elsewhere(graph: WaitsFor, instance: int, ranks: list[int], signature: Signature) -> int:
    """How many communicators of as many members made this call under this number, after the same preceding
    one: those of other replicas, which run the same program."""
    calls, frontier = graph.calls, graph.frontier
    comm, seq = int(graph.instances.group[instance]), int(graph.instances.seq[instance])
    sized = _sized(graph, graph.rows_of(instance))
    before = _series(graph, ranks[0], comm, sized=sized).get(seq - 1)
    size = frontier.members.counts()
    rows = np.flatnonzero((calls.seq == seq) & (calls.group >= 0) & (calls.group < graph.pairs.base))
    found = 0
    for other in np.unique(calls.group[rows]).tolist():
        if other == comm or size[other] != size[comm]:
            continue
        mine = rows[calls.group[rows] == other]
        first = int(calls.rank[mine[0]])
        same = {_signature(graph, int(row), sized=sized) for row in mine} == {signature}
        found += same and _series(graph, first, other, sized=sized).get(seq - 1) == before
    return found


def _seen_elsewhere(graph: WaitsFor, instance: int, ranks: list[int], signature: Signature) -> int:
    """How often anybody else, or these ranks before, made this call after the same preceding one."""
    calls, frontier = graph.calls, graph.frontier
    comm, seq = int(graph.instances.group[instance]), int(graph.instances.seq[instance])
    sized = _sized(graph, graph.rows_of(instance))
    before = _series(graph, ranks[0], comm, sized=sized).get(seq - 1)
    rows = np.flatnonzero((calls.group >= 0) & (calls.group < graph.pairs.base))
    rows = rows[np.lexsort((calls.seq[rows], calls.group[rows], calls.rank[rows]))]
    op = frontier.tail_op[calls.rank[rows], calls.column[rows]]
    count = frontier.tail_count[calls.rank[rows], calls.column[rows]]
    count = count if sized else np.where(op == Op.ALL_TO_ALL, NO_COUNT, count)
    same = (op == signature.op) & (count == signature.count) & (calls.instance[rows] != instance)
    if before is None:
        return int(same.sum())
    follows = np.zeros(len(rows), np.bool_)
    key = calls.rank[rows] * (graph.pairs.base + 1) + calls.group[rows]
    follows[1:] = (key[1:] == key[:-1]) & (op[:-1] == before.op) & (count[:-1] == before.count)
    return int((same & follows).sum())
