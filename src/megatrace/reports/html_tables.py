"""Tables of the HTML report: those that stand for themselves, and those beside each picture.

A picture that only draws shuts out whoever cannot see it and cannot be quoted in a ticket; so each has its
most telling numbers as a table (the longest ones where there are many).

Only picks, sorts and rounds what is in the `Diagnosis`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.model.finding import Diagnosis, Pictures, Severity, Verdict, Window
from megatrace.model.schedule import Phase
from megatrace.model.series import SeriesKind
from megatrace.model.trace import Observable
from megatrace.reports.describe import Scene, iterations, moment
from megatrace.reports.html_data import rows_joined, series_name
from megatrace.reports.html_texts import PageTexts
from megatrace.reports.wording import plain, spoken, wall_time
from megatrace.units import NS_PER_MS, format_count, format_number, say_ranks

MAX_ROWS = 12
"""Rows of a table beside a picture: the longest iterations, the busiest ranks."""
BAR = 100
"""Units of a bar's full length in its drawing."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of a row; ``marked`` where it is about the culprit; ``bar`` is (work, wait) of 100 or None."""

    cells: tuple[str, ...]
    marked: bool = False
    bar: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its heading; columns from ``numbers`` on are aligned right."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    numbers: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture: ``id`` tells the script which, ``say`` explains it, ``table`` has its numbers."""

    id: str
    title: str
    say: str
    table: Table


def figures(diagnosis: Diagnosis, scene: Scene, page: PageTexts) -> tuple[Figure, ...]:
    """The pictures that the diagnosis has data for, in the order in which they argue: of a job that stands
    the iteration that was not finished comes first."""
    p = diagnosis.pictures
    culprits = set(diagnosis.findings[0].culprits.ranks) if diagnosis.findings else set()
    times, heat = _iterations(diagnosis, scene, page), _heat(diagnosis, p, page, culprits)
    stands = diagnosis.verdict is Verdict.HANG
    gantt, late = _gantt(p, page, culprits, stands), _late(p, page, culprits)
    found = (gantt, times, heat, late) if stands else (times, heat, gantt, late)
    return tuple(figure for figure in (*found, *_series(p, page)) if figure is not None)


def _iterations(diagnosis: Diagnosis, scene: Scene, page: PageTexts) -> Figure | None:
    p = diagnosis.pictures
    if p.iteration is None or p.iteration_ms is None or not np.isfinite(p.iteration_ms).any():
        return None
    window = _shaded(diagnosis)
    numbers = p.iteration.tolist()
    throughout = window is None or (
        window.first_iteration == numbers[0] and window.last_iteration in (None, numbers[-1])
    )
    shaded = "" if window is None or throughout else iterations(scene, window)
    longest, note = _longest(p.iteration_ms, page)
    starts = p.iteration_start_s
    rows = tuple(
        Row(
            (
                str(int(p.iteration[i])),
                "–" if starts is None or not np.isfinite(starts[i]) else f"{float(starts[i]):,.1f} s",
                _ms(float(p.iteration_ms[i])),
            ),
            marked=_inside(int(p.iteration[i]), diagnosis),
        )
        for i in longest
    )
    say = page("iterations_say", window=page("iterations_window", window=shaded) if shaded else "").strip()
    table = Table(note, (page("iteration"), page("starts"), page("takes")), rows)
    return Figure("iterations", page("iterations"), say, table)


def _shaded(diagnosis: Diagnosis) -> Window | None:
    """The window that the pictures shade: that of the first finding that is more than a note."""
    serious = (item for item in diagnosis.findings if item.severity <= Severity.P2)
    first = next(serious, None)
    return None if first is None else first.window


def _inside(number: int, diagnosis: Diagnosis) -> bool:
    window = _shaded(diagnosis)
    if window is None or window.first_iteration is None or number < window.first_iteration:
        return False
    return window.last_iteration is None or number <= window.last_iteration


