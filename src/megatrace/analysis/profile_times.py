"""How long operators and kernels took: counts, totals, own times, percentiles; all ranks together and apart.

Each question is one grouping of the tables of ``profile_tables``. Totals count no time twice: an operator
that calls itself counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.profile_stacks import Rows
from megatrace.analysis.profile_tables import DeviceTable, HostTable
from megatrace.model.profile import NONE, Activity, Work
from megatrace.model.profile_result import Frame, KernelTime, OperatorTime, TimeKind

MODULE = "nn.Module: "
"""How the profiler names a module among Python functions."""
SMALLEST_FRAME = 1e-3
"""Share of all time below which a frame is not drawn: a pixel of a wide screen."""
KIND_OF_WORK = {
    Work.COMPUTE: TimeKind.COMPUTE,
    Work.COMMUNICATION: TimeKind.COMMUNICATION,
    Work.MEMORY: TimeKind.MEMORY,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Rows sorted by key and value: ``first`` and ``count`` of each group in ``order``."""

    keys: Rows
    order: Rows
    first: Rows
    count: Rows

    def quantile(self, values: NDArray[Any], share: float) -> list[int]:
        """The value that this share of a group does not exceed (nearest rank)."""
        at = self.first + np.maximum(np.ceil(self.count * share).astype(np.int64) - 1, 0)
        return [int(value) for value in values[self.order[at]]]

    def sums(self, values: NDArray[Any]) -> list[int]:
        """The sum of each group."""
        if not len(self.keys):
            return []
        return [int(value) for value in np.add.reduceat(values[self.order].astype(np.int64), self.first)]


def grouped(key: NDArray[Any], value: NDArray[Any]) -> _Groups:
    """Groups of equal keys, ascending by key, each ascending by value."""
    order = np.lexsort((value, key))
    keys, first, count = np.unique(key[order], return_index=True, return_counts=True)
    return _Groups(keys.astype(np.int64), order.astype(np.int64), first, count)


def by_rank(key: Rows, rank: Rows, value: Rows) -> dict[int, tuple[tuple[int, int], ...]]:
    """key -> (rank, sum of value), ascending by rank."""
    if not len(key):
        return {}
    both, inverse = np.unique(np.stack((key, rank)), axis=1, return_inverse=True)
    total = np.zeros(both.shape[1], np.int64)
    np.add.at(total, inverse.reshape(-1), value)
    found: dict[int, list[tuple[int, int]]] = {}
    for one, where, amount in zip(both[0].tolist(), both[1].tolist(), total.tolist(), strict=True):
        found.setdefault(one, []).append((where, amount))
    return {one: tuple(pairs) for one, pairs in found.items()}


def operators(table: HostTable, kinds: Iterable[int] = (Activity.OPERATOR,)) -> tuple[OperatorTime, ...]:
    """Activities of these kinds by name, the most own time first."""
    rows = np.flatnonzero(np.isin(table.kind, list(kinds)))
    return _operator_times(table, rows, table.name[rows], lambda key: (table.names[key], ""))


