"""Numbers with units: what the field writes is what comes out, and what is written can be read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatrace import units

SECOND = units.NS_PER_S


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (38_000, "38 µs"),
        (4_512_345, "4.51 ms"),
        (999_700, "1 ms"),
        (1_612_000_000, "1.61 s"),
        (3_252_000_000, "3.25 s"),
        (17_100_000_000, "17.1 s"),
        (101_000_000_000, "101 s"),
        (119_600_000_000, "2 m"),
        (432_000_000_000, "7 m 12 s"),
        (3_599_600_000_000, "1 h"),
        (7_500_000_000_000, "2 h 5 m"),
        (76 * units.NS_PER_HOUR, "3 d 4 h"),
        (-5_000_000, "-5 ms"),
    ],
)
def test_durations_read_as_the_field_writes_them(ns: int, text: str) -> None:
    assert units.format_duration(ns) == text


@given(st.integers(min_value=1, max_value=400 * units.NS_PER_DAY))
def test_a_formatted_duration_reads_back_within_its_digits(ns: int) -> None:
    again = units.parse_duration(units.format_duration(ns).replace(",", ""))
    assert abs(again - ns) <= max(
        0.005 * ns, 0.5 if ns < 1_000 else 0, 0.5 * units.NS_PER_HOUR * (ns >= 2e14)
    )


@given(
    st.lists(st.tuples(st.integers(0, 999), st.sampled_from(["ns", "us", "ms", "s", "m", "h"])), min_size=1)
)
def test_durations_are_exact_sums_of_their_parts(parts: list[tuple[int, str]]) -> None:
    factor = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
    text = " ".join(f"{number}{unit}" for number, unit in parts)
    assert units.parse_duration(text) == sum(number * factor[unit] for number, unit in parts)


def test_a_fraction_is_exact_where_a_float_is_not() -> None:
    assert units.parse_duration("1755590104.248717001s") == 1_755_590_104_248_717_001


@pytest.mark.parametrize("text", ["", "   ", "5", "1.5 fortnights", "-3s", "s", "3 s x", "1e3s", "٣s"[1:]])
def test_what_is_no_duration_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration: expected"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64 KiB", 65_536), ("1.5GiB", 1_610_612_736), ("400 MB", 400_000_000), ("7B", 7), ("1KiB 1B", 1_025)],
)
def test_sizes_are_bytes(text: str, size: int) -> None:
    assert units.parse_size(text) == size


def test_a_size_with_two_meanings_is_refused() -> None:
    with pytest.raises(ValueError, match="'4G' is no size"):
        units.parse_size("4G")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (512, "512 B"), (1023.7, "1 KiB"), (65_536, "64 KiB"), (2**52, "4,096 TiB")],
)
def test_sizes_read_in_powers_of_1024(size: float, text: str) -> None:
    assert units.format_size(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.5, "2.5"),
        (2.016, "2.02"),
        (9.996, "10"),
        (0.99996, "1"),
        (0.000123456, "0.000123"),
        (-3.14159, "-3.14"),
    ],
)
def test_numbers_keep_three_significant_digits(value: float, text: str) -> None:
    assert units.format_number(value) == text


def test_numbers_that_are_none_do_not_raise() -> None:
    assert [units.format_number(float(text)) for text in ("nan", "inf", "-inf")] == ["nan", "inf", "-inf"]


def test_ratio_percent_count() -> None:
    assert units.format_ratio(2.5) == "2.5×"
    assert [units.format_percent(share) for share in (0.05, 0.0042, 0.956)] == ["5 %", "0.42 %", "96 %"]
    assert units.format_count(3479) == "3,479"


def test_ranks_as_in_the_verdict() -> None:
    assert units.parse_ranks("0-1,4-7") == (0, 1, 4, 5, 6, 7)
    assert units.format_ranks([7, 0, 1, 4, 5, 6, 6]) == "0-1,4-7"
    assert units.parse_ranks(" 8, 0 - 2 ,1") == (0, 1, 2, 8)
    assert units.parse_ranks("") == ()


@given(st.sets(st.integers(0, 20_000)))
def test_rank_ranges_read_back(ranks: set[int]) -> None:
    assert units.parse_ranks(units.format_ranks(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "is no rank range"),
        ("-1", "is no rank range"),
        ("5-3", "runs backwards; write 3-5"),
        ("0-99999999", "beyond"),
    ],
)
def test_what_is_no_rank_range_says_so(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        units.parse_ranks(text)


def test_ranks_for_people() -> None:
    assert units.say_ranks([2]) == "rank 2"
    assert units.say_ranks([0, 1, 4, 5, 6, 7]) == "ranks 0, 1, 4–7"
    assert units.say_ranks([]) == "no rank"
    with pytest.raises(ValueError, match="ranks count from 0"):
        units.say_ranks([-1])
