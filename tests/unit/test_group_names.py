"""NCCL's communicators get the names and members that torch knows for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatrace.errors import TraceError
from megatrace.model.blind_spots import BlindSpot
from megatrace.model.events import Op
from megatrace.model.trace import Trace
from megatrace.readers.nccl_ring import CALL
from megatrace.readers.opening import open_trace
from tests.unit.test_nccl_ring import member, row, write

TENSOR, PIPELINE = "TENSOR_MODEL_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"


def tell(folder: Path, rank: int, *groups: tuple[str, list[int]], recorded: bool = False) -> None:
    told = {
        "schema": "megatrace.groups/1",
        "host": "a",
        "pid": 10 + rank,
        "rank": rank,
        "world_size": 4,
        "groups": [
            {
                "hash": f"{hash((name, tuple(ranks))) & 0xFFFFFFFFFFFFFFFF:016x}",
                "name": str(number),
                "description": name,
                "backend": "gloo" if recorded else "nccl",
                "ranks": ranks,
                "recorded": recorded,
            }
            for number, (name, ranks) in enumerate(groups)
        ],
    }
    (folder / f"groups-a-{10 + rank}.json").write_text(json.dumps(told))


def call(comm: int, op: Op = Op.ALL_REDUCE, number: int = 0, **more: int) -> dict[str, int]:
    return row(CALL, op, number, comm=comm, nbytes=4, dtype=7, **more)


def names(trace: Trace) -> dict[tuple[int, ...] | None, list[str | None]]:
    found: dict[tuple[int, ...] | None, list[str | None]] = {}
    for communicator in trace.communicators:
        found.setdefault(communicator.members, []).append(communicator.name)
    return found


def test_communicators_are_joined_by_who_is_in_them(tmp_path: Path) -> None:
    for rank in range(4):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        kept = [member(rank % 2, comm=20 + rank // 2), member(rank, size=4, comm=30)]
        write(tmp_path, rank, kept, [call(20 + rank // 2), call(30)])
        tell(tmp_path, rank, (TENSOR, pair), ("WORLD", [0, 1, 2, 3]))
    trace = open_trace([tmp_path])
    assert names(trace) == {(0, 1): [TENSOR], (2, 3): [TENSOR], (0, 1, 2, 3): ["WORLD"]}
    assert trace.coverage.unobserved == ()


def test_members_whose_rings_are_missing_come_from_torch(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, [member(rank, size=4, comm=30)], [call(30)])
        tell(tmp_path, rank, ("DATA_PARALLEL_GROUP", [0, 1, 2, 3]))
    trace = open_trace([tmp_path])
    assert names(trace) == {(0, 1, 2, 3): ["DATA_PARALLEL_GROUP"]}


def test_groups_with_the_same_members_are_told_apart_by_their_order(tmp_path: Path) -> None:
    for rank in (0, 1):
        kept = [member(rank, comm=20), member(rank, comm=21)]
        write(tmp_path, rank, kept, [call(20), call(21)])
        tell(tmp_path, rank, (TENSOR, [0, 1]), ("TENSOR_AND_DATA", [0, 1]))
    assert names(open_trace([tmp_path])) == {(0, 1): [TENSOR, "TENSOR_AND_DATA"]}


def test_where_order_does_not_tell_no_name_is_given(tmp_path: Path) -> None:
    for rank in (0, 1):
        kept = [member(rank, comm=20), member(rank, comm=21), member(rank, comm=22)]
        write(tmp_path, rank, kept, [call(20), call(21), call(22)])
        tell(tmp_path, rank, (TENSOR, [0, 1]), ("OTHER", [0, 1]))
    assert names(open_trace([tmp_path])) == {(0, 1): [None, None, None]}


def test_a_pair_that_exchanges_messages_belongs_to_the_group_around_it(tmp_path: Path) -> None:
    for rank in range(4):
        kept = [member(rank % 2, comm=40)] if rank < 2 else []
        op = Op.SEND if rank == 0 else Op.RECV
        rows = [call(40, op, peer=1 - rank, flags=0)] if rank < 2 else [call(50)]
        kept += [member(rank - 2, comm=50)] if rank >= 2 else []
        write(tmp_path, rank, kept, rows)
        tell(tmp_path, rank, (PIPELINE, [0, 1, 2]), ("WORLD", [0, 1, 2, 3]), (TENSOR, [2, 3]))
    assert names(open_trace([tmp_path]))[0, 1] == [PIPELINE]


def test_a_group_that_torch_used_and_no_ring_has_is_a_blind_spot(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, [member(rank, comm=20)], [call(20)])
        tell(tmp_path, rank, (TENSOR, [0, 1]), ("DATA_PARALLEL_GROUP", [0, 1]))
    assert open_trace([tmp_path]).coverage.unobserved == (), "one communicator is there: nothing is claimed"
    for rank in (0, 1, 2):
        kept = [member(rank, size=3, comm=30)] + ([member(rank, comm=20)] if rank < 2 else [])
        write(tmp_path, rank, kept, [call(30)])
        tell(tmp_path, rank, ("WORLD", [0, 1, 2]), (TENSOR, [0, 1]))
    trace = open_trace([tmp_path])
    assert [(item.spot, item.members) for item in trace.coverage.unobserved] == [
        (BlindSpot.MISSING_CALLS, (0, 1))
    ]


def test_names_alone_are_no_recording(tmp_path: Path) -> None:
    tell(tmp_path, 0, (TENSOR, [0, 1]))
    with pytest.raises(TraceError, match="NCCL ran them"):
        open_trace([tmp_path])
