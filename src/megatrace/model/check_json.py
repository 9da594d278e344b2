"""Results of checks as plain values and back: between a worker and its runner, an agent and its controller,
in files.

Field by field rather than by pickle: what comes from another process is data, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatrace.model.check import CheckResult, Outcome, Step
from megatrace.model.finding import (
    Culprits,
    Device,
    Endpoint,
    Evidence,
    Finding,
    Kind,
    Link,
    Severity,
    Status,
    Window,
)


def encoded(result: CheckResult) -> dict[str, Any]:
    """One result as JSON has it; unknown parts are null."""
    return {
        "check": result.check,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "seconds": result.seconds,
        "observed": result.observed,
        "measured": dict(result.measured),
        "findings": [
            finding_values(finding) | {"step": step.value}
            for finding, step in zip(result.findings, result.steps, strict=True)
        ],
    }


def finding_values(finding: Finding) -> dict[str, Any]:
    """A finding of a machine: the parts of ``Finding`` that concern one."""
    window = finding.window
    return {
        "fingerprint": finding.fingerprint,
        "kind": finding.kind.value,
        "severity": finding.severity.name,
        "status": finding.status.value,
        "summary": finding.summary,
        "confidence": finding.confidence,
        "ambiguous": finding.ambiguous,
        "culprits": {
            "nodes": list(finding.culprits.nodes),
            "devices": [{"node": item.node, "device": item.device} for item in finding.culprits.devices],
            "links": [{"src": _end(item.src), "dst": _end(item.dst)} for item in finding.culprits.links],
        },
        "since_ns": None if window is None else str(window.start),
        "until_ns": None if window is None or window.end is None else str(window.end),
        "evidence": [
            {"text": item.text, "value": item.value, "unit": item.unit} for item in finding.evidence
        ],
        "exonerated": list(finding.exonerated),
        "caused_by": list(finding.caused_by),
        "remedy": finding.remedy,
    }


def decoded(values: Mapping[str, Any]) -> CheckResult:
    """Raises KeyError, TypeError or ValueError for what is no result."""
    findings = list(values["findings"])
    return CheckResult(
        check=str(values["check"]),
        outcome=Outcome(values["outcome"]),
        reason=str(values["reason"]),
        findings=tuple(_finding(item) for item in findings),
        steps=tuple(Step(item["step"]) for item in findings),
        seconds=float(values["seconds"]),
        observed=bool(values["observed"]),
        measured={str(key): float(value) for key, value in values["measured"].items()},
    )


def _finding(values: Mapping[str, Any]) -> Finding:
    who = values["culprits"]
    since, until = values["since_ns"], values["until_ns"]
    return Finding(
        kind=Kind(values["kind"]),
        severity=Severity[values["severity"]],
        summary=str(values["summary"]),
        status=Status(values["status"]),
        confidence=float(values["confidence"]),
        ambiguous=bool(values["ambiguous"]),
        culprits=Culprits(
            nodes=tuple(map(str, who["nodes"])),
            devices=tuple(Device(item["node"], item["device"]) for item in who["devices"]),
            links=tuple(Link(_endpoint(item["src"]), _endpoint(item["dst"])) for item in who["links"]),
        ),
        window=None if since is None else Window(int(since), None if until is None else int(until)),
        evidence=tuple(
            Evidence(str(item["text"]), item["value"], item["unit"]) for item in values["evidence"]
        ),
        exonerated=tuple(map(str, values["exonerated"])),
        caused_by=tuple(map(str, values["caused_by"])),
        remedy=str(values["remedy"]),
        fingerprint=str(values["fingerprint"]),
    )


def _end(end: Endpoint) -> dict[str, Any]:
    return {"rank": end.rank, "node": end.node, "device": end.device, "port": end.port}


def _endpoint(values: Mapping[str, Any]) -> Endpoint:
    return Endpoint(values["rank"], values["node"], values["device"], values["port"])
