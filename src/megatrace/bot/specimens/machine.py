"""A made machine: its state as values that a fault or a variant changes, and the recording that they give.

Everything that a check asks for is written from this state, in the form in which a Linux kernel and the usual
tools give it (sysfs, procfs, nvidia-smi, ethtool, smartctl, chronyc, systemctl)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from megatrace.bot.specimens import gpu_query
from megatrace.bot.specimens.gpu_query import Tree
from megatrace.bot.specimens.kinds import Kind, kind
from megatrace.model.system import Ran, Space, Why
from megatrace.units import NS_PER_S

NOW = 1_780_000_000 * NS_PER_S
"""2026-05-28 20:26:40 UTC; any time would do."""
BOOT_LINES = (
    (0.0, "Linux version 5.15.0-122-generic (buildd@lcy02) (gcc 11.4.0) #132-Ubuntu SMP"),
    (0.0, "Command line: BOOT_IMAGE=/vmlinuz root=/dev/md0 ro iommu=pt console=ttyS0"),
    (1.2, "mce: CPU0: Thermal monitoring enabled (TM1)"),
    (2.9, "clocksource: Switched to clocksource tsc"),
    (4.1, "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0"),
    (6.0, "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: (null)"),
    (11.5, "mlx5_core 0000:18:00.0: firmware version: 28.39.3004"),
    (12.2, "mlx5_core 0000:18:00.0: mlx5_pcie_event:301:(pid 412): Detected insufficient power on the PCIe slot (27W)."),
    (14.0, "IPv6: ADDRCONF(NETDEV_CHANGE): ibp24s0: link becomes ready"),
    (15.3, "nvidia-nvlink: Nvlink Core is being initialized, major device number 234"),
    (15.9, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.127.08  Tue Oct  8 07:41:19 UTC 2024"),
    (44.0, "perf: interrupt took too long (2504 > 2500), lowering kernel.perf_event_max_sample_rate to 79750"),
)  # fmt: skip
"""Lines of a healthy boot: among them warnings that sound worse than they are."""
SERVICES = ("slurmd", "munge", "nvidia-persistenced", "nvidia-dcgm", "ssh", "chrony", "rasdaemon")

_CGROUP = "0::/system.slice/slurmstepd.scope/job_8812/step_0"


@dataclass
class PortState:
    """One port of the compute network."""

    device: str
    bus: str
    interface: str
    state: str = "4: ACTIVE"
    physical: str = "5: LinkUp"
    rate: str = ""
    firmware: str = "28.39.3004"
    mtu: int = 4096
    counters: dict[str, int] = field(default_factory=dict)
    hw_counters: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, int] = field(default_factory=dict)
    peer: str = ""
    board: str = ""
    """Another board id than that of the machine's network cards."""


@dataclass
class Running:
    """One process."""

    pid: int
    name: str
    state: str = "S"
    cgroup: str = "0::/system.slice/other.service"
    locked: str = "unlimited"
    files: str = "1048576"
    cores: str = ""
    parent: int = 1


@dataclass
class Machine:
    """The state. ``overrides`` path → text of a file (None: it is not there) win over what follows from the
    rest."""

    kind: Kind
    name: str = "node188"
    time: int = NOW
    uptime: float = 40 * 86_400.0
    boot: str = "b0071d00-0000-4000-8000-000000000001"
    root: bool = True
    gpus: list[Tree] = field(default_factory=list)
    ports: list[PortState] = field(default_factory=list)
    processes: list[Running] = field(default_factory=list)
    kernel: list[tuple[float, str]] = field(default_factory=lambda: list(BOOT_LINES))
    dark: dict[tuple[int, int], str] = field(default_factory=dict)
    link_errors: dict[tuple[int, int, str], int] = field(default_factory=dict)
    owners: list[tuple[int, int]] = field(default_factory=list)
    """(GPU, process id) with memory on it."""
    services: dict[str, dict[str, str]] = field(default_factory=dict)
    disks: list[dict[str, int]] = field(default_factory=list)
    mounts: list[tuple[str, str, str, str]] = field(default_factory=list)
    spaces: dict[str, Space] = field(default_factory=dict)
    aer: dict[str, dict[str, int]] = field(default_factory=dict)
    widths: dict[str, tuple[int, str]] = field(default_factory=dict)
    """PCI address → (lanes, speed) where it is less than it can be."""
    gone: set[str] = field(default_factory=set)
    """PCI addresses that are not on the bus any more."""
    unseen: set[int] = field(default_factory=set)
    """GPUs that are on the bus and that the driver does not see."""
    without_driver: set[str] = field(default_factory=set)
    """Network cards on the bus that have no RDMA device."""
    shut_down: bool = True
    """Whether a shutdown is recorded before the last boot."""
    overrides: dict[str, str | None] = field(default_factory=dict)
    commands: dict[tuple[str, ...], Ran] = field(default_factory=dict)
    hung: set[str] = field(default_factory=set)
    """Programs that do not answer, and mount points."""
    offset_s: float = 0.000_012
    leap: str = "Normal"
    edac: dict[str, int] = field(default_factory=dict)

    @property
    def gpu_places(self) -> list[str]:
        """PCI addresses of the GPUs."""
        return [f"0000:{bus}:00.0" for bus in self.kind.gpus]

    def log(self, seconds_ago: float, text: str) -> None:
        """A line of the kernel."""
        self.kernel.append((self.uptime - seconds_ago, text))

    def later(self, seconds: float) -> None:
        """Lets time go by."""
        self.time += round(seconds * NS_PER_S)
        self.uptime += seconds

    def job(self) -> None:
        """A job on all GPUs, or on the processors where there are none."""
        if not self.gpus:
            self.processes.append(Running(41_000, "python3", "R", _CGROUP))
        for index, tree in enumerate(self.gpus):
            pid = 41_000 + index
            cores = f"{index * 14}-{index * 14 + 13}"
            self.processes.append(Running(pid, "python3", "R", _CGROUP, cores=cores))
            self.owners.append((index, pid))
            tree |= {
                "utilization/gpu_util": "98 %", "fb_memory_usage/used": f"{self.kind.memory_mib * 9 // 10} MiB",
                "gpu_power_readings/average_power_draw": f"{self.kind.watts * 9 // 10}.00 W", "temperature/gpu_temp": "58 C",
            }  # fmt: skip
            if self.kind.margins:
                tree["temperature/gpu_temp_tlimit"] = "29 C"


