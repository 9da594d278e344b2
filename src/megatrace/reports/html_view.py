"""What the HTML report says, as plain values for the template: strings, lists and tables; no markup.

Uses the same phrases as the terminal (``describe``, ``overview``), so both say the same. Every string goes
through ``plain`` here and through the template's escaping there: what comes from logs stays text.

Does not lay out anything, and leaves the pictures' numbers to ``html_data``; the tables beside the pictures
(for those who cannot see them) are made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatrace import __version__
from megatrace.model.finding import Culprits, Diagnosis, Finding, Severity, Verdict
from megatrace.reports import ReportOptions, chinese, describe, sentences_zh
from megatrace.reports.describe import Scene
from megatrace.reports.html_tables import Figure, Table, config_table, figures, stage_table
from megatrace.reports.html_texts import PageTexts
from megatrace.reports.overview import coverage_items, healthy_facts, input_items
from megatrace.reports.texts import Texts
from megatrace.reports.wording import plain, wall_time, without_word

MAX_EVIDENCE = 4
"""Reasons shown before "show more": the strongest stand first, and four are read."""
MAX_CHAIN = 12
"""Steps of the chain shown at once; longer ones repeat the same step from stage to stage."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled value of the card: its lines, of which the first ``strong`` are large."""

    label: str
    lines: tuple[str, ...]
    strong: int = 1


@dataclass(frozen=True, slots=True)
class Listing:
    """Items of which the first ``shown`` are seen at once."""

    items: tuple[str, ...]
    shown: int
    more: str = ""

    @property
    def first(self) -> tuple[str, ...]:
        """What is seen at once."""
        return self.items[: self.shown]

    @property
    def rest(self) -> tuple[str, ...]:
        """What is seen after a click."""
        return self.items[self.shown :]


