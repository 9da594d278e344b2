"""The call log reader on logs as they are found: dialects, damage, order, runs, hashes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from megatrace.errors import TraceError
from megatrace.model.events import EventFlag, Op
from megatrace.model.trace import Observable, Trace
from megatrace.readers import calllog_table
from megatrace.readers.calllog import CallLogReader
from megatrace.readers.calllog_columns import BLOCK, Parser
from megatrace.readers.calllog_line import Defect, Flag, defect_of, parse_line
from megatrace.readers.calllog_native import native_parser
from megatrace.readers.calllog_numpy import NumpyParser
from megatrace.readers.opening import open_trace
from megatrace.readers.source import ReadOptions, Source

T0 = 1755590104253968145


@pytest.fixture(params=["native", "numpy"])
def parser(request: pytest.FixtureRequest) -> Parser:
    if request.param == "numpy":
        return NumpyParser()
    found = native_parser()
    if found is None:
        pytest.skip("the native library is not built here")
    return found


def call(
    seq: int = 0,
    *,
    at: int = 0,
    rank: int = 0,
    save: int | None = 1,
    stream: str = "0x55919d27b4b0",
    group: str = "",
) -> str:
    """A line of the second or third dialect, ``at`` ns after T0."""
    seconds, ns = divmod(T0 + at, 10**9)
    head = "" if save is None else f"[save_count {save}] "
    tail = f" groupHash {group}" if group else ""
    return (
        f"{head}[{seconds}.{ns:09d}] [Rank {rank}] Fun AllReduce Data 4 stream {stream} opCount {seq}{tail}\n"
    )


def read(parser: Parser, *files: str | bytes, names: tuple[str, ...] = ()) -> Trace:
    reader = CallLogReader(ReadOptions(), parser)
    for number, text in enumerate(files):
        data = text if isinstance(text, bytes) else text.encode()
        name = names[number] if names else f"logs/rank_{number}.log"
        reader.add(Source(name, io.BytesIO(data)))
    return reader.finish()


CALL = "[1755590104.253968145] [Rank 3] Fun Send Data 96 stream 0x55919d27b4b0"
DIALECTS = {
    "bare": CALL,
    "counted": f"[save_count 12] {CALL} opCount 588",
    "hashed": f"[save_count 12] {CALL} opCount 588 groupHash -81985529216486896",
    "bracketed": "[10.0.0.1] [node7] [save_count 12] [1755590104.253968145] [Rank 3] [PCI 0000:19:00.0]"
    " [Func ncclSend] [Data 96] [stream 0x55919d27b4b0] [opCount 588] [groupHash 0xfedcba9876543210]",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_call(parser: Parser, dialect: str) -> None:
    trace = read(parser, DIALECTS[dialect] + "\n")
    events = trace.events
    assert (events.rank.tolist(), events.op.tolist(), events.enqueue.tolist()) == ([3], [Op.SEND], [T0])
    assert events.count is not None
    assert events.stream is not None
    assert (events.count.tolist(), events.stream.tolist()) == ([96], [0x55919D27B4B0])
    assert events.seq.tolist() == ([-1] if dialect == "bare" else [588])
    hashed = dialect in ("hashed", "bracketed")
    assert [c.hash for c in trace.communicators] == ([0xFEDCBA9876543210] if hashed else [])
    assert (events.comm is None) == (not hashed)
    assert trace.coverage.has(Observable.GROUP) == hashed
    assert trace.coverage.has(Observable.SEQ) == (dialect != "bare")
    assert trace.coverage.notes == ()


def test_nanoseconds_are_exact(parser: Parser) -> None:
    assert read(parser, call(at=1) + call(1, at=2)).events.enqueue.tolist() == [T0 + 1, T0 + 2]


def test_null_stream_and_unsigned_hash(parser: Parser) -> None:
    trace = read(parser, call(stream="(nil)", group="18364758544493064720"))
    assert trace.events.stream is not None
    assert trace.events.stream.tolist() == [0]
    assert trace.communicators[0].hash == 18364758544493064720


def test_torn_last_line_is_counted_and_said(parser: Parser) -> None:
    text = "".join(call(i, at=i) for i in range(3))
    trace = read(parser, text, text[:-20], names=("a/rank_6.log", "a/rank_7.log"))
    assert trace.coverage.torn_tails == (0,)
    assert (trace.coverage.lines, trace.coverage.bad_lines) == (6, 1)
    expected = "rank_7.log line 3 is cut off (the process was killed while writing); 2 lines read."
    assert expected in trace.coverage.notes


def test_a_last_line_without_newline_is_not_trusted(parser: Parser) -> None:
    """`opCount 58` may have been going to be 588."""
    trace = read(parser, call(57) + call(58, at=5)[:-1])
    assert trace.events.seq.tolist() == [57]


def test_broken_lines_are_skipped_counted_and_named(parser: Parser) -> None:
    torn_into = call(1)[:40] + call(2, at=9)
    trace = read(parser, call(0) + torn_into + "hello\n\n" + call(3, at=10))
    assert trace.events.seq.tolist() == [0, 3]
    assert trace.coverage.bad_lines == 2
    assert "rank_0.log has 1 broken line (line 2); skipped." in trace.coverage.notes
    assert "rank_0.log has 1 line that is not a call (line 3); skipped." in trace.coverage.notes


@pytest.mark.parametrize(
    ("junk", "defect"),
    [
        (b"\0" * 5000, Defect.TOO_LONG),
        (b"\0" * 50, Defect.NUL),
        (b"\xff\xfe [Rank 1]", Defect.BINARY),
        (b"x" * 2 * BLOCK, Defect.TOO_LONG),
        (b"x" * (BLOCK - 2 * len(call()) - 1), Defect.TOO_LONG),
    ],
    ids=["nul-run", "nul", "latin", "longer-than-two-blocks", "ends-with-the-block"],
)
def test_junk_between_calls(parser: Parser, junk: bytes, defect: Defect) -> None:
    trace = read(parser, call(0).encode() + junk + b"\n" + call(1, at=1).encode() * 2)
    assert trace.events.seq.tolist() == [0, 1]
    assert trace.coverage.bad_lines == 1
    words = {Defect.NUL: "NUL bytes", Defect.BINARY: "not text", Defect.TOO_LONG: "longer than any call"}
    assert any(words[defect] in note and "line 2" in note for note in trace.coverage.notes)
    if defect is not Defect.TOO_LONG:
        assert defect_of(junk) is defect


def test_endless_line_without_newline(parser: Parser) -> None:
    trace = read(parser, call(0).encode() + b"y" * (3 * BLOCK))
    assert len(trace.events) == 1
    assert trace.coverage.bad_lines == 1


def test_carriage_returns_and_tabs(parser: Parser) -> None:
    tabs = call(1, at=1, save=None).replace(" ", "\t").replace("Rank\t", "Rank ")
    trace = read(parser, call(0).replace("\n", "\r\n") + tabs)
    assert trace.events.seq.tolist() == [0, 1]
    assert trace.coverage.bad_lines == 0


def test_mixed_dialects_in_one_file(parser: Parser) -> None:
    trace = read(parser, call(0) + DIALECTS["bracketed"] + "\n" + DIALECTS["bare"] + "\n")
    assert len(trace.events) == 3
    assert "rank_0.log mixes 3 line layouts; all of them are read." in trace.coverage.notes


def test_out_of_order_lines_are_sorted_and_counted(parser: Parser) -> None:
    trace = read(parser, call(0, at=10) + call(2, at=30) + call(1, at=20) + call(3, at=40))
    assert trace.events.seq.tolist() == [0, 1, 2, 3]
    assert trace.coverage.notes == ("1 line of rank 0 stood out of order in time and was sorted.",)


def test_several_ranks_in_one_file_and_one_rank_in_several(parser: Parser) -> None:
    first = call(0, rank=1, at=5) + call(0, rank=0, at=6) + call(1, rank=1, at=7)
    trace = read(parser, call(2, rank=1, at=90), first)
    assert trace.events.rank.tolist() == [0, 1, 1, 1]
    assert trace.events.seq.tolist() == [0, 0, 1, 2]
    assert trace.coverage.notes == ()
    assert [info.ranks for info in trace.inputs] == [1, 2]


def test_missing_ranks_are_coverage(parser: Parser) -> None:
    assert read(parser, call(rank=1), call(rank=4)).coverage.ranks_missing == (0, 2, 3)


def test_repeated_lines_are_taken_once(parser: Parser) -> None:
    lines = [call(i, at=i) for i in range(4)]
    trace = read(parser, "".join([*lines, lines[1], lines[2]]))
    assert trace.events.seq.tolist() == [0, 1, 2, 3]
    assert "2 lines of rank 0 stood twice and were taken once." in trace.coverage.notes


def test_a_file_given_twice_under_two_names(parser: Parser) -> None:
    text = "".join(call(i, at=i) for i in range(5))
    trace = read(parser, text, text)
    assert trace.events.seq.tolist() == [0, 1, 2, 3, 4]


def two_runs(save: tuple[int | None, int | None], pause: int, first_seq: int = 0) -> str:
    before = "".join(call(i, at=i * 10**6, save=save[0]) for i in range(5))
    return before + "junk\n" + "".join(call(first_seq + i, at=pause + i, save=save[1]) for i in range(3))


@pytest.mark.parametrize("save", [(9, 1), (None, None)], ids=["save_count", "opCount-only"])
def test_of_two_runs_in_one_file_the_last_is_kept(
    parser: Parser, save: tuple[int | None, int | None]
) -> None:
    trace = read(parser, two_runs(save, pause=60 * 10**9))
    assert trace.events.enqueue.tolist() == [T0 + 60 * 10**9 + i for i in range(3)]
    assert trace.coverage.notes[0] == (
        "rank_0.log lines 1 to 5 (5 calls of rank 0) are of an earlier run, left out: "
        "the counters start again at line 7."
    )


@pytest.mark.parametrize(
    ("save", "pause", "first_seq"),
    [((9, 10), 60 * 10**9, 5), ((None, None), 60 * 10**9, 5), ((9, 1), 10**8, 0), ((None, None), 10**8, 0)],
    ids=["long-pause", "long-pause-no-save-count", "written-in-the-other-order", "too-soon-for-a-process"],
)
def test_what_is_no_second_run(
    parser: Parser, save: tuple[int | None, int | None], pause: int, first_seq: int
) -> None:
    assert len(read(parser, two_runs(save, pause, first_seq)).events) == 8


def test_a_new_communicator_after_a_pause_is_no_second_run(parser: Parser) -> None:
    before = "".join(call(i, at=i, save=None) for i in range(5))
    fresh = call(0, at=10**10, save=None, stream="0x77") + call(5, at=10**10 + 1, save=None)
    assert len(read(parser, before + fresh).events) == 7


FULL = "-1234567890123456789"


def cut(text: str, size: int = 127) -> str:
    """As the original writes it: the body in char[128]."""
    save, body = text.split("] [", 1)
    return f"{save}] [{body[: size - 1]}\n"


def long_call(seq: int, at: int, group: str = FULL, stream: str = "0x55919d27b4b0") -> str:
    return call(seq, at=at, rank=1505, group=group, stream=stream).replace("Data 4 ", "Data 5368709120 ")


def test_a_cut_hash_is_told_by_whole_lines_of_its_stream(parser: Parser) -> None:
    whole = call(0, rank=1505, group=FULL)
    other = call(0, rank=1505, at=1, group="-1299999990123456789", stream="0x99")
    line = cut(long_call(12345, 2))
    assert len(line.split("] [", 1)[1]) == 127  # body without "[", with the newline
    trace = read(parser, whole + other + line)
    assert trace.events.comm is not None
    assert trace.events.comm.tolist()[0] == trace.events.comm.tolist()[2] != trace.events.comm.tolist()[1]
    assert trace.events.flags is not None
    assert trace.events.flags.tolist() == [0, 0, EventFlag.HASH_CUT]
    assert len(trace.communicators) == 2
    assert list(trace.coverage.notes) == [
        (
            "1 line was cut at the writer's limit of 128 characters, in the group hash; "
            "whole lines of the same stream tell which it was."
        )
    ]


def test_a_cut_hash_that_two_communicators_of_the_stream_fit_stays_unknown(parser: Parser) -> None:
    both = call(0, rank=1505, group="-12") + call(0, rank=1505, at=1, group="-13")
    line = long_call(12345, 2, group="-1")
    line = line.replace("Data ", "Data 00000000").replace("opCount ", "opCount 000000")
    assert len(line.split("] [", 1)[1]) == 127
    trace = read(parser, both + line)
    assert trace.events.comm is not None
    assert trace.events.comm.tolist()[2] == -1
    assert any("1 without a communicator" in note for note in trace.coverage.notes)


def test_a_cut_hash_is_never_taken_for_a_hash_of_its_own(parser: Parser) -> None:
    trace = read(parser, cut(long_call(12345, 2)))
    assert trace.communicators == ()
    assert trace.events.comm is not None
    assert trace.events.comm.tolist() == [-1]


def test_a_whole_hash_elsewhere_tells_a_cut_one_by_its_digits(parser: Parser) -> None:
    trace = read(parser, call(0, rank=3, group=FULL), cut(long_call(12345, 2)))
    assert trace.communicators[0].members == (3, 1505)


def test_a_line_one_short_of_the_limit_is_trusted() -> None:
    line = cut(long_call(12345, 2), 126)[:-1].encode()
    row = parse_line(line)
    assert row is not None
    assert row.flags & Flag.HASH


def test_communicators_do_not_depend_on_the_order_of_files(parser: Parser) -> None:
    files = [
        call(rank=r, group=str(h)) + call(1, at=1, rank=r, group="7") for r, h in ((0, 50), (1, 40), (2, 50))
    ]
    one, other = read(parser, *files), read(parser, *reversed(files))
    assert one.communicators == other.communicators
    assert [(c.hash, c.members) for c in one.communicators] == [(7, (0, 1, 2)), (50, (0, 2)), (40, (1,))]
    assert np.array_equal(one.events.comm, other.events.comm)  # type: ignore[arg-type]


def test_unknown_call_names_are_calls(parser: Parser) -> None:
    trace = read(parser, call().replace("AllReduce", "AllSomething"))
    assert trace.events.op.tolist() == [Op.UNKNOWN]
    assert any("does not know" in note for note in trace.coverage.notes)


def test_no_whole_line_is_one_sentence(parser: Parser) -> None:
    with pytest.raises(
        TraceError, match=r"no whole call line in rank_0\.log\. rank_0\.log line 1 is cut off"
    ):
        read(parser, call()[:50])


def test_many_torn_files_are_one_sentence(parser: Parser) -> None:
    trace = read(parser, *(call(rank=r) + "[save" for r in range(9)))
    assert trace.coverage.torn_tails == tuple(range(9))
    assert len(trace.coverage.notes) == 1
    assert trace.coverage.notes[0].startswith("9 files end in the middle of a line")


@pytest.mark.shared
def test_the_real_log(shared_dir: Path, tmp_path: Path) -> None:
    """114,097 lines of 8 ranks, six streams each, no group hash (see expected.md beside it)."""
    archive = shared_dir / "data" / "megatron_rank2_slow" / "logs.tar.xz"
    trace = open_trace([archive])
    assert (len(trace.events), trace.coverage.lines, trace.coverage.bad_lines) == (114_097, 114_097, 0)
    assert trace.events.ranks().tolist() == list(range(8))
    first = trace.events.take(trace.events.rows_of(0))
    assert (first.enqueue.tolist()[0], first.enqueue.tolist()[-1]) == (
        1755590104253968145,
        1755590220413624747,
    )
    assert first.stream is not None
    assert len(np.unique(first.stream)) == 6
    assert trace.coverage.notes == ()


@pytest.mark.parametrize("stretch", [1, 2, 3, 7])
def test_a_boundary_of_stretches_hides_nothing(
    parser: Parser, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is gone through in stretches of rows; a restart or a repetition may lie on any of them."""
    monkeypatch.setattr(calllog_table, "_STRETCH", stretch)
    lines = [call(i, at=i) for i in range(6)]
    repeated = [line for line in lines for _ in range(2)]
    assert read(parser, "".join(repeated)).events.seq.tolist() == list(range(6))
    assert len(read(parser, two_runs((9, 1), pause=60 * 10**9)).events) == 3
    assert read(parser, "".join(reversed(lines))).events.seq.tolist() == list(range(6))
