"""Faults of the host: processors, memory, disks, file systems, the kernel, services, the clock, limits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from megatrace.bot.specimens.faults import ALL, GPUS, fault
from megatrace.bot.specimens.machine import Machine, Running
from megatrace.model.system import Ran, Space


@fault("cpus_offline", "CPU-01", "processors that are offline", "P1", ALL)
def cpus_offline(machine: Machine, draw: Random) -> str:
    machine.overrides["/sys/devices/system/cpu/online"] = f"0-{machine.kind.threads - 5}\n"
    return ""


@fault("node_without_memory", "CPU-01", "a NUMA node without memory", "P1", ALL)
def node_without_memory(machine: Machine, draw: Random) -> str:
    machine.overrides["/sys/devices/system/node/node1/meminfo"] = "Node 1 MemTotal:       0 kB\n"
    return ""


@fault("soft_lockup", "CPU-02", "a processor that is locked up", "P1", ALL)
def soft_lockup(machine: Machine, draw: Random) -> str:
    machine.log(20, f"watchdog: BUG: soft lockup - CPU#{draw.randrange(64)} stuck for 23s! [python3:41002]")
    return ""


@fault("hung_tasks", "CPU-02", "tasks that hang in the kernel", "P1", ALL)
def hung_tasks(machine: Machine, draw: Random) -> str:
    for number in range(4):
        machine.log(50 - number, f"INFO: task python3:{41_000 + number} blocked for more than 120 seconds.")
    return ""


@fault("rcu_stall", "CPU-02", "a stall of RCU", "P1", ALL)
def rcu_stall(machine: Machine, draw: Random) -> str:
    machine.log(20, "rcu: INFO: rcu_sched self-detected stall on CPU")
    return ""


@fault("memory_ue", "CPU-03", "an uncorrected error of a DIMM, counted", "P0", ALL)
def memory_ue(machine: Machine, draw: Random) -> str:
    number = draw.randrange(len(machine.edac))
    machine.overrides[f"/sys/devices/system/edac/mc/mc{number // 4}/dimm{number % 4}/dimm_ue_count"] = "1\n"
    return list(machine.edac)[number]


@fault("machine_check", "CPU-03", "an uncorrected machine check in the kernel log", "P0", ALL)
def machine_check(machine: Machine, draw: Random) -> str:
    machine.log(20, "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: be00000000010090")
    return ""


@fault("dimm_lost", "MEM-01", "a DIMM that the firmware switched off", "P1", ALL)
def dimm_lost(machine: Machine, draw: Random) -> str:
    total = round(machine.kind.ram_gib * (1 << 20) * 0.985 * 15 / 16)
    machine.overrides["/proc/meminfo"] = f"MemTotal:       {total} kB\nMemFree:        {total // 2} kB\n"
    return "memory"


@fault(
    "half_memory",
    "MEM-01",
    "half of the memory that the template expects",
    "P1",
    ("cpu-ib",),
    template={"memory.total_gib": 1024},
)
def half_memory(machine: Machine, draw: Random) -> str:
    return "memory"


@fault("host_oom", "MEM-03", "a host that ran out of memory", "P1", ALL)
def host_oom(machine: Machine, draw: Random) -> str:
    machine.log(
        21, "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0"
    )
    machine.log(
        20,
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task=python3,pid=41003,uid=1001",
    )
    machine.log(
        20,
        "Out of memory: Killed process 41003 (python3) total-vm:91234567kB, anon-rss:88000000kB, file-rss:0kB, shmem-rss:0kB",
    )
    return ""


@fault("cgroup_oom", "MEM-03", "a job that hit its own memory limit", "P3", ALL)
def cgroup_oom(machine: Machine, draw: Random) -> str:
    machine.log(21, "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0")
    machine.log(
        20,
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/slurm/job_8812,task=python3,pid=41003,uid=1001",
    )
    machine.log(
        20,
        "Memory cgroup out of memory: Killed process 41003 (python3) total-vm:91234567kB, anon-rss:8800000kB, file-rss:0kB, shmem-rss:0kB",
    )
    return ""


@fault("spare_used_up", "DSK-01", "a disk without spare blocks that calls itself well", "P1", ALL)
def spare_used_up(machine: Machine, draw: Random) -> str:
    number = draw.randrange(len(machine.disks))
    machine.disks[number] |= {"available_spare": 0, "num_err_log_entries": 156_609}
    return f"nvme{number}"


@fault("media_errors", "DSK-01", "a disk with new media errors", "P1", ALL)
def media_errors(machine: Machine, draw: Random) -> str:
    number = draw.randrange(len(machine.disks))
    machine.disks[number] |= {"media_errors": machine.disks[number]["media_errors"] + 6}
    return f"nvme{number}"


@fault("disk_gone", "DSK-01", "a disk that is gone", "P1", ALL)
def disk_gone(machine: Machine, draw: Random) -> str:
    machine.disks.pop()
    return ""


@fault("disk_dead", "DSK-01", "a disk whose controller is dead", "P1", ALL)
def disk_dead(machine: Machine, draw: Random) -> str:
    number = draw.randrange(len(machine.disks))
    machine.overrides[f"/sys/class/nvme/nvme{number}/state"] = "dead\n"
    return f"nvme{number}"


@fault("nvme_timeout", "DSK-02", "a disk that does not answer", "P1", ALL)
def nvme_timeout(machine: Machine, draw: Random) -> str:
    number = draw.randrange(len(machine.disks))
    machine.log(40, f"nvme nvme{number}: I/O 832 QID 3 timeout, aborting")
    machine.log(10, f"nvme nvme{number}: I/O 832 QID 3 timeout, reset controller")
    return f"nvme{number}"


@fault("file_system_error", "DSK-02", "a file system that finds errors", "P1", ALL)
def file_system_error(machine: Machine, draw: Random) -> str:
    machine.log(
        20,
        "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1682: inode #2: comm python3: reading directory lblock 0",
    )
    return "nvme0n1p2"


@fault("mount_hangs", "FS-01", "a file server that does not answer", "P0", ALL)
def mount_hangs(machine: Machine, draw: Random) -> str:
    machine.hung.add("/train")
    return "/train"


@fault("mount_missing", "FS-01", "a file system that was not mounted at boot", "P1", ALL)
def mount_missing(machine: Machine, draw: Random) -> str:
    machine.mounts = [item for item in machine.mounts if item[1] != "/scratch"]
    return "/scratch"


@fault(
    "training_mount_missing",
    "FS-01",
    "the training data is not mounted",
    "P0",
    ALL,
    template={"fs.mounts": ["/train", "/scratch"]},
)
def training_mount_missing(machine: Machine, draw: Random) -> str:
    machine.mounts = [item for item in machine.mounts if item[1] != "/train"]
    return "/train"


@fault("root_full", "FS-02", "a root file system that is full", "P1", ALL)
def root_full(machine: Machine, draw: Random) -> str:
    machine.spaces["/"] = replace(machine.spaces["/"], available=8 << 30)
    return "/"


@fault("inodes_used_up", "FS-02", "a file system without inodes", "P1", ALL)
def inodes_used_up(machine: Machine, draw: Random) -> str:
    machine.spaces["/scratch"] = replace(machine.spaces["/scratch"], files_free=10**6)
    return "/scratch"


@fault("root_read_only", "FS-03", "a root file system that turned read-only", "P0", ALL)
def root_read_only(machine: Machine, draw: Random) -> str:
    machine.mounts = [(s, p, f, o.replace("rw", "ro") if p == "/" else o) for s, p, f, o in machine.mounts]
    return "/"


@fault("scratch_read_only", "FS-03", "a scratch file system that turned read-only", "P0", ALL)
def scratch_read_only(machine: Machine, draw: Random) -> str:
    machine.mounts = [
        (s, p, f, o.replace("rw", "ro") if p == "/scratch" else o) for s, p, f, o in machine.mounts
    ]
    return "/scratch"


@fault(
    "other_kernel",
    "OS-01",
    "a kernel that the template does not name",
    "P2",
    ALL,
    template={"os.kernel": "5.15.0-130-generic"},
)
def other_kernel(machine: Machine, draw: Random) -> str:
    return ""


@fault(
    "sysctl_drift",
    "OS-01",
    "a parameter that differs from the template",
    "P2",
    ALL,
    template={"sysctl.kernel.numa_balancing": 0},
)
def sysctl_drift(machine: Machine, draw: Random) -> str:
    machine.overrides["/proc/sys/kernel/numa_balancing"] = "1\n"
    return ""


@fault("crash_record", "OS-02", "a record that a crashed kernel left", "P0", ALL)
def crash_record(machine: Machine, draw: Random) -> str:
    machine.overrides["/sys/fs/pstore/dmesg-erst-7301"] = "Panic#1 Part1\n"
    return ""


@fault("power_lost", "OS-02", "a machine that went down by itself", "P0", ALL, job=False, looks=(60.0, 60.0))
def power_lost(machine: Machine, draw: Random) -> str:
    machine.boot, machine.uptime, machine.shut_down = "b0071d00-0000-4000-8000-00000000beef", 300.0, False
    return ""


@fault("slurmd_failed", "OS-03", "the scheduler's daemon has failed", "P1", ALL)
def slurmd_failed(machine: Machine, draw: Random) -> str:
    machine.services["slurmd"]["ActiveState"] = "failed"
    return "slurmd"


@fault("dcgm_restarts", "OS-03", "a service that crashes all the time", "P1", GPUS)
def dcgm_restarts(machine: Machine, draw: Random) -> str:
    machine.services["nvidia-dcgm"]["NRestarts"] = "9"
    return "nvidia-dcgm"


@fault("clock_off", "TIM-01", "a clock that is half a second slow", "P2", ALL)
def clock_off(machine: Machine, draw: Random) -> str:
    machine.offset_s = 0.512
    return ""


@fault("clock_free", "TIM-01", "a clock that nobody keeps right", "P2", ALL)
def clock_free(machine: Machine, draw: Random) -> str:
    machine.leap = "Not synchronised"
    return ""


@fault("memlock", "CTR-01", "ranks that may not lock memory", "P1", GPUS)
def memlock(machine: Machine, draw: Random) -> str:
    for item in machine.processes:
        item.locked = "65536"
    return ""


@fault("eight_cores", "CTR-01", "a container with 8 cores for 8 ranks", "P1", GPUS)
def eight_cores(machine: Machine, draw: Random) -> str:
    for item in machine.processes:
        if item.name == "python3":
            item.cores = "0-7"
    return ""


@fault("small_shm", "CTR-01", "64 MiB of shared memory", "P1", ALL, job=False)
def small_shm(machine: Machine, draw: Random) -> str:
    machine.spaces["/dev/shm"] = Space(64 << 20, 63 << 20)
    return "/dev/shm"


@fault("stuck_rank", "OS-04", "a rank that stands in the kernel", "P1", GPUS, looks=(60.0, 300.0, 400.0))
def stuck_rank(machine: Machine, draw: Random) -> str:
    machine.processes.append(
        Running(46_001, "python3", "D", "0::/system.slice/slurmstepd.scope/job_8812/step_0")
    )
    return "46001"


@fault("unresolved", "ETH-04", "a machine that cannot resolve names", "P1", ALL)
def unresolved(machine: Machine, draw: Random) -> str:
    argv = ("getent", "hosts", machine.name)
    machine.commands[argv] = Ran(argv, 2)
    return ""


@fault("swapped", "MEM-04", "memory that was swapped out", "P3", ALL)
def swapped(machine: Machine, draw: Random) -> str:
    total = round(machine.kind.ram_gib * (1 << 20) * 0.985)
    machine.overrides["/proc/meminfo"] = (
        f"MemTotal: {total} kB\nSwapTotal: 33554432 kB\nSwapFree: 16777216 kB\n"
    )
    return ""
