"""What NVIDIA's driver says beside Xids: NVSwitch errors (SXid), the fabric manager, GPUs that it cannot start.

A switch error without the word "fatal" is a warning; the lines after it with the same code tell more of the same one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from megatrace.analysis.evidence_claim import Claim, Order, claim, on_node, plural, times
from megatrace.analysis.evidence_gpu import LOST, address
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact


def judge_driver(facts: Sequence[LogFact]) -> list[Claim]:
    """What the driver, switches and the fabric manager say beside Xids."""
    known = {address(f.device) for f in facts if f.kind is FactKind.XID}
    claims = _switches([f for f in facts if f.kind is FactKind.SXID])
    claims += _fabric(facts)
    lost = [f for f in facts if f.name == "gpu_lost" and address(f.device) not in known]
    if lost and not known:
        claims.append(
            claim(
                Order.HARDWARE,
                Kind.HARDWARE,
                Severity.P0,
                f"GPU {address(lost[0].device) or '(address not printed)'}{on_node(lost[0].node)} has fallen off the bus",
                lost,
                remedy=LOST,
                culprits=Culprits(devices=(Device(lost[0].node, f"GPU {address(lost[0].device)}"),)),
            )
        )
    for name, text, remedy in (
        (
            "gpu_init",
            "the driver could not initialize a GPU (RmInitAdapter failed)",
            "Drain the node and reboot it; if the same GPU fails again, power-cycle cold, then RMA.",
        ),
        (
            "driver_mismatch",
            "kernel module and user libraries of the NVIDIA driver have different versions",
            "Reboot the node, or unload and load the kernel module, after the driver was updated; no hardware is at fault.",
        ),
    ):
        found = [f for f in facts if f.name == name]
        if found:
            kind = Kind.HARDWARE if name == "gpu_init" else Kind.CONFIGURATION
            order = Order.HARDWARE if name == "gpu_init" else Order.SOFTWARE
            where = address(found[0].device)
            claims.append(
                claim(
                    order,
                    kind,
                    Severity.P1,
                    f"{'GPU ' + where + ': ' if where else ''}{text}",
                    found,
                    evidence=[found[0].text[:200]],
                    remedy=remedy,
                )
            )
    return claims


def _switches(found: Sequence[LogFact]) -> list[Claim]:
    claims = []
    groups: dict[tuple[str | None, str | None, int | None, str], list[LogFact]] = defaultdict(list)
    for fact in found:
        groups[fact.node, fact.device, fact.code, fact.word("port")].append(fact)
    for key in [
        key for key in groups if not key[3]
    ]:  # "Severity 1 Engine instance 29" tells more of the line before
        home = next((other for other in groups if other[:3] == key[:3] and other[3]), None)
        if home is not None and not any(fact.word("class") for fact in groups[key]):
            del groups[key]
    for (node, device, code, port), same in groups.items():
        fatal = any(f.word("class").lower().startswith(("fatal", "always")) for f in same)
        number = same[0].word("switch")
        name = (
            f"NVSwitch {device}"
            + (f" (physical id {number})" if number else "")
            + (f", port {port}" if port else "")
        )
        word = "fatal" if fatal else "non-fatal"
        claims.append(
            claim(
                Order.HARDWARE if fatal else Order.NOTE,
                Kind.HARDWARE,
                Severity.P0 if fatal else Severity.P3,
                f"{name}{on_node(node)}: SXid {code} {times(len(same))}, {word}",
                same,
                evidence=[
                    f'"{same[0].text[:200]}"',
                    "other lines of the fabric manager (multicast teams, in-band messages) are its normal work",
                ],
                remedy="Drain the node; reset all GPUs and NVSwitches together, reboot if that fails."
                if fatal
                else "Warning only: watch for repetition and for a fatal SXid. The node stays in service.",
                culprits=Culprits(devices=(Device(node, name),)),
                confidence=0.9,
            )
        )
    return claims


def _fabric(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    nothing = [f for f in facts if f.name == "nothing_to_do"]
    stopped = [f for f in facts if f.name == "fabric_exit"]
    if nothing:
        code = next((f.code for f in stopped if f.code is not None), None)
        claims.append(
            claim(
                Order.NOTE,
                Kind.CONFIGURATION,
                Severity.P3,
                f"the fabric manager{on_node(nothing[0].node)} stopped{'' if code is None else f' with exit code {code}'} because it found no NVSwitch (NV_WARN_NOTHING_TO_DO)",
                [*nothing, *stopped],
                evidence=[
                    "on a machine without NVSwitch the service is not required: this is information, no fault",
                    "if the node type has NVSwitches (HGX, DGX), the same text means that the switches are missing: critical then",
                ],
                remedy="Without NVSwitch: disable the unit (systemctl disable --now nvidia-fabricmanager). With NVSwitch (HGX, DGX): check lspci for the switches first.",
                steps=(
                    NextStep(
                        "lspci -d 10de: | grep -i -e bridge -e nvswitch", "whether the machine has NVSwitches"
                    ),
                ),
            )
        )
    elif stopped:
        claims.append(claim(Order.HOST, Kind.CONFIGURATION, Severity.P1, f"the fabric manager{on_node(stopped[0].node)} failed: NVLink over NVSwitch does not work without it", stopped,
                            evidence=[*(f.text[:200] for f in facts if f.name == "fabric_version"), stopped[0].text[:200]][:3], remedy="Read its log (/var/log/fabricmanager.log); its version must equal the driver's; restart it, then reset the GPUs."))  # fmt: skip
    wrong = [f for f in facts if f.name == "fabric_error"]
    if wrong:
        claims.append(claim(Order.HOST, Kind.HARDWARE, Severity.P2, f"the fabric manager reports {plural(len(wrong), 'error')}{on_node(wrong[0].node)}", wrong, evidence=[f.text[:200] for f in wrong[:3]], remedy="Look for SXid and Xid lines at the same time; restart the fabric manager and reset the GPUs at the end of the job."))  # fmt: skip
    peermem = [f for f in facts if f.name == "peermem"]
    if peermem:
        claims.append(
            claim(
                Order.NOTE,
                Kind.SOFTWARE,
                Severity.INFO,
                f'notice: {plural(len(peermem), "record")} of nvidia-peermem "detected invalid context": the usual after-effect of a process that ended while its memory was registered for RDMA',
                peermem,
                evidence=[
                    "informational (tracked, not fatal): look for the job that ended then; no action on the machine"
                ],
                remedy="Look which job ended at that time and why; nothing is to be done on the machine.",
            )
        )
    return claims
