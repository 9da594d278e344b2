"""A machine's facts against a template: missing, extra, drift, unknown. Pure; knows no key but by its
family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from megatrace.bot.facts import Facts

LISTED = ("mounts", "kernel.cmdline", "module", "nccl.conf", "ib.firmware", "routing")
"""Families in which a key that the template does not name is worth saying, once it names any."""
NOT_FACTS = (
    "cpu.count",
    "cpu.numa_nodes",
    "ib.mtu",
    "memory.total_gib",
    "nccl.env.",
    "os.cmdline",
    "os.services",
)
"""Keys, or their beginnings, in families of facts that only tell a check what to expect."""


class Differs(Enum):
    """How a fact differs from the template."""

    MISSING = "missing"
    EXTRA = "extra"
    DRIFT = "drift"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Difference:
    """One key; ``expected`` None for an extra one, ``found`` None for a missing or unknown one."""

    key: str
    kind: Differs
    expected: object | None = None
    found: object | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.kind is Differs.MISSING:
            return f"{self.key}: missing, expected {shown(self.expected)}"
        if self.kind is Differs.EXTRA:
            return f"{self.key}: extra, {shown(self.found)}"
        if self.kind is Differs.UNKNOWN:
            return f"{self.key}: unknown ({self.reason}), expected {shown(self.expected)}"
        return f"{self.key}: {shown(self.found)}, expected {shown(self.expected)}"


def shown(value: object) -> str:
    """A value for the eye."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def compare(template: Mapping[str, object], facts: Facts) -> list[Difference]:
    """Every way in which a machine differs from its template, by key."""
    found: list[Difference] = []
    leaves = {key: value for key, value in template.items() if not isinstance(value, Mapping)}
    for key, expected in leaves.items():
        family = key.split(".")[0]
        if family not in facts.families or key.startswith(NOT_FACTS):
            continue
        if key in facts.known:
            if not same(expected, facts.known[key]):
                found.append(Difference(key, Differs.DRIFT, expected, facts.known[key]))
            continue
        reason = facts.unknown.get(family)
        if reason is not None:
            found.append(Difference(key, Differs.UNKNOWN, expected, reason=reason))
        else:
            found.append(Difference(key, Differs.MISSING, expected))
    for family in LISTED:
        if any(key.startswith(f"{family}.") for key in leaves):
            found += [
                Difference(key, Differs.EXTRA, found=value)
                for key, value in facts.known.items()
                if key.startswith(f"{family}.") and key not in leaves
            ]
    return sorted(found, key=lambda item: (item.kind.value, item.key))


def same(expected: object, found: object) -> bool:
    """Whether a value is what the template says: numbers by value, lists in any order, "*" anything."""
    if expected == "*":
        return True
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return sorted(map(str, expected)) == sorted(map(str, found))
    if isinstance(expected, bool) or isinstance(found, bool):
        return str(expected).lower() == str(found).lower()
    try:
        return float(str(expected)) == float(str(found))
    except ValueError:
        return str(expected) == str(found)
