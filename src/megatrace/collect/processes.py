"""The processes of a job on this node, and where each of them stands, from /proc.

Finds them without any preparation: a process and its descendants, or all that carry a job's number in their
environment. What a process waits for comes from its state, its kernel stack and wait channel (both need root
or the same user), and from py-spy where that is installed. Rings are found in the memory maps, and read
through ``/proc/PID/root``, so those of other containers are, too.

Reads only, apart from py-spy, which stops a process for some milliseconds. ``root`` is a parameter for tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from megatrace.collect.frameworks import rank_of

PROC = Path("/proc")
MAX_TEXT = 1 << 20
PYSPY_TIMEOUT_S = 20.0
"""py-spy takes a second; on a process in uninterruptible sleep it would wait for ever."""
JOB_VARIABLES = ("SLURM_JOB_ID", "MEGATRACE_JOB", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID")
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead, not yet reaped",
    "X": "dead",
    "I": "idle",
}


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one time. Texts are '' where they could not be read; ``rank`` None where none is set."""

    pid: int
    parent: int
    name: str
    state: str
    rank: int | None
    local_rank: str
    command: tuple[str, ...]
    threads: int
    wait_channel: str
    kernel_stack: str
    python_stack: str = ""
    rings: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        """Its state in words."""
        return STATES.get(self.state, f"in state {self.state}")


def read_process(pid: int, root: Path = PROC) -> Process | None:
    """A process, None where it is gone."""
    folder = root / str(pid)
    status = _pairs(_text(folder / "status"))
    if "State" not in status:
        return None
    environment = environment_of(pid, root)
    rings = rings_of(pid, root)
    rank = rank_of(environment)
    command = tuple(word for word in _text(folder / "cmdline").split("\0") if word)
    return Process(
        pid=pid,
        parent=_number(status.get("PPid", "")),
        name=status.get("Name", ""),
        state=status["State"][:1],
        rank=_rank_told(rings) if rank is None else rank,
        local_rank=environment.get("LOCAL_RANK", ""),
        command=command,
        threads=_number(status.get("Threads", "")),
        wait_channel=_text(folder / "wchan").strip().strip("0"),
        kernel_stack=_text(folder / "stack"),
        rings=rings,
    )


def _rank_told(rings: Iterable[str]) -> int | None:
    """The rank that a process has written down beside its ring: /proc shows the environment that it was
    started with, and a launcher that forks sets the rank later."""
    for ring in map(Path, rings):
        told = ring.with_name(f"groups-{ring.stem.partition('-')[2]}.json")
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(told.read_text("utf-8"))["rank"])
    return None


def environment_of(pid: int, root: Path = PROC) -> dict[str, str]:
    """What a process was started with; empty where it belongs to somebody else."""
    found = {}
    for item in _text(root / str(pid) / "environ").split("\0"):
        name, equals, value = item.partition("=")
        if equals:
            found[name] = value
    return found


def descendants(pid: int, root: Path = PROC) -> tuple[int, ...]:
    """The process and all below it, ascending."""
    children: dict[int, list[int]] = {}
    for other in all_pids(root):
        parent = _number(_pairs(_text(root / str(other) / "status")).get("PPid", ""))
        children.setdefault(parent, []).append(other)
    found, open_ = set(), [pid]
    while open_:
        at = open_.pop()
        if at not in found:
            found.add(at)
            open_ += children.get(at, [])
    return tuple(sorted(found))


def of_job(job: str, root: Path = PROC) -> tuple[int, ...]:
    """All processes that carry a job's number or name in their environment, ascending."""
    found = []
    for pid in all_pids(root):
        environment = environment_of(pid, root)
        if any(environment.get(name) == job for name in JOB_VARIABLES):
            found.append(pid)
    return tuple(found)


def maps_of(pid: int, root: Path = PROC) -> str:
    """The memory map of a process as text; '' where it cannot be read."""
    return _text(root / str(pid) / "maps")


def rings_of(pid: int, root: Path = PROC) -> tuple[str, ...]:
    """Ring files that a process has mapped, as paths that can be opened from here."""
    paths = set()
    for line in maps_of(pid, root).splitlines():
        path = line.partition("/")[2]
        if path.endswith(".ring"):
            paths.add(f"{root}/{pid}/root/{path}")
    return tuple(sorted(paths))


def python_stack(pid: int, program: str = "py-spy", timeout_s: float = PYSPY_TIMEOUT_S) -> tuple[str, str]:
    """(stack of all threads, '') or ('', why there is none). The program is looked for on the path, and
    beside the Python that runs this."""
    at = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if at is None:
        return "", "py-spy is not installed (pip install py-spy)"
    try:
        done = subprocess.run(
            [at, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"py-spy did not finish within {timeout_s:.0f} s"
    except OSError as error:
        return "", f"py-spy: {error.strerror}"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return "", f"py-spy: {lines[-1] if lines else 'failed'}"
    return done.stdout[:MAX_TEXT], ""


def ranks_among(processes: Iterable[Process]) -> Mapping[int, Process]:
    """The process of each rank: where several have the number (a launcher and what it started), the last one
    below that has mapped a ring, else the one with most threads."""
    found: dict[int, Process] = {}
    for process in processes:
        if process.rank is None:
            continue
        other = found.get(process.rank)
        if other is None or _weight(process) >= _weight(other):
            found[process.rank] = process
    return found


def _weight(process: Process) -> tuple[bool, int]:
    return bool(process.rings), process.threads


def all_pids(root: Path = PROC) -> list[int]:
    """Every process that can be seen from here."""
    try:
        return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit())
    except OSError:
        return []


def _pairs(text: str) -> dict[str, str]:
    return {key: value.strip() for line in text.splitlines() for key, _, value in [line.partition(":")]}


def _number(word: str) -> int:
    return int(word) if word.isascii() and word.isdigit() else 0


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
