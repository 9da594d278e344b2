"""What a check has in hand while it looks at one machine, and the problems that it reports.

Everything that a check could want to know is asked of its `Look`: the machine, growth of counters, what a
template of the machine type expects, a threshold that may be set otherwise. So a check holds no state and
needs no patching."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from megatrace.bot.catalogue import CheckInfo
from megatrace.bot.counters import LEVEL, Counters, Growth
from megatrace.bot.numbers import number
from megatrace.model.check import Outcome, Step
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
from megatrace.model.system import RUN_TIMEOUT_S, Ran, System, Unreadable, Why

T = TypeVar("T")


class Unknown(Exception):
    """The check could not look. The reason is a phrase."""


class Skipped(Exception):
    """There is nothing to look at here, or it may not be looked at. The reason is a phrase."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: its finding, whether it is a FAIL or a WARN, and what the ladder begins
    with."""

    finding: Finding
    outcome: Outcome
    step: Step


@dataclass
class Look:
    """One check's view of one machine at one time (``now``, ns).

    ``shared`` is what all checks of one round keep for each other; ``readings`` notes the counters that were
    read; ``said`` is what an OK says; ``measured`` are numbers for the fleet's median."""

    info: CheckInfo
    system: System
    now: int
    counters: Counters = field(default_factory=Counters)
    template: Mapping[str, object] = field(default_factory=dict)
    shared: dict[str, object] = field(default_factory=dict)
    rebooted: bool = False
    """Whether the machine was booted since the last look."""
    readings: list[tuple[str, str, float | str]] = field(default_factory=list)
    said: str = ""
    measured: dict[str, float] = field(default_factory=dict)
    tell: Callable[[str], None] | None = None

    # ---- the machine

    def memo(self, key: str, make: Callable[[], T]) -> T:
        """What ``make`` gives, made once a round; where it raised, it raises the same again."""
        if key not in self.shared:
            try:
                self.shared[key] = make()
            except (Unreadable, Unknown, Skipped) as error:
                self.shared[key] = error
        found = self.shared[key]
        if isinstance(found, Unreadable | Unknown | Skipped):
            raise found
        return cast("T", found)

    def run(self, *argv: str, timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        """Runs a program once a round. One that hung is not started again by another check of the round."""
        hung = self.shared.get(f"hung {argv[0]}")
        if isinstance(hung, Ran):
            return replace(hung, argv=tuple(argv))

        def start() -> Ran:
            self.at(" ".join(argv[:4]))
            return self.system.run(argv, timeout_s)

        ran = self.memo(f"run {' '.join(argv)}", start)
        if ran.why is Why.HUNG:
            self.shared[f"hung {argv[0]}"] = ran
        return ran

    def output(self, *argv: str, timeout_s: float = RUN_TIMEOUT_S) -> str:
        """What a program prints. Raises Skipped where it is not installed, Unknown where it gave no
        answer."""
        ran = self.run(*argv, timeout_s=timeout_s)
        if ran.why in (Why.ABSENT, Why.NOT_RECORDED):
            raise Skipped(ran.problem)
        if ran.why is Why.DENIED:
            raise Skipped(f"{argv[0]} needs root")
        if not ran.ok:
            raise Unknown(ran.problem)
        return ran.output

    def text(self, path: str) -> str | None:
        """The stripped text of a small file; None where there is none. Raises Unreadable for any other
        reason."""
        try:
            return self.system.read(path).strip()
        except Unreadable as error:
            if error.why is Why.ABSENT:
                return None
            raise

    def number(self, path: str) -> float | None:
        """A file that holds a number; None where there is none, or something else in it."""
        try:
            return number(self.system.read(path, 4096).split()[0])
        except (Unreadable, IndexError):
            return None

    def at(self, place: str) -> None:
        """Says what is being looked at, so that a check that never returns can be told by it."""
        if self.tell is not None:
            self.tell(place)

    # ---- what is known of it

    def grown(self, name: str, value: float, window_s: float = 600.0) -> Growth | None:
        """What a counter grew by within the window; None on its first sight. Names are unique on the
        machine."""
        self.readings.append(("grown", name, value))
        return self.counters.grown(name, value, self.now, window_s)

    def before(self, name: str, value: float) -> float | None:
        """What a quantity was at the last look; None where this is the first. Remembers the value of this
        one."""
        found = self.counters.level(name)
        self.grown(LEVEL + name, value)
        return found

    def note(self, name: str, text: str) -> None:
        """Remembers a word for later looks."""
        self.readings.append(("note", name, text))
        self.counters.note(name, text)

    def lasting(self, name: str, holds: bool) -> float:
        """Seconds for which a condition has held at every look; 0 where it does not, or holds for the first
        time."""
        self.readings.append(("lasting", name, float(holds)))
        return self.counters.lasting(name, holds, self.now)

    def expected(self, key: str) -> object | None:
        """What the template says of the machine ("gpu.count"); None where there is no template or no such
        key."""
        return self.template.get(key)

    def limit(self, name: str, default: float) -> float:
        """A threshold of this check: the template's ``limits.CHECK.name``, else the default."""
        value = self.template.get(f"limits.{self.info.id}.{name}")
        return float(value) if isinstance(value, int | float) else default

    # ---- what is wrong

    def fail(self, summary: str, **more: object) -> Problem:
        """A FAIL: see `problem`."""
        return self.problem(Outcome.FAIL, summary, **more)  # type: ignore[arg-type]

    def warn(self, summary: str, severity: Severity = Severity.P2, **more: object) -> Problem:
        """A WARN, of P2 unless told otherwise: see `problem`."""
        return self.problem(Outcome.WARN, summary, severity=severity, **more)  # type: ignore[arg-type]

    def problem(
        self,
        outcome: Outcome,
        summary: str,
        *,
        device: str | None = None,
        link: tuple[str, str | None] | None = None,
        severity: Severity | None = None,
        kind: Kind | None = None,
        step: Step | None = None,
        evidence: Iterable[str] = (),
        remedy: str = "",
        confidence: float = 0.95,
        since: int | None = None,
        status: Status = Status.ONGOING,
        exonerated: Iterable[str] = (),
        key: str = "",
    ) -> Problem:
        """A problem of this machine. ``device`` as its PCI address, port or mount point names it; ``link``
        both ends, the far one None where it is not known; ``key`` tells problems of one device apart."""
        node = self.system.name
        ends = () if link is None else (Link(Endpoint(node=node, device=link[0]), _far(node, link[1])),)
        who = Culprits(nodes=(node,), devices=(Device(node, device),) if device else (), links=ends)
        finding = Finding(
            kind=kind or self.info.kind,
            severity=self.info.severity if severity is None else severity,
            summary=summary,
            status=status,
            confidence=confidence,
            culprits=who,
            window=None if since is None else Window(since, None),
            evidence=tuple(Evidence(text) for text in evidence),
            exonerated=tuple(exonerated),
            remedy=remedy,
            fingerprint=":".join(
                filter(None, (self.info.id, node, device or (link[0] if link else ""), key))
            ),
        )
        return Problem(finding, outcome, step or self.info.step)


def _far(node: str, end: str | None) -> Endpoint:
    """The far end: "peer/port" of another machine, or a device of this one."""
    if end is None:
        return Endpoint()
    other, slash, device = end.partition("/")
    return Endpoint(node=other, device=device) if slash else Endpoint(node=node, device=end)
