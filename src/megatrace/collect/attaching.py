"""Takes the evidence of a job that stands from the processes of this node, into a folder.

For each process its state, stacks and rings; for the job the answer of NCCL's RAS, the dumps that torch's
flight recorder writes on request, and the end of the kernel log. Every step is bounded in time, because a
watchdog may end the job any minute; what could not be had is a note, and the rest goes on. Nothing is changed
in the job, except that a request through torch's pipe makes it write a file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from megatrace.collect import processes, ras_client
from megatrace.collect.processes import Process
from megatrace.errors import CollectError

RAS_TIMEOUT_S = 10.0
DUMP_TIMEOUT_S = 10.0
"""A flight recorder writes its 2,000 entries in some 20 ms; with many ranks on one disk in some seconds."""
KERNEL_LINES = 500
LIMIT_S = 120.0
"""For all steps together: PyTorch's watchdog gives a job ten minutes, and a person less."""
AT_ONCE = 8
"""Stacks taken at a time: a node has about as many ranks, and py-spy needs a processor."""
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken, until ``at`` (ns since the epoch). ``inputs`` are the files and folders that a
    diagnosis can read."""

    processes: tuple[Process, ...]
    inputs: tuple[Path, ...]
    notes: tuple[str, ...]
    at: int


def take(
    pids: Sequence[int],
    folder: Path,
    *,
    stacks: bool = True,
    ras: str | None = "localhost",
    limit_s: float = LIMIT_S,
) -> Taken:
    """Everything that can be had of these processes within ``limit_s`` seconds; what came too late is a note.

    Raises CollectError where the folder cannot be made. ``ras`` None asks nobody.
    """
    deadline = time.monotonic() + limit_s
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CollectError(f"{folder} cannot be made: {error.strerror}") from None
    notes: list[str] = []
    inputs: list[Path] = []
    seen = [found for pid in pids for found in [processes.read_process(pid)] if found is not None]
    inputs += _rings(seen, folder / "rings", notes)  # first: they hold the moment
    _write_down(seen, folder / "processes.json")  # a first time: what follows may be cut off with the job
    inputs += _flight_recorder(seen, folder / "flight", notes, deadline)
    if stacks:
        seen = _with_stacks(seen, notes, deadline)
    if ras is not None and _left(deadline, "NCCL's RAS", notes):
        inputs += _ras(ras, folder / "ras.json", notes, min(RAS_TIMEOUT_S, deadline - time.monotonic()))
    if _left(deadline, "the kernel log", notes):
        _kernel_log(folder / "kernel.log", notes)
    _write_down(seen, folder / "processes.json")
    return Taken(tuple(seen), tuple(inputs), tuple(dict.fromkeys(notes)), time.time_ns())


def _rings(seen: Iterable[Process], folder: Path, notes: list[str]) -> list[Path]:
    copied = 0
    for process in seen:
        for path in process.rings:
            beside = sorted(Path(path).parent.glob(f"groups-*-{Path(path).stem.rpartition('-')[2]}.json"))
            for source in (Path(path), *beside):
                folder.mkdir(exist_ok=True)
                try:
                    shutil.copyfile(source, folder / source.name)
                    copied += 1
                except OSError as error:
                    notes.append(f"{source} cannot be copied: {error.strerror}")
    return [folder] if copied else []


def _left(deadline: float, what: str, notes: list[str]) -> bool:
    """Whether there is time for one more step."""
    if time.monotonic() < deadline:
        return True
    notes.append(f"{what} was left out: the time for evidence was over")
    return False


def _flight_recorder(seen: Iterable[Process], folder: Path, notes: list[str], latest: float) -> list[Path]:
    """Asks every rank that listens on torch's pipe for its dump, and waits for the files."""
    wanted: list[tuple[Path, Path]] = []
    for process in seen:
        environment = processes.environment_of(process.pid)
        prefix = next((environment[name] for name in DUMP_FILES if environment.get(name)), "")
        if not environment.get(PIPE) or not prefix or process.rank is None:
            continue
        root = Path(f"/proc/{process.pid}/root")
        try:
            pipe = os.open(f"{root}{environment[PIPE]}{process.rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            notes.append(f"the flight recorder of rank {process.rank} does not listen: {error.strerror}")
            continue
        with os.fdopen(pipe, "wb") as file:
            file.write(b"1\n")
        wanted.append((Path(f"{root}{prefix}{process.rank}"), folder / f"nccl_trace_rank_{process.rank}"))
    deadline = min(time.monotonic() + DUMP_TIMEOUT_S, latest)
    asked = time.time() - 1
    while wanted and time.monotonic() < deadline:
        for source, target in list(wanted):
            if source.exists() and source.stat().st_mtime >= asked:
                folder.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
                wanted.remove((source, target))
        time.sleep(0.1)
    if wanted:
        notes.append(f"{len(wanted)} flight recorders were asked and wrote nothing")
    return [folder] if folder.exists() else []


def _with_stacks(seen: Sequence[Process], notes: list[str], deadline: float) -> list[Process]:
    """The processes with their Python stacks, several at a time: each takes a second, and a job has many."""

    def stack(process: Process) -> Process:
        if not Path(process.command[0] if process.command else "").name.startswith("python"):
            return process
        left = deadline - time.monotonic()
        if left <= 0:
            notes.append("some Python stacks were left out: the time for evidence was over")
            return process
        text, why = processes.python_stack(process.pid, timeout_s=min(processes.PYSPY_TIMEOUT_S, left))
        if why:
            notes.append(f"no Python stacks: {why}")
        return replace(process, python_stack=text)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(stack, seen))


