"""Host and device activities of all ranks as two tables, with what each launched and what launched it.

Names of all ranks share one numbering, so that a question to the profile is one grouping. Device time belongs
to the innermost operator that launched it; where the launch was not recorded, to the operator with the same
external id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.profile_stacks import (
    Rows,
    Stacks,
    host_rows,
    launches,
    outermost_of_name,
    own_time,
    places,
    stacks,
    summed,
)
from megatrace.model.profile import NONE, Activity, RankProfile


@dataclass(frozen=True, slots=True, eq=False)
class HostTable:
    """Host activities of all ranks as columns of one length; ``names`` and ``shapes`` by number.

    ``stack.row`` counts within each rank; ``parent`` and ``order`` within the table. ``launched`` is device
    time launched directly in an activity, ``device`` including all below it, ``own`` its time without its
    children.
    """

    rank: Rows
    name: Rows
    kind: NDArray[np.uint8]
    shape: Rows
    duration: Rows
    own: Rows
    launched: Rows
    device: Rows
    outer: NDArray[np.bool_]
    stack: Stacks
    names: tuple[str, ...]
    shapes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTable:
    """Device work of all ranks: ``operator`` is the place of the launching operator's name, or ``NONE``."""

    rank: Rows
    name: Rows
    operator: Rows
    duration: Rows
    names: tuple[str, ...]


_HOST = ("rank", "name", "kind", "shape", "duration", "own", "launched", "device", "outer")
_DEVICE = ("rank", "name", "operator", "duration")


class _Words:
    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, words: Sequence[str]) -> Rows:
        made = [self._numbers.setdefault(word, len(self._numbers)) for word in words]
        return np.array([*made, NONE], np.int64)  # the last is for "none"

    def all(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def tables(profiles: Sequence[RankProfile]) -> tuple[HostTable, DeviceTable]:
    """Host and device activities of all ranks."""
    names, shapes = _Words(), _Words()
    host: list[tuple[Any, ...]] = []
    device: list[tuple[Any, ...]] = []
    offset = 0
    for profile in profiles:
        word, shape = names(profile.names), shapes(profile.shapes)
        activities = profile.activities
        rows = host_rows(profile)
        stack = stacks(profile, rows)
        name = word[activities.name[rows]]
        work = profile.device_rows
        caller, launcher = _callers(profile, stack, launches(profile))
        launched = np.zeros(len(rows), np.int64)
        np.add.at(launched, launcher[launcher >= 0], activities.duration[work][launcher >= 0])
        total = summed(launched, stack)
        direct = np.zeros(len(rows), np.int64)
        np.add.at(direct, caller[caller >= 0], activities.duration[work][caller >= 0])
        rank = np.full(len(rows), profile.rank, np.int64)
        outer = outermost_of_name(name, stack)
        parent = np.where(stack.parent >= 0, stack.parent + offset, NONE)
        host.append(
            (rank, name, activities.kind[rows], shape[activities.shape[rows]], activities.duration[rows])
        )
        host[-1] += (own_time(profile, stack), direct, total, outer, rows, parent, stack.depth)
        operator = np.where(caller >= 0, name[caller] if len(name) else NONE, NONE)
        rank = np.full(len(work), profile.rank, np.int64)
        device.append((rank, word[activities.name[work]], operator, activities.duration[work]))
        offset += len(rows)
    columns: list[Any] = [np.concatenate(column) for column in zip(*host, strict=True)]
    table = HostTable(
        **dict(zip(_HOST, columns[:9], strict=True)),
        stack=Stacks(columns[9], columns[10], columns[11], np.empty(0, np.int64)),
        names=names.all(),
        shapes=shapes.all(),
    )
    works: list[Any] = [np.concatenate(column) for column in zip(*device, strict=True)]
    return table, DeviceTable(**dict(zip(_DEVICE, works, strict=True)), names=names.all())


def _callers(profile: RankProfile, stack: Stacks, launch: Rows) -> tuple[Rows, Rows]:
    """Per device row: the innermost operator that launched it, and the call, as places in the stack."""
    launcher = places(stack.row, launch)
    kind = profile.activities.kind[stack.row]
    caller = launcher.copy()
    while True:
        climb = (caller >= 0) & (kind[caller] == Activity.RUNTIME if len(kind) else False)
        if not np.any(climb):
            break
        caller[climb] = stack.parent[caller[climb]]
    return _by_external(profile, stack, caller), launcher


def _by_external(profile: RankProfile, stack: Stacks, caller: Rows) -> Rows:
    """Work whose launch was not recorded belongs to the operator with its external id."""
    activities = profile.activities
    lost = np.flatnonzero(caller < 0)
    operators = np.flatnonzero(activities.kind[stack.row] == Activity.OPERATOR)
    ids = activities.external[stack.row[operators]]
    order = np.argsort(ids, kind="stable")
    found = places(ids[order], activities.external[profile.device_rows[lost]])
    hit = (found >= 0) & (activities.external[profile.device_rows[lost]] > 0)
    caller[lost[hit]] = operators[order[found[hit]]]
    return caller
