"""Whether a job seems to stand, and the evidence that is then taken of a real one, by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatrace.collect import attaching, torch_ring
from megatrace.collect.standby import NodeStandby
from megatrace.collect.watching import LATEST_S, MOST, Stillness, heads_of, newest
from megatrace.errors import CollectError
from megatrace.model.events import Op

TAIL = torch_ring.tail_of(Op.ALL_REDUCE, 7)
COMM = b"\1\2\3\4\5\6\7\x88"
MEGATRACE = [sys.executable, "-m", "megatrace"]


@pytest.mark.parametrize("calls", [1, 2, 7, 63, 64, 65, 130, 1000])
def test_the_newest_record_is_found_wherever_the_ring_is(tmp_path: Path, calls: int) -> None:
    ring = torch_ring.Ring(str(tmp_path), 64)
    for number in range(calls):
        ring.put(TAIL, COMM, number, 400, -1)
    path = Path(ring.path)
    assert newest(path) == calls
    assert newest(path, calls // 2) == calls
    assert newest(path, calls) == calls


def test_files_that_are_no_rings_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.ring").write_bytes(b"short")
    (tmp_path / "b.ring").write_bytes(bytes(5000))
    assert heads_of([tmp_path / "a.ring", tmp_path / "b.ring", tmp_path / "gone.ring"], {}) == {}


def test_silence_is_suspected_once_until_the_job_moves_again() -> None:
    still = Stillness(after_s=10)
    assert still.look({}, 0) is None
    assert still.look({"a": 5}, 1) is None
    assert still.look({"a": 5}, 10) is None
    assert still.look({"a": 5}, 11) == 10
    assert still.look({"a": 5}, 60) is None, "once"
    assert still.look({"a": 6}, 61) is None
    assert still.look({"a": 6}, 72) == 11


def test_a_job_that_never_made_a_call_is_not_suspected() -> None:
    still = Stillness(after_s=10)
    assert [still.look({}, now) for now in (0.0, 100.0, 1000.0)] == [None] * 3


def test_a_pause_that_the_job_has_made_before_is_its_habit() -> None:
    still = Stillness(after_s=10)
    still.look({"a": 1}, 0)
    still.look({"a": 2}, 9)  # nine seconds between two calls
    assert still.look({"a": 2}, 25) is None
    assert still.look({"a": 2}, 36) == 27
    long = Stillness(after_s=10, longest=1000.0, heads={"a": 2}, moved_at=0.0)
    assert long.look({"a": 2}, LATEST_S) == LATEST_S, "before a watchdog ends the job"


def test_evidence_is_taken_of_few_standstills() -> None:
    still = Stillness(after_s=1)
    taken = 0
    for turn in range(10):
        still.look({"a": turn + 1}, turn * 1000.0)
        taken += still.look({"a": turn + 1}, turn * 1000.0 + 500) is not None
    assert taken == MOST


RANK = """
import os, sys, time
sys.path[:0] = {paths!r}
from megatrace.collect import torch_ring
ring = torch_ring.Ring(os.environ["MEGATRACE_RING_DIR"], 64)
for number in range(5):
    ring.put(torch_ring.tail_of(1, 7), b"12345678", number, 400, -1)
    time.sleep(0.1)
def stuck_in_the_data_loader():
    time.sleep(600)
stuck_in_the_data_loader()
"""


def test_evidence_of_a_job_that_stands_is_taken_before_it_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(paths=sys.path))
    command = [*MEGATRACE, "run", "--dir", "r", "--rings", str(tmp_path / "shm"), "--suspect-after", "2s"]
    command += ["--no-torch", "--", sys.executable, str(script)]
    job = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "RANK": "3"}, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "r").glob("evidence-*/kernel.log")) and time.monotonic() < deadline:
        # kernel.log may not be readable here; the file of processes is written a second time at the end
        written = list((tmp_path / "r").glob("evidence-*/processes.json"))
        if written and time.time() - written[0].stat().st_mtime > 3:
            break
        time.sleep(0.2)
    job.send_signal(signal.SIGTERM)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGTERM
    (folder,) = (tmp_path / "r").glob("evidence-*")
    assert f"the evidence of 1 processes goes to {folder}" in said
    assert "next: megatrace attach" in said
    told = json.loads((folder / "processes.json").read_text())
    (process,) = told["processes"]
    assert (process["rank"], process["state"]) == (3, "S")
    assert process["command"][1] == str(script)
    assert list((folder / "rings").glob("torch-*.ring"))
    again = subprocess.run(
        [*MEGATRACE, "attach", str(folder)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "rank 3" in again.stdout
    assert not list(tmp_path.glob("megatrace-evidence*")), "what was taken before is not taken again"


def test_a_job_that_moves_or_ends_is_left_alone(tmp_path: Path) -> None:
    command = [*MEGATRACE, "run", "--dir", "r", "--rings", str(tmp_path / "shm"), "--suspect-after", "1s"]
    done = subprocess.run(
        [*command, "--", "sleep", "3"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert not list((tmp_path / "r").glob("evidence-*"))


def test_who_collects_takes_evidence_of_the_jobs_of_the_node(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(paths=sys.path))
    environment = {**os.environ, "RANK": "0", "MEGATRACE_RING_DIR": str(tmp_path / "job")}
    (tmp_path / "job").mkdir()
    job = subprocess.Popen([sys.executable, str(script)], env=environment)
    proc = tmp_path / "proc"  # of all the processes here, this one is looked at
    proc.mkdir()
    (proc / str(job.pid)).symlink_to(f"/proc/{job.pid}")
    said: list[str] = []
    standby = NodeStandby(tmp_path / "kept", 10.0, said.append)
    try:
        deadline = time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            standby.step(time.monotonic() * 10, proc)  # ten times as fast as it is
            time.sleep(0.5)
    finally:
        job.kill()
        job.wait()
    assert f"of 1 processes goes to {tmp_path / 'kept'}" in said[0]
    (folder,) = (tmp_path / "kept").glob("evidence-*")
    (told,) = json.loads((folder / "processes.json").read_text())["processes"]
    assert told["pid"] == job.pid


def test_the_time_for_evidence_is_bounded(tmp_path: Path) -> None:
    taken = attaching.take([os.getpid()], tmp_path / "e", limit_s=0)
    assert any("time for evidence was over" in note for note in taken.notes)
    assert json.loads((tmp_path / "e" / "processes.json").read_text())["processes"]
    assert [process.pid for process in attaching.read_again(tmp_path / "e").processes] == [os.getpid()]
    with pytest.raises(CollectError, match="holds no evidence"):
        attaching.read_again(tmp_path)
