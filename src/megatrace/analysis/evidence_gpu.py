"""GPU errors in kernel logs: one incident per node and minute, its first cause, its remedy by the Xid table.

The driver reports one fault several times: on the GPU that has it, on peers behind a link, and again when it
cleans up the processes. Codes that only follow (``model.xid.SYMPATHETIC``) make no finding beside their
cause. Of several codes on one GPU the one that damages hardware decides; among those of applications the
earliest.

A code says what the driver saw, by number; the text beside it may be missing or wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from megatrace.analysis.evidence_claim import Claim, Order, apart, claim, listed, on_node, plural, span, times
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.model.xid import FOLLOWS, NVLINK_XIDS, SYMPATHETIC, XIDS, Action, Blame, Xid, xid
from megatrace.units import NS_PER_S, format_duration

TOGETHER = 60 * NS_PER_S
"""Xids of one node within this belong to one incident: what the catalogue calls sympathetic errors."""
SAME_GPU = 3_600 * NS_PER_S
"""The same GPU within an hour is the same fault: a GPU that is stuck is touched by whoever comes next."""
BEFORE = 600 * NS_PER_S
"""An error of the PCIe link this long before a GPU was lost is its forewarning."""
_SM = re.compile(r"\(GPC (\d+), TPC (\d+), SM (\d+)\)", re.ASCII)
_INDEX = re.compile(r"\bGPU ?(\d{1,2})\b", re.ASCII)
_LINK = re.compile(r"\b[Ll]ink:? ?(\d+)\b", re.ASCII)
_ACTION = re.compile(r"(?:recovery action changed.*to \w+ )\(([^)]*)\)", re.IGNORECASE)
_RESETS = frozenset({Action.RESET, Action.REBOOT, Action.POWER_CYCLE, Action.REPLACE})
_MASKED = re.compile(r"^[.*xX]*$")
_LATE = frozenset({8, 43, 45, 62, 63, 109, 137, 154, 171, 172})
"""Codes that a crash of the application, or another fault, brings on the same GPU; 63 books what 48, 94 or 95
met."""

LOST = (
    "Drain the node, power-cycle it cold, reseat the GPU; RMA if it falls off the bus again. "
    "Causes of this class: PCIe link or slot, power, heat."
)
"""What to do about a GPU that is gone from its bus."""


def address(device: str | None) -> str:
    """A PCI address as domain:bus:device, lower case, the domain in four digits; "" for none or a masked one.

    >>> address("00000000:10:1C.0"), address("0000:9b:00"), address("...")
    ('0000:10:1c', '0000:9b:00', '')
    """
    match = re.fullmatch(
        r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.[0-9a-fA-F])?", device or ""
    )
    if match is None:
        return ""
    return f"{int(match[1] or '0', 16):04x}:{int(match[2], 16):02x}:{int(match[3], 16):02x}"


def judge_gpus(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about GPUs from the Xids in kernel logs."""
    incidents = _incidents([fact for fact in facts if fact.kind is FactKind.XID])
    return [_incident(incident, facts) for incident in incidents]


def _share(detail: str) -> str:
    """ " (printing 1 of every 30)", without what the driver says behind it."""
    match = re.search(r"printing \d+ of every \d+", detail, re.ASCII)
    return f" ({match[0]})" if match else ""


def _incidents(found: list[LogFact]) -> list[list[LogFact]]:
    """Xids that belong together: same node, and the same GPU or within a minute with a code that spreads."""
    groups: list[list[LogFact]] = []
    for fact in found:
        home = next(
            (
                group
                for group in reversed(groups)
                if any(_together(other, fact) for other in group[-50:])
                and not any(_rivals(other, fact) for other in group[-50:])
            ),
            None,
        )
        if home is None:
            groups.append([fact])
        else:
            home.append(fact)
    return groups


def _rivals(a: LogFact, b: LogFact) -> bool:
    """Codes on two GPUs of which neither brings the other about: two faults, whatever follows from both."""
    same = address(a.device) == address(b.device) or not (address(a.device) and address(b.device))
    return not same and not _spreads(a, b)


def _spreads(a: LogFact, b: LogFact) -> bool:
    return b.code in FOLLOWS.get(a.code or 0, ()) or a.code in FOLLOWS.get(b.code or 0, ())


