"""Plug-in, preloaded library and work requests under the sanitizers, in processes with several threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from megatrace.readers.opening import open_trace
from tests.components.native_builds import SANITIZERS, TESTS, compiled, sanitizing
from tests.components.nccl_jobs import COLLECTIVES, Built, Job, assert_complete, build
from tests.integration import test_work_requests as verbs

OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
"""The stub of NCCL frees nothing at its end."""


@dataclass(frozen=True)
class Sanitized:
    """Everything, built with one sanitizer; ``preloaded`` is a program that has our library in front of NCCL:
    what is preloaded would come before the runtime of the sanitizer."""

    nccl: Built
    verbs: verbs.Built


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    folder = tmp_path_factory.mktemp("sanitized")
    flags = sanitizing(request.param, folder)
    nccl = build(folder, flags)
    inputs = (TESTS / "nccl_main.cc", "-Wl,--no-as-needed", nccl.preload, folder / "libjob.so")
    compiled(folder / "preloaded", *inputs, f"-Wl,-rpath-link,{folder}", f"-Wl,-rpath,{folder}", more=flags)
    return Sanitized(nccl, verbs.build(folder, flags))


@pytest.mark.slow
def test_nothing_is_found_in_the_plug_in(sanitized: Sanitized, tmp_path: Path) -> None:
    """With kernels, groups and the proxy told, and a child of every rank."""
    more = {
        "NCCL_PROFILER_PLUGIN": str(sanitized.nccl.plugin),
        "MEGATRACE_NCCL_KERNELS": "1",
        "MEGATRACE_NCCL_NETWORK": "1",
        "MEGATRACE_NCCL_GROUPS": "1",
        "MEGATRACE_CHAIN_PROFILER": str(sanitized.nccl.folder / "chained.so"),
        "STUB_NET": "50e6",
        "STUB_NET_UNPAIRED": "1",
        "STUB_PROFILER": "6",
    }
    job = Job(sanitized.nccl, tmp_path, {**more, **OPTIONS})
    job.start("iterations=3", "grouped=1")
    calls = 1 + 3 * COLLECTIVES
    assert job.finish(before=f"chained began={2 * calls} ended={2 * calls} parents={calls} wrong=0\n") == ""
    assert_complete(open_trace([job.rings]), 3)


@pytest.mark.slow
def test_nothing_is_found_in_the_preloaded_library(sanitized: Sanitized, tmp_path: Path) -> None:
    job = Job(sanitized.nccl, tmp_path, OPTIONS, program="preloaded")
    job.start("iterations=3", "split=1", "grouped=1")
    assert job.finish() == ""
    assert_complete(open_trace([job.rings]), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("queues=4",), ("queues=2", "error=1:12:129"), ("queues=2", "signal_all=1")]
)
def test_nothing_is_found_in_work_requests(
    sanitized: Sanitized, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Queues of several threads, a failed one, one of which every request completes."""
    said = verbs.ran(sanitized.verbs, tmp_path, "named", "requests=20000", *words, **OPTIONS)
    assert said["seen"]["posted"] == said["posted"]
    assert said["seen"]["completed"] == said["completed"]
