"""Which global rank wrote each dump: a dump does not say so.

Its groups do, most of the time: a process is a member of every group that it knows, and the one rank that is
in all of them is its own. A Send or Recv names its own end. Only where groups leave several ranks possible
does the file name decide, if it holds a number that fits. Names are never believed against the groups.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from megatrace.readers.flight_recorder_entries import Dump

_SAID = re.compile(r"rank[_\-.=]?(\d{1,7})", re.IGNORECASE)
_DIGITS = re.compile(r"\d{1,7}")


@dataclass(slots=True)
class Assigned:
    """The rank of each dump (same order; None where it cannot be told), and what is to be said about it."""

    ranks: list[int | None]
    notes: list[str] = field(default_factory=list)


def assign_ranks(dumps: Sequence[Dump]) -> Assigned:
    """The ranks of all dumps of one job."""
    found = Assigned([None] * len(dumps))
    members: dict[int, frozenset[int]] = {}
    possible = [_possible(dump, members) for dump in dumps]
    for i, options in enumerate(possible):
        if options is not None and len(options) == 1:
            found.ranks[i] = next(iter(options))
    _by_name(dumps, possible, found)
    _by_order(dumps, possible, found)
    _twice(dumps, found)
    return found


def _possible(dump: Dump, members: dict[int, frozenset[int]]) -> Set[int] | None:
    """Ranks that are members of all the dump's groups, narrowed by its messages; None where no group is
    known. ``members`` by the identity of the tuple of ranks: all dumps share the same few."""
    said = None
    if dump.own is not None:
        group, own = dump.own
        order = dump.config.get(dump.names[group], ("", None))[1]
        if order is not None and own < len(order):
            return {order[own]}
        said = own if order is None else None
    options: Set[int] | None = None
    groups = [ranks for _, ranks in dump.config.values() if ranks is not None]
    for ranks in sorted(groups, key=len):
        found = members.get(id(ranks))
        if found is None:
            found = members[id(ranks)] = frozenset(ranks)
        options = found if options is None else options & found
    if said is not None and not options:
        return {said}  # the default group is the world
    return options


def _by_name(dumps: Sequence[Dump], possible: Sequence[Set[int] | None], found: Assigned) -> None:
    """Numbers in file names, where they fit the groups and tell the files apart."""
    named = [_numbers(dump.source) for dump in dumps]
    taken = {rank for rank in found.ranks if rank is not None}
    for place in range(max(map(len, named), default=0)):
        open_ones = [i for i, rank in enumerate(found.ranks) if rank is None and place < len(named[i])]
        values = [named[i][place] for i in open_ones]
        fits = all(
            options is None or value in options
            for value, options in zip(values, (possible[i] for i in open_ones), strict=True)
        )
        known = [i for i, rank in enumerate(found.ranks) if rank is not None and place < len(named[i])]
        agrees = all(named[i][place] == found.ranks[i] for i in known)
        if open_ones and fits and agrees and len(set(values)) == len(values) and not taken & set(values):
            for i, value in zip(open_ones, values, strict=True):
                found.ranks[i] = value
            return


def _numbers(source: str) -> list[int]:
    """Numbers of a path that may be its rank, likeliest first: after "rank", last of the name, the rest."""
    name = source.replace("\\", "/").rpartition("/")
    said = [int(text) for text in _SAID.findall(source)][::-1]
    of_name = [int(text) for text in _DIGITS.findall(name[2])][::-1]
    of_folder = [int(text) for text in _DIGITS.findall(name[0].rpartition("/")[2])][::-1]
    return [*said[:1], *of_name[:4], *of_folder[:1]] if said else [*of_name[:4], *of_folder[:1]]


def _by_order(dumps: Sequence[Dump], possible: Sequence[Set[int] | None], found: Assigned) -> None:
    """Files whose rank nothing tells, where as many ranks are left as files: in the order of their names."""
    left = [i for i, rank in enumerate(found.ranks) if rank is None]
    if not left:
        return
    taken = {rank for rank in found.ranks if rank is not None}
    options = {rank for i in left for rank in possible[i] or ()} - taken
    if len(options) == 1 == len(left):
        found.ranks[left[0]] = options.pop()
        return
    names = ", ".join(dumps[i].source.rpartition("/")[2] for i in left[:4])
    if possible[left[0]] is None and len(dumps) == 1:
        found.ranks[left[0]] = 0
        found.notes.append(f"{names} does not say which rank wrote it; it is called rank 0 here.")
    else:
        found.notes.append(
            f"{len(left)} dump{'s' if len(left) > 1 else ''} ({names}{', …' if len(left) > 4 else ''}) were "
            "left out: neither their groups nor their names tell which rank wrote them. "
            "Put the rank last in the name, as in dump_12."
        )


def _twice(dumps: Sequence[Dump], found: Assigned) -> None:
    """Two dumps of one rank: the one that reaches further is kept."""
    best: dict[int, int] = {}
    for i, rank in enumerate(found.ranks):
        if rank is None:
            continue
        other = best.get(rank)
        if other is None:
            best[rank] = i
            continue
        newer, older = (i, other) if _end(dumps[i]) >= _end(dumps[other]) else (other, i)
        best[rank] = newer
        found.ranks[older] = None
        found.notes.append(
            f"{dumps[older].source.rpartition('/')[2]} was left out: "
            f"{dumps[newer].source.rpartition('/')[2]} is a later dump of the same rank {rank}."
        )


def _end(dump: Dump) -> tuple[int, int]:
    return (int(dump.created.max()) if len(dump) else 0, dump.modified or 0)
