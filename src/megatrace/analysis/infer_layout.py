"""Which communicator is which group of which parallel axis, and the layout of the job.

Three sources, best first: communicators with members (recordings, group hashes) tested against layouts;
without them, channels told apart by what they carry and by their times. A declared layout that the calls
contradict becomes a warning, and the calls are believed.

The result is a trace whose ``comm`` column is complete as far as the calls allow, with members and axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis import coupling
from megatrace.analysis.anchors import anchor_rows, signatures
from megatrace.analysis.channels import Channels, tabulate
from megatrace.analysis.gaps import find_gaps
from megatrace.analysis.groups import Fit, Group, GroupLookup, fit_layouts, score, seen_mask
from megatrace.analysis.iterations import Iterations, number_iterations
from megatrace.analysis.roles import AXES, Role, channel_roles
from megatrace.model.events import NO_COMM, Events
from megatrace.model.job import JobConfig
from megatrace.model.layout import DEFAULT_ORDER, Axis, ParallelLayout
from megatrace.model.trace import Communicator, Coverage, Trace

# A layout must explain this share of the calls' groups to be believed.
BELIEVED = 0.8
_DECLARED = (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"), ("cp", "context"))


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """A trace with its communicators resolved.

    role        uint8 [events], a ``Role``: the use of each call's channel
    ordinal     int64 [events]: the channel's number within its rank, in order of first use
    world       ranks of the job, as far as declared or seen
    iterations  numbered anchors, None where nothing repeats
    gap_rows    int64: rows that are the first after a gap (the gaps stand in ``trace.coverage``)
    """

    trace: Trace
    channels: Channels
    role: NDArray[np.uint8]
    signature: NDArray[np.int64]
    world: int
    layout: ParallelLayout | None
    layout_source: str | None
    iterations: Iterations | None
    gap_rows: NDArray[np.int64]
    warnings: tuple[str, ...]

    def stage_of(self, rank: int) -> int | None:
        """Pipeline stage of a rank, None where the layout does not say."""
        if self.layout is None or rank >= self.layout.world_size:
            return None
        return self.layout.place(rank).stage


def resolve(trace: Trace) -> Resolved:
    """Resolve roles, communicators, layout and iterations of a trace."""
    events = trace.events
    channels = tabulate(events)
    ordinal = _ordinals(channels)
    signature = signatures(events, ordinal[channels.of_event])
    anchors = anchor_rows(events, signature)
    gap_rows, gaps = find_gaps(events, channels)
    iterations = number_iterations(events, channels, anchors, gap_rows)
    members = _known_members(trace, channels)
    # A communicator of which one rank was seen may have others whose logs are missing.
    sizes = np.asarray([0 if m is None or len(m) == 1 else len(m) for m in members], np.int64)
    role = channel_roles(events, channels, anchors, sizes)
    seen = events.ranks()
    world = _world(trace.job, seen, members)
    layout, source, warnings = _layout(trace, channels, role, members, iterations, world, seen)
    if layout is not None:
        world = layout.world_size
    events, communicators = _communicators(trace, channels, role, members, layout)
    missing = tuple(sorted(set(range(world)) - {int(rank) for rank in seen}))
    coverage = trace.coverage.merged(Coverage(gaps=gaps, ranks_missing=missing))
    return Resolved(
        trace=replace(trace, events=events, communicators=communicators, coverage=coverage),
        channels=channels,
        role=role[channels.of_event],
        signature=signature,
        world=world,
        layout=layout,
        layout_source=source,
        iterations=iterations,
        gap_rows=gap_rows,
        warnings=warnings,
    )


def _ordinals(channels: Channels) -> NDArray[np.int64]:
    return np.arange(len(channels)) - np.searchsorted(channels.rank, channels.rank, "left")


def _known_members(trace: Trace, channels: Channels) -> list[tuple[int, ...] | None]:
    """Members of each channel's communicator: as recorded, else the ranks seen using it."""
    users: dict[int, list[int]] = {}
    for channel in np.flatnonzero(~channels.by_stream):
        users.setdefault(int(channels.key[channel]), []).append(int(channels.rank[channel]))
    members: list[tuple[int, ...] | None] = []
    cache: dict[int, tuple[int, ...]] = {}
    for i in range(len(channels)):
        if channels.by_stream[i]:
            members.append(None)
            continue
        comm = int(channels.key[i])
        if comm not in cache:
            recorded = trace.communicators[comm].members
            cache[comm] = recorded if recorded is not None else tuple(sorted(users[comm]))
        members.append(cache[comm])
    return members