def by_shape(table: HostTable) -> tuple[OperatorTime, ...]:
    """Operators by name and input shape, where shapes were recorded."""
    rows = np.flatnonzero((table.kind == Activity.OPERATOR) & (table.shape >= 0))
    width = max(len(table.shapes), 1)
    key = table.name[rows] * width + table.shape[rows]
    return _operator_times(
        table, rows, key, lambda one: (table.names[one // width], table.shapes[one % width])
    )


def modules(table: HostTable) -> tuple[OperatorTime, ...]:
    """Modules of the model where Python stacks were recorded, else the ranges that the program named."""
    is_module = np.array([*(name.startswith(MODULE) for name in table.names), False], np.bool_)
    rows = np.flatnonzero((table.kind == Activity.FUNCTION) & is_module[table.name])
    if not len(rows):
        rows = np.flatnonzero(table.kind == Activity.ANNOTATION)
    return _operator_times(table, rows, table.name[rows], lambda key: (table.names[key], ""))


def _operator_times(
    table: HostTable, rows: Rows, key: Rows, said: Callable[[int], tuple[str, str]]
) -> tuple[OperatorTime, ...]:
    duration, own = table.duration[rows], table.own[rows]
    groups = grouped(key, duration)
    outer = table.outer[rows]
    ranks = by_rank(key, table.rank[rows], own)
    made = [
        replace(OperatorTime(said(one)[0], *figures), shape=said(one)[1], by_rank=ranks[one])
        for one, *figures in zip(
            groups.keys.tolist(),
            groups.count.tolist(),
            groups.sums(duration * outer),
            groups.sums(own),
            groups.quantile(duration, 0.5),
            groups.quantile(duration, 0.95),
            groups.quantile(duration, 1.0),
            groups.sums(table.launched[rows]),
            groups.sums(table.device[rows] * outer),
            strict=True,
        )
    ]
    return tuple(sorted(made, key=lambda item: (-item.own, item.name, item.shape)))


def kernels(table: DeviceTable, work: dict[str, Work]) -> tuple[KernelTime, ...]:
    """Kernels, copies and sets by name, the most time first."""
    groups = grouped(table.name, table.duration)
    ranks = by_rank(table.name, table.rank, table.duration)
    callers = _kernel_operators(table)
    made = [
        replace(
            KernelTime(table.names[one], KIND_OF_WORK[work[table.names[one]]], *figures),
            by_rank=ranks[one],
            operators=callers.get(one, ()),
        )
        for one, *figures in zip(
            groups.keys.tolist(),
            groups.count.tolist(),
            groups.sums(table.duration),
            groups.quantile(table.duration, 0.5),
            groups.quantile(table.duration, 0.95),
            groups.quantile(table.duration, 0.0),
            groups.quantile(table.duration, 1.0),
            strict=True,
        )
    ]
    return tuple(sorted(made, key=lambda item: (-item.total, item.name)))


def _kernel_operators(table: DeviceTable) -> dict[int, tuple[str, ...]]:
    known = table.operator >= 0
    pairs = by_rank(table.name[known], table.operator[known], table.duration[known])
    return {
        name: tuple(table.names[operator] for operator, _ in sorted(found, key=lambda pair: -pair[1]))
        for name, found in pairs.items()
    }


def flame(table: HostTable) -> Frame | None:
    """All stacks as one tree, children by name, the longest first; frames too small to see are left out."""
    if not len(table.name):
        return None
    path = np.full(len(table.name), NONE, np.int64)
    parent_of: list[int] = []
    name_of: list[int] = []
    for level in range(int(table.stack.depth.max()) + 1):
        at = np.flatnonzero(table.stack.depth == level)
        above = path[table.stack.parent[at]] if level else np.full(len(at), NONE, np.int64)
        pairs, inverse = np.unique(np.stack((above, table.name[at])), axis=1, return_inverse=True)
        path[at] = len(parent_of) + inverse.reshape(-1)
        parent_of += pairs[0].tolist()
        name_of += pairs[1].tolist()
    sums = [
        np.bincount(path, weights=column, minlength=len(parent_of)).astype(np.int64)
        for column in (table.duration, table.own, table.device)
    ]
    count = np.bincount(path, minlength=len(parent_of))
    return _tree(table, parent_of, name_of, [*sums, count])


def _tree(table: HostTable, parent_of: list[int], name_of: list[int], sums: list[Rows]) -> Frame:
    total, own, device, count = sums
    top = np.array(parent_of, np.int64) < 0
    whole, work = int(total[top].sum()), int(device[top].sum())
    kept = (total >= SMALLEST_FRAME * whole) | (device >= SMALLEST_FRAME * max(work, 1))
    children: dict[int, list[Frame]] = {}
    for at in range(len(parent_of) - 1, -1, -1):  # children come after their parents
        if kept[at]:
            inner = sorted(children.pop(at, ()), key=lambda frame: -frame.total)
            name = table.names[name_of[at]]
            made = Frame(name, int(total[at]), int(own[at]), int(device[at]), int(count[at]), tuple(inner))
            children.setdefault(parent_of[at], []).append(made)
    roots = sorted(children.get(NONE, ()), key=lambda frame: -frame.total)
    return Frame("all", whole, 0, work, int(count[top].sum()), tuple(roots))
