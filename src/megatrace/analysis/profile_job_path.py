"""The critical path of a job across its ranks: through the last comer of every communication that was
recorded.

The paths of single ranks end in communication kernels, which last while their rank waits. Where the calls of
several ranks can be matched (the same group, operation, size and number), a kernel also waits for the begin
of the rank that came last, and the path goes on there. Clocks are joined at the ends of the same calls, which
all members see at once.

Where a rank shares no call with the others, or the ranks made different numbers of them (their windows
differ), there is no such path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from megatrace.analysis.profile_collectives import Call
from megatrace.analysis.profile_graph import Edges, PathGraph, Span, bound, path_graph
from megatrace.analysis.profile_path import described
from megatrace.analysis.profile_stacks import places
from megatrace.model.events import Op
from megatrace.model.profile import NONE, Collective, RankProfile
from megatrace.model.profile_result import CriticalPath
from megatrace.units import say_ranks

ALL = -1
"""The rank of a path that is none's."""
Meeting = list[tuple[int, Call]]
"""One call as its members made it: place of the profile, kernel."""


def job_path(profiles: Sequence[RankProfile], found: Sequence[Sequence[Call]]) -> CriticalPath | None:
    """The path across all profiles, whose communication kernels are ``found``; None where ranks share too
    little.
    """
    if len(profiles) < 2:
        return None
    met = _meetings(found)
    known = _offsets(met)
    if len(known) < len(profiles):
        return None
    offsets = [known[place] for place in range(len(profiles))]
    graphs = [path_graph(profile) for profile in profiles]
    joined = _joined(profiles, graphs, offsets, met)
    names = [name for profile in profiles for name in profile.names]
    lanes = [(lane.title, profile.rank) for profile in profiles for lane in profile.lanes]
    return described(joined, names, lanes, ALL, "everything recorded")


def why_not(profiles: Sequence[RankProfile], found: Sequence[Sequence[Call]]) -> str | None:
    """Why `job_path` finds none, in a sentence; None where it does, and of a single rank."""
    if len(profiles) < 2:
        return None
    met = _meetings(found)
    reached = set(_offsets(met))
    if len(reached) == len(profiles):
        return None
    say = "There is no critical path across ranks: "
    if not any(one.call.ranks for calls in found for one in calls):
        return f"{say}the profiles do not say which ranks a communication joins."
    alone = [profile.rank for place, profile in enumerate(profiles) if place not in reached]
    if not met:
        return f"{say}no call was recorded by several of them equally often, so their windows differ."
    return (
        f"{say}{say_ranks(alone)} {'shares' if len(alone) == 1 else 'share'} no call with "
        f"{say_ranks([profiles[place].rank for place in sorted(reached)])} that all made equally often."
    )


def _meetings(found: Sequence[Sequence[Call]]) -> list[Meeting]:
    """Calls that several ranks made together."""
    together: dict[tuple[Collective, int, int], Meeting] = {}
    often: dict[tuple[Collective, int], set[int]] = {}
    for place, calls in enumerate(found):
        count: dict[tuple[Collective, int], int] = {}
        for one in calls:
            if len(one.call.ranks) > 1:
                kind = _kind(one)
                count[kind] = count.get(kind, 0) + 1
                together.setdefault((*kind, one.nth), []).append((place, one))
        for kind, number in count.items():
            often.setdefault(kind, set()).add(number)
    return [
        meeting
        for (call, sender, _), meeting in together.items()
        if len(meeting) > 1 and len(often[call, sender]) == 1
    ]


def _kind(one: Call) -> tuple[Collective, int]:
    """What the calls of one meeting have in common: a Send and its Recv have a sender."""
    if not one.call.op.is_p2p or len(one.call.ranks) != 2:
        return one.call, ALL
    other = one.call.ranks[one.call.ranks[0] == one.rank]
    return replace(one.call, op=Op.SEND), one.rank if one.call.op is Op.SEND else other


def _offsets(met: Sequence[Meeting]) -> dict[int, int]:
    """What each clock is ahead of the first one, ns, by place; without those that cannot be compared with
    it."""
    apart: dict[tuple[int, int], list[int]] = {}
    for meeting in met:
        first = meeting[0]
        for place, one in meeting[1:]:
            apart.setdefault((first[0], place), []).append(one.end - first[1].end)
            apart.setdefault((place, first[0]), []).append(first[1].end - one.end)
    offsets = {0: 0}
    ready = [0]
    for place in ready:  # grows while it is read
        for (known, other), differences in apart.items():
            if known == place and other not in offsets:
                offsets[other] = offsets[place] + round(median(differences))
                ready.append(other)
    return offsets


def _joined(
    profiles: Sequence[RankProfile],
    graphs: Sequence[PathGraph],
    offsets: Sequence[int],
    met: Sequence[Meeting],
) -> PathGraph:
    base = np.cumsum([0, *(len(graph.row) for graph in graphs)]).tolist()
    named = np.cumsum([0, *(len(profile.names) for profile in profiles)]).tolist()
    lanes = np.cumsum([0, *(len(profile.lanes) for profile in profiles)]).tolist()
    time = np.concatenate([graph.time - offset for graph, offset in zip(graphs, offsets, strict=True)])
    parts = []
    for graph, shift in zip(graphs, base[:-1], strict=True):
        edges = graph.edges
        owner = np.where(edges.owner == NONE, NONE, edges.owner + shift)
        parts.append(replace(edges, src=edges.src + 2 * shift, dst=edges.dst + 2 * shift, owner=owner))
    parts.append(_waits_for_the_last(graphs, profiles, base, time, met))
    return PathGraph(
        np.concatenate([graph.row for graph in graphs]),
        time,
        bound(Edges.joined(parts), time),
        np.concatenate([graph.name + shift for graph, shift in zip(graphs, named[:-1], strict=True)]),
        np.concatenate([graph.lane + shift for graph, shift in zip(graphs, lanes[:-1], strict=True)]),
    )


def _waits_for_the_last(
    graphs: Sequence[PathGraph],
    profiles: Sequence[RankProfile],
    base: Sequence[int],
    time: np.ndarray[tuple[int], np.dtype[np.int64]],
    met: Sequence[Meeting],
) -> Edges:
    """From the begin of the last comer of each call to the end of the others' kernels."""
    where = []
    for graph, profile in zip(graphs, profiles, strict=True):
        hosts = len(graph.row) - int(np.isin(graph.row, profile.device_rows).sum())
        where.append((hosts, graph.row[hosts:]))
    src, dst = [], []
    for meeting in met:
        nodes = []
        for place, one in meeting:
            hosts, rows = where[place]
            at = int(places(rows, np.array([one.row]))[0])
            if at != NONE:
                nodes.append(2 * (base[place] + hosts + at))
        if len(nodes) > 1:
            last = max(nodes, key=lambda node: int(time[node]))
            others = [node for node in nodes if node != last]
            src += [last] * len(others)
            dst += [node + 1 for node in others]
    begin, end = np.array(src, np.int64), np.array(dst, np.int64)
    length = np.maximum(time[end] - time[begin], 0) if len(begin) else begin
    span, sure = np.full(len(begin), int(Span.COMMUNICATION)), np.zeros(len(begin), np.bool_)
    return Edges(begin, end, length, length.copy(), span, end // 2, ~sure, sure)