@dataclass(frozen=True, slots=True)
class Card:
    """One finding."""

    summary: str
    severity: str
    confidence: str
    confidence_value: float
    blames: bool
    facts: tuple[Fact, ...]
    why: Listing
    exonerated: Listing
    chain: Listing
    remedy: str
    details: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the template shows."""

    lang: str
    title: str
    word: str
    verdict: str
    sentence: str
    original: str
    made: str
    version: str
    cards: tuple[Card, ...]
    notes: tuple[str, ...]
    facts: tuple[str, ...]
    alternatives: tuple[str, ...]
    missing: str
    steps: tuple[tuple[str, str], ...]
    figures: tuple[Figure, ...]
    stages: Table | None
    config: Table
    coverage: tuple[str, ...]
    warnings: tuple[str, ...]
    inputs: tuple[str, ...]
    command: str
    undecidable: bool
    healthy: bool


def view(diagnosis: Diagnosis, options: ReportOptions) -> View:
    """The view of a diagnosis in the language of the options."""
    return _Viewer(diagnosis, options).view()


class _Viewer:
    """Collects the words of one report."""

    def __init__(self, diagnosis: Diagnosis, options: ReportOptions) -> None:
        self.diagnosis, self.options = diagnosis, options
        self.texts, self.page = Texts(options.lang), PageTexts(options.lang)
        self.scene = Scene.of(diagnosis, self.texts, options.now)

    def view(self) -> View:
        d, page = self.diagnosis, self.page
        serious = [item for item in d.findings if item.severity <= Severity.P2]
        minor = describe.notes(d)
        word = self.texts.verdict(d.verdict)
        sentence, original = self._headline()
        healthy = d.verdict is Verdict.HEALTHY
        made = None if self.options.generated_at is None else wall_time(self.options.generated_at, date=True)
        missing = d.coverage.ranks_missing
        culprits = serious[0].culprits.ranks if serious else ()
        return View(
            lang=self.options.lang,
            title=f"{word} · {sentence}",
            word=word,
            verdict=d.verdict.value,
            sentence=sentence,
            original=original,
            made="" if made is None else page("made", time=made[:16]),
            version=f"MegaTrace {__version__}",
            cards=tuple(self._card(item) for item in serious),
            notes=tuple(f"{item.severity.name} · {self._sentence(item)}" for item in minor),
            facts=tuple(healthy_facts(d, self.texts, "")) if healthy else (),
            alternatives=tuple(self._said(text) for text in d.alternatives),
            missing=self.texts.say("missing_logs", who=describe.spelt(self.scene, missing))
            if missing
            else "",
            steps=self._steps(serious),
            figures=figures(d, self.scene, page),
            stages=stage_table(d, page, culprits),
            config=config_table(d, self.scene, page),
            coverage=tuple(coverage_items(d, self.scene, verbose=True)),
            warnings=tuple(self._said(text) for text in d.warnings),
            inputs=tuple(input_items(d, self.texts, verbose=False)),
            command=plain(self.options.command),
            undecidable=d.verdict is Verdict.UNDECIDABLE,
            healthy=healthy,
        )

    def _headline(self) -> tuple[str, str]:
        """(the sentence in the language of the page, the English one where it could not be translated)."""
        english = without_word(Texts().verdict(self.diagnosis.verdict), plain(self.diagnosis.headline))
        english = english.rstrip(".")
        if self.options.lang != "zh":
            return english, ""
        known = sentences_zh.translated(english)
        if known is not None:
            return known, ""
        return chinese.headline(self.diagnosis, self.scene), english

    def _sentence(self, finding: Finding) -> str:
        if self.options.lang == "zh":
            return chinese.told(finding, self.scene)
        return plain(finding.summary)

    def _said(self, text: str) -> str:
        """A sentence of the diagnosis in the language of the page, in English where it has no other."""
        return self.texts.sentence(plain(text))

    def _steps(self, serious: Sequence[Finding]) -> tuple[tuple[str, str], ...]:
        said = {item.remedy for item in serious}
        return tuple(
            (plain(step.command), self._said(step.why))
            for step in self.diagnosis.next_steps
            if step.command not in said
        )

    # ---- one finding

    def _card(self, finding: Finding) -> Card:
        page, scene = self.page, self.scene
        who = describe.culprit_lines(scene, finding)
        cost, when = describe.cost(scene, finding), describe.when(scene, finding)
        facts = [
            Fact(
                page("one_of" if finding.ambiguous and not describe.is_nobody(finding) else "who"),
                _who_lines(who),
                len(who),
            ),
            Fact(page("since"), _parts(when) or (page("unknown"),)),
            Fact(page("cost"), _parts(cost) or (page("unknown"),)),
        ]
        return Card(
            summary=self._sentence(finding),
            severity=finding.severity.name,
            confidence=describe.confidence(scene, finding).rpartition(" ")[2],
            confidence_value=min(max(finding.confidence, 0.0), 1.0)
            if finding.confidence == finding.confidence
            else 0.0,
            blames=finding.culprits != Culprits(),
            facts=tuple(facts),
            why=self._listing([item.text for item in finding.evidence], MAX_EVIDENCE),
            exonerated=self._listing(finding.exonerated, MAX_EVIDENCE),
            chain=self._listing(finding.chain, MAX_CHAIN),
            remedy=self._said(finding.remedy),
            details=self._details(finding),
        )

    def _details(self, finding: Finding) -> tuple[Fact, ...]:
        page, scene = self.page, self.scene
        kinds = [self.texts.kind(kind) for kind in (finding.kind, *finding.kind_alternatives)]
        rows = [
            (page("kinds"), self.texts.say("or").join(kinds)),
            (page("where"), describe.where(scene, finding)),
            (page("victims"), describe.victims(scene, finding)),
            (page("follows"), ", ".join(plain(item) for item in finding.caused_by)),
        ]
        return tuple(Fact(label, (text,)) for label, text in rows if text)

    def _listing(self, items: Sequence[str], limit: int) -> Listing:
        texts = tuple(self._said(item) for item in items)
        # One more than the limit is shown rather than hidden: the button would take its place.
        shown = len(texts) if len(texts) <= limit + 1 else limit
        more = self.page("more", count=len(texts) - shown) if len(texts) > shown else ""
        return Listing(texts, shown, more)


def _who_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """The name large, its place below: "rank 1505", "node188 · gpu1 · stage 2"; several stay a line each."""
    if len(lines) == 1:
        name, _, rest = lines[0].partition(" · ")
        return (name, rest) if rest else (name,)
    return tuple(lines)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(" · ") if part)