def _heat(diagnosis: Diagnosis, p: Pictures, page: PageTexts, culprits: set[int]) -> Figure | None:
    if p.work_ms is None or p.work_ranks is None or not np.isfinite(p.work_ms).any():
        return None
    said = [page("heat_say")]
    if not diagnosis.coverage.has(Observable.START, Observable.END):
        said.append(page("heat_group"))
    joined = rows_joined(p.work_ms.size)
    if joined > 1:
        said.append(page("heat_joined", count=joined))
    if len(p.work_ranks) < diagnosis.job.ranks:
        drawn, total = format_count(len(p.work_ranks)), format_count(diagnosis.job.ranks)
        said.append(page("heat_thinned", drawn=drawn, total=total))
    seen = np.isfinite(p.work_ms)
    longest = np.where(seen.any(axis=1), np.max(np.where(seen, p.work_ms, -np.inf), axis=1), np.nan)
    rows, note = _longest(longest, page)
    body = tuple(
        Row(
            (
                str(int(p.work_ranks[i])),
                _ms(float(np.median(p.work_ms[i][seen[i]]))),
                _ms(float(longest[i])),
            ),
            marked=int(p.work_ranks[i]) in culprits,
        )
        for i in rows
    )
    table = Table(note, (page("rank"), page("median_work"), page("longest_work")), body)
    return Figure("heat", page("heat"), " ".join(said), table)


_PHASES = {phase: index for index, phase in enumerate(Phase)}


def _gantt(p: Pictures, page: PageTexts, culprits: set[int], stands: bool) -> Figure | None:
    if p.task_start_s is None or p.task_end_s is None or p.task_stage is None or p.task_rank is None:
        return None
    seen = np.flatnonzero(np.isfinite(p.task_start_s) & (np.isfinite(p.task_end_s) | stands))
    if not len(seen) or p.task_phase is None or p.task_micro_batch is None:
        return None
    length = np.where(np.isfinite(p.task_end_s[seen]), p.task_end_s[seen] - p.task_start_s[seen], np.inf)
    chosen = seen[np.argsort(-length, kind="stable")[:MAX_ROWS]]
    zero = float(p.task_start_s[seen].min())
    names = [page("forward"), page("backward"), "sync", "other"]
    rows = tuple(
        Row(
            (
                str(int(p.task_stage[i])),
                str(int(p.task_rank[i])),
                f"{names[int(p.task_phase[i])]} {int(p.task_micro_batch[i])}",
                _ms((float(p.task_start_s[i]) - zero) * 1e3),
                _ms((float(p.task_end_s[i]) - zero) * 1e3)
                if math.isfinite(p.task_end_s[i])
                else page("never"),
            ),
            marked=int(p.task_rank[i]) in culprits,
        )
        for i in chosen
    )
    head = (page("stage"), page("rank"), page("task"), page("starts"), page("ends"))
    known = p.task_iteration is not None
    title = page("gantt", number=p.task_iteration) if known else page("gantt_plain")
    note = page("first_rows", count=format_count(len(rows)), total=format_count(len(seen)))
    say = page("gantt_stands" if stands else "gantt_say")
    if not stands and p.task_critical is not None and p.task_critical.any():
        say = f"{say} {page('gantt_path')}"
    return Figure("gantt", title, say, Table(note, head, rows, numbers=3))


def _late(p: Pictures, page: PageTexts, culprits: set[int]) -> Figure | None:
    late, ranks = p.lateness_ms, p.lateness_ranks
    if late is None or ranks is None or len(ranks) < 2 or not np.isfinite(late).any():
        return None
    rows = []
    for i, rank in enumerate(ranks.tolist()):
        known = late[i][np.isfinite(late[i])]
        value = float(np.median(known)) if len(known) else math.nan
        rows.append(Row((str(rank), _ms(value)), marked=rank in culprits))
    head = (page("rank"), page("median_late"))
    return Figure("late", page("late"), page("late_say"), Table("", head, tuple(rows)))


_UNITS = {
    SeriesKind.QUEUE_DEPTH: "",
    SeriesKind.OUTSTANDING_BYTES: " B",
    SeriesKind.BANDWIDTH: " B/s",
}


def _series(p: Pictures, page: PageTexts) -> list[Figure]:
    """One picture a kind of series: queue depth, bytes on their way, bandwidth."""
    found: list[Figure] = []
    for kind, unit in _UNITS.items():
        rows = []
        for item in p.series:
            known = item.values[np.isfinite(item.values)]
            if item.kind is not kind or not len(known):
                continue
            numbers = (float(np.median(known)), float(known.max()))
            rows.append(Row((series_name(item), *(f"{format_number(value)}{unit}" for value in numbers))))
        if rows:
            table = Table("", (page("series"), page("median_value"), page("greatest")), tuple(rows))
            found.append(Figure(kind.value, page(kind.value), page("series_say"), table))
    return found


