"""``lspci -vv``: links that run slower or narrower than they can, devices that answer no more, ACS."""

from __future__ import annotations

import re
from dataclasses import replace

from megatrace.model.series import FactKind, LogFact, Value

_DEVICE = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.+)$")
_LINK = re.compile(
    r"Lnk(Cap|Sta):.*?Speed ([\d.]+)GT/s(?: \((\w+)\))?, Width x(\d+)(?: \((\w+)\))?", re.ASCII
)
_ACS = re.compile(r"ACSCtl:.*(?:SrcValid\+|ReqRedir\+)")
_ERRORS = re.compile(r"(DevSta|UESta|CESta):\s*(.*)")


def is_lspci(text: str) -> bool:
    """A first line of a device, and devices of the kinds that matter."""
    head = text[:20_000]
    return bool(re.search(_DEVICE.pattern, head, re.MULTILINE)) and bool(
        re.search(r"controller|bridge|LnkSta|NVIDIA|Mellanox", head)
    )


def read_lspci(text: str) -> list[LogFact]:
    """One PCIE fact a device."""
    facts: list[LogFact] = []
    fields: dict[str, Value] = {}
    for line in text.split("\n"):
        device = _DEVICE.match(line)
        if device is not None:
            facts = _closed(facts, fields)
            fields = {"what": device[2][:120]}
            if "(rev ff)" in line:
                fields["gone"] = "yes"
            facts.append(LogFact(FactKind.PCIE, line[:200], device=device[1], name="lspci"))
            continue
        if not facts:
            continue
        link = _LINK.search(line)
        if link is not None:
            when = link[1].lower()
            fields[f"speed_{when}"], fields[f"width_{when}"] = (
                float(link[2]) if link[2].count(".") < 2 and link[2].strip(".") else 0.0,
                int(link[4][:4]),
            )
            if link[5] == "downgraded":
                fields["narrow"] = "yes"
            if link[3] == "downgraded":
                fields["slow"] = "yes"
        if _ACS.search(line):
            fields["acs"] = "on"
        errors = _ERRORS.search(line)
        if (
            errors is not None
            and errors[1] == "UESta"
            and re.search(r"\b(?:DLP|SDES|TLP|FCP|CmpltTO|UnxCmplt|MalfTLP)\+", errors[2])
        ):
            fields["uncorrected"] = errors[2][:120]
    return _closed(facts, fields)


def _closed(facts: list[LogFact], fields: dict[str, Value]) -> list[LogFact]:
    if not facts:
        return facts
    return [*facts[:-1], replace(facts[-1], fields=tuple(fields.items()))]
