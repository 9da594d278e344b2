"""What the header of a ring tells of its process, and what becomes of its times when the clock is set."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.components.native_builds import (
    TESTS,
    compiled,
    needs_compiler,
)
from tests.components.ring_programs import ran, rings

SECOND = 1_000_000_000

SECOND = 1_000_000_000


# What the header tells


def told(check: Path, folder: Path, *words: str, before: Sequence[str] = (), **more: str) -> dict[str, Any]:
    """The header of the ring of a program with this environment, and no other."""
    ran(check, folder, "full", *words, before=tuple(before), **more)
    (ring,) = rings(folder)
    return dict(ring.about)


def test_the_header_tells_whose_ring_it_is(check: Path, tmp_path: Path) -> None:
    about = told(
        check, tmp_path, 'a "b"', "c\\d\n", "é",
        RANK="3", LOCAL_RANK="1", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4", GROUP_RANK="0",
        TORCHELASTIC_RESTART_COUNT="2", TORCHELASTIC_RUN_ID="run", MEGATRACE_JOB="pre\ttrain",
        MEGATRACE_PARALLEL="tp=2,pp=2,dp=2",
    )  # fmt: skip
    assert about.pop("boot") == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert about.pop("argv") == [str(check), "full", 'a "b"', "c\\d\n", "é"]
    assert int(about.pop("pid")) > 0
    assert about.pop("device_missing")
    assert about == {
        "source": "check", "host": socket.gethostname(), "launcher": "torchrun", "rank": "3",
        "local_rank": "1", "world_size": "8", "local_world_size": "4", "node_rank": "0", "attempt": "2",
        "job": "pre\ttrain", "parallel": "tp=2,pp=2,dp=2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "launcher", "rank"),
    [
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_PROCID": "0"}, "openmpi", 5),
        ({"SLURM_PROCID": "6", "SLURM_NTASKS": "8"}, "slurm", 6),
        ({"PMI_RANK": "7", "PMI_SIZE": "8"}, "pmi", 7),
    ],
)
def test_every_launcher_tells_the_rank(
    check: Path, tmp_path: Path, variables: dict[str, str], launcher: str, rank: int
) -> None:
    ran(check, tmp_path, "full", before=(), RANK="", **variables)
    (ring,) = rings(tmp_path)
    assert (ring.rank, ring.word("launcher"), ring.count("world_size")) == (rank, launcher, 8)


def test_a_long_command_line_is_cut_between_words(check: Path, tmp_path: Path) -> None:
    words = [f"--option-{at}={'x' * 90}" for at in range(60)]
    argv = told(check, tmp_path, *words)["argv"]
    assert argv[:12] == [str(check), "full", *words[:10]]
    assert len(argv) < 62


def test_the_device_is_what_a_loaded_cuda_says(check: Path, tmp_path: Path) -> None:
    cuda = compiled(tmp_path / "libcuda.so.1", "-shared", "-Wl,-soname,libcuda.so.1", TESTS / "stub_cuda.cc")
    about = told(check, tmp_path, LD_PRELOAD=str(cuda))
    assert about["device"] == "0000:3b:00.0"
    assert about["device_uuid"] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert about["device_from"] == "driver"
    assert "device_missing" not in about


def test_cuda_is_never_loaded_to_ask_it(check: Path, tmp_path: Path) -> None:
    compiled(tmp_path / "libcuda.so.1", "-shared", "-Wl,-soname,libcuda.so.1", TESTS / "stub_cuda.cc")
    about = told(check, tmp_path, LD_LIBRARY_PATH=str(tmp_path), MEGATRACE_PROC=str(tmp_path))
    assert about["device_missing"] == "no CUDA library is loaded, and no driver is there"
    assert "device" not in about


@pytest.mark.parametrize(
    ("visible", "device", "missing"),
    [
        ("GPU-bbbb", "0000:5e:00.0", None),
        ("0", None, "several devices, and no CUDA library tells which"),
        ("GPU-cccc", None, "no device is visible"),
        ("", None, "no device is visible"),
    ],
)
def test_without_cuda_the_driver_s_files_tell_a_device_that_is_the_only_one_meant(
    check: Path, tmp_path: Path, visible: str, device: str | None, missing: str | None
) -> None:
    for pci, uuid in (("0000:3b:00.0", "GPU-aaaa"), ("0000:5e:00.0", "GPU-bbbb")):
        place = tmp_path / "driver" / "nvidia" / "gpus" / pci
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t H100\nGPU UUID: \t {uuid}\nBus Type: PCIe\n")
    about = told(check, tmp_path, MEGATRACE_PROC=str(tmp_path), CUDA_VISIBLE_DEVICES=visible)
    assert (about.get("device"), about.get("device_missing")) == (device, missing)
    assert about.get("device_uuid") == ("GPU-bbbb" if device else None)


# Clocks


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_compiler()
    return compiled(tmp_path_factory.mktemp("clock") / "clock.so", "-shared", TESTS / "stepped_clock.cc")


def test_a_clock_that_is_set_during_the_run_bends_nothing(check: Path, clock: Path, tmp_path: Path) -> None:
    """Five records a second apart; the clock goes an hour forward before the third."""
    ran(check, tmp_path, "step", LD_PRELOAD=str(clock))
    (ring,) = rings(tmp_path)
    calls = ring.records[ring.records["kind"] == 1]
    assert np.diff(calls["time"].astype(np.int64)).tolist() == [SECOND] * 4
    hour = 3600 * SECOND
    assert abs(ring.stepped - hour) < SECOND // 1000
    # Everything stands on the clock as it was set last, what was before it, too.
    assert 0 < int(calls["time"][0]) - hour - time.time_ns() + 60 * SECOND < 60 * SECOND
    assert abs(ring.begin - int(calls["time"][0])) < SECOND
    anchors = ring.records[ring.records["kind"] == 6]
    assert len(anchors) == 4
    differences = anchors["number"].astype(np.int64) - anchors["time"].astype(np.int64) + ring.offset
    assert (np.abs(np.diff(differences)) > SECOND).tolist() == [True, False, False]


def test_without_a_step_nothing_is_moved(check: Path, tmp_path: Path) -> None:
    ran(check, tmp_path, "full")
    (ring,) = rings(tmp_path)
    assert abs(ring.stepped) < 1_000_000
    assert abs(ring.begin - time.time_ns()) < 60 * SECOND
