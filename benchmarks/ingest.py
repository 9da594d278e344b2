"""How fast text call logs become columns: CPU per byte against the limit, and against a plain regex parser.

The limit is what no parser can undercut: reading each file into a reused buffer and finding its newlines with
memchr (compiled here, in the same run). "parser" stops at reused buffers, "reader" is the real thing: kept
columns, hashes turned into communicator numbers. All methods take turns in one process. Data is made under
$TMPDIR and removed. Run as ``python -m benchmarks.ingest [--quick]``.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from benchmarks.ingest_data import write_job
from benchmarks.measure import Goal, Timing, interleaved, write_result
from megatrace import native
from megatrace.readers.calllog import CallLogReader
from megatrace.readers.calllog_columns import Parser, TextBuffer
from megatrace.readers.calllog_native import native_parser
from megatrace.readers.calllog_numpy import NumpyParser
from megatrace.readers.opening import open_trace
from megatrace.readers.source import ReadOptions, Source

LIMIT_SOURCE = """
#include <stdint.h>
#include <string.h>
uint64_t count_lines(const char *text, uint64_t size) {
  const char *end = text + size;
  uint64_t lines = 0;
  for (const char *p = text; p < end && (p = memchr(p, '\\n', (size_t)(end - p))); ++p) ++lines;
  return lines;
}
"""
LINE = re.compile(
    r"(?:\[save_count (\d+)\] )?\[(\d+)\.(\d{9})\] \[Rank (\d+)\] Fun (\w+) Data (\d+) stream "
    r"(\(nil\)|0x[0-9a-f]+)(?: opCount (\d+))?(?: groupHash (-?\d+))?"
)


def limit(files: list[Path], folder: Path) -> Callable[[], int]:
    """Reads all files and counts their lines. Raises CalledProcessError where there is no C compiler."""
    source, library = folder / "limit.c", folder / "limit.so"
    source.write_text(LIMIT_SOURCE, encoding="utf-8")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    count = ctypes.CDLL(str(library)).count_lines
    count.argtypes, count.restype = [ctypes.c_void_p, ctypes.c_uint64], ctypes.c_uint64
    buffer = TextBuffer()

    def run() -> int:
        lines = 0
        for path in files:
            with io.FileIO(path) as raw:
                while got := raw.readinto(buffer.view):
                    lines += count(buffer.address, got)
        return lines

    return run


def parser_only(files: list[Path], parser: Parser) -> Callable[[], int]:
    """Parses into reused columns, which the next block overwrites."""
    buffer = TextBuffer(parser.block)

    def run() -> int:
        rows = 0
        for path in files:
            have = 0
            with io.FileIO(path) as raw:
                while got := raw.readinto(buffer.view[have:]):
                    have += got
                    parsed = parser.parse(buffer, 0, have)
                    rows += parsed.rows
                    rest = have - parsed.consumed
                    buffer.text[:rest] = buffer.text[parsed.consumed : have].copy()
                    have = rest
        return rows

    return run


def reader(files: list[Path], parser: Parser) -> Callable[[], int]:
    """What ``open_trace`` does per file: kept columns of every row."""

    def run() -> int:
        found = CallLogReader(ReadOptions(), parser)
        for path in files:
            with io.FileIO(path) as raw:
                found.add(Source(str(path), cast(BinaryIO, raw)))
        return found.rows

    return run


def regex(files: list[Path]) -> Callable[[], int]:
    """What one writes first: a pattern per line, numbers into lists."""

    def run() -> int:
        columns: list[list[int]] = [[] for _ in range(7)]
        names: list[str] = []
        for path in files:
            with path.open(encoding="utf-8") as lines:
                for line in lines:
                    found = LINE.match(line)
                    if found is None:
                        continue
                    save, seconds, ns, rank, name, count, stream, seq, group = found.groups()
                    names.append(name)
                    values = (
                        int(save or 0),
                        int(seconds) * 10**9 + int(ns),
                        int(rank),
                        int(count),
                        0 if stream == "(nil)" else int(stream, 16),
                        int(seq or -1),
                        int(group or 0),
                    )
                    for column, value in zip(columns, values, strict=True):
                        column.append(value)
        return len(names)

    return run


MEMORY_PROBE = """
import pathlib, sys
from megatrace.readers.opening import open_trace
def resident(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(name))
open_trace([sys.argv[1]])
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before = resident("VmRSS")
trace = open_trace([sys.argv[2]])
print((resident("VmHWM") - before) / len(trace.events))
"""


def memory_per_line(folder: Path, one: Path) -> float:
    """Growth of a fresh process's peak memory by ``open_trace``, per line; imports do not count."""
    command = [sys.executable, "-c", MEMORY_PROBE, str(one), str(folder)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def small_files(folder: Path, files: int, lines: int, rounds: int) -> tuple[Timing, int]:
    """CPU seconds of ``open_trace`` on many small files, and their bytes."""
    size = write_job(folder, ranks=files, lines=lines)
    return interleaved({"open": lambda: open_trace([folder])}, rounds=rounds)["open"], size


def measure(
    folder: Path, *, ranks: int, lines: int, small: int, rounds: int
) -> tuple[dict[str, object], list[Goal]]:
    """All figures and goals. Raises SystemExit where the native part is not there."""
    compiled = native_parser()
    if compiled is None:
        raise SystemExit(f"error: the native part is not loaded: {native.status().reason}")
    size = write_job(folder / "job", ranks=ranks, lines=lines)
    files = sorted((folder / "job").iterdir())
    few = files[: max(1, ranks // 16)]
    few_size = sum(path.stat().st_size for path in few)
    methods: dict[str, tuple[Callable[[], int], int]] = {
        "limit": (limit(files, folder), size),
        "native parser": (parser_only(files, compiled), size),
        "native reader": (reader(files, compiled), size),
        "numpy parser": (parser_only(files, NumpyParser()), size),
        "numpy reader": (reader(files, NumpyParser()), size),
        "regex": (regex(few), few_size),
    }
    for name, (run, expected) in methods.items():
        assert run() == (lines * ranks if expected == size else lines * len(few)), name
    timings = interleaved({name: run for name, (run, _) in methods.items()}, rounds=rounds)
    per_byte = {name: timings[name].median / methods[name][1] * 1e9 for name in methods}
    opened, opened_size = small_files(folder / "small", small, 1000, max(3, rounds // 2))
    overhead = (opened.median - per_byte["native reader"] * 1e-9 * opened_size) / small
    memory = memory_per_line(folder / "job", folder / "small" / "rank_0.log")
    figures: dict[str, object] = {
        "data": {
            "files": ranks,
            "lines": ranks * lines,
            "bytes": size,
            "bytes_per_line": round(size / ranks / lines, 1),
        },
        "ns_per_byte": {name: round(value, 4) for name, value in per_byte.items()},
        "mb_per_cpu_s": {name: round(1000 / value, 1) for name, value in per_byte.items()},
        "ns_per_line": {name: round(value * size / ranks / lines, 1) for name, value in per_byte.items()},
        "cpu": {name: timing.as_json() for name, timing in timings.items()},
        "small_files": {"files": small, "lines_each": 1000, "overhead_us_per_file": round(overhead * 1e6, 1)},
        "memory_bytes_per_line": round(memory, 1),
    }
    goals = [
        Goal(
            "native parser into reused columns, CPU per byte / limit",
            per_byte["native parser"] / per_byte["limit"],
            4,
        ),
        Goal(
            "native reader, times a plain regex parser",
            per_byte["regex"] / per_byte["native reader"],
            40,
            True,
        ),
        Goal(
            "numpy reader, times a plain regex parser", per_byte["regex"] / per_byte["numpy reader"], 8, True
        ),
        Goal("peak memory of open_trace, bytes per line", memory, 60),
        Goal("open_trace beyond reading, µs per file of 1,000 lines", overhead * 1e6, 150),
    ]
    return figures, goals


def main() -> int:
    """Runs, prints and writes the figures; 1 where a goal is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="less data, fewer rounds, no result file")
    quick = arguments.parse_args().quick
    shape = {"ranks": 16, "lines": 5_000, "small": 64, "rounds": 3}
    if not quick:
        shape = {"ranks": 32, "lines": 20_000, "small": 512, "rounds": 7}
    with tempfile.TemporaryDirectory(prefix="megatrace-ingest-") as folder:
        figures, goals = measure(Path(folder), **shape)
    for name, value in cast("dict[str, float]", figures["mb_per_cpu_s"]).items():
        per_line = cast("dict[str, float]", figures["ns_per_line"])[name]
        print(f"{name:14} {value:9,.1f} MB per CPU-s  {per_line:9,.1f} ns per line")
    for goal in goals:
        print(goal.line())
    if not quick:
        print(f"written: {write_result('ingest', figures, goals).relative_to(Path.cwd())}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
