"""``open_trace``: what it finds, what it unpacks, what it refuses and how it says so."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

from megatrace.errors import TraceError, UnknownFormat, UsageError
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace
from megatrace.readers.source import EXPANSION_FREE, ReadOptions


def log(rank: int, calls: int = 3) -> bytes:
    return b"".join(
        b"[save_count 1] [1755590104.%09d] [Rank %d] Fun AllReduce Data 4 stream 0x55919d27b4b0 opCount %d\n"
        % (i, rank, i)
        for i in range(calls)
    )


def ranks(trace_paths: list[Path | str]) -> list[int]:
    found: list[int] = open_trace(trace_paths).events.ranks().tolist()
    return found


def test_files_directories_and_globs(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        (tmp_path / "deep" / f"host{rank}").mkdir(parents=True)
        (tmp_path / "deep" / f"host{rank}" / "any.name").write_bytes(log(rank))
    (tmp_path / ".hidden").write_bytes(log(77))
    assert ranks([tmp_path]) == [0, 2, 10]
    assert ranks([f"{tmp_path}/**/any.*"]) == [0, 2, 10]
    assert ranks([tmp_path / "deep" / "host2" / "any.name"]) == [2]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log(0))
    trace = open_trace([tmp_path, tmp_path / "a.log", f"{tmp_path}/*.log"])
    assert trace.coverage.lines == 3
    assert trace.coverage.notes == ()


def trace_or_sentence(path: Path) -> Trace | str:
    try:
        return open_trace([path])
    except TraceError as error:
        return str(error)


def packed_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, packed_zstd])
def test_compression_is_told_by_content(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "rank_0.log").write_bytes(pack(log(0, 3000)))
    assert len(open_trace([tmp_path]).events) == 3000


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, packed_zstd])
def test_a_cut_archive_gives_what_is_before_the_cut_or_one_sentence(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    data = pack(log(0, 20_000))
    for part in (1, 2, 3, 7):
        (tmp_path / "rank_0.log").write_bytes(data[: len(data) * part // 8])
        found = trace_or_sentence(tmp_path)
        if isinstance(found, Trace):
            assert 0 < len(found.events) < 20_000
            assert any("rank_0.log" in note for note in found.coverage.notes)
        else:
            assert "\n" not in found


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_tar_archives_are_read_member_by_member(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "logs.tar.any"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for rank in range(3):
            member = tarfile.TarInfo(f"logs/rank_{rank}.log")
            data = log(rank) + b"[save_count"
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    trace = open_trace([path])
    assert trace.events.ranks().tolist() == [0, 1, 2]
    assert trace.coverage.torn_tails == (0, 1, 2)
    assert (
        "rank_1.log line 4 is cut off (the process was killed while writing); 3 lines read."
        in trace.coverage.notes
    )
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    cut = trace_or_sentence(path)
    assert "damaged" in cut or "cut off" in cut if isinstance(cut, str) else cut.coverage.notes


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(gzip.compress(log(4)))))
    assert ranks(["-"]) == [4]


def test_what_is_not_a_log_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_bytes(log(0))
    (tmp_path / "README.md").write_text("hello\n", encoding="utf-8")
    (tmp_path / "rank_1.log").write_bytes(b"")
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    notes = open_trace([tmp_path]).coverage.notes
    assert any("README.md was not read (log: none of its first" in note for note in notes)
    assert any("rank_1.log is empty" in note for note in notes)
    assert any("gone.log was not read (open: cannot be opened" in note for note in notes)


def test_nothing_recognised_gives_every_readers_reason(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(UnknownFormat) as caught:
        open_trace([tmp_path / "x.bin"])
    assert caught.value.exit_code == 3
    assert "calllog" in caught.value.reasons


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda d: None, TraceError, "holds no file"),
        (lambda d: (d / "rank_0.log").write_bytes(b""), TraceError, "is empty"),
        (lambda d: (d / "rank_0.log").write_bytes(log(0)[:30]), TraceError, "no whole call line"),
    ],
    ids=["empty-directory", "empty-file", "one-torn-line"],
)
def test_nothing_to_read_is_one_clear_sentence(
    tmp_path: Path, make: Callable[[Path], object], error: type[Exception], words: str
) -> None:
    make(tmp_path)
    with pytest.raises(error, match=words):
        open_trace([tmp_path])


def test_a_path_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file or directory"):
        open_trace([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="matches no file"):
        open_trace([f"{tmp_path}/*.log"])


def test_a_bomb_is_stopped_and_said(tmp_path: Path) -> None:
    (tmp_path / "bomb.log").write_bytes(gzip.compress(log(0) + b"x" * (3 * EXPANSION_FREE)))
    trace = open_trace([tmp_path])
    assert len(trace.events) == 3
    assert any("times its size" in note for note in trace.coverage.notes)


def test_a_size_limit_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(log(0, 10_000))
    trace = open_trace([tmp_path], options=ReadOptions(max_file_bytes=100_000))
    assert len(trace.events) < 10_000
    assert any("a.log is larger than 100,000 bytes" in note for note in trace.coverage.notes)


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    for rank in range(70):
        (tmp_path / f"rank_{rank}.log").write_bytes(log(rank))
    seen: list[tuple[int, int]] = []
    open_trace([tmp_path], options=ReadOptions(progress=lambda done, total, path: seen.append((done, total))))
    assert seen[0] == (0, 70)
    assert seen[-1] == (70, 70)
    assert seen == sorted(seen)
