"""``smartctl`` as JSON (``-j``) and as text, ``nvme smart-log``: what a disk says of its own health."""

from __future__ import annotations

import json
import re
from typing import Any

from megatrace.model.series import FactKind, LogFact, Value

_TEXTS = {
    "spare": r"^\s*available[_ ]spare\s*:\s*(\d+)", "threshold": r"^\s*available[_ ]spare[_ ]threshold\s*:\s*(\d+)",
    "media_errors": r"^\s*(?:media and data integrity errors|media_errors)\s*:\s*([\d,]+)", "log_entries": r"^\s*(?:error information log entries|num_err_log_entries)\s*:\s*([\d,]+)",
    "used": r"^\s*percentage[_ ]used\s*:\s*(\d+)", "warning": r"^\s*critical[_ ]warning\s*:\s*(0x[0-9a-f]+|\d+)", "temperature": r"^\s*temperature\s*:\s*(\d+)",
}  # fmt: skip
_ATA = re.compile(r"^\s*(5|187|197|198) (\w+) .* (\d+)\s*$", re.MULTILINE)
_PASSED = re.compile(r"overall-health self-assessment test result: (\w+)|SMART Health Status: (\w+)")


def is_smart(text: str) -> bool:
    """smartctl's JSON or heading, or NVMe's SMART log."""
    head = text[:20_000]
    if head.lstrip()[:1] == "{":
        return '"smartctl"' in head or '"nvme_smart_health_information_log"' in head
    return "smartctl " in head[:400] or "SMART overall-health" in head or "Smart Log for NVME" in head


def read_smart(text: str) -> list[LogFact]:
    """One DISK_STATE fact. Raises ValueError for JSON that is cut."""
    if text.lstrip()[:1] == "{":
        return [_from_json(json.loads(text))]
    fields: list[tuple[str, Value]] = []
    for key, form in _TEXTS.items():
        match = re.search(form, text, re.IGNORECASE | re.MULTILINE)
        if match is not None:
            said = match[1].replace(",", "")
            fields.append((key, int(said, 16) if said.lower().startswith("0x") else int(said[:18])))
    passed = _PASSED.search(text)
    if passed is not None:
        fields.append(("passed", "yes" if (passed[1] or passed[2]) in ("PASSED", "OK") else "no"))
    fields += [(f"attribute {row[2]}", int(row[3][:18])) for row in _ATA.finditer(text)]
    device = re.search(r"(/dev/\w+)|NVME device:(\w+)", text)
    return [
        LogFact(
            FactKind.DISK_STATE,
            "",
            device=(device[1] or device[2]) if device else None,
            name="smart",
            fields=tuple(fields),
        )
    ]


def _from_json(data: Any) -> LogFact:
    if not isinstance(data, dict):
        raise ValueError("no object")
    log = data.get("nvme_smart_health_information_log")
    log = log if isinstance(log, dict) else {}
    fields: list[tuple[str, Value]] = []
    for key, name in (
        ("spare", "available_spare"), ("threshold", "available_spare_threshold"), ("media_errors", "media_errors"), ("log_entries", "num_err_log_entries"),
        ("used", "percentage_used"), ("warning", "critical_warning"), ("temperature", "temperature"),
    ):  # fmt: skip
        number = log.get(name)
        if isinstance(number, int | float) and not isinstance(number, bool):
            fields.append((key, number))
    status = data.get("smart_status")
    if isinstance(status, dict) and isinstance(status.get("passed"), bool):
        fields.append(("passed", "yes" if status["passed"] else "no"))
    table = data.get("ata_smart_attributes")
    rows = table.get("table") if isinstance(table, dict) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("id") in (5, 187, 197, 198):
            raw = row.get("raw")
            number = raw.get("value") if isinstance(raw, dict) else None
            if isinstance(number, int):
                fields.append((f"attribute {row.get('name')}", number))
    device = data.get("device")
    disk = device.get("name") if isinstance(device, dict) else None
    return LogFact(
        FactKind.DISK_STATE, "", device=str(disk) if disk else None, name="smart", fields=tuple(fields)
    )
