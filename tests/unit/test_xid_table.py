"""The table of Xids against NVIDIA's catalogue as it was handed to us: the same codes, and what it says to do
first."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from megatrace.model.xid import FOLLOWS, SYMPATHETIC, XIDS, Action

IMMEDIATE = {
    "RESTART_APP": {Action.RESTART_APP, Action.RESET_LATER},
    "RESET_GPU": {Action.RESET, Action.REPLACE},
    "IGNORE": {Action.OBSERVE},
    "RESTART_BM": {Action.POWER_CYCLE},
    "RESTART_VM": {Action.REBOOT},
    "UPDATE_SWFW": {Action.CHECK_SYSTEM},
}
ON_PURPOSE = {
    43: "the catalogue ignores it; the application that it ended has to be started again",
    63: "the catalogue ignores it; the row that waits for its spare one needs a reset when the job has ended",
    157: "the catalogue ignores it; a resource that could not be retired is a part to replace",
}


def _catalogue(shared_dir: Path) -> dict[int, dict[str, str]]:
    with (shared_dir / "facts" / "xid_catalogue.csv").open(encoding="utf-8", newline="") as file:
        return {int(row["xid"]): row for row in csv.DictReader(file)}


@pytest.mark.shared
def test_the_table_has_the_codes_that_are_used_on_current_gpus_and_no_others(shared_dir: Path) -> None:
    rows = _catalogue(shared_dir)
    assert len(rows) == 172
    assert set(XIDS) == {code for code, row in rows.items() if row["description"] != "Unused"}


@pytest.mark.shared
def test_what_is_done_first_is_what_the_catalogue_says_but_for_three_codes(shared_dir: Path) -> None:
    differ = {
        code
        for code, row in _catalogue(shared_dir).items()
        if code in XIDS
        and row["immediate"] in IMMEDIATE
        and XIDS[code].action not in IMMEDIATE[row["immediate"]]
    }
    assert differ == set(ON_PURPOSE)


def test_a_lost_gpu_brings_about_errors_of_links_on_others_and_no_second_lost_gpu() -> None:
    assert 74 in FOLLOWS[79]
    assert 79 not in FOLLOWS[79]
    assert all(79 not in followers for followers in FOLLOWS.values())
    assert FOLLOWS[48] >= SYMPATHETIC
    assert 48 not in FOLLOWS[48]
