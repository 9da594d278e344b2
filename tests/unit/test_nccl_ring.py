"""Rings of NCCL's calls as bytes: what the reader makes of them, and of what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatrace.errors import TraceError
from megatrace.model.events import NO_PEER, NO_SEQ, UNSEEN, EventFlag, Op
from megatrace.model.ringformat import ANCHOR, ANCHOR_AT, HEAD, MAGIC, RECORD
from megatrace.model.trace import Observable, Trace
from megatrace.readers.nccl_ring import CALL, COMMUNICATOR, END, FAILED, PEER, START
from megatrace.readers.opening import open_trace

KEPT = 4
SECOND = 1_000_000_000
EPOCH = 1_800_000_000 * SECOND


def row(kind: int, op: int = 0, number: int = 0, **more: int) -> dict[str, int]:
    return {"kind": kind, "op": op, "number": number, "comm": 7, "peer": -1, "thread": 0, **more}


def member(index: int, size: int = 2, comm: int = 7) -> dict[str, int]:
    return row(COMMUNICATOR, number=size, peer=index, comm=comm)


def write(
    folder: Path, rank: int | None, kept: list[dict[str, int]], rows: list[dict[str, int]], **more: Any
) -> None:
    """A ring of 64 records; record i is of second i. ``first`` is the number of the first one."""
    first = more.pop("first", 1)
    told = {"source": more.pop("source", "nccl"), "host": "a", "pid": 10 + (rank or 0), **more}
    if rank is not None:
        told["rank"] = str(rank)
    text = json.dumps(told).encode()
    header = HEAD.pack(MAGIC, 4096 + KEPT * 64, 64, 64, EPOCH, 0, len(text)) + text
    records = np.zeros(KEPT + 64, RECORD)
    for at, values in enumerate(kept):
        records[at]["seq"] = at + 1
        for name, value in values.items():
            records[at][name] = value
    for at, values in enumerate(rows, start=first - 1):
        record = records[KEPT + at % 64]
        record["seq"], record["time"] = at + 1, at * SECOND
        for name, value in values.items():
            record[name] = value
    path = folder / f"{told['source']}-a-{told['pid']}.ring"
    path.write_bytes(header.ljust(4096, b"\0") + records.tobytes())


def read(folder: Path) -> Trace:
    return open_trace([folder])


def test_a_call_is_joined_with_what_came_later(tmp_path: Path) -> None:
    rows = [
        row(CALL, Op.ALL_REDUCE, 0, nbytes=4096, dtype=7, stream=5, channel=1),
        row(CALL, Op.SEND, 0, nbytes=8, dtype=7, stream=6, channel=1, flags=0xFFFF_FFFF),
        row(PEER, Op.SEND, 0, peer=1, flags=3),
        row(START, Op.ALL_REDUCE, 0),
        row(END, Op.ALL_REDUCE, 0),
        row(FAILED, Op.SEND, 0, flags=5),
        row(CALL, Op.RECV, 1, channel=1, flags=0xFFFF_FFFF),
    ]
    write(tmp_path, 4, [member(0)], rows)
    write(tmp_path, 6, [member(1)], [row(CALL, Op.ALL_REDUCE, 0, channel=1)])
    trace = read(tmp_path)
    events = trace.events
    assert trace.communicators[0].members == (4, 6)
    assert events.rank.tolist() == [4, 4, 4, 6]
    assert events.op.tolist() == [Op.ALL_REDUCE, Op.SEND, Op.RECV, Op.ALL_REDUCE]
    assert events.seq.tolist() == [0, 3, NO_SEQ, 0]
    assert events.peer is not None
    assert events.peer.tolist() == [NO_PEER, 6, NO_PEER, NO_PEER]
    assert events.start is not None
    assert events.end is not None
    assert events.start.tolist() == [EPOCH + 3 * SECOND, UNSEEN, UNSEEN, UNSEEN]
    assert events.end.tolist() == [EPOCH + 4 * SECOND, UNSEEN, UNSEEN, UNSEEN]
    assert events.count is not None
    assert events.count.tolist() == [1024, 2, 0, 0]
    assert events.flags is not None
    assert events.flags.tolist() == [0, EventFlag.FAILED, 0, 0]
    assert trace.coverage.has(Observable.STREAM, Observable.COMPLETION)


def test_ends_that_were_seen_of_a_part_of_the_calls_are_not_used(tmp_path: Path) -> None:
    rows = [row(CALL, 1, 0), row(CALL, 1, 1, channel=1), row(START, 1, 1), row(END, 1, 1)]
    write(tmp_path, 0, [member(0, 1)], rows)
    trace = read(tmp_path)
    assert trace.events.end is None
    assert not trace.coverage.has(Observable.END)
    assert any("for a part of the calls only" in note for note in trace.coverage.notes)


def test_a_member_without_a_ring_is_missing_and_members_are_not_guessed(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        write(tmp_path, rank, [member(rank, 4)], [row(CALL, 1, 0)])
    trace = read(tmp_path)
    assert trace.communicators[0].members is None
    assert trace.coverage.ranks_missing == (2,)


def test_a_ring_that_went_round_tells_what_it_lost(tmp_path: Path) -> None:
    write(tmp_path, 0, [member(0, 1)], [row(CALL, 1, number) for number in range(36, 100)], first=37)
    trace = read(tmp_path)
    (gap,) = trace.coverage.gaps
    assert (gap.rank, gap.start, gap.end, gap.records_lost) == (0, EPOCH, EPOCH + 36 * SECOND, 36)
    assert trace.events.seq.tolist() == list(range(36, 100))


def test_a_process_of_several_ranks_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, [member(0), member(1)], [row(CALL, 1, 0)])
    with pytest.raises(TraceError, match="serves several ranks"):
        read(tmp_path)


def test_a_ring_of_nobody_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, None, [member(0)], [row(CALL, 1, 0)])
    with pytest.raises(TraceError, match="nothing tells which rank wrote it"):
        read(tmp_path)


def test_the_source_that_saw_more_ranks_is_taken(tmp_path: Path) -> None:
    write(tmp_path, 0, [member(0)], [row(CALL, 1, 0, stream=1)])
    for rank in (0, 1):
        write(tmp_path, rank, [member(rank)], [row(CALL, 1, 0)], source="preload")
    trace = read(tmp_path)
    assert trace.events.rank.tolist() == [0, 1]
    assert trace.communicators[0].members == (0, 1)
    assert "The profiler plug-in saw the calls of rank 0 once more" in " ".join(trace.coverage.notes)


@pytest.mark.parametrize("cut", [100, 4096, 4096 + 64, 4096 + KEPT * 64 + 32])
def test_a_file_that_is_cut_gives_an_error_or_a_trace(tmp_path: Path, cut: int) -> None:
    write(tmp_path, 0, [member(0, 1)], [row(CALL, 1, 0)])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(TraceError):
        read(tmp_path)


def test_damaged_records_give_an_error_or_a_trace(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    write(tmp_path, 0, [member(0, 1)], [row(CALL, 1, number) for number in range(64)])
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        for at in generator.integers(4096, len(data), 40).tolist():
            data[at] = int(generator.integers(256))
        path.write_bytes(bytes(data))
        try:
            trace = read(tmp_path)
        except TraceError:
            continue
        assert len(trace.events) <= 64


def test_the_header_tells_device_jobs_and_releases(tmp_path: Path) -> None:
    for rank, device, job, nccl in ((0, "0000:3b:00.0", "a", "2.29.7"), (1, None, "b", "2.28.3")):
        more = {"device": device} if device else {}
        write(tmp_path, rank, [member(rank)], [row(CALL, 1, 0)], job=job, nccl=nccl, **more)
    trace = read(tmp_path)
    assert [(place.rank, place.device) for place in trace.places] == [(0, "0000:3b:00.0"), (1, None)]
    notes = " ".join(trace.coverage.notes)
    assert "The rings are of several jobs: a, b; they are read as one." in notes
    assert "NCCL is not the same on all ranks: 2.28.3 on rank 1; 2.29.7 on rank 0." in notes


def test_ranks_that_left_no_ring_are_told_by_the_size_of_the_job(tmp_path: Path) -> None:
    write(tmp_path, 1, [member(0, 1)], [row(CALL, 1, 0)], world_size="4")
    assert read(tmp_path).coverage.ranks_missing == (0, 2, 3)


def anchored(folder: Path, pid: int, offset: int, at: int) -> None:
    """Writes what the recorder last saw of the clocks into a ring."""
    path = folder / f"nccl-a-{pid}.ring"
    data = bytearray(path.read_bytes())
    ANCHOR.pack_into(data, ANCHOR_AT, offset, at)
    path.write_bytes(bytes(data))


def test_rings_of_one_boot_stand_on_one_clock(tmp_path: Path) -> None:
    """Rank 0 ended before the clock went an hour forward, and does not know; that of another boot stays."""
    hour = 3600 * SECOND
    for rank, boot in ((0, "x"), (1, "x"), (2, "y")):
        write(tmp_path, rank, [member(rank, 3)], [row(CALL, 1, 0)], boot=boot)
    anchored(tmp_path, 10, EPOCH, SECOND)
    anchored(tmp_path, 11, EPOCH + hour, 9 * SECOND)
    anchored(tmp_path, 12, EPOCH, 5 * SECOND)
    trace = read(tmp_path)
    assert trace.events.enqueue.tolist() == [EPOCH + hour, EPOCH + hour, EPOCH]
    (note,) = trace.coverage.notes
    assert note.startswith("The clock of a was set by +3,600.000 s while the job ran")


def test_a_ring_of_another_version_says_which(tmp_path: Path) -> None:
    write(tmp_path, 0, [member(0, 1)], [row(CALL, 1, 0)])
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:7] + b"\x02" + data[8:])
    with pytest.raises(TraceError, match="it is of version 2, and this MegaTrace reads version 1"):
        read(tmp_path)


def test_calls_of_one_group_are_marked_and_still_watched(tmp_path: Path) -> None:
    marks = [0, 1, 1, 2, 3, 3, 0, 0]
    rows = [row(CALL, 1, number, channel=1 | mark << 1) for number, mark in enumerate(marks)]
    rows += [row(END, 1, number) for number in range(len(marks))]
    write(tmp_path, 0, [member(0, 1)], rows)
    trace = read(tmp_path)
    assert trace.events.flags is not None
    assert (trace.events.flags == EventFlag.COALESCED).tolist() == [
        False,
        True,
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    assert trace.coverage.has(Observable.END)
