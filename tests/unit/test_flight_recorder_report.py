"""Reports of torchfrtrace, worded as those of PyTorch 2.13 on small dumps."""

from __future__ import annotations

import io

import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.errors import TraceError
from megatrace.model.finding import Diagnosis, Kind, Verdict
from megatrace.readers.flight_recorder_report import FlightRecorderReportReader
from megatrace.readers.source import ReadOptions, Source

HEAD = "Collective sequence number: 4 has errors"
BODY = """
internal record id: 3
group info: 0:default_pg
collective: nccl:all_reduce
{more}input sizes: [[2048, 5120]]
output sizes: [[2048, 5120]]
world size: 4
expected ranks: {{0, 1, 2, 3}}
collective state: scheduled
{errors}collective stack trace:
 step at train.py:12
"""


def report(head: str = HEAD, *, more: str = "", errors: tuple[str, ...] = ()) -> bytes:
    said = f"error msg: {', '.join(errors)}\n" if errors else ""
    return (head + BODY.format(more=more, errors=said)).encode()


def size_of(rank: int, sizes: str) -> str:
    return (
        f"Culprit rank {rank}; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[2048, 5120]]' "
        f"does not match found input sizes: '{sizes}'"
    )


def state_of(rank: int, state: str) -> str:
    return (
        f"Culprit rank {rank}; Error type: COLLECTIVE_STATE_MISMATCH, Expected state: 'scheduled' "
        f"does not match found state: '{state}'"
    )


def judged(text: bytes) -> Diagnosis:
    reader = FlightRecorderReportReader(ReadOptions())
    assert reader.refuses(text) is None
    reader.add(Source("report.txt", io.BytesIO(text)))
    return diagnose(reader.finish())


def test_a_rank_that_passed_another_size_is_named() -> None:
    found = judged(report(errors=(size_of(2, "[[2048, 5121]]"),)))
    (finding,) = found.findings
    assert (finding.kind, finding.culprits.ranks, found.verdict) == (Kind.MISMATCH, (2,), Verdict.HANG)
    assert "10,487,808 elements where the others passed 10,485,760" in finding.summary


def test_where_all_differ_from_the_first_rank_the_first_is_the_odd_one() -> None:
    errors = tuple(size_of(rank, "[[2048, 5121]]") for rank in (1, 2, 3))
    (finding,) = judged(report(errors=errors)).findings
    assert finding.culprits.ranks == (0,), "torchfrtrace compares with rank 0 and calls all others culprits"


def test_a_rank_that_called_something_else_is_named() -> None:
    error = (
        "Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_reduce' "
        "does not match found collective type: 'broadcast'"
    )
    (finding,) = judged(report(errors=(error,))).findings
    assert (finding.kind, finding.culprits.ranks) == (Kind.MISMATCH, (1,))
    assert "BROADCAST" in finding.summary


def test_a_device_that_did_not_start_what_the_others_started_is_named() -> None:
    errors = tuple(state_of(rank, "started") for rank in (1, 2, 3))
    (finding,) = judged(report(errors=errors)).findings
    assert (finding.kind, finding.culprits.ranks) == (Kind.HANG_DEVICE, (0,))


def test_who_did_not_join_is_named() -> None:
    head = "Not all ranks joining collective, sequence number: 4"
    (finding,) = judged(report(head, more="missing ranks: {2}\n")).findings
    assert finding.culprits.ranks == (2,)
    assert "never posted ALL_REDUCE #4" in finding.summary


def test_sums_that_do_not_fit_name_nobody_and_are_told() -> None:
    head = "Input/output mismatch in the collective sequence number: 4"
    found = judged(report(head, more="total input numel: 4096\ntotal output numel: 4100\n"))
    assert all(not finding.culprits.ranks for finding in found.findings)
    assert any("4096 elements in all and expect 4100" in note for note in found.coverage.notes)


def test_a_data_type_that_differs_is_told_in_its_words() -> None:
    error = "Culprit rank 3; Error type: COLLECTIVE_DTYPE_MISMATCH, Expected dtypes: '{'Half'}' does not"
    found = judged(report(errors=(error,)))
    assert any("rank 3: collective_dtype_mismatch" in note for note in found.coverage.notes)


def test_dumps_that_were_lacking_are_asked_for() -> None:
    line = (
        b"We cannot decide what's wrong with this collective entry because we missed FR dumps from ranks "
        b"({3, 5}) so we don't have enough information."
    )
    reader = FlightRecorderReportReader(ReadOptions())
    assert reader.refuses(line) is None
    reader.add(Source("report.txt", io.BytesIO(line)))
    with pytest.raises(TraceError, match="no dumps of ranks 3, 5: collect these"):
        reader.finish()
