"""Outputs of tools: what is sick in the state of GPUs, links, ports and disks, and what only looks so.

A value that is absent ("N/A") is no fault, nor is a link in low speed while a GPU idles, nor congestion without a time
base. Counters since boot say that something happened, not when: read them twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, plural
from megatrace.analysis.evidence_gpu import address
from megatrace.analysis.evidence_links import judge_nvlinks, judge_pci, judge_topology
from megatrace.analysis.evidence_ports import judge_disks, judge_ports
from megatrace.model.finding import Culprits, Device, Kind, Severity
from megatrace.model.series import FactKind, LogFact

RETIRED_LIMIT = 60
"""Retired pages from which a card is a candidate for replacement; it holds 64."""
_HARD = (
    "hw slowdown",
    "hw thermal slowdown",
    "hw power brake slowdown",
    "hw power braking",
    "sw thermal slowdown",
)
_RESET_LATER = "Reset the GPU, or reboot, when the job has ended: pending remaps and retirements take effect then. The running job is not affected; no need to drain, no replacement."


def judge_tools(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about outputs of tools."""
    gpus = [f for f in facts if f.kind is FactKind.GPU_STATE]
    claims = _queried([f for f in gpus if f.name == "query"], facts)
    claims += _table(gpus) + judge_nvlinks([f for f in gpus if f.name == "nvlink"])
    claims += judge_ports([f for f in facts if f.kind is FactKind.PORT_STATE])
    claims += judge_disks([f for f in facts if f.kind is FactKind.DISK_STATE])
    claims += judge_pci([f for f in facts if f.name == "lspci"])
    return claims + judge_topology([f for f in facts if f.kind is FactKind.TOPOLOGY])


def _name(fact: LogFact) -> str:
    """A GPU by its bus id; outputs of -q have no index, so the order in which they stand is said beside it."""
    return f"GPU {fact.device}"


def _queried(gpus: Sequence[LogFact], facts: Sequence[LogFact]) -> list[Claim]:
    if not gpus:
        return []
    claims = _retired(gpus) + _remapped(gpus, facts)
    for gpu in gpus:
        claims += _ecc(gpu) + _throttled(gpu) + _recovery(gpu) + _fabric(gpu) + _width(gpu)
    if not claims:
        claims.append(
            claim(
                Order.NOTE,
                Kind.HARDWARE,
                Severity.INFO,
                f"{plural(len(gpus), 'GPU')} looked at: {_healthy(gpus[0])}",
                gpus,
                evidence=[f"{_name(g)}: {_healthy(g)}" for g in gpus[:16]]
                + ["fields that are N/A are not supported by the card or not set up: no fault"],
            )
        )
    return claims


def _healthy(gpu: LogFact) -> str:
    parts = [gpu.word("product")] if gpu.get("product") is not None else []
    power, limit = gpu.number("power"), gpu.number("power_limit")
    if power is not None and limit is not None:
        parts.append(f"{power:.0f} W of {limit:.0f} W")
    if gpu.get("perf") is not None:
        parts.append(gpu.word("perf"))
    parts.append(f"throttle: {gpu.word('throttle')}" if gpu.word("throttle") else "no throttle")
    for key, said in (
        ("remap_corrected", "remapped rows"),
        ("ecc_volatile_uncorrectable", "uncorrectable ECC errors"),
    ):
        number = gpu.number(key)
        if number is not None:
            parts.append(f"{said} {number:.0f}")
    if gpu.number("ecc_volatile_uncorrectable") is None:
        parts.append(
            "no ECC on this card (normal for GeForce)"
            if "GeForce" in gpu.word("product")
            else "no ECC counters in this output"
        )
    if gpu.get("recovery") is not None:
        parts.append(f"recovery action {gpu.word('recovery')}")
    if gpu.get("fabric_state") is not None:
        parts.append(f"Fabric State {gpu.word('fabric_state')}")
    return ", ".join(parts)


