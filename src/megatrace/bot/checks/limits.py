"""Limits of the processes of a job: locked memory, files, processors, shared memory, device files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from megatrace.bot.checks import check
from megatrace.bot.gpus import on_bus
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.bot.numbers import cpu_set
from megatrace.bot.processes import Process, processes
from megatrace.model.system import Unreadable
from megatrace.units import format_size

FILES = 65_536.0
SHARED = 0.10
"""Share of the memory: Docker's default of 64 MiB ends data loaders with a bus error."""
CORES_PER_GPU = 4
"""A rank has a main thread, a watchdog, NCCL's proxies and data loaders; with less they wait for each
other."""
RANKS = ("python", "python3", "pt_main_thread", "torchrun", "ray::")
STARTERS = ("slurmd", "slurmstepd", "containerd", "dockerd", "kubelet", "crio")
_FIRST = 8


@check(
    "CTR-01",
    summary="limits under which training does not work or is slow",
    subject="limits",
    severity="P1",
    step="A1",
    kind="configuration",
    period_s=60,
    timeout_s=20,
    must=True,
)
def limits(look: Look) -> Iterator[Problem]:
    """The limits of running ranks, else of the services that will start them.

    RDMA locks memory: with a limit of 64 KiB the registration fails and the job with it. A container that was
    given 8 of 192 cores runs, ten times slower. Source: `/proc/PID/limits`, `/proc/PID/status`, statvfs of
    /dev/shm; template keys `limits.nofile`, `limits.cores`. Threshold: locked memory not unlimited on a
    machine with RDMA; fewer than 65,536 files; fewer than 4 cores per GPU of the machine; shared memory below
    10 % of the memory where the memory is known. Remedy: `LimitMEMLOCK=infinity` in the unit of the service,
    `--ulimit memlock=-1`, `--shm-size`, `--cpus-per-task`."""
    every = processes(look)
    ranks = [item for item in every if item.in_job and item.name.startswith(RANKS)]
    starters = [item for item in every if item.name.startswith(STARTERS)]
    looked = ranks[:_FIRST] or starters[:_FIRST]
    if not looked:
        raise Skipped("no rank is running, and nothing that starts ranks")
    rdma = bool(look.system.glob("/sys/class/infiniband/*"))
    said: set[str] = set()
    texts = {item.pid: _limits_of(look, item) for item in looked}
    if not any(texts.values()):
        raise Skipped("the limits of processes of others need root")
    for item in looked:
        yield from _of_process(look, item, texts[item.pid], rdma, said)
    yield from _cores(look, ranks)
    yield from _shared(look)
    look.said = f"{len(looked)} processes looked at"


def _limits_of(look: Look, item: Process) -> str:
    with suppress(Unreadable):
        return look.system.read(f"/proc/{item.pid}/limits", 8192)
    return ""


def _of_process(look: Look, item: Process, text: str, rdma: bool, said: set[str]) -> Iterator[Problem]:
    locked = re.search(r"^Max locked memory\s+(\S+)", text, re.MULTILINE)
    files = re.search(r"^Max open files\s+(\S+)", text, re.MULTILINE)
    who = f"{item.name} (process {item.pid})"
    if rdma and locked is not None and locked[1].isdecimal() and "memlock" not in said:
        said.add("memlock")
        yield look.fail(
            f"{who} may lock {format_size(float(locked[1]))} of memory, needs unlimited: RDMA registration will fail",
            key="memlock",
            remedy="LimitMEMLOCK=infinity in the unit of the service that starts jobs (containers: --ulimit memlock=-1)",
        )
    wanted = look.expected("limits.nofile")
    goal = float(wanted) if isinstance(wanted, int | float) else FILES
    if files is not None and files[1].isdecimal() and float(files[1]) < goal and "files" not in said:
        said.add("files")
        yield look.warn(
            f"{who} may open {files[1]} files, expected {goal:.0f}: rendezvous and data loaders of many ranks need more",
            key="files",
            remedy="LimitNOFILE=1048576 in the unit of the service that starts jobs",
        )


def _cores(look: Look, ranks: list[Process]) -> Iterator[Problem]:
    """Ranks that share too few processors."""
    gpus, wanted = len(on_bus(look)), look.expected("limits.cores")
    allowed: set[int] = set()
    for item in ranks:
        text = ""
        with suppress(Unreadable):
            text = look.system.read(f"/proc/{item.pid}/status", 8192)
        found = re.search(r"^Cpus_allowed_list:\s*(\S+)", text, re.MULTILINE)
        allowed |= cpu_set(found[1]) if found else set()
    goal = int(wanted) if isinstance(wanted, int | float) else CORES_PER_GPU * min(gpus, len(ranks))
    there = len(cpu_set(look.text("/sys/devices/system/cpu/present") or "")) or len(allowed)
    if allowed and gpus and len(allowed) < min(goal, there):
        yield look.fail(
            f"{len(ranks)} ranks share {len(allowed)} of {there} cores, expected {goal}: they wait for each other",
            key="cores",
            remedy="give the job more cores (--cpus-per-task, --cpus, the pod's request); check the cgroup's cpuset",
        )


def _shared(look: Look) -> Iterator[Problem]:
    total = re.search(r"MemTotal:\s*(\d+)", look.text("/proc/meminfo") or "")
    try:
        space = look.system.space("/dev/shm")
    except Unreadable:
        return
    if total is not None and space.size < SHARED * float(total[1]) * 1024 and space.size < (8 << 30):
        yield look.fail(
            f"/dev/shm holds {format_size(space.size)}: data loaders and NCCL's shared memory end with a bus error",
            key="shm",
            device="/dev/shm",
            remedy="--shm-size (Docker), an emptyDir of medium Memory (Kubernetes), or mount -o remount,size=",
        )


@check(
    "CTR-03",
    summary="device files of GPUs or network cards that are missing",
    subject="limits",
    severity="P1",
    step="A1",
    kind="configuration",
    period_s=300,
    observe=True,
)
def device_files(look: Look) -> Iterator[Problem]:
    """The files through which CUDA and libibverbs reach the hardware.

    Source: `/dev/nvidia*`, `/dev/infiniband/uverbs*` against the driver's list and sysfs. Threshold: any
    missing. Remedy: `nvidia-modprobe -u -c 0`; `modprobe ib_uverbs`."""
    minors = []
    for path in look.system.glob("/proc/driver/nvidia/gpus/*/information"):
        found = re.search(r"^Device Minor:\s*(\d+)", look.text(path) or "", re.MULTILINE)
        minors += [found[1]] if found else []
    verbs = [path.rpartition("/")[2] for path in look.system.glob("/sys/class/infiniband_verbs/uverbs*")]
    if not minors and not verbs:
        raise Skipped("no GPU driver and no RDMA device")
    there = {*look.system.glob("/dev/nvidia*"), *look.system.glob("/dev/infiniband/*")}
    wanted = [f"/dev/nvidia{minor}" for minor in minors] + (
        ["/dev/nvidiactl", "/dev/nvidia-uvm"] if minors else []
    )
    wanted += [f"/dev/infiniband/{name}" for name in verbs]
    missing = [path for path in wanted if path not in there]
    look.said = f"{len(wanted)} device files"
    if missing:
        yield look.fail(
            f"device files are missing: {', '.join(missing[:6])}",
            device=missing[0],
            remedy="nvidia-modprobe -u -c 0 (GPUs); modprobe ib_uverbs rdma_ucm (network cards)",
        )
