"""What the log reader makes of lines: prefixes, colours, wraps, encodings; what it refuses."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from megatrace.errors import UnknownFormat
from megatrace.model.finding import Verdict
from megatrace.model.series import FactKind, LogFact
from megatrace.readers.log import LogReader
from megatrace.readers.log_clean import Line, clean
from megatrace.readers.opening import open_trace
from megatrace.readers.source import ReadOptions, Source
from tests.unit.log_cases import judged, timeout, xid

WATCHDOG = timeout(13, 216, "ALLTOALL_BASE", own=1)


def facts(text: str | bytes, modified: int | None = None) -> list[LogFact]:
    data = text if isinstance(text, bytes) else text.encode()
    reader = LogReader(ReadOptions())
    reader.add(Source("a.log", io.BytesIO(data), modified=modified))
    return [fact for fact in reader.finish().facts if fact.kind is not FactKind.LINES]


def line(text: str, modified: int | None = None) -> Line:
    (found,) = clean(text.encode(), 1, "a.log", modified)
    return found


@pytest.mark.parametrize(
    "wrap",
    [
        "{}",
        "\x1b[36m(RayTrainWorker pid=4242, ip=10.0.0.5)\x1b[0m {}\r\n",
        "13: {}",
        "[pod/train-1/pytorch] {}",
        "2025-02-18T05:26:16.123456789Z stderr F {}",
        "worker-1  | {}",
        " 10%|# | 10/100 [00:10<01:30]\r 11%|# | 11/100\r{}",
        " 2025-02-18 12:54 {}",
    ],
    ids=["bare", "ray", "srun", "pod", "cri", "compose", "tqdm", "dated"],
)  # fmt: skip
def test_whatever_stands_before_a_line_it_is_the_same_fact(wrap: str) -> None:
    (fact,) = facts(wrap.format(WATCHDOG.strip()) + "\n")
    assert (fact.kind, fact.name, fact.rank, fact.get("own_rank"), fact.get("seq")) == (
        FactKind.WATCHDOG,
        "timeout",
        13,
        1,
        216,
    )


def test_lines_that_a_terminal_broke_are_put_together_even_inside_numbers() -> None:
    text = WATCHDOG.strip()
    other = text.replace("rank13", "rank14")
    broken = "\n".join(t[i : i + 80] for t in (text, other) for i in range(0, len(t), 80))
    assert [fact.rank for fact in facts(broken)] == [13, 14]
    assert all(fact.get("ran_ms") == 600012 for fact in facts(broken))


def test_lines_of_equal_length_are_not_taken_for_broken_ones() -> None:
    text = "".join(
        f"6,700,5100020{i},-;nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping\n"
        for i in range(5)
    )
    assert len(facts(text)) == 5


def test_a_record_that_goes_on_in_the_next_line_is_one() -> None:
    text = (
        " iteration  10/ 100 | elapsed time per iteration (s): 21.07 | learning\n rate: 2.0E-04 | number of nan\n"
        "iterations:  0 | TFLOPs: 171.35 |\n"
    )
    (fact,) = facts(text)
    assert (fact.get("step"), fact.get("time"), fact.get("tflops")) == (10, 21.07, 171.35)


def test_bytes_that_are_no_utf8_do_not_hide_the_lines_after_them() -> None:
    (fact,) = facts(b"d\xe9marrage\n" + WATCHDOG.encode())
    assert fact.rank == 13


@pytest.mark.parametrize(
    ("text", "node", "time"),
    [
        ("[Sun Feb 23 16:24:18 2025] NVRM: x", None, 1_740_327_858_000_000_000),
        ("2024-04-29T14:55:41,678628+02:00 x", None, 1_714_395_341_678_628_000),
        ("2025-01-06T01:02:03.5Z gpu-1 kernel: x", "gpu-1", 1_736_125_323_500_000_000),
        ("Feb 23 03:38:16 gpu-1 kernel: [12.345678] x", "gpu-1", None),
        ("10.20.1.18: x", "10.20.1.18", None),
    ],
)
def test_times_and_nodes_of_prefixes(text: str, node: str | None, time: int | None) -> None:
    found = line(text, modified=1_740_400_000_000_000_000)
    assert found.node == node
    assert found.text.endswith("x")
    if time is not None:
        assert found.time == time


def test_a_year_that_is_not_in_the_line_is_that_of_the_file() -> None:
    found = line("Dec 31 23:00:00 gpu-1 kernel: x", modified=1_736_125_323_000_000_000)  # 2025-01-06
    assert found.time == 1_735_686_000_000_000_000  # 2024-12-31T23:00:00Z
    assert (
        line("Jan  2 00:00:00 gpu-1 kernel: x", modified=1_736_125_323_000_000_000).time
        == 1_735_776_000_000_000_000
    )


def test_seconds_since_boot_are_no_time_of_day() -> None:
    found = line("[75200.644138] NVRM: x")
    assert (found.clock, found.time) == ("boot", 75_200_644_138_000)


def test_a_text_without_any_known_line_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("This is a text.\nIt has two lines.\n", encoding="utf-8")
    with pytest.raises(UnknownFormat) as caught:
        open_trace([tmp_path / "README"])
    assert "none of its first" in caught.value.reasons["log"]


@pytest.mark.parametrize(
    "data", [b"\x00\x01\x02" * 50, b'{"a": 1}', b"<xml/>", b""], ids=["binary", "json", "xml", "empty"]
)
def test_what_is_no_lines_of_text_is_refused(data: bytes) -> None:
    assert LogReader(ReadOptions()).refuses(data)


def test_a_log_of_a_known_form_without_a_fault_is_healthy(tmp_path: Path) -> None:
    text = "Aug 17 00:00:24 vm systemd[1]: logrotate.service: Deactivated.\nAug 17 00:00:24 vm systemd[1]: Finished Rotate."
    diagnosis = judged(tmp_path, syslog=text)
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.findings == ()
    assert "2 lines of a system log read" in diagnosis.headline


def test_a_flood_of_one_kind_hides_no_other(tmp_path: Path) -> None:
    flood = "Jun  1 10:00:00 gpu-1 systemd-networkd[1]: ib0: lost carrier\n" * 25_000
    diagnosis = judged(
        tmp_path,
        syslog=flood + "Jun  1 10:00:01 gpu-1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, fallen off the bus\n",
    )
    assert "Xid 79" in diagnosis.headline
    assert any("5,000 further lines" in note for note in diagnosis.coverage.notes)


def test_calls_and_errors_of_a_log_that_brackets_its_ranks_go_to_the_log_reader(tmp_path: Path) -> None:
    text = "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
    diagnosis = judged(tmp_path, train__log=text)
    assert diagnosis.inputs[0].reader == "log"
    assert diagnosis.findings[0].culprits.ranks == (1,)


def test_facts_keep_where_they_stood() -> None:
    (fact,) = facts("noise\n" + xid(79))
    assert (fact.source, fact.line, fact.node, fact.device, fact.code) == (
        "a.log",
        2,
        "gpu-1",
        "0000:3b:00",
        79,
    )


@pytest.mark.parametrize("prefix", ["[rank2999999999999999999999999991]:", "[rank1073741824]:", ""])
def test_a_rank_with_digits_too_many_is_no_rank_and_nothing_is_counted_up_to_it(
    prefix: str, tmp_path: Path
) -> None:
    line = timeout(0, 318, own=0) + timeout(1, 318, own=1)
    line += timeout(7, 318, own=4_000_000_000).replace("[rank7]:", prefix)
    found = judged(tmp_path, train__log=line)
    assert found.findings, "the other two are read"
    named = {rank for finding in found.findings for rank in (*finding.culprits.ranks, *finding.victims)}
    assert named <= {0, 1}


@pytest.mark.parametrize("value", [1e999, float("nan"), -1e999, 10**400])
def test_a_field_that_is_no_finite_number_is_none(value: float) -> None:
    fact = LogFact(FactKind.PORT_STATE, "symbol_error", fields=(("symbol_error", value),))
    assert fact.number("symbol_error") is None
