"""The HTML report: golden pages, one file that runs and loads nothing else, strings that stay text, data."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import string
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

from megatrace import __version__
from megatrace.commands.main import main
from megatrace.model.finding import ClockInfo, Diagnosis, JobSummary, Pictures, Severity, Verdict
from megatrace.model.layout import ParallelLayout
from megatrace.model.trace import Observable
from megatrace.reports import ReportOptions
from megatrace.reports.html import render
from megatrace.reports.html_data import MAX_CELLS, UNKNOWN, data_block, json_text, rows_joined
from megatrace.reports.html_texts import PAGE, SCRIPT
from tests.unit.html_cases import PAYLOADS, PICTURED, hang, imbalance, poisoned, slow_window
from tests.unit.test_reports_json import diagnoses

GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/reports"
OPTIONS = ReportOptions(generated_at=1_796_004_780_000_000_000, command="megatrace diagnose logs/")
MAX_BYTES = 5_000_000
PHASES_SAID = ("forward", "backward", "sync", "other")
VOID = {"meta", "rect", "br", "link", "img", "input"}


class Page(HTMLParser):
    """A page as a browser reads it: its elements with attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.inside: dict[str, str] = {}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            kind = next(a.get("type") or tag for tag, a in reversed(self.elements) if tag == self.open[-1])
            self.inside[kind] = self.inside.get(kind, "") + data
        else:
            self.text += data

    def attribute(self, tag: str, name: str) -> list[str | None]:
        return [attrs[name] for element, attrs in self.elements if element == tag and name in attrs]


def unpacked(page: Page) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    facts = json.loads(page.inside["application/json"])
    raw = zlib.decompress(base64.b64decode(page.inside["text/plain"]))
    kinds = {"u1": np.uint8, "u2": np.uint16, "i4": np.int32, "f4": np.float32}
    arrays = {
        name: np.frombuffer(raw, kinds[kind], size, at) for name, (kind, at, size) in facts["arrays"].items()
    }
    return arrays, facts


def settled(html: str) -> str:
    """A page without what changes with its script, its style, versions and the packing of bytes."""
    html = re.sub(r"<style>.*?</style>", "<style></style>", html, flags=re.S)
    html = re.sub(r"<script>.*?</script>", "<script></script>", html, flags=re.S)
    html = re.sub(r'(id="packed">)[^<]*', r"\1", html)
    html = re.sub(r"sha256-[A-Za-z0-9+/=]+", "sha256-", html)
    html = re.sub(r'"words":\{[^}]*\}', '"words":{}', html)
    html = re.sub(r'"places":\{[^}]*\}', '"places":{}', html)
    return html.replace(__version__, "VERSION")


