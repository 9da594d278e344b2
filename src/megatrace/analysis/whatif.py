"""What-if analysis of an operation table: which operations, workers and stages the stragglers' time belongs
to.

The step is replayed with every operation of a type made equal, then with some of them as recorded (what they
alone cost) or all but some (what making them equal would save). All scenarios run in one pass.

Follows Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025),
equations 1 to 5, with M_S of its section 5.2. The verdict on these numbers is ``whatif_verdict``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.whatif_replay import F8, Mask, Replay
from megatrace.model.optable import NUMBER, OP_TYPES, OpGrid, OpTable, OpType, dense
from megatrace.model.whatif import WhatIfResult

SLOWEST = 0.03
"""Share of workers that M_W makes equal: machines that are sick are few (the paper's figure)."""
CANDIDATES = 32
"""Workers that are asked one by one what they cost: a few slow ones and the places where they cross."""
NOTHING = 1e-9
"""Seconds a step of which no share can be taken."""

K = TypeVar("K")

_TOGETHER = {
    OpType.FORWARD_SEND: "forward-pp-comm",
    OpType.FORWARD_RECV: "forward-pp-comm",
    OpType.BACKWARD_SEND: "backward-pp-comm",
    OpType.BACKWARD_RECV: "backward-pp-comm",
}
"""Both ends of a message are one thing: either end alone made equal would change nothing."""


@dataclass(slots=True)
class _Scenarios:
    """Masks of what stays as recorded, by name. ``kept`` bool [N, replicas] each."""

    names: list[tuple[str, object]] = field(default_factory=list)
    kept: list[Mask] = field(default_factory=list)

    def add(self, name: str, of: object, kept: Mask) -> None:
        """One more."""
        self.names.append((name, of))
        self.kept.append(kept)

    def means(self, replay: Replay) -> dict[tuple[str, object], float]:
        """Mean seconds of a step in each scenario."""
        times = replay.times(np.stack(self.kept)).mean(axis=1)
        return dict(zip(self.names, times.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """A table, its replay, and what it says; ``worker`` masks serve further questions."""

    replay: Replay
    result: WhatIfResult

    def share(self, kept: Mask) -> float:
        """The share of the stragglers' time that goes away where all but ``kept`` [N, replicas] are made
        equal."""
        r = self.result
        left = float(self.replay.times(kept[None]).mean())
        lost = float(r.replayed_s.mean() - r.equal_s.mean())
        return (float(r.replayed_s.mean()) - left) / lost if lost > NOTHING else 0.0

    def slowest(self) -> list[tuple[int, int]]:
        """(stage, replica) of the slowest 3 % of workers by what each alone costs.

        The lesser of a stage's and a replica's slowdown, by which M_W picks them, cannot tell two slow
        workers from the two places where their stages and replicas cross.
        """
        r, grid = self.result, self.replay.grid
        order = np.argsort(-r.by_worker.reshape(-1), kind="stable")[: max(len(r.slowest), CANDIDATES)]
        places = [(int(at // len(grid.replicas)), int(at % len(grid.replicas))) for at in order]
        kept = np.stack([~self.all_but([place]) for place in places])
        alone = self.replay.times(kept).mean(axis=1)
        return [places[at] for at in np.argsort(-alone, kind="stable")[: len(r.slowest)]]

    def all_but(self, workers: list[tuple[int, int]]) -> Mask:
        """Everything as recorded but what these (stage, replica) do."""
        kept = np.ones((len(self.replay.grid), len(self.replay.grid.replicas)), np.bool_)
        for stage, replica in workers:
            kept[self.replay.grid.stage == stage, replica] = False
        return kept


def study(table: OpTable) -> Study:
    """Replays a table. Raises Unreplayable where its operations do not fit together."""
    grid = dense(table)
    replay = Replay.of(grid)
    return Study(replay, _result(replay, len(table)))


def _result(replay: Replay, rows: int) -> WhatIfResult:
    grid = replay.grid
    shape = (len(grid), len(grid.replicas))
    ends = np.stack([np.ones(shape, np.bool_), np.zeros(shape, np.bool_)])
    replayed, equal = replay.times(ends)
    alone = _alone(grid).means(replay)
    base = max(float(equal.mean()), NOTHING)
    slow = {key: seconds / base for key, seconds in alone.items() if key[0] != "all but"}
    stages = np.array([slow["stage", s] for s in range(len(grid.stages))])
    replicas = np.array([slow["replica", d] for d in range(len(grid.replicas))])
    worker = np.minimum(stages[:, None], replicas[None, :])
    lost = float(replayed.mean()) - base
    slowest = _slowest(worker, grid.rank)
    saved: dict[object, float] = {}
    if lost > NOTHING:
        fixed = _fixed(grid, slowest).means(replay)
        saved = {key[1]: (float(replayed.mean()) - seconds) / lost for key, seconds in fixed.items()}
    return WhatIfResult(
        steps=grid.steps,
        recorded_s=grid.base,
        replayed_s=replayed,
        equal_s=equal,
        by_type=_ranked((str(key[1]), value) for key, value in slow.items() if key[0] == "type"),
        by_stage=_ranked((int(grid.stages[s]), float(stages[s])) for s in range(len(stages))),
        by_replica=_ranked((int(grid.replicas[d]), float(replicas[d])) for d in range(len(replicas))),
        by_worker=worker,
        worker_ranks=grid.rank,
        slowest=tuple(int(grid.rank[place]) for place in slowest),
        slowest_share=saved.get("slowest"),
        last_stage_share=saved.get(len(grid.stages) - 1),
        stage_shares=_ranked((int(grid.stages[s]), saved[s]) for s in range(len(stages)) if saved),
        compute_share=saved.get("compute"),
        operations=rows,
        micro_batches=int((grid.optype == NUMBER[OpType.FORWARD])[grid.stage == 0].sum()),
        notes=grid.notes,
    )


def _alone(grid: OpGrid) -> _Scenarios:
    """Each type, stage and replica as recorded, with all else equal."""
    scenarios = _Scenarios()
    shape = (len(grid), len(grid.replicas))
    names = [_TOGETHER.get(kind, kind.value) for kind in OP_TYPES]
    for name in dict.fromkeys(names):
        nodes = np.isin(grid.optype, [i for i, other in enumerate(names) if other == name])
        if nodes.any():
            scenarios.add("type", name, np.broadcast_to(nodes[:, None], shape))
    for stage in range(len(grid.stages)):
        scenarios.add("stage", stage, np.broadcast_to((grid.stage == stage)[:, None], shape))
    for replica in range(len(grid.replicas)):
        kept = np.zeros(shape, np.bool_)
        kept[:, replica] = True
        scenarios.add("replica", replica, kept)
    return scenarios


def _fixed(grid: OpGrid, slowest: list[tuple[int, int]]) -> _Scenarios:
    """Each stage, the slowest workers, and all compute made equal, with all else as recorded."""
    scenarios = _Scenarios()
    shape = (len(grid), len(grid.replicas))
    for stage in range(len(grid.stages)):
        scenarios.add("all but", stage, np.broadcast_to((grid.stage != stage)[:, None], shape))
    kept = np.ones(shape, np.bool_)
    for stage, replica in slowest:
        kept[grid.stage == stage, replica] = False
    scenarios.add("all but", "slowest", kept)
    compute = np.isin(grid.optype, [NUMBER[OpType.FORWARD], NUMBER[OpType.BACKWARD]])
    scenarios.add("all but", "compute", np.broadcast_to(~compute[:, None], shape))
    return scenarios


def _slowest(worker: F8, rank: NDArray[np.int32]) -> list[tuple[int, int]]:
    """(stage, replica) of the slowest 3 % of workers, at least one, the slowest first."""
    count = -(-worker.size * round(100 * SLOWEST) // 100)
    order = np.lexsort((rank.reshape(-1), -worker.reshape(-1)))[:count]
    return [(int(place // worker.shape[1]), int(place % worker.shape[1])) for place in order]


def _ranked(items: Iterable[tuple[K, float]]) -> tuple[tuple[K, float], ...]:
    return tuple(sorted(items, key=lambda item: -item[1]))