def _world(job: JobConfig, seen: NDArray[np.int32], members: list[tuple[int, ...] | None]) -> int:
    highest = int(seen.max(initial=-1))
    named = max((group[-1] for group in members if group), default=-1)
    smallest = max(highest, named) + 1
    if job.world_size is not None and job.world_size.value >= smallest:
        return job.world_size.value
    return smallest


def declared_layout(job: JobConfig, world: int) -> ParallelLayout | None:
    """The layout of a configuration, with the one missing size computed from the world, or None."""
    values = {name: getattr(job, key) for name, key in _DECLARED}
    if all(value is None for value in values.values()):
        return None
    sizes = {name: 1 if value is None else int(value.value) for name, value in values.items()}
    if values["dp"] is None:
        rest = sizes["tp"] * sizes["pp"] * sizes["cp"]
        if world % rest:
            return None
        sizes["dp"] = world // rest
    ep = job.expert.value if job.expert else 1
    vpp = job.virtual.value if job.virtual else 1
    if (sizes["dp"] * sizes["cp"]) % ep:
        return None
    order = DEFAULT_ORDER if job.order is None else job.order.value
    try:
        return ParallelLayout(ep=ep, vpp=vpp, order=order, **sizes)
    except ValueError:
        return None  # an order that no experts can have


def _layout(
    trace: Trace,
    channels: Channels,
    role: NDArray[np.uint8],
    members: list[tuple[int, ...] | None],
    iterations: Iterations | None,
    world: int,
    seen: NDArray[np.int32],
) -> tuple[ParallelLayout | None, str | None, tuple[str, ...]]:
    declared = declared_layout(trace.job, world)
    groups = _groups(channels, role, members)
    present = seen_mask(seen)
    fits = fit_layouts(groups, world, seen) if groups else []
    if not groups:
        inferred = _from_times(trace.events, channels, role, iterations, world)
        fits = [] if inferred is None else [Fit(inferred, 1.0, 0)]
    best = fits[0] if fits and fits[0].score >= BELIEVED else None
    if declared is None:
        warnings = _contradictions(trace.job, best.layout, len(seen)) if best else ()
        return (best.layout, "inferred", warnings) if best else (None, None, ())
    if best is None:
        unchecked = "the declared layout could not be checked: the calls do not show their groups"
        return declared, "config", (unchecked,)
    agrees = score(declared, groups, present) >= 0.98 * best.score if groups else _same(declared, best.layout)
    if agrees:
        return declared, "config", ()
    return best.layout, "inferred", _contradictions(trace.job, best.layout, len(seen))


def _same(a: ParallelLayout, b: ParallelLayout) -> bool:
    return (a.tp, a.pp, a.dp * a.cp) == (b.tp, b.pp, b.dp * b.cp)


def _contradictions(job: JobConfig, layout: ParallelLayout, checked: int) -> tuple[str, ...]:
    words = {
        "tensor": "tensor groups",
        "pipeline": "pipelines",
        "data": "data groups",
        "context": "context groups",
    }
    result: list[str] = []
    for size, key in _DECLARED:
        declared = getattr(job, key)
        found = getattr(layout, size)
        if declared is not None and declared.value != found:
            result.append(
                f"{declared.source} says {declared.value}, but the log's {words[key]} have {found} member"
                f"{'s' if found != 1 else ''} each (checked on {checked} ranks); "
                "the log is believed, layout inferred."
            )
    return tuple(result)


