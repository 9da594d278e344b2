"""The native writer of rings, against the reader's idea of the format and against what can go wrong."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from megatrace.collect import torch_ring
from megatrace.model.ringformat import HEAD, KEPT_AT, MAGIC, RECORD, Ring, parse_ring

NATIVE = Path(__file__).resolve().parents[2] / "native"
SOURCES = [str(NATIVE / "tests" / "ring_check.cc"), str(NATIVE / "ring.cc")]
FLAGS = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
LIMIT_S = 120


def build(compiler: str, output: Path, *more: str) -> Path:
    command = [compiler, *FLAGS, *more, *SOURCES, "-o", str(output)]
    subprocess.run(command, check=True, timeout=LIMIT_S, capture_output=True)
    return output


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    return build("g++", tmp_path_factory.mktemp("ring") / "check")


def ran(
    program: Path, folder: Path, *words: str, before: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "MEGATRACE_RING_DIR": str(folder), "RANK": "3", **more}
    command = [*before, str(program), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def rings(folder: Path) -> list[Ring]:
    return [parse_ring(path.read_bytes(), path.name) for path in sorted(folder.glob("*.ring"))]


def assert_same_layout(told: str) -> None:
    layout = json.loads(told)
    assert layout.pop("size") == RECORD.itemsize == torch_ring.RECORD_BYTES
    assert layout.pop("header") == KEPT_AT == torch_ring.HEADER_BYTES
    assert layout.pop("json") == HEAD.size == torch_ring.HEAD.size
    assert layout.pop("control") == 4080
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
    program = build(compiler, tmp_path / "check", "-static")
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


def test_a_file_of_the_same_name_is_replaced_and_not_cut(check: Path, tmp_path: Path) -> None:
    """A process of the same number on the same host (in another container) may have mapped it: to cut it
    would be a SIGBUS there."""
    waits = 'i=0; until [ -e "$1" ] || [ $i -gt 2000 ]; do i=$((i + 1)); sleep 0.01; done; exec "$0" full'
    process = subprocess.Popen(
        ["/bin/sh", "-c", waits, str(check), str(tmp_path / "go")],
        env={"PATH": os.environ["PATH"], "MEGATRACE_RING_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    theirs = tmp_path / f"check-{socket.gethostname()}-{process.pid}.ring"
    theirs.write_bytes(b"x" * 100_000)
    with theirs.open("rb") as mapped:
        (tmp_path / "go").touch()
        assert process.communicate(timeout=LIMIT_S)[0] == "open\n"
        assert len(mapped.read()) == 100_000
    assert rings(tmp_path)[0].records["number"].tolist() == [1]


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null"])
def test_where_a_ring_cannot_be_made_one_line_says_so(check: Path, folder: str) -> None:
    done = ran(check, Path(folder), "full")
    assert (done.returncode, done.stdout) == (0, "off\n")
    assert done.stderr.startswith("megatrace: records are not recorded: cannot open ")
    assert done.stderr.count("\n") == 1


def test_a_full_disk_refuses_before_anything_is_mapped(check: Path, tmp_path: Path) -> None:
    """The space is reserved first; a limit on the size of files stands for the disk that is full."""
    environment = {"PATH": os.environ["PATH"], "MEGATRACE_RING_DIR": str(tmp_path), "RECORDS": "1000000"}
    done = subprocess.run(
        ["/bin/sh", "-c", 'trap "" XFSZ; exec "$0" full', str(check)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert (done.returncode, done.stdout) == (0, "off\n")
    assert "megatrace: records are not recorded: no room for " in done.stderr
    assert not list(tmp_path.glob("*.ring"))


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    try:
        program = build(
            "g++", tmp_path / "check", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g"
        )
    except subprocess.CalledProcessError as error:
        if b"cannot find" not in error.stderr:
            raise
        pytest.skip(f"this compiler has no {sanitizer} sanitizer: {error.stderr!r:.100}")
    for words in (("wrap", "8", "20000"), ("exec",)):
        done = ran(program, tmp_path, *words)
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("the thread sanitizer does not run on this kernel")
        assert (done.returncode, done.stderr) == (0, "")
