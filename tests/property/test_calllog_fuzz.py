"""Any bytes into the call log reader: a Trace or a TraceError, and all three parsers agree on every line.

``MEGATRACE_FUZZ_RUNS`` sets how many damaged logs are tried (a few hundred without it).
"""

from __future__ import annotations

import io
import os
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megatrace.errors import TraceError
from megatrace.model.trace import Trace
from megatrace.readers.calllog import CallLogReader
from megatrace.readers.calllog_columns import ROW_DTYPES, ColumnBuffer, Parser, TextBuffer
from megatrace.readers.calllog_line import parse_line
from megatrace.readers.calllog_native import NativeParser, native_parser
from megatrace.readers.calllog_numpy import NumpyParser
from megatrace.readers.source import ReadOptions, Source
from tests.property.calllog_corpus import damaged_log, fitted, line

FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
RUNS = int(os.environ.get("MEGATRACE_FUZZ_RUNS") or (20_000 if FUZZ else 300))
SMALL = 4096
"""A buffer that most logs overflow, so that lines end in every relation to a block's end."""


@dataclass
class Rows:
    columns: dict[str, list[int]]
    refused: list[int]
    lines: int


def parsed(parser: Parser, data: bytes) -> Rows:
    """All complete lines of data, as any driver of a parser reads them."""
    buffer = TextBuffer(max(len(data), 1))
    buffer.text[: len(data)] = np.frombuffer(data, np.uint8)
    rows = Rows({name: [] for name in ROW_DTYPES}, [], 0)
    at = 0
    while (result := parser.parse(buffer, at, len(data))).consumed:
        for name, values in rows.columns.items():
            values.extend(parser.out.columns[name][: result.rows].tolist())
        refused = parser.out.reject_line[: result.rejects]
        for number, offset in zip(refused.tolist(), parser.out.reject_offset.tolist(), strict=False):
            start = at + offset
            assert start == 0 or data[start - 1 : start] == b"\n", "a refused line does not begin at a line"
            rows.refused.append(rows.lines + number)
        rows.lines += result.lines
        at += result.consumed
    return rows


def by_the_grammar(data: bytes) -> Rows:
    rows = Rows({name: [] for name in ROW_DTYPES}, [], 0)
    for text in data.split(b"\n")[:-1]:
        found = parse_line(text)
        if found is None:
            rows.refused.append(rows.lines)
        else:
            for values, value in zip(rows.columns.values(), found, strict=True):
                values.append(value)
        rows.lines += 1
    return rows


def check(data: bytes, parsers: list[Parser]) -> Rows:
    expected = by_the_grammar(data)
    for parser in parsers:
        got = parsed(parser, data)
        assert got == expected, f"{parser.name} differs from the grammar on {data!r}"
    return expected


@pytest.fixture(scope="module")
def parsers() -> list[Parser]:
    """Both parsers, each also with columns so small that it must stop and go on."""
    small = ColumnBuffer(rows=7, rejects=3)
    found: list[Parser] = [NumpyParser(), NumpyParser(ColumnBuffer(rows=7, rejects=3))]
    native = native_parser()
    if native is not None:
        from megatrace import native as loader

        library = loader.library()
        assert library is not None
        found += [native, NativeParser(library, small)]
    return found


def traced(data: bytes, parser: Parser) -> Trace | str:
    reader = CallLogReader(ReadOptions(), parser)
    source = Source("a.log", io.BytesIO(data))
    reader.refuses(source.head)
    reader.add(source)
    try:
        return reader.finish()
    except TraceError as error:
        return str(error)


def same(left: Trace | str, right: Trace | str) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    columns = dict(left.events.columns()), dict(right.events.columns())
    equal = columns[0].keys() == columns[1].keys() and all(
        _identical(columns[0][name], columns[1][name]) for name in columns[0]
    )
    return equal and left.coverage == right.coverage and left.communicators == right.communicators


def _identical(left: NDArray[np.generic], right: NDArray[np.generic]) -> bool:
    return left.dtype == right.dtype and bool(np.array_equal(left, right))


def test_parsers_agree_on_damaged_logs(parsers: list[Parser]) -> None:
    accepted = 0
    for seed in range(RUNS):
        accepted += len(check(damaged_log(seed), parsers).columns["rank"])
    assert accepted > 5 * RUNS, "the corpus holds too few whole lines to prove anything"


def test_any_damage_gives_a_trace_or_an_error(parsers: list[Parser]) -> None:
    for seed in range(RUNS):
        data = damaged_log(seed + 1_000_000, lines=12)
        results = [traced(data, parser) for parser in parsers]
        for result in results[1:]:
            assert same(results[0], result), f"seed {seed}"
        if isinstance(results[0], Trace):
            assert len(results[0].events) > 0
            assert int(results[0].events.rank.min()) >= 0


def test_truncation_at_every_byte(parsers: list[Parser]) -> None:
    rng = random.Random(1)
    whole = [text for text in (line(rng) for _ in range(60)) if parse_line(text.encode()) is not None][:3]
    data = ("\n".join(whole) + "\n").encode()
    roomy = [parser for parser in parsers if parser.out.row_capacity > 100]
    for end in range(len(data) + 1):
        rows = check(data[:end], roomy)
        assert len(rows.columns["rank"]) == data[:end].count(b"\n")
        results = [traced(data[:end], parser) for parser in roomy]
        assert all(same(results[0], result) for result in results[1:])
        if isinstance(results[0], Trace):
            torn = end > 0 and data[end - 1 : end] != b"\n"
            assert any("cut off" in note for note in results[0].coverage.notes) == torn


def test_bodies_around_the_writers_limit(parsers: list[Parser]) -> None:
    rng = random.Random(2)
    data = "".join(fitted(rng) + "\n" for _ in range(3 * RUNS)).encode()
    rows = check(data, parsers)
    assert 0 < len(rows.refused) < rows.lines


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_any_bytes(parsers: list[Parser], pieces: list[bytes]) -> None:
    check(b"\n".join(pieces), parsers)


FIELD = st.from_regex(
    r"(\[(save_count|Rank|Data|stream|opCount|groupHash|Func|PCI) [0-9a-fx().-]{0,12}\]"
    r"|\[[0-9]{1,11}\.[0-9]{0,10}\]"
    r"|(Fun|Data|stream|opCount|groupHash|Rank) [A-Za-z0-9()x-]{1,12}|[a-z]{1,3})",
    fullmatch=True,
)


@given(st.lists(st.lists(FIELD, max_size=9).map(" ".join), max_size=5))
def test_fields_in_any_order(parsers: list[Parser], lines: list[str]) -> None:
    check("\n".join([*lines, ""]).encode(), parsers)