def _together(a: LogFact, b: LogFact) -> bool:
    if a.node != b.node or (a.node is None and a.source != b.source):
        return False
    same = address(a.device) == address(b.device) or not (address(a.device) and address(b.device))
    gap = apart(a, b)
    if same:
        return gap is None or abs(gap) <= SAME_GPU
    return _spreads(a, b) and (gap is None or abs(gap) <= TOGETHER)


def _weight(fact: LogFact, codes: set[int]) -> tuple[int, int]:
    """The cause first: damage, then other codes by time, then codes that follow."""
    row = xid(fact.code or 0)
    late = fact.code in SYMPATHETIC or (fact.code in _LATE and bool(codes - _LATE))
    serious = row.blame is Blame.HARDWARE and row.severity is Severity.P0
    follows = any(
        fact.code in FOLLOWS.get(code, ()) and code not in FOLLOWS.get(fact.code or 0, ())
        for code in codes - {fact.code}
    )
    rung = (1 if follows else 0) if serious else 3 if late else 2
    return rung, fact.time or 0


def _incident(incident: list[LogFact], facts: Sequence[LogFact]) -> Claim:
    codes = {fact.code or 0 for fact in incident}
    root = min(incident, key=lambda fact: _weight(fact, codes))
    row = xid(root.code or 0)
    place = address(root.device)
    mine = [fact for fact in incident if address(fact.device) == place]
    name = _gpu_name(root, mine)
    action, obey = _remedy(row, incident)
    severity = row.severity
    if row.code == 45 and codes == {45}:
        severity = Severity.P3
    own = sum(1 for fact in mine if fact.code == row.code)
    shown = f"Xid {row.code}" + (f" ×{own}" if own > 1 else "")
    summary = f"{name}{on_node(root.node)}: {shown}: {row.meaning}"
    follow = sorted(codes - {row.code})
    if follow:
        summary += f"; {_followed(root, incident, follow)}"
    evidence = _evidence(root, row, incident, facts)
    no = []
    names = _names(incident)
    if len(names) > 1 and row.blame is not Blame.APPLICATION:
        no.append(
            f"not {listed(names)}: different processes met the same error; monitoring among them is a victim, not the cause"
        )
    if row.blame is Blame.APPLICATION:
        no.append("no hardware fault is shown: such codes usually come from a kernel of the application")
    elif row.blame is Blame.HARDWARE and severity <= Severity.P1:
        no.append("not the application: no program can cause this code")
    places = {address(fact.device) for fact in incident} - {""}
    if len(places) > 1:
        evidence.append(
            f"one incident on {plural(len(places), 'GPU')} ({listed(sorted(places))}): the others report their side of it"
        )
    both = {address(f.device) for f in incident if f.code == row.code and row.code in NVLINK_XIDS} - {
        "",
        place,
    }
    ends = (Device(root.node, name), *(Device(root.node, f"GPU {other}") for other in sorted(both)))
    if both:
        evidence.append(
            "the same code on several GPUs: two ends of one link; which end is sick cannot be told"
        )
    kind = Kind.SOFTWARE if row.blame in (Blame.APPLICATION, Blame.CONSEQUENCE) else Kind.HARDWARE
    order = Order.SOFTWARE if kind is Kind.SOFTWARE else Order.HARDWARE
    if row.action is Action.RESET_LATER and row.code == 63:
        severity, order = Severity.P3, Order.NOTE
    if severity > Severity.P2:
        order = Order.NOTE
    found = claim(
        order, kind, severity, summary, incident, evidence=evidence, no=no,
        remedy=_remedy_words(row, action, obey, incident), confidence=0.95 if row.code in XIDS else 0.6,
        culprits=Culprits(devices=ends, nodes=(root.node,) if root.node else ()),
        ambiguous=len(ends) > 1,
        steps=_steps(root, row),
    )  # fmt: skip
    # What crashed an application may have left the GPU in need of a reset.
    left = any(xid(fact.code or 0).action in _RESETS for fact in mine)
    return replace(found, action=Action.RESET_LATER if row.blame is Blame.APPLICATION and left else action)


