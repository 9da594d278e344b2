"""Damaged dumps and answers: any bytes give a Trace or a TraceError, in bounded memory, and both readers of
pickles agree on every one of them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.errors import TraceError
from megatrace.model.events import UNSEEN
from megatrace.model.trace import Trace
from megatrace.readers import flight_recorder_native
from megatrace.readers.flight_recorder_dump import dump_of, parse_dump
from megatrace.readers.flight_recorder_entries import Dump
from megatrace.readers.flight_recorder_native import native_reader
from megatrace.readers.flight_recorder_pickle import PickleRefused, loads
from megatrace.readers.opening import open_trace
from megatrace.simulator.torch_pickle import Shared, torch_pickle
from tests.unit.flight_recorder_cases import Recorder
from tests.unit.ras_cases import HEAD
from tests.unit.test_inspector import line

FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
ROUNDS = 100_000 if FUZZ else 700
"""Mutations of each format."""


def recorder() -> Recorder:
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "9": ("PIPELINE_MODEL_PARALLEL_GROUP", [0, 1, 2, 3])}
    made = Recorder(1, groups)
    for step in range(4):
        made.call("0", "all_reduce", at=step).call("0", "all_to_all", at=step, sizes=[[3, 4], [5]])
        made.recv("9", 0, "scheduled", at=step).send("9", 2, "scheduled", at=step, bump=False)
        made.coalesced("9", "completed", at=step)
    frames = [{"name": "f", "filename": "/app/train.py", "line": 3}]
    return made.call("0", "all_reduce", "started", at=9, frames=frames).call(
        "0", "broadcast", "scheduled", at=9
    )


def plain() -> Recorder:
    """Without coalesced calls and frames."""
    made = Recorder(2, {"0": ("default_pg", [0, 1, 2, 3]), "7": ("TENSOR_MODEL_PARALLEL_GROUP", [2, 3])})
    for step in range(6):
        made.call("0", "all_reduce", at=step).call("7", "_all_gather_base", at=step)
    return made.call("0", "all_reduce", "started", at=9).call("7", "broadcast", "scheduled", at=9)


RAS_TEXT = (
    HEAD
    + """    0         1         4         8        32        32   RUNNING  INCOMPLETE,ERROR,MISMATCH

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 29 -- GPU 5 managed by process 3487984 on node 172.16.64.213

#0-0 (27a079b828ff1a75) ERROR
  Asynchronous errors on 2 ranks
  2 ranks reported Remote process error
  Rank 0 -- GPU 0 managed by process 1 on node 10.0.0.1
  Rank 1 -- GPU 1 managed by process 2 on node 10.0.0.1

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  Rank 4 has status ABORT -- GPU 4 managed by process 5 on node 10.0.0.1
  Communicator ranks have different AllReduce operation counts
  29 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 2 -- GPU 2 managed by process 3 on node 10.0.0.1
  Rank 3 -- GPU 3 managed by process 4 on node 10.0.0.1
