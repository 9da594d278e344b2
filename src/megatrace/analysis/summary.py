"""The job as it was seen: sizes, schedule, iterations, stage times, and the arrays that reports draw.

Only describes; findings come from ``slow`` and ``hang``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.phases import PhaseTable
from megatrace.analysis.reductions import median
from megatrace.analysis.work import WorkTable
from megatrace.model.finding import Finding, JobSummary, Pictures, StageTimes
from megatrace.model.schedule import Phase, Task

F8 = NDArray[np.float64]


def job_summary(resolved: Resolved, phases: PhaseTable | None, times: F8, baseline: str | None) -> JobSummary:
    """What is known of the job; ``times`` float64 [K]: iteration times in seconds."""
    events, it = resolved.trace.events, resolved.iterations
    known = times[~np.isnan(times)]
    schedule = phases.schedule if phases is not None else None
    nodes = {resolved.trace.place_of(rank).node for rank in range(resolved.world)} - {None}
    return JobSummary(
        ranks=resolved.world,
        ranks_seen=len(events.ranks()),
        nodes=len(nodes) or None,
        layout=resolved.layout,
        layout_source=resolved.layout_source,
        schedule=schedule,
        micro_batches=schedule.micro_batches if schedule else None,
        iterations=it.count if it is not None else None,
        iteration_numbering="absolute" if it is not None and it.absolute else "relative",
        iteration_median_ms=float(np.median(known) * 1e3) if len(known) else None,
        iteration_p95_ms=float(np.quantile(known, 0.95) * 1e3) if len(known) else None,
        first_time=int(events.enqueue.min()) if len(events) else None,
        last_time=int(events.enqueue.max()) if len(events) else None,
        baseline=baseline,
    )


def quiet_iterations(findings: Sequence[Finding], count: int) -> NDArray[np.bool_]:
    """bool [count]: iterations outside all findings' windows; all of them where too few would be left."""
    quiet = np.ones(count, np.bool_)
    for finding in findings:
        window = finding.window
        if window is not None and window.first_iteration is not None:
            last = count - 1 if window.last_iteration is None else window.last_iteration
            quiet[window.first_iteration : last + 1] = False
    return quiet if quiet.sum() >= 2 else np.ones(count, np.bool_)


def stage_times(
    table: WorkTable, tasks: tuple[tuple[Task, ...], ...], quiet: NDArray[np.bool_]
) -> tuple[StageTimes, ...]:
    """Median forward and backward of one micro-batch on each stage, and the stage's work and waiting an
    iteration.

    Over the ``quiet`` iterations (bool [K]): what the stages need when nothing is wrong.
    """
    if np.isnan(table.group[quiet]).all():
        quiet = np.ones(len(quiet), np.bool_)
    result: list[StageTimes] = []
    for stage, order in enumerate(tasks):
        forward = np.asarray([task.phase is Phase.FORWARD for task in order])
        work = table.group[quiet, stage]  # [K, D, T]
        flat = len(order) == 2 and len(tasks) == 1 and not np.nansum(work[..., 1])
        wait = table.wait[quiet, stage]
        waited = np.where(np.isnan(wait).all(axis=-1), np.nan, np.nansum(wait, axis=-1))
        result.append(
            StageTimes(
                stage=stage,
                forward_ms=None if flat else _ms(work[..., forward]),
                backward_ms=None if flat else _ms(work[..., ~forward]),
                work_ms=_ms(work.sum(axis=-1)),
                wait_ms=_ms(waited),
            )
        )
    return tuple(result)


def _ms(values: F8) -> float | None:
    known = values[~np.isnan(values)]
    return round(float(np.median(known)) * 1e3, 3) if len(known) else None


def worst_imbalance(table: WorkTable) -> float | None:
    """Longest stage's work against the median stage's, e.g. 1.10; None where a stage was not seen."""
    level = [_ms(table.group[:, stage].sum(axis=-1)) for stage in range(table.group.shape[1])]
    known = [value for value in level if value is not None]
    return max(known) / float(np.median(known)) if len(known) > 1 else None


