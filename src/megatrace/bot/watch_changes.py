"""What changed between two rounds of checks: a finding that is new, worse, or gone.

A pure step: the findings that are open, the results of a round, the time; out come the findings that are open
now and what is to be told. A finding is gone only when its check has looked and said so: UNKNOWN keeps it,
for nobody saw it heal. Knows no clock and prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from megatrace.model.check import CheckResult, Outcome, Step
from megatrace.model.finding import Finding


class What(Enum):
    """What happened to a finding."""

    NEW = "new"
    WORSE = "worse"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Open:
    """A finding that is there: since when (ns), by which check, with what to do first."""

    check: str
    finding: Finding
    step: Step
    since: int
    observed: bool


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to tell, at a time (ns)."""

    what: What
    time: int
    item: Open


def changes(
    known: Mapping[str, Open], results: Iterable[CheckResult], now: int
) -> tuple[dict[str, Open], tuple[Change, ...]]:
    """(open findings by fingerprint, what changed)."""
    current = dict(known)
    told: list[Change] = []
    for result in results:
        seen = set()
        for finding, step in zip(result.findings, result.steps, strict=True):
            key = finding.fingerprint
            seen.add(key)
            before = current.get(key)
            since = now if before is None else before.since
            current[key] = Open(result.check, finding, step, since, result.observed)
            if before is None:
                told.append(Change(What.NEW, now, current[key]))
            elif finding.severity < before.finding.severity:
                told.append(Change(What.WORSE, now, current[key]))
        if result.outcome in (Outcome.UNKNOWN, Outcome.SKIPPED):
            continue
        gone = [key for key, item in current.items() if item.check == result.check and key not in seen]
        told += [Change(What.GONE, now, current.pop(key)) for key in gone]
    return current, tuple(told)
