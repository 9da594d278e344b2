"""A profile worked out on paper (``profile_cases.tiny``): every figure that is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.analysis.profile_overlap import rank_time, stream_times
from megatrace.analysis.profile_path import critical_path, windows
from megatrace.analysis.profiling import profile
from megatrace.model.events import Op
from megatrace.model.profile import Activity, work_of
from megatrace.model.profile_result import IdleReason, ProfileResult, TimeKind
from tests.unit.profile_cases import (
    ADD,
    ALL_REDUCE,
    BACKWARD,
    GEMM,
    call,
    collective,
    op,
    profiled,
    span,
    tiny,
    work,
)

US = 1_000


@pytest.fixture
def result(tmp_path: Path) -> ProfileResult:
    return profile([profiled(tmp_path, tiny())])


def test_the_devices_time_adds_up(result: ProfileResult) -> None:
    (time,) = result.ranks
    assert (time.rank, time.span) == (3, 660 * US)
    assert (time.compute, time.communication, time.overlap) == (425 * US, 200 * US, 50 * US)
    assert (time.exposed, time.memory_only, time.idle) == (150 * US, 0, 85 * US)
    assert time.compute + time.exposed + time.memory_only + time.idle == time.span


def test_a_copy_hides_no_communication(tmp_path: Path) -> None:
    events = [work(ALL_REDUCE, 0, 100, 1, stream=13), work("Memcpy DtoD", 50, 150, 2, kind="gpu_memcpy")]
    time = rank_time(profiled(tmp_path, events))
    assert time is not None
    assert (time.exposed, time.overlap, time.memory_only, time.idle) == (100 * US, 0, 50 * US, 0)


def test_gaps_have_reasons(result: ProfileResult) -> None:
    compute, communication = result.streams
    assert (compute.stream, compute.count, compute.compute) == (7, 3, 425 * US)
    assert compute.idle == (
        (IdleReason.HOST_WAIT, 230 * US),
        (IdleReason.KERNEL_WAIT, 5 * US),
        (IdleReason.OTHER, 0),
    )
    assert (communication.stream, communication.exposed, communication.span) == (13, 150 * US, 200 * US)


def test_a_late_start_after_an_early_launch_is_another_wait(tmp_path: Path) -> None:
    events = [call("cudaLaunchKernel", 0, 1, 1), call("cudaLaunchKernel", 2, 3, 2)]
    events += [work(GEMM, 10, 20, 1), work(GEMM, 60, 70, 2)]
    (stream,) = stream_times(profiled(tmp_path, events))
    assert dict(stream.idle)[IdleReason.OTHER] == 40 * US


def test_operators_own_their_time_and_the_work_they_launch(result: ProfileResult) -> None:
    found = {one.name: one for one in result.operators}
    product = found["aten::mm"]
    assert (product.count, product.total, product.own) == (1, 100 * US, 90 * US)
    assert (product.device, product.device_total) == (200 * US, 200 * US)
    assert product.by_rank == ((3, 90 * US),)
    (shape,) = result.shapes
    assert (shape.name, shape.shape) == ("aten::mm", "float[64,32], float[32,8]")
    (step,) = result.modules
    assert (step.name, step.own, step.device_total) == ("ProfilerStep#1", (600 - 240 - 250) * US, 625 * US)


def test_an_operator_that_calls_itself_counts_its_time_once(tmp_path: Path) -> None:
    events = [op("aten::to", 0, 100), op("aten::to", 10, 60), op("aten::empty", 20, 30)]
    found = {one.name: one for one in profile([profiled(tmp_path, events)]).operators}
    assert (found["aten::to"].total, found["aten::to"].own, found["aten::to"].count) == (100 * US, 90 * US, 2)


def test_percentiles_are_values_that_occurred(tmp_path: Path) -> None:
    events = [op("aten::mm", 1000 * at, 1000 * at + at) for at in range(1, 101)]
    (one,) = profile([profiled(tmp_path, events)]).operators
    assert (one.p50, one.p95, one.longest) == (50 * US, 95 * US, 100 * US)


def test_kernels_name_who_launched_them(result: ProfileResult) -> None:
    first = next(one for one in result.kernels if one.name == GEMM)
    assert (first.total, first.kind, first.by_rank) == (200 * US, TimeKind.COMPUTE, ((3, 200 * US),))
    assert first.operators == ("aten::mm",)
    assert {one.kind for one in result.kernels if one.name == ALL_REDUCE} == {TimeKind.COMMUNICATION}


def test_bandwidth_is_that_of_nccl_tests(result: ProfileResult) -> None:
    (one,) = result.collectives
    assert (one.op, one.group_size, one.nbytes) == (Op.ALL_REDUCE, 4, 1_000_000)
    assert (one.total, one.exposed) == (200 * US, 150 * US)
    assert one.algorithm == pytest.approx(5e9)  # 1 MB in 200 µs
    assert one.bus == pytest.approx(7.5e9)  # times 2 · 3 / 4


def test_the_time_of_a_call_is_that_of_its_last_comer(tmp_path: Path) -> None:
    profiles = []
    for rank, begin in ((0, 0), (1, 300)):  # rank 1 comes 300 µs late: rank 0's kernel waits for it
        events = [work(ALL_REDUCE, begin, 400, 1, stream=13, **collective(250_000, 2))]
        folder = tmp_path / str(rank)
        folder.mkdir()
        profiles.append(profiled(folder, events, distributedInfo={"rank": rank, "world_size": 2}))
    (one,) = profile(profiles).collectives
    assert (one.p50, one.count, one.ranks) == (100 * US, 2, (0, 1))
    assert one.bus == pytest.approx(1e10)


def test_queues_are_weighted_by_time(result: ProfileResult) -> None:
    queue = next(one for one in result.queues if one.stream == 7)
    assert queue.mean == pytest.approx(165 / 510)
    assert (queue.longest, queue.launches, queue.full) == (1, 3, 0)
    assert queue.empty == 210 * US


def test_the_critical_path_covers_the_step(result: ProfileResult) -> None:
    (path,) = result.paths
    assert path.length == 700 * US
    assert dict(path.by_kind) == {
        TimeKind.COMPUTE: 370 * US,
        TimeKind.COMMUNICATION: 200 * US,
        TimeKind.IDLE: 40 * US,
        TimeKind.LAUNCH: 40 * US,
        TimeKind.HOST: 30 * US,
        TimeKind.SYNCHRONISATION: 20 * US,
    }
    assert [(piece.start // US, piece.end // US, piece.kind.value) for piece in path.pieces] == [
        (0, 20, "host"),
        (20, 40, "launch"),
        (40, 240, "compute"),
        (240, 250, "synchronisation"),
        (250, 450, "communication"),
        (450, 460, "synchronisation"),
        (460, 500, "idle"),
        (500, 510, "host"),
        (510, 530, "launch"),
        (530, 700, "compute"),
    ]
    assert path.pieces[2].name == GEMM
    assert (path.pieces[-1].name, path.pieces[-1].lane) == (ADD, "stream 7")


def test_what_if_lets_the_next_wait_bind(result: ProfileResult) -> None:
    saved = {one.kind: one.saved for one in result.paths[0].what_if}
    # Without communication the synchronisation still waits for relu, which ends at 300.
    assert saved[TimeKind.COMMUNICATION] == 160 * US
    assert saved[TimeKind.IDLE] == 40 * US
    assert all(one.total + one.saved == 700 * US for one in result.paths[0].what_if)


def test_the_busiest_chain_goes_by_records_alone(tmp_path: Path) -> None:
    # host 150, launch 80, all-reduce 200: nothing recorded leads on from there.
    bare = critical_path(profiled(tmp_path, tiny()))
    assert bare is not None
    assert bare.busiest == 430 * US
    seen = {"wait_on_stream": -1, "cuda_sync_kind": "Context Sync"}
    events = [*tiny(), work("Context Sync", 212, 455, 4, stream=-1, kind="cuda_sync", **seen)]
    told = critical_path(profiled(tmp_path, events))
    assert told is not None
    assert told.busiest == (430 + 10 + 20 + 170) * US


def test_a_window_has_what_was_begun_in_it(tmp_path: Path) -> None:
    one = profiled(tmp_path, [*tiny(), op("aten::later", 650, 900)])
    (window,) = windows(one, "ProfilerStep")
    path = critical_path(one, window)
    assert path is not None
    assert (path.window, path.length) == ("ProfilerStep#1", 700 * US)
    whole = critical_path(one)
    assert whole is not None
    assert whole.length == 900 * US


def test_a_thread_takes_over_where_the_other_ends(tmp_path: Path) -> None:
    events = [
        op("forward", 0, 100),
        call("cudaLaunchKernel", 90, 95, 1),
        op("backward", 130, 300, BACKWARD),
        call("cudaLaunchKernel", 280, 290, 2, BACKWARD),
        op("optimizer", 320, 400),
        work(GEMM, 96, 100, 1),
        work(GEMM, 295, 300, 2),
    ]
    path = critical_path(profiled(tmp_path, events))
    assert path is not None
    assert dict(path.by_kind) == {TimeKind.HOST: 350 * US, TimeKind.IDLE: 50 * US}
    assert [piece.name for piece in path.pieces if piece.kind is TimeKind.HOST] == [
        "forward",
        "cudaLaunchKernel",
        "forward",
        "backward",
        "cudaLaunchKernel",
        "backward",
        "optimizer",
    ]


def test_an_event_of_another_stream_binds(tmp_path: Path) -> None:
    events = [
        call("cudaLaunchKernel", 0, 5, 1),
        call("cudaEventRecord", 6, 7, 2),
        call("cudaStreamWaitEvent", 8, 9, 3),
        call("cudaLaunchKernel", 10, 15, 4),
        work(GEMM, 20, 120, 1),
        work(ALL_REDUCE, 160, 200, 4, stream=13),
        work(
            "Stream Wait Event",
            9,
            10,
            3,
            stream=13,
            kind="cuda_sync",
            wait_on_stream=7,
            wait_on_cuda_event_record_corr_id=2,
        ),
    ]
    path = critical_path(profiled(tmp_path, events))
    assert path is not None
    assert [(piece.start // US, piece.end // US, piece.kind.value) for piece in path.pieces] == [
        (0, 20, "launch"),
        (20, 120, "compute"),
        (120, 160, "synchronisation"),
        (160, 200, "communication"),
    ]


def test_work_that_runs_side_by_side_on_a_stream_does_not_wait_for_each_other(tmp_path: Path) -> None:
    """A Send and a Recv of one group, or a kernel that was allowed to begin early."""
    events = [call("cudaLaunchKernel", at, at + 1, number) for number, at in ((1, 0), (2, 2), (3, 4))]
    events += [work(GEMM, 10, 20, 1), work("sent", 20, 100, 2), work("received", 21, 101, 3)]
    path = critical_path(profiled(tmp_path, events))
    assert path is not None
    assert path.length == 101 * US
    assert [piece.name for piece in path.pieces if piece.kind is TimeKind.COMPUTE] == [GEMM, "received"]
    assert all(one.total + one.saved == 101 * US for one in path.what_if)


def test_data_loading_has_a_name_of_its_own(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = [span("user_annotation", loader, 0, 80), op("aten::stack", 10, 30), op("aten::mm", 100, 200)]
    path = critical_path(profiled(tmp_path, events))
    assert path is not None
    assert dict(path.by_kind)[TimeKind.DATA_LOADING] == 20 * US + 70 * US


def test_a_graph_launch_owns_all_its_kernels(tmp_path: Path) -> None:
    events = [op("replay", 0, 30), call("cudaGraphLaunch", 5, 20, 9)]
    events += [work(GEMM, 30 + 10 * at, 40 + 10 * at, 9) for at in range(50)]
    made = profile([profiled(tmp_path, events)])
    (operator,) = made.operators
    assert (made.graphs, operator.device_total) == (1, 500 * US)
    assert made.queues[0].longest == 50
    assert dict(made.paths[0].by_kind)[TimeKind.COMPUTE] == 500 * US


def test_memory_is_followed(tmp_path: Path) -> None:
    def allocation(at: float, change: int, total: int) -> dict[str, object]:
        args = {"Bytes": change, "Device Type": 1, "Device Id": 0}
        args |= {"Total Allocated": total, "Total Reserved": 1 << 20}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "args": args}

    events = [*tiny(), allocation(5, 512, 1512), allocation(1, 1000, 1000), allocation(9, -512, 1000)]
    (use,) = profile([profiled(tmp_path, events)]).memory
    assert (use.peak, use.last, use.reserved_peak, use.peak_at) == (1512, 1000, 1 << 20, 5 * US)
    assert (use.allocations, use.frees) == (2, 1)


def test_the_flame_holds_every_stack(result: ProfileResult) -> None:
    assert result.flame is not None
    (step,) = result.flame.children
    assert (step.name, step.total, step.device) == ("ProfilerStep#1", 600 * US, 625 * US)
    assert {frame.name: frame.total for frame in step.children}["aten::mm"] == 100 * US
    assert next(frame for frame in step.children if frame.name == "aten::mm").children[0].own == 10 * US


def test_the_path_of_the_job_goes_through_the_last_comer(tmp_path: Path) -> None:
    """Rank 1 computes 300 µs longer, its clock is 5 ms ahead; rank 0's kernel only waits for it."""
    profiles = []
    for rank, (ahead, length) in enumerate(((0, 100), (5_000, 400))):
        folder = tmp_path / str(rank)
        folder.mkdir()
        events = [
            call("cudaLaunchKernel", ahead, ahead + 5, 1),
            call("cudaLaunchKernel", ahead + 6, ahead + 9, 2),
            work(GEMM, ahead + 10, ahead + 10 + length, 1),
            work(ALL_REDUCE, ahead + 10 + length, ahead + 500, 2, **collective(250_000, 2)),
            work(ADD, ahead + 500, ahead + 600 - 50 * rank, 3),
        ]
        profiles.append(profiled(folder, events, distributedInfo={"rank": rank, "world_size": 2}))
    path = profile(profiles).job_path
    assert path is not None
    assert (path.rank, path.length) == (-1, 600 * US)
    assert [(piece.rank, piece.end - piece.start, piece.kind.value) for piece in path.pieces] == [
        (1, 10 * US, "launch"),
        (1, 400 * US, "compute"),
        (0, 90 * US, "communication"),
        (0, 100 * US, "compute"),
    ]
    assert {one.kind: one.saved for one in path.what_if}[TimeKind.COMMUNICATION] == 90 * US


