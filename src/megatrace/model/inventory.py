"""What machines have in common: rack, leaf switch, power feed, job. A storm of findings has one parent.

Ten nodes that lose their links at once are no ten sick nodes but one sick switch. The parent is the smallest
group that explains the storm: most of its members are hit, and hardly anybody outside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LEAST = 3
"""Machines with the same finding that make a storm: two may be chance, or the two ends of one cable."""
EXPLAINED = 0.6
"""Share of a group's machines that must be hit: a switch that dies takes all of them, minus those that are
off."""


@dataclass(frozen=True, slots=True)
class Parent:
    """Something that machines share; ``kind`` is rack, leaf, psu, job or whatever the inventory calls it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """Machines by parent. Empty where nothing is known, which explains nothing."""

    members: Mapping[Parent, frozenset[str]] = field(default_factory=dict)

    def merged(self, other: Inventory) -> Inventory:
        """What both know."""
        every = {*self.members, *other.members}
        none: frozenset[str] = frozenset()
        return Inventory({key: self.members.get(key, none) | other.members.get(key, none) for key in every})

    def common(self, hit: Iterable[str], looked_at: Iterable[str]) -> Parent | None:
        """The parent that explains why these machines are hit and the others that were looked at are not.

        None where none does: fewer than three machines, or no group of which most are hit and that holds them
        all but a few. Of several the smallest, because the rack's leaf is nearer than the hall."""
        sick, seen = frozenset(hit), frozenset(looked_at)
        if len(sick) < LEAST:
            return None
        fitting = []
        for parent, members in self.members.items():
            within = members & seen
            inside = len(sick & within)
            if inside >= LEAST and inside >= EXPLAINED * len(within) and inside >= 0.9 * len(sick):
                fitting.append((len(within), str(parent), parent))
        # A group that is everybody who was looked at explains no difference.
        near = [item for item in sorted(fitting, key=lambda item: item[:2]) if item[0] < len(seen)]
        return near[0][2] if near else None


def from_table(rows: Mapping[str, object]) -> Inventory:
    """Of {machine: {rack: …, leaf: […], …}} as a file has it; a value may be a list. Ignores nonsense."""
    members: dict[Parent, set[str]] = {}
    for machine, kinds in rows.items():
        for kind, values in kinds.items() if isinstance(kinds, Mapping) else ():
            for value in values if isinstance(values, list) else [values]:
                members.setdefault(Parent(str(kind), str(value)), set()).add(str(machine))
    return Inventory({parent: frozenset(names) for parent, names in members.items()})


def from_slurm_topology(text: str, expand: Mapping[str, Iterable[str]] | None = None) -> Inventory:
    """Leaf switches of ``scontrol show topology``: lines with Level=0. ``expand`` gives the names of a short
    form."""
    members: dict[Parent, frozenset[str]] = {}
    for line in text.splitlines():
        found = re.search(r"SwitchName=(\S+)\s+Level=0\b.*?\bNodes=(\S+)", line)
        if found:
            names = (expand or {}).get(found[2], found[2].split(","))
            members[Parent("leaf", found[1])] = frozenset(names)
    return Inventory(members)
