"""Ports of the compute network, InfiniBand and RoCE: there, up, fast, without errors and without
congestion."""

from __future__ import annotations

from collections.abc import Iterator

from megatrace.analysis.evidence_host import judge_host
from megatrace.bot.checks import check
from megatrace.bot.kernel_log import kernel_facts, of, problems
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.bot.ports import Port, far_end, ports, remember_far_ends, usual
from megatrace.bot.processes import processes
from megatrace.model.check import Outcome
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.units import NS_PER_S, format_number

FLAPS = 3.0
FLAP_S = 600.0
SYMBOLS_PER_HOUR = 10.0
BOOT_S = 600.0
"""Seconds after boot in which links come up, some of them twice."""
_CABLE = "clean or reseat the optic, then replace optic and cable; check the switch port at the other end"


def _cabled(look: Look) -> dict[str, str]:
    """Ports that should be up, by name, and why: the template, an earlier look, or their like."""
    every = [port for port in ports(look) if not port.virtual]
    wanted = look.expected("ib.ports")
    named = {str(item) for item in wanted} if isinstance(wanted, list | tuple) else set()
    found = {}
    for port in every:
        like = [other for other in every if other.board == port.board]
        seen = look.counters.level(f"port.{port.name}.seen_up") is not None
        if port.up:
            look.before(f"port.{port.name}.seen_up", 1.0)
        if named:
            if port.name in named or port.device in named:
                found[port.name] = "the template names it"
        elif port.up:
            found[port.name] = "it is up"
        elif seen:
            found[port.name] = "it was up at an earlier look"
        elif len(like) >= 4 and sum(other.up for other in like) >= len(like) - 1:
            found[port.name] = f"all {len(like) - 1} others of its kind are up"
    return found


@check(
    "IB-01",
    summary="a port of the compute network that is down",
    subject="network",
    severity="P0",
    step="A3",
    must=True,
)
def port_state(look: Look) -> Iterator[Problem]:
    """The state of every RDMA port that should be up.

    NCCL gives up on a port that is down, and the job with it. Source: `ports/*/state` and `phys_state` in
    `/sys/class/infiniband`. Which ports should be up is told by the template (`ib.ports`), by an earlier
    look, or by ports of the same kind, all of which are up; a port that was never cabled is none of these.
    Threshold: any state but ACTIVE and LinkUp. Remedy: check cable, optic and the switch port at the other
    end."""
    wanted = _cabled(look)
    remember_far_ends(look)
    busy = any(item.in_job for item in processes(look))
    look.said = f"{sum(port.up for port in ports(look))} ports are up"
    for port in ports(look):
        if port.name not in wanted or port.up:
            continue
        far = far_end(look, port)
        yield look.fail(
            f"{port.name} is down: {port.state or 'no state'}, {port.physical or 'no physical state'}"
            + (f"; its cable leads to {far}" if far else ""),
            device=port.name,
            link=(port.name, far),
            severity=Severity.P0 if busy or wanted[port.name] == "the template names it" else Severity.P1,
            evidence=[wanted[port.name], f"PCI {port.place}"] if port.place else [wanted[port.name]],
            remedy=_CABLE,
        )


@check(
    "IB-02",
    summary="a port that runs slower than it should",
    subject="network",
    severity="P1",
    step="A3",
    must=True,
)
def rate(look: Look) -> Iterator[Problem]:
    """The rate and width of every port that is up.

    A port that trained to fewer lanes, or a lower speed, works without an error and slows every collective.
    Source: `ports/*/rate`; template key `ib.rate_gbps`, else ports of the same kind. Threshold: any less,
    because rates are steps. Remedy: clean or replace the optic."""
    every = [port for port in ports(look) if port.up and port.rate and not port.virtual]
    wanted = look.expected("ib.rate_gbps")
    rates = []
    for port in every:
        like = usual([str(other.rate) for other in every if other.board == port.board])
        goal = float(wanted) if isinstance(wanted, int | float) else float(like or port.rate or 0.0)
        before = look.before(f"port.{port.name}.rate", port.rate or 0.0)
        goal = max(goal, before or 0.0) if not isinstance(wanted, int | float) else goal
        rates.append(port.rate or 0.0)
        look.measured[f"{port.name} rate Gb/s"] = port.rate or 0.0
        if (port.rate or 0.0) < goal:
            far = far_end(look, port)
            yield look.fail(
                f"{port.name} runs at {format_number(port.rate or 0.0)} of {format_number(goal)} Gb/s"
                + (f" ({port.width})" if port.width else "")
                + (f"; its cable leads to {far}" if far else ""),
                device=port.name,
                link=(port.name, far),
                remedy=_CABLE,
            )
    look.said = f"{len(rates)} ports at {', '.join(format_number(item) for item in sorted(set(rates)))} Gb/s"