def _retired(gpus: Sequence[LogFact]) -> list[Claim]:
    rows = [
        (
            g,
            int(g.number("retired_single") or 0),
            int(g.number("retired_double") or 0),
            g.word("retired_pending").lower() == "yes",
        )
        for g in gpus
        if g.number("retired_single") is not None or g.get("retired_pending") is not None
    ]
    bad = [row for row in rows if row[1] + row[2] or row[3]]
    if not bad:
        return []
    full = [row[0] for row in rows if row[1] + row[2] >= RETIRED_LIMIT]
    pending = [row[0] for row in rows if row[3]]
    clean = [row[0] for row in rows if not (row[1] + row[2] or row[3])]
    said = [
        f"{_name(g)}{_ordinal(g, gpus)}: {single} single-bit + {double} double-bit = {single + double} retired pages, pending {'Yes' if wait else 'No'}"
        for g, single, double, wait in bad
    ]
    if clean:
        said.append(f"clean: {listed(_name(g) + _ordinal(g, gpus) for g in clean)}")
    said.append(
        "there is no GPU index in this output: GPUs are named by bus id, and counted from 1 in the order in which they stand"
    )
    parts = []
    if full:
        parts.append(
            f"{listed(_name(g) for g in full)} {'has' if len(full) == 1 else 'have'} {RETIRED_LIMIT} or more retired pages: candidates for replacement (RMA)"
        )
    if pending:
        parts.append(f"{listed(_name(g) for g in pending)}: retirement pending, needs a reset or reboot")
    if not parts:
        parts.append(
            f"{listed(_name(g) for g, *_ in bad)} {'has' if len(bad) == 1 else 'have'} retired pages, none pending and none over the limit"
        )
    severity = Severity.P2 if full else Severity.P3
    return [
        claim(
            Order.HARDWARE if full else Order.NOTE,
            Kind.HARDWARE,
            severity,
            "; ".join(parts),
            [row[0] for row in bad],
            evidence=said,
            culprits=Culprits(devices=tuple(Device(None, _name(g)) for g in full)),
            confidence=0.95,
            remedy=f"Pending retirement: reset the GPU, or reboot, when the job has ended. {RETIRED_LIMIT} retired pages or more (of 64): open a replacement case (RMA) for {listed(_name(g) for g in full)}."
            if full
            else _RESET_LATER,
        )
    ]


def _ordinal(gpu: LogFact, gpus: Sequence[LogFact]) -> str:
    return f" (number {gpus.index(gpu) + 1})" if len(gpus) > 1 else ""


