"""What a job needs in its environment to be recorded, beside whatever stands there already.

Three variables switch the recording on, and each has an owner before us: ``LD_PRELOAD`` (allocators, other
tracers), ``NCCL_PROFILER_PLUGIN`` (NCCL takes one; ours loads the other behind itself) and ``PYTHONPATH``
(how the hook of torch.distributed comes into a process without touching its script). Nothing is replaced,
nothing is added twice, and a part that is not installed is left out with a sentence: the job always starts.

Computes an environment and makes the folders; starting the job is ``supervise``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatrace import native
from megatrace.errors import CollectError
from megatrace.model.job import JobConfig

RING_DIR = "MEGATRACE_RING_DIR"
"""Where the recorder puts its ring files."""
JOB = "MEGATRACE_JOB"
"""The name of the job in the headers of the rings."""
RUN_DIR = "MEGATRACE_RUN_DIR"
"""The folder of the run, where ranks leave what is small and needed later."""
CHAINED = "MEGATRACE_CHAIN_PROFILER"
"""The profiler plug-in that stood in ``NCCL_PROFILER_PLUGIN`` before."""
PRELOAD = "LD_PRELOAD"
PLUGIN = "NCCL_PROFILER_PLUGIN"
PYTHONPATH = "PYTHONPATH"
VERBS = "NCCL_IBVERBS_LIB"
KERNELS = "MEGATRACE_NCCL_KERNELS"
"""Read by the plug-in: watch the kernels from the start on."""
NETWORK = "MEGATRACE_NCCL_NETWORK"
"""Read by the plug-in: watch the requests of NCCL's proxy to the network, too."""
PARALLEL = "MEGATRACE_PARALLEL"
"""How the job is split, as far as whoever starts it knows; stands in the header of every native ring."""

SHARED_MEMORY = Path("/dev/shm")
STARTUP = Path(__file__).resolve().parent / "startup"
"""Holds the ``sitecustomize`` that loads the hook, and nothing else: it goes onto every Python's path."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The compiled parts, each None where this installation lacks it."""

    recorder: Path | None
    preload: Path | None
    plugin: Path | None
    verbs: Path | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the recording is wanted. What costs most is off unless asked for: the work
    requests, and the events of kernels and of NCCL's proxy, for which NCCL has to do more."""

    preload: bool = True
    plugin: bool = True
    torch: bool = True
    verbs: bool = False
    kernels: bool = False
    network: bool = False


def parts() -> Parts:
    """The compiled parts of this installation; they lie beside the library that ``native`` loads."""
    status = native.status()
    folder = Path(status.path).parent if status.loaded else None

    def beside(name: str) -> Path | None:
        path = None if folder is None else folder / name
        return path if path is not None and path.is_file() else None

    return Parts(
        recorder=beside(native.LIBRARY),
        preload=beside("libmegatrace_preload.so"),
        plugin=beside("libnccl-profiler-megatrace.so"),
        verbs=beside("libmegatrace_ibverbs.so"),
    )


def environment_of(
    before: Mapping[str, str], have: Parts, wanted: Wanted, places: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(the variables to set, sentences on what is left out). ``places`` are set as they are.

    Called with its own result it changes nothing, so a launcher inside a launcher does no harm.
    """
    change = dict(places)
    notes: list[str] = []
    if have.recorder is None:
        why = native.status().reason or "it is not in this installation"
        notes.append(f"only torch.distributed is recorded, for the native part is missing: {why}")
        wanted = Wanted(preload=False, plugin=False, torch=wanted.torch, verbs=False)
    preloads: list[Path] = []
    if wanted.preload:
        _want(have.preload, "the preload library", preloads, notes)
    if wanted.verbs:
        verbs: list[Path] = []
        _want(have.verbs, "the library for RDMA work requests", verbs, notes)
        preloads += verbs
        if verbs and not before.get(VERBS):
            change[VERBS] = str(verbs[0])
    if preloads:
        change[PRELOAD] = _joined([str(path) for path in preloads], before.get(PRELOAD, ""), " :", ":")
    if wanted.plugin:
        _plugin(before, have, wanted, change, notes)
    if wanted.torch:
        change[PYTHONPATH] = _joined([str(STARTUP)], before.get(PYTHONPATH, ""), os.pathsep, os.pathsep)
    return change, tuple(notes)


def _want(path: Path | None, what: str, into: list[Path], notes: list[str]) -> None:
    if path is None:
        notes.append(f"{what} is not in this installation; going on without")
    elif any(letter in str(path) for letter in " :"):
        notes.append(f"{path}: the dynamic loader takes no blank or colon in a path; going on without")
    else:
        into.append(path)


def _plugin(
    before: Mapping[str, str], have: Parts, wanted: Wanted, change: dict[str, str], notes: list[str]
) -> None:
    if have.plugin is None:
        notes.append("NCCL's profiler plug-in is not in this installation; going on without")
        return
    other = before.get(PLUGIN, "")
    if other and other != str(have.plugin) and other.lower() != "none":
        change[CHAINED] = other
    change[PLUGIN] = str(have.plugin)
    if wanted.kernels:
        change[KERNELS] = "1"
    if wanted.network:
        change[NETWORK] = "1"


def parallel(job: JobConfig) -> str:
    """Sizes of the parallel groups as rings carry them, "tp=2,pp=4"; "" where none is known."""
    sizes = {"tp": job.tensor, "pp": job.pipeline, "dp": job.data, "cp": job.context, "ep": job.expert}
    return ",".join(f"{name}={size.value}" for name, size in sizes.items() if size is not None)


def _joined(ours: list[str], before: str, separators: str, joiner: str) -> str:
    """Ours in front of what stood there, nothing twice."""
    for separator in separators:
        before = before.replace(separator, joiner)
    theirs = [word for word in before.split(joiner) if word not in ours] if before else []
    return joiner.join([*ours, *theirs])


def make_folders(run: Path, rings: Path) -> None:
    """Makes the folder of the run and that of the rings. Raises CollectError."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        rings.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CollectError(f"{error.filename} cannot be made: {error.strerror}") from None
