"""The report for people at a terminal: the sentence, who, when, cost, why, what to do, what is not known.

Ordered for somebody who was woken up: whoever stops reading after three lines has the culprit; after ten, the
reason and the command to run. Job, stages and coverage follow for those who doubt it. Returns text and prints
nothing; strings from outside stay text (no markup, no escape sequences).

Does not judge: what it shows stands in the `Diagnosis`; it chooses only how much of it fits.
"""

from __future__ import annotations

from megatrace.model.finding import Diagnosis, Finding, Severity, Verdict
from megatrace.reports import ReportOptions, chinese, describe, reports, sentences_zh
from megatrace.reports.columns import cells, clip
from megatrace.reports.describe import Scene
from megatrace.reports.overview import coverage_items, has_holes, healthy_facts, input_items, job_items
from megatrace.reports.page import Page, Style
from megatrace.reports.stages import stage_table
from megatrace.reports.texts import LABELS, Texts
from megatrace.reports.wording import plain, without_word

MAX_EVIDENCE = 5
"""Reasons shown without --verbose: the analysis puts the strongest first, and nobody reads ten at night."""
MAX_CHAIN = 4
"""Steps from a victim to the culprit shown without --verbose."""
MAX_DETAILED = 3
"""Findings shown with their reasons without --verbose; further ones get their sentence only."""

_STYLES = {
    Verdict.FAILED: Style.RED,
    Verdict.HANG: Style.RED,
    Verdict.SLOW: Style.YELLOW,
    Verdict.UNDECIDABLE: Style.MAGENTA,
    Verdict.HEALTHY: Style.GREEN,
}


@reports.register("text", summary="for people, in a terminal", file="diagnosis.txt", format=True)
def report(diagnosis: Diagnosis, options: ReportOptions) -> str:
    """The terminal report as the options ask for it."""
    return _Terminal(diagnosis, options).text()


def render(
    diagnosis: Diagnosis, width: int = 100, colour: bool = False, verbose: bool = False, lang: str = "en"
) -> str:
    """The terminal report: ``width`` in cells, ``lang`` "en" or "zh"; ends with a newline."""
    options = ReportOptions(width=width, colour=colour, verbose=verbose, lang=lang)
    return _Terminal(diagnosis, options).text()


