"""The two clocks keep the same promises."""

from __future__ import annotations

import pytest

from megatrace.clock import Clock, FakeClock, SystemClock


def test_the_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(now=1_000)
    assert (clock.now(), clock.monotonic()) == (1_000, 0)
    clock.advance(2.5)
    clock.sleep(0.5)
    assert (clock.now(), clock.monotonic()) == (3_000_001_000, 3_000_000_000)
    assert clock.slept == [0.5]


def test_a_stepped_wall_clock_leaves_monotonic_time_alone() -> None:
    clock = FakeClock(now=10_000_000_000)
    clock.advance(1)
    clock.step(-5)
    assert (clock.now(), clock.monotonic()) == (6_000_000_000, 1_000_000_000)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match=r"time does not go back: -1 s \(step"):
        FakeClock().advance(-1)


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_sleeping_is_seen_on_both_clocks(clock: Clock) -> None:
    wall, monotonic = clock.now(), clock.monotonic()
    clock.sleep(0.002)
    assert clock.monotonic() - monotonic >= 2_000_000
    assert clock.now() > wall
