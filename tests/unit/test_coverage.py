"""The denominator of coverage is whole, and the rule that scores a row can say no."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml

from benchmarks import coverage_around, coverage_faults
from benchmarks.coverage import ROWS, score, totals
from megatrace.bot.inspecting import catalogue
from megatrace.model.check import Scope, Step
from megatrace.model.finding import Kind

TABLE: dict[str, Any] = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
BY_ID = {row["id"]: row for row in TABLE["rows"]}
ELSEWHERE = {"psu_lost", "fan_failed", "sel", "switch_port_down", "slurm_down", "solo_hang"}


def test_the_weights_are_those_that_were_published() -> None:
    counts: Counter[str] = Counter()
    for row in TABLE["rows"]:
        counts[row["cause"]] += row["weight"]
    assert sum(count for row, count in counts.items() if "without an error" not in row) == 419
    assert (counts["faulty GPU"], counts["GPU HBM3 memory"], counts["software bug"]) == (148, 72, 54)
    assert (counts["network switch or cable"], counts["silent data corruption"]) == (35, 6)


def test_every_row_can_be_tried_and_asks_for_things_that_exist() -> None:
    checks = {item.id for item in catalogue()} | {kind.value for kind in Kind} | {"GPU-27"}
    steps = {step.value for step in Step}
    assert len(BY_ID) == len(TABLE["rows"])
    for row in TABLE["rows"]:
        assert set(row["found"]) <= checks, row["id"]
        assert set(row["action"]) <= steps, row["id"]
        known = {*coverage_faults.FAULTS, *ELSEWHERE}
        assert (
            row.get("through") == "diagnose" or row.get("covered") is False or row["fault"]["name"] in known
        )


@pytest.mark.parametrize(
    "name", ["gpu-gone", "port-down", "psu-event", "switch-port", "host-silent", "bug-python"]
)
def test_rows_of_each_sort_are_found_and_located(name: str) -> None:
    scored = score(BY_ID[name])
    assert (scored.found, scored.located) == (True, True), scored.said


def test_a_row_that_nothing_shows_and_a_wrong_expectation_count_against_us() -> None:
    assert not score(BY_ID["sdc"]).found
    row = BY_ID["psu-event"]
    assert score(row).acted
    assert not score(row | {"found": ["BMC-01"]}).found
    assert not score(row | {"action": ["A8"]}).acted
    shares = totals([score(BY_ID["sdc"]), score(row)], "llama3")
    assert shares["found"] == round(1 / 7, 4)


def test_every_check_of_what_is_no_node_has_two_faults_and_finds_both() -> None:
    counts: Counter[str] = Counter()
    for fault in coverage_around.faults():
        counts[fault.check] += 1
        assert fault.tried() == (True, True), f"{fault.check} {fault.about}"
    must = {item.id for item in catalogue() if item.must and item.scope is not Scope.NODE} | {
        "VER-01",
        "VER-02",
        "IB-10",
    }
    assert {name for name in must if counts[name] < 2} == set()