def _remapped(gpus: Sequence[LogFact], facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for gpu in gpus:
        failed, pending = (
            gpu.word("remap_failure").lower() == "yes",
            gpu.word("remap_pending").lower() == "yes",
        )
        if not (failed or pending):
            continue
        corrected, lost = int(gpu.number("remap_corrected") or 0), int(gpu.number("remap_uncorrected") or 0)
        xids = [f for f in facts if f.kind is FactKind.XID and address(f.device) == address(gpu.device)]
        evidence = [
            f"remapped rows: {corrected} for correctable, {lost} for uncorrectable errors; pending {'Yes' if pending else 'No'}, failure {'Yes' if failed else 'No'}"
        ]
        if gpu.number("ecc_volatile_corrected") is not None:
            evidence.append(
                f"ECC: {gpu.number('ecc_volatile_corrected'):.0f} corrected, {gpu.number('ecc_volatile_uncorrectable') or 0:.0f} uncorrected since the driver was loaded"
            )
        if xids:
            evidence.append(
                f"Xid {listed(f.code for f in xids)} of bus id {xids[0].device} in the log is this GPU ({gpu.device}): the same event"
            )
        if failed:
            claims.append(claim(Order.HARDWARE, Kind.HARDWARE, Severity.P0, f"{_name(gpu)}: a row could not be remapped: its spare rows are used up", [gpu, *xids], evidence=evidence, remedy="Drain the node and open a replacement case (RMA) for the GPU.", culprits=Culprits(devices=(Device(None, _name(gpu)),)), confidence=0.95))  # fmt: skip
        else:
            claims.append(claim(Order.NOTE, Kind.HARDWARE, Severity.P3, f"{_name(gpu)}: a row remap is recorded and pending; it takes effect with the next reset of the GPU", [gpu, *xids], evidence=evidence, remedy=_RESET_LATER, culprits=Culprits(devices=(Device(None, _name(gpu)),)), confidence=0.95))  # fmt: skip
    return claims


def _ecc(gpu: LogFact) -> list[Claim]:
    now, ever = gpu.number("ecc_volatile_uncorrectable") or 0, gpu.number("ecc_aggregate_uncorrectable") or 0
    if now:
        return [claim(Order.HARDWARE, Kind.HARDWARE, Severity.P1, f"{_name(gpu)}: {now:.0f} uncorrectable ECC errors since the driver was loaded", [gpu], evidence=[f"{ever:.0f} in the card's life"], remedy="Drain the node and reset the GPU; look at Xid 48, 63, 64, 94, 95 in dmesg; replace it if they come back.", culprits=Culprits(devices=(Device(None, _name(gpu)),)), confidence=0.9)]  # fmt: skip
    if ever:
        return [
            claim(
                Order.NOTE,
                Kind.HARDWARE,
                Severity.P3,
                f"{_name(gpu)}: {ever:.0f} uncorrectable ECC errors in its life, none since the driver was loaded",
                [gpu],
                remedy="Count them; no action now.",
            )
        ]
    return []


def _throttled(gpu: LogFact) -> list[Claim]:
    active = [name for name in gpu.word("throttle").split(", ") if name in _HARD]
    if not active:
        return []
    temp = gpu.number("temperature")
    evidence = [f"active: {gpu.word('throttle')}"] + (
        [f"temperature {temp:.0f} °C"] if temp is not None else []
    )
    heat = any("thermal" in name for name in active)
    remedy = (
        "Check cooling (fans, inlet temperature, clogged cooler)."
        if heat
        else "Check the power supply and the power brake signal of the chassis."
    )
    return [
        claim(
            Order.HARDWARE,
            Kind.SLOW_COMPUTE,
            Severity.P1,
            f"{_name(gpu)} is throttled by its hardware: {listed(active)}",
            [gpu],
            evidence=evidence,
            remedy=remedy,
            culprits=Culprits(devices=(Device(None, _name(gpu)),)),
            confidence=0.9,
        )
    ]


def _recovery(gpu: LogFact) -> list[Claim]:
    said = gpu.word("recovery")
    if not said or said.lower() == "none":
        return []
    return [
        claim(
            Order.HARDWARE,
            Kind.HARDWARE,
            Severity.P1,
            f"{_name(gpu)}: the driver asks for a recovery action: {said}",
            [gpu],
            remedy=f"Drain the node, then: {said}.",
            culprits=Culprits(devices=(Device(None, _name(gpu)),)),
            confidence=0.95,
        )
    ]


def _fabric(gpu: LogFact) -> list[Claim]:
    state, status = gpu.word("fabric_state"), gpu.word("fabric_status")
    if (not state or state == "Completed") and (not status or status == "Success"):
        return []
    return [
        claim(
            Order.HARDWARE,
            Kind.CONFIGURATION,
            Severity.P1,
            f"{_name(gpu)} is not part of the NVLink fabric: state {state or '?'}, status {status or '?'}",
            [gpu],
            remedy="Check the fabric manager (systemctl status nvidia-fabricmanager, its version must be the driver's) and the NVSwitches.",
            culprits=Culprits(devices=(Device(None, _name(gpu)),)),
        )
    ]


def _width(gpu: LogFact) -> list[Claim]:
    now, most = gpu.number("width_now"), gpu.number("width_max")
    if now is None or most is None or now >= most:
        return []
    return [
        claim(
            Order.HARDWARE,
            Kind.HARDWARE,
            Severity.P2,
            f"{_name(gpu)}: its PCIe link has {now:.0f} of {most:.0f} lanes",
            [gpu],
            remedy="Reseat the GPU or its riser at the next maintenance; a slot may be narrower by design.",
            culprits=Culprits(devices=(Device(None, _name(gpu)),)),
            confidence=0.8,
        )
    ]


# ---- the table, and sentences


_SENTENCES = {
    "lost": (Kind.HARDWARE, Severity.P0, "is lost: nvidia-smi cannot reach it", "Look for Xid 79 in dmesg; drain the node and power-cycle it."),
    "mismatch": (Kind.CONFIGURATION, Severity.P1, "driver and library versions do not match: the driver was updated without a reboot", "Reboot the node, or reload the kernel module; no hardware is at fault."),
    "no_driver": (Kind.CONFIGURATION, Severity.P1, "nvidia-smi cannot reach the driver: it is not loaded", "modprobe nvidia; look into dmesg for NVRM lines; reinstall the driver for this kernel."),
    "no_devices": (Kind.HARDWARE, Severity.P1, "the driver sees no GPU at all", "lspci -d 10de: says whether they are on the bus; then dmesg for NVRM lines; power-cycle the node."),
    "unknown_error": (Kind.HARDWARE, Severity.P1, "nvidia-smi failed", "Look into dmesg for Xid and NVRM lines."),
}  # fmt: skip


def _table(gpus: Sequence[LogFact]) -> list[Claim]:
    rows = [g for g in gpus if g.name == "row"]
    claims = []
    index = {address(row.device): int(row.number("index") or 0) for row in rows}
    for fact in (g for g in gpus if g.name == "inforom"):
        at = index.get(address(fact.device))
        form = next((row.device for row in rows if address(row.device) == address(fact.device)), None)
        name = f"GPU index {at} ({form})" if at is not None else f"GPU {fact.device}"
        claims.append(
            claim(
                Order.HARDWARE,
                Kind.HARDWARE,
                Severity.P2,
                f"{name}: its InfoROM is corrupted (warning below the table)",
                [fact],
                evidence=[f'"{fact.text}"']
                + (
                    [f"the warning writes the bus id as {fact.device}, the table as {form}: the same GPU"]
                    if form
                    else []
                )
                + ([f"the table itself is clean: {_rows(rows)}"] if rows else []),
                remedy="A warning: the card works; plan to re-flash its InfoROM with the vendor's tool, or a replacement (RMA).",
                culprits=Culprits(devices=(Device(None, name),)),
                confidence=0.9,
            )
        )
    for name, (kind, severity, text, remedy) in _SENTENCES.items():
        for fact in [g for g in gpus if g.name == name][:4]:
            who = f"GPU {fact.device} " if fact.device else "a GPU " if name == "lost" else ""
            claims.append(
                claim(
                    Order.HARDWARE if kind is Kind.HARDWARE else Order.SOFTWARE,
                    kind,
                    severity,
                    f"{who}{text}",
                    [fact],
                    evidence=[f'"{fact.text}"'],
                    remedy=remedy,
                    culprits=Culprits(devices=(Device(None, f"GPU {fact.device}"),)) if fact.device else None,
                    confidence=0.9,
                )
            )
    wrong = [g for g in gpus if g.name == "err"]
    if wrong:
        claims.append(
            claim(
                Order.HARDWARE,
                Kind.HARDWARE,
                Severity.P1,
                f"nvidia-smi shows ERR! for {listed(f'GPU {g.device}' for g in wrong)}: the GPU does not answer",
                wrong,
                evidence=[g.text for g in wrong[:3]],
                remedy="Look for Xids in dmesg; drain the node, reset or power-cycle.",
                culprits=Culprits(devices=tuple(Device(None, f"GPU {g.device}") for g in wrong)),
            )
        )
    for row in rows:
        if not (row.number("ecc") or 0) > 0:
            continue
        claims.append(
            claim(
                Order.HARDWARE,
                Kind.HARDWARE,
                Severity.P1,
                f"GPU index {row.word('index')} ({row.device}): {row.number('ecc'):.0f} volatile uncorrectable ECC errors",
                [row],
                evidence=[row.text],
                remedy="Drain the node and reset the GPU; look at Xid 48, 63, 64, 94, 95 in dmesg.",
                culprits=Culprits(devices=(Device(None, f"GPU {row.device}"),)),
            )
        )
    if rows and not claims:
        claims.append(
            claim(
                Order.NOTE,
                Kind.HARDWARE,
                Severity.INFO,
                f"table of {plural(len(rows), 'GPU')} is clean: {_rows(rows)}",
                rows,
            )
        )
    return claims


def _rows(rows: Sequence[LogFact]) -> str:
    names = dict.fromkeys(row.word("product") for row in rows)
    bad = sum(int(row.number("ecc") or 0) for row in rows)
    return f"{len(rows)} × {listed(names, 3)}, ECC {bad}"
