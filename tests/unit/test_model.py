"""Events, coverage, job, trace and finding: what they promise to those who fill and read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from megatrace.model.events import NO_COMM, NO_COUNT, UNSEEN, EventFlag, Events, Op
from megatrace.model.finding import Diagnosis, Finding, JobSummary, Kind, Severity, Status, Verdict
from megatrace.model.job import JobConfig, ScheduleKind, Sourced
from megatrace.model.schedule import Phase
from megatrace.model.series import Series, SeriesKind
from megatrace.model.trace import Coverage, Gap, Observable, RankPlace, Trace


def events(ranks: list[int], **columns: Any) -> Events:
    n = len(ranks)
    return Events(
        rank=np.array(ranks, np.int32),
        op=np.full(n, Op.ALL_REDUCE, np.uint8),
        seq=np.arange(n, dtype=np.int64),
        enqueue=np.arange(n, dtype=np.int64) * 10,
        **columns,
    )


def test_operation_and_flag_numbers_stand_in_recordings_and_never_change() -> None:
    assert [op.name for op in Op] == [
        "UNKNOWN", "ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "BROADCAST", "REDUCE",
        "SEND", "RECV", "ALL_TO_ALL", "GATHER", "SCATTER", "BARRIER",
    ]  # fmt: skip
    assert [int(op) for op in Op] == list(range(12))
    assert {flag.name: int(flag) for flag in EventFlag} == {"COALESCED": 1, "FAILED": 2, "HASH_CUT": 4}
    assert [op for op in Op if op.is_p2p] == [Op.SEND, Op.RECV]


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="column count has 2 rows, rank has 3"):
        events([0, 0, 1], count=np.zeros(2, np.int64))


def test_ranks_out_of_order_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"not rank-major: sort them with Events\.rank_major"):
        events([1, 0])


def test_a_series_must_ascend_and_match() -> None:
    times, values = np.array([1, 2, 2]), np.zeros(3)
    assert len(Series(SeriesKind.BANDWIDTH, "x", 0, None, None, times, values).times) == 3
    with pytest.raises(ValueError, match="times are not ascending"):
        Series(SeriesKind.BANDWIDTH, "x", 0, None, None, times[::-1], values)
    with pytest.raises(ValueError, match="3 times, 2 values"):
        Series(SeriesKind.BANDWIDTH, "x", 0, None, None, times, values[:2])


def test_a_rank_without_calls_has_an_empty_slice() -> None:
    some = events([1, 1, 4])
    assert some.rows_of(1) == slice(0, 2)
    assert len(some.take(some.rows_of(3))) == 0
    assert some.ranks().tolist() == [1, 4]
    ranks, bounds = some.offsets()
    assert (ranks.tolist(), bounds.tolist()) == ([1, 4], [0, 2, 3])


def test_nothing_is_a_valid_set_of_events() -> None:
    none = Events.empty()
    assert (len(none), none.ranks().tolist(), none.offsets()[1].tolist()) == (0, [], [0])
    assert len(Events.concatenate([])) == len(Events.concatenate([none, none])) == 0


def test_joining_fills_what_one_part_does_not_have() -> None:
    first = events([0, 0], count=np.array([7, 8], np.int64))
    second = events([1], start=np.array([5], np.int64), comm=np.array([2], np.int32))
    joined = Events.concatenate([first, Events.empty(), second])
    assert joined.count is not None
    assert joined.start is not None
    assert joined.comm is not None
    assert joined.count.tolist() == [7, 8, NO_COUNT]
    assert joined.start.tolist() == [UNSEEN, UNSEEN, 5]
    assert joined.comm.tolist() == [NO_COMM, NO_COMM, 2]
    assert joined.peer is None
    assert joined.start.dtype == np.int64


def test_parts_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="not rank-major"):
        Events.concatenate([events([1]), events([0])])


def test_a_column_can_be_added_and_dropped() -> None:
    some = events([0, 1])
    more = some.with_columns(peer=np.array([1, 0], np.int32))
    assert dict(more.columns()).keys() == {"rank", "op", "seq", "enqueue", "peer"}
    assert more.with_columns(peer=None).peer is None
    assert some.peer is None


def test_coverage_of_two_inputs_is_what_both_can_see() -> None:
    text = Coverage(
        observables=frozenset({Observable.ENQUEUE, Observable.COUNT}),
        ranks_missing=(3, 1),
        lines=10,
        bad_lines=1,
        torn_tails=(2,),
        notes=("a",),
    )
    gap = Gap(rank=5, start=1, end=2, records_lost=None)
    ring = Coverage(
        observables=frozenset({Observable.ENQUEUE, Observable.END}),
        ranks_missing=(1, 2),
        gaps=(gap,),
        lines=5,
        spans_cut=4,
        torn_tails=(2, 0),
        notes=("b",),
    )
    both = text.merged(ring)
    assert both.observables == {Observable.ENQUEUE}
    assert both.has(Observable.ENQUEUE)
    assert not both.has(Observable.ENQUEUE, Observable.END)
    assert (both.ranks_missing, both.torn_tails, both.gaps) == ((1, 2, 3), (0, 2), (gap,))
    assert (both.lines, both.bad_lines, both.spans_cut, both.notes) == (15, 1, 4, ("a", "b"))


def test_an_input_without_calls_takes_no_observable_away() -> None:
    text = Coverage(observables=frozenset({Observable.ENQUEUE}))
    assert text.merged(Coverage()).observables == Coverage().merged(text).observables == text.observables


def test_declared_lists_what_somebody_said() -> None:
    job = JobConfig(
        tensor=Sourced(2, "job.yaml: parallel.tensor"),
        schedule=Sourced(ScheduleKind.GPIPE, "argv"),
        hosts=("a", "b"),
    )
    declared = job.declared()
    assert set(declared) == {"tensor", "schedule"}
    assert declared["tensor"].source == "job.yaml: parallel.tensor"
    assert JobConfig().declared() == {}


def test_where_a_rank_runs_as_recorded_else_as_declared_else_unknown() -> None:
    trace = Trace(events=events([0]), places=(RankPlace(9, "seen", 1, "gpu1"),))
    assert trace.place_of(9) == RankPlace(9, "seen", 1, "gpu1")
    assert trace.place_of(0) == RankPlace(0)
    declared = trace.with_job(JobConfig(ranks_per_node=Sourced(8, "argv"), hosts=("alpha",)))
    assert declared.place_of(9) == RankPlace(9, "seen", 1, "gpu1")
    assert declared.place_of(3) == RankPlace(3, "alpha", 3, "gpu3")
    assert declared.place_of(1505) == RankPlace(1505, "node188", 1, "gpu1")


def test_names_in_the_schema_are_stable() -> None:
    assert [verdict.value for verdict in Verdict] == ["failed", "hang", "slow", "undecidable", "healthy"]
    assert [kind.value for kind in Kind] == [
        "slow_compute", "slow_host", "slow_network", "slow_storage", "slow_uniform", "imbalance", "jitter",
        "hang_host", "hang_device", "hang_network", "hang_group", "mismatch", "missing_call", "deadlock",
        "dead_rank", "hardware", "configuration", "software", "resource",
    ]  # fmt: skip
    assert [severity.name for severity in sorted(Severity)] == ["P0", "P1", "P2", "P3", "INFO"]
    assert [status.value for status in Status] == ["ongoing", "recovered", "intermittent"]
    assert [phase.value for phase in Phase] == ["forward", "backward", "sync", "other"]


def test_a_kind_supports_one_verdict() -> None:
    verdicts = {kind: kind.verdict for kind in Kind}
    assert {verdicts[kind] for kind in (Kind.MISMATCH, Kind.MISSING_CALL, Kind.DEAD_RANK)} == {Verdict.HANG}
    assert {verdicts[kind] for kind in (Kind.IMBALANCE, Kind.JITTER, Kind.SLOW_HOST)} == {Verdict.SLOW}
    assert {verdicts[kind] for kind in (Kind.HARDWARE, Kind.RESOURCE)} == {Verdict.FAILED}
    assert set(verdicts.values()) == {Verdict.FAILED, Verdict.HANG, Verdict.SLOW}


@pytest.mark.parametrize(
    ("verdict", "severities", "code"),
    [
        (Verdict.HEALTHY, [], 0),
        (Verdict.HEALTHY, [Severity.P3, Severity.INFO], 0),
        (Verdict.SLOW, [Severity.P3, Severity.P2], 10),
        (Verdict.HANG, [Severity.P0], 10),
        (Verdict.UNDECIDABLE, [], 11),
        (Verdict.UNDECIDABLE, [Severity.P3], 11),
        (Verdict.UNDECIDABLE, [Severity.P1], 10),
    ],
)
def test_the_exit_code_says_fault_found_or_cannot_tell(
    verdict: Verdict, severities: list[Severity], code: int
) -> None:
    findings = tuple(Finding(Kind.JITTER, severity, "A sentence.") for severity in severities)
    assert Diagnosis(verdict, "A sentence.", JobSummary(1, 1), findings).exit_code == code
