"""The terminal report: golden pages, widths, colour only where wanted, and strings that stay text."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from megatrace.model.finding import (
    Culprits,
    Diagnosis,
    Evidence,
    Kind,
    NextStep,
    Severity,
    Status,
    Verdict,
    Window,
)
from megatrace.model.schedule import Phase
from megatrace.reports import ReportOptions, reports
from megatrace.reports.columns import clip, wrap
from megatrace.reports.terminal import render, report
from megatrace.reports.texts import KINDS, LABELS, PHASES, PHRASES, STATUSES, VERDICTS
from tests.unit.report_cases import CASES, HANG_T0, S, hang, healthy, intermittent, slow_window
from tests.unit.test_reports_json import diagnoses

GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/reports"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, width: int, lang: str) -> None:
    path = GOLDEN / f"{name}.{width}.{lang}.txt"
    text = render(CASES[name](), width=width, lang=lang)
    if os.environ.get("MEGATRACE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "look at it, then run with MEGATRACE_UPDATE_GOLDEN=1"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", CASES)
def test_no_line_is_wider_than_the_terminal(name: str, lang: str) -> None:
    for width in (60, 80, 100, 132, 200):
        for verbose in (False, True):
            for line in render(CASES[name](), width=width, lang=lang, verbose=verbose).splitlines():
                copied = re.match(
                    r"\s+\d+\. ", line
                )  # a command is one line, whatever the width: it is copied
                assert copied or cell_len(line) <= width, line


@pytest.mark.parametrize("name", CASES)
def test_colour_adds_only_codes(name: str) -> None:
    plain = render(CASES[name](), width=80)
    coloured = render(CASES[name](), width=80, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert ANSI.sub("", coloured) == plain


def test_the_first_line_is_the_verdict_and_who_did_it() -> None:
    assert (
        render(slow_window(), width=200)
        .splitlines()[0]
        .startswith("SLOW  rank 2 (stage 1, TP 0) computed 2.5×")
    )
    assert (
        render(hang(), width=200)
        .splitlines()[0]
        .startswith("HANG  rank 1505 (node188 gpu1) never posted Recv")
    )


def test_healthy_is_one_green_line_with_what_was_looked_at() -> None:
    (line,) = render(healthy(), width=200, colour=True).splitlines()
    assert line.startswith("\x1b[32mHEALTHY")
    for fact in ("41 iterations", "8 ranks", "median 1.61 s", "worst stage imbalance 2.6 % (stage 3)"):
        assert fact in line


def test_healthy_still_shows_warnings_and_holes() -> None:
    holes = replace(slow_window(), verdict=Verdict.HEALTHY, headline="nothing wrong", findings=())
    text = render(holes, width=120)
    assert "warning" in text
    assert "ranks 2–5: nothing recorded" in text


def test_a_long_list_of_victims_is_counted() -> None:
    text = render(hang(), width=80)
    assert "3,479 of 3,480 ranks wait for this" in text
    assert "1506–3479" not in text


def test_verbose_shows_all_evidence_and_a_page_without_it_says_how_much_is_hidden() -> None:
    short, full = render(intermittent(), width=100), render(intermittent(), width=100, verbose=True)
    assert "… 11 more with --verbose" in short
    assert "iteration 29:" not in short
    assert "iteration 29:" in full
    assert "more with --verbose" not in full


def test_the_verdict_is_not_said_twice() -> None:
    twice = replace(CASES["cannot_tell"](), headline="cannot tell: too little was seen")
    assert render(twice).startswith("CANNOT TELL  too little was seen\n")
    other = replace(slow_window(), headline="slower than ever")
    assert render(other).startswith("SLOW  slower than ever\n")


def test_a_remedy_is_not_repeated_as_a_command() -> None:
    finding = slow_window().findings[0]
    same = replace(
        slow_window(), next_steps=(NextStep(finding.remedy, "look"), NextStep("nvidia-smi -q", ""))
    )
    text = render(same, width=200)
    assert text.count(finding.remedy) == 1
    assert "1. nvidia-smi -q\n" in text


def test_kinds_that_cannot_be_separated_are_both_named() -> None:
    assert "slow compute or slow host: these recordings cannot tell which" in render(slow_window(), width=100)


def test_an_ambiguous_finding_is_not_called_a_culprit() -> None:
    text = render(CASES["hang_enqueue_only"](), width=100)
    assert "one of    rank 6" in text
    assert "culprit" not in text


def test_confidence_is_never_rounded_up_to_certainty() -> None:
    finding = replace(hang().findings[0], confidence=0.9999)
    assert "confidence 0.99" in render(replace(hang(), findings=(finding,)), width=100)


def test_how_long_ago_is_said_only_where_somebody_said_what_time_it_is() -> None:
    now = HANG_T0 + 41_207_000_000 + 432 * S
    text = report(hang(), ReportOptions(width=200, now=now))
    assert "no progress since 2026-11-30 02:13:41.207 UTC (t = 41.2 s), 7 m 12 s ago" in text
    assert " ago" not in report(hang(), ReportOptions(width=200))


def test_a_hang_that_is_over_does_not_burn_hours() -> None:
    finding = replace(hang().findings[0], status=Status.RECOVERED, window=Window(HANG_T0, HANG_T0 + 60 * S))
    text = render(replace(hang(), findings=(finding,)), width=120)
    assert "burn" not in text
    assert "recovered" in text


@pytest.mark.parametrize(
    "nasty", ["[bold red]x[/]", "\x1b[2J", "\x9b31m", "<script>", "{count}", "%s", "\u202eabc"]
)
def test_markup_and_escapes_of_the_input_stay_text(nasty: str) -> None:
    finding = replace(
        slow_window().findings[0],
        summary=nasty,
        remedy=nasty,
        evidence=(Evidence(nasty),),
        exonerated=(nasty,),
        chain=(nasty,),
        culprits=Culprits(ranks=(2,), nodes=(nasty,)),
    )
    diagnosis = replace(
        slow_window(),
        headline=nasty,
        findings=(finding,),
        warnings=(nasty,),
        next_steps=(NextStep(f"do {nasty}", nasty),),
    )
    for lang in ("en", "zh"):
        text = render(diagnosis, width=100, lang=lang)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        visible = nasty if nasty.isprintable() else nasty.encode("unicode_escape").decode("ascii")
        assert text.count(visible) >= 8


def test_a_call_between_two_iterations_is_after_the_first_of_them() -> None:
    finding = hang().findings[0]
    between = replace(
        finding, where=replace(finding.where, phase=Phase.OTHER, micro_batch=None, iteration=13)
    )
    text = render(replace(hang(), findings=(between,)), width=200)
    assert "where     stage 2 · after iteration 12 · Recv from rank 809" in text
    assert "outside" not in text
    first = replace(between, where=replace(between.where, iteration=0))
    assert "iteration 0" in render(replace(hang(), findings=(first,)), width=200)


def test_a_command_is_never_wrapped() -> None:
    command = "scontrol update nodename=" + ",".join(f"node{index}" for index in range(40))
    text = render(replace(hang(), next_steps=(NextStep(command, "drain them"),)), width=60)
    assert f"1. {command}\n" in text


@given(diagnoses, st.integers(20, 220), st.booleans(), st.booleans(), st.sampled_from(["en", "zh"]))
def test_whatever_the_analysis_says_there_is_a_page(
    diagnosis: Diagnosis, width: int, colour: bool, verbose: bool, lang: str
) -> None:
    text = render(diagnosis, width=width, colour=colour, verbose=verbose, lang=lang)
    assert text.endswith("\n")
    assert "\n\n\n" not in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", ANSI.sub("", text))
    assert text.encode("utf-8")


def test_every_phrase_exists_in_both_languages_with_the_same_holes() -> None:
    for table in (VERDICTS, KINDS, STATUSES, PHASES, LABELS, PHRASES):
        for key, (english, chinese) in table.items():
            assert english, key
            assert chinese, key
            assert sorted(re.findall(r"{\w+}", english)) == sorted(re.findall(r"{\w+}", chinese)), key


def test_every_kind_has_a_chinese_sentence() -> None:
    for kind in KINDS:
        said = "said in a way that nobody knows"
        finding = replace(slow_window().findings[0], kind=kind, summary=said)
        diagnosis = replace(slow_window(), headline=said, findings=(finding,))
        first = render(diagnosis, width=200, lang="zh").splitlines()[0]
        assert re.search(r"rank 2 [一-鿿]", first)


class TestWrap:
    def test_words(self) -> None:
        assert wrap("to be or not to be", 6) == ["to be", "or not", "to be"]

    def test_chinese_takes_two_cells_and_breaks_anywhere_but_before_punctuation(self) -> None:
        assert wrap("迭代时间变慢", 6) == ["迭代时", "间变慢"]
        assert wrap("迭代时，间变", 6) == ["迭代", "时，间", "变"]

    def test_a_number_stays_with_its_unit_and_a_name_with_its_number(self) -> None:
        text = "rank 809 lost 17.1 s in iterations 21–31: 1.61 → 3.25 s, 5 % of micro-batch 1"
        for width in range(18, 60):
            lines = wrap(text, width)
            assert " ".join(lines) == text
            for line in lines:
                assert not re.search(r"(\brank|iterations|micro-batch|→|\d →)$", line), (width, line)
                assert not re.match(r"(s\b|%|→)", line), (width, line)

    def test_a_long_item_goes_on_beside_a_short_one(self) -> None:
        assert wrap("P3 · the whole job stood still between iterations", 24)[0] == "P3 · the whole job stood"

    def test_items_joined_by_dots_stay_whole(self) -> None:
        assert wrap("rank 1 · node188 · gpu1 of 8", 18) == ["rank 1 · node188 ·", "gpu1 of 8"]

    def test_a_word_longer_than_the_line_is_cut(self) -> None:
        assert wrap("abcdefgh", 3) == ["abc", "def", "gh"]

    @given(st.text(), st.integers(2, 50))
    def test_nothing_is_lost_but_blanks(self, text: str, width: int) -> None:
        assert re.sub(r"\s", "", "".join(wrap(text, width))) == re.sub(r"\s", "", text)

    def test_clip(self) -> None:
        assert clip("迭代时间", 5) == "迭代…"
        assert clip("abc", 3) == "abc"


def test_both_reports_are_in_the_catalogue() -> None:
    declared = {item.name: item.metadata for item in reports.declarations()}
    assert declared["text"] == {"file": "diagnosis.txt", "format": True}
    assert declared["json"] == {"file": "diagnosis.json", "format": True}


def test_what_failed_was_seen_first_and_does_not_go_on() -> None:
    finding = replace(hang().findings[0], kind=Kind.RESOURCE, window=Window(HANG_T0, None))
    text = render(replace(hang(), verdict=Verdict.FAILED, findings=(finding,)), width=100)
    (when,) = (line for line in text.splitlines() if line.startswith("  when"))
    assert when.split(maxsplit=1)[1].startswith("first seen 20")
    assert "still so" not in text


def test_a_window_without_length_is_one_moment() -> None:
    finding = replace(hang().findings[0], window=Window(HANG_T0, HANG_T0 + 1_000_000))
    (when,) = (line for line in render(replace(hang(), findings=(finding,))).splitlines() if "  when" in line)
    assert "–" not in when


def test_nobody_is_not_one_of_several() -> None:
    finding = replace(hang().findings[0], culprits=Culprits(), ambiguous=True)
    text = render(replace(hang(), findings=(finding,)))
    assert "  culprit   no single rank" in text
    assert "one of" not in text


def test_a_note_that_is_the_headline_is_said_once_and_begins_beside_its_severity() -> None:
    said = "all errors are on one path: hca mlx5_10 of node-d towards 10.20.1.13, which lost packets or died"
    note = replace(hang().findings[0], severity=Severity.P3, summary=f"{said}.")
    told = replace(hang(), verdict=Verdict.UNDECIDABLE, headline=f"{said}.", findings=(note,), next_steps=())
    assert render(told, width=300).count(said) == 1
    other = render(replace(told, headline="two explanations fit."), width=100)
    assert "  note      P3 · all errors" in other


def test_the_verdict_is_not_repeated_before_an_untranslated_sentence() -> None:
    odd = replace(slow_window(), headline="SLOW: the moon stood in the way.")
    text = render(odd, lang="zh")
    assert "the moon stood in the way" in text
    assert "SLOW" not in text
