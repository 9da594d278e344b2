from __future__ import annotations

import numpy as np
import pytest

from megatrace.model.events import NO_PEER, NO_SEQ, Op
from megatrace.model.frontier import ENDED, ENQUEUED, STARTED, Frontier
from megatrace.model.frontier_index import Members, group_order, last_of, peers_of_pairs, slots_of
from megatrace.model.trace import Communicator
from tests.unit.call_story import MS, T0, Story


def two_ranks() -> Story:
    story = Story(((0, 1), (0, 1)))
    story.call((0, 1), 0, 1.0)
    story.call((0, 1), 1, 2.0, Op.ALL_GATHER)
    story.call(0, 0, 3.0, done=False, start=3.1)
    story.call(1, 0, 9.0, done=False)
    return story


def test_last_enqueued_started_and_ended_of_each_communicator() -> None:
    frontier = two_ranks().frontier()
    by_entry = {
        (int(r), int(c)): i
        for i, (r, c) in enumerate(zip(frontier.entry_rank, frontier.entry_comm, strict=True))
    }
    assert sorted(by_entry) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert frontier.entry_last[by_entry[0, 0]] == 1
    assert frontier.entry_started[by_entry[0, 0]] == 1
    assert frontier.entry_ended[by_entry[0, 0]] == 0
    assert frontier.entry_started[by_entry[1, 0]] == 0
    assert frontier.entry_time[by_entry[1, 0]] == T0 + 9 * MS


def test_the_tail_keeps_program_order_and_states() -> None:
    frontier = two_ranks().frontier(tail=3)
    assert frontier.tail_comm[0].tolist() == [0, 1, 0]
    assert frontier.tail_state[0].tolist() == [ENDED, ENDED, STARTED]
    assert frontier.tail_state[1].tolist() == [ENDED, ENDED, ENQUEUED]
    assert frontier.calls.tolist() == [3, 3]


def test_a_tail_longer_than_the_log_is_padded_in_front() -> None:
    frontier = two_ranks().frontier(tail=5)
    assert frontier.tail_op[0].tolist()[:2] == [0, 0]
    assert frontier.tail_seq[0].tolist() == [NO_SEQ, NO_SEQ, 0, 0, 1]


def test_without_completions_nothing_has_ended() -> None:
    frontier = two_ranks().frontier(completions=False)
    assert not frontier.has_end
    assert set(frontier.entry_ended.tolist()) == {NO_SEQ}
    assert (frontier.tail_state == ENQUEUED).all()


def test_messages_are_numbered_per_direction() -> None:
    story = Story(((0, 1, 2),))
    story.message(1, 2, 0, 1.0, Op.SEND)
    story.message(1, 0, 0, 2.0, Op.RECV)
    story.message(1, 2, 0, 3.0, Op.SEND, done=False)
    story.message(0, 1, 0, 1.0, Op.SEND)
    frontier = story.frontier(tail=3)
    row = frontier.index_of(1)
    assert row is not None
    assert frontier.tail_seq[row].tolist() == [0, 0, 1]
    pairs = {
        (int(frontier.ranks[r]), int(p), bool(s)): (int(n), int(e))
        for r, p, s, n, e in zip(
            frontier.pair_rank,
            frontier.pair_peer,
            frontier.pair_send,
            frontier.pair_posted,
            frontier.pair_ended,
            strict=True,
        )
    }
    assert pairs == {(0, 1, True): (1, 1), (1, 0, False): (1, 1), (1, 2, True): (2, 1)}


def test_a_peer_follows_from_a_communicator_of_two() -> None:
    story = Story(((0, 3), (0, 3, 5)))
    story.message(0, NO_PEER, 0, 1.0, Op.SEND)
    story.message(0, NO_PEER, 1, 2.0, Op.SEND)
    assert story.frontier(tail=2).tail_peer[0].tolist() == [3, NO_PEER]


def test_peers_from_the_layout_fill_what_the_source_lacks() -> None:
    story = Story(((0, 1, 2),))
    story.message(0, NO_PEER, 0, 1.0, Op.SEND)
    events = story.events().with_columns(peer=None)
    frontier = Frontier.from_events(events, story.communicators(), tail=1, peers=np.array([2], np.int32))
    assert frontier.tail_peer.tolist() == [[2]]


def test_lost_records_count_messages_from_the_last_common_collective() -> None:
    story = Story(((0, 1),))
    for at in range(4):
        story.message(0, 1, 0, float(at), Op.SEND)
        story.message(1, 0, 0, float(at), Op.RECV)
    story.call((0, 1), 0, 5.0)
    story.message(0, 1, 0, 6.0, Op.SEND)
    story.message(1, 0, 0, 6.0, Op.RECV)
    events = story.events()
    late = events.seq.copy()
    late[(events.op == Op.ALL_REDUCE)] = 7  # the number proves that earlier calls are missing
    cut = events.with_columns(seq=late)
    rows = np.ones(len(cut), bool)
    rows[:3] = False  # and rank 0 lost its first three Sends
    frontier = Frontier.from_events(cut.take(rows), story.communicators(), tail=4)
    assert frontier.lost.all()
    assert frontier.pair_posted.tolist() == [1, 1]