def _ras(address: str, path: Path, notes: list[str], timeout_s: float) -> list[Path]:
    try:
        answer = ras_client.ask(ras_client.parse_address(address), timeout_s=timeout_s)
    except CollectError as error:
        notes.append(f"no answer of NCCL's RAS: {error}")
        return []
    path.write_bytes(answer)
    return [path]


def _kernel_log(path: Path, notes: list[str]) -> None:
    try:
        done = subprocess.run(
            ["dmesg", "--time-format", "iso"], capture_output=True, timeout=RAS_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        notes.append(f"no kernel log: {error}")
        return
    if done.returncode:
        notes.append(f"no kernel log: {done.stderr.decode('utf-8', 'replace').strip()}")
        return
    path.write_bytes(b"\n".join(done.stdout.splitlines()[-KERNEL_LINES:]) + b"\n")


def read_again(folder: Path) -> Taken:
    """What was taken into a folder before. Raises CollectError where it holds no evidence."""
    path = folder / "processes.json"
    try:
        told = json.loads(path.read_text("utf-8"))
        seen = tuple(
            Process(
                pid=int(item["pid"]),
                parent=0,
                name=str(item["name"]),
                state=str(item["state"]),
                rank=None if item["rank"] is None else int(item["rank"]),
                local_rank="",
                command=tuple(map(str, item["command"])),
                threads=int(item["threads"]),
                wait_channel=str(item["wait_channel"]),
                kernel_stack=str(item["kernel_stack"]),
                python_stack=str(item["python_stack"]),
            )
            for item in told["processes"]
        )
        at = int(told["taken_at_ns"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CollectError(f"{folder} holds no evidence: {path.name} is missing or damaged") from None
    inputs = [
        there for name in ("rings", "flight", "ras.json") for there in [folder / name] if there.exists()
    ]
    return Taken(seen, tuple(inputs), (), at)


def _write_down(seen: Iterable[Process], path: Path) -> None:
    told = [
        {
            "pid": process.pid,
            "rank": process.rank,
            "name": process.name,
            "state": process.state,
            "command": list(process.command),
            "threads": process.threads,
            "wait_channel": process.wait_channel,
            "kernel_stack": process.kernel_stack,
            "python_stack": process.python_stack,
        }
        for process in seen
    ]
    whole = {"schema": "megatrace.processes/1", "taken_at_ns": str(time.time_ns()), "processes": told}
    path.write_text(json.dumps(whole, indent=1), "utf-8")
