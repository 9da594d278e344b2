"""The page of a profile and its trace for Perfetto: what they say, what they draw, what they let in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatrace.analysis.profiling import profile
from megatrace.model.profile_result import Frame, ProfileResult, RankTime, TimeKind
from megatrace.reports import ReportOptions
from megatrace.reports.profile_html import render
from megatrace.reports.profile_html_data import data_block, joined
from megatrace.reports.profile_html_view import device_bars
from megatrace.reports.profile_perfetto import render as perfetto
from tests.unit.html_cases import PAYLOADS
from tests.unit.profile_cases import profiled, tiny
from tests.unit.profile_page_cases import MS, STREAM, everything, path, piece, poisoned
from tests.unit.test_reports_perfetto import parse

OPTIONS = ReportOptions(generated_at=1_796_004_780_000_000_000, command="megatrace profile traces/")


def arrays(html: str) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """(facts, arrays) as the script of the page sees them."""
    facts = json.loads(re.findall(r'id="facts">(.*?)</script>', html, re.DOTALL)[0])
    packed = re.findall(r'id="packed">(.*?)</script>', html, re.DOTALL)[0]
    raw = zlib.decompress(base64.b64decode(packed))
    kinds = {"u1": "u1", "u2": "<u2", "i4": "<i4", "f4": "<f4"}
    return facts, {
        name: np.frombuffer(raw, kinds[kind], size, at) for name, (kind, at, size) in facts["arrays"].items()
    }


def test_the_first_sentence_and_the_figures() -> None:
    html = render(everything(), OPTIONS)
    assert "rank 0 of 16 on NVIDIA H100" in html
    for said in (
        "Exposed communication",
        "compute 40 %",
        "without communication: 80 ms",
        "−20 %",
        "1 line was cut off.",
    ):
        assert said in html, said
    assert re.search(r"made 2026-11-\d\d \d\d:\d\d UTC", html)


def test_bars_of_devices_add_up_to_their_spans() -> None:
    bars = device_bars((RankTime(3, 200 * MS, 50 * MS, 30 * MS, 10 * MS, 20 * MS, 5 * MS, 125 * MS),))
    assert bars is not None
    pieces = bars.rows[0].pieces
    assert [piece.key for piece in pieces] == ["compute", "overlap", "communication", "memory", "idle"]
    assert [piece.width for piece in pieces] == [20.0, 5.0, 10.0, 2.5, 62.5]
    assert [piece.at for piece in pieces] == [0.0, 20.0, 25.0, 35.0, 37.5]


def test_of_many_ranks_those_with_most_exposed_communication_are_bars() -> None:
    ranks = tuple(RankTime(n, 100, 50, 30, 0, n, 0, 50 - n % 50) for n in range(40))
    bars = device_bars(ranks)
    assert bars is not None
    assert [row.label for row in bars.rows] == [f"rank {n}" for n in range(8, 40)]
    assert "8 ranks" in bars.more


def test_the_path_is_drawn_piece_by_piece() -> None:
    facts, data = arrays(render(everything(), OPTIONS))
    first = facts["path"][0]
    assert (first["title"], first["size"], first["length"]) == ("rank 0, ProfilerStep#5", 5, 100.0)
    assert first["lanes"] == ["thread 1 (main)", STREAM]
    assert data["path_start"][:5].tolist() == [0, 30, 32, 72, 92]
    assert data["path_end"][:5].tolist() == [30, 32, 72, 92, 100]
    assert [facts["kinds"][k]["name"] for k in data["path_kind"][:5]] == [
        "host", "launch", "compute", "communication", "idle",
    ]  # fmt: skip
    assert data["path_lane"][:5].tolist() == [0, 1, 1, 1, 0]


def test_a_path_of_very_many_pieces_is_joined_without_a_hole() -> None:
    many = tuple(
        piece(k, k + 1, TimeKind.HOST if k % 3 else TimeKind.IDLE, f"op{k % 7}") for k in range(50_000)
    )
    long = replace(path(), pieces=many, end=50_000 * MS)
    few = joined(long, 5_000)
    assert len(few) <= 5_000
    assert (few[0].start, few[-1].end) == (0, 50_000 * MS)
    assert all(a.end == b.start for a, b in pairwise(few))


def test_operators_lie_below_what_called_them() -> None:
    facts, data = arrays(render(everything(), OPTIONS))
    rows = {
        facts["flame"]["names"][name]: [int(depth), int(at), int(total)]
        for name, depth, at, total in zip(
            data["flame_name"], data["flame_depth"], data["flame_at"], data["flame_total"], strict=True
        )
    }
    assert rows["all"] == [0, 0, 100 * MS]
    assert rows["ProfilerStep#5"] == [1, 0, 100 * MS]
    assert rows["aten::mm"] == [2, 0, 30 * MS]
    assert rows["autograd::engine: MmBackward0"] == [2, 30 * MS, 40 * MS]


def test_operators_too_narrow_to_see_are_left_out() -> None:
    small = tuple(Frame(f"op{n}", 10, 10, 0, 1) for n in range(1_000))
    root = Frame("all", 100 * MS, 0, 0, 1, small)
    block = data_block(replace(everything(), flame=root))
    assert len(block.arrays["flame_at"]) == 1


def test_collectives_without_a_size_are_no_marks() -> None:
    result = everything()
    unknown = replace(result.collectives[0], nbytes=None)
    facts, data = arrays(render(replace(result, collectives=(unknown, *result.collectives)), OPTIONS))
    assert len(facts["scatter"]) == 2
    assert sorted(data["scatter_bytes"].tolist()) == [1 << 20, 64 << 20]
    assert max(data["scatter_speed"].tolist()) == pytest.approx(210e9)


def test_what_was_not_recorded_has_no_picture() -> None:
    bare = ProfileResult(source="kineto", inputs=(), ranks=())
    html = render(bare, OPTIONS)
    assert 'class="picture"' not in html
    assert "nothing ran on a device" in html


def test_the_policy_allows_its_own_script_and_style_only() -> None:
    html = render(everything(), OPTIONS)
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', html)[0].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside[-1].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not re.findall(r"<[^>]* (?:style|src|onclick|onload)=", html.split("<script>")[0])


def test_markup_in_every_string_stays_text() -> None:
    html = render(poisoned(everything(), tuple(PAYLOADS)), replace(OPTIONS, command=PAYLOADS[0]))
    assert len(re.findall(r"<script", html)) == 3
    assert "<img" not in html
    assert "&lt;" in html


def test_perfetto_shows_the_path_and_nested_operators(tmp_path: Path) -> None:
    one = profiled(tmp_path, tiny())
    trace = parse(perfetto(profile([one]), [one]), nested=True)
    on_path = trace.on("critical path, rank 3")
    assert sum((item.end or 0) - item.start for item in on_path) == 700_000
    assert {item.arguments["spent on"] for item in on_path} >= {"compute", "host"}
    names = {item.name for item in trace.on("rank 3/thread 1")}
    assert {"ProfilerStep#1", "aten::mm", "cudaLaunchKernel"} <= names
    (gemm,) = [item for item in trace.on("rank 3/stream 7") if "gemm" in item.name]
    assert (gemm.start, gemm.end) == (40_000, 240_000)


def test_perfetto_leaves_out_the_shortest_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatrace.reports.profile_perfetto.MAX_SLICES", 3)
    one = profiled(tmp_path, tiny())
    content = perfetto(profile([one]), [one])
    trace = parse(content, nested=True)
    assert len([item for item in trace.slices if trace.path(item.track).startswith("rank 3/")]) == 3
    assert b"of the shortest activities are left out" in content