def test_messages_that_cannot_be_aligned_are_not_paired() -> None:
    story = Story(((0, 1), (0,), (1,)))
    story.message(0, 1, 0, 1.0, Op.SEND)
    story.message(1, 0, 0, 1.0, Op.RECV)
    story.call(0, 1, 2.0)
    events = story.events()
    seq = events.seq.copy()
    seq[events.op == Op.ALL_REDUCE] = 9
    frontier = Frontier.from_events(events.with_columns(seq=seq), story.communicators(), tail=2)
    assert len(frontier.pair_rank) == 0
    assert (frontier.tail_peer == NO_PEER).all()


def test_sequence_numbers_are_counted_where_the_source_has_none() -> None:
    events = two_ranks().events()
    bare = events.with_columns(seq=np.full(len(events), NO_SEQ, np.int64))
    frontier = Frontier.from_events(bare, two_ranks().communicators())
    assert frontier.entry_last.tolist() == [1, 0, 1, 0]


def test_who_moved_between_two_frontiers() -> None:
    story = two_ranks()
    before = story.frontier()
    assert before.moved_since(before).tolist() == []
    story.call(1, 1, 11.0)
    assert story.frontier().moved_since(before).tolist() == [1]


def test_a_completion_is_progress_as_well() -> None:
    story = two_ranks()
    before = story.frontier()
    events = story.events()
    assert events.end is not None
    end = events.end.copy()
    end[2] = T0 + 20 * MS
    after = Frontier.from_events(events.with_columns(end=end), story.communicators())
    assert after.moved_since(before).tolist() == [0]


def test_bytes_and_back() -> None:
    frontier = two_ranks().frontier(until=30.0)
    again = Frontier.from_bytes(frontier.to_bytes())
    assert again.snapshot_at == frontier.snapshot_at
    assert again.members.ranks.tolist() == [0, 1, 0, 1]
    for (name, mine), (_, theirs) in zip(frontier.arrays(), again.arrays(), strict=True):
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("cut", [0, 3, 8, 40, -1])
def test_bytes_that_are_cut_are_refused(cut: int) -> None:
    whole = two_ranks().frontier().to_bytes()
    with pytest.raises(ValueError, match="frontier"):
        Frontier.from_bytes(whole[:cut])


def test_bytes_of_another_version_are_refused() -> None:
    whole = bytearray(two_ranks().frontier().to_bytes())
    whole[4] = 99
    with pytest.raises(ValueError, match="version 99"):
        Frontier.from_bytes(bytes(whole))


def test_an_empty_trace_has_an_empty_frontier() -> None:
    frontier = Story(()).frontier()
    assert len(frontier) == 0
    assert frontier.end == 0
    assert frontier.index_of(0) is None
    assert len(Frontier.from_bytes(frontier.to_bytes())) == 0


def test_the_rolling_hash_tells_the_same_calls_from_others() -> None:
    same, other = Story(((0, 1),)), Story(((0, 1),))
    for story, odd in ((same, 4096), (other, 1)):
        story.call((0, 1), 0, 1.0)
        story.call(0, 0, 2.0)
        story.call(1, 0, 2.0, count=odd)
    hashes = same.frontier().entry_hash
    assert hashes[0] == hashes[1]
    assert np.unique(other.frontier().entry_hash).size == 2


def test_size_of_a_rank_stays_within_four_kilobytes() -> None:
    story = Story(tuple((0, 1) for _ in range(12)))
    for comm in range(12):
        for at in range(10):
            story.call((0, 1), comm, float(at))
    frontier = story.frontier()
    assert len(frontier.to_bytes()) / len(frontier) <= 4096


def test_index_helpers() -> None:
    assert last_of(np.array([0, 2, 0]), np.array([5, 6, 7]), 3).tolist() == [7, -1, 6]
    assert group_order(np.array([3, 1, 3, 3, 1])).tolist() == [0, 0, 1, 2, 1]
    members = Members.of((Communicator(0, (4, 9)), Communicator(1)))
    assert members.of_comm(0).tolist() == [4, 9]
    assert members.of_comm(1).tolist() == []
    assert members.of_comm(7).tolist() == []
    found = peers_of_pairs(members, np.array([0, 0, 1], np.int32), np.array([4, 9, 4], np.int32))
    assert found.tolist() == [9, 4, NO_PEER]


def test_communicators_that_share_a_rank_have_different_slots() -> None:
    groups = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3))
    members = Members.of(tuple(Communicator(i, ranks) for i, ranks in enumerate(groups)))
    slots = slots_of(members, np.arange(4, dtype=np.int32))
    assert slots is not None
    assert slots.tolist() == [0, 0, 1, 1, 2]
    unknown = Members.of((Communicator(0, (0, 1)), Communicator(1)))
    assert slots_of(unknown, np.arange(2, dtype=np.int32)) is None


def test_a_call_on_a_communicator_of_others_is_kept_apart() -> None:
    story = Story(((0, 1), (2, 3)))
    story.call((0, 1), 0, 1.0).call((2, 3), 1, 1.0)
    story.call(0, 1, 2.0)  # rank 0 is no member of it, as far as the source knows
    frontier = story.frontier()
    entries = list(zip(frontier.entry_rank.tolist(), frontier.entry_comm.tolist(), strict=True))
    assert entries == [(0, 0), (0, 1), (1, 0), (2, 1), (3, 1)]
