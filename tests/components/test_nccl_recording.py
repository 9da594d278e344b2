"""NCCL's calls, recorded in real processes around a libnccl without GPUs, and judged from the rings."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.collect.spool import Spool
from megatrace.model.events import UNSEEN, Op
from megatrace.model.finding import Diagnosis, Verdict
from megatrace.model.ringformat import parse_ring
from megatrace.model.trace import Observable, Trace
from megatrace.readers.opening import open_trace

NATIVE = Path(__file__).resolve().parents[2] / "native"
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-pthread"]
OURS = [
    "-shared",
    "-Wconversion",
    "-Wshadow",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fvisibility=hidden",
]
LIMIT_S = 120
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    return build(tmp_path_factory.mktemp("nccl"))


def build(folder: Path, *more: str) -> Built:
    tests = NATIVE / "tests"
    stub, library = folder / "libnccl.so.2", folder / "libjob.so"
    made = Built(
        folder,
        folder / "job",
        folder / "loader",
        folder / "libnccl-profiler-megatrace.so",
        folder / "libmegatrace_preload.so",
    )
    recorder = [NATIVE / "nccl_recorder.cc", NATIVE / "ring.cc"]
    for output, words in (
        (stub, ["-shared", "-Wl,-soname,libnccl.so.2", tests / "stub_nccl.cc"]),
        (library, ["-shared", tests / "nccl_job.cc", stub]),
        (made.job, [tests / "nccl_main.cc", library, f"-Wl,-rpath-link,{folder}"]),
        (made.loader, ['-DLOADED="libjob.so"', tests / "nccl_main.cc"]),
        (made.plugin, [*OURS, NATIVE / "nccl_profiler.cc", *recorder]),
        (folder / "chained.so", ["-shared", tests / "chained_profiler.cc"]),
        (made.preload, [*OURS, NATIVE / "nccl_preload.cc", *recorder]),
    ):
        if more and output.name in ("loader", "chained.so", made.preload.name):
            continue  # a special build is for the plug-in in the job
        command = ["g++", *FLAGS, *more, *map(str, words), "-ldl", "-o", str(output)]
        subprocess.run(command, check=True, timeout=LIMIT_S, capture_output=True)
    return made


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
        return self.place / "rings"

    def start(self, *words: str) -> None:
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

    def stand(self) -> None:
        """Waits until nobody makes a call any more, then kills them all, as a scheduler does."""
        before, quiet = -1, 0
        deadline = time.monotonic() + LIMIT_S
        while quiet < 5 and time.monotonic() < deadline:
            time.sleep(0.1)
            rings = [parse_ring(path.read_bytes(), path.name) for path in self.rings.glob("*.ring")]
            now = sum(len(ring.records) for ring in rings)
            quiet = quiet + 1 if now == before and len(rings) >= RANKS else 0
            before = now
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=LIMIT_S)


def judged(rings: Path) -> Diagnosis:
    return diagnose(open_trace([rings]))


def recorded(built: Built, place: Path, *words: str, **more: str) -> Trace:
    """A run that comes to its end."""
    job = Job(built, place, {"NCCL_PROFILER_PLUGIN": str(built.plugin), **more})
    job.start(*words)
    assert job.finish() == ""
    return open_trace([job.rings])


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


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_every_call_is_recorded_by_every_version_of_the_interface(
    built: Built, tmp_path: Path, version: int
) -> None:
    trace = recorded(built, tmp_path, "iterations=3", STUB_PROFILER=str(version))
    assert_sight(trace, version)
    if (
        version < 4
    ):  # NCCL does not say how many members there are, so the rings can't prove that all are there
        assert {group.members for group in trace.communicators} == {None}
        assert len(trace.events) == RANKS * (1 + 3 * (COLLECTIVES + MESSAGES))
    else:
        assert_complete(trace, 3)


def assert_sight(trace: Trace, version: int) -> None:
    assert trace.coverage.has(Observable.SEQ, Observable.PEER, Observable.GROUP)
    assert trace.coverage.has(Observable.STREAM) == (version >= 5)
    assert not trace.coverage.has(Observable.END)
    if version >= 5:
        assert trace.events.stream is not None
        assert set(trace.events.stream.tolist()) == {0x1000}


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_a_rank_that_stalls_is_named(built: Built, tmp_path: Path, kernels: str) -> None:
    plugin = {"NCCL_PROFILER_PLUGIN": str(built.plugin), "MEGATRACE_NCCL_KERNELS": kernels}
    job = Job(built, tmp_path, plugin)
    job.start("iterations=12", "stall=5:8")
    job.stand()
    diagnosis = judged(job.rings)
    assert diagnosis.verdict is Verdict.HANG, diagnosis.headline
    finding = diagnosis.findings[0]
    assert finding.culprits.ranks == (5,)
    assert "never posted Recv from rank 1" in finding.summary
    assert (finding.where.stage, finding.where.iteration, finding.where.micro_batch) == (1, 8, 1)
    said = " ".join(item.text for item in finding.evidence)
    assert ("nothing is pending there: its host stopped calling" in said) == (kernels == "1")


def test_a_rank_that_was_killed_is_named_by_what_it_left(built: Built, tmp_path: Path) -> None:
    job = Job(built, tmp_path, {"NCCL_PROFILER_PLUGIN": str(built.plugin)})
    job.start("iterations=12", "kill=2:8")
    job.stand()
    diagnosis = judged(job.rings)
    assert diagnosis.verdict is Verdict.HANG, diagnosis.headline
    assert diagnosis.findings[0].culprits.ranks == (2,)
    assert "never posted ALL_REDUCE" in diagnosis.findings[0].summary


def test_kernels_are_watched_on_demand(built: Built, tmp_path: Path) -> None:
    trace = recorded(built, tmp_path, "iterations=3", MEGATRACE_NCCL_KERNELS="1")
    assert_complete(trace, 3)
    events = trace.events
    assert trace.coverage.has(Observable.START, Observable.END, Observable.COMPLETION)
    assert events.start is not None
    assert events.end is not None
    assert (events.start != UNSEEN).all()
    assert (events.end >= events.start).all()
    assert (events.start >= events.enqueue).all()


def test_the_control_word_switches_kernels_on_in_a_running_job(built: Built, tmp_path: Path) -> None:
    job = Job(built, tmp_path, {"NCCL_PROFILER_PLUGIN": str(built.plugin)})
    job.start("iterations=60")
    rings: list[Path] = []
    while len(rings) < RANKS:
        rings = [path for path in job.rings.glob("*.ring") if path.read_bytes()[:8] == b"MTRING\0\1"]
    for path in rings:
        with path.open("r+b") as file:
            file.seek(4080)
            file.write((1 << 6).to_bytes(4, "little"))
    job.finish()
    for path in rings:
        records = parse_ring(path.read_bytes(), path.name).records
        calls = records[records["kind"] == 1]
        watched = calls["channel"] == 1
        assert watched[-1]
        assert (np.diff(watched.astype(int)) >= 0).all()
        assert int((records["kind"] == 3).sum()) > 0
    assert_complete(open_trace([job.rings]), 60)


def test_recordings_that_were_spooled_read_the_same(built: Built, tmp_path: Path) -> None:
    trace = recorded(built, tmp_path, "iterations=3")
    spool = Spool(tmp_path / "spool", 1 << 30)
    assert spool.round(sorted((tmp_path / "rings").glob("*.ring"))) > 0
    assert spool.round(sorted((tmp_path / "rings").glob("*.ring"))) == 0
    again = open_trace([tmp_path / "spool"])
    for name, column in trace.events.columns():
        assert (getattr(again.events, name) == column).all(), name


def test_an_archive_takes_an_eighth_of_the_records_and_gives_the_same_verdict(
    built: Built, tmp_path: Path
) -> None:
    job = Job(built, tmp_path, {"NCCL_PROFILER_PLUGIN": str(built.plugin)})
    job.start("iterations=200", "stall=5:70")
    job.stand()
    spool = Spool(tmp_path / "spool", 1 << 30)
    records = spool.round(sorted((tmp_path / "rings").glob("*.ring")))
    assert spool.pack_parts() == RANKS
    files = list((tmp_path / "spool").iterdir())
    assert {path.suffix for path in files} == {".parquet"}
    size = sum(path.stat().st_size for path in files)
    assert size <= records * 64 / 8, f"{size / records:.1f} bytes a record"
    before, after = judged(tmp_path / "rings"), judged(tmp_path / "spool")
    assert before.findings[0].culprits.ranks == (5,)
    assert after.headline == before.headline
    assert after.findings == before.findings


def test_where_there_is_no_place_for_rings_the_job_runs(built: Built, tmp_path: Path) -> None:
    more = {"NCCL_PROFILER_PLUGIN": str(built.plugin), "MEGATRACE_RING_DIR": "/proc/nowhere"}
    job = Job(built, tmp_path, more)
    job.start("iterations=2")
    said = job.finish()
    assert said.count("\n") == RANKS
    assert said.count("megatrace: calls of NCCL are not recorded: cannot open /proc/nowhere") == RANKS


@pytest.mark.parametrize("program", ["job", "loader"])
def test_the_preloaded_library_sees_the_same(built: Built, tmp_path: Path, program: str) -> None:
    """Linked with NCCL, and NCCL come in with a library of local scope."""
    job = Job(built, tmp_path, {"LD_PRELOAD": str(built.preload)}, program=program)
    job.start("iterations=3", "split=1")
    assert job.finish() == ""
    trace = open_trace([job.rings])
    assert_complete(trace, 3)
    assert trace.coverage.has(Observable.STREAM, Observable.PEER)
    assert trace.coverage.notes == ()


@pytest.mark.parametrize("program", ["job", "loader"])
def test_a_rank_that_stalls_is_named_by_the_preloaded_library(
    built: Built, tmp_path: Path, program: str
) -> None:
    job = Job(built, tmp_path, {"LD_PRELOAD": str(built.preload)}, program=program)
    job.start("iterations=12", "stall=5:8")
    job.stand()
    diagnosis = judged(job.rings)
    assert diagnosis.verdict is Verdict.HANG, diagnosis.headline
    assert diagnosis.findings[0].culprits.ranks == (5,)


@pytest.mark.parametrize(
    ("version", "taken"), [("4", "the preloaded library"), ("6", "the profiler plug-in")]
)
def test_what_both_saw_counts_once(built: Built, tmp_path: Path, version: str, taken: str) -> None:
    """Of the plug-in where NCCL tells it the streams, else of the preloaded library."""
    trace = recorded(built, tmp_path, "iterations=3", STUB_PROFILER=version, LD_PRELOAD=str(built.preload))
    assert len(list((tmp_path / "rings").glob("*.ring"))) == 2 * RANKS
    assert_complete(trace, 3)
    assert trace.coverage.has(Observable.STREAM)
    (note,) = trace.coverage.notes
    assert note.endswith(f"once more; those of {taken} are taken.")


@pytest.mark.parametrize(("version", "kernels"), [("5", "0"), ("6", "0"), ("6", "1")])
def test_another_plug_in_gets_what_it_asked_for_and_its_own_handles(
    built: Built, tmp_path: Path, version: str, kernels: str
) -> None:
    more = {
        "NCCL_PROFILER_PLUGIN": str(built.plugin),
        "MEGATRACE_CHAIN_PROFILER": str(built.folder / "chained.so"),
        "MEGATRACE_NCCL_KERNELS": kernels,
        "STUB_PROFILER": version,
    }
    job = Job(built, tmp_path, more)
    job.start("iterations=3")
    calls = 1 + 3 * COLLECTIVES
    theirs = f"chained began={2 * calls} ended={2 * calls} parents={calls} wrong=0\n"
    assert job.finish(before=theirs) == ""
    assert_complete(open_trace([job.rings]), 3)


def test_another_plug_in_is_served_where_nothing_can_be_recorded(built: Built, tmp_path: Path) -> None:
    more = {
        "NCCL_PROFILER_PLUGIN": str(built.plugin),
        "MEGATRACE_CHAIN_PROFILER": str(built.folder / "chained.so"),
        "MEGATRACE_RING_DIR": "/proc/nowhere",
    }
    job = Job(built, tmp_path, more)
    job.start("iterations=3")
    calls = 1 + 3 * COLLECTIVES
    said = job.finish(before=f"chained began={2 * calls} ended={2 * calls} parents={calls} wrong=0\n")
    assert said.count("megatrace: calls of NCCL are not recorded: cannot open") == RANKS


@pytest.mark.parametrize("other", ["nowhere.so", "chained.so"])
def test_a_plug_in_that_cannot_be_chained_is_left_out_with_a_line(
    built: Built, tmp_path: Path, other: str
) -> None:
    more = {
        "NCCL_PROFILER_PLUGIN": str(built.plugin),
        "MEGATRACE_CHAIN_PROFILER": str(built.folder / other),
        "STUB_PROFILER": "4",
    }
    job = Job(built, tmp_path, more)
    job.start("iterations=1")
    said = job.finish().splitlines()
    assert len(said) == RANKS
    why = "it cannot be loaded" if other == "nowhere.so" else "it does not speak the version of this NCCL"
    assert all(line.endswith(f"{other} is left out: {why}") for line in said)
    assert_complete(open_trace([job.rings]), 1)


@pytest.mark.parametrize("way", ["plugin", "preload"])
def test_a_child_of_a_rank_records_in_a_ring_of_its_own(built: Built, tmp_path: Path, way: str) -> None:
    variable, library = (
        ("NCCL_PROFILER_PLUGIN", built.plugin) if way == "plugin" else ("LD_PRELOAD", built.preload)
    )
    job = Job(built, tmp_path, {variable: str(library)})
    job.start("iterations=2", "fork=1")
    assert job.finish() == ""
    paths = list(job.rings.glob("*.ring"))
    assert len(paths) == 2 * RANKS
    kept = [parse_ring(path.read_bytes(), path.name) for path in paths]
    assert sorted(len(ring.kept) for ring in kept) == [1] * RANKS + [4] * RANKS
    assert sorted(len(ring.records) > 0 for ring in kept) == [False] * RANKS + [True] * RANKS
    assert_complete(open_trace([job.rings]), 2)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_sanitizers_find_nothing_in_a_running_job(tmp_path: Path, sanitizer: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")
    try:
        made = build(tmp_path, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-Wno-tsan")
    except subprocess.CalledProcessError as error:
        if b"cannot find" not in error.stderr:
            raise
        pytest.skip(f"this compiler has no {sanitizer} sanitizer: {error.stderr!r:.100}")
    more = {
        "NCCL_PROFILER_PLUGIN": str(made.plugin),
        "MEGATRACE_NCCL_KERNELS": "1",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    job = Job(made, tmp_path, more)
    job.start("iterations=3")
    assert job.finish() == ""
    assert_complete(open_trace([job.rings]), 3)