def _longest(values: NDArray[np.floating], page: PageTexts) -> tuple[list[int], str]:
    """(indices of the longest known values, longest first; a note where there are more)."""
    known = np.flatnonzero(np.isfinite(values))
    chosen = known[np.argsort(-values[known], kind="stable")[:MAX_ROWS]]
    count, total = format_count(len(chosen)), format_count(len(known))
    return [int(i) for i in chosen], page("first_rows", count=count, total=total)


def _ms(value: float) -> str:
    return "–" if not math.isfinite(value) else spoken(value * NS_PER_MS)


# ---- tables that stand for themselves

_AXES = ("tp", "pp", "dp", "cp", "ep", "vpp")


def stage_table(diagnosis: Diagnosis, page: PageTexts, culprits: Sequence[int]) -> Table | None:
    """Forward, backward, work and wait of every stage, with a bar; None without stages."""
    if not diagnosis.stages:
        return None
    layout = diagnosis.job.layout
    where = layout.stages() if layout is not None else np.empty(0, np.int32)
    guilty = {int(where[rank]) for rank in culprits if 0 <= rank < len(where)}
    if not culprits and diagnosis.findings and diagnosis.findings[0].where.stage is not None:
        guilty = {diagnosis.findings[0].where.stage}
    totals = [(_known(item.work_ms), _known(item.wait_ms)) for item in diagnosis.stages]
    longest = max((work + wait for work, wait in totals), default=0.0) or 1.0
    rows = []
    for item, (work, wait) in zip(diagnosis.stages, totals, strict=True):
        members = np.flatnonzero(where == item.stage)
        ranks = say_ranks(members.tolist()).partition(" ")[2] if len(members) else "–"
        numbers = (item.forward_ms, item.backward_ms, item.work_ms, item.wait_ms)
        rows.append(
            Row(
                (
                    str(item.stage),
                    ranks if len(ranks) <= 40 else format_count(len(members)),
                    *(_plain_ms(value) for value in numbers),
                ),
                marked=item.stage in guilty,
                bar=(round(work / longest * BAR, 1), round(wait / longest * BAR, 1)),
            )
        )
    head = tuple(page(key) for key in ("stage", "ranks", "forward", "backward", "work", "wait", "share"))
    return Table(page("stages_say"), head, tuple(rows), numbers=2)


def _known(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0


def _plain_ms(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def config_table(diagnosis: Diagnosis, scene: Scene, page: PageTexts) -> Table:
    """The job's configuration, each value with where it is known from."""
    job, layout = diagnosis.job, diagnosis.job.layout
    source = {"config": page("declared"), "inferred": page("inferred")}.get(job.layout_source or "", "–")
    seen, calls = page("seen"), page("inferred")
    # Logs and outputs of tools do not say how large the job is, nor always when they were written.
    rows: list[tuple[str, str, str]] = [(page("gpus"), format_count(job.ranks), seen)] if job.ranks else []
    if job.nodes:
        rows.append((page("nodes"), format_count(job.nodes), seen))
    if layout is not None:
        rows += [(name.upper(), str(getattr(layout, name)), source) for name in _AXES]
        rows.append((page("order"), layout.order, source))
    if job.schedule is not None:
        rows.append((page("schedule"), job.schedule.kind.value, calls))
    if job.micro_batches is not None:
        rows.append((page("micro_batches"), format_count(job.micro_batches), calls))
    if job.iterations is not None:
        rows.append((page("iterations_count"), format_count(job.iterations), seen))
    for key, value in (("median_time", job.iteration_median_ms), ("p95_time", job.iteration_p95_ms)):
        if value is not None and math.isfinite(value):
            rows.append((page(key), _ms(value), seen))
    if job.baseline:
        rows.append((page("baseline"), scene.texts.sentence(plain(job.baseline)), "–"))
    if job.ranks or wall_time(diagnosis.clock.t0) is not None:
        rows.append((page("clock"), moment(scene, diagnosis.clock.t0).partition(" (")[0], seen))
    head = ("", page("value"), page("source"))
    return Table(page("config"), head, tuple(Row(row) for row in rows), numbers=len(head))
