"""What a process waits for, from its state and its stacks: the lock of Python, data, a checkpoint, NCCL.

In a hang most processes wait in a collective and are victims; the one that does not is the one to look at,
and where it stands is the reason. Rules go from what is certain (a stopped process) to what is likely (a name
in a stack); where nothing is known, nothing is claimed.

Pure: texts in, words out. Reading them is ``collect.processes``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Standing(Enum):
    """Where a process stands."""

    DEAD = "dead"
    STOPPED = "stopped"
    STORAGE = "storage"
    CHECKPOINT = "checkpoint"
    DATA_LOADER = "data loader"
    COLLECTIVE = "collective"
    LOCK = "Python's lock"
    SLEEPING = "sleep"
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Stood:
    """``says`` completes "rank 3 …"; ``evidence`` is the line or the state that says so."""

    standing: Standing
    says: str
    evidence: str


_KERNEL = (
    (re.compile(r"nfs|rpc_wait|ceph|lustre|ptlrpc|fuse|cifs|gpfs|beegfs", re.I), "a network file system"),
    (re.compile(r"io_schedule|wait_on_page|folio_wait|blk_|ext4|xfs|jbd2|btrfs", re.I), "a disk"),
)
_CHECKPOINT = re.compile(
    r"save_checkpoint|load_checkpoint|torch[./]serialization|dist_checkpointing|checkpoint/filesystem"
)
_DATA = re.compile(r"utils/data/(?:dataloader|_utils)|_next_data|_try_get_data|get_batch\b")
_CALL = re.compile(
    r"distributed_c10d|c10d_logger|p2p_communication|all_reduce|all_gather|reduce_scatter|batch_isend_irecv"
)
_PYTHON = (
    (Standing.CHECKPOINT, _CHECKPOINT, "writes or reads a checkpoint"),
    (Standing.DATA_LOADER, _DATA, "waits for its data loader"),
    (Standing.COLLECTIVE, _CALL, "waits in a communication call"),
)
_FRAME = re.compile(r"^\s+(?P<frame>\S.*\(.*\))\s*$", re.MULTILINE)
_SLEEP = re.compile(r"nanosleep|hrtimer_nanosleep|time\.sleep")


def where_stands(state: str, wait_channel: str, kernel_stack: str, python_stack: str) -> Stood:
    """``state`` is the letter of /proc; the stacks are texts, '' where they could not be taken."""
    if state in ("Z", "X"):
        return Stood(Standing.DEAD, "is dead", f"state {state}")
    if state in ("T", "t"):
        who = "a debugger" if state == "t" else "a signal (SIGSTOP, Ctrl-Z); SIGCONT lets it go on"
        return Stood(Standing.STOPPED, f"is stopped by {who}", f"state {state}")
    kernel = f"{wait_channel}\n{kernel_stack}"
    if state == "D":
        for pattern, what in _KERNEL:
            found = pattern.search(kernel)
            if found is not None:
                return Stood(
                    Standing.STORAGE, f"waits for {what} and cannot be interrupted", _line(kernel, found)
                )
    main = main_thread(python_stack)
    for standing, pattern, says in _PYTHON:
        found = pattern.search(main)
        if found is not None:
            return Stood(standing, says, _line(main, found))
    if "take_gil" in main:
        return Stood(Standing.LOCK, "waits for Python's lock (the GIL)", "take_gil")
    frame = _FRAME.search(main)
    sleeping = _SLEEP.search(kernel) or _SLEEP.search(main)
    if sleeping is not None:
        at = f" in {frame['frame']}" if frame is not None else ""
        return Stood(Standing.SLEEPING, f"sleeps{at}: its own code waits for time to pass", sleeping.group())
    if frame is not None:
        word = "runs" if state == "R" else "stands"
        kind = Standing.RUNNING if state == "R" else Standing.UNKNOWN
        return Stood(kind, f"{word} in {frame['frame']}", frame["frame"])
    if state == "R":
        return Stood(Standing.RUNNING, "runs on a processor", "state R")
    if state == "D":
        return Stood(
            Standing.UNKNOWN, "waits in the kernel and cannot be interrupted", wait_channel or "state D"
        )
    return Stood(Standing.UNKNOWN, "sleeps, and nothing tells for what", wait_channel or f"state {state}")


def main_thread(stack: str) -> str:
    """The part of a dump of py-spy that is the main thread; all of it where no thread is called so."""
    parts = re.split(r"^(?=Thread )", stack, flags=re.MULTILINE)
    return next((part for part in parts if '"MainThread"' in part.partition("\n")[0]), stack)


def _line(text: str, found: re.Match[str]) -> str:
    begin = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    return text[begin : end if end >= 0 else None].strip()
