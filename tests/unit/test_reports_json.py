"""The JSON report: the published schema, what stands under each key, and that no value can break it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace.model.events import UNSEEN
from megatrace.model.finding import (
    ClockInfo,
    Culprits,
    Diagnosis,
    Evidence,
    Finding,
    Impact,
    JobSummary,
    Kind,
    Severity,
    StageTimes,
    Status,
    Verdict,
    Where,
    Window,
)
from megatrace.model.job import ScheduleKind
from megatrace.model.layout import ParallelLayout
from megatrace.model.schedule import Phase, Schedule
from megatrace.model.trace import Coverage, Gap, InputInfo, Observable, RankPlace
from megatrace.reports import schema as shape
from megatrace.reports.jsonfile import schema, to_dict, to_json
from tests.unit.report_cases import CASES, HANG_T0, T0, cannot_tell, hang, intermittent, slow_window

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "docs/reference/diagnosis.schema.json"
GOLDEN = ROOT / "tests/golden/reports"
SCHEMA = schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def parsed(diagnosis: Diagnosis, generated_at: int | None = None) -> dict[str, Any]:
    """The report read back by a parser that refuses NaN and Infinity, as most parsers do."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    data = json.loads(to_json(diagnosis, generated_at=generated_at), parse_constant=refuse)
    assert isinstance(data, dict)
    return data


def test_the_published_schema_is_the_one_in_the_code() -> None:
    text = json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("MEGATRACE_UPDATE_GOLDEN"):
        PUBLISHED.write_text(text, encoding="utf-8")
    assert PUBLISHED.read_text(encoding="utf-8") == text, "run this test with MEGATRACE_UPDATE_GOLDEN=1"


def test_the_schema_is_valid_itself_and_requires_every_key() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    objects = [SCHEMA, *SCHEMA["$defs"].values()]
    assert len(objects) > 15
    for item in objects:
        assert sorted(item["required"]) == sorted(item["properties"])


def test_the_schema_names_exactly_the_kinds_verdicts_and_phases_of_the_model() -> None:
    assert set(get_args(shape.KindName)) == {kind.value for kind in Kind}
    assert set(get_args(shape.VerdictName)) == {verdict.value for verdict in Verdict}
    assert set(get_args(shape.StatusName)) == {status.value for status in Status}
    assert set(get_args(shape.PhaseName)) == {phase.value for phase in Phase}
    assert list(get_args(shape.SeverityName)) == [severity.name for severity in Severity]


