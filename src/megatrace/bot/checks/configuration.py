"""Versions and settings of a node against the template of its machine type, and against themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from megatrace.bot.board import redfish_answer
from megatrace.bot.checks import check
from megatrace.bot.comparison import Difference, Differs, compare
from megatrace.bot.facts import collect
from megatrace.bot.gpus import driver_query
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.model.check import Step
from megatrace.model.finding import Severity

LIBRARIES = ("/usr/lib/*/libnvidia-ml.so.*", "/usr/lib64/libnvidia-ml.so.*")
MISMATCH = re.compile(r"driver/library version mismatch", re.IGNORECASE)
LOSSLESS = "roce."
TABLE_FULL = 0.9
"""Share of the connection table from which new connections are soon dropped."""
OTHERS = ("os.", "kernel.", "sysctl.", "module.", "nvidia.", "mounts.", "process.", "nccl.", "routing.", "net.", "cpu.",
          "numa.", "memory.")  # fmt: skip
"""Families that no check of their own compares with the template."""


def _differences(look: Look, *families: str) -> list[Difference]:
    """Those of the families. Raises Skipped where the template says nothing of them."""
    wanted = {key: value for key, value in look.template.items() if key.startswith(families)}
    if not wanted:
        raise Skipped("no template says what to expect (megatrace inspect --template NAME)")
    facts = collect(look, *(family.rstrip(".") for family in families))
    found = [item for item in compare(wanted, facts) if item.key.startswith(families)]
    unknown = [item for item in found if item.kind is Differs.UNKNOWN]
    if unknown and len(unknown) == len(found) == len(wanted):
        raise Unknown(unknown[0].reason)
    return [item for item in found if item.kind is not Differs.UNKNOWN]


def _device(item: Difference, place: int) -> str | None:
    """The part of a key that names a port or a mount."""
    parts = item.key.split(".")
    return parts[place] if len(parts) > place else None


@check(
    "VER-01",
    summary="versions of driver, libraries and packages that differ from the template",
    subject="versions",
    severity="P2",
    step="A7",
    must=True,
    kind="configuration",
    period_s=3600,
    timeout_s=30,
)
def versions(look: Look) -> Iterator[Problem]:
    """Driver, CUDA, NCCL, OFED, fabric manager, DCGM, container toolkit and scheduler.

    One node with another NCCL or driver makes a job hang or crawl, and shows no fault anywhere. Source:
    `/sys/module/nvidia/version`, names of libraries, `ofed_info -s`, `dpkg-query` or `rpm`; template keys
    `versions.…`. Threshold: any difference; a template that a roll-out has outrun is the template's fault,
    which the share of nodes tells. Remedy: a task for the roll-out; nothing under a running job."""
    found = _differences(look, "versions.")
    facts = collect(look, "versions")
    look.said = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in sorted(facts.known.items())
                          if key in ("versions.driver", "versions.cuda", "versions.nccl"))  # fmt: skip
    for item in found:
        yield look.warn(str(item), key=item.key)


@check(
    "VER-02",
    summary="a driver whose library and kernel module are of different versions",
    subject="versions",
    severity="P1",
    step="A5",
    must=True,
    kind="configuration",
    period_s=60,
    timeout_s=20,
)
def library_mismatch(look: Look) -> Iterator[Problem]:
    """The NVIDIA library that programs load, against the kernel module that is loaded.

    An upgrade of packages under a loaded module: jobs that run go on, none can start. Source: what
    `nvidia-smi` says, `/sys/module/nvidia/version`, names of `libnvidia-ml.so.VERSION`. Threshold: nvidia-smi
    refuses for this reason, or none of the libraries has the module's version. Remedy: load the module anew
    on an empty node, or reboot."""
    loaded = look.text("/sys/module/nvidia/version")
    if loaded is None:
        raise Skipped("the NVIDIA driver is not loaded")
    versions_there = sorted(
        {found[1] for pattern in LIBRARIES for path in look.system.glob(pattern)
         if (found := re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", path))}
    )  # fmt: skip
    ran = driver_query(look)
    look.said = f"module {loaded}"
    refused = not ran.ok and MISMATCH.search(f"{ran.output[:2000]} {ran.error}")
    if refused or (versions_there and loaded not in versions_there and not ran.ok):
        yield look.fail(
            f"the kernel module is {loaded}, the library {', '.join(versions_there) or 'another version'}: no"
            " program can use a GPU",
            evidence=(ran.problem,) if ran.problem else (),
            remedy="reboot the node once it is empty",
        )
    elif versions_there and loaded not in versions_there:
        yield look.warn(f"the kernel module is {loaded}, the library {', '.join(versions_there)}")


@check(
    "VER-03",
    summary="firmware of the board that differs from the template",
    subject="versions",
    severity="P3",
    step="A0",
    scope="BMC",
    kind="configuration",
    period_s=3600,
    timeout_s=60,
    observe=True,
)
def board_firmware(look: Look) -> Iterator[Problem]:
    """Firmware that the board's controller lists, against the template.

    Source: Redfish FirmwareInventory; template keys `board_firmware.NAME`. Threshold: any difference. Remedy:
    a task for the next maintenance."""
    answer = redfish_answer(look)
    if answer is None:
        raise Skipped("the template names no Redfish service")
    there = {str(name): str(version) for name, version in answer.get("firmware", {}).items()}
    look.said = f"{len(there)} firmwares"
    for name, wanted in look.template.items():
        part = name.removeprefix("board_firmware.")
        if part != name and part in there and there[part] != str(wanted):
            yield look.warn(
                f"{part} has firmware {there[part]}, expected {wanted}", device=part, severity=Severity.P3
            )


@check(
    "IB-10",
    summary="lossless settings (PFC, ECN, DSCP) that differ",
    subject="InfiniBand",
    severity="P2",
    step="A1",
    must=True,
    kind="configuration",
    period_s=3600,
    timeout_s=60,
)
def lossless(look: Look) -> Iterator[Problem]:
    """Priority flow control, congestion notification and traffic class of every RoCE port.

    One port outside the lossless class drops under load, and the job's ring is as fast as that port. Source:
    `mlnx_qos -i`, `/sys/class/net/*/ecn`, `tc/1/traffic_class`, `default_roce_tos`; template keys `roce.…`.
    Threshold: any difference from the template; without one, a port that differs from most of the node's.
    Remedy: apply the template on the empty node, at both ends of the cable: the switch's port must say the
    same."""
    facts = collect(look, "roce")
    mine = {key: value for key, value in facts.known.items() if key.startswith(LOSSLESS)}
    if not mine:
        raise Skipped("no RoCE port with settings that can be read")
    look.said = f"{len(mine)} settings"
    wanted = {key: value for key, value in look.template.items() if key.startswith(LOSSLESS)}
    told = set()
    for item in compare(wanted, facts) if wanted else ():
        if item.key.startswith(LOSSLESS) and item.kind is not Differs.UNKNOWN:
            port = _device(item, 2)
            told.add((item.key.split(".")[1], port))
            yield look.warn(str(item), device=port, key=item.key, severity=Severity.P2)
    for setting in sorted({key.split(".")[1] for key in mine}):
        yield from _odd_ones(look, setting, mine, told)


def _odd_ones(
    look: Look, setting: str, mine: Mapping[str, object], told: set[tuple[str, str | None]]
) -> Iterator[Problem]:
    """Ports whose setting is another than that of the clear majority of the node's ports."""
    by_port = {key: str(value) for key, value in mine.items() if key.split(".")[1] == setting}
    values = list(by_port.values())
    usual = max(set(values), key=values.count)
    if values.count(usual) <= len(values) // 2 or len(values) < 3:
        return
    for key, value in by_port.items():
        port = key.split(".")[2]
        if value != usual and (setting, port) not in told:
            yield look.warn(
                f"{port}: {setting} is {value}, {usual} on the node's other ports", device=port, key=setting
            )


