"""Rings kept on disk in parts: nothing lost, nothing twice, small, and within a budget."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megatrace.collect import torch_ring
from megatrace.collect.archive import archived
from megatrace.collect.spool import Spool, find_rings, pack
from megatrace.errors import CollectError
from megatrace.model.events import UNSEEN, Op
from megatrace.model.ringformat import parse_ring
from megatrace.readers.opening import open_trace
from megatrace.readers.ring_segment import read_ring

TAIL = torch_ring.tail_of(Op.ALL_REDUCE, 7)
COMM = b"\1\2\3\4\5\6\7\x88"


@pytest.fixture(autouse=True)
def rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")


def made(ring: torch_ring.Ring, first: int, last: int) -> list[int]:
    """Calls that were waited for and ended."""
    indices = [ring.put(TAIL, COMM, number, 400, -1) for number in range(first, last)]
    for index in indices:
        ring.waited(index)
        ring.ended(index)
    return indices


def test_a_ring_that_went_round_is_whole_in_its_parts(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    spool = Spool(tmp_path / "kept", 1 << 30)
    for first in range(0, 400, 40):
        made(ring, first, first + 40)
        spool.round([Path(ring.path)])
    trace = open_trace([tmp_path / "kept"])
    assert trace.events.seq.tolist() == list(range(400))
    assert trace.events.end is not None
    assert trace.events.end.min() > 0
    assert bool(np.all(np.diff(trace.events.enqueue) >= 0))
    assert trace.coverage.gaps == ()
    assert trace.events.rank.tolist() == [3] * 400


def test_a_call_that_ended_later_is_kept_with_its_end(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    spool = Spool(tmp_path / "kept", 1 << 30)
    made(ring, 0, 5)
    pending = ring.put(TAIL, COMM, 5, 400, -1)
    ring.waited(pending)
    spool.round([Path(ring.path)])
    hung = open_trace([tmp_path / "kept"])
    assert hung.events.end is not None
    assert hung.events.end[-1] == UNSEEN
    ring.ended(pending)
    made(ring, 6, 8)
    spool.round([Path(ring.path)])
    trace = open_trace([tmp_path / "kept"])
    assert trace.events.seq.tolist() == list(range(8))
    assert trace.events.end is not None
    assert trace.events.end.min() > 0
    assert spool.round([Path(ring.path)]) == 0, "nothing new"


def test_what_was_lost_between_two_rounds_is_a_gap(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    spool = Spool(tmp_path / "kept", 1 << 30)
    made(ring, 0, 64)
    spool.round([Path(ring.path)])
    made(ring, 64, 200)
    spool.round([Path(ring.path)])
    trace = open_trace([tmp_path / "kept"])
    assert len(trace.events) == 128
    (gap,) = trace.coverage.gaps
    assert gap.records_lost == 72


def test_parts_take_an_eighth_of_the_records_and_the_oldest_go(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 1 << 14)
    made(ring, 0, 1 << 14)
    read = parse_ring(Path(ring.path).read_bytes(), "torch-n-1.ring")
    size = len(pack(read, read.records))
    assert size <= len(read.records) * 64 / 8, f"{size / len(read.records):.1f} bytes a record"
    spool = Spool(tmp_path / "kept", size * 2)
    for first in range(0, 5 << 14, 1 << 14):
        made(ring, first, first + (1 << 14))
        spool.round([Path(ring.path)])
    left = sorted((tmp_path / "kept").glob("*.arrow"))
    assert sum(path.stat().st_size for path in left) <= size * 2
    assert left[-1].name.endswith("-00000005.arrow")


def test_rings_of_live_processes_are_found_through_their_memory_maps(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    made(ring, 0, 3)
    found = find_rings(shared=tmp_path / "nowhere")
    names = [path.name for path in found if path.name == Path(ring.path).name]
    assert len(names) == 1, f"{names} of {os.getpid()}"


def test_a_disk_that_takes_nothing_is_said(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    made(ring, 0, 3)
    (tmp_path / "file").touch()
    with pytest.raises(CollectError, match="cannot be written"):
        Spool(tmp_path / "file", 1 << 20).round([Path(ring.path)])


@pytest.mark.parametrize("cut", [10, 200, 1000])
def test_a_part_that_is_cut_is_a_note_and_the_rest_is_read(tmp_path: Path, cut: int) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    spool = Spool(tmp_path / "kept", 1 << 30)
    for first in (0, 40):
        made(ring, first, first + 40)
        spool.round([Path(ring.path)])
    (first_part, *_) = sorted((tmp_path / "kept").glob("*.arrow"))
    data = first_part.read_bytes()
    first_part.write_bytes(data[:-cut])
    trace = open_trace([tmp_path / "kept"])
    assert trace.events.seq.tolist() == list(range(40, 80))
    assert any(first_part.name in note for note in trace.coverage.notes)


def test_the_command_keeps_what_there_is_once(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    made(ring, 0, 3)
    words = [sys.executable, "-m", "megatrace", "collect", "--out", str(tmp_path / "kept"), "--once"]
    words += ["--rings", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "3 records of 1 rings" in done.stdout
    assert list((tmp_path / "kept").glob(f"{Path(ring.path).stem}-*.parquet"))
    assert open_trace([tmp_path / "kept"]).events.seq.tolist() == [0, 1, 2]


def uneven(ring: torch_ring.Ring, calls: int) -> None:
    """Calls of several groups and messages, at uneven times: what a job does."""
    random = np.random.default_rng(5)
    send, receive = torch_ring.tail_of(Op.SEND, 7), torch_ring.tail_of(Op.RECV, 7)
    for number in range(calls):
        kind = int(random.integers(4))
        if kind == 0:
            index = ring.put(send, COMM, number // 4, 2**33, 7)
        elif kind == 1:
            index = ring.put(receive, COMM, number // 5, 1, 7)
        else:
            index = ring.put(TAIL, bytes([kind]) * 8, number // 3, 400, -1)
        ring.waited(index)
        if kind != 1:
            ring.ended(index)


@pytest.mark.parametrize("calls", [1, 2, 50, 3000])
def test_an_archive_gives_every_record_back(tmp_path: Path, calls: int) -> None:
    ring = torch_ring.Ring(str(tmp_path), 4096)
    uneven(ring, calls)
    before = parse_ring(Path(ring.path).read_bytes(), "r")
    after = read_ring(archived(before), "r")
    assert (after.records == before.records).all()
    assert (after.host, after.pid, after.started, after.offset) == (
        before.host, before.pid, before.started, before.offset,
    )  # fmt: skip
    part = read_ring(pack(before, before.records[calls // 2 :]), "r")
    assert (part.records == before.records[calls // 2 :]).all()


def test_many_parts_become_one_file_with_the_same_calls(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    spool = Spool(tmp_path / "kept", 1 << 30)
    for first in range(0, 4000, 40):
        made(ring, first, first + 40)
        if first == 2000:
            ring.put(TAIL, COMM, 4000, 400, -1)
        spool.round([Path(ring.path)])
    assert len(list((tmp_path / "kept").glob("*.parquet"))) == 1, "long before the end"
    before = open_trace([tmp_path / "kept"]).events
    spool.pack_parts()
    assert not list((tmp_path / "kept").glob("*.arrow"))
    after = open_trace([tmp_path / "kept"]).events
    assert len(after) == 4001
    for name in ("rank", "op", "seq", "enqueue", "end"):
        assert (getattr(after, name) == getattr(before, name)).all()


def test_the_oldest_files_go_whatever_their_form(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 1 << 10)
    spool = Spool(tmp_path / "kept", 1 << 30)
    for turn in range(6):
        uneven(ring, 1000)
        spool.round([Path(ring.path)])
        if turn % 2:
            spool.pack_parts()
    files = sorted((tmp_path / "kept").glob("*.parquet"))
    assert len(files) == 3
    spool.budget = sum(path.stat().st_size for path in files[1:])
    spool.round([])
    assert sorted((tmp_path / "kept").iterdir()) == files[1:]


def test_a_damaged_archive_is_a_note(tmp_path: Path) -> None:
    ring = torch_ring.Ring(str(tmp_path), 4096)
    uneven(ring, 100)
    data = archived(parse_ring(Path(ring.path).read_bytes(), "r"))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "cut.parquet").write_bytes(data[:-9])
    shutil.copy(ring.path, tmp_path / "kept")
    trace = open_trace([tmp_path / "kept"])
    assert len(trace.events) == 100
    assert any("cut.parquet was not read" in note for note in trace.coverage.notes)
