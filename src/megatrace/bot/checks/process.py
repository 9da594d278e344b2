"""Processes that stand in the kernel, zombies, and limits of the whole machine that are nearly reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem
from megatrace.bot.numbers import number
from megatrace.bot.processes import processes
from megatrace.model.finding import Kind, Severity

STUCK_S = 600.0
ZOMBIES = 200
FILES = 0.90
PIDS = 0.80


@check(
    "OS-04",
    summary="processes stuck in the kernel, zombies, or too many files and processes",
    subject="processes",
    severity="P2",
    step="A5",
    kind="hang_host",
    period_s=60,
    timeout_s=20,
    observe=True,
)
def stuck(look: Look) -> Iterator[Problem]:
    """Processes in state D, zombies, open files and process ids.

    A process that stays in state D waits for hardware or a server that does not answer, cannot be killed, and
    keeps its GPU. Source: `/proc/*/stat`, `/proc/sys/fs/file-nr`, `/proc/loadavg`,
    `/proc/sys/kernel/pid_max`. Threshold: the same process in state D at every look for 10 min, because
    waiting for a disk lasts milliseconds; 200 zombies; 90 % of the open files; 80 % of the process ids.
    Remedy: look at its stack (`/proc/PID/stack`); reboot if it does not end."""
    every = processes(look)
    blocked = []
    for item in every:
        # Threads of the kernel itself sleep in state D by design.
        if item.state == "D" and item.parent != 2:
            seconds = look.lasting(f"process.{item.pid}.{item.ticks}.blocked", True)
            if seconds >= STUCK_S:
                blocked.append((item, seconds))
    now = {f"process.{item.pid}.{item.ticks}.blocked" for item in every if item.state == "D"}
    for name in look.counters.conditions("process."):
        if name not in now:
            look.lasting(name, False)
    look.said = f"{len(every)} processes"
    if blocked:
        names = Counter(item.name for item, _ in blocked)
        longest = max(seconds for _, seconds in blocked)
        first = blocked[0][0]
        yield look.fail(
            f"{len(blocked)} processes stand in the kernel (state D) for {longest / 60:.0f} min: "
            + ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in names.most_common(4)),
            device=f"process {first.pid}",
            severity=Severity.P1 if any(item.in_job for item, _ in blocked) else Severity.P2,
            remedy=f"cat /proc/{first.pid}/stack: nfs or lustre means storage, nvidia the GPU driver, mlx5 the NIC",
        )
    zombies = [item for item in every if item.state == "Z"]
    if len(zombies) >= look.limit("zombies", ZOMBIES):
        parents = Counter(item.parent for item in zombies).most_common(1)[0]
        yield look.warn(
            f"{len(zombies)} zombie processes, {parents[1]} of them children of process {parents[0]}",
            Severity.P3,
            kind=Kind.SOFTWARE,
            key="zombies",
            remedy="restart the parent: it does not wait for its children",
        )
    yield from _limits(look, len(every))


def _limits(look: Look, count: int) -> Iterator[Problem]:
    parts = [number(part) for part in (look.text("/proc/sys/fs/file-nr") or "").split()]
    opened, most_files = (parts[0], parts[2]) if len(parts) == 3 else (None, None)
    if opened and most_files and opened > FILES * most_files:
        yield look.warn(
            f"{opened:,.0f} of {most_files:,.0f} files of the machine are open",
            kind=Kind.RESOURCE,
            key="files",
            remedy="find who holds them (lsof | awk '{print $1}' | sort | uniq -c); raise fs.file-max",
        )
    most = look.number("/proc/sys/kernel/pid_max")
    running = (look.text("/proc/loadavg") or "").split()
    threads = (number(running[3].partition("/")[2]) if len(running) > 3 else None) or float(count)
    if most and threads > PIDS * most:
        yield look.warn(
            f"{threads:,.0f} threads of {most:,.0f} that the kernel allows",
            kind=Kind.RESOURCE,
            key="pids",
            remedy="find who starts them; raise kernel.pid_max",
        )
