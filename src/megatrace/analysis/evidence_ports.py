"""InfiniBand and RoCE ports, and disks, from outputs of ibstat, perfquery and smartctl."""

from __future__ import annotations

from collections.abc import Sequence

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, plural
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import LogFact
from megatrace.units import format_count

_ERRORS = (
    "SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors", "PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors",
    "PortXmitDiscards", "PortXmitConstraintErrors", "PortRcvConstraintErrors", "LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors", "VL15Dropped", "QP1Dropped",
)  # fmt: skip
_SERIOUS = frozenset(
    {
        "LinkErrorRecoveryCounter",
        "LinkDownedCounter",
        "LocalLinkIntegrityErrors",
        "ExcessiveBufferOverrunErrors",
        "SymbolErrorCounter",
        "PortRcvErrors",
    }
)
_CABLE = "Check cable, optic and switch port; read the counters again after a minute of load: what grows is sick now."
WORN = 100
"""Percent of its specified writes that an SSD has had."""


def judge_ports(ports: Sequence[LogFact]) -> list[Claim]:
    """States and counters of ports."""
    return _states([p for p in ports if p.name == "state"]) + _counters(
        [p for p in ports if p.name == "counters"]
    )


def _states(ports: Sequence[LogFact]) -> list[Claim]:
    claims = []
    rates = [p.number("rate") or 0 for p in ports if _infiniband(p) and _up(p)]
    for port in ports:
        name = f"{port.device} port {port.word('port')}"
        said = f"{port.word('state')}/{port.word('phys')}, {port.word('rate_text')}, {port.word('layer') or 'link layer not shown'}"
        if not _up(port):
            severity = Severity.P1 if _infiniband(port) else Severity.P3
            claims.append(
                claim(
                    Order.HARDWARE if severity is Severity.P1 else Order.NOTE,
                    Kind.HARDWARE,
                    severity,
                    f"{name} is not up: {said}",
                    [port],
                    remedy=f"{_CABLE} Polling: no signal from the other side; Initializing: no subnet manager."
                    if severity is Severity.P1
                    else "An Ethernet port that is not used may be down.",
                    culprits=Culprits(devices=(Device(None, name),)),
                    confidence=0.9,
                )
            )
        elif _infiniband(port) and rates and 0 < (port.number("rate") or 0) < max(rates):
            claims.append(
                claim(
                    Order.HARDWARE,
                    Kind.HARDWARE,
                    Severity.P2,
                    f"{name} runs at {port.word('rate_text')}, other ports at {max(rates):g} Gb/s",
                    [port],
                    remedy=_CABLE,
                    culprits=Culprits(devices=(Device(None, name),)),
                    confidence=0.8,
                )
            )
    if ports and not [c for c in claims if c.finding.severity <= Severity.P2]:
        lines = [
            f"{p.device}: {p.word('state')}/{p.word('phys')} at {p.word('rate_text')} ({p.word('layer') or '?'}): OK"
            for p in ports
            if _up(p)
        ]
        if any(not _infiniband(p) for p in ports):
            lines.append("LID 0 and a GID that is not known are normal on Ethernet")
        claims.append(
            claim(
                Order.NOTE,
                Kind.HARDWARE,
                Severity.INFO,
                f"{plural(len(lines) - any(not _infiniband(p) for p in ports), 'port')} up",
                ports,
                evidence=lines,
            )
        )
    return claims


def _infiniband(port: LogFact) -> bool:
    return port.word("layer").lower() != "ethernet"


def _up(port: LogFact) -> bool:
    state, phys = port.word("state").lower(), port.word("phys").lower()
    return state.startswith("active") and (not phys or phys.startswith("linkup"))


def _counters(blocks: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for block in blocks:
        bad = {name: int(number) for name in _ERRORS if (number := block.number(name))}
        wait = block.number("PortXmitWait")
        hint = (
            []
            if not wait
            else [
                f"PortXmitWait {format_count(int(wait))} ticks: a hint of congestion at most, meaningless without a time base"
            ]
        )
        if not bad:
            claims.append(
                claim(
                    Order.NOTE,
                    Kind.HARDWARE,
                    Severity.INFO,
                    f"{block.device}: all error counters are 0",
                    [block],
                    evidence=hint,
                )
            )
            continue
        serious = {name: count for name, count in bad.items() if name in _SERIOUS}
        said = listed(f"{name} {format_count(count)}" for name, count in bad.items())
        claims.append(
            claim(
                Order.HARDWARE if serious else Order.NOTE,
                Kind.HARDWARE,
                Severity.P2 if serious else Severity.P3,
                f"{block.device}: error counters of its link are not 0: {said}",
                [block],
                evidence=[*hint, "counters since the last reset: they do not say when"],
                remedy=_CABLE,
                culprits=Culprits(devices=(Device(None, block.device),)),
                confidence=0.6,
                steps=(
                    NextStep(
                        f"perfquery -x {block.word('lid')} {block.word('port')}".strip(),
                        "twice, a minute apart, under load: which counters grow",
                    ),
                ),
            )
        )
    return claims


def judge_disks(disks: Sequence[LogFact]) -> list[Claim]:
    """What disks say of themselves: the drive's own "passed" is no proof."""
    claims = []
    for disk in disks:
        name = f"disk {(disk.device or 'not named').rpartition('/')[2]}"
        spare, limit = disk.number("spare"), disk.number("threshold")
        wrong = []
        if spare is not None and limit is not None and spare < limit:
            wrong.append(f"available spare {spare:.0f} is below its threshold {limit:.0f}")
        if disk.number("warning"):
            wrong.append(f"critical warning 0x{int(disk.number('warning') or 0):02x}")
        if disk.number("media_errors"):
            wrong.append(f"{format_count(int(disk.number('media_errors') or 0))} media errors")
        if disk.word("passed") == "no":
            wrong.append("its own health test failed")
        wrong += [
            f"{key[10:]} {format_count(int(said))}"
            for key, said in disk.fields
            if key.startswith("attribute ") and isinstance(said, int) and said > 0
        ]
        worn = (disk.number("used") or 0) >= WORN
        log = int(disk.number("log_entries") or 0)
        extra = [f"{format_count(log)} error-log entries"] if log else []
        if wrong:
            but = (
                ['although its own verdict is "passed" and critical_warning is 0: they do not look at this']
                if disk.word("passed") == "yes"
                else []
            )
            claims.append(
                claim(
                    Order.HARDWARE,
                    Kind.HARDWARE,
                    Severity.P1,
                    f"{name}: {listed([*wrong, *extra])}: replace it",
                    [disk],
                    evidence=[*wrong, *extra, *but],
                    remedy="Move data off and replace the disk; drain the node if a job writes to it.",
                    culprits=Culprits(devices=(Device(None, name),)),
                    confidence=0.9,
                )
            )
        elif worn:
            claims.append(
                claim(
                    Order.NOTE,
                    Kind.HARDWARE,
                    Severity.P3,
                    f"{name}: worn to {disk.number('used'):.0f} % of its specified writes",
                    [disk],
                    remedy="Plan its replacement.",
                )
            )
        else:
            good = [f"spare {spare:.0f}"] if spare is not None else []
            claims.append(
                claim(
                    Order.NOTE,
                    Kind.HARDWARE,
                    Severity.INFO,
                    f"{name}: OK ({listed([*good, 'no media errors'])})",
                    [disk],
                    evidence=extra,
                )
            )
    return claims