@pytest.mark.parametrize("name", PICTURED)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.html.txt"
    text = settled(render(PICTURED[name](), OPTIONS))
    if os.environ.get("MEGATRACE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "look at it, then run with MEGATRACE_UPDATE_GOLDEN=1"


class TestOneFile:
    @pytest.mark.parametrize("name", PICTURED)
    def test_the_policy_allows_its_own_script_and_style_and_nothing_else(self, name: str) -> None:
        page = Page(render(PICTURED[name](), OPTIONS))
        (policy,) = [
            attrs["content"] or ""
            for tag, attrs in page.elements
            if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
        ]
        allowed = {part.split()[0]: part.split()[1:] for part in policy.split("; ")}
        assert allowed["default-src"] == ["'none'"]
        assert set(allowed) == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
        for directive, kind in (("script-src", "script"), ("style-src", "style")):
            digest = hashlib.sha256(page.inside[kind].encode("utf-8")).digest()
            assert allowed[directive] == [f"'sha256-{base64.b64encode(digest).decode()}'"]

    @pytest.mark.parametrize("name", PICTURED)
    def test_nothing_is_loaded_and_nothing_runs_beside_the_script(self, name: str) -> None:
        page = Page(render(PICTURED[name](), OPTIONS))
        names = {name for _, attrs in page.elements for name in attrs}
        assert not {item for item in names if item.startswith("on") or item in ("style", "src", "action")}
        assert page.attribute("a", "href") == ["#pictures"]
        assert not {tag for tag, _ in page.elements} & {
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
        }
        assert [attrs.get("type") for tag, attrs in page.elements if tag == "script"] == [
            "application/json",
            "text/plain",
            None,
        ]
        assert not re.search(
            r"https?://|url\(|@import|\beval\(|new Function|fetch\(|import\(", page.inside["script"]
        )
        assert not re.search(r"https?://|url\(|@import", page.inside["style"])

    def test_every_element_that_is_opened_is_closed(self) -> None:
        for make in PICTURED.values():
            assert render(make(), OPTIONS).startswith("<!DOCTYPE html>\n<html ")
            assert Page(render(make(), OPTIONS)).open == []


class TestWords:
    def test_the_first_screen_says_who_when_why_and_what_to_do_in_this_order(self) -> None:
        text = Page(render(slow_window(), OPTIONS)).text
        order = [
            "SLOW",
            "rank 2 (stage 1, TP 0) computed 2.5×",
            "Culprit",
            "rank 2",
            "iterations 21–31",
            "17.1 s of",
            "0.97",
            "Why",
            "stage 1 worked 2,553 ms",
            "What to do",
            "Look at the clocks",
            "Iteration time",
        ]
        at = 0
        for words in order:
            assert words in text[at:], words
            at = text.index(words, at)

    def test_the_word_of_the_verdict_is_not_said_twice(self) -> None:
        page = Page(render(replace(slow_window(), headline="SLOW: it was the moon."), OPTIONS))
        assert "SLOW it was the moon\n" in page.text

    def test_of_a_job_that_stands_the_unfinished_iteration_comes_first(self) -> None:
        page = Page(render(hang(), OPTIONS))
        assert page.attribute("div", "data-figure") == ["gantt", "iterations", "heat"]
        assert "Hollow: begun and never finished" in page.text
        slow = Page(render(slow_window(), OPTIONS)).attribute("div", "data-figure")
        assert slow == ["iterations", "heat", "gantt", "late", "queue_depth", "bandwidth"]

    def test_the_chain_leads_from_the_victim_to_the_culprit(self) -> None:
        text = Page(render(hang(), OPTIONS)).text
        steps = [text.index(f"rank {a} waits for rank {b}") for a, b in ((0, 696), (696, 1392), (1504, 1505))]
        assert steps == sorted(steps)

    def test_cannot_tell_says_what_fits_what_is_missing_and_what_to_collect(self) -> None:
        text = Page(render(PICTURED["cannot_tell"](), OPTIONS)).text
        for words in (
            "rank 12 (node1 gpu4) never entered",
            "recordings of ranks 40–47",
            "megatrace collect --nodes node5",
        ):
            assert words in text
        assert "did not show enough to draw a picture" in text

    def test_each_value_of_the_configuration_has_its_source(self) -> None:
        page = Page(render(PICTURED["intermittent"](), OPTIONS))
        assert re.search(r"TP\s+8\s+as declared", page.text)
        assert re.search(r"TP\s+2\s+from the calls", Page(render(slow_window(), OPTIONS)).text)

    def test_a_log_without_ranks_and_times_has_no_configuration(self) -> None:
        told = replace(
            PICTURED["cannot_tell"](), job=JobSummary(ranks=0, ranks_seen=0), clock=ClockInfo(t0=0)
        )
        assert "Configuration" not in Page(render(told, OPTIONS)).text

    def test_the_window_of_a_note_is_neither_shaded_nor_said_to_be(self) -> None:
        note = replace(PICTURED["slow_window"]().findings[0], severity=Severity.P3)
        told = replace(PICTURED["slow_window"](), verdict=Verdict.HEALTHY, findings=(note,))
        assert "Shaded" in Page(render(PICTURED["slow_window"](), OPTIONS)).text
        assert "Shaded" not in Page(render(told, OPTIONS)).text

    def test_the_command_that_repeats_it_is_there_to_be_copied(self) -> None:
        assert "megatrace diagnose logs/" in Page(render(slow_window(), OPTIONS)).attribute(
            "button", "data-copy"
        )
        without = Page(render(slow_window(), replace(OPTIONS, command=""))).text
        assert "How to reproduce" not in without

    def test_in_chinese_every_fixed_word_is_and_what_cannot_be_translated_stays_english(self) -> None:
        odd = replace(slow_window(), headline="SLOW: the moon stood in the way.")
        page = Page(render(odd, replace(OPTIONS, lang="zh")))
        assert page.attribute("html", "lang") == ["zh"]
        for words in ("变慢", "故障点", "迭代时间", "如何复现", "the moon stood in the way"):
            assert words in page.text
        assert "SLOW:" not in page.text  # the verdict stands there in Chinese
        assert "the moon" not in Page(render(slow_window(), replace(OPTIONS, lang="zh"))).text
        assert "计算用时为平时的 2.5 倍" in Page(render(slow_window(), replace(OPTIONS, lang="zh"))).text
        for words in ("Culprit", "Iteration time", "How to reproduce", "Configuration"):
            assert words not in page.text

    def test_the_script_says_only_words_that_there_are_and_no_word_is_left_over(self) -> None:
        script = Page(render(slow_window(), OPTIONS)).inside["script"]
        said = set(re.findall(r"\bwords\.(\w+)", script)) | set(PHASES_SAID) | {"relative", "absolute"}
        assert said | {"auto", "light", "dark"} == set(SCRIPT)

    @pytest.mark.parametrize("table", [PAGE, SCRIPT], ids=["page", "script"])
    def test_both_languages_take_the_same_values(self, table: dict[str, tuple[str, str]]) -> None:
        for key, (english, chinese) in table.items():
            assert english, key
            assert chinese, key
            names = [
                {name for _, name, _, _ in string.Formatter().parse(text) if name}
                for text in (english, chinese)
            ]
            assert names[0] == names[1], key


class TestText:
    @pytest.mark.parametrize("lang", ["en", "zh"])
    @pytest.mark.parametrize("name", PICTURED)
    def test_markup_in_any_string_adds_no_element(self, name: str, lang: str) -> None:
        options = replace(OPTIONS, lang=lang)
        clean = Page(render(PICTURED[name](), options))
        page = Page(render(poisoned(PICTURED[name]()), replace(options, command=" ".join(PAYLOADS))))
        assert {tag for tag, _ in page.elements} <= {tag for tag, _ in clean.elements} | {"h2"}
        assert not {n for _, attrs in page.elements for n in attrs} - {
            n for _, a in clean.elements for n in a
        }
        assert PAYLOADS[0] in page.text
        assert page.inside["script"] == clean.inside["script"]
        unpacked(page)

    def test_json_cannot_end_its_element(self) -> None:
        text = json_text({"a": "</script><!-- & \u2028"})
        assert not set("<>&\u2028") & set(text)
        assert json.loads(text) == {"a": "</script><!-- & \u2028"}

    # A page takes longer to make than a line of text, and a busy machine is no bug.
    @settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
    @given(diagnoses)
    def test_any_diagnosis_makes_a_whole_page(self, diagnosis: Diagnosis) -> None:
        page = Page(render(diagnosis, OPTIONS))
        assert page.open == []
        unpacked(page)


class TestData:
    def test_times_and_tasks_come_back(self) -> None:
        diagnosis = slow_window()
        arrays, facts = unpacked(Page(render(diagnosis, OPTIONS)))
        p = diagnosis.pictures
        assert p.iteration_ms is not None
        assert p.task_start_s is not None
        np.testing.assert_allclose(arrays["iteration_ms"], p.iteration_ms, rtol=1e-6)
        np.testing.assert_allclose(
            arrays["task_start"] / 1e3 + facts["tasks"]["zero"], p.task_start_s, atol=1e-5
        )
        assert arrays["late"].size == 400
        assert next(item["name"] for item in facts["series"]) == "node0 mlx5_0 to rank 4"

    def test_work_comes_back_to_a_step_of_the_scale_and_what_is_not_known_as_such(self) -> None:
        diagnosis = slow_window()
        arrays, facts = unpacked(Page(render(diagnosis, OPTIONS)))
        scale = facts["work"]
        levels = arrays["work"].reshape(scale["rows"], scale["columns"])
        work = diagnosis.pictures.work_ms
        assert work is not None
        assert (levels[:, 0] == UNKNOWN).all()
        step = np.log(scale["high"] / scale["low"]) / (scale["levels"] - 1)
        back = scale["low"] * np.exp(levels[:, 1:] * step)
        assert np.abs(np.log(back / work[:, 1:])).max() <= step / 2 * 1.01
        assert step < 0.01

    def test_rows_go_by_stage_then_by_group_whatever_the_order_of_ranks(self) -> None:
        layout = ParallelLayout(tp=2, pp=2, dp=2, order="pp-dp-cp-ep-tp")
        arrays = data_block(_worked(layout, np.ones((8, 3)))).arrays
        stages, grid = layout.stages(), layout.grid().reshape(-1)
        assert arrays["work_rank"].tolist() == grid.tolist()
        assert arrays["work_stage"].tolist() == [int(stages[rank]) for rank in grid]

    def test_a_stage_is_compared_to_its_own_median(self) -> None:
        work = np.ones((8, 40))
        work[4:] = 3.0
        work[1, 30:] = 9.0
        block = data_block(_worked(ParallelLayout(tp=2, pp=2, dp=2), work))
        levels = block.arrays["work"].reshape(8, 40)
        assert block.arrays["work_middle"].tolist() == [levels[0, 0], levels[4, 0]]

    def test_one_absurd_value_leaves_the_scale_to_the_others(self) -> None:
        work = np.full((4, 20), 100.0)
        work[2, 5:] = 150.0
        work[0, 0] = 1e12
        levels = data_block(_worked(ParallelLayout(tp=4), work)).arrays["work"].reshape(4, 20)
        assert int(levels[2, 9]) - int(levels[1, 9]) > 15

    def test_where_rows_are_joined_the_slow_one_stays_seen(self) -> None:
        ranks, columns = 20_000, 400
        assert rows_joined(ranks * columns) == 3
        work = np.full((ranks, columns), 100.0, np.float32)
        work[12_346] = 250.0
        diagnosis = _worked(ParallelLayout(tp=8, dp=2_500), work)
        block = data_block(diagnosis)
        levels = block.arrays["work"].reshape(-1, columns)
        assert levels.size <= MAX_CELLS
        assert (levels[12_346 // 3] > levels[0]).all()
        assert len(block.arrays["work_rank"]) == ranks
        assert "3 neighbouring ranks share a row" in Page(render(diagnosis, OPTIONS)).text

    def test_a_full_heat_map_of_noise_stays_below_five_megabytes(self) -> None:
        layout = ParallelLayout(tp=8, pp=16, dp=128)
        noise = np.exp(np.random.default_rng(1).uniform(0, 3, (16_384, 200))).astype(np.float32)
        html = render(_worked(layout, noise), OPTIONS)
        assert len(html.encode("utf-8")) < MAX_BYTES

    def test_a_queue_that_filled_for_a_moment_is_seen_after_thinning(self) -> None:
        diagnosis = slow_window()
        item = diagnosis.pictures.series[0]
        values = np.zeros(50_000)
        values[31_417] = 900.0
        long = replace(item, times=item.times[0] + np.arange(50_000), values=values)
        block = data_block(replace(diagnosis, pictures=replace(diagnosis.pictures, series=(long,))))
        assert block.arrays["series_value"].size <= 4_000
        assert block.arrays["series_value"].max() == 900.0

    def test_pictures_of_nothing_known_are_left_out(self) -> None:
        none = np.full(3, np.nan)
        pictures = Pictures(iteration=np.arange(3), iteration_start_s=none, iteration_ms=none)
        page = Page(render(replace(slow_window(), pictures=pictures), OPTIONS))
        assert page.attribute("div", "data-figure") == []

    def test_an_imbalance_is_drawn_in_milliseconds_for_no_stage_differs_from_itself(self) -> None:
        _, facts = unpacked(Page(render(imbalance(), OPTIONS)))
        assert facts["marks"]["absolute"] is True
        assert facts["marks"]["stage"] == 3
        assert unpacked(Page(render(slow_window(), OPTIONS)))[1]["marks"]["absolute"] is False

    def test_a_row_of_host_times_stands_for_a_tensor_group(self) -> None:
        slow = slow_window()
        assert slow.job.layout is not None
        seen = frozenset(slow.coverage.observables) - {Observable.START, Observable.END}
        for more, together in (({Observable.START, Observable.END}, 1), (set(), slow.job.layout.tp)):
            told = replace(slow, coverage=replace(slow.coverage, observables=seen | more))
            assert unpacked(Page(render(told, OPTIONS)))[1]["marks"]["together"] == together

    def test_the_critical_path_is_spoken_of_where_it_is_drawn(self) -> None:
        slow = PICTURED["slow_window"]()
        tasks = slow.pictures.task_stage
        assert tasks is not None
        for drawn in (True, False):
            pictures = replace(slow.pictures, task_critical=np.full(len(tasks), drawn))
            said = Page(render(replace(slow, pictures=pictures), OPTIONS)).text
            assert ("The bold line is the critical path" in said) is drawn


def _worked(layout: ParallelLayout, work: NDArray[Any]) -> Diagnosis:
    pictures = Pictures(
        iteration=np.arange(work.shape[1]),
        iteration_start_s=np.arange(work.shape[1], dtype=np.float64),
        iteration_ms=np.full(work.shape[1], 1000.0),
        work_ranks=np.arange(layout.world_size, dtype=np.int32),
        work_ms=work.astype(np.float32),
    )
    job = JobSummary(ranks=layout.world_size, ranks_seen=layout.world_size, layout=layout)
    return Diagnosis(Verdict.HEALTHY, "nothing wrong", job, pictures=pictures)


def test_the_demo_writes_the_page_with_the_command_that_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "page" / "report.html"
    assert main(["demo", "--job", "small", "--out", str(tmp_path / "job"), "--html", str(html)]) == 0
    logs = tmp_path / "job" / "logs"
    text = html.read_text(encoding="utf-8")
    assert f"megatrace diagnose {logs} --ranks-per-node 8" in text
    assert str(html) in capsys.readouterr().out
    again = tmp_path / "again.html"
    assert main(["diagnose", str(logs), "--ranks-per-node", "8", "--html", str(again)]) == 10
    assert settled(again.read_text("utf-8")).partition("</h1>")[0] == settled(text).partition("</h1>")[0]
