"""Channels, anchors, gaps, numbering and early ends, from calls written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from megatrace.analysis.anchors import anchor_rows, signatures
from megatrace.analysis.channels import tabulate
from megatrace.analysis.early_ends import early_ends, early_note
from megatrace.analysis.gaps import find_gaps
from megatrace.analysis.infer_layout import resolve
from megatrace.analysis.iterations import Iterations, number_iterations
from megatrace.model.events import NO_SEQ, Events, Op
from tests.unit.analysis_cases import (
    GATHER,
    GRADIENT,
    MS,
    NORM,
    PIPELINE,
    RECV,
    REDUCE,
    SCATTER,
    SEND,
    T0,
    WORLD,
    Call,
    events_of,
    text_trace,
    without,
)

MICRO_BATCH = [RECV, REDUCE, REDUCE, SEND]
ITERATION = [*MICRO_BATCH * 4, SCATTER, GATHER, NORM]
PERIOD = len(ITERATION)
START_UP = [Call(Op.BROADCAST, 5_000_000, WORLD)] * 7


def anchors_of(events: Events) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    channels = tabulate(events)
    ordinal = np.arange(len(channels)) - np.searchsorted(channels.rank, channels.rank, "left")
    return anchor_rows(events, signatures(events, ordinal[channels.of_event]))


def numbered(events: Events) -> Iterations:
    channels = tabulate(events)
    gap_rows, _ = find_gaps(events, channels)
    found = number_iterations(events, channels, anchors_of(events), gap_rows)
    assert found is not None
    return found


# --- channels ---


def test_a_channel_is_a_stream_of_a_rank() -> None:
    events = events_of({0: ITERATION * 2, 3: ITERATION})
    channels = tabulate(events)
    assert channels.rank.tolist() == [0] * 4 + [3] * 4
    assert channels.key[:4].tolist() == [PIPELINE, 0x10, 0x30, WORLD]  # in order of first use
    assert channels.by_stream.all()
    assert channels.total[:4].tolist() == [16, 16, 4, 2]
    assert channels.calls[0, Op.SEND] == 8
    assert channels.p2p[:4].tolist() == [True, False, False, False]
    assert channels.max_count[2] == GRADIENT
    assert channels.counted.all() or channels.counted[:4].all()
    np.testing.assert_array_equal(channels.key[channels.of_event], events.stream)


def test_a_counter_that_pairs_calls_proves_nothing() -> None:
    events = events_of({0: ITERATION * 3})
    pipeline = events.stream == PIPELINE
    halved = events.with_columns(seq=np.where(pipeline, events.seq // 2, events.seq))
    counted = tabulate(halved).counted
    assert counted.tolist() == [False, True, True, True]


def test_a_counter_that_stands_still_is_a_group_of_one() -> None:
    events = events_of({0: ITERATION * 3})
    alone = events.with_columns(seq=np.where(events.stream == 0x30, 0, events.seq))
    channels = tabulate(alone)
    assert channels.constant.tolist() == [False, False, True, False]
    assert not channels.counted[2]


def test_streams_and_communicators_are_not_mixed_up() -> None:
    events = events_of({0: ITERATION})
    comm = np.where(events.stream == 0x10, np.int32(0x20 // 2), np.int32(-1)).astype(np.int32)
    channels = tabulate(events.with_columns(comm=comm))
    assert len(channels) == 4
    assert channels.by_stream.sum() == 3


# --- anchors ---


def test_the_anchor_is_the_gradient_synchronisation() -> None:
    events = events_of({0: [*START_UP, *ITERATION * 12]})
    found = anchors_of(events)
    assert len(found) == 12
    assert {Op(int(op)) for op in events.op[found]} == {Op.REDUCE_SCATTER}
    assert set(np.diff(found).tolist()) == {PERIOD}


def test_a_call_of_every_micro_batch_is_no_anchor() -> None:
    """With a reduction of its own size in every micro-batch, four an iteration, it would be four times as
    many."""
    marked = [RECV, REDUCE, Call(Op.ALL_REDUCE, 3_000_000), SEND]
    found = anchors_of(events_of({0: [*marked * 4, SCATTER, GATHER, NORM] * 10}))
    assert len(found) == 10


def test_a_logging_call_of_every_tenth_iteration_is_no_anchor() -> None:
    logging = Call(Op.ALL_REDUCE, 96, WORLD)
    calls: list[Call] = []
    for i in range(40):
        calls += [*ITERATION, logging] if i % 10 == 9 else ITERATION
    assert len(anchors_of(events_of({0: calls}))) == 40


def test_evaluation_between_iterations_is_survived() -> None:
    evaluation = [RECV, REDUCE, SEND] * 8
    calls = [*ITERATION * 10, *evaluation, *ITERATION * 10, *evaluation, *ITERATION * 10]
    events = events_of({0: calls})
    assert len(anchors_of(events)) == 30


def test_without_a_gradient_call_of_its_own_two_calls_in_a_row_make_the_anchor() -> None:
    """Buckets as large as activations, on the same stream: only the norm that follows the last tells."""
    loop = [REDUCE] * 6 + [Call(Op.ALL_REDUCE, 1)]
    events = events_of({0: loop * 9})
    found = anchors_of(events)
    assert len(found) == 9
    assert set(np.diff(found).tolist()) == {7}


def test_what_never_repeats_has_no_anchor() -> None:
    calls = [Call(Op.ALL_REDUCE, 2_000 + 17 * i) for i in range(60)]
    assert len(anchors_of(events_of({0: calls}))) == 0
    assert len(anchors_of(events_of({0: [REDUCE] * 3}))) == 0


def test_ranks_of_other_stages_have_their_own_anchor() -> None:
    other = replace(SCATTER, count=GRADIENT + 5)
    last_stage = [*[RECV, REDUCE, REDUCE, SEND] * 4, other, GATHER, NORM]
    events = events_of({0: ITERATION * 6, 1: last_stage * 6, 2: ITERATION * 6})
    found = anchors_of(events)
    assert np.bincount(events.rank[found]).tolist() == [6, 6, 6]
    assert set(events.count[found].tolist() if events.count is not None else []) == {GRADIENT, GRADIENT + 5}


# --- gaps ---


def test_several_channels_jump_at_one_place() -> None:
    events = without(events_of({0: ITERATION * 20, 1: ITERATION * 20}), 1, 50, 120)
    rows, gaps = find_gaps(events, tabulate(events))
    (gap,) = gaps
    start = events.rows_of(1).start
    assert rows.tolist() == [start + 50]
    assert gap.rank == 1
    assert (gap.start - T0, gap.end - T0) == (49 * MS, 120 * MS)
    assert gap.records_lost == 70


def test_two_gaps_stay_two() -> None:
    calls = ITERATION * 40
    events = without(without(events_of({0: calls}), 0, 150, 180), 0, 40, 60)
    rows, gaps = find_gaps(events, tabulate(events))
    assert rows.tolist() == [40, 130]
    assert [gap.records_lost for gap in gaps] == [20, 30]


def test_a_counter_that_pairs_calls_makes_no_gaps() -> None:
    events = events_of({0: ITERATION * 10})
    paired = events.with_columns(seq=np.where(events.stream == PIPELINE, events.seq * 3, events.seq))
    assert find_gaps(paired, tabulate(paired))[1] == ()


def test_no_gap_without_a_counter() -> None:
    events = events_of({0: ITERATION * 10})
    blind = without(events, 0, 50, 120).with_columns(seq=np.full(len(events) - 70, NO_SEQ, np.int64))
    assert find_gaps(blind, tabulate(blind))[1] == ()


# --- numbers ---


def test_iterations_count_from_the_first() -> None:
    it = numbered(events_of({0: ITERATION * 5, 1: ITERATION * 5}))
    assert (it.count, it.absolute) == (5, True)
    assert it.number.tolist() == [0, 1, 2, 3, 4] * 2
    assert it.complete.tolist() == [False, True, True, True, True] * 2 or it.complete.all()


def test_iterations_lost_in_a_gap_keep_their_numbers() -> None:
    """Rank 1 lost iterations 3 to 6 and the parts of 2 and 7; the counter of its reductions proves how
    many."""
    events = without(events_of({0: ITERATION * 12, 1: ITERATION * 12}), 1, 2 * PERIOD + 5, 7 * PERIOD + 5)
    it = numbered(events)
    assert (it.count, it.absolute) == (12, True)
    mine = it.rank == 1
    assert it.number[mine].tolist() == [0, 1, 7, 8, 9, 10, 11]
    cut = it.number[mine & ~it.complete]
    assert 7 in cut.tolist()
    assert not set(cut.tolist()) & {1, 8, 9, 10, 11}


def test_a_log_that_starts_in_the_middle_keeps_the_numbers_of_the_job() -> None:
    """Ring overwrite: the first seven iterations are gone on all ranks, the counters are those of the job."""
    whole = events_of({0: ITERATION * 12, 1: ITERATION * 12})
    events = without(without(whole, 0, 0, 7 * PERIOD), 1, 0, 7 * PERIOD)
    it = numbered(events)
    assert it.absolute
    assert it.number.tolist() == [7, 8, 9, 10, 11] * 2


def test_without_counters_numbers_are_relative_and_aligned_in_time() -> None:
    whole = events_of({0: ITERATION * 12, 1: ITERATION * 12})
    late = without(whole, 1, 0, 3 * PERIOD)
    it = numbered(late.with_columns(seq=np.full(len(late), NO_SEQ, np.int64)))
    assert not it.absolute
    assert it.number[it.rank == 0].tolist() == list(range(12))
    assert it.number[it.rank == 1].tolist() == list(range(3, 12))


def test_a_rank_cut_after_two_iterations_does_not_make_the_job_relative() -> None:
    """It has two ends of iterations, with a gap between: no period of its own tells how many it lost."""
    ranks = dict.fromkeys(range(4), ITERATION * 20)
    events = without(events_of(ranks), 2, PERIOD + 3, 9 * PERIOD + 3)
    mine = events.rows_of(2).stop - events.rows_of(2).start
    events = without(events, 2, 2 * PERIOD + 5, mine)
    it = numbered(events)
    assert (it.count, it.absolute) == (20, True)
    assert it.number[it.rank == 2].tolist() == [0, 9]
    assert not it.complete[(it.rank == 2) & (it.number == 9)].any()


def test_times_are_nan_where_a_rank_lost_the_anchor() -> None:
    events = without(events_of({0: ITERATION * 6, 1: ITERATION * 6}), 1, PERIOD, 2 * PERIOD)
    times = numbered(events).times(events)
    assert times.shape == (2, 6)
    assert np.isnan(times).tolist() == [[False] * 6, [False, True, False, False, False, False]]
    assert times[0, 3] == T0 + (3 * PERIOD + ITERATION.index(SCATTER)) * MS


def test_slices_are_whole_iterations() -> None:
    events = events_of({0: [*START_UP, *ITERATION * 6]})
    it = numbered(events)
    lengths = (it.row - it.start + 1)[it.complete]
    assert set(lengths.tolist()) == {PERIOD}


# --- early ends ---


def cut(ranks: Sequence[int], iterations: int, kept: int) -> Events:
    calls = dict.fromkeys(range(8), ITERATION * iterations)
    for rank in ranks:
        calls[rank] = calls[rank][:kept]
    return events_of(calls)


def test_a_rank_after_whose_end_others_go_on_was_cut() -> None:
    resolved = resolve(text_trace(cut([5], 12, 7 * PERIOD + 4)))
    assert early_ends(resolved) == (5,)
    seconds = (5 * PERIOD - 4) * MS / 1e9
    assert early_note(resolved, (5,)).startswith(f"the log of rank 5 ends {seconds:.1f} s before the others'")


def test_a_rank_that_lacks_the_end_of_the_last_iteration_was_cut_where_all_others_have_it() -> None:
    assert early_ends(resolve(text_trace(cut([5], 12, 11 * PERIOD + 4)))) == (5,)
    # Three of eight are no exception any more, and with others in the middle as well the job may stand.
    assert early_ends(resolve(text_trace(cut([1, 3, 5], 12, 11 * PERIOD + 4)))) == ()
    standing = cut([5], 12, 11 * PERIOD + 4)
    keep = np.ones(len(standing), np.bool_)
    keep[[standing.rows_of(rank).stop - 1 - i for rank in range(8) if rank != 5 for i in range(2)]] = False
    assert early_ends(resolve(text_trace(standing.take(keep)))) == ()


def test_hosts_without_a_pipeline_run_ahead_to_the_end_whoever_stops() -> None:
    flat = [REDUCE, REDUCE, REDUCE, REDUCE, SCATTER, GATHER, NORM]
    calls = dict.fromkeys(range(8), flat * 12)
    calls[5] = calls[5][: 11 * len(flat) + 4]
    assert early_ends(resolve(text_trace(events_of(calls)))) == ()


def test_a_rank_that_lacks_more_than_an_iteration_was_cut() -> None:
    assert early_ends(resolve(text_trace(cut([5], 12, 10 * PERIOD + 4)))) == (5,)


def test_a_rank_without_any_whole_iteration_was_cut_too() -> None:
    assert early_ends(resolve(text_trace(cut([0, 3], 12, 6)))) == (0, 3)


def test_one_whole_log_tells_on_all_others() -> None:
    assert early_ends(resolve(text_trace(cut(range(1, 8), 12, 5 * PERIOD)))) == tuple(range(1, 8))


def test_nothing_ends_early_in_a_log_without_iterations() -> None:
    calls = [Call(Op.ALL_REDUCE, 2_000 + 17 * i) for i in range(60)]
    assert early_ends(resolve(text_trace(events_of({0: calls, 1: calls[:10]})))) == ()