"""
)


def ras_json() -> str:
    rank = {
        "rank": 0, "host": "10.0.0.1", "pid": 7, "cuda_dev": 0, "nvml_dev": 0,
        "status": {"init_state": 0, "async_error": 6, "abort_flag": False},
        "collective_counts": {"AllReduce": 3, "AllGather": 0},
    }  # fmt: skip
    gone = {**rank, "rank": 1, "status": {"unresponsive": True, "considered_dead": False}}
    communicator = {"hash": "0xa", "size": 2, "ranks": [rank], "missing_ranks": [gone]}
    answer = {"nccl_version": "2.29.1", "timestamp": "2025-12-19 13:06:53", "communicators_count": 1}
    return json.dumps({**answer, "communicators": [communicator], "ras": {"timeouts_count": 1}}, indent=1)


REPORT = """Not all ranks joining collective: sequence number: 12
group info: 0:default_pg
collective: nccl:all_reduce
missing ranks: {5}
input sizes: [[4096]]
world size: 8
expected ranks: {0, 1, 2, 3, 4, 5, 6, 7}
collective stack trace:
step at /app/train.py:12
"""


def inspector_lines() -> str:
    rows = [(seq, rank) for seq in range(24) for rank in range(2)]
    return "".join(line("0xw", rank, 2, "node0", 7 + rank, seq, 10.0 + rank) + "\n" for seq, rank in rows)


SEEDS: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps(recorder().dump(), protocol=2),
    "pickle4": lambda: pickle.dumps(recorder().dump(), protocol=4),
    "json": lambda: json.dumps(recorder().dump()).encode(),
    "ras text": lambda: RAS_TEXT.encode(),
    "ras json": lambda: ras_json().encode(),
    "report": lambda: REPORT.encode(),
    "inspector": lambda: inspector_lines().encode(),
}


DANGEROUS = (
    b"\xff\xff\xff\xff", b"\x00", b"r\xff\xff\xff\x7f", b"c__builtin__\neval\n", b"R", b"2", b"(", b"u",
    b"9" * 25, b"-1", b"{", b"}", b"]", b'"', b"X\xff\xff\xff\xff", b"\x8b\xff\xff\xff\x7f", b"\x94", b"e",
)  # fmt: skip


def mutated(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """Bytes flipped, cut, doubled, moved, replaced by dangerous ones."""
    rng = random.Random(seed)
    for _ in range(rounds):
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
            at, kind = rng.randrange(len(out) or 1), rng.randrange(6)
            if kind == 0 and out:
                out[at] = rng.randrange(256)
            elif kind == 1:
                out[at : at + rng.randrange(1, 40)] = b""
            elif kind == 2:
                out[at:at] = rng.choice(DANGEROUS)
            elif kind == 3:
                out[at:at] = out[at : at + rng.randrange(1, 200)]
            elif kind == 4 and rng.random() < 0.2:
                del out[at:]
            else:
                out[at : at + 4] = rng.choice(DANGEROUS)
        yield bytes(out)


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_any_bytes_give_a_trace_or_one_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "dump_1"
    traces = 0
    for data in mutated(SEEDS[name](), ROUNDS, seed=len(name)):
        path.write_bytes(data)
        try:
            trace = open_trace([path])
        except TraceError:
            continue
        assert isinstance(trace, Trace)
        traces += 1
        if traces % 8 == 0:
            diagnose(trace)
    assert traces > 0


ARRAYS = (
    "op", "group", "seq", "peer", "count", "nbytes", "created", "started", "ended", "coalesced",
)  # fmt: skip


def columns(dump: Dump | None) -> object:
    """Everything of a dump, comparably."""
    if dump is None:
        return None
    arrays = [getattr(dump, name).tolist() for name in ARRAYS]
    rest = (dump.version, dump.names, dump.config, dump.status, dump.ids, dump.timeout, dump.bad, dump.lost)
    return (
        arrays,
        (*rest, dump.own, dump.has_start),
        [(note.row, note.shape, note.frame) for note in dump.notes],
    )


def written(value: dict[str, Any], form: str) -> bytes:
    """As PyTorch writes it, with stack frames that several entries share, or as a protocol of Python's."""
    if form != "torch":
        return pickle.dumps(value, protocol=int(form))
    frames: dict[str, Shared] = {}
    for entry in value["entries"]:
        entry["frames"] = [
            frames.setdefault(str(frame), Shared(frame))
            for frame in entry.get("frames", [{"name": "step", "filename": "/app/loop.py", "line": 7}])
        ]
    return torch_pickle(value)


