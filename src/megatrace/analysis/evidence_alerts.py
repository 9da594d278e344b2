"""Alerts and metrics of a monitoring system: what fires, about whom, and what the numbers of exporters say.

An alert is somebody's rule: it is repeated here with what can be told of it. One about an address that is this machine
for everybody (127.0.0.1, localhost) names no node, so nothing may act on it. A word of severity that nobody knows
counts as the highest.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, on_node, plural
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.model.xid import xid

BLANK = 2.0**31 - 17
"""DCGM's values for "not supported" and "no data" begin here (INT32 and INT64 blanks)."""
HOT = 90
"""Degrees of the chip from which data-centre GPUs throttle soon."""
HOT_MEMORY = 100
"""Degrees of the memory, which is rated higher than the chip."""
_SEVERITIES = {
    "critical": Severity.P1, "page": Severity.P1, "fatal": Severity.P1, "emergency": Severity.P1, "disaster": Severity.P1, "high": Severity.P1, "p0": Severity.P0, "p1": Severity.P1,
    "error": Severity.P2, "major": Severity.P2, "medium": Severity.P2, "average": Severity.P2, "warning": Severity.P2, "warn": Severity.P2, "p2": Severity.P2,
    "minor": Severity.P3, "low": Severity.P3, "info": Severity.P3, "information": Severity.P3, "none": Severity.P3, "p3": Severity.P3,
}  # fmt: skip
_USUAL = ("critical", "warning", "info", "none", "page", "error", "high", "medium", "low", "major", "minor")
_LOOPBACK = re.compile(r"^(?:127\.\d+\.\d+\.\d+|localhost|\[?::1\]?|0\.0\.0\.0)(?::\d+)?$")
_SERVICE = re.compile(
    r"api|request|http|latency|query|queue|replica|deployment|ingress|watchdog$", re.IGNORECASE
)
_THROTTLE = {0x8: "HW slowdown", 0x20: "SW thermal", 0x40: "HW thermal", 0x80: "HW power brake"}


def judge_alerts(facts: Sequence[LogFact]) -> list[Claim]:
    """All claims about alerts and metrics."""
    claims = [item for fact in facts if fact.kind is FactKind.ALERT for item in [_alert(fact)]]
    metrics = [f for f in facts if f.kind is FactKind.METRIC]
    reads = [f for f in facts if f.kind is FactKind.LINES and f.word("shape").startswith("exposition")]
    return claims + (_metrics(metrics) if metrics or reads else [])


# ---- alerts


def _alert(fact: LogFact) -> Claim:
    instance, word = fact.word("instance"), fact.word("severity")
    firing = fact.word("state") == "firing"
    severity = _SEVERITIES.get(word.lower(), Severity.P1) if word else Severity.P2
    loop = bool(_LOOPBACK.match(instance))
    service = bool(_SERVICE.search(fact.name)) and "node" not in fact.name.lower() and not fact.word("node")
    node = None if loop or service or not instance else re.sub(r":\d+$", "", instance)
    node = fact.word("node") or node
    evidence = [fact.word("why")]
    if word and word.lower() not in _USUAL:
        evidence.append(
            f'severity "{word}" is a word that is not known: treated as the highest'
            if word.lower() not in _SEVERITIES or word.lower() == "emergency"
            else f'severity "{word}"'
        )
    elif word:
        evidence.append(f'severity "{word}"')
    if fact.word("summary"):
        evidence.append(f'"{fact.word("summary")}"')
    evidence.append(
        f"key for counting it once: fingerprint {fact.word('key')}"
        if fact.word("key")
        else "the fingerprint is absent: it is counted once by its labels"
    )
    evidence += _times(fact, firing)
    if (fact.number("receivers") or 0) > 1:
        evidence.append(f"one alert, though it goes to {int(fact.number('receivers') or 0)} receivers")
    no = []
    if loop:
        no.append(f"no action on a node: {instance} is a loopback address and cannot be mapped to a node")
    if service:
        no.append("no action on a node: the alert is about a service (an API), not about a machine")
    state = "ACTIVE" if firing else fact.word("state")
    since = f" since {_utc(fact.time)}" if fact.time is not None and fact.time > 0 else ""
    where = f" on {node}" if node else f" (instance {instance})" if instance else ""
    if not firing:
        severity = Severity.INFO
    elif service or (loop and severity > Severity.P1):
        severity = Severity.P3
    return claim(
        Order.NOTE if severity > Severity.P2 else Order.HOST, Kind.SOFTWARE if service or loop else Kind.HARDWARE, severity, f"1 alert {state}: {fact.name}{where}{since}", [fact] if fact.time and fact.time > 0 else [],
        evidence=evidence, no=no, culprits=Culprits(nodes=(node,) if node else ()), confidence=0.7, ambiguous=False,
        remedy="Record it; a person decides: no automatic action." if loop or service or not node else "Look at that machine: whether it answers (ping, BMC), its kernel log, its GPUs." if firing else "Nothing to do.",
    )  # fmt: skip


