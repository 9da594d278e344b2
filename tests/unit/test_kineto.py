"""The reader of PyTorch's profiles: what stands in the file stands in the columns, whatever the file has been
through."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from megatrace.errors import TraceError
from megatrace.model.events import Op
from megatrace.model.profile import NONE, Activity, RankProfile
from megatrace.model.profile_names import element_bytes, operation
from megatrace.readers import kineto_stream
from megatrace.readers.kineto import is_profile, open_profiles
from megatrace.readers.kineto_events import nanoseconds
from megatrace.readers.opening import open_trace
from tests.unit.profile_cases import ALL_REDUCE, GEMM, content, op, profiled, tiny, work, written


def one(path: Path) -> RankProfile:
    (profile,), _ = open_profiles([path])
    return profile


def test_everything_recorded_stands_in_the_columns(tmp_path: Path) -> None:
    events = [*tiny(), {"ph": "M", "name": "thread_name", "pid": 100, "tid": 1, "args": {"name": "main"}}]
    header = {"deviceProperties": [{"name": "H100"}], "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    profile = profiled(tmp_path, events, **header)
    assert (profile.rank, profile.world_size, profile.device_name) == (3, 4, "H100")
    assert (profile.epoch, profile.rank_known, profile.bad) == (1_700_000_000_000_000_000, True, 0)
    assert (profile.lines, len(profile.activities)) == (15, 14)
    activities = profile.activities
    row = next(at for at in range(14) if profile.names[activities.name[at]] == ALL_REDUCE)
    assert (activities.start[row], activities.duration[row]) == (250_000, 200_000)
    assert (activities.kind[row], activities.stream[row], activities.correlation[row]) == (
        Activity.KERNEL,
        13,
        3,
    )
    said = profile.collectives[activities.collective[row]]
    assert (said.op, said.group, said.ranks, said.element) == (Op.ALL_REDUCE, "7", (0, 1, 2, 3), 4)
    host = next(lane for lane in profile.lanes if not lane.device)
    assert (host.label, host.title) == ("main", "main")
    assert {lane.title for lane in profile.lanes if lane.device} == {"stream 7", "stream 13"}


def test_rows_are_sorted_by_lane_and_an_outer_one_stands_first(tmp_path: Path) -> None:
    events = [op("inner", 10, 20), op("outer", 10, 50), op("other", 0, 5, tid=2)]
    profile = profiled(tmp_path, events)
    assert [profile.names[name] for name in profile.activities.name] == ["outer", "inner", "other"]


@pytest.mark.parametrize(
    ("given", "ns"),
    [
        (1694039968955744, 1694039968955744000),
        ("4458676522690.655", 4458676522690655),
        ("1694039968955744.123", 1694039968955744123),  # a float of 64 bits would say .25
        ("0.1", 100),
        ("-1.5", -1500),
        ("-0.25", -250),
        ("1.5e3", 1_500_000),
        ("7.1239", 7123),
    ],
)
def test_times_keep_their_decimals(given: object, ns: int) -> None:
    assert nanoseconds(given) == ns


@pytest.mark.parametrize("given", [None, "x", [], True, 1 << 70, "1e300"])
def test_what_is_no_time_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"no number|no time|could not convert"):
        nanoseconds(given)


def test_blocks_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, tiny(), note="é" * 50)
    whole = one(path)
    for size in (37, 64, 101, 1000):
        monkeypatch.setattr(kineto_stream, "BLOCK", size)
        cut = one(path)
        assert cut.lines == whole.lines
        assert cut.bad == 0
        assert (cut.activities.start == whole.activities.start).all()
        assert cut.names == whole.names


def test_a_header_may_follow_the_events(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    whole = {"schemaVersion": 1, "traceEvents": tiny(), "distributedInfo": {"rank": 5, "world_size": 8}}
    path.write_text(json.dumps(whole, indent=2))
    assert (one(path).rank, one(path).world_size) == (5, 8)


def test_a_list_of_events_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank7.json"
    path.write_text(json.dumps(tiny()))
    assert (one(path).rank, len(one(path).activities)) == (7, 14)


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(content(tiny())))
    assert len(one(path).activities) == 14


def test_a_cut_file_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    whole = content(tiny())
    path.write_bytes(whole[: whole.index(b"void relu") + 3])
    (profile,), notes = open_profiles([path])
    assert len(profile.activities) == 11
    assert notes == (f"{path} is cut off (its writer was stopped): what came before counts.",)


def test_a_broken_event_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content(tiny()).replace(b'"name": "aten::relu"', b'"name": "aten::relu'))
    (profile,), (note,) = open_profiles([path])
    assert 12 <= len(profile.activities) <= 13
    assert "could not be parsed" in note
    assert "void add(float*)" in profile.names


def test_damaged_values_cost_only_their_event(tmp_path: Path) -> None:
    broken = [
        {**op("a", 0, 1), "ts": None},
        {**op("b", 0, 1), "dur": -5},
        {**op("c", 0, 1), "args": 3},
        {**op("d", 0, 1), "pid": "Spans", "tid": "PyTorch Profiler"},
        work(GEMM, 0, 1, 1 << 80),
    ]
    path = written(tmp_path, broken)
    profile = one(path)
    assert profile.bad == 2
    assert {profile.names[name] for name in profile.activities.name} == {"c", "d", GEMM}
    assert profile.activities.correlation.max() == NONE


def test_ranks_come_from_the_name_where_the_file_has_none(tmp_path: Path) -> None:
    for name in ("worker_rank-12.json", "x.json"):
        written(tmp_path, tiny(), name, distributedInfo={})
    profiles, _ = open_profiles([tmp_path])
    assert [(profile.rank, profile.rank_known) for profile in profiles] == [(1, False), (12, True)]


def test_two_files_of_a_rank_are_not_mixed(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        written(tmp_path, tiny(), name)
    profiles, (note,) = open_profiles([tmp_path])
    assert len(profiles) == 1
    assert note.endswith("a.json: left out.")


def test_other_files_are_named(tmp_path: Path) -> None:
    written(tmp_path, tiny())
    (tmp_path / "z.txt").write_text("hello")
    _, (note,) = open_profiles([tmp_path])
    assert note == f"{tmp_path / 'z.txt'} is no profile and was left out."
    with pytest.raises(TraceError, match=r"z.txt is no profile of PyTorch: expected a JSON object"):
        open_profiles([tmp_path / "z.txt"])


def test_a_diagnosis_names_the_command_that_reads_profiles(tmp_path: Path) -> None:
    path = written(tmp_path, tiny())
    with pytest.raises(
        TraceError, match="it says where time went, not what is wrong; read with: megatrace profile"
    ):
        open_trace([path])


def test_a_diagnosis_reads_what_else_is_there(tmp_path: Path) -> None:
    path = written(tmp_path, tiny())
    lines = [f"[1755590104.{at}48717000] [Rank 0] Fun AllReduce Data 4 stream 0x55\n" for at in range(3)]
    (tmp_path / "rank_0.log").write_text("".join(lines))
    trace = open_trace([tmp_path])
    assert len(trace.events) == 3
    assert any(str(path) in note and "megatrace profile" in note for note in trace.coverage.notes)


@pytest.mark.parametrize("head", [b"", b"{}", b'{"a": 1}', b"[1, 2]", b"traceEvents", b"\xff\xfe"])
def test_what_is_no_profile_is_not_taken(head: bytes) -> None:
    assert not is_profile(head)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", Op.REDUCE_SCATTER),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", Op.UNKNOWN),
        ("_allgather_base", Op.ALL_GATHER),
        ("all_to_allv", Op.ALL_TO_ALL),
        ("reduce", Op.REDUCE),
        ("gemm", Op.UNKNOWN),
    ],
)
def test_operations_have_many_names(name: str, op: Op) -> None:
    assert operation(name) is op


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("BFloat16", 2), ("c10::Half", 2), ("long int", 8), ("Float8_e4m3fn", 1), ("Str", None)],
)
def test_elements_have_sizes(dtype: str, size: int | None) -> None:
    assert element_bytes(dtype) == size