def machine(name: str) -> Machine:
    """A healthy idle machine of a type that has been up for forty days. Raises UnknownName."""
    known = kind(name)
    made = Machine(known)
    made.gpus = [gpu_query.gpu_tree(known, index, bus) for index, bus in enumerate(known.gpus)]
    ethernet = known.layer == "Ethernet"
    for index, bus in enumerate(known.nics):
        slot = int(bus, 16)
        interface = f"{'ens' if ethernet else 'ibp'}{slot}{'np0' if ethernet else 's0'}"
        made.ports.append(
            PortState(
                f"mlx5_{index}",
                bus,
                interface,
                rate=f"{known.rate} Gb/sec ({known.width})",
                mtu=9000 if ethernet else 4092,
                counters=dict.fromkeys(
                    ("symbol_error", "port_rcv_errors", "link_error_recovery", "link_downed",
                     "local_link_integrity_errors", "excessive_buffer_overrun_errors"), 0
                ) | {"port_xmit_data": 10**12, "port_rcv_data": 10**12},
                hw_counters=dict.fromkeys(
                    ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
                     "out_of_buffer", "np_cnp_sent", "rp_cnp_handled"), 0
                ),
                statistics={"rx_discards_phy": 0, "rx_prio3_pause_duration": 0, "tx_prio3_pause_duration": 0,
                            "tx_pause_storm_error_events": 0} if ethernet else {},
                peer=f"leaf{index % 8 + 1}/Ethernet12/1",
            )
        )  # fmt: skip
    made.processes = [
        Running(1, "systemd"),
        Running(2, "kthreadd", parent=0),
        Running(900, "slurmd"),
        Running(901, "chronyd"),
        Running(902, "sshd"),
    ]
    made.services = {name: {"ActiveState": "active", "NRestarts": "0"} for name in SERVICES}
    made.services["nvidia-fabricmanager"] = {
        "ActiveState": "active" if known.links else "inactive",
        "NRestarts": "0",
    }
    made.disks = [
        {"percentage_used": 3, "available_spare": 100, "media_errors": 0, "critical_warning": 0}
        for _ in range(known.disks)
    ]
    made.mounts = [
        ("/dev/nvme0n1p2", "/", "ext4", "rw,relatime,errors=remount-ro"),
        ("/dev/md0", "/scratch", "xfs", "rw,noatime"),
        ("tmpfs", "/dev/shm", "tmpfs", "rw,nosuid,nodev"),
        ("10.9.0.1:/train", "/train", "nfs4", "rw,hard,vers=4.2"),
    ]
    half = known.ram_gib << 29
    made.spaces = {
        "/": Space(1 << 40, 700 << 30, 67_000_000, 66_000_000),
        "/scratch": Space(24 << 40, 20 << 40, 10**9, 9 * 10**8),
        "/dev/shm": Space(half, half - (1 << 30)),
        "/train": Space(900 << 40, 500 << 40),
    }
    made.edac = {
        f"CPU_SrcID#{socket}_MC#0_Chan#{channel}_DIMM#0": 0 for socket in range(2) for channel in range(8)
    }
    return made


def smart_json(disk: str, values: dict[str, int]) -> str:
    """``smartctl -a -j`` of an NVMe disk."""
    health = {"available_spare_threshold": 10, "num_err_log_entries": 0, "temperature": 36, **values}
    return json.dumps(
        {
            "json_format_version": [1, 0],
            "device": {"name": f"/dev/{disk}", "type": "nvme", "protocol": "NVMe"},
            "smart_status": {"passed": True},
            "nvme_smart_health_information_log": health,
        }
    )


def hung(*argv: str) -> Ran:
    """A program that did not answer."""
    return Ran(argv, None, why=Why.HUNG, seconds=15.0)
