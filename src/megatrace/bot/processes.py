"""The processes of a machine, read once a round: names, states, and whether a scheduler started them.

From /proc alone, so that it works in a container that sees the host's. Command lines and environments are not
read here: they hold what is nobody's business."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from megatrace.bot.look import Look
from megatrace.model.system import Unreadable

MAX_PROCESSES = 20_000
"""A node with a job has 2,000; threads are not counted."""
_JOB = re.compile(r"slurm[^/]*/(?:uid_\d+/)?job_?\d+|/job_\d+|kubepods|libpod|docker")


@dataclass(frozen=True, slots=True)
class Process:
    """One process; ``state`` as /proc has it (R, S, D, Z, …), ``ticks`` when it started, since boot."""

    pid: int
    name: str
    state: str
    parent: int
    ticks: int
    in_job: bool


def processes(look: Look) -> tuple[Process, ...]:
    """Every process that can be seen, by number."""
    return look.memo("processes", lambda: _processes(look))


def all_visible(look: Look) -> bool:
    """Whether these are the processes of the machine, and not those of a container: only there the kernel's
    own are."""
    return any(item.name == "kthreadd" for item in processes(look))


def _processes(look: Look) -> tuple[Process, ...]:
    found = []
    for path in look.system.glob("/proc/[0-9]*/stat")[:MAX_PROCESSES]:
        with suppress(Unreadable, ValueError, IndexError):
            text = look.system.read(path, 4096)
            head, _, tail = text.rpartition(")")
            pid, _, name = head.partition(" (")
            rest = tail.split()
            found.append(
                Process(int(pid), name, rest[0], int(rest[1]), int(rest[19]), _in_job(look, path, name))
            )
    return tuple(sorted(found, key=_pid))


def _pid(item: Process) -> int:
    return item.pid


def _in_job(look: Look, path: str, name: str) -> bool:
    """Kernel threads and services are spared the second read: only what can be a rank is looked up."""
    if name.startswith(("kworker", "ksoftirqd", "migration", "cpuhp", "rcu", "systemd", "idle_inject")):
        return False
    with suppress(Unreadable):
        return bool(_JOB.search(look.system.read(path.replace("/stat", "/cgroup"), 4096)))
    return False