@check(
    "IB-03",
    summary="a network card that is missing",
    subject="network",
    severity="P1",
    step="A6",
    period_s=60,
    must=True,
)
def card_count(look: Look) -> Iterator[Problem]:
    """How many RDMA devices there are, against the template, the PCI bus and the last look.

    Source: `/sys/class/infiniband`, `/sys/bus/pci/devices` (vendor 15b3), template key `ib.devices`.
    Threshold: any less. Remedy: look for mlx5 lines in dmesg; cold power cycle; replace the card."""
    devices = {port.device for port in ports(look)}
    places = {port.place for port in ports(look)}
    wanted = look.expected("ib.devices")
    names = {str(item) for item in wanted} if isinstance(wanted, list | tuple) else set()
    look.said = f"{len(devices)} devices"
    for name in sorted(names - devices):
        yield look.fail(f"network card {name} is missing", device=name, remedy=_MISSING)
    before = look.before("rdma.devices", float(len(devices)))
    silent = [place for place in _cards(look) if place not in places]
    for place in silent:
        yield look.fail(
            f"network card {place} is on the PCI bus and its driver gives no RDMA device",
            device=place,
            remedy=_MISSING,
        )
    if not names and not silent and before is not None and before > len(devices):
        yield look.fail(
            f"{before - len(devices):.0f} network cards fewer than at the last look: {len(devices)} are left",
            evidence=[f"there are {', '.join(sorted(devices))}"],
            remedy=_MISSING,
        )


_MISSING = "look for mlx5 lines in dmesg; drain, power-cycle cold; reseat or replace the card"


def _cards(look: Look) -> list[str]:
    """Physical functions of Mellanox network cards on the bus; those that are given to virtual machines are
    not ours."""
    found = []
    for path in look.system.glob("/sys/bus/pci/devices/*/vendor"):
        folder = path.rpartition("/")[0]
        if look.text(path) != "0x15b3" or look.system.glob(f"{folder}/physfn"):
            continue
        mine = (look.text(f"{folder}/class") or "").startswith(("0x0207", "0x0200"))
        if mine and not look.system.glob(f"{folder}/driver/module/drivers/pci:vfio-pci"):
            found.append(folder.rpartition("/")[2])
    return found


@check(
    "IB-04",
    summary="a link that goes up and down",
    subject="network",
    severity="P1",
    step="A3",
    must=True,
)
def flap(look: Look) -> Iterator[Problem]:
    """Ports whose link was lost, even for a moment.

    NCCL's transfers fail or wait for seconds at every loss; a link that flaps does so until somebody changes
    its optic. Source: growth of `link_downed`, and the kernel log (lost and gained carrier), without the ten
    minutes after boot. Threshold: 3 in 10 min; a single one beside a running job. Remedy: check the optic;
    drain at the job's end."""
    told: set[str] = set()
    try:
        facts = [
            fact
            for fact in of(kernel_facts(look), FactKind.LINK, "lost", "gained")
            if _after_boot(look, fact)
        ]
    except (Skipped, Unknown):
        facts = []
    judged = problems(look, judge_host(facts))
    try:
        every = ports(look)
    except Skipped:
        # Without a list of ports, whatever the kernel log calls a port is one.
        yield from judged
        raise
    for problem in judged:
        name = next((item.device for item in problem.finding.culprits.devices if item.device), "")
        port = next((item for item in every if name in item.interfaces or name == item.device), None)
        if port is not None:
            told.add(port.name)
            yield problem
    busy = any(item.in_job for item in processes(look))
    for port in every:
        downs = port.counters.get("link_downed")
        growth = None if downs is None else look.grown(f"port.{port.name}.link_downed", downs, FLAP_S)
        if growth is None or growth.amount < 1 or growth.reset or port.name in told:
            continue
        far = far_end(look, port)
        often = growth.amount >= look.limit("flaps", FLAPS)
        minutes = max(growth.seconds / 60, 1)
        yield look.problem(
            *_flap_words(port, growth.amount, minutes, often or busy),
            severity=Severity.P1 if often or busy else Severity.P2,
            device=port.name,
            link=(port.name, far),
            evidence=[f"its cable leads to {far}" if far else "what its cable leads to is not known"],
            remedy="check the optic and the cable; drain the node at the end of the job",
        )


