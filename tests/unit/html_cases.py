"""The diagnoses of ``report_cases`` with pictures, and one in which every string tries to be markup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatrace.model.finding import Diagnosis, Pictures
from megatrace.model.layout import ParallelLayout
from megatrace.model.schedule import Phase, Schedule
from megatrace.model.series import Series, SeriesKind
from tests.unit import report_cases

PAYLOADS = (
    "<img src=x onerror=window.stolen=1>",
    "</script><script>window.stolen=1</script>",
    "\" autofocus onfocus='window.stolen=1' x=\"",
    "</style><svg/onload=window.stolen=1>",
    "<!--{{ 7*7 }}-->",
)


def wave(*shape: int) -> NDArray[np.float64]:
    """Values in 0.99 … 1.01 that are the same on every machine."""
    values = np.sin(np.arange(int(np.prod(shape)), dtype=np.float64) * 1.7)
    return np.asarray(1 + 0.01 * values.reshape(shape))


def iteration_pictures(count: int, median_ms: float, slow: slice, factor: float) -> Pictures:
    """Iteration times with a window of slow ones; the first is lost."""
    times = median_ms * wave(count)
    times[slow] *= factor
    times[0] = np.nan
    return Pictures(
        iteration=np.arange(count), iteration_start_s=np.nancumsum(times) / 1e3, iteration_ms=times
    )


def work(pictures: Pictures, layout: ParallelLayout, level_ms: float, slow: dict[int, float]) -> Pictures:
    """Adds the work of all ranks; ``slow`` ranks take so many times as long in the second half."""
    count = 0 if pictures.iteration is None else len(pictures.iteration)
    cells = level_ms * wave(layout.world_size, count)
    for rank, factor in slow.items():
        cells[rank, count // 2 :] *= factor
    cells[:, 0] = np.nan
    ranks = np.arange(layout.world_size, dtype=np.int32)
    return replace(pictures, work_ranks=ranks, work_ms=cells.astype(np.float32))


def gantt(pictures: Pictures, stages: int, per_stage: int, micro_batches: int, stopped: bool) -> Pictures:
    """Adds one iteration: all forwards, then all backwards; of a job that stands the last task is open."""
    rows = []
    for stage in range(stages):
        time = 10.0 + 0.04 * stage
        for phase, length in ((Phase.FORWARD, 0.04), (Phase.BACKWARD, 0.09)):
            for batch in range(micro_batches):
                rows.append((stage, batch, list(Phase).index(phase), time + 0.01, time + 0.01 + length))
                time += length + 0.01
    columns = np.asarray(rows, np.float64).T
    if stopped:
        columns = columns[:, columns[3] < 10.3]
        columns[4, columns[4] > 10.3] = np.nan
    of_stage, of_batch, of_phase, start, end = columns
    return replace(
        pictures,
        task_iteration=6 if stopped else 26,
        task_rank=(of_stage * per_stage).astype(np.int32),
        task_stage=of_stage.astype(np.int32),
        task_micro_batch=of_batch.astype(np.int32),
        task_phase=of_phase.astype(np.uint8),
        task_start_s=start,
        task_end_s=end,
        task_wait_s=np.full(len(start), 0.01),
        task_critical=of_stage == 1,
    )


def lateness(pictures: Pictures, ranks: tuple[int, ...], guilty: int) -> Pictures:
    """Adds lateness of a group, one of which comes 4 ms late in the second half."""
    late = 0.1 * wave(len(ranks), 200)
    late[ranks.index(guilty), 100:] += 4.0
    return replace(
        pictures,
        lateness_ranks=np.asarray(ranks, np.int32),
        lateness_ms=late.astype(np.float32),
        lateness_iteration=(np.arange(200) // 5).astype(np.int32),
    )


def slow_window() -> Diagnosis:
    """All pictures of a slowness, with recorded queues."""
    diagnosis = report_cases.slow_window()
    layout = ParallelLayout(tp=2, pp=4, dp=1)
    pictures = work(iteration_pictures(41, 1612.0, slice(21, 32), 2.02), layout, 1040.0, {2: 2.45, 3: 2.45})
    pictures = lateness(gantt(pictures, 4, 2, 8, stopped=False), (2, 3), 2)
    times = report_cases.T0 + np.arange(0, 116_000_000_000, 250_000_000)
    values = 40 * wave(len(times))
    series = tuple(
        Series(kind, name, rank, "node0", "mlx5_0", times, values * scale)
        for kind, name, rank, scale in (
            (SeriesKind.QUEUE_DEPTH, "to rank 4", 2, 1.0),
            (SeriesKind.QUEUE_DEPTH, "to rank 5", 3, 1.5),
            (SeriesKind.BANDWIDTH, "tx", None, 1e9),
        )
    )
    return replace(diagnosis, pictures=replace(pictures, series=series))


def hang() -> Diagnosis:
    """A large job that stands, with its last iteration as far as it came."""
    pictures = work(
        iteration_pictures(6, 6510.0, slice(0, 0), 1.0), ParallelLayout(tp=8, pp=5, dp=87), 655.0, {}
    )
    return replace(report_cases.hang(), pictures=gantt(pictures, 5, 696, 8, stopped=True))


def hang_enqueue_only() -> Diagnosis:
    """A hang of a small job."""
    layout = ParallelLayout(tp=2, pp=4, dp=1)
    pictures = work(iteration_pictures(12, 1612.0, slice(0, 0), 1.0), layout, 1040.0, {})
    return replace(report_cases.hang_enqueue_only(), pictures=gantt(pictures, 4, 2, 8, stopped=True))


def intermittent() -> Diagnosis:
    """Four hundred iterations, every tenth of them slow."""
    pictures = iteration_pictures(400, 842.0, slice(14, 392, 10), 1.3)
    pictures = work(pictures, ParallelLayout(tp=8, pp=4, dp=2), 595.0, {})
    return replace(report_cases.intermittent(), pictures=pictures)


def imbalance() -> Diagnosis:
    """One stage has more work."""
    pictures = iteration_pictures(41, 1612.0, slice(0, 0), 1.0)
    pictures = work(pictures, ParallelLayout(tp=2, pp=4, dp=1), 1040.0, {6: 1.22, 7: 1.22})
    return replace(report_cases.imbalance(), pictures=gantt(pictures, 4, 2, 8, stopped=False))


def healthy() -> Diagnosis:
    """Nothing wrong."""
    pictures = iteration_pictures(41, 1612.0, slice(0, 0), 1.0)
    pictures = work(pictures, ParallelLayout(tp=2, pp=4, dp=1), 1040.0, {})
    return replace(report_cases.healthy(), pictures=gantt(pictures, 4, 2, 8, stopped=False))


PICTURED: dict[str, Callable[[], Diagnosis]] = {
    "hang": hang,
    "hang_enqueue_only": hang_enqueue_only,
    "slow_window": slow_window,
    "intermittent": intermittent,
    "imbalance": imbalance,
    "healthy": healthy,
    "cannot_tell": report_cases.cannot_tell,
}


def poisoned(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with markup in every string that anything outside may have chosen."""
    result = _poison(diagnosis)
    assert isinstance(result, Diagnosis)
    return result


def _poison(value: Any) -> Any:
    if isinstance(value, str):
        return f"{value} {' '.join(PAYLOADS)}"
    if isinstance(value, tuple):
        return tuple(_poison(item) for item in value)
    if isinstance(value, Enum | ParallelLayout | Schedule) or not is_dataclass(value):
        return value
    return replace(
        value,  # type: ignore[type-var]
        **{field.name: _poison(getattr(value, field.name)) for field in fields(value)},
    )
