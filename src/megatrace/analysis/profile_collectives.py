"""Communication kernels by operation, group and size: how long, how much of it exposed, at which bandwidth.

Bandwidth as nccl-tests count it: algorithm bandwidth is payload over time, bus bandwidth multiplies it by
what the operation must move over the slowest link for each byte of payload, so that it compares with the
hardware. A kernel also lasts while its rank waits for the others; where several ranks of a group were
recorded, the time of a call is that of its last comer, the shortest kernel. With one rank, bandwidths are
lower bounds.

What a kernel carried stands in its arguments, else in those of the call that launched it
(``record_param_comms``, ``nccl:…``); older recordings have no group, and then no bus bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

import numpy as np

from megatrace.analysis.gpu_types import gpu_type
from megatrace.analysis.profile_overlap import Intervals, common, covered, length, union
from megatrace.analysis.profile_stacks import host_rows, launches, places, stacks
from megatrace.model.events import Op
from megatrace.model.profile import NONE, Collective, RankProfile, Work
from megatrace.model.profile_names import element_bytes, operation
from megatrace.model.profile_result import CollectiveTime

_TENSOR = re.compile(r"([A-Za-z][\w: ]*)?\[([\d,]+)\]")
_WHOLE_OUTPUT = frozenset({Op.ALL_GATHER, Op.GATHER})
"""Operations whose size is what a rank has afterwards."""


def bus_factor(op: Op, members: int) -> float:
    """Bytes over the slowest link for each byte of payload (nccl-tests, PERFORMANCE.md)."""
    if op is Op.ALL_REDUCE:
        return 2 * (members - 1) / members
    if op in (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.GATHER, Op.SCATTER):
        return (members - 1) / members
    return 1.0


def payload(call: Collective) -> int | None:
    """Bytes of a call as nccl-tests count them, None where they were not recorded."""
    elements = call.elements_out if call.op in _WHOLE_OUTPUT else call.elements_in
    if elements is None or call.element is None:
        return None
    return elements * call.element


@dataclass(frozen=True, slots=True)
class Call:
    """One communication kernel: ns on its rank's clock, ``exposed`` of it; ``nth`` call of its kind on the
    rank.
    """

    rank: int
    call: Collective
    start: int
    end: int
    exposed: int
    nth: int
    row: int = NONE
    """of the profile, ``NONE`` where it is of a recording"""

    @property
    def duration(self) -> int:
        """ns."""
        return self.end - self.start


def calls(profile: RankProfile) -> tuple[Call, ...]:
    """The communication kernels of one rank in order of their begin."""
    activities, device = profile.activities, profile.device_rows
    work = profile.work[activities.name[device]]
    mine = work == Work.COMMUNICATION
    rows = device[mine]
    if not len(rows):
        return ()
    meant = _meant(profile, launches(profile)[mine].tolist(), rows.tolist())
    start, end = activities.start[rows], activities.end[rows]
    hidden = covered(end, compute := _compute(profile)) - covered(start, compute)
    seen: dict[Collective, int] = {}
    found = []
    for at in np.argsort(start, kind="stable").tolist():
        call = meant[at]
        begin, over = int(start[at]), int(end[at])
        seen[call] = seen.get(call, NONE) + 1
        found.append(
            Call(profile.rank, call, begin, over, over - begin - int(hidden[at]), seen[call], int(rows[at]))
        )
    return tuple(found)


def _compute(profile: RankProfile) -> Intervals:
    activities, rows = profile.activities, profile.device_rows
    rows = rows[profile.work[activities.name[rows]] == Work.COMPUTE]
    return union(activities.start[rows], activities.end[rows])


def bubble(profile: RankProfile, found: Sequence[Call]) -> int | None:
    """ns in which a rank exchanged with another stage, waiting for it included, and nothing computed; None
    where no Send and no Recv was recorded by name."""
    exchanges = [one for one in found if one.call.op.is_p2p]
    if not exchanges:
        return None
    busy = union(np.array([one.start for one in exchanges]), np.array([one.end for one in exchanges]))
    return length(busy) - common(busy, _compute(profile))


def _meant(profile: RankProfile, launched_by: list[int], rows: list[int]) -> list[Collective]:
    """What each kernel carried."""
    activities = profile.activities
    if all(profile.activities.collective[rows] != NONE):
        return [profile.collectives[number] for number in activities.collective[rows].tolist()]
    stack = stacks(profile, host_rows(profile))
    place = places(stack.row, np.array(launched_by, np.int64)).tolist()
    found = []
    for row, at in zip(rows, place, strict=True):
        number = int(activities.collective[row])
        name = profile.names[activities.name[row]]
        call = profile.collectives[number] if number != NONE else Collective(operation(name))
        while at != NONE and (call.elements_in is None or not call.group):
            said = int(stack.row[at])
            number = int(activities.collective[said])
            if number != NONE:
                call = profile.collectives[number]
                break
            if profile.names[activities.name[said]].startswith("nccl:") and call.elements_in is None:
                call = _by_shape(profile, said, call.op)
            at = int(stack.parent[at])
        found.append(call)
    return found


def _by_shape(profile: RankProfile, row: int, op: Op) -> Collective:
    shape = int(profile.activities.shape[row])
    said = operation(profile.names[profile.activities.name[row]].removeprefix("nccl:"))
    tensors = _TENSOR.findall(profile.shapes[shape]) if shape != NONE else []
    if not tensors:
        return Collective(said if said is not Op.UNKNOWN else op)
    elements = sum(prod(int(size) for size in sizes.split(",") if size) for _, sizes in tensors)
    dtype = tensors[0][0].strip()
    return Collective(
        said if said is not Op.UNKNOWN else op,
        dtype=dtype,
        element=element_bytes(dtype),
        elements_in=elements,
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of the machines of a job: GPUs of each, and bytes/s that one sends to the others, one
    way."""

    gpus: int = 0
    link: float | None = None

    def holds(self, ranks: Sequence[int]) -> bool:
        """Whether ranks lie on one machine, if ranks are counted machine by machine."""
        return self.gpus > 0 and len(ranks) > 1 and len({rank // self.gpus for rank in ranks}) == 1


def machine_of(profiles: Sequence[RankProfile]) -> Machine:
    """Of recorded profiles; nothing is known where they differ."""
    names, counts = {one.device_name for one in profiles}, {one.gpus for one in profiles}
    kind = gpu_type(names.pop()) if len(names) == 1 else None
    return Machine(counts.pop() if len(counts) == 1 else 0, None if kind is None else kind.link)


def collectives(
    found: Sequence[Sequence[Call]], machine: Machine | None = None
) -> tuple[CollectiveTime, ...]:
    """Calls of all ranks (one sequence a rank) by operation, group and payload, the most time first."""
    machine = machine or Machine()
    kinds: dict[tuple[Op, str, tuple[int, ...], int | None, int | None], list[Call]] = {}
    for calls_of_rank in found:
        for one in calls_of_rank:
            key = (one.call.op, one.call.group, one.call.ranks, one.call.group_size, payload(one.call))
            kinds.setdefault(key, []).append(one)
    made = _beside([_row(calls_of_kind, machine) for calls_of_kind in kinds.values()])
    return tuple(sorted(made, key=lambda row: -row.total))


def _beside(rows: list[CollectiveTime]) -> list[CollectiveTime]:
    """With the bandwidth of other groups like it beside each."""
    like: dict[tuple[Op, int | None, int | None], list[CollectiveTime]] = {}
    for row in rows:
        if row.bus is not None:
            like.setdefault((row.op, row.nbytes, row.group_size), []).append(row)
    told = []
    for row in rows:
        others = [
            one.bus
            for one in like.get((row.op, row.nbytes, row.group_size), [])
            if one is not row and one.bus is not None
        ]
        told.append(replace(row, alike=median(others)) if others and row.bus is not None else row)
    return told


def _row(found: list[Call], machine: Machine) -> CollectiveTime:
    call = found[0].call
    times = sorted(_call_times(found))
    middle, size = times[(len(times) - 1) // 2], payload(call)
    algorithm = size / middle * 1e9 if size and middle else None
    members = call.group_size
    return CollectiveTime(
        op=call.op,
        group=call.group,
        group_size=members,
        nbytes=size,
        count=len(found),
        total=sum(one.duration for one in found),
        exposed=sum(one.exposed for one in found),
        p50=middle,
        shortest=times[0],
        longest=times[-1],
        algorithm=algorithm,
        bus=algorithm * bus_factor(call.op, members) if algorithm and members and members > 1 else None,
        ranks=tuple(sorted({one.rank for one in found})),
        dtype=call.dtype,
        link=machine.link if machine.holds(call.ranks) else None,
    )


def _call_times(found: list[Call]) -> list[int]:
    """How long each call took: its shortest kernel where all ranks were recorded equally often."""
    by_rank: dict[int, list[int]] = {}
    for one in found:
        by_rank.setdefault(one.rank, []).append(one.duration)
    counts = {len(times) for times in by_rank.values()}
    if len(by_rank) > 1 and len(counts) == 1 and found[0].call.ranks:
        return [min(times) for times in zip(*by_rank.values(), strict=True)]
    return [one.duration for one in found]
