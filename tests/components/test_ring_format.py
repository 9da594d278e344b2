"""The native writer of rings, against the reader's idea of the format and against what can go wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from megatrace.collect import torch_ring
from megatrace.model.ringformat import ANCHOR_AT, HEAD, KEPT_AT, MAGIC, RECORD
from tests.components.native_builds import (
    SANITIZERS,
    compiled,
    sanitizing,
)
from tests.components.ring_programs import SOURCES, ran, rings

SECOND = 1_000_000_000


def assert_same_layout(told: str) -> None:
    layout = json.loads(told)
    assert layout.pop("size") == RECORD.itemsize == torch_ring.RECORD_BYTES
    assert layout.pop("header") == KEPT_AT == torch_ring.HEADER_BYTES
    assert layout.pop("json") == HEAD.size == torch_ring.HEAD.size
    assert layout.pop("control") == 4080
    assert layout.pop("offset") == ANCHOR_AT
    assert layout.pop("anchored") == ANCHOR_AT + 8
    layout["time"] = layout.pop("time_ns")
    assert RECORD.fields is not None
    assert layout == {name: entry[1] for name, entry in RECORD.fields.items()}


def test_native_writer_and_reader_agree_on_the_layout(check: Path, tmp_path: Path) -> None:
    assert_same_layout(ran(check, tmp_path, "layout").stdout)


def test_they_agree_on_another_machine(tmp_path: Path) -> None:
    compiler = shutil.which("aarch64-linux-gnu-g++")
    runner = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if compiler is None or runner is None:
        pytest.skip("no cross-compiler for aarch64, or no qemu-user, here")
    program = compiled(tmp_path / "check", *SOURCES, more=["-static", "-w"], compiler=compiler)
    assert_same_layout(ran(program, tmp_path, "layout", before=(runner,)).stdout)


def test_eight_writers_go_round_the_ring_and_mix_nothing(check: Path, tmp_path: Path) -> None:
    threads, records = 8, 200_000
    assert ran(check, tmp_path, "wrap", str(threads), str(records)).returncode == 0
    (path,) = tmp_path.glob("*.ring")
    data = path.read_bytes()
    assert data.startswith(MAGIC)
    written = np.frombuffer(data, RECORD, offset=HEAD.unpack_from(data)[1])
    written = written[(written["seq"] != 0) & (written["kind"] == 1)]
    assert len(written) > 200
    value = written["number"]
    for column in ("time", "comm", "nbytes", "stream", "flags"):
        assert (written[column] == value).all(), column
    assert (written["thread"] == value & np.uint64(0xFFFF)).all()
    total = threads * records
    numbers = written["seq"]
    assert len(set(numbers.tolist())) == len(numbers)
    assert int(numbers.max()) >= total
    (ring,) = rings(tmp_path)
    assert len(ring.records)
    assert ring.lost == int(ring.records["seq"][0]) - 1
    assert ring.rank == 3


def test_a_child_has_a_ring_of_its_own(check: Path, tmp_path: Path) -> None:
    assert ran(check, tmp_path, "fork").returncode == 0
    assert sorted(ring.records["number"].tolist() for ring in rings(tmp_path)) == [[1, 4], [3]]


def test_a_program_that_becomes_another_begins_anew(check: Path, tmp_path: Path) -> None:
    assert ran(check, tmp_path, "exec").returncode == 0
    (ring,) = rings(tmp_path)
    assert ring.records["number"].tolist() == [2]


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    program = compiled(tmp_path / "check", *SOURCES, more=sanitizing(sanitizer, tmp_path))
    for words in (("wrap", "8", "20000"), ("fork",), ("exec",), ("step",), ("full",)):
        done = ran(program, tmp_path, *words)
        assert (done.returncode, done.stderr) == (0, "")
