"""Many machines at one time, and what they say together: outliers, storms with one parent. Pure.

Numbers that checks measured are compared with the median of machines of the same description: no threshold
knows what a healthy machine of a type measures, but its peers do. One finding on many machines is one storm
with what these machines share, not many sick machines."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatrace.model.check import CheckResult, Inspection
from megatrace.model.finding import Finding, Severity
from megatrace.model.inventory import Inventory, Parent

LEAST_PEERS = 5
"""Machines that make a median worth something."""
FAR = 5.0
"""Robust standard deviations (1.4826 MAD) from the median: of 1,000 healthy machines none by chance."""
LEAST_SHARE = 0.05
"""Of the median that a difference must be in any case: machines that measure nearly the same have a tiny
MAD."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of one machine: its inspection, or why there is none."""

    node: str
    inspection: Inspection | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A machine that measures otherwise than its peers."""

    node: str
    name: str
    value: float
    median: float


@dataclass(frozen=True, slots=True)
class Storm:
    """One check that found something on several machines; ``parent`` what they share, None where nothing."""

    check: str
    nodes: tuple[str, ...]
    severity: Severity
    summary: str
    parent: Parent | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All machines at one time. ``single`` are the findings that are no storm, worst first."""

    asked: tuple[Asked, ...]
    storms: tuple[Storm, ...]
    single: tuple[tuple[str, CheckResult, Finding], ...]
    outliers: tuple[Outlier, ...]

    @property
    def silent(self) -> tuple[Asked, ...]:
        """Machines that gave no answer."""
        return tuple(item for item in self.asked if item.inspection is None)

    @property
    def exit_code(self) -> int:
        """10 a fault of P2 or worse on any machine, 11 a machine without an answer, 0 all well."""
        worst = [item.severity for item in self.storms] + [finding.severity for _, _, finding in self.single]
        if any(severity <= Severity.P2 for severity in worst):
            return 10
        return 11 if self.silent else 0


def together(asked: Iterable[Asked], inventory: Inventory | None = None) -> Fleet:
    """What the machines say as a fleet. Pure."""
    every = tuple(asked)
    seen = [item.inspection for item in every if item.inspection is not None]
    found = [
        (look.node, result, finding)
        for look in seen
        for result, finding, _ in look.troubles
        if not result.observed and not finding.caused_by
    ]
    storms, stormy = _storms(found, inventory or Inventory(), [look.node for look in seen])
    single = [item for item in found if (item[1].check, item[0]) not in stormy]
    single.sort(key=lambda item: (item[2].severity, item[0], item[1].check))
    return Fleet(every, storms, tuple(single), tuple(outliers(seen)))


def _storms(
    found: Sequence[tuple[str, CheckResult, Finding]], inventory: Inventory, looked_at: Sequence[str]
) -> tuple[tuple[Storm, ...], set[tuple[str, str]]]:
    nodes: dict[str, set[str]] = defaultdict(set)
    for node, result, _ in found:
        nodes[result.check].add(node)
    storms = []
    for check, hit in nodes.items():
        parent = inventory.common(hit, looked_at)
        # Most of the fleet with one finding is a storm without a parent: a template, a roll-out, a hall.
        if parent is None and len(hit) <= max(2, len(looked_at) // 2):
            continue
        findings = [finding for _, result, finding in found if result.check == check]
        worst = min(findings, key=lambda item: item.severity)
        storms.append(Storm(check, tuple(sorted(hit)), worst.severity, worst.summary, parent))
    stormy = {(storm.check, node) for storm in storms for node in storm.nodes}
    return tuple(sorted(storms, key=lambda item: (item.severity, item.check))), stormy


def outliers(inspections: Iterable[Inspection]) -> list[Outlier]:
    """Numbers that lie far from the median of their peers: machines of the same description."""
    values: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for look in inspections:
        for result in look.results:
            for name, value in result.measured.items():
                values[look.about, name][look.node] = value
    found = []
    for (_, name), by_node in sorted(values.items()):
        if len(by_node) < LEAST_PEERS:
            continue
        median = statistics.median(by_node.values())
        spread = 1.4826 * statistics.median(abs(value - median) for value in by_node.values())
        limit = max(FAR * spread, LEAST_SHARE * abs(median))
        found += [
            Outlier(node, name, value, median)
            for node, value in sorted(by_node.items())
            if abs(value - median) > limit > 0
        ]
    return found


def counted(fleet: Fleet) -> Counter[str]:
    """Machines by how they are: well, sick, silent."""
    sick = {node for node, _, _ in fleet.single} | {node for storm in fleet.storms for node in storm.nodes}
    return Counter(
        "silent" if item.inspection is None else "sick" if item.node in sick else "well"
        for item in fleet.asked
    )
