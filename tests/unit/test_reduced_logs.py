"""Call logs that were read elsewhere: the same Trace and verdict as from their text, no crash for damage."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatrace.commands.engines import (
    WORTH_BYTES,
    WORTH_PROCESSES,
    Engine,
    Workers,
    _worth,
    pool,
    reading,
)
from megatrace.commands.reduce import _make, _shard, reduce
from megatrace.errors import CorruptTrace, TraceError, UsageError
from megatrace.model.trace import Trace
from megatrace.readers.calllog_reduced import packed, unpacked
from megatrace.readers.opening import file_list, open_trace, reduce_files

HASHES = (-1234567890123456789, 7777777777777777777, 42)
T0 = 1755590104


def write_logs(folder: Path, ranks: int = 5, lines: int = 60) -> Path:
    """Logs with what makes files depend on each other: cut hashes, an earlier run, calls twice, torn ends."""
    folder.mkdir()
    for rank in range(ranks):
        text = ""
        for i in range(lines):
            group, stream = (rank + i) % 3, 0x5000 + 64 * ((rank + i) % 3)
            told = str(HASHES[group])[: 12 if i == 7 else None]
            number = i if i < 10 or rank != 1 else i - 10  # rank 1 started again
            save = f"[save_count {number}] "
            time = f"[{T0 + (2 * i if rank == 1 else i // 8)}.{i:09d}]"
            text += f"{save}{time} [Rank {rank}] Fun AllReduce Data {i + 1} stream 0x{stream:x} "
            text += f"opCount {number // 3} groupHash {told}\n"
        text += ("what is that\n" if rank == 3 else "") + text.splitlines(keepends=True)[-1]
        (folder / f"rank_{rank}.log").write_text(text[:-5] if rank == 4 else text)
    return folder


def assert_same(one: Trace, other: Trace) -> None:
    columns, others = dict(one.events.columns()), dict(other.events.columns())
    assert columns.keys() == others.keys()
    for name, column in columns.items():
        np.testing.assert_array_equal(column, others[name], name)
        assert column.dtype == others[name].dtype
    assert one.communicators == other.communicators
    assert one.coverage == other.coverage
    assert one.inputs == other.inputs


def test_shares_give_the_trace_of_the_text(tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs")
    whole = open_trace([logs])
    assert whole.coverage.notes  # else nothing that files share was tried
    for count in (1, 2, 4):
        out = tmp_path / f"partials{count}"
        for index in reversed(range(count)):
            assert reduce([str(logs)], out, f"{index}/{count}") == 0
        assert len(list(out.iterdir())) == count
        assert_same(open_trace([out]), whole)
        # The order in which partial results are named is not the order of the ranks.
        assert_same(open_trace(sorted(out.iterdir(), reverse=True)), whole)


def test_a_share_without_a_call_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = write_logs(tmp_path / "logs", ranks=2)
    (logs / "notes.txt").write_text("nothing to see\n")
    assert reduce([str(logs)], tmp_path / "out", "0/3") == 0
    assert "notes.txt" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(TraceError, match="no text call log"):
        reduce([str(logs / "notes.txt")], tmp_path / "out")


def test_a_damaged_share_is_one_error(tmp_path: Path) -> None:
    reduce([str(write_logs(tmp_path / "logs"))], tmp_path / "out")
    (file,) = (tmp_path / "out").iterdir()
    data = file.read_bytes()
    damaged = [data[:size] for size in range(1500, len(data), max(1, len(data) // 40))]
    damaged += [data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :] for at in range(40, len(data), 97)]
    refused = 0
    for one in damaged:
        file.write_bytes(one)
        try:
            open_trace([file])
        except TraceError as error:
            refused += isinstance(error, CorruptTrace)
    assert refused > 40


@pytest.mark.parametrize(("column", "value"), [("rank", -1), ("op", 200), ("group", 99), ("group", -99)])
def test_a_share_with_an_impossible_call_is_refused(tmp_path: Path, column: str, value: int) -> None:
    (log,) = reduce_files([(0, str(write_logs(tmp_path / "logs", ranks=1) / "rank_0.log"))])
    assert len(unpacked(packed([log]), "share")) == 1
    log.columns[column][5] = value
    with pytest.raises(CorruptTrace, match="a call"):
        unpacked(packed([log]), "share")


@pytest.mark.parametrize("given", ["3", "3/3", "-1/3", "a/b", "1/", "/2"])
def test_a_share_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="from 0 to N - 1"):
        _shard(given)


def test_a_slurm_array_says_which_share(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TASK_ID", "5"), ("TASK_COUNT", "4"), ("TASK_MIN", "2")):
        monkeypatch.setenv(f"SLURM_ARRAY_{name}", value)
    assert _shard(None) == (3, 4)
    assert _shard("0/2") == (0, 2)


def test_room_is_asked_for_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="free, and this share may need"):
        _make(tmp_path, 1 << 60)


class Broken(Executor):
    """Workers that all die."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(MemoryError("killed"))
        return future


