from __future__ import annotations

import numpy as np
import pytest

from megatrace.model.events import Op
from megatrace.model.frontier_index import Members
from megatrace.model.frontier_scan import differing_rows, lags
from megatrace.model.trace import Communicator
from tests.unit.call_story import Story


def told(calls: int = 400) -> Story:
    """Two pairs and a group of all, which is called once at the start: far outside the first look."""
    story = Story(((0, 1), (2, 3), (0, 1, 2, 3)))
    story.call((0, 1, 2, 3), 2, 0.0)
    for at in range(1, calls):
        story.call((0, 1), 0, float(at)).call((2, 3), 1, float(at))
    return story


def test_a_rank_that_is_behind_and_by_how_much() -> None:
    story = told()
    for at in range(5):
        story.call(3, 1, 500.0 + at)
    found = lags(story.events(), Members.of(story.communicators()))
    behind = {(int(r), int(c)): int(b) for r, c, b in zip(found.rank, found.comm, found.behind, strict=True)}
    assert behind == {(0, 0): 0, (1, 0): 0, (2, 1): 5, (3, 1): 0, (0, 2): 0, (1, 2): 0, (2, 2): 0, (3, 2): 0}


def test_positions_agree_with_the_frontier() -> None:
    story = told(90).call(1, 0, 200.0)
    found, frontier = lags(story.events(), Members.of(story.communicators())), story.frontier()
    mine = sorted(zip(found.rank.tolist(), found.comm.tolist(), found.last.tolist(), strict=True))
    theirs = zip(
        frontier.ranks[frontier.entry_rank].tolist(),
        frontier.entry_comm.tolist(),
        frontier.entry_last.tolist(),
        strict=True,
    )
    assert mine == sorted(theirs)


def test_members_must_be_known() -> None:
    with pytest.raises(ValueError, match="members of every communicator"):
        lags(told(3).events(), Members.of((Communicator(0), Communicator(1), Communicator(2))))


def test_rows_that_differ_come_with_the_rows_they_differ_from() -> None:
    story = told()
    story.call(0, 0, 500.0, count=64).call(1, 0, 500.0, count=65)
    story.call(2, 1, 500.0, Op.ALL_TO_ALL, count=1).call(3, 1, 500.0, Op.ALL_TO_ALL, count=2)
    story.call(2, 1, 501.0, Op.ALL_GATHER).call(3, 1, 501.0, Op.ALL_REDUCE)
    events = story.events()
    rows = differing_rows(events, Members.of(story.communicators()))
    assert sorted(zip(events.rank[rows].tolist(), events.seq[rows].tolist(), strict=True)) == [
        (0, 399),
        (1, 399),
        (2, 400),
        (3, 400),
    ]


def test_calls_that_fit_do_not_differ() -> None:
    story = told()
    assert len(differing_rows(story.events(), Members.of(story.communicators()))) == 0
    assert np.array_equal(differing_rows(Story(()).events(), Members.of(())), np.empty(0, np.int64))
