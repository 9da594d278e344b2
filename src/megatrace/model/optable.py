"""A table of operations: one row for each operation of a worker in a training step, with its start and
length.

This is what frameworks that time their own steps write down: forward and backward compute of every
micro-batch, sends and receives between pipeline stages, the collectives of the data-parallel group, the
optimizer. A worker is a (pipeline stage, data-parallel rank); of a tensor-parallel group one member stands
for all.

`dense` brings the rows into a grid, because every step and every replica runs the same operations. Does not
know what depends on what (``analysis.whatif_graph``), and reads no file (``readers.optable``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]


class OpType(Enum):
    """What an operation is, by the name that it has in the table."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    FORWARD_SEND = "forward-send"
    FORWARD_RECV = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECV = "backward-recv"
    PARAMS_GATHER = "params-all-gather"
    GRADS_SCATTER = "grads-reduce-scatter"
    LAYERNORM_GRADS = "layernorm-grads-all-reduce"
    EMBEDDING_GRADS = "embedding-grads-all-reduce"
    SEPARATE_GRADS = "separate-grads-all-reduce"
    CLIP = "optimizer-clip-main-grad"
    OPTIMIZER = "optimizer"
    COLLECTOR = "gc"
    """Python's garbage collector, run by hand where training frameworks have switched it off."""

    @property
    def computes(self) -> bool:
        """Whether its length is the worker's own; that of the others holds waiting or a transfer."""
        return self in _COMPUTES


_COMPUTES = frozenset({OpType.FORWARD, OpType.BACKWARD, OpType.OPTIMIZER, OpType.COLLECTOR})
OP_TYPES = tuple(OpType)
"""``OpTable.optype`` indexes it."""
NUMBER = {item: index for index, item in enumerate(OP_TYPES)}
"""The index of each type."""
UNKNOWN = -1
"""A model chunk or micro-batch that the table does not name."""


@dataclass(frozen=True, slots=True, eq=False)
class OpTable:
    """Rows in any order, columns of one length.

    step int64; replica (data-parallel rank), stage, rank int32; optype uint8 index into ``OP_TYPES``; start,
    """

    step: I8
    replica: NDArray[np.int32]
    stage: NDArray[np.int32]
    rank: NDArray[np.int32]
    optype: NDArray[np.uint8]
    start: I8
    duration: I8
    seq: NDArray[np.int32]
    chunk: NDArray[np.int32]
    micro_batch: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> OpTable:
        """Some of the rows."""
        return OpTable(*(getattr(self, name)[rows] for name in self.__slots__))

    @staticmethod
    def concatenate(tables: list[OpTable]) -> OpTable:
        """The rows of all tables, at least one."""
        return OpTable(
            *(np.concatenate([getattr(table, name) for table in tables]) for name in OpTable.__slots__)
        )


@dataclass(frozen=True, slots=True, eq=False)
class OpGrid:
    """The operations of one step and replica ("nodes", N of them), and their times in every lane.

    stage, optype, seq, chunk, micro_batch int32 [N]: what each node is, in order of (stage, optype, seq);
    start, duration float64 [N, steps, replicas] in seconds after the step's first operation; steps int64
    [steps]; replicas int32 [replicas]; rank int32 [stages, replicas]; stages int32 [stages] as the table
    numbers them (``stage`` indexes it); ``notes`` say in whole sentences what was left out.
    """

    stage: NDArray[np.int32]
    optype: NDArray[np.int32]
    seq: NDArray[np.int32]
    chunk: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    start: F8
    duration: F8
    steps: I8
    replicas: NDArray[np.int32]
    stages: NDArray[np.int32]
    rank: NDArray[np.int32]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def base(self) -> F8:
        """float64 [steps]: seconds of each step as it was recorded."""
        end: F8 = (self.start + self.duration).max(axis=(0, 2))
        begin: F8 = self.start.min(axis=(0, 2))
        return np.subtract(end, begin)

    def nodes(self, *wanted: OpType) -> NDArray[np.intp]:
        """The nodes of these types, in order."""
        return np.flatnonzero(np.isin(self.optype, [NUMBER[item] for item in wanted]))


USUAL = 0.5
"""Share of lanes in which an operation must stand to belong to the step: what fewer have is an event, not
part of the schedule (a garbage collection now and then)."""


SPARSE = 64
"""Cells of the grid for each row beyond which the rows are no steps of one job: every second would be too
many."""


class Unreplayable(ValueError):
    """A table's operations do not fit together; the message says how."""


def dense(table: OpTable) -> OpGrid:
    """The grid of a table with at least one row. Steps in which a worker lacks an operation are left out.

    Raises Unreplayable where the rows are not the same operations again and again.
    """
    steps, step = np.unique(table.step, return_inverse=True)
    replicas, replica = np.unique(table.replica, return_inverse=True)
    stages, stage = np.unique(table.stage, return_inverse=True)
    seqs = int(table.seq.max()) + 1
    key = (stage.astype(np.int64) * len(OP_TYPES) + table.optype) * seqs + table.seq
    keys, node = np.unique(key, return_inverse=True)
    shape = (len(keys), len(steps), len(replicas))
    if float(len(keys)) * len(steps) * len(replicas) > SPARSE * len(table) + 1_000_000:
        raise Unreplayable("its steps and workers have hardly an operation in common")
    flat = np.ravel_multi_index((node, step, replica), shape)
    origin = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(origin, step, table.start)
    start, duration = np.full(shape, np.nan), np.full(shape, np.nan)
    start.reshape(-1)[flat] = (table.start - origin[step]) / 1e9
    duration.reshape(-1)[flat] = table.duration / 1e9
    seen = ~np.isnan(duration)
    common = seen.mean(axis=(1, 2)) >= USUAL
    whole = seen[common].all(axis=(0, 2))
    first = np.zeros(len(keys), np.intp)
    first[node[::-1]] = np.arange(len(node))[::-1]
    rows = first[common]
    rank = np.full((len(stages), len(replicas)), UNKNOWN, np.int32)
    rank[stage, replica] = table.rank
    if not whole.any():
        raise Unreplayable("no step has the operations of all workers")
    return OpGrid(
        stage=stage[rows].astype(np.int32),
        optype=table.optype[rows].astype(np.int32),
        seq=table.seq[rows],
        chunk=table.chunk[rows],
        micro_batch=table.micro_batch[rows],
        start=np.ascontiguousarray(start[common][:, whole]),
        duration=np.ascontiguousarray(duration[common][:, whole]),
        steps=steps[whole],
        replicas=replicas,
        stages=stages,
        rank=rank,
        notes=_left_out(len(table), seen, common, whole),
    )


def _left_out(
    rows: int, seen: NDArray[np.bool_], common: NDArray[np.bool_], whole: NDArray[np.bool_]
) -> tuple[str, ...]:
    notes = []
    if not whole.all():
        lost = int((~whole).sum())
        notes.append(
            f"{lost:,} of {len(whole):,} steps were left out: a worker lacks an operation there that it has "
            "in the others."
        )
    if not common.all():
        rare = int(seen[~common].sum())
        notes.append(f"{rare:,} operations were left out: most steps and workers do not have them.")
    if int(seen.sum()) < rows:
        notes.append(f"{rows - int(seen.sum()):,} rows were left out: they repeat an operation.")
    return tuple(notes)