class _Terminal:
    """One report being written."""

    def __init__(self, diagnosis: Diagnosis, options: ReportOptions) -> None:
        self.diagnosis = diagnosis
        self.verbose = options.verbose
        self.texts = Texts(options.lang)
        self.scene = Scene.of(diagnosis, self.texts, options.now)
        width = max(cells(self.texts.label(key)) for key in LABELS if key not in ("also", "original"))
        self.page = Page(options.width, width, options.colour)

    def text(self) -> str:
        if self.diagnosis.verdict is Verdict.HEALTHY:
            self._healthy()
        else:
            self._verdict()
            self._findings()
            if self.diagnosis.verdict is Verdict.UNDECIDABLE:
                self._cannot_tell()
            self._next_steps()
            self.page.blank()
            self._stages()
            self._background()
        return self.page.text()

    # ---- the first lines

    def _verdict(self) -> None:
        diagnosis = self.diagnosis
        english = without_word(Texts().verdict(diagnosis.verdict), plain(diagnosis.headline))
        word = self.texts.verdict(diagnosis.verdict)
        style = _STYLES[diagnosis.verdict]
        if self.texts.lang == "zh":
            known = sentences_zh.translated(english)
            self.page.headline(word, style, known or chinese.headline(diagnosis, self.scene))
            self.page.blank()
            if known is None:
                self._row("original", [english])
        else:
            self.page.headline(word, style, english)
            self.page.blank()

    def _healthy(self) -> None:
        diagnosis = self.diagnosis
        zh = self.texts.lang == "zh"
        sentence = plain(diagnosis.headline).rstrip(".")
        known = sentences_zh.translated(sentence) if zh else None
        if zh:
            sentence = known or chinese.headline(diagnosis, self.scene)
        facts = [] if known else healthy_facts(diagnosis, self.texts, sentence)
        word = self.texts.verdict(Verdict.HEALTHY)
        self.page.headline(word, Style.GREEN, " · ".join([sentence, *facts]))
        self._notes(diagnosis.findings)
        if self.verbose:
            self.page.blank()
            self._stages()
            self._background()
        else:
            self._row("warning", [self._said(text) for text in diagnosis.warnings], style=Style.YELLOW)
            if has_holes(diagnosis):
                self._row("coverage", coverage_items(diagnosis, self.scene, self.verbose))

    def _cannot_tell(self) -> None:
        diagnosis = self.diagnosis
        self._row("either", [self._said(text) for text in diagnosis.alternatives], bullets=True)
        missing = diagnosis.coverage.ranks_missing
        if missing:
            who = describe.spelt(self.scene, missing)
            self._row("missing", [self.texts.say("missing_logs", who=who)], style=Style.BOLD)

    # ---- findings

    def _findings(self) -> None:
        serious = [item for item in self.diagnosis.findings if item.severity <= Severity.P2]
        minor = [item for item in self.diagnosis.findings if item.severity > Severity.P2]
        minor = minor if self.verbose else list(describe.notes(self.diagnosis))
        for index, finding in enumerate(serious):
            if index:
                self.page.blank()
                word = f"{self.texts.label('also')} {finding.severity.name}"
                self.page.headline(word, Style.YELLOW, self._sentence(finding))
            elif finding.summary.rstrip(".") not in self.diagnosis.headline:
                self._row("culprit", [self._sentence(finding)], style=Style.BOLD)
            if index < MAX_DETAILED or self.verbose:
                self._finding(finding)
            if len(serious) > 1 and finding.remedy:
                self._row("do", [self._said(finding.remedy)])
        if len(serious) > 1 and minor:
            self.page.blank()
        self._notes(tuple(minor))

    def _sentence(self, finding: Finding) -> str:
        if self.texts.lang == "zh":
            return chinese.told(finding, self.scene)
        return plain(finding.summary)

    def _said(self, text: str) -> str:
        """A sentence of the diagnosis in the language of the report, in English where it has no other."""
        return self.texts.sentence(plain(text))

    def _finding(self, finding: Finding) -> None:
        say = self.texts.say
        self._culprit(finding)
        self._row("when", [describe.when(self.scene, finding)])
        self._row("where", [describe.where(self.scene, finding)])
        self._row("cost", [describe.cost(self.scene, finding)])
        if finding.kind_alternatives:
            kinds = [self.texts.kind(kind) for kind in (finding.kind, *finding.kind_alternatives)]
            known = say("enumeration").join(kinds[:-1]) + say("or") + kinds[-1]
            self._row("kind", [say("kinds", kinds=known)])
        self._reasons(finding)
        self._row("chain", self._some([self._said(item) for item in finding.chain], MAX_CHAIN), bullets=True)
        self._row("victims", [describe.victims(self.scene, finding)])

    def _reasons(self, finding: Finding) -> None:
        if finding.caused_by:
            ids = ", ".join(plain(item) for item in finding.caused_by)
            self._row("follows", [self.texts.say("follows_from", ids=ids)])
        self._row(
            "why",
            self._some([self._said(item.text) for item in finding.evidence], MAX_EVIDENCE),
            bullets=True,
        )
        self._row("not", [self._said(item) for item in finding.exonerated], bullets=True)

    def _culprit(self, finding: Finding) -> None:
        lines = describe.culprit_lines(self.scene, finding)
        label = "one_of" if finding.ambiguous and not describe.is_nobody(finding) else "culprit"
        sure = f"{finding.severity.name} · {describe.confidence(self.scene, finding)}"
        self.page.right(self.texts.label(label), lines[0], sure, Style.BOLD)
        for line in lines[1:]:
            self.page.row("", [line], style=Style.BOLD)

    def _some(self, items: list[str], limit: int) -> list[str]:
        # One item over the limit is shown rather than announced: the announcement takes a line as well.
        if self.verbose or len(items) <= limit + 1:
            return items
        return [*items[:limit], self.texts.say("more", count=len(items) - limit)]

    def _notes(self, findings: tuple[Finding, ...]) -> None:
        if self.verbose:
            for finding in findings:
                self._row("note", [f"{finding.severity.name} · {self._sentence(finding)}"])
                self._reasons(finding)
                self._row("do", [self._said(finding.remedy)])
            return
        lines = [f"{finding.severity.name} · {self._sentence(finding)}" for finding in findings]
        self._row("note", self._some(lines, MAX_DETAILED))

    # ---- what to do

    def _next_steps(self) -> None:
        diagnosis = self.diagnosis
        serious = [item for item in diagnosis.findings if item.severity <= Severity.P2]
        said = {item.remedy for item in serious}
        steps = [
            (plain(step.command), self._said(step.why))
            for step in diagnosis.next_steps
            if step.command not in said
        ]
        if diagnosis.verdict is Verdict.UNDECIDABLE:
            label = "collect"
        else:
            label = "do" if len(serious) == 1 else "next"
        if len(serious) == 1 and serious[0].remedy:
            self._row("do", [self._said(serious[0].remedy)])
            label = "" if label == "do" else label
        if len(serious) > 1:
            self.page.blank()
        self.page.numbered(self.texts.label(label) if label else "", steps)

    # ---- what it was worked out from

    def _stages(self) -> None:
        culprits = [rank for finding in self.diagnosis.findings for rank in finding.culprits.ranks]
        lines, styles = stage_table(self.diagnosis, self.texts, culprits, self.page.room, self.verbose)
        self.page.block(self.texts.label("stages"), [clip(line, self.page.room) for line in lines], styles)

    def _background(self) -> None:
        diagnosis = self.diagnosis
        self._row("coverage", coverage_items(diagnosis, self.scene, self.verbose))
        self._row("warning", [self._said(text) for text in diagnosis.warnings], style=Style.YELLOW)
        self._row("job", job_items(diagnosis, self.texts))
        self._row("inputs", input_items(diagnosis, self.texts, self.verbose))

    def _row(self, key: str, items: list[str], *, bullets: bool = False, style: Style = Style.PLAIN) -> None:
        self.page.row(self.texts.label(key), [item for item in items if item], bullets=bullets, style=style)
