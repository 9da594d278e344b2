"""Events as columns: sorting, cutting and joining lose and invent nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megatrace.model.events import Events

Rows = list[tuple[int, int]]

rows = st.lists(st.tuples(st.integers(0, 5), st.integers(-(2**60), 2**60)), max_size=40)
"""(rank, enqueue) of calls in the order of a shared log."""


def build(calls: Rows) -> Events:
    rank = np.array([rank for rank, _ in calls], np.int32)
    time = np.array([time for _, time in calls], np.int64)
    number = np.arange(len(calls), dtype=np.int64)
    return Events.rank_major(
        [("rank", rank), ("op", np.zeros(len(calls), np.uint8)), ("seq", number), ("enqueue", time)]
    )


def table(events: Events) -> Rows:
    return list(zip(events.rank.tolist(), events.enqueue.tolist(), strict=True))


@given(rows)
def test_rank_major_keeps_every_call_and_the_order_within_a_rank(calls: Rows) -> None:
    events = build(calls)
    assert table(events) == sorted(calls, key=lambda call: call[0])
    for rank in range(6):
        seq = events.seq[events.rows_of(rank)]
        assert (np.diff(seq) > 0).all()
        assert len(seq) == sum(call[0] == rank for call in calls)


@given(rows)
def test_offsets_are_the_slices_of_the_ranks(calls: Rows) -> None:
    events = build(calls)
    ranks, bounds = events.offsets()
    assert ranks.tolist() == events.ranks().tolist() == sorted({rank for rank, _ in calls})
    assert (bounds[0], bounds[-1]) == (0, len(events))
    for i, rank in enumerate(ranks.tolist()):
        assert events.rows_of(rank) == slice(int(bounds[i]), int(bounds[i + 1]))


@given(rows)
def test_cutting_by_rank_and_joining_gives_the_same(calls: Rows) -> None:
    events = build(calls)
    parts = [events.take(events.rows_of(rank)) for rank in range(-1, 8)]
    joined = Events.concatenate(parts)
    assert table(joined) == table(events)
    assert joined.seq.tolist() == events.seq.tolist()


@given(rows)
def test_taking_by_mask_and_by_index_agree(calls: Rows) -> None:
    events = build(calls)
    mask: NDArray[np.bool_] = events.enqueue % 2 == 0
    by_mask, by_index = events.take(mask), events.take(np.flatnonzero(mask))
    assert table(by_mask) == table(by_index) == [call for call in table(events) if call[1] % 2 == 0]