def _utc(time: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=time // 1_000_000_000)
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _times(fact: LogFact, firing: bool) -> list[str]:
    words = []
    ends, updated = fact.number("ends"), fact.number("updated")
    if firing and ends is not None and updated is not None and ends > updated:
        words.append(
            "endsAt lies in the near future of updatedAt: a deadline for the next message, no resolution"
        )
    if (
        updated is not None
        and re.search(r"[+-]\d\d:\d\d$", fact.word("updated_text"))
        and not fact.word("updated_text").endswith("+00:00")
    ):
        words.append(
            f"updatedAt is written in another zone ({fact.word('updated_text')[-6:]}): {_utc(int(updated))}"
        )
    return words


# ---- metrics


def _metrics(facts: Sequence[LogFact]) -> list[Claim]:
    claims: list[Claim] = []
    by: dict[str, list[LogFact]] = defaultdict(list)
    for fact in facts:
        by[fact.name].append(fact)
    blank = [f for f in facts if f.name.startswith("DCGM_") and (f.number("value") or 0) >= BLANK]
    real = (
        [f for f in facts if f not in blank and not math.isnan(f.number("value") or 0.0)]
        if len(facts) < 20_000
        else [f for f in facts if (f.number("value") or 0) < BLANK]
    )
    claims += _dcgm(real) + _smi(real) + _nodes(real)
    notes = _what(facts, blank, by)
    if not [c for c in claims if c.finding.severity <= Severity.P3]:
        claims.append(
            claim(
                Order.NOTE,
                Kind.HARDWARE,
                Severity.INFO,
                f"no alert from the metrics: {notes[0]}",
                facts[:1],
                evidence=notes[1:],
            )
        )
    elif claims:
        claims.append(
            claim(Order.NOTE, Kind.HARDWARE, Severity.INFO, notes[0], facts[:1], evidence=notes[1:])
        )
    return claims


def _what(facts: Sequence[LogFact], blank: Sequence[LogFact], by: dict[str, list[LogFact]]) -> list[str]:
    """What was looked at: which exporters, which GPUs, what is not supported."""
    dcgm = [f for f in facts if f.name.startswith("DCGM_")]
    uuids = {f.word("UUID") or f.word("uuid") for f in facts} - {""}
    notes = [f"{plural(len(uuids), 'GPU')} by UUID" if uuids else "no GPU in the labels"]
    notes[0] += "" if dcgm else "; no DCGM data (no DCGM_FI metric is present)"
    xids = by.get("DCGM_FI_DEV_XID_ERRORS", [])
    if xids and not any(f.number("value") for f in xids):
        notes.append("XID gauge is 0 on all: no Xid")
    instances = {(f.word("UUID"), f.word("GPU_I_ID")) for f in facts if f.word("GPU_I_ID")}
    if instances:
        cards = len({uuid for uuid, _ in instances})
        notes.append(
            f"MIG: a series is one instance, identified by (UUID, GPU_I_ID): {len(instances)} instances on {plural(cards, 'GPU')}"
        )
    shown = list({f.name: f for f in blank}.values())[:6]
    notes += [_blank(fact) for fact in shown]
    if any(set(uuid.replace("-", "").lower().removeprefix("gpu")) <= {"0"} for uuid in uuids):
        notes.append("the UUID is masked (zeros): GPUs cannot be told apart by it")
    return notes


def _blank(fact: LogFact) -> str:
    raw = fact.word("raw")
    return f'{fact.name} of GPU {fact.device or "?"} is {raw}: DCGM\'s blank value, "not supported", and no reading'


def _gpu(fact: LogFact) -> str:
    return f"GPU {fact.word('gpu') or fact.device or '?'}{on_node(fact.node)}"


_ROWS: tuple[tuple[str, float, Kind, Severity, str, str], ...] = (
    (
        r"DCGM_FI_DEV_ECC_DBE_VOL_(?:TOTAL|DEV)$",
        1,
        Kind.HARDWARE,
        Severity.P1,
        "{n:.0f} uncorrectable memory errors",
        "Drain the node and reset the GPU; replace it if they come back.",
    ),
    (
        r"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS$",
        1,
        Kind.HARDWARE,
        Severity.P3,
        "{n:.0f} rows remapped after uncorrectable errors",
        "Count them; replace the GPU when a remap fails.",
    ),
    (
        r"DCGM_FI_DEV_ROW_REMAP_FAILURE$",
        1,
        Kind.HARDWARE,
        Severity.P0,
        "a row could not be remapped",
        "Drain the node and open a replacement case (RMA).",
    ),
    (
        r"DCGM_FI_DEV_ROW_REMAP_PENDING$",
        1,
        Kind.HARDWARE,
        Severity.P3,
        "a row remap is pending",
        "Reset the GPU when the job has ended.",
    ),
    (r"DCGM_FI_DEV_GPU_TEMP$", HOT, Kind.HARDWARE, Severity.P2, "{n:.0f} °C", "Check cooling of that node."),
    (
        r"DCGM_FI_DEV_MEMORY_TEMP$",
        HOT_MEMORY,
        Kind.HARDWARE,
        Severity.P2,
        "memory at {n:.0f} °C",
        "Check cooling of that node.",
    ),
    (
        r"DCGM_FI_DEV_NVLINK_\w*ERROR",
        1,
        Kind.HARDWARE,
        Severity.P3,
        "an NVLink error counter is {n:.0f}",
        "A counter: what matters is whether it grows.",
    ),
)
"""Metrics of DCGM: name, value from which it counts, what it then means."""


def _dcgm(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for fact in facts:
        number = fact.number("value") or 0.0
        who = Culprits(devices=(Device(fact.node, f"GPU {fact.word('gpu') or fact.device or '?'}"),))
        if fact.name == "DCGM_FI_DEV_XID_ERRORS" and number:
            claims.append(_last_xid(fact, int(number), who))
        elif re.match(r"DCGM_FI_DEV_CLOCKS?_(?:THROTTLE|EVENT)_REASONS$", fact.name) and number:
            active = [name for bit, name in _THROTTLE.items() if int(number) & bit]
            if active:
                claims.append(
                    claim(
                        Order.HARDWARE,
                        Kind.SLOW_COMPUTE,
                        Severity.P1,
                        f"{_gpu(fact)} is throttled: {listed(active)}",
                        [],
                        remedy="Check cooling and power of that node.",
                        culprits=who,
                    )
                )
        else:
            row = next((row for row in _ROWS if re.match(row[0], fact.name)), None)
            if row is not None and row[1] <= number < BLANK:
                _, _, kind, severity, text, remedy = row
                order = Order.HARDWARE if severity <= Severity.P2 else Order.NOTE
                claims.append(
                    claim(
                        order,
                        kind,
                        severity,
                        f"{_gpu(fact)}: {text.format(n=number)} ({fact.name})",
                        [],
                        remedy=remedy,
                        culprits=who,
                    )
                )
    return claims[:200]


def _last_xid(fact: LogFact, code: int, who: Culprits) -> Claim:
    row = xid(code)
    hardware = row.blame.value == "hardware"
    return claim(
        Order.HARDWARE if row.severity <= Severity.P2 else Order.NOTE, Kind.HARDWARE if hardware else Kind.SOFTWARE, row.severity, f"{_gpu(fact)}: the last Xid is {code}: {row.meaning}", [],
        evidence=["the gauge holds the last Xid since the exporter started: dmesg says when"], remedy=f"{row.action.value[0].upper()}{row.action.value[1:]}.", culprits=who, confidence=0.8,
        steps=(NextStep("dmesg -T | grep -i xid", "when, and which others"),),
    )  # fmt: skip


def _smi(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for fact in facts:
        number = fact.number("value") or 0.0
        if not number or not fact.name.startswith("nvidia_smi_"):
            continue
        low = fact.name
        if re.search(
            r"clocks_(?:event|throttle)_reasons_(?:hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown)$",
            low,
        ):
            claims.append(
                claim(
                    Order.HARDWARE,
                    Kind.SLOW_COMPUTE,
                    Severity.P1,
                    f"{_gpu(fact)} is throttled: {low.rpartition('reasons_')[2]}",
                    [],
                    remedy="Check cooling and power of that node.",
                )
            )
        elif re.search(r"ecc_errors_uncorrected_volatile_(?:total|dram|sram)$", low) or low.endswith(
            "remapped_rows_failure"
        ):
            claims.append(
                claim(
                    Order.HARDWARE,
                    Kind.HARDWARE,
                    Severity.P1,
                    f"{_gpu(fact)}: {low.removeprefix('nvidia_smi_')} = {number:.0f}",
                    [],
                    remedy="Drain the node and reset the GPU; replace it if it comes back.",
                )
            )
        elif re.search(r"temperature_gpu$", low) and HOT <= number < 200:
            claims.append(
                claim(
                    Order.HARDWARE,
                    Kind.HARDWARE,
                    Severity.P2,
                    f"{_gpu(fact)}: {number:.0f} °C",
                    [],
                    remedy="Check cooling of that node.",
                )
            )
    return claims[:200]


def _nodes(facts: Sequence[LogFact]) -> list[Claim]:
    claims = []
    down = [f for f in facts if f.name == "up" and f.number("value") == 0]
    if down:
        who = listed([f.node or "?" for f in down], 6)
        claims.append(
            claim(
                Order.NOTE,
                Kind.SOFTWARE,
                Severity.P2,
                f"{plural(len(down), 'target')} cannot be scraped: {who}",
                [],
                evidence=["the exporter or its machine is down: the metric does not say which"],
                remedy="Ping the machine; restart the exporter if it answers.",
            )
        )
    edac = [f for f in facts if f.name.startswith("node_edac_uncorrectable") and f.number("value")]
    if edac:
        claims.append(
            claim(
                Order.HARDWARE,
                Kind.HARDWARE,
                Severity.P1,
                f"{on_node(edac[0].node).strip() or 'a node'}: uncorrectable host memory errors",
                [],
                remedy="Drain the node and replace the DIMM.",
            )
        )
    ports = [f for f in facts if f.name == "node_infiniband_state_id" and (f.number("value") or 4) != 4]
    for fact in ports[:20]:
        port = fact.word("port") or "1"
        claims.append(
            claim(
                Order.HARDWARE,
                Kind.HARDWARE,
                Severity.P1,
                f"{fact.word('device') or fact.device} port {port}{on_node(fact.node)} is not active",
                [],
                remedy="Check cable, optic and switch port.",
            )
        )
    return claims