@check(
    "ETH-05",
    summary="a connection table that is nearly full",
    subject="Ethernet",
    severity="P2",
    step="A1",
    kind="configuration",
    period_s=60,
    observe=True,
)
def connection_table(look: Look) -> Iterator[Problem]:
    """Entries of the connection tracking table against its size.

    A full table drops new connections: the rendezvous of a job, or its storage. Source:
    `nf_conntrack_{count,max}`. Threshold: 90 %. Remedy: raise `net.netfilter.nf_conntrack_max`, or exempt the
    training network."""
    count = look.number("/proc/sys/net/netfilter/nf_conntrack_count")
    most = look.number("/proc/sys/net/netfilter/nf_conntrack_max")
    if count is None or not most:
        raise Skipped("connections are not tracked here")
    look.said = f"{count:,.0f} of {most:,.0f} entries"
    if count > TABLE_FULL * most:
        yield look.warn(f"the connection table is {100 * count / most:.0f} % full ({count:,.0f} entries)")


@check(
    "CFG-01",
    summary="other settings that differ from the template",
    subject="configuration",
    severity="P2",
    step="A1",
    kind="configuration",
    period_s=3600,
    timeout_s=60,
    observe=True,
)
def template_drift(look: Look) -> Iterator[Problem]:
    """Everything else that a template says: kernel and its parameters, modules, sysctl, mounts, routes,
    limits.

    Source: the facts of `megatrace template facts`. Threshold: any difference, told once a family; watched
    only, because a template that was learned last month knows nothing of today's roll-out. Remedy: `megatrace
    template diff` shows each key."""
    collect(
        look
    )  # all of it and always, so that a recording of this machine can be learned from and compared
    found = _differences(look, *OTHERS)
    families = sorted({item.key.split(".")[0] for item in found})
    for family in families:
        items = [item for item in found if item.key.split(".")[0] == family]
        worst = [item for item in items if item.kind is not Differs.EXTRA]
        if worst:
            more = f" and {len(items) - 1} more" if len(items) > 1 else ""
            yield look.warn(f"{worst[0]}{more}", key=family, step=Step.MEND, evidence=map(str, items[:10]))
    look.said = f"{len(look.template)} keys of the template"