def _gpu_name(root: LogFact, mine: Sequence[LogFact]) -> str:
    place = address(root.device)
    index = next((found[1] for fact in mine if (found := _INDEX.search(fact.word("detail")))), None)
    shown = f"GPU {place}" if place else "a GPU whose PCI address is masked in the log"
    if index is None:
        return shown
    return (
        f"{shown} (GPU {index} by the driver's text)"
        if place
        else f"GPU {index} (by the driver's text; its PCI address is masked in the log)"
    )


def _names(incident: Sequence[LogFact]) -> list[str]:
    names = [fact.word("process").strip("'\" ") for fact in incident]
    return list(dict.fromkeys(name for name in names if name and "unknown" not in name))


def _followed(root: LogFact, incident: Sequence[LogFact], follow: Sequence[int]) -> str:
    parts = []
    for code in follow:
        first = next(fact for fact in incident if fact.code == code)
        gap = apart(root, first)
        when = (
            ""
            if gap is None or abs(gap) < NS_PER_S
            else f" {format_duration(abs(gap))} {'later' if gap > 0 else 'earlier'}"
        )
        parts.append(f"Xid {code} ({xid(code).meaning}){when}")
    return (
        ("with " if all(apart(root, f) in (None, 0) for f in incident) else "then ")
        + listed(parts)
        + " in the same incident"
    )


def _evidence(root: LogFact, row: Xid, incident: Sequence[LogFact], facts: Sequence[LogFact]) -> list[str]:
    lines = Counter(fact.code for fact in incident)
    said = [
        f"Xid {code} {times(number)}{span([f for f in incident if f.code == code])}"
        for code, number in lines.items()
    ]
    evidence = [f"the kernel log has {listed(said)}"]
    evidence += [f'Xid {row.code}: "{root.word("detail")[:160].strip()}"'] if root.word("detail") else []
    names = _names(incident)
    if names:
        evidence.append(f"{'process' if len(names) == 1 else 'different processes hit it'}: {listed(names)}")
    units = [found.groups() for fact in incident if (found := _SM.search(fact.word("detail")))]
    if units:
        evidence.append(_unit_words(units))
    links = sorted({found[1] for fact in incident if (found := _LINK.search(fact.word("detail")))}, key=int)
    if links:
        evidence.append(
            f"NVLink {'link' if len(links) == 1 else 'links'} {listed(links)} named by the driver's text"
        )
    if "nonfatal" in root.word("detail").lower().replace("-", ""):
        evidence.append("the driver's text calls it non-fatal")
    evidence += _contradiction(incident)
    if not address(root.device):
        evidence.append(
            f'the PCI address is not readable in the log ("{root.device or ""}"): the lines count all the same'
        )
    limited = [f for f in facts if f.name == "gpu_rate_limit" and f.source == root.source]
    if limited:
        evidence.append(
            f"the driver rate-limits these lines{_share(limited[0].word('detail'))}: the real count is higher than the lines"
        )
    return evidence + _pcie_before(root, facts)


def _unit_words(units: Sequence[tuple[str, ...]]) -> str:
    places = set(units)
    if len(places) == 1:
        gpc, tpc, sm = units[0]
        return (
            f"all on one SM (GPC {gpc} TPC {tpc} SM {sm}): if other jobs meet it on the same SM, suspect the hardware; "
            "a faulty kernel is seen on many"
        )
    return f"on {len(places)} different SMs, as a faulty kernel shows it; a defect of the GPU stays on one"


def _contradiction(incident: Sequence[LogFact]) -> list[str]:
    """Codes whose text is that of another one: the number is believed."""
    texts = []
    for code in dict.fromkeys(fact.code or 0 for fact in incident):
        row = xid(code)
        text = next((fact.word("detail") for fact in incident if fact.code == code), "")
        if not row.said or not text or re.search(row.said, text):
            continue
        other = next(
            (x for x in XIDS.values() if x.said and x.code != code and re.search(x.said, text)), None
        )
        if other is not None:
            texts.append(
                f"the text beside Xid {code} is that of Xid {other.code} and does not match: the code is judged by its number"
            )
    return texts