def _groups(
    channels: Channels, role: NDArray[np.uint8], members: list[tuple[int, ...] | None]
) -> list[Group]:
    """Every known communicator once, with the role that most of its channels have."""
    found: dict[int, tuple[tuple[int, ...], list[int], int]] = {}
    total = channels.total
    for i in np.flatnonzero(~channels.by_stream):
        group = members[i]
        if group is None or len(group) < 2:
            continue
        entry = found.setdefault(int(channels.key[i]), (group, [0] * len(Role), 0))
        entry[1][int(role[i])] += 1
        found[int(channels.key[i])] = (group, entry[1], entry[2] + int(total[i]))
    return [
        Group(group, Role(int(np.argmax(votes))), calls // len(group))
        for group, votes, calls in found.values()
    ]


def _from_times(
    events: Events, channels: Channels, role: NDArray[np.uint8], it: Iterations | None, world: int
) -> ParallelLayout | None:
    if it is None or world < 2:
        return None
    stage_size, stages = world, 1
    if bool(np.any(role == Role.PIPELINE)):
        found = coupling.pipeline_ends(events, channels, role, it).stage_size(world)
        if found is None:
            return None
        stage_size, stages = found
    data = (role == Role.DATA) & (channels.total > 1)  # one call of a cut log shows no counter
    alone = bool(data.any()) and bool(np.all(channels.constant[data]))
    tp = coupling.tensor_size(events, channels, role, stage_size, alone)
    if tp is None:
        return None
    return ParallelLayout(tp=tp, pp=stages, dp=stage_size // tp)


def _communicators(
    trace: Trace,
    channels: Channels,
    role: NDArray[np.uint8],
    members: list[tuple[int, ...] | None],
    layout: ParallelLayout | None,
) -> tuple[Events, tuple[Communicator, ...]]:
    """The events with a complete ``comm`` column, and the communicators with members and axes."""
    present = seen_mask(channels.rank)
    lookup = GroupLookup(layout) if layout is not None else None
    table = list(trace.communicators)
    for i in np.flatnonzero(~channels.by_stream):
        comm, group = int(channels.key[i]), members[i]
        if table[comm].members is None or table[comm].axis is None:
            axis = _axis(lookup, Role(int(role[i])), group, present) if group else None
            table[comm] = replace(table[comm], members=group, axis=table[comm].axis or axis)
    comm_of = np.full(len(channels), NO_COMM, np.int32)
    comm_of[~channels.by_stream] = channels.key[~channels.by_stream].astype(np.int32)
    for axis, ranks, indices in _stream_clusters(channels, role, layout, lookup):
        comm_of[indices] = len(table)
        table.append(Communicator(id=len(table), members=ranks, axis=axis))
    column = comm_of[channels.of_event] if len(channels) else np.empty(0, np.int32)
    return trace.events.with_columns(comm=column), tuple(table)


def _axis(
    lookup: GroupLookup | None, role: Role, group: tuple[int, ...], present: NDArray[np.bool_]
) -> Axis | None:
    if lookup is None or len(group) < 2:
        return None
    ordered = AXES.get(role, ()) + tuple(axis for axis in Axis if axis not in AXES.get(role, ()))
    for axis in ordered:
        if lookup.is_group(axis, group, present):
            return axis
    return None


def _stream_clusters(
    channels: Channels, role: NDArray[np.uint8], layout: ParallelLayout | None, lookup: GroupLookup | None
) -> list[tuple[Axis | None, tuple[int, ...], list[int]]]:
    """Channels without a communicator, put together: (axis, members, channels).

    By the layout's groups where the role names an axis; bookkeeping channels by the order in which their
    ranks first used them, which is equal on all ranks of an SPMD program.
    """
    clusters: dict[tuple[Role, tuple[int, ...], int], list[int]] = {}
    used: dict[tuple[int, Role], int] = {}
    for i in np.flatnonzero(channels.by_stream):
        rank, kind = int(channels.rank[i]), Role(int(role[i]))
        nth = used.get((rank, kind), 0)
        used[(rank, kind)] = nth + 1
        if kind is Role.OTHER:
            group: tuple[int, ...] = ()
        elif lookup is None or channels.constant[i]:
            group = (rank,)
        else:
            group = tuple(sorted(int(member) for member in lookup.members(AXES[kind][0], rank)))
        clusters.setdefault((kind, group, nth), []).append(int(i))
    result: list[tuple[Axis | None, tuple[int, ...], list[int]]] = []
    for (kind, group, _), items in clusters.items():
        members = group or tuple(sorted(int(channels.rank[i]) for i in items))
        if kind is Role.OTHER:
            axis = Axis.WORLD if layout and len(members) == layout.world_size else None
        else:
            axis = AXES[kind][0] if len(members) > 1 else None
        result.append((axis, members, items))
    return result