# A heat map of more cells than this is thinned by whole tensor groups: no screen has more pixels.
CELLS = 4_000_000


def pictures(
    phases: PhaseTable | None,
    table: WorkTable | None,
    times: F8,
    anchors: F8,
    costs: Costs | None,
    drawn: int | None,
    group: tuple[int, int] | None,
) -> Pictures:
    """Arrays for drawing. ``drawn``: the iteration shown as a Gantt chart; ``group``: (stage, replica) of
    lateness."""
    numbers = np.arange(len(times))
    if table is None or phases is None:
        return Pictures(iteration=numbers, iteration_start_s=anchors - times, iteration_ms=times * 1e3)
    k, _, _, m, _ = table.begin.shape
    own = (
        table.own
        if table.own is not None
        else np.broadcast_to(table.group[:, :, :, None, :], table.begin.shape)
    )
    work = own.sum(axis=-1).reshape(k, -1).T * 1e3
    ranks = table.grid.reshape(-1)
    step = max(1, work.size // CELLS)
    order = np.argsort(ranks, kind="stable")[::step]
    shown: dict[str, object] = {}
    # An iteration without parts would be a single bar.
    if drawn is not None and 0 <= drawn < k and phases.schedule is not ONE_TASK:
        replica = group[1] if group is not None else 0
        shown = _gantt(phases, table, costs, drawn, replica)
    late_ranks = late = late_iteration = None
    if group is not None and m > 1:
        late_ranks = table.grid[group]
        flat = np.moveaxis(table.offset[:, group[0], group[1]], 1, 0).reshape(m, -1) * 1e3
        seen = ~np.isnan(flat).all(axis=0)
        late = flat[:, seen].astype(np.float32)
        late_iteration = np.repeat(np.arange(k), flat.shape[1] // k)[seen].astype(np.int32)
    return Pictures(
        iteration=numbers,
        iteration_start_s=anchors - times,
        iteration_ms=times * 1e3,
        work_ranks=ranks[order].astype(np.int32),
        work_ms=work[order].astype(np.float32),
        lateness_ranks=late_ranks,
        lateness_ms=late,
        lateness_iteration=late_iteration,
        **shown,  # type: ignore[arg-type]
    )


def _gantt(
    phases: PhaseTable, table: WorkTable, costs: Costs | None, k: int, replica: int
) -> dict[str, object]:
    """One iteration of one replica, by stage, with its critical path."""
    s, t = table.begin.shape[1], table.begin.shape[4]
    begin, end = table.begin[k, :, replica], table.end[k, :, replica]  # [S, M, T]
    critical = np.zeros((s, t), np.bool_)
    if costs is not None:
        where = np.flatnonzero(costs.iterations == k)
        if len(where):
            duration = costs.work[where[0]].max(axis=2) + costs.comm[where[0]]
            solution = costs.graph.solve(duration, p2p_delay=costs.transfer[where[0]].max(axis=2))
            for node in costs.graph.critical_path(solution):
                if node.replica == replica:
                    critical[node.stage, node.task] = True
    order = [phases.tasks[stage] for stage in range(s)]
    phase_index = {phase: i for i, phase in enumerate(Phase)}
    return {
        "task_iteration": k,
        "task_rank": np.repeat(table.grid[:, replica, 0], t).astype(np.int32),
        "task_stage": np.repeat(np.arange(s), t).astype(np.int32),
        "task_micro_batch": np.asarray([task.micro_batch for tasks in order for task in tasks], np.int32),
        "task_phase": np.asarray([phase_index[task.phase] for tasks in order for task in tasks], np.uint8),
        "task_start_s": median(begin, 1).reshape(-1),
        "task_end_s": median(end, 1).reshape(-1),
        "task_wait_s": median(table.wait[k, :, replica], 1).reshape(-1),
        "task_critical": critical.reshape(-1),
    }
