"""Text logs of a simulated job, read back with expressions that share nothing with the writer."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from megatrace.errors import UnknownName, UsageError
from megatrace.model.events import Op
from megatrace.simulator import Capture, Scenario, simulate
from megatrace.simulator.emit import DIALECTS, free_space, write_text

PLAIN = re.compile(
    r"(?:\[save_count (?P<save>\d+)\] )?\[(?P<s>\d+)\.(?P<ns>\d{9})\] \[Rank (?P<rank>\d+)\] "
    r"Fun (?P<op>\w+) Data (?P<count>\d+) "
    r"stream 0x(?P<stream>[0-9a-f]+)(?: opCount (?P<seq>\d+))?(?: groupHash (?P<hash>-?\d+))?"
)
BRACKETED = re.compile(
    r"\[10\.0\.0\.(?P<address>\d+)\] \[(?P<node>node\d+)\] \[save_count (?P<save>\d+)\] "
    r"\[(?P<s>\d+)\.(?P<ns>\d{9})\] "
    r"\[Rank (?P<rank>\d+)\] \[PCI [0-9a-f:.]+\] \[Func nccl(?P<op>\w+)\] \[Data (?P<count>\d+)\] "
    r"\[stream 0x(?P<stream>[0-9a-f]+)\] \[opCount (?P<seq>\d+)\] \[groupHash 0x(?P<hash>[0-9a-f]+)\]"
)
SCENARIO = Scenario(
    tp=2, pp=2, dp=2, micro_batches=2, layers_per_stage=1, iterations=2, seed=5, ranks_per_node=4, ep=2
)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_logs_read_back_as_what_was_simulated(dialect: str, tmp_path: Path) -> None:
    trace = simulate(SCENARIO).trace
    events = trace.events
    assert events.count is not None
    assert events.stream is not None
    assert events.comm is not None
    assert write_text(trace, tmp_path, dialect) == len(events)
    grammar = BRACKETED if dialect == "bracketed" else PLAIN
    for rank in range(8):
        lines = (tmp_path / f"rank_{rank}.log").read_text().splitlines()
        chosen = events.rows_of(rank)
        assert len(lines) == chosen.stop - chosen.start
        for row, line in zip(range(chosen.start, chosen.stop), lines, strict=True):
            found = grammar.fullmatch(line)
            assert found, line
            assert int(found["rank"]) == rank
            assert int(found["s"]) * 10**9 + int(found["ns"]) == events.enqueue[row]
            assert Op[snake(found["op"])] == events.op[row]
            assert int(found["count"]) == events.count[row]
            assert int(found["stream"], 16) == events.stream[row]
            assert (found["seq"] is None) == (dialect == "bare")
            if found["seq"] is not None:
                assert int(found["seq"]) == events.seq[row]
                assert int(found["save"]) >= 1
            if dialect in ("groupHash", "bracketed"):
                base = 16 if dialect == "bracketed" else 10
                expected = trace.communicators[events.comm[row]].hash
                assert expected is not None
                assert int(found["hash"], base) in (expected, expected % 2**64)
            else:
                assert found.groupdict()["hash"] is None


def test_no_line_is_written_twice(tmp_path: Path) -> None:
    """A stage in the middle takes two equal messages in one batch; readers take equal lines once."""
    scenario = Scenario(
        tp=1, pp=4, vpp=2, dp=1, cp=2, micro_batches=4, iterations=2, seed=5, ranks_per_node=4
    )
    write_text(simulate(scenario).trace, tmp_path, "groupHash")
    for rank in range(8):
        lines = (tmp_path / f"rank_{rank}.log").read_text().splitlines()
        assert len(set(lines)) == len(lines)


def test_no_line_is_as_long_as_the_limit_of_the_original_writer(tmp_path: Path) -> None:
    trace = simulate(SCENARIO).trace
    write_text(trace, tmp_path)
    bodies = [
        line.partition("] ")[2] for path in tmp_path.iterdir() for line in path.read_text().splitlines()
    ]
    assert max(map(len, bodies)) < 127
    assert len({item.hash for item in trace.communicators}) == len(trace.communicators)


def test_a_dump_ends_where_a_rank_pauses(tmp_path: Path) -> None:
    trace = simulate(SCENARIO).trace
    write_text(trace, tmp_path, "opCount")
    matches = [PLAIN.fullmatch(line) for line in (tmp_path / "rank_0.log").read_text().splitlines()]
    saves = np.array([int(found["save"]) for found in matches if found])
    times = trace.events.enqueue[trace.events.rows_of(0)]
    np.testing.assert_array_equal(saves, 1 + np.concatenate([[0], np.cumsum(np.diff(times) > 300_000_000)]))
    assert saves[-1] > 1


def test_chunks_do_not_change_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = simulate(SCENARIO).trace
    write_text(trace, tmp_path / "whole")
    monkeypatch.setattr("megatrace.simulator.emit.LINES_AT_ONCE", 7)
    seen: list[tuple[int, int]] = []
    write_text(trace, tmp_path / "pieces", progress=lambda done, of: seen.append((done, of)))
    for rank in range(8):
        name = f"rank_{rank}.log"
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "pieces" / name).read_bytes()
    assert seen == [(done, 8) for done in range(1, 9)]


def test_a_torn_tail_has_no_newline_and_a_missing_rank_no_file(tmp_path: Path) -> None:
    capture = Capture(torn_tails=(3,), missing_ranks=(6,))
    trace = simulate(SCENARIO.model_copy(update={"capture": capture})).trace
    write_text(trace, tmp_path)
    assert not (tmp_path / "rank_6.log").exists()
    torn = (tmp_path / "rank_3.log").read_bytes()
    assert not torn.endswith(b"\n")
    assert PLAIN.fullmatch(torn.splitlines()[-1].decode()) is None
    assert (tmp_path / "rank_2.log").read_bytes().endswith(b"\n")


def test_what_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    trace = simulate(SCENARIO).trace
    with pytest.raises(UnknownName, match="groupHash"):
        write_text(trace, tmp_path, "grouphash")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be written"):
        write_text(trace, tmp_path / "file")
    assert free_space(tmp_path / "not" / "there") > 0
