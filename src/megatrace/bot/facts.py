"""How a machine is set up, as a flat mapping "family.key" → value: what a template of its type is compared
with.

Values are strings, numbers, booleans or sorted lists of strings; what varies by itself (uptime, addresses of
memory, counters) is left out, and what varies from node to node is left in, because a majority of nodes shows
that best. A fact that could not be read is `unknown` with its reason, never absent: absent is a statement.

Collects; judges nothing. The keys that checks ask a template for are the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from megatrace.bot.facts_devices import Read, Value, device_facts
from megatrace.bot.look import Look, Skipped, Unknown
from megatrace.model.system import Unreadable, Why

SYSCTLS = (
    "fs.file-max", "kernel.numa_balancing", "kernel.pid_max", "kernel.randomize_va_space", "kernel.shmmax",
    "net.core.netdev_max_backlog", "net.core.rmem_max", "net.core.somaxconn", "net.core.wmem_max",
    "net.ipv4.conf.all.arp_announce", "net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.rp_filter",
    "net.ipv4.neigh.default.gc_thresh3", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_max", "vm.max_map_count", "vm.min_free_kbytes", "vm.nr_hugepages",
    "vm.overcommit_memory", "vm.swappiness", "vm.zone_reclaim_mode",
)  # fmt: skip
"""Settings of the kernel that change how communication or memory behaves."""
OWN_CMDLINE = re.compile(
    r"^(BOOT_IMAGE|root|initrd|resume|console|cryptdevice|rd\.|systemd\.machine_id|UUID|ip|BOOTIF)"
)
"""Parameters of the kernel that name this one machine's disks and addresses."""
MODULES = ("gdrdrv", "ib_umad", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_fs", "nvidia_peermem",
           "nvidia_uvm", "rdma_ucm", "lustre", "nfs")  # fmt: skip
PACKAGES = re.compile(
    r"^(nvidia-fabricmanager|datacenter-gpu-manager|libnccl2|libnccl|nvidia-container-toolkit"
    r"|containerd(\.io)?|slurmd?|mlnx-ofed-kernel-utils|doca-ofed|rdma-core|chrony|openmpi|kubelet)(-\d+)?$"
)
"""Packages whose version matters to a training job."""
PSEUDO = frozenset(
    ("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
     "efivarfs", "fuse.lxcfs", "fusectl", "hugetlbfs", "mqueue", "nfsd", "nsfs", "overlay", "proc", "pstore",
     "ramfs", "rpc_pipefs", "securityfs", "squashfs", "sysfs", "tracefs")
)  # fmt: skip
OPTIONS = re.compile(
    r"^(ro|rw|noatime|relatime|nodev|nosuid|noexec|vers=[\d.]+|rsize=\d+|wsize=\d+|hard|soft|proto=\w+"
    r"|nconnect=\d+|flock)$"
)
"""Options of a mount that are a choice; the others hold addresses and sizes of the moment."""
NCCL_LIBRARIES = ("/usr/lib/*/libnccl.so.2.*", "/usr/lib64/libnccl.so.2.*", "/usr/local/lib/libnccl.so.2.*")


@dataclass
class Facts:
    """``known`` by key; ``unknown`` family → why it could not be read; ``families`` that were looked at."""

    known: dict[str, Value] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)


def collect(look: Look, *families: str) -> Facts:
    """Facts of the families ("versions", "roce"), of all without any; each is read once a round."""
    facts = Facts()
    for mine, read in _readers():
        if not families or set(mine) & set(families):
            part = look.memo(f"facts {mine[0]}", partial(_part, look, mine, read))
            facts.known |= part.known
            facts.unknown |= part.unknown
            facts.families |= set(mine)
    return facts


def _readers() -> tuple[tuple[tuple[str, ...], Read], ...]:
    """What reads which families."""
    return (
        (("os", "cpu", "numa", "memory"), _system),
        (("kernel",), _kernel),
        (("sysctl",), _sysctl),
        (("module", "nvidia"), _modules),
        (("versions",), _versions),
        (("mounts",), _mounts),
        (("process",), _limits),
        (("nccl",), _nccl),
        (("routing",), _routing),
        *(((family,), read) for family, read in device_facts()),
    )


def _part(look: Look, families: tuple[str, ...], read: Read) -> Facts:
    facts = Facts()
    try:
        for key, value in read(look):
            facts.known[key] = value
    except Skipped:
        return facts  # there is no such thing on this machine: its facts are absent
    except (Unreadable, Unknown) as error:
        facts.unknown |= dict.fromkeys(families, str(error))
    return facts


