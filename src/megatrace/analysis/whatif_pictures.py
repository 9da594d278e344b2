"""Arrays of an operation table that reports draw: step times, work of every worker, one step with its path.

Only describes; ``whatif_verdict`` judges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.whatif_lengths import COMPUTE, own_compute
from megatrace.analysis.whatif_replay import Replay
from megatrace.model.finding import Pictures, StageTimes
from megatrace.model.layout import ParallelLayout
from megatrace.model.optable import NUMBER, OpGrid, OpType
from megatrace.model.schedule import Phase


def layout_of(grid: OpGrid) -> ParallelLayout | None:
    """The layout where ranks count through replicas first and stages then, as Megatron-LM's do."""
    pp, dp = grid.rank.shape
    if not np.array_equal(grid.rank.reshape(-1), np.arange(pp * dp)):
        return None
    chunks = int(np.maximum(grid.chunk[grid.nodes(*COMPUTE)], 0).max()) + 1
    return ParallelLayout(pp=pp, dp=dp, vpp=chunks)


def stage_times(grid: OpGrid) -> tuple[StageTimes, ...]:
    """Medians over steps and replicas."""
    times = []
    for stage in range(len(grid.stages)):
        both = [
            grid.duration[nodes[grid.stage[nodes] == stage]]
            for nodes in (grid.nodes(kind) for kind in COMPUTE)
        ]
        forward, backward = (round(float(np.median(t)) * 1e3, 3) if t.size else None for t in both)
        work = sum(t.sum(axis=0) for t in both)
        wait = grid.base[:, None] - work
        times.append(
            StageTimes(
                stage=int(grid.stages[stage]),
                forward_ms=forward,
                backward_ms=backward,
                work_ms=round(float(np.median(work)) * 1e3, 3),
                wait_ms=round(float(np.median(wait)) * 1e3, 3),
            )
        )
    return tuple(times)


def pictures(replay: Replay) -> Pictures:
    """Step times, the work of every worker, and the step of median length as a Gantt chart of the replica
    that holds most of its critical path."""
    grid = replay.grid
    base = grid.base
    begin = np.concatenate([[0.0], np.cumsum(base)[:-1]])
    order = np.argsort(grid.rank.reshape(-1), kind="stable")
    work = own_compute(grid).reshape(grid.rank.size, -1)[order] * 1e3
    drawn = int(np.argsort(base, kind="stable")[len(base) // 2])
    path = critical(replay, drawn)
    replica = int(path[grid.nodes(*COMPUTE)].sum(axis=0).argmax())
    nodes = np.concatenate([_in_order(grid, stage, drawn, replica) for stage in range(len(grid.stages))])
    start = grid.start[nodes, drawn, replica]
    end = start + grid.duration[nodes, drawn, replica]
    same = np.concatenate([[False], np.diff(grid.stage[nodes]) == 0])
    wait = np.where(same, start - np.concatenate([[0.0], end[:-1]]), start)
    kinds = [list(Phase).index(phase) for phase in (Phase.BACKWARD, Phase.FORWARD)]
    backward = grid.optype[nodes] == NUMBER[OpType.BACKWARD]
    return Pictures(
        iteration=np.arange(len(base)),
        iteration_start_s=begin,
        iteration_ms=base * 1e3,
        work_ranks=grid.rank.reshape(-1)[order],
        work_ms=work.astype(np.float32),
        task_iteration=drawn,
        task_rank=grid.rank[grid.stage[nodes], replica],
        task_stage=grid.stage[nodes],
        task_micro_batch=np.where(grid.micro_batch[nodes] < 0, grid.seq[nodes], grid.micro_batch[nodes]),
        task_phase=np.where(backward, *kinds).astype(np.uint8),
        task_start_s=begin[drawn] + start,
        task_end_s=begin[drawn] + end,
        task_wait_s=np.maximum(wait, 0.0),
        task_critical=path[nodes, replica],
    )


def _in_order(grid: OpGrid, stage: int, step: int, replica: int) -> NDArray[np.intp]:
    nodes = grid.nodes(*COMPUTE)
    nodes = nodes[grid.stage[nodes] == stage]
    ordered: NDArray[np.intp] = nodes[np.argsort(grid.start[nodes, step, replica], kind="stable")]
    return ordered


def critical(replay: Replay, step: int) -> NDArray[np.bool_]:
    """bool [N, replicas]: the operations that the replayed step had to wait for, walked back from its end."""
    grid = replay.grid
    kept = np.ones((1, len(grid), len(grid.replicas)), np.bool_)
    one = Replay(_only(grid, step), replay.graph, replay.own[:, step : step + 1], replay.ideal)
    start, end = (times[:, 0, 0] for times in one.run(kept))  # [N, replicas]
    on = np.zeros(end.shape, np.bool_)
    meets = {node: meeting for meeting in replay.graph.meetings for node in meeting.nodes}
    node, lane = (int(i) for i in np.unravel_index(int(end.argmax()), end.shape))
    while True:
        on[node, lane] = True
        meeting = meets[node]
        lanes = range(end.shape[1]) if meeting.replicas else (lane,)
        node, lane = max(((n, d) for n in meeting.nodes for d in lanes), key=lambda at: start[at])
        on[node, lane] = True
        before = replay.graph.before[node]
        if not before:
            return on
        node = max(before, key=lambda n: end[n, lane])


def _only(grid: OpGrid, step: int) -> OpGrid:
    return OpGrid(
        grid.stage,
        grid.optype,
        grid.seq,
        grid.chunk,
        grid.micro_batch,
        grid.start[:, step : step + 1],
        grid.duration[:, step : step + 1],
        grid.steps[step : step + 1],
        grid.replicas,
        grid.stages,
        grid.rank,
    )