def _pcie_before(root: LogFact, facts: Sequence[LogFact]) -> list[str]:
    """Errors of the PCIe link that precede a lost GPU, with the port that leads to it."""
    if root.code not in (79, 167, 62, 119):
        return []
    child = [f for f in facts if f.name == "aer_child" and address(f.device) == address(root.device)]
    words = []
    for fact in facts:
        if fact.name not in ("aer_bit", "link_down") or fact.source != root.source:
            continue
        gap = apart(fact, root)
        if gap is None or not 0 <= gap <= BEFORE:
            continue
        port = fact.device or _port_of(fact, facts)
        tied = f" on port {port}" if port else ""
        lead = f", which leads to {address(root.device)}" if child and port else ""
        severe = _severity_of(fact, facts)
        fore = " as a forewarning" if "Correct" in severe else ""
        words.append(
            f"{severe.lower() + ' ' if severe else ''}PCIe error {fact.word('what')}{tied}{lead}, {format_duration(gap)} before the GPU was lost{fore}"
        )
    return list(dict.fromkeys(reversed(words)))[:6]


def _port_of(fact: LogFact, facts: Sequence[LogFact]) -> str:
    near = [f for f in facts if f.name == "aer" and f.source == fact.source and 0 <= fact.line - f.line < 6]
    return (near[-1].device or "") if near else ""


def _severity_of(fact: LogFact, facts: Sequence[LogFact]) -> str:
    near = [f for f in facts if f.name == "aer" and f.source == fact.source and 0 <= fact.line - f.line < 6]
    return near[-1].word("severity") if near else ""


def _remedy(row: Xid, incident: Sequence[LogFact]) -> tuple[Action, str]:
    """What to do, and the driver's own word on it (Xid 154), which overrides the table."""
    for fact in incident:
        if fact.code == 154:
            said = _ACTION.search(fact.word("detail"))
            word = (said[1] if said else fact.word("detail")).lower()
            for key, action in (
                ("reboot", Action.REBOOT),
                ("reset", Action.RESET),
                ("drain", Action.RESET),
                ("none", Action.OBSERVE),
            ):
                if key in word:
                    return action, said[1] if said else word
    return row.action, ""


def _remedy_words(row: Xid, action: Action, obey: str, incident: Sequence[LogFact]) -> str:
    text = f"{action.value[0].upper()}{action.value[1:]}."
    if obey:
        text += f" The driver itself asks for it (Xid 154: {obey})."
    if row.code == 79:
        text = LOST
    elif row.code in (119, 120):
        text += " The GSP does not come back by itself; with the same fault after a reset, update driver and firmware, then RMA."
    elif row.code == 63:
        text = "The running job is not affected: reset the GPU (or reboot) when the job ends, so that the spare row takes effect. No replacement, no need to stop the job."
    elif row.code == 48:
        text += " Together with Xid 63 or 64 the memory was remapped or could not be; replace the GPU if it comes back."
    elif row.code in NVLINK_XIDS:
        text = (
            "Check the NVLink path first: nvidia-smi nvlink -s and -e on this node, the fabric manager's log, SXids of the switches; "
            "then reset all GPUs of the node together. The same link twice: replace. The other hypothesis is a program that "
            "accesses a peer's memory through an invalid address (P2P window)."
        )
    elif row.code in (13, 31):
        text = (
            "Fix the application: run it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer. The same code on the same GPU under another "
            "application: test the GPU (dcgmi diag -r 3)."
        )
        if any(fact.code == 109 for fact in incident):
            text += " After a context switch timeout the GPU needs a reset before the next job."
    elif row.code not in XIDS:
        text = "Record it and ask the vendor: the code has no published meaning on current GPUs."
    return text


def _steps(root: LogFact, row: Xid) -> tuple[NextStep, ...]:
    if row.blame is Blame.NOTHING:
        return ()
    where = f"ssh {root.node} " if root.node else ""
    place = address(root.device)
    of = f" -i {place}.0" if place else ""
    query = f"nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT{of}"
    return (
        NextStep(
            f"{where}'{query}'" if where else query,
            "ECC counters, pending remaps and the recovery action of that GPU",
        ),
        NextStep(
            "nvidia-smi --query-gpu=index,pci.bus_id,uuid,serial --format=csv",
            "which GPU index has this PCI address",
        ),
    )