@pytest.mark.parametrize("made", [recorder, plain], ids=["coalesced", "plain"])
@pytest.mark.parametrize("form", ["1", "2", "4", "torch"])
def test_all_ways_through_a_pickle_agree(form: str, made: Callable[[], Recorder]) -> None:
    native = native_reader()
    if native is None:
        pytest.skip("the compiled part is not there")
    whole = written(made().dump(), form)
    assert native.read(whole) == (form != "1")
    refused = read = straight = 0
    for data in (whole, *mutated(whole, ROUNDS, seed=len(form))):
        try:
            expected = columns(parse_dump(loads(data), "x"))
        except PickleRefused:
            expected = None
        try:
            found = columns(native.dump(data, "x"))
            straight += native.read(data)
            by_numbers = columns(dump_of(native.raw(), native.rest(), native.entry, "x"))
        except PickleRefused:
            found = by_numbers = None
        assert found == expected, data
        assert by_numbers == expected, data
        refused += found is None
        read += found is not None
    assert read >= 1
    assert refused >= 1
    assert straight >= (ROUNDS // 20 if form != "1" else 0)


def test_texts_that_are_forgotten_are_learnt_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    native = native_reader()
    if native is None:
        pytest.skip("the compiled part is not there")
    dumps = [made().dump() for made in (recorder, plain, recorder)]
    monkeypatch.setattr(flight_recorder_native, "MOST_TEXTS", 5)
    for dump in dumps:
        expected = columns(parse_dump(loads(written(dump, "2")), "x"))
        assert columns(native.dump(written(dump, "torch"), "x"))[0] == expected[0]  # type: ignore[index]


HOSTILE = {
    "calls code": b"\x80\x02X\x07\x00\x00\x00entries0cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
    "new style call": pickle.dumps(Path("/etc/pg_config"), protocol=4),
    "memo bomb": b"\x80\x02}X\x07\x00\x00\x00entriesr\xff\xff\xff\xff.",
    "text bomb": b"\x80\x02}X\x07\x00\x00\x00entries\x8d" + struct.pack("<Q", 1 << 60) + b".",
    "number bomb": b"\x80\x02}X\x07\x00\x00\x00entries\x8b" + struct.pack("<I", 1 << 30) + b".",
    "list bomb": b"\x80\x02X\x07\x00\x00\x00entries" + b"]" * 4_000_001 + b".",
    "nested": b"\x80\x02}(X\x07\x00\x00\x00entries" + b"(" * 100_000 + b"l" * 100_000 + b"u.",
    "keys that take forever": b"\x80\x02X\x09\x00\x00\x00pg_config0)q\x00"
    + b"h\x00h\x00\x86q\x00" * 60
    + b"0}h\x00Ns.",
    "dictionaries in circles": b"\x80\x02}q\x00(X\x09\x00\x00\x00pg_configh\x00X\x07\x00\x00\x00entries]u.",
}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_pickles_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, compiled: bool
) -> None:
    if not compiled:
        monkeypatch.setenv("MEGATRACE_NATIVE", "off")
    path = tmp_path / "dump_1"
    path.write_bytes(HOSTILE[name])
    if "call" in name:
        with pytest.raises(TraceError, match="import or call code"):
            open_trace([path])
        return
    with contextlib.suppress(TraceError):
        diagnose(open_trace([path]))


def test_a_sparse_file_of_ten_gigabytes_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "dump_1"
    with path.open("wb") as file:
        file.write(b"\x80\x02}X\x07\x00\x00\x00entries")
        file.truncate(10 << 30)
    with pytest.raises(TraceError, match="larger than"):
        open_trace([path])


def test_a_bomb_is_refused_with_a_sentence(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "dump_1.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"\x80\x02}X\x07\x00\x00\x00entries")
        for _ in range(80):
            file.write(b"]" * (1 << 20))
    with pytest.raises(TraceError, match="unpacks to more than"):
        open_trace([path])


def test_numbers_at_the_edge_do_not_overflow() -> None:
    made = recorder()
    values: list[object] = [1 << 62, -(1 << 63), 1 << 70, -1, "9" * 30, None, [], True]
    for value in values:
        for key in ("time_created_ns", "record_id", "collective_seq_id", "timeout_ms", "pg_id"):
            made.entries[0][key] = value
            dump = parse_dump(made.dump(status=False), "x")
            assert dump is not None
            assert dump.created[0] >= 0
            assert int(dump.ended[0]) >= UNSEEN
