"""An inspection of a machine for people, for programs, for Nagios and for Kubernetes' node-problem-detector.

For people it answers in the order of the questions of somebody who was called: which machine, is it sick,
what is wrong with which part, what to do; then what could not be looked at, and why. The formats for other
programs follow those programs' own rules (Nagios plug-in guidelines; NPD custom plug-ins), exit codes
included.

Judges nothing; every word is in the `Inspection`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from megatrace.model.check import CheckResult, Inspection, Outcome, Step
from megatrace.model.check_json import encoded
from megatrace.model.finding import Finding, Severity
from megatrace.reports import ReportOptions
from megatrace.reports.columns import cells
from megatrace.reports.page import Page, Style
from megatrace.reports.wording import plain, wall_time
from megatrace.units import format_duration

SCHEMA = "megatrace.inspection/1"
SHOWN_EVIDENCE = 2
"""Reasons of a finding shown without --verbose: the rest is for whoever doubts it."""
SHOWN_REASONS = 3
NPD_WIDTH = 80
"""Characters of a message that node-problem-detector takes (its default max_output_length)."""
_NAGIOS = {Outcome.OK: 0, Outcome.WARN: 1, Outcome.FAIL: 2, Outcome.UNKNOWN: 3}
_LABELS = ("P0 FAIL", "P1 WARN", "skipped 99", "unknown 99", "observed")


def render(inspection: Inspection, options: ReportOptions) -> str:
    """For a terminal; ends with a newline."""
    page = Page(options.width, max(map(cells, _LABELS)), options.colour)
    page.headline(*_headline(inspection))
    page.blank()
    for result, finding, step in inspection.troubles:
        _trouble(page, result, finding, step, inspection.time, options.verbose)
    _rest(page, inspection, options.verbose)
    return page.text()


def _headline(inspection: Inspection) -> tuple[str, Style, str]:
    counts = Counter(
        "observed" if item.observed and item.findings else item.outcome.value.lower()
        for item in inspection.results
    )
    said = ", ".join(
        f"{counts[word]} {word}"
        for word in ("ok", "fail", "warn", "unknown", "observed", "skipped")
        if counts[word]
    )
    text = (
        f"{plain(inspection.node)} · {plain(inspection.about)} · checked {len(inspection.results)} ({said})"
        f" in {inspection.seconds:.1f} s"
    )
    code = inspection.exit_code
    word, style = {0: ("WELL", Style.GREEN), 10: ("SICK", Style.RED)}.get(
        code, ("CANNOT TELL", Style.MAGENTA)
    )
    return word, style, text


def _trouble(page: Page, result: CheckResult, finding: Finding, step: Step, now: int, verbose: bool) -> None:
    label = "observed" if result.observed else f"{finding.severity.name} {_word(result, finding)}"
    bad = finding.severity <= Severity.P1 and not result.observed
    style = Style.RED if bad else Style.YELLOW
    page.row(label, [f"{result.check}  {plain(finding.summary)}"], style=style)
    evidence = [*_when(finding, now), *(plain(item.text) for item in finding.evidence)]
    page.row("", evidence if verbose else evidence[:SHOWN_EVIDENCE], bullets=True)
    page.row("", [plain(text) for text in finding.exonerated] if verbose else [], bullets=True)
    page.row("", [f"→ {plain(finding.remedy) or step.words}"], style=Style.BOLD)


def _when(finding: Finding, now: int) -> list[str]:
    """Since when, where that is known."""
    if finding.window is None or finding.window.start > now:
        return []
    ago = format_duration(now - finding.window.start)
    begun = wall_time(finding.window.start, date=True)
    return [] if begun is None else [f"since {begun.partition('.')[0]} UTC, {ago} ago"]


def _word(result: CheckResult, finding: Finding) -> str:
    return result.outcome.value if finding.severity <= Severity.P1 else Outcome.WARN.value


def _rest(page: Page, inspection: Inspection, verbose: bool) -> None:
    """What could not be looked at, by reason."""
    page.blank()
    for outcome in (Outcome.UNKNOWN, Outcome.SKIPPED):
        found = inspection.of(outcome)
        if not found:
            continue
        label = f"{outcome.value.lower()} {len(found)}"
        if verbose or outcome is Outcome.UNKNOWN:
            page.row(label, _by_reason(found), bullets=True)
        else:
            page.row(label, [_reasons(found)])
    if verbose:
        said = [f"{item.check}: {plain(item.reason) or 'well'}" for item in inspection.of(Outcome.OK)]
        page.row("ok", said, bullets=True)
    page.row("note", [plain(note) for note in inspection.notes])


def _by_reason(found: Sequence[CheckResult]) -> list[str]:
    """Every check, those of one reason in one line: a driver that does not answer is the reason of thirty."""
    names: dict[str, list[str]] = {}
    for result in found:
        names.setdefault(plain(result.reason), []).append(result.check)
    return [f"{', '.join(checks)}: {reason}" for reason, checks in names.items()]


def _reasons(found: Sequence[CheckResult]) -> str:
    """The most frequent reasons; the rest is for --verbose."""
    every = Counter(plain(result.reason) for result in found).most_common()
    shown = [f"{count} {why}" for why, count in every[:SHOWN_REASONS]]
    rest = sum(count for _, count in every[SHOWN_REASONS:])
    return "; ".join(shown) + (f"; {rest} for other reasons (--verbose)" if rest else "")


def as_json(inspection: Inspection, tool_version: str) -> str:
    """For programs: schema ``megatrace.inspection/1``; ends with a newline."""
    counts = Counter(result.outcome for result in inspection.results)
    values = {
        "schema": SCHEMA,
        "tool_version": tool_version,
        "node": inspection.node,
        "time_ns": str(inspection.time),
        "about": inspection.about,
        "seconds": inspection.seconds,
        "exit_code": inspection.exit_code,
        "counts": {outcome.value: counts[outcome] for outcome in Outcome},
        "results": [encoded(result) for result in inspection.results],
        "notes": list(inspection.notes),
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def nagios(inspection: Inspection) -> tuple[str, int]:
    """One line and the exit code of a Nagios plug-in: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""
    counted = [result for result in inspection.results if not result.observed]
    outcomes = {result.outcome for result in counted} | {Outcome.OK}
    worst = next(
        item for item in (Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN, Outcome.OK) if item in outcomes
    )
    word = {Outcome.FAIL: "CRITICAL", Outcome.WARN: "WARNING"}.get(worst, worst.value)
    said = _sentences(inspection)
    if not said:
        unknown = [f"{result.check} {plain(result.reason)}" for result in inspection.of(Outcome.UNKNOWN)]
        said = unknown or [f"{len(inspection.of(Outcome.OK))} checks"]
    times = f"seconds={inspection.seconds:.2f}s"
    # A bar separates the text from performance data.
    return f"MEGATRACE {word} - {'; '.join(said).replace('|', '/')} | {times}\n", _NAGIOS[worst]


def node_problem_detector(inspection: Inspection) -> tuple[str, int]:
    """One short line and the exit code of a custom plug-in: 0 no problem, 1 a problem, 2 unknown."""
    said = _sentences(inspection)
    code = inspection.exit_code
    if code == 0:
        return "no problem\n", 0
    if code == 10:
        return _cut(said[0], NPD_WIDTH) + "\n", 1
    unknown = inspection.of(Outcome.UNKNOWN)
    return _cut(f"{unknown[0].check}: {plain(unknown[0].reason)}", NPD_WIDTH) + "\n", 2


def _sentences(inspection: Inspection) -> list[str]:
    """Counted findings of P2 or worse, the worst first."""
    return [
        f"{result.check} {plain(finding.summary)}"
        for result, finding, _ in inspection.troubles
        if not result.observed and finding.severity <= Severity.P2
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
