"""What a check declares of itself, as a typed value; read without importing the check.

``bot.checks.check`` takes literals; here they become enums, with a clear error for a word that is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from megatrace.model.check import Cost, Scope, Step
from megatrace.model.finding import Kind, Severity
from megatrace.registry import Declaration, Registry

E = TypeVar("E", Scope, Cost, Step, Kind)


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """One check of the catalogue. Times in seconds; ``must`` is the ★ of checks that every serious system
    has.

    ``observe``: it only watches until its precision is known. ``hang``: what is hung where the check does not
    end, which then is a finding of its severity rather than an UNKNOWN; "" where it tells nothing."""

    id: str
    summary: str
    module: str
    subject: str
    scope: Scope
    cost: Cost
    period_s: float
    timeout_s: float
    severity: Severity
    step: Step
    kind: Kind
    must: bool
    observe: bool
    hang: str


def info_of(declared: Declaration) -> CheckInfo:
    """Raises ValueError, naming module and check, for a word that is not allowed."""
    said = dict(declared.metadata)
    where = f"{declared.module}: check {declared.name}"
    try:
        return CheckInfo(
            id=declared.name,
            summary=declared.summary,
            module=declared.module,
            subject=str(said["subject"]),
            scope=Scope(said.get("scope", "node")),
            cost=Cost(said.get("cost", "passive")),
            period_s=_number(said.get("period_s", 30)),
            timeout_s=_number(said.get("timeout_s", 10)),
            severity=Severity[str(said["severity"])],
            step=Step(said["step"]),
            kind=Kind(said.get("kind", "hardware")),
            must=bool(said.get("must", False)),
            observe=bool(said.get("observe", False)),
            hang=str(said.get("hang", "")),
        )
    except (KeyError, ValueError) as error:
        raise ValueError(f"{where}: {error} is missing or not allowed") from error


def infos(registry: Registry[Any]) -> tuple[CheckInfo, ...]:
    """Every check of a catalogue, by id."""
    return tuple(info_of(declared) for declared in registry.declarations())


def select(
    every: Iterable[CheckInfo],
    *,
    scopes: Iterable[Scope] = (Scope.NODE,),
    costs: Iterable[Cost] = (Cost.PASSIVE,),
    names: Iterable[str] = (),
) -> tuple[CheckInfo, ...]:
    """The checks of these scopes and costs; ``names`` are ids or their beginnings (GPU, IB-0), none means
    all."""
    wanted = tuple(names)
    return tuple(
        item
        for item in every
        if item.scope in tuple(scopes)
        and item.cost in tuple(costs)
        and (not wanted or any(_begins(item.id, name) for name in wanted))
    )


def _begins(name: str, begin: str) -> bool:
    return name.upper() == begin.upper() or name.upper().startswith(
        (f"{begin.upper()}-", f"{begin.upper()}*")
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r}")
    return float(value)
