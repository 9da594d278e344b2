"""Public profiles of HolisticTraceAnalysis: its figures and ours, and why one of them differs.

The figures are those of HolisticTraceAnalysis 0.5.0 with HTA_DISABLE_NS_ROUNDING=1 (by default it rounds
times to whole µs), include_last_profiler_step=True: get_temporal_breakdown, get_comm_comp_overlap,
get_idle_time_breakdown, critical_path_analysis. `benchmarks/profile.py` runs it beside ours.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatrace.analysis.profile_graph import NEVER, PathGraph, Span, path_graph
from megatrace.analysis.profile_longest import Order, farthest
from megatrace.analysis.profile_overlap import rank_time, stream_times
from megatrace.analysis.profile_path import critical_path, windows
from megatrace.analysis.profile_stacks import launches
from megatrace.commands.main import main
from megatrace.errors import EXIT_UNREADABLE
from megatrace.model.profile import RankProfile
from megatrace.model.profile_result import IdleReason
from megatrace.readers.kineto import open_profiles

pytestmark = pytest.mark.shared
ALEXNET = "benchmark_result_493459_1694039959_trace.json.gz"
RESNET = "nccl_data.json.gz"
RECOMMENDER = "sampled_rank-0.json.gz"
MEASURED = "measure|forward"
STEP = "ProfilerStep"
WITHIN = 0.01


def opened(shared_dir: Path, name: str) -> RankProfile:
    (profile,), notes = open_profiles([shared_dir / "data" / "kineto" / name])
    assert notes == ()
    assert profile.bad == 0
    return profile


@pytest.mark.parametrize(
    ("name", "activities", "compute_us", "idle_us", "overlap_percent"),
    [
        (RESNET, 26932, 115655.848, 503050.991, 15.61),
        (RECOMMENDER, 4810, 210320.0, 675191.0, 14.95),
    ],
)
def test_overlap_agrees(
    shared_dir: Path, name: str, activities: int, compute_us: float, idle_us: float, overlap_percent: float
) -> None:
    profile = opened(shared_dir, name)
    time = rank_time(profile)
    assert time is not None
    assert len(profile.activities) == activities
    assert time.compute / 1e3 == pytest.approx(compute_us, rel=1e-6)
    assert time.idle / 1e3 == pytest.approx(idle_us, rel=1e-6)
    assert 100 * time.overlap / time.communication == pytest.approx(overlap_percent, abs=0.006)


def test_work_is_no_wait(shared_dir: Path) -> None:
    """HolisticTraceAnalysis takes waits (cuda_sync) for work of a stream: its span begins with a wait 439 ms
    before the first kernel, and its 10,676 µs of computing have 6 µs of "Stream Wait Event"."""
    profile = opened(shared_dir, ALEXNET)
    time = rank_time(profile)
    assert time is not None
    assert (time.compute / 1e3, time.span / 1e3) == (10_670.0, 16_025_575.0)
    waits = [
        at
        for at, name in enumerate(profile.activities.name.tolist())
        if profile.names[name] == "Stream Wait Event"
    ]
    assert int(profile.activities.duration[waits].sum()) / 1e3 >= 6


@pytest.mark.parametrize(
    ("name", "stream", "host_us", "kernel_us", "other_us"),
    [
        (ALEXNET, 7, 15976739, 91, 0),
        (ALEXNET, 20, 13582776, 8, 0),
        (RESNET, 7, 540091.32, 2150.34, 0),
        (RECOMMENDER, 7, 397917, 3765, 598335),
        (RECOMMENDER, 25, 560120, 35, 100413),
        (RECOMMENDER, 84, 794901, 6, 3142),
    ],
)
def test_idle_reasons_agree(
    shared_dir: Path, name: str, stream: int, host_us: float, kernel_us: float, other_us: float
) -> None:
    (found,) = [one for one in stream_times(opened(shared_dir, name)) if one.stream == stream]
    idle = {reason: time / 1e3 for reason, time in found.idle}
    assert idle[IdleReason.HOST_WAIT] == pytest.approx(host_us, rel=1e-6)
    assert idle[IdleReason.KERNEL_WAIT] == pytest.approx(kernel_us, abs=0.01)
    assert idle[IdleReason.OTHER] == pytest.approx(other_us, abs=0.01)


@pytest.mark.parametrize(
    ("name", "window", "nth", "busy_us"),
    [
        (ALEXNET, None, 0, 41435234.0),
        (ALEXNET, MEASURED, 0, 294696.0),
        (ALEXNET, MEASURED, 1, 241724.0),
        (RESNET, None, 0, 304997.231),
        (RESNET, STEP, 0, 101892.386),
        (RESNET, STEP, 1, 101656.936),
        (RESNET, STEP, 2, 101447.909),
        (RECOMMENDER, STEP, 0, 267581.0),
    ],
)
def test_the_critical_path_agrees(
    shared_dir: Path, name: str, window: str | None, nth: int, busy_us: float
) -> None:
    profile = opened(shared_dir, name)
    place = None if window is None else windows(profile, window)[nth]
    path = critical_path(profile, place)
    assert path is not None
    assert path.busiest / 1e3 == pytest.approx(busy_us, rel=WITHIN)
    # Ours covers the window; what theirs leaves out is waiting and gaps.
    assert sum(time for _, time in path.by_kind) == path.length >= path.busiest


@pytest.mark.parametrize(("window", "nth", "busy_us"), [(None, 0, 736806.0), (STEP, 1, 470090.0)])
def test_where_it_differs_a_refilled_queue_hides_the_host(
    shared_dir: Path, window: str | None, nth: int, busy_us: float
) -> None:
    """Work that was launched after the work before it had ended waited for its launch. HolisticTraceAnalysis
    says so only where nothing else was launched before it began; else it counts the whole gap, host's time
    included, as a delay between two kernels. With that rule our graph has its figure to the µs."""
    profile = opened(shared_dir, RECOMMENDER)
    place = None if window is None else windows(profile, window)[nth]
    path = critical_path(profile, place)
    assert path is not None
    assert path.busiest / 1e3 < (1 - WITHIN) * busy_us
    graph = path_graph(profile, None if place is None else (place.start, place.end))
    assert _with_their_rule(profile, graph) / 1e3 == pytest.approx(busy_us, rel=1e-6)


def _with_their_rule(profile: RankProfile, graph: PathGraph) -> int:
    edges, time = graph.edges, graph.time
    activities = profile.activities
    launch = launches(profile)
    refilled = np.zeros(len(graph.row), np.bool_)
    place = {row: at for at, row in enumerate(graph.row.tolist())}
    for stream in np.unique(activities.stream[profile.device_rows]).tolist():
        here = activities.stream[profile.device_rows] == stream
        rows, launched = profile.device_rows[here], activities.start[launch[here]]
        began = np.sort(activities.start[rows])
        for row in rows.tolist():
            start = activities.start[row]
            queued = np.searchsorted(np.sort(launched), start, "right") - np.searchsorted(
                began, start, "right"
            )
            if row in place:
                refilled[place[row]] = queued > 0
    begins = edges.dst % 2 == 0
    odd = begins & (edges.span == Span.LAUNCH) & refilled[edges.dst // 2] & ~edges.guessed
    from_device = np.isin(graph.row[edges.src // 2], profile.device_rows)
    has_before = np.zeros(len(time), np.bool_)
    has_before[edges.dst[odd & from_device]] = True
    counted = edges.counted.copy()
    counted[odd & from_device] = (time[edges.dst] - time[edges.src])[odd & from_device]
    counted[odd & ~from_device] = -NEVER
    order = Order.of(len(time), edges.src, edges.dst)
    return int(farthest(order, counted, np.zeros(len(time), np.int64)).max())


def test_nobody_is_accused(shared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared_dir / "data" / "kineto"
    assert main(["diagnose", str(folder)]) == EXIT_UNREADABLE
    said = capsys.readouterr()
    assert said.out == ""
    assert "they say where time went, not what is wrong; read with: megatrace profile" in said.err
