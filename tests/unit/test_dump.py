"""`megatrace dump`: every column, nothing invented."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from megatrace.commands.dump import DumpFormat, dump, json_lines, parts, text_lines
from megatrace.errors import UnknownName
from megatrace.model.events import UNSEEN, Events, Op
from megatrace.model.series import FactKind, LogFact, Series, SeriesKind, Spans
from megatrace.model.trace import RankPlace, Trace
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
    lines = [json.loads(line) for line in json_lines(open_trace([log]), "calls", 2)]
    assert lines[0] == {
        "part": "calls", "rank": 0, "op": "SEND", "seq": 3, "enqueue": 1755590104253968145, "count": 4,
        "stream": "0x7b0", "comm": "0xff",
    }  # fmt: skip
    assert (lines[1]["seq"], lines[1]["comm"], lines[1]["stream"]) == (None, None, "0x0")


def test_text_is_aligned_under_the_names_of_the_columns(log: Path) -> None:
    header, first, second = text_lines(open_trace([log]), "calls", 2)
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
    line = json.loads(next(json_lines(replace(trace, events=more), "calls", 1)))
    assert (line["start"], line["end"], line["peer"]) == (1755590104253968150, None, None)
    assert line["op"] == Op.SEND.name


def test_limit_and_notes_go_where_they_belong(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump([log], DumpFormat.TEXT, part="calls", limit=1)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "1 of 2 calls shown" in err
    assert "rank_0.log line 3 is cut off" in err


def test_no_calls_wanted_is_no_error(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump([log], DumpFormat.JSONL, part="calls", limit=0)
    assert capsys.readouterr().out == ""


def full(log: Path) -> Trace:
    """A trace that has something of many parts."""
    spans = Spans(
        rank=np.zeros(1, np.int32), stream=np.full(1, 7, np.int32), name=np.zeros(1, np.int32),
        start=np.full(1, 5), end=np.full(1, 9), names=("gemm",),
    )  # fmt: skip
    depth = Series(SeriesKind.QUEUE_DEPTH, "depth", 0, "n1", "mlx5_0", np.array([1, 2]), np.array([4.0, 5.5]))
    fact = LogFact(FactKind.XID, "GPU fell off \x1b[31m the bus", 12, node="n1", code=79)
    return replace(
        open_trace([log]),
        spans=spans,
        series=(depth,),
        facts=(fact,),
        places=(RankPlace(0, "n1", 0, "gpu0"),),
    )


def test_every_part_of_a_trace_can_be_shown(log: Path) -> None:
    assert set(parts()) == {field.name for field in fields(Trace)} - {"events"} | {"calls"}
    for name in parts():
        for line in json_lines(full(log), name, 2):
            assert json.loads(line)["part"] == name
        list(text_lines(full(log), name, 2))


def test_spans_series_facts_and_places_are_rows(log: Path) -> None:
    trace = full(log)

    def rows(name: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in json_lines(trace, name, 99)]

    assert rows("spans") == [{"part": "spans", "rank": 0, "stream": 7, "name": "gemm", "start": 5, "end": 9}]
    assert [(row["time"], row["value"], row["kind"]) for row in rows("series")] == [
        (1, 4.0, "queue_depth"), (2, 5.5, "queue_depth"),
    ]  # fmt: skip
    assert rows("facts")[0]["code"] == 79
    assert rows("places") == [{"part": "places", "rank": 0, "node": "n1", "local_rank": 0, "device": "gpu0"}]
    (coverage,) = rows("coverage")
    assert coverage["observables"] == ["count", "enqueue", "group", "seq", "stream"]
    assert len(list(json_lines(trace, "series", 1))) == 1


def test_text_from_logs_cannot_recolour_a_terminal(log: Path) -> None:
    (line,) = text_lines(full(log), "facts", 1)
    assert "\\x1b[31m" in line
    assert line.isprintable()


def test_all_parts_that_there_are_come_with_their_names(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump([log])
    out = capsys.readouterr().out
    heads = [line.split()[1] for line in out.splitlines() if line.startswith("# ")]
    assert heads[:3] == ["calls", "communicators", "coverage"]
    assert "series" not in heads


def test_an_unknown_part_names_those_there_are(log: Path) -> None:
    with pytest.raises(UnknownName, match="communicators"):
        dump([log], part="call")


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.log"
    line = LOG.splitlines()[0]
    path.write_text("".join(line.replace("opCount 3", f"opCount {n}") + "\n" for n in range(20_000)))
    command = [sys.executable, "-m", "megatrace", "dump", str(path), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["op"] == "SEND"
        process.stdout.close()
        errors = process.stderr.read()
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
    assert process.returncode == 141
