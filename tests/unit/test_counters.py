"""Counters over time: growth needs two looks, rates need time, a reset begins anew, a restart forgets
nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatrace.bot.counters import MAX_SAMPLES, Counters, Growth, load, save
from megatrace.units import NS_PER_S

T0 = 1_780_000_000 * NS_PER_S


def at(seconds: float) -> int:
    return T0 + round(seconds * NS_PER_S)


def test_the_first_sight_of_a_counter_says_nothing_however_high_it_is() -> None:
    assert Counters().grown("a", 10**9, T0) is None


def test_growth_is_what_was_added_since_the_last_look() -> None:
    counters = Counters()
    counters.grown("a", 100, at(0))
    assert counters.grown("a", 130, at(60)) == Growth(30, 60)


def test_a_counter_that_fell_counts_from_zero() -> None:
    counters = Counters()
    counters.grown("a", 100, at(0))
    assert counters.grown("a", 7, at(60)) == Growth(7, 60, reset=True)


def test_growth_of_a_window_leaves_out_what_was_before_it() -> None:
    counters = Counters()
    for second, value in ((0, 0), (600, 50), (1_200, 52), (1_500, 55)):
        growth = counters.grown("a", value, at(second), window_s=600)
    # The window begins at 900 s; the look at 600 s is the last one before it.
    assert growth == Growth(5, 900)


@pytest.mark.parametrize(
    ("amount", "seconds", "expected"), [(10, 30, False), (11, 30, True), (15, 7_200, False)]
)
def test_a_rate_needs_time_a_burst_within_seconds_is_not_scaled_up(
    amount: float, seconds: float, expected: bool
) -> None:
    assert Growth(amount, seconds).exceeds(10) is expected


def test_another_boot_resets_counters_and_no_quantities() -> None:
    counters = Counters()
    assert counters.boot("one") is False
    counters.grown("port.errors", 100, at(0))
    counters.grown("=memory", 64, at(0))
    counters.grown("disk.nvme0.media_errors", 5, at(0))
    counters.lasting("hot", True, at(0))
    assert counters.boot("two") is True
    # 120 is more than before: without the boot it would be taken for growth of 20.
    assert counters.grown("port.errors", 120, at(60)) == Growth(120, 60, reset=True)
    assert counters.level("memory") == 64
    assert counters.grown("disk.nvme0.media_errors", 5, at(60)) == Growth(0, 60)
    assert counters.lasting("hot", True, at(60)) == 0


def test_a_condition_lasts_only_while_it_holds_at_every_look() -> None:
    counters = Counters()
    assert [counters.lasting("a", True, at(second)) for second in (0, 60, 120)] == [0, 60, 120]
    counters.lasting("a", False, at(180))
    assert counters.lasting("a", True, at(240)) == 0


def test_what_is_known_outlives_a_restart(tmp_path: Path) -> None:
    place = tmp_path / "state" / "counters.json"
    counters = Counters()
    counters.boot("one")
    counters.grown("a", 100, at(0))
    assert save(counters, place)
    again = load(place)
    assert again.boot("one") is False
    assert again.grown("a", 101, at(30)) == Growth(1, 30)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"samples": {"a": [["x"]]}}', '{"samples": 3}', '{"samples": {"a": []}}']
)
def test_a_damaged_state_is_no_state(tmp_path: Path, text: str) -> None:
    place = tmp_path / "counters.json"
    place.write_text(text, "utf-8")
    assert load(place).grown("a", 5, T0) is None


def test_a_state_that_cannot_be_written_is_said_and_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    assert save(Counters(), tmp_path / "file" / "counters.json") is False


def test_samples_are_bounded_and_the_total_stays_right() -> None:
    counters = Counters()
    for second in range(500):
        growth = counters.grown("a", second, at(second), window_s=10**6)
    assert growth is not None
    assert growth.amount == 499
    state = counters.state()["samples"]
    assert isinstance(state, dict)
    assert len(state["a"]) <= MAX_SAMPLES + 1
