"""The catalogue of health checks: one file per subject, one function per check.

    @check("GPU-08", summary="…", subject="GPU", severity="P1", step="A4", must=True)
    def row_remap_pending(look: Look) -> Iterator[Problem]:
        \"\"\"What is looked at. Why it matters.

        Source: …  Threshold: … because …  Remedy: …
        \"\"\"
        for gpu in gpus(look):
            if gpu.yes("remapped rows/pending"):
                yield look.fail("…", device=gpu.name)

A check gets a `Look` (the machine, its counters, what a template expects) and yields a `Problem` for each
thing that is wrong; none is OK. It raises `Skipped` where there is nothing to look at, `Unknown` where it
could not look; a file that cannot be read (`Unreadable`) does so by itself. Its docstring is its page in the
documentation.

Belongs here: what to look at, and when that is wrong. Does not: parsing the outputs of tools (``readers``),
state (``counters``), mending anything. Checks never import each other; what two of them read stands beside
this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

from megatrace.bot.look import Look, Problem
from megatrace.registry import Registry

Check = Callable[[Look], Iterable[Problem]]
F = TypeVar("F", bound=Check)

CHECKS: Registry[Check] = Registry("check", __name__, decorator="check")


def check(
    name: str,
    *,
    summary: str,
    subject: str,
    severity: str,
    step: str,
    scope: str = "node",
    cost: str = "passive",
    period_s: float = 30,
    timeout_s: float = 10,
    kind: str = "hardware",
    must: bool = False,
    observe: bool = False,
    hang: str = "",
) -> Callable[[F], F]:
    """Registers a check; all arguments are literals (see ``catalogue.CheckInfo``).

    severity "P0" to "P3" of a finding that says nothing else; step "A0" to "A8", the first of the recovery
    ladder; scope node, BMC, switch, fabric, scheduler or job; cost passive, active or intrusive; period and
    time limit in seconds."""
    register = CHECKS.register(
        name,
        summary=summary,
        subject=subject,
        severity=severity,
        step=step,
        scope=scope,
        cost=cost,
        period_s=period_s,
        timeout_s=timeout_s,
        kind=kind,
        must=must,
        observe=observe,
        hang=hang,
    )
    return cast("Callable[[F], F]", register)
