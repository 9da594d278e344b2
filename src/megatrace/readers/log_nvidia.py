"""Lines of NVIDIA's drivers in a kernel log, and of the fabric manager: Xid, SXid, NVRM, peermem.

An Xid line is believed by its number; the PCI address may be in any width, or masked by whoever posted it.
"""

from __future__ import annotations

from megatrace.model.series import FactKind
from megatrace.readers.log_pattern import Table, pattern

_K = FactKind
PATTERNS = (
    pattern(_K.XID, "xid", "Xid (", r"Xid \(\s*(?:PCI:)?(?P<device>[^)\s]*)\s*\): (?P<code>\d{1,4})\b,? *(?:pid=(?P<pid>'?[^,']*'?), *)?(?:name=(?P<process>[^,]*), *)?(?P<detail>.*)"),
    pattern(_K.SXID, "sxid", "SXid (", r"(?:nvidia-nvswitch(?P<switch>\d+): )?SXid \(\s*(?:PCI:)?(?P<device>[^)\s]*)\s*\): (?P<code>\d{1,6}),? *(?P<class>Non-fatal|Fatal|Always[- ]?fatal|Corrected)?,? *(?:Link (?P<port>\d+))?(?P<detail>.*)"),
    pattern(_K.SXID, "sxid", "NVSwitch", r"detected NVSwitch (?P<class>non-fatal|fatal) error (?P<code>\d+).*?pci bus id (?P<device>[0-9a-fA-F:.]+)(?: physical id (?P<switch>\d+))?(?: port (?P<port>\d+))?"),
    pattern(_K.FABRIC, "nothing_to_do", "NV_WARN_NOTHING_TO_DO", r"(?P<detail>.*NV_WARN_NOTHING_TO_DO.*)"),
    pattern(_K.FABRIC, "fabric_version", "match with driver version", r"fabric manager.*?version (?P<version>[\d.]+) (?:don't|doesn't|does not|do not) match with driver version"),
    pattern(_K.FABRIC, "fabric_exit", "nv-fabricmanager", r"nv-fabricmanager.*failed.*[Ee]xit code: *(?P<code>-?\d+)"),
    pattern(_K.FABRIC, "fabric_exit", "fabricmanager.service", r"(?:code=exited, status=(?P<code>\d+)|Failed with result|Failed to start)"),
    pattern(_K.FABRIC, "fabric_error", "[ERROR]", r"^\[ERROR\] *\[tid \d+\] *(?P<detail>.*(?:[Nn][Vv][Ss]witch|[Nn][Vv][Ll]ink|fabric|GPU|partition|multicast).*)"),
    pattern(_K.FABRIC, "peermem", "peermem", r"nvidia[-_]peermem.*(?P<detail>invalid context|ERROR.*)"),
    pattern(_K.FABRIC, "peermem", "nv_get_p2p_free_callback", r"(?P<detail>ERROR.*)"),
    pattern(_K.KERNEL, "gpu_rate_limit", "Rate limiting", r"NVRM: Rate limiting [^(]*?(?:PCI:(?P<device>[0-9a-fA-F:.]+) ?)?(?P<detail>\(.*)"),
    pattern(_K.KERNEL, "gpu_index", "NVRM: GPU at PCI", r"NVRM: GPU at PCI:(?P<device>[0-9a-fA-F:.]+): (?P<uuid>GPU-[0-9a-f-]+)"),
    pattern(_K.KERNEL, "gpu_lost", "fallen off the bus", r"NVRM: .*?(?:GPU (?P<device>[0-9a-fA-F:.]{7,}))?.*fallen off the bus"),
    pattern(_K.KERNEL, "gpu_init", "RmInitAdapter failed", r"NVRM: (?:GPU (?P<device>[0-9a-fA-F:.]{7,}): )?.*RmInitAdapter failed! *\(?(?P<detail>[^)]*)"),
    pattern(_K.KERNEL, "driver_mismatch", "API mismatch", r"API mismatch: the client has (?:the )?version (?P<client>[\d.]+)"),
    pattern(_K.KERNEL, "driver_mismatch", "API mismatch", r"(?P<detail>API mismatch.*)"),
    pattern(_K.KERNEL, "driver_refused", "NVRM: ", r"NVRM: (?P<detail>.*(?:not supported|installed in this system|requires|failed to copy|cannot be initialized|nvidia_probe|fatal).*)"),
)  # fmt: skip


def nvidia() -> Table:
    """The recogniser."""
    return Table(PATTERNS)
