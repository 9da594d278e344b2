"""Reads call logs on other processes or machines through `concurrent.futures.Executor`.

A pool of processes on this machine, or the workers of a Dask cluster that see the same files. Workers only
turn text into columns; everything that judges stays in one place and sees the same rows in the same order,
so the verdict does not depend on who read. A worker that dies costs its batch another try, and in the end
this process reads what nobody else could: an engine makes a diagnosis faster or does nothing.

Moves no files: Dask's workers need the file system that holds the logs.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from megatrace.errors import NotInstalled, UsageError
from megatrace.readers.calllog_reduced import ReducedLog
from megatrace.readers.opening import reduce_files

BATCH_BYTES = 64 << 20
"""Text per task: a tenth of a second and more of work, against a millisecond for handing it over."""
WORTH_BYTES = 2 << 30
"""A pool has to start, import numpy and hand its columns over: on 387 MB of plain text and two busy
processors it made a diagnosis of 14 s one of 23 s."""
WORTH_PROCESSES = 4
"""With fewer, the processes take from the one that merges what they read."""
MAX_PROCESSES = 8
"""Beyond this the process that merges is the slower side."""
TRIES = 3
"""A worker that was killed may have been out of memory, and so may its successor; then this process reads."""
AHEAD_PER_WORKER = 2
"""Batches in flight per worker: one at work, one waiting, so that what nobody merged yet stays small."""

Batch = tuple[tuple[int, str], ...]


class Engine(str, Enum):
    """Who reads."""

    auto = "auto"
    none = "none"
    processes = "processes"
    dask = "dask"


class Workers:
    """See ``readers.opening.Ahead``. ``start`` gives an executor of ``width`` workers, each time."""

    def __init__(self, start: Callable[[], Executor], width: int, batch_bytes: int = BATCH_BYTES) -> None:
        self._start, self._width, self._batch_bytes = start, width, batch_bytes
        self._executor: Executor | None = None
        self._waiting: deque[Batch] = deque()
        self._flying: dict[Batch, Future[list[ReducedLog]]] = {}
        self._batch_of: dict[str, Batch] = {}
        self._read: dict[str, ReducedLog] = {}
        self.lost = 0
        """Batches that a worker did not bring back, tries added up."""

    def begin(self, files: Sequence[str]) -> None:
        """Cuts the files into batches and starts on the first ones."""
        batch: list[tuple[int, str]] = []
        size = 0
        for place, path in enumerate(files):
            batch.append((place, path))
            with suppress(OSError):
                size += Path(path).stat().st_size
            if size >= self._batch_bytes:
                self._waiting.append(tuple(batch))
                batch, size = [], 0
        if batch:
            self._waiting.append(tuple(batch))
        self._batch_of = {path: batch for batch in self._waiting for _, path in batch}
        self._fill()

    def get(self, path: str) -> ReducedLog | None:
        """Waits for the batch of the file, three tries long."""
        batch = self._batch_of.get(path)
        if batch is not None:
            for _, name in batch:
                self._batch_of.pop(name, None)
            self._read = {log.report.name: log for log in self._result(batch)}
            self._fill()
        return self._read.pop(path, None)

    def _fill(self) -> None:
        while self._waiting and len(self._flying) < self._width * AHEAD_PER_WORKER:
            batch = self._waiting.popleft()
            self._flying[batch] = self._submit(batch)

    def _submit(self, batch: Batch) -> Future[list[ReducedLog]]:
        if self._executor is None:
            self._executor = self._start()
        try:
            return self._executor.submit(reduce_files, batch)
        except RuntimeError:  # the pool broke since
            self.close()
            self._executor = self._start()
            return self._executor.submit(reduce_files, batch)

    def _result(self, batch: Batch) -> list[ReducedLog]:
        future = self._flying.pop(batch, None)
        if future is None:  # asked for out of turn
            self._waiting.remove(batch)
            future = self._submit(batch)
        for left in reversed(range(TRIES)):
            read = _outcome(future)
            if isinstance(read, list):
                return read
            self.lost += 1
            if left:
                future = self._submit(batch)
            else:
                why = f"no worker could read {batch[0][1]} and what follows it ({read!r})"
                print(f"warning: {why}; reading it here", file=sys.stderr)
        return []

    def close(self) -> None:
        """Ends the workers of this process; those of a cluster stay."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None


def _outcome(future: Future[list[ReducedLog]]) -> list[ReducedLog] | Exception:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 (a boundary: whatever ails a worker, this process can read)
        return error


@contextmanager
def reading(engine: Engine, scheduler: str | None, files: Sequence[str]) -> Iterator[Workers | None]:
    """Workers for the time of the block, None where this process is the best reader. Raises UsageError."""
    if (scheduler is None) == (engine is Engine.dask):
        raise UsageError("--engine dask and --scheduler ADDRESS belong together")
    if engine is Engine.dask and scheduler is not None:
        with _dask(scheduler) as workers:
            yield workers
        return
    width = min(_processors(), MAX_PROCESSES, len(files))
    if engine is Engine.none or (engine is Engine.auto and not _worth(width, files)):
        yield None
        return
    workers = Workers(lambda: pool(width), width)
    try:
        yield workers
    finally:
        workers.close()


def pool(width: int) -> Executor:
    """Processes of their own start: a fork would copy the threads' locks of this one."""
    return ProcessPoolExecutor(width, mp_context=multiprocessing.get_context("spawn"))


@contextmanager
def _dask(scheduler: str) -> Iterator[Workers]:
    try:
        from distributed import Client
    except ImportError as error:
        raise NotInstalled("engine", "dask", "install megatrace[cluster]") from error
    try:
        client = Client(scheduler, timeout="15s", set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {scheduler} ({error}); start dask scheduler"
        ) from error
    with client:
        width = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
        yield Workers(lambda: client.get_executor(pure=False), width)


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _worth(width: int, files: Sequence[str]) -> bool:
    return width >= WORTH_PROCESSES and _bytes(files) >= WORTH_BYTES


def _bytes(files: Sequence[str]) -> int:
    total = 0
    for path in files:
        with suppress(OSError):
            total += Path(path).stat().st_size
    return total
