"""Where a ring is to be made: full, read-only, forbidden, or in use by another run."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.components.native_builds import (
    LIMIT_S,
)
from tests.components.ring_programs import ran, rings

SECOND = 1_000_000_000

SECOND = 1_000_000_000


# Places without room


def in_tmpfs(
    check: Path, tmp_path: Path, options: str, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs the program with a small tmpfs of its own as the place of rings."""
    place = tmp_path / "shm"
    place.mkdir()
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare here")
    script = f'mount -t tmpfs -o {options} none "$1" && shift && exec "$@"'
    before = (unshare, "-rm", "sh", "-c", script, "sh", str(place))
    if subprocess.run([*before, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a tmpfs, in a namespace of its own either")
    return ran(check, place, *words, before=before, **more)


def test_a_tmpfs_that_is_full_refuses_and_the_job_goes_on(check: Path, tmp_path: Path) -> None:
    done = in_tmpfs(check, tmp_path, "size=64k", "full", RECORDS="65536")
    assert (done.returncode, done.stdout) == (0, "off\n"), done.stderr
    assert done.stderr.startswith("megatrace: records are not recorded: no room for ")
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1


def test_shared_memory_that_may_only_be_read_leaves_the_job_alone(check: Path, tmp_path: Path) -> None:
    done = in_tmpfs(check, tmp_path, "ro", "full")
    assert (done.returncode, done.stdout) == (0, "off\n"), done.stderr
    assert "megatrace: records are not recorded: cannot open " in done.stderr
    assert done.stderr.endswith("Read-only file system\n")


def test_a_second_run_in_the_same_place_makes_rings_of_its_own(check: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert ran(check, tmp_path, "full").stdout == "open\n"
    first, second = rings(tmp_path)
    assert (first.host, first.pid) != (second.host, second.pid)
    assert first.records["number"].tolist() == second.records["number"].tolist() == [1]


def test_a_file_of_the_same_name_is_replaced_and_not_cut(check: Path, tmp_path: Path) -> None:
    """A process of the same number on the same host (in another container) may have mapped it: to cut it
    would be a SIGBUS there."""
    waits = 'i=0; until [ -e "$1" ] || [ $i -gt 2000 ]; do i=$((i + 1)); sleep 0.01; done; exec "$0" full'
    process = subprocess.Popen(
        ["/bin/sh", "-c", waits, str(check), str(tmp_path / "go")],
        env={"PATH": os.environ["PATH"], "MEGATRACE_RING_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    theirs = tmp_path / f"check-{socket.gethostname()}-{process.pid}.ring"
    theirs.write_bytes(b"x" * 100_000)
    with theirs.open("rb") as mapped:
        (tmp_path / "go").touch()
        assert process.communicate(timeout=LIMIT_S)[0] == "open\n"
        assert len(mapped.read()) == 100_000
    assert rings(tmp_path)[0].records["number"].tolist() == [1]


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null"])
def test_where_a_ring_cannot_be_made_one_line_says_so(check: Path, folder: str) -> None:
    done = ran(check, Path(folder), "full")
    assert (done.returncode, done.stdout) == (0, "off\n")
    assert done.stderr.startswith("megatrace: records are not recorded: cannot open ")
    assert done.stderr.count("\n") == 1


def test_a_full_disk_refuses_before_anything_is_mapped(check: Path, tmp_path: Path) -> None:
    """The space is reserved first; a limit on the size of files stands for the disk that is full."""
    environment = {"PATH": os.environ["PATH"], "MEGATRACE_RING_DIR": str(tmp_path), "RECORDS": "1000000"}
    done = subprocess.run(
        ["/bin/sh", "-c", 'trap "" XFSZ; exec "$0" full', str(check)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert (done.returncode, done.stdout) == (0, "off\n")
    assert "megatrace: records are not recorded: no room for " in done.stderr
    assert not list(tmp_path.glob("*.ring"))
