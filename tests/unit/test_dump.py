"""`megatrace dump`: every column, nothing invented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megatrace.commands.dump import DumpFormat, dump, json_lines, text_lines
from megatrace.model.events import UNSEEN, Events, Op
from megatrace.readers.opening import open_trace

LOG = (
    "[save_count 1] [1755590104.253968145] [Rank 0] Fun Send Data 4 stream 0x7b0 opCount 3 groupHash 255\n"
    "[save_count 1] [1755590104.253968146] [Rank 0] Fun Recv Data 8 stream (nil)\n"
    "[save_count 1] [17"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank_0.log"
    path.write_text(LOG, encoding="utf-8")
    return path


def test_json_lines_hold_every_column_and_null_for_what_is_not_there(log: Path) -> None:
    lines = [json.loads(line) for line in json_lines(open_trace([log]), 2)]
    assert lines[0] == {
        "rank": 0, "op": "SEND", "seq": 3, "enqueue": 1755590104253968145, "count": 4,
        "stream": "0x7b0", "comm": "0xff",
    }  # fmt: skip
    assert (lines[1]["seq"], lines[1]["comm"], lines[1]["stream"]) == (None, None, "0x0")


def test_text_is_aligned_under_the_names_of_the_columns(log: Path) -> None:
    header, first, second = text_lines(open_trace([log]), 2)
    assert header.split() == ["rank", "op", "seq", "enqueue", "count", "stream", "comm"]
    assert first.split() == ["0", "SEND", "3", "1755590104253968145", "4", "0x7b0", "0xff"]
    assert second.split() == ["0", "RECV", "-", "1755590104253968146", "8", "0x0", "-"]
    assert len(header) == len(first) == len(second)


def test_any_column_of_events_is_shown(log: Path) -> None:
    trace = open_trace([log])
    events = trace.events
    more: Events = events.with_columns(
        start=events.enqueue + 5, end=events.enqueue * 0 + UNSEEN, peer=events.rank - 1
    )
    line = json.loads(next(json_lines(replace(trace, events=more), 1)))
    assert (line["start"], line["end"], line["peer"]) == (1755590104253968150, None, None)
    assert line["op"] == Op.SEND.name


def test_limit_and_notes_go_where_they_belong(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump([log], DumpFormat.TEXT, limit=1)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "1 of 2 calls shown" in err
    assert "rank_0.log line 3 is cut off" in err


def test_no_calls_wanted_is_no_error(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump([log], DumpFormat.JSONL, limit=0)
    assert capsys.readouterr().out == ""
