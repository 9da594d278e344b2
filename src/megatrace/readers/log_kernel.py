"""Lines of a Linux kernel log, and of a system log about hardware: PCIe, memory, network ports, disks, lock-ups.

What belongs to the GPU driver is in ``log_nvidia``, the out-of-memory killer's several lines in ``log_oom``.
"""

from __future__ import annotations

from megatrace.model.series import FactKind
from megatrace.readers.log_pattern import Table, pattern

_K = FactKind
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?"
_IF = r"(?:ib|eth|en|bond|mlx5_|roce|rdma|p\dp|hsn|cxi|bnxt|wl)[\w.-]*"

PATTERNS = (
    pattern(_K.PCIE, "aer", "PCIe Bus Error", rf"(?P<device>{_PCI}): PCIe Bus Error: severity=(?P<severity>[\w ()-]+), *type=(?P<layer>[\w ]+)"),
    pattern(_K.PCIE, "aer_bit", "    [", rf"(?:(?P<device>{_PCI}): +)?\[ ?(?P<bit>\d+)\] (?P<what>\w[\w /-]*\w)(?P<first> +\(First\))?"),
    pattern(_K.PCIE, "aer_bit", "   [", rf"(?P<device>{_PCI}): +\[ ?(?P<bit>\d+)\] (?P<what>\w[\w /-]*\w)(?P<first> +\(First\))?"),
    pattern(_K.PCIE, "aer_received", "AER:", rf"(?P<device>{_PCI}): AER: (?:Multiple )?(?P<severity>Corrected|Correctable|Uncorrected(?: \([\w-]+\))?|Uncorrectable(?: \([\w-]+\))?) (?:error )?(?:message )?received"),
    pattern(_K.PCIE, "aer_child", "AER", rf"(?P<driver>[\w-]+) (?P<device>{_PCI}): (?:device has no AER-aware driver|AER: can't recover|AER: device recovery (?P<result>\w+))"),
    pattern(_K.PCIE, "link_down", "Slot(", rf"(?P<device>{_PCI})?.*Slot\((?P<slot>[\w-]+)\): (?P<what>Link Down|Card not present)"),
    pattern(_K.PCIE, "width", "available PCIe bandwidth", rf"(?P<device>{_PCI}): (?P<have>[\d.]+ Gb/s) available PCIe bandwidth, limited by (?P<limit>[^(]*?) at (?P<at>{_PCI}) \(capable of (?P<can>[\d.]+ Gb/s)"),
    pattern(_K.MEMORY, "edac", "EDAC", r"EDAC (?:MC(?P<mc>\d+)|\w+ MC(?P<mc2>\d+)): (?P<count>\d+) (?P<class>CE|UE) (?P<what>.*?) ?on (?P<dimm>[\w#./-]+)(?: \((?P<detail>.*))?"),
    pattern(_K.MEMORY, "mce", "[Hardware Error]", r"(?P<class>Corrected|Uncorrected|Deferred|Fatal|Uncorrectable|Correctable)[ ,]+.*(?P<detail>error.*)"),
    pattern(_K.MEMORY, "mce", "Machine check", r"mce:.*?(?:CPU (?P<cpu>\d+)).*?Bank (?P<bank>\d+): (?P<status>[0-9a-f]{16})"),
    pattern(_K.MEMORY, "mce", "[Hardware Error]", r"CPU (?P<cpu>\d+): Machine Check(?: Exception)?:? (?:Event: )?[0-9a-fx]+ Bank (?P<bank>\d+): (?P<status>[0-9a-fA-F]{16})"),
    pattern(_K.MEMORY, "mce_panic", "Fatal machine check", r"(?P<detail>Fatal machine check.*|Fatal local machine check.*)"),
    pattern(_K.MEMORY, "memory_failure", "Memory failure", r"Memory failure: (?P<page>0x[0-9a-f]+): (?P<detail>.*)"),
    pattern(_K.MEMORY, "thermal", "temperature above threshold", r"CPU(?P<cpu>\d+): .*temperature above threshold, cpu clock throttled"),
    pattern(_K.KERNEL, "hung_task", "blocked for more than", r"INFO: task (?P<process>.+?):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds"),
    pattern(_K.KERNEL, "soft_lockup", "soft lockup", r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s! \[(?P<process>[^\]]+?):(?P<pid>\d+)\]"),
    pattern(_K.KERNEL, "hard_lockup", "hard LOCKUP", r"hard LOCKUP on cpu (?P<cpu>\d+)"),
    pattern(_K.KERNEL, "rcu_stall", "rcu", r"rcu[\w: ]*(?:INFO: )?.*(?:self-)?detected (?:expedited )?stalls?(?P<detail>.*)"),
    pattern(_K.KERNEL, "panic", "Kernel panic", r"Kernel panic - not syncing: (?P<detail>.*)"),
    pattern(_K.KERNEL, "oops", "BUG: ", r"BUG: (?P<detail>(?:unable to handle|kernel NULL|Bad page).*)"),
    pattern(_K.KERNEL, "oops", "general protection fault", r"(?P<detail>general protection fault.*)"),
    pattern(_K.KERNEL, "segfault", "segfault at", r"(?P<process>[\w./:-]+)\[(?P<pid>\d+)\]: segfault at (?P<address>[0-9a-f]+).* in (?P<library>[^\[\s]+)?"),
    pattern(_K.KERNEL, "iommu", "DMAR:", r"DMAR: .*\[(?P<what>DMA (?:Read|Write)).*\] Request device \[(?P<device>[0-9a-f:.]+)\].*(?P<detail>fault .*)"),
    pattern(_K.KERNEL, "iommu", "IO_PAGE_FAULT", r"IO_PAGE_FAULT.*?(?:device=)?(?P<device>[0-9a-f]{2}:[0-9a-f]{2}\.\d)?"),
    pattern(_K.LINK, "lost", "ost carrier", rf"(?P<port>{_IF}): [Ll]ost carrier"),
    pattern(_K.LINK, "gained", "ained carrier", rf"(?P<port>{_IF}): [Gg]ained carrier"),
    pattern(_K.LINK, "lost", "ink down", rf"(?:(?P<device>{_PCI}) )?(?P<port>{_IF}):? (?:NIC )?[Ll]ink (?:is )?[Dd]own"),
    pattern(_K.LINK, "gained", "ink up", rf"(?:(?P<device>{_PCI}) )?(?P<port>{_IF}):? (?:NIC )?[Ll]ink (?:is )?[Uu]p"),
    pattern(_K.LINK, "lost", "is Down", rf"(?:(?P<device>{_PCI}) )?(?P<port>{_IF}):? .*[Ll]ink is Down"),
    pattern(_K.LINK, "gained", "is Up", rf"(?:(?P<device>{_PCI}) )?(?P<port>{_IF}):? .*[Ll]ink is Up"),
    pattern(_K.LINK, "lost", "link status definitely down", rf"link status definitely down for interface (?P<port>{_IF})"),
    pattern(_K.LINK, "gained", "link status definitely up", rf"link status definitely up for interface (?P<port>{_IF})"),
    pattern(_K.LINK, "lost", "not ready", rf"(?P<port>{_IF}): link is not ready"),
    pattern(_K.LINK, "gained", "becomes ready", rf"(?P<port>{_IF}): link becomes ready"),
    pattern(_K.LINK, "port_event", "Port", r"(?P<port>mlx5_\w+).*[Pp]ort (?P<number>\d+)[ :].*(?P<what>down|DOWN|error|inactive)"),
    pattern(_K.LINK, "nic_health", "mlx5_core", rf"mlx5_core (?P<device>{_PCI})(?: (?P<port>\w+))?:? .*?(?P<detail>(?:health (?:compromised|poll)|Health issue|device's health|assert_|Fatal|fatal|timeout\. Will cause a leak|cmd.*timed? ?out|firmware.*(?:error|stuck|reset)|ACCESS_REG.*failed|syndrome|TX timeout|ending recovery).*)"),
    pattern(_K.LINK, "nic_hot", "mlx5_core", rf"mlx5_core (?P<device>{_PCI}).*?(?P<detail>[Hh]igh [Tt]emperature.*|temperature.*threshold.*)"),
    pattern(_K.LINK, "nic_cable", "mlx5_core", rf"mlx5_core (?P<device>{_PCI}).*?(?P<detail>Port module event.*(?:unplugged|[Ee]rror|Power budget|Bus stuck|Unsupported).*)"),
    pattern(_K.LINK, "nic_power", "mlx5_core", rf"mlx5_core (?P<device>{_PCI}).*?(?P<detail>(?:[Dd]etected insufficient power|mlx5_pcie_event).*)"),
    pattern(_K.LINK, "tx_timeout", "transmit queue", r"NETDEV WATCHDOG: (?P<port>[\w.]+) \((?P<driver>\w+)\): transmit queue (?P<queue>\d+) timed out"),
    pattern(_K.STORAGE, "nvme_timeout", "nvme", r"nvme (?P<device>nvme\d+):? .*?(?P<detail>(?:I/O .*timeout|controller is down|Abort status|Device not ready|Removing after probe failure|frozen state|resetting controller|Disabling device).*)"),
    pattern(_K.STORAGE, "io_error", "I/O error", r"I/O error,? (?:on )?(?:dev(?:ice)? )?(?P<device>[\w-]+)?(?P<detail>.*)"),
    pattern(_K.STORAGE, "medium_error", "Medium Error", r"(?:\[(?P<device>\w+)\])?.*(?P<detail>Medium Error.*)"),
    pattern(_K.STORAGE, "fs_error", "-fs ", r"(?P<fs>EXT4|EXT3|BTRFS|XFS)-fs (?P<class>error|warning) ?\(device (?P<device>[\w-]+)\)(?P<detail>.*)"),
    pattern(_K.STORAGE, "fs_error", "XFS (", r"XFS \((?P<device>[\w-]+)\): (?P<detail>.*(?:[Cc]orrupt|I/O [Ee]rror|[Ss]hutting down|failed).*)"),
    pattern(_K.STORAGE, "read_only", "read-only", r"(?P<detail>.*(?:[Rr]emounting filesystem|remount).*read-only.*)"),
    pattern(_K.STORAGE, "nfs_down", "not responding", r"nfs: server (?P<server>\S+) not responding(?P<detail>.*)"),
    pattern(_K.STORAGE, "nfs_up", "nfs: server", r"nfs: server (?P<server>\S+) OK"),
    pattern(_K.STORAGE, "lustre", "LustreError", r"LustreError: (?P<detail>.*)"),
    pattern(_K.STORAGE, "lustre", "Lustre:", r"Lustre: (?P<detail>.*(?:Connection to .* was lost|Connection restored|evicted).*)"),
    pattern(_K.STORAGE, "raid", "md/raid", r"md/raid\S* (?P<detail>.*(?:failed|Disk failure|degraded).*)"),
    pattern(_K.STORAGE, "raid", "Disk failure on", r"(?P<detail>Disk failure on (?P<device>\w+).*)"),
    pattern(_K.KERNEL, "reboot", "Linux version", r"Linux version (?P<detail>\S+)"),
    pattern(_K.OTHER, "modules", "NMI", r"NMI: (?P<detail>(?:PCI system error|IOCK error|SERR).*)"),
)  # fmt: skip


def kernel() -> Table:
    """The recogniser."""
    return Table(PATTERNS)
