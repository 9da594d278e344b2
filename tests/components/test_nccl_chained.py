"""Another profiler plug-in behind ours: it gets what it asked for, and never one of our handles."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.readers.opening import open_trace
from tests.components.nccl_jobs import COLLECTIVES, RANKS, Built, Job, assert_complete


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
