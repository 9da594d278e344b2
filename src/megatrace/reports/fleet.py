"""Many machines for people and for programs: storms first, then single machines, outliers, who is silent."""

from __future__ import annotations

import json
from collections import Counter

from megatrace.model.check_json import encoded
from megatrace.model.finding import Severity
from megatrace.model.fleet import Fleet, Storm, counted
from megatrace.reports import ReportOptions
from megatrace.reports.page import Page, Style
from megatrace.reports.wording import plain

SCHEMA = "megatrace.fleet/1"
SHOWN_NODES = 8
"""Names of a storm's machines shown without --verbose."""
SHOWN = 40
"""Findings of single machines shown without --verbose."""
_LABEL = len("P0 storm")


def render(fleet: Fleet, options: ReportOptions) -> str:
    """For a terminal; ends with a newline."""
    page = Page(options.width, _LABEL, options.colour)
    counts = counted(fleet)
    said = ", ".join(f"{counts[word]} {word}" for word in ("well", "sick", "silent") if counts[word])
    word, style = {0: ("WELL", Style.GREEN), 10: ("SICK", Style.RED)}.get(
        fleet.exit_code, ("CANNOT TELL", Style.MAGENTA)
    )
    page.headline(word, style, f"{len(fleet.asked)} machines: {said}")
    page.blank()
    for storm in fleet.storms:
        page.row(
            f"{storm.severity.name} storm", [_storm(storm, options.verbose)], style=_style(storm.severity)
        )
    shown = fleet.single if options.verbose else fleet.single[:SHOWN]
    for node, result, finding in shown:
        line = f"{plain(node)}  {result.check}  {plain(finding.summary)}"
        page.row(finding.severity.name, [line], style=_style(finding.severity))
    if len(shown) < len(fleet.single):
        page.row("", [f"… {len(fleet.single) - len(shown)} more with --verbose"])
    far = [
        f"{plain(item.node)}: {item.name} {item.value:g}, peers {item.median:g}" for item in fleet.outliers
    ]
    page.row("outliers", far, bullets=True)
    page.row("silent", _silent(fleet), bullets=True)
    return page.text()


def _style(severity: Severity) -> Style:
    return Style.RED if severity <= Severity.P1 else Style.YELLOW


def _storm(storm: Storm, verbose: bool) -> str:
    nodes = storm.nodes if verbose else storm.nodes[:SHOWN_NODES]
    more = "" if len(nodes) == len(storm.nodes) else f" and {len(storm.nodes) - len(nodes)} more"
    where = f"all below {storm.parent}" if storm.parent else "with nothing in common that is known"
    names = f"{', '.join(map(plain, nodes))}{more}"
    return f"{storm.check} on {len(storm.nodes)} machines, {where}: {names} ({plain(storm.summary)})"


def _silent(fleet: Fleet) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for item in fleet.silent:
        reasons.setdefault(plain(item.problem), []).append(plain(item.node))
    return [f"{', '.join(nodes[:SHOWN_NODES])}{' …' if len(nodes) > SHOWN_NODES else ''}: {why}"
            for why, nodes in reasons.items()]  # fmt: skip


def as_json(fleet: Fleet, tool_version: str) -> str:
    """For programs: schema ``megatrace.fleet/1``; ends with a newline."""
    values = {
        "schema": SCHEMA,
        "tool_version": tool_version,
        "exit_code": fleet.exit_code,
        "counts": dict(Counter(counted(fleet))),
        "storms": [
            {
                "check": storm.check,
                "severity": storm.severity.name,
                "parent": None
                if storm.parent is None
                else {"kind": storm.parent.kind, "name": storm.parent.name},
                "nodes": list(storm.nodes),
                "summary": storm.summary,
            }
            for storm in fleet.storms
        ],
        "outliers": [
            {"node": item.node, "name": item.name, "value": item.value, "median": item.median}
            for item in fleet.outliers
        ],
        "silent": [{"node": item.node, "reason": item.problem} for item in fleet.silent],
        "machines": [
            {
                "node": item.node,
                "results": [encoded(result) for result in item.inspection.results if result.findings],
            }
            for item in fleet.asked
            if item.inspection is not None
        ],
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
