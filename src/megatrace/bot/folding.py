"""One fault, one finding: which finding follows from which, by a table.

Several checks see one fault: a GPU that fell off the bus is lost, has an Xid, and is missing on the bus. What
follows stays in the report as a note with its cause; nothing is dropped, so a wrong fold can be seen. Only
the pairs of the table are folded, and only on one device, or where the table says so within the machine (an
NVLink domain, a bus): a second dead GPU is a second finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from megatrace.model.check import CheckResult
from megatrace.model.finding import Evidence, Finding, Severity


@dataclass(frozen=True, slots=True)
class Fold:
    """``follower`` follows from ``root``; on the same device, or (``anywhere``) on any whose name begins with
    ``begin``."""

    root: str
    follower: str
    anywhere: bool = False
    begin: str = ""


FOLDS = (
    Fold("GPU-02", "GPU-05"),
    Fold("GPU-02", "GPU-01"),
    Fold("GPU-02", "PCI-01"),
    Fold("GPU-02", "PCI-02"),
    Fold("GPU-02", "NVL-01"),
    Fold("GPU-02", "PCI-04", anywhere=True, begin="10de:"),
    Fold("GPU-01", "PCI-04", anywhere=True, begin="10de:"),
    Fold("GPU-01", "CTR-03", anywhere=True, begin="/dev/nvidia"),
    Fold("GPU-05", "GPU-04"),
    Fold("GPU-05", "GPU-06"),
    Fold("GPU-09", "GPU-08"),
    Fold("GPU-09", "GPU-05"),
    Fold("NVL-05", "NVL-04", anywhere=True),
    Fold("NVL-05", "NVL-01", anywhere=True),
    Fold("NVL-06", "NVL-01", anywhere=True),
    Fold("NVL-06", "NVL-02", anywhere=True),
    Fold("NVL-01", "NVL-04"),
    Fold("IB-03", "PCI-04", anywhere=True, begin="15b3:"),
    Fold("IB-03", "CTR-03", anywhere=True, begin="/dev/infiniband"),
    Fold("IB-01", "IB-02"),
    Fold("IB-01", "IB-04"),
    Fold("IB-04", "IB-05"),
    Fold("DSK-01", "DSK-02"),
    Fold("DSK-02", "FS-03", anywhere=True),
)
"""Root first. A root that is itself folded still folds others: the chain is kept."""


def folded(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """The same results; what follows from another finding is a note (P3) with ``caused_by``, its cause has
    its words."""
    every = list(results)
    causes = {(result.check, finding.fingerprint): finding for result in every for finding in result.findings}
    told: dict[tuple[str, str], list[str]] = {}
    changed: dict[tuple[str, str], Finding] = {}
    for result in every:
        for finding in result.findings:
            root = _root(result.check, finding, causes)
            if root is None:
                continue
            told.setdefault(root, []).append(f"{result.check}: {finding.summary}")
            key = (result.check, finding.fingerprint)
            severity = max(finding.severity, Severity.P3)
            changed[key] = replace(finding, severity=severity, caused_by=(causes[root].fingerprint,))
    return tuple(_with(result, changed, told) for result in every)


def _root(check: str, finding: Finding, causes: dict[tuple[str, str], Finding]) -> tuple[str, str] | None:
    for fold in FOLDS:
        if fold.follower != check:
            continue
        for key, cause in causes.items():
            if key[0] == fold.root and cause.severity <= Severity.P2 and _related(fold, cause, finding):
                return key
    return None


def _related(fold: Fold, cause: Finding, finding: Finding) -> bool:
    mine, theirs = _devices(finding), _devices(cause)
    if fold.anywhere:
        if not fold.begin or any(name.startswith(fold.begin) for name in mine):
            return True
        # Of that sort by its key, at an address: then it may not be another one's.
        places = [name for name in theirs if name.count(":") == 2]
        return f":{fold.begin}" in finding.fingerprint and (not places or bool(set(mine) & set(places)))
    return bool(mine) and bool(set(mine) & set(theirs))


def _devices(finding: Finding) -> Sequence[str]:
    return [item.device for item in finding.culprits.devices if item.device]


def _with(
    result: CheckResult,
    changed: dict[tuple[str, str], Finding],
    told: dict[tuple[str, str], list[str]],
) -> CheckResult:
    findings = []
    for finding in result.findings:
        key = (result.check, finding.fingerprint)
        new = changed.get(key, finding)
        more = tuple(Evidence(f"seen as well: {text}") for text in told.get(key, ()))
        findings.append(replace(new, evidence=(*new.evidence, *more)))
    return replace(result, findings=tuple(findings))