def test_the_keys_of_the_top_level_are_those_of_the_first_version() -> None:
    assert list(parsed(slow_window())) == [
        "schema", "tool_version", "generated_at", "verdict", "headline", "inputs", "clock", "job", "findings",
        "stages", "alternatives", "next_steps", "warnings", "ranks_map", "coverage",
    ]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_case_fits_the_schema(name: str) -> None:
    VALIDATOR.validate(parsed(CASES[name](), generated_at=HANG_T0))


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.json"
    diagnosis = CASES[name]()  # of a large job with a few of its ranks' places: nobody reads thousands
    text = to_json(replace(diagnosis, places=diagnosis.places[1504:1507]), generated_at=HANG_T0)
    if os.environ.get("MEGATRACE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "look at it, then run with MEGATRACE_UPDATE_GOLDEN=1"


def test_times_are_seconds_after_t0_and_t0_is_a_string() -> None:
    data = parsed(slow_window(), generated_at=HANG_T0 + 999_999_999)
    assert data["clock"]["t0_ns"] == "1755590104248717000"
    assert data["findings"][0]["window"] == {
        "start_s": 66.8,
        "end_s": 101.0,
        "first_iteration": 21,
        "last_iteration": 31,
    }
    assert data["job"]["span_s"] == [0.0, 116.2]
    assert data["coverage"]["gaps"][0] == {"rank": 2, "start_s": 30.4, "end_s": 62.0, "records_lost": 5000}
    assert data["generated_at"] == "2026-11-30T02:13:00Z"


def test_rank_sets_are_ranges_and_culprits_a_list() -> None:
    data = parsed(hang())
    assert data["findings"][0]["victims"] == {"ranks": "0-1504,1506-3479"}
    assert data["findings"][0]["culprits"] == {
        "ranks": [1505],
        "nodes": ["node188"],
        "devices": [{"node": "node188", "device": "gpu1"}],
        "links": [],
    }
    assert parsed(cannot_tell())["coverage"]["ranks_missing"] == "40-47"


def test_links_are_objects_with_both_ends() -> None:
    (link,) = parsed(intermittent())["findings"][0]["culprits"]["links"]
    assert link == {
        "src": {"rank": 12, "node": "node1", "device": "gpu4", "port": 1},
        "dst": {"rank": 44, "node": "node5", "device": "gpu4", "port": None},
    }


def test_what_is_not_known_is_null_and_not_left_out() -> None:
    data = parsed(Diagnosis(Verdict.UNDECIDABLE, "nothing was read", JobSummary(ranks=0, ranks_seen=0)))
    VALIDATOR.validate(data)
    assert data["job"]["layout"] is None
    assert data["job"]["iteration_ms"] == {"median": None, "p95": None}
    assert data["job"]["span_s"] is None
    assert data["ranks_map"] is None
    assert data["generated_at"] is None
    assert data["clock"]["error_us"] is None


def test_one_line_for_each_rank_of_the_map() -> None:
    lines = to_json(hang()).splitlines()
    assert '    {"rank": 1505, "node": "node188", "local_rank": 1, "device": "gpu1"},' in lines
    assert len(lines) < 3480 + 250


def test_findings_without_an_id_are_numbered() -> None:
    diagnosis = slow_window()
    twice = replace(diagnosis, findings=tuple(replace(diagnosis.findings[0], id="") for _ in range(2)))
    assert [finding["id"] for finding in parsed(twice)["findings"]] == ["f1", "f2"]


def test_nan_infinity_and_unseen_times_become_null() -> None:
    finding = replace(
        slow_window().findings[0],
        impact=Impact(math.inf, math.nan, -math.inf),
        evidence=(Evidence("a quotient of zeros", math.nan, "ms"),),
        window=Window(UNSEEN, UNSEEN),
        confidence=math.nan,
    )
    data = parsed(
        replace(
            slow_window(), findings=(finding,), stages=(StageTimes(0, math.nan, 1.23456, None, math.inf),)
        )
    )
    VALIDATOR.validate(data)
    assert data["findings"][0]["impact"] == {"slowdown": None, "seconds_lost": None, "gpu_hours_lost": None}
    assert data["findings"][0]["evidence"][0]["value"] is None
    assert data["findings"][0]["window"]["start_s"] is None
    assert data["findings"][0]["confidence"] is None
    assert data["stages"][0] == {
        "stage": 0, "forward_ms": None, "backward_ms": 1.235, "work_ms": None, "wait_ms": None
    }  # fmt: skip


def test_numpy_integers_and_odd_strings_are_plain_json() -> None:
    finding = replace(
        slow_window().findings[0],
        summary="rank \x1b[31m2\x00 in \udce9t\u202e",
        culprits=Culprits(ranks=tuple(np.array([2, 1]))),
        victims=tuple(np.arange(3, 6)),
        where=Where(stage=np.arange(2)[1], seq=np.arange(4712)[4711]),
    )
    data = parsed(replace(slow_window(), findings=(finding,)))
    assert data["findings"][0]["summary"] == r"rank \x1b[31m2\x00 in \udce9t\u202e"
    assert data["findings"][0]["culprits"]["ranks"] == [1, 2]
    assert data["findings"][0]["victims"]["ranks"] == "3-5"
    to_json(replace(slow_window(), findings=(finding,))).encode("utf-8")


words = st.text() | st.none()
observables = st.frozensets(st.sampled_from(Observable))
numbers = st.floats() | st.none()
positive = st.floats(min_value=0) | st.none()
counts = st.integers(0, 20_000) | st.none()
times = st.integers(0, 2**62)
ranks = st.lists(st.integers(0, 300), max_size=8).map(lambda items: tuple(sorted(set(items))))
layouts = (
    st.builds(ParallelLayout, tp=st.integers(1, 8), pp=st.integers(1, 8), dp=st.integers(1, 8)) | st.none()
)
findings = st.builds(
    Finding,
    kind=st.sampled_from(Kind),
    severity=st.sampled_from(Severity),
    summary=st.text(),
    status=st.sampled_from(Status),
    confidence=st.floats(0, 1),
    kind_alternatives=st.lists(st.sampled_from(Kind), max_size=2).map(tuple),
    ambiguous=st.booleans(),
    culprits=st.builds(Culprits, ranks=ranks, nodes=st.lists(st.text(), max_size=2).map(tuple)),
    victims=ranks,
    where=st.builds(
        Where, stage=counts, iteration=counts, micro_batch=counts, seq=counts, peer=counts,
        phase=st.sampled_from(Phase) | st.none(), op=words, communicator=words,
    ),
    window=st.builds(Window, times, times | st.none(), counts, counts) | st.none(),
    impact=st.builds(Impact, positive, numbers, numbers),
    evidence=st.lists(st.builds(Evidence, st.text(), numbers, st.text() | st.none()), max_size=4).map(tuple),
    exonerated=st.lists(st.text(), max_size=2).map(tuple),
    chain=st.lists(st.text(), max_size=2).map(tuple),
    remedy=st.text(),
)  # fmt: skip
diagnoses = st.builds(
    Diagnosis,
    verdict=st.sampled_from(Verdict),
    headline=st.text(),
    job=st.builds(
        JobSummary, ranks=st.integers(0, 400), ranks_seen=st.integers(0, 400), nodes=counts, layout=layouts,
        layout_source=st.sampled_from(["inferred", "config", None]),
        schedule=st.just(Schedule(ScheduleKind.GPIPE, 2, 4)) | st.none(), iterations=counts,
        iteration_median_ms=positive, iteration_p95_ms=positive, first_time=times, last_time=times,
    ),
    findings=st.lists(findings, max_size=4).map(tuple),
    clock=st.builds(ClockInfo, t0=times, reference=st.text() | st.none(), error_us=numbers),
    inputs=st.lists(
        st.builds(InputInfo, st.text(), st.text(), observables, st.integers(0, 9)),
        max_size=4,
    ).map(tuple),
    stages=st.lists(
        st.builds(StageTimes, st.integers(0, 40), positive, positive, positive, positive), max_size=20
    ).map(tuple),
    alternatives=st.lists(st.text(), max_size=2).map(tuple),
    places=st.lists(st.builds(RankPlace, st.integers(0, 300), st.text()), max_size=3).map(tuple),
    coverage=st.builds(
        Coverage,
        ranks_missing=ranks,
        gaps=st.lists(st.builds(Gap, st.integers(0, 300), times, times, counts), max_size=5).map(tuple),
        torn_tails=ranks,
        notes=st.lists(st.text(), max_size=6).map(tuple),
    ),
    warnings=st.lists(st.text(), max_size=2).map(tuple),
)  # fmt: skip


@given(diagnoses)
def test_whatever_the_analysis_says_the_json_fits_the_schema(diagnosis: Diagnosis) -> None:
    data = parsed(diagnosis)
    VALIDATOR.validate(data)
    assert data["verdict"] == diagnosis.verdict.value
    assert to_dict(diagnosis) == data


def test_the_clock_zero_survives_a_round_trip_exactly() -> None:
    assert int(parsed(slow_window())["clock"]["t0_ns"]) == T0
