"""Sentences in Chinese: a pattern fits what it was written for, keeps every number, and never half fits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from megatrace.model.finding import Kind, Severity
from megatrace.model.xid import XIDS, Action, xid
from megatrace.reports.sentences_zh import _PHRASES, SENTENCES, phrase, translated
from megatrace.reports.terminal import render
from tests.unit.report_cases import healthy, slow_window

SAMPLES = {
    "y": "sync_buffers (train.py:650)",
    "what": "rank 13 died", "who": "rank 13 (node1 gpu5)", "when": "in iterations 21–31", "axis": "TP",
    "phase": "forward of micro-batch 3", "call": "ALL_REDUCE #1,610 of TP group 6 of stage 1", "op": "RECV",
    "comm": "the world group", "rest": "rank 7 at RECV #4 of the world group", "x": "2.5",
    "why": "others went on for 101.3 ms after it", "name": "TP group 6 of stage 1 (ranks 12, 13)",
    "node": "node7", "t": "7 m 12 s", "u": "1.61", "v": "3.25", "n": "1,234", "m": "8", "k": "12", "s": "2",
    "g": "4", "p": "97", "r": "11", "file": "logs/rank_3.log", "differs": "4 elements", "all": "32",
    "a": "17", "b": "18", "c": "19", "dev": "GPU 3", "host": "node7",
    "bare": "ALLREDUCE seq 7", "grp": "PG 3 (tp)", "q": "rank 9",
    "said": "IndexError: the list is at its end",
}  # fmt: skip


NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def sample(english: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: SAMPLES[match[1]], english)


@pytest.mark.parametrize(("english", "chinese"), SENTENCES + _PHRASES)
def test_a_pattern_translates_its_own_sentence(english: str, chinese: str) -> None:
    text = sample(english)
    made = phrase(text)
    assert re.search("[\u4e00-\u9fff]", made) or "ranks {r}" in english, text
    dropped = set(re.findall(r"{\w+}", english)) - set(re.findall(r"{\w+}", chinese))
    assert dropped <= {"{x}", "{rest}"}  # "drain it", "its host"
    if not dropped:
        assert sorted(NUMBER.findall(text)) == sorted(NUMBER.findall(made)), made


def test_no_two_patterns_are_the_same() -> None:
    both = [english for english, _ in SENTENCES + _PHRASES]
    assert len(set(both)) == len(both)


@pytest.mark.parametrize(
    "text",
    [
        "rank 3 sang a song that the others had never heard, recovered",
        "the committee of ranks stopped calling: stage 2, iteration 4",
        "the job stands: the moon is full",
        "",
        "megatrace diagnose PATH --now TIME",
    ],
)
def test_what_is_not_known_stays_as_it_is(text: str) -> None:
    assert translated(text) is None


def test_a_whole_sentence() -> None:
    said = (
        "rank 13 (node1 gpu5) never posted ALL_REDUCE #1,610 of TP group 6 of stage 1: stage 1, backward of "
    )
    assert translated(said + "micro-batch 3, iteration 12") == (
        "rank 13 (node1 gpu5) 一直没有发起 stage 1 的 TP 组 6 的 ALL_REDUCE #1,610"
        "（stage 1，micro-batch 3 的反向，第 12 次迭代）"
    )


def test_a_note_without_translation_claims_nothing_in_chinese() -> None:
    said = "the moon stood in the way, or a cable"
    note = replace(slow_window().findings[0], kind=Kind.HARDWARE, severity=Severity.P3, summary=said)
    text = render(replace(healthy(), findings=(note,)), lang="zh")
    assert said in text
    assert "硬件故障" not in text


def test_what_has_no_ranks_is_not_said_to_have_been_looked_at_by_rank() -> None:
    job = replace(healthy().job, ranks=0, ranks_seen=0)
    text = render(replace(healthy(), headline="nobody has translated this", job=job), lang="zh")
    assert "0 个 rank" not in text
    assert text.startswith("正常  未发现")


def test_every_xid_code_and_what_is_done_about_it_has_its_words() -> None:
    codes = [*XIDS.values(), xid(999)]
    assert [code.code for code in codes if phrase(code.meaning) == code.meaning] == []
    asked = {f"{action.value[0].upper()}{action.value[1:]}." for action in Action}
    assert {text for text in asked if translated(text) is None} == set()