def _system(look: Look) -> Iterator[tuple[str, Value]]:
    kernel = look.text("/proc/sys/kernel/osrelease")
    if kernel:
        yield "os.kernel", kernel
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', look.text("/etc/os-release") or "", re.MULTILINE)
    if found:
        yield "os.release", found[1]
    for key, path in (
        ("cpu.online", "/sys/devices/system/cpu/online"),
        ("cpu.governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        ("cpu.clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        ("cpu.smt", "/sys/devices/system/cpu/smt/control"),
        ("numa.nodes", "/sys/devices/system/node/online"),
    ):
        value = look.text(path)
        if value:
            yield key, value
    pages = re.search(r"\[(\w+)\]", look.text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    if pages:
        yield "memory.transparent_hugepages", pages[1]
    total = re.search(r"^MemTotal:\s+(\d+) kB", look.text("/proc/meminfo") or "", re.MULTILINE)
    if total:
        # Firmware reserves a little more or less at each start: whole GiB are the same on equal machines.
        yield "memory.gib", round(int(total[1]) / (1 << 20))


def _kernel(look: Look) -> Iterator[tuple[str, Value]]:
    words = (look.text("/proc/cmdline") or "").split(" -- ")[0]  # what follows is for the first process
    for word in words.split():
        name, equals, value = word.partition("=")
        if not OWN_CMDLINE.match(name):
            yield f"kernel.cmdline.{name}", value if equals else True


def _sysctl(look: Look) -> Iterator[tuple[str, Value]]:
    for name in SYSCTLS:
        # Some belong to root; the others are still known.
        try:
            value = look.text(f"/proc/sys/{name.replace('.', '/')}")
        except Unreadable as error:
            if error.why is Why.DENIED:
                continue
            raise
        if value is not None:
            yield f"sysctl.{name}", " ".join(value.split())


def _modules(look: Look) -> Iterator[tuple[str, Value]]:
    for name in MODULES:
        if look.system.glob(f"/sys/module/{name}"):
            yield f"module.{name}", look.text(f"/sys/module/{name}/version") or True
    for line in (look.text("/proc/driver/nvidia/params") or "").splitlines():
        name, _, value = line.partition(": ")
        if re.fullmatch(r"(NVreg_)?[A-Z]\w+", name) and not re.search(r"Assign|Registry|Dwords$", name):
            yield f"nvidia.parameter.{name}", value.strip().strip('"')


def _versions(look: Look) -> Iterator[tuple[str, Value]]:
    driver = look.text("/sys/module/nvidia/version")
    if driver:
        yield "versions.driver", driver
    libraries = sorted(
        {found[1] for pattern in NCCL_LIBRARIES for path in look.system.glob(pattern)
         if (found := re.search(r"libnccl\.so\.(\d+\.\d+\.\d+)$", path))}
    )  # fmt: skip
    if libraries:
        yield "versions.nccl", ", ".join(libraries)
    cuda = re.search(
        r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([\d.]+)"', look.text("/usr/local/cuda/version.json") or ""
    )
    if cuda:
        yield "versions.cuda", cuda[1]
    ofed = look.run("ofed_info", "-s", timeout_s=10.0)
    if ofed.ok:
        yield "versions.ofed", ofed.output.strip().rstrip(":")
    packages = look.run("dpkg-query", "-W", "-f", "${Package}\t${Version}\n", timeout_s=10.0)
    if not packages.ok:
        packages = look.run("rpm", "-qa", "--qf", "%{NAME}\t%{VERSION}-%{RELEASE}\n", timeout_s=10.0)
    for line in packages.output.splitlines() if packages.ok else ():
        name, _, version = line.partition("\t")
        if PACKAGES.match(name):
            yield f"versions.package.{name}", version


def _mounts(look: Look) -> Iterator[tuple[str, Value]]:
    for line in (look.text("/proc/mounts") or "").splitlines():
        cells = line.split()
        if (
            len(cells) < 4
            or cells[2] in PSEUDO
            or cells[1].startswith(("/proc", "/sys", "/run/", "/var/lib/"))
        ):
            continue
        options = sorted(option for option in cells[3].split(",") if OPTIONS.match(option))
        yield f"mounts.{cells[1]}", f"{cells[2]} {','.join(options)}"


def _limits(look: Look) -> Iterator[tuple[str, Value]]:
    """Of this process: the scheduler's or the container's, where that started it."""
    text = look.text("/proc/self/limits") or ""
    for key, name in (
        ("memlock", "Max locked memory"),
        ("nofile", "Max open files"),
        ("stack", "Max stack size"),
    ):
        found = re.search(rf"^{name}\s+(\S+)", text, re.MULTILINE)
        if found:
            yield f"process.{key}", found[1]
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", look.text("/proc/self/status") or "", re.MULTILINE)
    if allowed:
        yield "process.cpus", allowed[1]
    quota = (look.text("/sys/fs/cgroup/cpu.max") or "").split()
    if len(quota) == 2 and quota[0].isdigit():
        # 8 of 192 cores to a container starves every data loader, and nothing else shows it.
        yield "process.cpu_quota", round(int(quota[0]) / int(quota[1]), 2)


def _nccl(look: Look) -> Iterator[tuple[str, Value]]:
    for line in (look.text("/etc/nccl.conf") or "").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip().startswith("NCCL_"):
            yield f"nccl.conf.{name.strip()}", value.strip()


def _routing(look: Look) -> Iterator[tuple[str, Value]]:
    """Which interface leads where, without the addresses, which are each node's own."""
    ran = look.run("ip", "-j", "route", "show", "table", "all", timeout_s=10.0)
    if not ran.ok:
        return
    try:
        routes = json.loads(ran.output or "[]")
    except ValueError:
        return
    tables: dict[str, set[str]] = {}
    for route in routes if isinstance(routes, list) else ():
        if route.get("type", "unicast") == "unicast" and route.get("table") not in ("local", 255):
            where = "default" if route.get("dst") == "default" else "net"
            tables.setdefault(str(route.get("table", "main")), set()).add(f"{where} dev {route.get('dev')}")
    for table, entries in tables.items():
        yield f"routing.{table}", sorted(entries)
