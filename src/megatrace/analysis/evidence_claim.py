"""What a judge of text evidence hands over: a finding, and how near to the root of a failure it stands.

A failure writes about itself in many places: a GPU falls off the bus, a rank dies, its peers' sockets break,
their watchdogs fire, torchrun kills the rest. ``Order`` is that ladder: of two claims about one job the
higher rung is the cause, unless it happened later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from megatrace.model.finding import (
    Culprits,
    Evidence,
    Finding,
    Impact,
    Kind,
    NextStep,
    Severity,
    Status,
    Verdict,
    Where,
    Window,
)
from megatrace.model.series import LogFact
from megatrace.model.xid import Action
from megatrace.units import NS_PER_S, format_duration

ALL_LOGS = NextStep(
    "megatrace diagnose LOGS_OF_ALL_RANKS/ KERNEL_LOGS/", "the first error over all ranks and nodes"
)
"""What to collect where only victims speak."""


class Order(IntEnum):
    """How near to the root: what is below can be caused by what is above."""

    HARDWARE = 0
    HOST = 1
    """a resource of the host, its disks, its ports"""
    SOFTWARE = 2
    """an exception or a configuration of the job itself"""
    KILLED = 3
    """a process ended without a word of its own"""
    DISAGREE = 4
    """ranks were about to do different things"""
    TRANSPORT = 5
    """a transfer failed: a path, or the peer's death"""
    WAITING = 6
    """a rank waited too long for others"""
    AFTERMATH = 7
    """sockets and launchers after somebody else died"""
    SPEED = 8
    NOTE = 9


@dataclass(frozen=True, slots=True)
class Claim:
    """One finding with its place on the ladder. ``weak``: the evidence does not bear a verdict.

    ``action`` what is done with the GPU, of claims that stand on an Xid;
    ``time`` ns (``clock`` "wall" or "boot"), None where not known; ``either`` explanations that fit as well;
    ``ended`` that the job is over, so that it failed, though faults of this kind make others hang.
    """

    order: Order
    finding: Finding
    time: int | None = None
    clock: str = "wall"
    weak: bool = False
    steps: tuple[NextStep, ...] = ()
    either: tuple[str, ...] = ()
    sources: frozenset[str] = field(default_factory=frozenset)
    ended: bool = False
    action: Action | None = None

    @property
    def verdict(self) -> Verdict:
        """What it supports."""
        return Verdict.FAILED if self.ended else self.finding.kind.verdict

    @property
    def node(self) -> str | None:
        """The node that it speaks of, None where it names none or several."""
        who = self.finding.culprits
        names = {*who.nodes, *(device.node for device in who.devices if device.node)}
        return next(iter(names)) if len(names) == 1 else None


def claim(
    order: Order,
    kind: Kind,
    severity: Severity,
    summary: str,
    facts: Sequence[LogFact] = (),
    *,
    evidence: Iterable[str] = (),
    no: Iterable[str] = (),
    remedy: str = "",
    culprits: Culprits | None = None,
    victims: Iterable[int] = (),
    confidence: float = 0.8,
    or_kinds: tuple[Kind, ...] = (),
    ambiguous: bool = False,
    where: Where | None = None,
    steps: Sequence[NextStep] = (),
    weak: bool = False,
    either: Iterable[str] = (),
    impact: Impact | None = None,
    status: Status = Status.ONGOING,
    began: int | None = None,
    ended: bool = False,
) -> Claim:
    """A claim of the facts that it was drawn from; its time is that of the first of them.

    ``began``: ns since the epoch from which on nothing moved, where that is earlier than what was printed.
    """
    timed = sorted((fact.time, fact.clock) for fact in facts if fact.time is not None)
    window = None
    if timed and timed[0][1] == "wall":
        last = max((time for time, clock in timed if clock == "wall"), default=timed[0][0])
        window = Window(timed[0][0], last if last > timed[0][0] else None)
    if began is not None:
        window = Window(began, None)
    finding = Finding(
        kind=kind,
        severity=severity,
        summary=summary,
        status=status,
        confidence=confidence,
        kind_alternatives=or_kinds,
        ambiguous=ambiguous,
        culprits=culprits or Culprits(),
        victims=tuple(sorted(set(victims))),
        where=where or Where(),
        window=window,
        impact=impact or Impact(),
        evidence=tuple(Evidence(text) for text in evidence),
        exonerated=tuple(no),
        remedy=remedy,
    )
    return Claim(
        order,
        finding,
        timed[0][0] if timed else None,
        timed[0][1] if timed else "wall",
        weak,
        tuple(steps),
        tuple(either),
        frozenset(fact.source for fact in facts if fact.source),
        ended,
    )


def times(count: int) -> str:
    """ "once", "5 times"."""
    return "once" if count == 1 else f"{count:,} times"


def listed(items: Iterable[object], limit: int = 12) -> str:
    """ "a, b and c"; a longer list ends with how many more there are."""
    words = list(dict.fromkeys(str(item) for item in items))
    if len(words) > limit:
        return f"{', '.join(words[:limit])} and {len(words) - limit:,} more"
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part) if words else "none"


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 line", "3 lines"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def apart(a: LogFact, b: LogFact) -> int | None:
    """ns from a to b, None where their clocks cannot be compared."""
    if a.time is None or b.time is None or a.clock != b.clock:
        return None
    if a.clock == "boot" and a.source != b.source:
        return None
    return b.time - a.time


def span(facts: Sequence[LogFact]) -> str:
    """ "over 5 m 55 s"; "" where no times, or one."""
    known = [fact.time for fact in facts if fact.time is not None]
    if len(known) < 2 or max(known) - min(known) < NS_PER_S:
        return ""
    return f" over {format_duration(max(known) - min(known))}"


def on_node(node: str | None) -> str:
    """ " on node-a", "" where not known."""
    return f" on {node}" if node else ""
