"""Links between GPUs from outputs of tools: NVLink states, PCIe width and speed, the topology matrix.

A link has two ends, and a tool shows one: the end that is dark need not be the one that is sick.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, plural
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import LogFact
from megatrace.units import format_number

# ---- NVLink


def judge_nvlinks(gpus: Sequence[LogFact]) -> list[Claim]:
    """States and counters of NVLinks."""
    claims = []
    dark = [
        g
        for g in gpus
        if g.get("all_inactive") is not None
        or (_states(g) and all(said == "inactive" for _, said in _states(g)))
    ]
    if dark:
        claims.append(
            claim(
                Order.HARDWARE,
                Kind.HARDWARE,
                Severity.P1,
                f"{listed(str(g.device) for g in dark)}: all NVLinks are inactive",
                dark,
                evidence=[f'"{g.word("all_inactive")}"' for g in dark if g.get("all_inactive") is not None]
                + [f"only {listed(str(g.device) for g in gpus)} in the file: nothing is said of others"],
                remedy="Check the fabric manager, the NVSwitches (SXid) and dmesg for Xid 74; a GPU without its links trains over PCIe: critical for training.",
                culprits=Culprits(devices=tuple(Device(None, g.device) for g in dark)),
                confidence=0.9,
                steps=(
                    NextStep(
                        "systemctl status nvidia-fabricmanager; dmesg -T | grep -i -e xid -e nvswitch",
                        "why the links do not come up",
                    ),
                ),
            )
        )
    partly = [(g, [name for name, said in _states(g) if said == "inactive"]) for g in gpus if g not in dark]
    partly = [(g, names) for g, names in partly if names]
    if partly:
        claims.append(_inactive(partly, gpus))
    errors = [(g, [(k[6:], v) for k, v in g.fields if k.startswith("error ")]) for g in gpus]
    counted = [(g, found) for g, found in errors if found]
    if counted:
        text = "; ".join(
            f"{g.device}: {listed(f'link {name} {count}' for name, count in found)}" for g, found in counted
        )
        claims.append(
            claim(
                Order.NOTE,
                Kind.HARDWARE,
                Severity.P3,
                f"NVLink error counters are not 0: {text[:300]}",
                [g for g, _ in counted],
                remedy="Counters since the driver was loaded: read them again after a while; a link whose replay or recovery errors grow needs attention.",
            )
        )
    if gpus and not claims:
        rates = sorted({said for g in gpus for _, said in _states(g) if isinstance(said, float)})
        claims.append(
            claim(
                Order.NOTE,
                Kind.HARDWARE,
                Severity.INFO,
                f"all NVLinks of {plural(len(gpus), 'GPU')} are active ({listed(f'{format_number(rate, 5)} GB/s' for rate in rates)})",
                gpus,
            )
        )
    return claims


def _states(gpu: LogFact) -> list[tuple[str, object]]:
    return [(key[5:], said) for key, said in gpu.fields if key.startswith("link ")]


def _inactive(partly: Sequence[tuple[LogFact, list[str]]], gpus: Sequence[LogFact]) -> Claim:
    ends = sum(len(names) for _, names in partly)
    said = "; ".join(
        f"GPU {g.code} {'link' if len(names) == 1 else 'links'} {','.join(names)}" for g, names in partly
    )
    others = [g for g in gpus if g not in [p for p, _ in partly]]
    rates = sorted(
        {format_number(rate, 5) for g in others for _, rate in _states(g) if isinstance(rate, float)}
    )
    evidence = [f"inactive: {said}"]
    if others:
        evidence.append(
            f"the other GPUs ({listed(g.code for g in others)}) have all {len(_states(others[0]))}/{len(_states(others[0]))} links at {listed(rates)} GB/s"
        )
    pairs = (
        f"{ends} link ends = {ends // 2} physical link{'s' if ends != 2 else ''}"
        if ends % 2 == 0
        else f"{ends} link ends, an odd number: another end is not in this output"
    )
    evidence.append(f"link ends come in pairs: {pairs}, so the fault may sit at either end")
    return claim(
        Order.HARDWARE, Kind.HARDWARE, Severity.P1, f"{ends} NVLink ends are inactive on {plural(len(partly), 'GPU')}: {said}", [g for g, _ in partly], evidence=evidence,
        no=["no single GPU can be named as the cause: a link has two ends", "not all GPUs are concerned" if others else "every GPU in the output is concerned"], ambiguous=True, confidence=0.7,
        remedy="Critical for training: NCCL falls back to slower paths. Look for Xid 74 in dmesg, reseat the bridge or baseboard, reset all GPUs together.",
        steps=(NextStep("nvidia-smi nvlink -e; nvidia-smi topo -m; dmesg -T | grep -i xid", "error counters, which GPU is at the other end, what the driver says"),),
    )  # fmt: skip


# ---- PCIe and topology


def judge_pci(devices: Sequence[LogFact]) -> list[Claim]:
    """Links of PCIe devices."""
    claims = []
    for fact in devices:
        what = f"{fact.device} ({fact.word('what')[:60]})"
        mine = any(
            word in fact.word("what")
            for word in ("NVIDIA", "Mellanox", "3D controller", "Infiniband", "NVMe", "Non-Volatile")
        )
        if fact.get("gone") is not None:
            claims.append(
                claim(
                    Order.HARDWARE,
                    Kind.HARDWARE,
                    Severity.P0,
                    f"PCIe {what} answers no more (rev ff): it has fallen off the bus",
                    [fact],
                    remedy="Drain the node, power-cycle it; reseat or replace the card.",
                    culprits=Culprits(devices=(Device(None, fact.device),)),
                    confidence=0.9,
                )
            )
        elif (
            mine
            and fact.number("width_sta") is not None
            and (fact.number("width_cap") or 0) > (fact.number("width_sta") or 0)
        ):
            claims.append(
                claim(
                    Order.HARDWARE,
                    Kind.HARDWARE,
                    Severity.P2,
                    f"PCIe {what} runs with {fact.number('width_sta'):.0f} of {fact.number('width_cap'):.0f} lanes",
                    [fact],
                    remedy="Reseat the card or its riser; a slot may be narrower by design.",
                    culprits=Culprits(devices=(Device(None, fact.device),)),
                    confidence=0.8,
                )
            )
        elif (
            mine
            and fact.number("speed_sta") is not None
            and (fact.number("speed_cap") or 0) > (fact.number("speed_sta") or 0)
        ):
            claims.append(
                claim(
                    Order.NOTE,
                    Kind.HARDWARE,
                    Severity.P3,
                    f"PCIe {what} runs at {fact.number('speed_sta'):g} of {fact.number('speed_cap'):g} GT/s",
                    [fact],
                    remedy="Normal for a GPU that idles (it lowers the speed); look again under load. A NIC or a GPU under load should run at full speed.",
                )
            )
    acs = [f for f in devices if f.get("acs") is not None]
    if acs:
        claims.append(
            claim(
                Order.NOTE,
                Kind.CONFIGURATION,
                Severity.P3,
                f"ACS is on for {plural(len(acs), 'bridge')}: transfers between GPUs go through the processor",
                acs,
                evidence=[f"{f.device} {f.word('what')[:60]}" for f in acs[:4]],
                remedy="For GPU-to-GPU and GPUDirect traffic switch ACS off on PCIe switches (BIOS or setpci).",
            )
        )
    if devices and not claims:
        claims.append(
            claim(
                Order.NOTE,
                Kind.HARDWARE,
                Severity.INFO,
                f"{plural(len(devices), 'PCIe device')} looked at: no link is narrower than it can be",
                devices[:1],
            )
        )
    return claims


def judge_topology(found: Sequence[LogFact]) -> list[Claim]:
    """Who is near whom; a matrix shows no fault."""
    claims = []
    for fact in found:
        pairs = {key: str(said) for key, said in fact.fields if "-" in key}
        gpus = int(fact.number("gpus") or 0)
        linked = [key for key, said in pairs.items() if said.startswith("NV")]
        near = [f"{key} ({said})" for key, said in pairs.items() if said in ("PIX", "PXB")]
        far = sorted({said for said in pairs.values() if said in ("SYS", "NODE", "PHB", "SOC")})
        text = f"{gpus} GPUs, " + (
            f"NVLink between {len(linked)} of {len(pairs)} pairs" if linked else "no NVLink"
        )
        evidence = [f"{text}; P2P-capable pairs over PCIe: {listed(near)}"]
        if far:
            evidence.append(
                f"the rest is {listed(far)}" + (": across sockets" if "SYS" in far or "SOC" in far else "")
            )
        if near and not linked:
            evidence.append(
                "if hangs occur on the PXB or PIX pairs only: check ACS on the PCIe switches and the IOMMU (VT-d); NCCL_P2P_DISABLE=1 as a test"
            )
        claims.append(
            claim(
                Order.NOTE,
                Kind.CONFIGURATION,
                Severity.INFO,
                f"the topology matrix looks healthy ({text}): no fault can be claimed from it alone",
                [fact],
                evidence=evidence,
                weak=True,
                no=["no broken GPU: a matrix shows wiring, not health"],
                remedy="Compare with what the machine type should have; test P2P bandwidth between pairs.",
                steps=(
                    NextStep(
                        "NCCL_P2P_DISABLE=1 …",
                        "if the hang goes away: ACS or IOMMU; a slow workaround, no cure",
                    ),
                    NextStep(
                        "sudo lspci -vvv | grep -i acsctl; dmesg | grep -i -e iommu -e dmar",
                        "whether ACS or the IOMMU is on",
                    ),
                ),
            )
        )
    return claims