def _flap_words(port: Port, amount: float, minutes: float, bad: bool) -> tuple[Outcome, str]:
    text = f"{port.name} lost its link {amount:.0f} times in {minutes:.0f} min" if amount > 1 else ""
    return (Outcome.FAIL if bad else Outcome.WARN), text or f"{port.name} lost its link once"


def _after_boot(look: Look, fact: LogFact) -> bool:
    up = look.number("/proc/uptime")
    return fact.time is None or up is None or fact.time > look.now - round((up - BOOT_S) * NS_PER_S)


_ERRORS = {
    "symbol_error": SYMBOLS_PER_HOUR,
    "port_rcv_errors": SYMBOLS_PER_HOUR,
    "link_error_recovery": 0.0,
    "local_link_integrity_errors": 0.0,
    "excessive_buffer_overrun_errors": 0.0,
}
"""Counters of a port's physical layer and how many an hour are tolerated: a recovery retrains the link."""


@check(
    "IB-05",
    summary="errors on a port's link that grow",
    subject="network",
    severity="P2",
    step="A0",
    must=True,
)
def error_rates(look: Look) -> Iterator[Problem]:
    """Growth of the error counters of every port.

    Source: `ports/*/counters` (symbol errors, receive errors, recoveries, integrity, buffer overruns).
    Threshold: 10 symbol or receive errors an hour, because the bit error rate that InfiniBand specifies gives
    less; any recovery, because it stops the link. Remedy: clean or replace the optic."""
    read = 0
    for port in ports(look):
        wrong = []
        for name, limit in _ERRORS.items():
            value = port.counters.get(name)
            read += value is not None
            growth = None if value is None else look.grown(f"port.{port.name}.{name}", value, 3600)
            if growth is not None and growth.amount > 0 and growth.exceeds(look.limit(name, limit)):
                wrong.append(f"{name} {growth.amount:,.0f} in {max(growth.seconds / 60, 1):.0f} min")
        if wrong:
            far = far_end(look, port)
            yield look.warn(
                f"{port.name}: errors on its link: {', '.join(wrong)}",
                device=port.name,
                link=(port.name, far),
                evidence=[f"its cable leads to {far}"] if far else (),
                remedy=_CABLE,
            )
    look.said = f"{read} counters read"


@check(
    "IB-12",
    summary="network cards of one kind with different firmware",
    subject="network",
    severity="P2",
    step="A7",
    kind="configuration",
    period_s=3600,
    must=True,
)
def firmware(look: Look) -> Iterator[Problem]:
    """Firmware of the RDMA devices against the template, or among cards of the same board id.

    Source: `fw_ver`, `board_id`; template key `ib.firmware` (one version, or a version by board id).
    Threshold: any difference. Remedy: firmware task at the next maintenance."""
    devices = {port.device: port for port in ports(look) if not port.virtual}
    wanted = look.expected("ib.firmware")
    look.said = ", ".join(sorted({port.firmware for port in devices.values() if port.firmware})) or "not told"
    for port in devices.values():
        goal = wanted.get(port.board) if isinstance(wanted, dict) else wanted
        goal = goal or usual([item.firmware for item in devices.values() if item.board == port.board])
        if goal and port.firmware and port.firmware != str(goal):
            yield look.warn(
                f"{port.device} has firmware {port.firmware}, expected {goal}",
                device=port.device,
                evidence=[f"board {port.board}"],
                remedy="update the firmware at the next maintenance",
            )


@check(
    "IB-15",
    summary="GPUs and network cards cannot exchange data directly",
    subject="network",
    severity="P1",
    step="A1",
    kind="configuration",
    period_s=3600,
    observe=True,
)
def peer_memory(look: Look) -> Iterator[Problem]:
    """Whether GPUDirect RDMA has a way: the module nvidia_peermem, or dma-buf of the open kernel module.

    Without it NCCL copies through host memory at a third of the speed. Source: `/proc/modules`,
    `/proc/driver/nvidia/ version`. Threshold: neither is there on a machine with GPUs and RDMA ports. Remedy:
    `modprobe nvidia_peermem`."""
    ports(look)
    version = look.text("/proc/driver/nvidia/version")
    modules = look.text("/proc/modules")
    if not version or modules is None:
        raise Skipped("no NVIDIA driver, or no list of modules")
    if "nvidia_peermem" not in modules and "Open Kernel Module" not in version:
        yield look.fail(
            "GPUDirect RDMA has no way: nvidia_peermem is not loaded and the kernel module is not the open one",
            remedy="modprobe nvidia_peermem, and load it at boot",
        )