def test_ranks_that_share_no_call_have_no_common_path(tmp_path: Path) -> None:
    profiles = []
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        folder.mkdir()
        profiles.append(profiled(folder, [work(GEMM, 0, 9, 1)], distributedInfo={"rank": rank}))
    found = profile(profiles)
    assert found.job_path is None
    assert found.notes == (
        "There is no critical path across ranks: the profiles do not say which ranks a communication joins.",
    )
    assert profile(profiles[:1]).notes == (), "of one rank nobody expects it"


def test_a_rank_that_made_other_calls_is_named(tmp_path: Path) -> None:
    profiles = []
    for rank, times in ((0, 2), (1, 2), (2, 1)):
        folder = tmp_path / str(rank)
        folder.mkdir()
        kernels = [
            work(ALL_REDUCE, 100 * nth, 100 * nth + 50, nth, **collective(1_000, 2 if rank < 2 else 3))
            for nth in range(times)
        ]
        profiles.append(profiled(folder, kernels, distributedInfo={"rank": rank}))
    (note,) = profile(profiles).notes
    assert note.endswith("rank 2 shares no call with ranks 0, 1 that all made equally often.")


def test_ranks_stand_beside_each_other(tmp_path: Path) -> None:
    profiles = []
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        folder.mkdir()
        events = [op("aten::mm", 0, 100 * (rank + 1))]
        profiles.append(profiled(folder, events, distributedInfo={"rank": rank, "world_size": 2}))
    made = profile(profiles)
    (one,) = made.operators
    assert one.by_rank == ((0, 100 * US), (1, 200 * US))
    assert (one.count, one.own, made.world_size) == (2, 300 * US, 2)
    assert made.ranks == ()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "COMMUNICATION"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "COMMUNICATION"),
        ("void deep_ep::internode::combine<bool>(int4*)", "COMMUNICATION"),
        ("Memcpy HtoD (Pageable -> Device)", "MEMORY"),
        ("void at::native::elementwise_kernel<128>()", "COMPUTE"),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, kind: str) -> None:
    assert work_of(name).name == kind


def test_no_activity_is_work_of_a_stream_but_kernels_copies_and_sets() -> None:
    assert [kind.name for kind in Activity if kind.on_device] == ["KERNEL", "MEMCPY", "MEMSET"]