def test_what_no_worker_reads_is_read_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = write_logs(tmp_path / "logs")
    assert_same(open_trace([logs], ahead=Workers(Broken, 2, batch_bytes=1)), open_trace([logs]))
    assert "reading it here" in capsys.readouterr().err


class Killing(Workers):
    """Kills a worker of its pool, once, when the third file is asked for."""

    def __init__(self, made: Sequence[ProcessPoolExecutor], width: int) -> None:
        self.made = list(made)
        super().__init__(self.next_pool, width, batch_bytes=1)
        self.asked = 0

    def next_pool(self) -> Executor:
        made = pool(1)
        assert isinstance(made, ProcessPoolExecutor)
        self.made.append(made)
        return made

    def get(self, path: str) -> Any:
        self.asked += 1
        if self.asked == 3:
            for worker in list(self.made[-1]._processes):
                os.kill(worker, signal.SIGKILL)
        return super().get(path)


def test_a_worker_killed_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs", ranks=9)
    workers = Killing((), 1)
    try:
        assert_same(open_trace([logs], ahead=workers), open_trace([logs]))
    finally:
        workers.close()
    assert workers.lost >= 1
    assert len(workers.made) >= 2


def test_other_files_between_the_logs_stay_as_they_are(tmp_path: Path) -> None:
    logs = write_logs(tmp_path / "logs")
    (logs / "rank_1.txt").write_text("")
    (logs / "rank_2.bin").write_bytes(bytes(range(256)))
    with reading(Engine.processes, None, file_list([logs])) as workers:
        assert workers is not None
        assert_same(open_trace([logs], ahead=workers), open_trace([logs]))
        assert not workers.lost


def test_small_logs_are_read_here(tmp_path: Path) -> None:
    with reading(Engine.auto, None, file_list([write_logs(tmp_path / "logs")])) as workers:
        assert workers is None


@pytest.mark.parametrize(
    ("width", "size", "worth"),
    [
        (WORTH_PROCESSES, WORTH_BYTES, True),
        (WORTH_PROCESSES - 1, WORTH_BYTES, False),
        (WORTH_PROCESSES, WORTH_BYTES - 1, False),
    ],
)
def test_many_bytes_and_processors_are_worth_a_pool(
    tmp_path: Path, width: int, size: int, worth: bool
) -> None:
    with (tmp_path / "sparse.log").open("wb") as file:
        file.truncate(size)  # takes no room
    assert _worth(width, [str(tmp_path / "sparse.log")]) is worth


@pytest.mark.parametrize(("engine", "scheduler"), [(Engine.dask, None), (Engine.auto, "tcp://h:1")])
def test_dask_and_its_scheduler_belong_together(engine: Engine, scheduler: str | None) -> None:
    with pytest.raises(UsageError, match="belong together"), reading(engine, scheduler, []):
        pass
