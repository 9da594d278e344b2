"""A job of eight processes around a libnccl without GPUs, with our recorders in its way."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from megatrace.analysis.diagnosing import diagnose
from megatrace.model.events import Op
from megatrace.model.finding import Diagnosis
from megatrace.model.ringformat import MAGIC, Ring, parse_ring
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace
from tests.components.native_builds import LIMIT_S, PLUGIN, PRELOAD, TESTS, compiled, library

RANKS = 8
COLLECTIVES = 8 * 2 + 1
"""Of a rank in an iteration: two of the tensor group for each of 8 tasks, one of the data group."""
MESSAGES = 8


@dataclass(frozen=True)
class Built:
    """``job`` is linked with the stub of NCCL, ``loader`` loads such a library with RTLD_LOCAL."""

    folder: Path
    job: Path
    loader: Path
    plugin: Path
    preload: Path


def build(folder: Path, more: Sequence[str] = ()) -> Built:
    """Everything, with ``more`` flags for all of it."""
    stub = compiled(
        folder / "libnccl.so.2", "-shared", "-Wl,-soname,libnccl.so.2", TESTS / "stub_nccl.cc", more=more
    )
    job = compiled(folder / "libjob.so", "-shared", TESTS / "nccl_job.cc", stub, more=more)
    compiled(folder / "chained.so", "-shared", TESTS / "chained_profiler.cc", more=more)
    return Built(
        folder,
        compiled(folder / "job", TESTS / "nccl_main.cc", job, f"-Wl,-rpath-link,{folder}", more=more),
        compiled(folder / "loader", '-DLOADED="libjob.so"', TESTS / "nccl_main.cc", more=more),
        library(folder / "libnccl-profiler-megatrace.so", PLUGIN, more),
        library(folder / "libmegatrace_preload.so", PRELOAD, more),
    )


@dataclass
class Job:
    """Eight processes, one a rank."""

    built: Built
    place: Path
    more: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    program: str = "job"

    @property
    def rings(self) -> Path:
        """Where the rings are."""
        return self.place / "rings"

    def start(self, *words: str) -> None:
        """Starts all ranks."""
        self.rings.mkdir(exist_ok=True)
        common = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.built.folder),
            "STUB_SHM": str(self.place / "meeting"),
            "MEGATRACE_RING_DIR": str(self.rings),
            "WORLD_SIZE": str(RANKS),
            **self.more,
        }
        self.processes = [
            subprocess.Popen(
                [self.built.folder / self.program, *words],
                env={**common, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]

    def finish(self, before: str = "") -> str:
        """What all said on stderr; every process must have come to its end."""
        said = [process.communicate(timeout=LIMIT_S) for process in self.processes]
        assert [process.returncode for process in self.processes] == [0] * RANKS, said
        assert all(out == f"{before}done\n" for out, _ in said), said
        return "".join(error for _, error in said)

    def stand(self) -> int:
        """Waits until nobody makes a call any more, then kills them all, as a scheduler does; ns, when."""
        before, quiet = -1, 0
        deadline = time.monotonic() + LIMIT_S
        while quiet < 10 and time.monotonic() < deadline:
            time.sleep(0.2)  # two seconds of silence: others may have the processors for one
            made = [path.read_bytes() for path in self.rings.glob("*.ring")]
            rings = [parse_ring(data, "a ring") for data in made if data.startswith(MAGIC)]
            now = sum(len(ring.records) for ring in rings)
            quiet = quiet + 1 if now == before and len(rings) >= RANKS else 0
            before = now
        self.kill()
        return time.time_ns()

    def kill(self) -> None:
        """Ends all processes as a scheduler does."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=LIMIT_S)


def judged(rings: Path, now: int | None = None) -> Diagnosis:
    """The verdict on a folder of rings."""
    return diagnose(open_trace([rings]), now=now)


def recorded(built: Built, place: Path, *words: str, **more: str) -> Trace:
    """A run through the plug-in that comes to its end."""
    job = Job(built, place, {"NCCL_PROFILER_PLUGIN": str(built.plugin), **more})
    job.start(*words)
    assert job.finish() == ""
    return open_trace([job.rings])


def rings_of(place: Path, prefix: str = "nccl") -> list[Ring]:
    """The rings of one recorder, by rank."""
    rings = [parse_ring(path.read_bytes(), path.name) for path in (place / "rings").glob(f"{prefix}-*.ring")]
    return sorted(rings, key=lambda ring: ring.rank if ring.rank is not None else -1)


def assert_complete(trace: Trace, iterations: int) -> None:
    """Every call of every rank is there once, in order, on its communicator, with its other end."""
    events = trace.events
    assert events.comm is not None
    assert events.peer is not None
    assert events.nbytes is not None
    assert events.ranks().tolist() == list(range(RANKS))
    messages = (events.op == Op.SEND) | (events.op == Op.RECV)
    for rank in range(RANKS):
        mine = slice(*np.searchsorted(events.rank, [rank, rank + 1]))
        assert int((~messages[mine]).sum()) == 1 + iterations * COLLECTIVES
        assert int(messages[mine].sum()) == iterations * MESSAGES
        assert set(events.peer[mine][messages[mine]].tolist()) == {(rank + 4) % RANKS}
    members = {group.members for group in trace.communicators}
    assert members == {
        tuple(range(8)), (0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6),
        (5, 7), (0, 4), (1, 5), (2, 6), (3, 7),
    }  # fmt: skip
    for group in trace.communicators:
        assert group.members is not None
        for rank in group.members:
            rows = (events.comm == group.id) & (events.rank == rank)
            for op in set(events.op[rows].tolist()):
                seq = events.seq[rows & (events.op == op)]
                assert (seq == np.arange(len(seq))).all()
    gradients = events.nbytes == 65536 * 4
    assert int(gradients.sum()) == RANKS * iterations
    assert set(events.op[gradients].tolist()) == {Op.ALL_REDUCE}
