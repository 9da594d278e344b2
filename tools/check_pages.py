"""The reference page of the health checks: one section a check, from its registration and its docstring."""

from __future__ import annotations

import inspect
from typing import Any

from megatrace.bot.catalogue import CheckInfo, infos
from megatrace.registry import Registry, Unavailable
from megatrace.units import NS_PER_S, format_duration

INTRODUCTION = """\
# Checks

What `megatrace inspect` and the Bot look at. A check says OK, WARN, FAIL, UNKNOWN (it could not look, which
is not OK) or SKIPPED (there is nothing to look at here). ★ marks those that every serious system has.
Severities: P0 the job stands or data is at risk, P1 the node must leave the pool at the next safe point, P2
degraded, P3 note. The step is where the ladder of repair begins; nothing is repaired by an inspection.
`--disable ID` switches a check off, `--observe ID` lets it watch without consequences. """


def checks_page(registry: Registry[Any]) -> str:
    """A table of all checks, then a section each."""
    every = infos(registry)
    rows = [
        f"| [{item.id}](#{item.id.lower()}){' ★' if item.must else ''} | {item.subject} | {item.summary} "
        f"| {item.severity.name} | {item.step.words} |"
        for item in every
    ]
    table = "\n".join(
        ["| check | subject | what it finds | severity | first step |", "|---|---|---|---|---|", *rows]
    )
    return "\n".join([INTRODUCTION, table, "", *(_section(item, registry) for item in every)])


def _section(item: CheckInfo, registry: Registry[Any]) -> str:
    found = registry.load(item.id)
    about = "" if isinstance(found, Unavailable) else inspect.getdoc(found) or ""
    said = [
        f"scope {item.scope.value}",
        item.cost.value,
        f"every {format_duration(item.period_s * NS_PER_S)}",
        f"at most {format_duration(item.timeout_s * NS_PER_S)}",
        f"{item.severity.name}, first step {item.step.value} ({item.step.words})",
    ]
    said += ["observes only"] if item.observe else []
    return f"## {item.id}\n\n*{item.summary[:1].upper()}{item.summary[1:]}.* {'; '.join(said)}.\n\n{about}\n"
