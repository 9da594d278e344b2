"""Each signature of a hang, told by hand: TP pairs (0,1) and (2,3) are stages 0 and 1."""

from __future__ import annotations

import pytest

from megatrace.analysis.hang import HangResult, Hints, find_hangs
from megatrace.model.events import Op
from megatrace.model.finding import Finding, Kind, Severity, Where
from megatrace.model.layout import ParallelLayout
from megatrace.model.schedule import Phase
from megatrace.model.trace import Coverage, RankPlace
from tests.unit.call_story import MS, T0, Story

LAYOUT = ParallelLayout(tp=2, pp=2)
GROUPS = ((0, 1), (2, 3), (0, 1, 2, 3), (0, 2), (1, 3))
FIRST, SECOND, WORLD = 0, 1, 2
PIPE = {0: 3, 2: 3, 1: 4, 3: 4}
LONG = 60_000.0


def healthy(iterations: int = 3) -> Story:
    """A run of six TP calls a stage, a message from stage 0 to stage 1, a world call; 100 ms an iteration.

    A host makes a call every millisecond and waits for its device after a run, as it does in training.
    """
    story = Story(GROUPS)
    for k in range(iterations):
        at = 100.0 * k
        run(story, (0, 1), FIRST, at)
        for rank in (0, 1):
            story.message(rank, rank + 2, PIPE[rank], at + 20, Op.SEND)
            story.message(rank + 2, rank, PIPE[rank], at + 20, Op.RECV)
        run(story, (2, 3), SECOND, at + 25)
        story.call((0, 1, 2, 3), WORLD, at + 60)
    return story


def run(
    story: Story, ranks: tuple[int, ...], comm: int, at: float, calls: int = 6, *, done: bool = True
) -> None:
    """Several calls, a millisecond apart. Calls that are not done were made and nothing more."""
    for i in range(calls):
        story.call(ranks, comm, at + i, done=done)


def place_of(rank: int) -> RankPlace:
    return RankPlace(rank, f"node{rank // 2}", rank % 2, f"gpu{rank % 2}")


def judge(
    story: Story, *, completions: bool = True, until: float | None = LONG, middle: bool = True
) -> HangResult:
    return find_hangs(
        story.frontier(completions=completions, until=until),
        LAYOUT,
        place_of=place_of,
        history=story.events(completions=completions),
        hints=Hints(ended_normally=False if middle else None),
    )


def only(result: HangResult) -> Finding:
    assert len(result.findings) == 1, result.reason
    finding = result.findings[0]
    assert finding.severity is Severity.P0
    return finding


def stuck_host() -> Story:
    """Rank 0 stops after two calls of a run; its peer runs on to the end of it."""
    story = healthy()
    run(story, (0, 1), FIRST, 300.0, 2)
    story.call(1, FIRST, 302.0, done=False, start=302.1)
    run(story, (1,), FIRST, 303.0, 3, done=False)
    for rank in (2, 3):
        story.message(rank, rank - 2, PIPE[rank], 320.0, Op.RECV, done=False)
    return story


def test_a_host_that_stopped_with_nothing_pending() -> None:
    finding = only(judge(stuck_host()))
    assert finding.kind is Kind.HANG_HOST
    assert finding.culprits.ranks == (0,)
    assert finding.victims == (1, 2, 3)
    assert finding.confidence >= 0.95
    assert "rank 0 (node0 gpu0) never posted ALL_REDUCE #20 of TP group 0 of stage 0" in finding.summary
    assert any("nothing is pending there" in line.text for line in finding.evidence)
    assert finding.exonerated[0].startswith("not the network")
    assert finding.chain[-1].startswith("rank 1 waits for rank 0 in ALL_REDUCE #20")


def test_the_same_without_completions_says_what_it_cannot_see() -> None:
    finding = only(judge(stuck_host(), completions=False))
    assert finding.culprits.ranks == (0,)
    assert not finding.ambiguous
    assert Kind.HANG_DEVICE in finding.kind_alternatives
    first = finding.evidence[0].text
    assert first == (
        "nothing completed can be seen in this log; "
        "rank 0 (node0 gpu0) is the only one that its peers are ahead of"
    )


def test_a_missing_recv_is_named_with_its_sender() -> None:
    story = healthy()
    run(story, (0, 1), FIRST, 300.0)
    story.message(0, 2, PIPE[0], 320.0, Op.SEND, done=False)
    story.message(1, 3, PIPE[1], 320.0, Op.SEND)
    story.message(3, 1, PIPE[1], 320.0, Op.RECV)
    story.call(3, SECOND, 325.0, done=False, start=325.1)
    finding = only(judge(story))
    assert finding.kind is Kind.MISSING_CALL
    assert finding.culprits.ranks == (2,)
    assert finding.summary.startswith("rank 2 (node1 gpu0) never posted Recv from rank 0: stage 1")
    assert finding.where.op == "RECV"
    assert finding.where.peer == 0


def test_the_place_in_the_job_comes_from_the_peer_that_made_the_call() -> None:
    story = stuck_host()
    asked: list[tuple[int, int]] = []

    def where(rank: int, call: int) -> Where:
        asked.append((rank, call))
        return Where(stage=0, iteration=3, micro_batch=2, phase=Phase.FORWARD)

    result = find_hangs(story.frontier(until=LONG), LAYOUT, where=where, history=story.events())
    assert asked == [(1, 26)]
    assert only(result).summary.endswith(": stage 0, forward of micro-batch 2, iteration 3")


def test_a_device_that_never_started_what_its_peer_started() -> None:
    story = healthy()
    run(story, (0, 1), FIRST, 300.0, 5)
    story.call(0, FIRST, 305.0, done=False)
    story.call(1, FIRST, 305.0, done=False, start=305.1)
    for rank in (2, 3):
        story.message(rank, rank - 2, PIPE[rank], 320.0, Op.RECV, done=False)
    finding = only(judge(story))
    assert finding.kind is Kind.HANG_DEVICE
    assert finding.culprits.ranks == (0,)
    assert finding.culprits.devices[0].device == "gpu0"
    assert "not the host" in finding.exonerated[0]


def test_a_device_that_never_ended_what_its_peer_ended() -> None:
    story = healthy()
    story.call(0, FIRST, 300.0, done=False, start=300.1)
    story.call(1, FIRST, 300.0)
    finding = only(judge(story))
    assert finding.kind is Kind.HANG_DEVICE
    assert finding.culprits.ranks == (0,)
    assert "1 of its peers completed" in finding.evidence[0].text


def test_started_by_all_and_ended_by_none_is_the_network_or_inside() -> None:
    story = healthy()
    story.call((0, 1), FIRST, 300.0, done=False, start=300.1)
    story.call((0, 1), FIRST, 301.0, done=False)
    finding = only(judge(story))
    assert finding.kind is Kind.HANG_NETWORK
    assert finding.ambiguous
    assert finding.culprits.ranks == (0, 1)


def test_only_a_pair_stuck_is_a_link() -> None:
    story = healthy()
    run(story, (0, 1), FIRST, 300.0)
    story.message(0, 2, PIPE[0], 320.0, Op.SEND, done=False)
    story.message(2, 0, PIPE[0], 320.0, Op.RECV, done=False)
    story.message(1, 3, PIPE[1], 320.0, Op.SEND)
    story.message(3, 1, PIPE[1], 320.0, Op.RECV)
    story.call(3, SECOND, 325.0, done=False, start=325.1)
    story.call(1, WORLD, 326.0, done=False, start=326.1)
    finding = only(judge(story))
    assert finding.kind is Kind.HANG_NETWORK
    assert finding.culprits.ranks == (0, 2)
    link = finding.culprits.links[0]
    assert (link.src.rank, link.dst.rank, link.dst.node) == (0, 2, "node1")


def test_messages_are_paired_in_order_and_not_by_a_common_counter() -> None:
    """Rank 0 exchanged more with rank 2 than rank 1 did with rank 3; nobody waits."""
    story = healthy()
    story.message(0, 2, PIPE[0], 300.0, Op.SEND)
    story.message(2, 0, PIPE[0], 300.0, Op.RECV)
    assert judge(story).findings == ()


def test_a_group_that_a_log_without_completions_cannot_separate() -> None:
    story = healthy()
    run(story, (0, 1), FIRST, 300.0)
    for rank in (2, 3):
        story.message(rank, rank - 2, PIPE[rank], 320.0, Op.RECV)
    finding = only(judge(story, completions=False))
    assert finding.kind is Kind.HANG_GROUP
    assert finding.ambiguous
    assert finding.culprits.ranks == (0, 1)
    assert "TP group 0 of stage 0" in finding.summary


def test_a_size_that_differs() -> None:
    story = Story(((0, 1, 2),))
    for at in range(6):
        story.call((0, 1, 2), 0, float(at))
    story.call((0, 2), 0, 7.0, done=False, start=7.1)
    story.call(1, 0, 7.0, count=2048, done=False, start=7.1)
    finding = only(judge(story, until=None))
    assert finding.kind is Kind.MISMATCH
    assert finding.culprits.ranks == (1,)
    assert "passed 2,048 elements where the others passed 4,096" in finding.summary


def test_uneven_all_to_all_is_legal() -> None:
    story = Story(((0, 1, 2),))
    for rank in range(3):
        story.call(rank, 0, 1.0, Op.ALL_TO_ALL, count=100 + rank, done=False, start=1.1)
    finding = only(judge(story))
    assert finding.kind is Kind.HANG_NETWORK


def test_two_calls_in_the_wrong_order() -> None:
    story = Story(((0, 1, 2),))
    story.call((0, 1, 2), 0, 1.0)
    story.call((0, 2), 0, 2.0, done=False, start=2.1).call((0, 2), 0, 3.0, Op.ALL_GATHER, done=False)
    story.call(1, 0, 2.0, Op.ALL_GATHER, done=False, start=2.1).call(1, 0, 3.0, done=False)
    finding = only(judge(story))
    assert finding.kind is Kind.MISMATCH
    assert finding.culprits.ranks == (1,)
    assert "in the wrong order" in finding.summary


def test_a_collective_left_out() -> None:
    story = Story(((0, 1, 2),))
    story.call((0, 1, 2), 0, 1.0)
    story.call((0, 2), 0, 2.0, done=False, start=2.1)
    story.call((0, 1, 2), 0, 3.0, Op.ALL_GATHER, done=False, start=3.1)
    story.call((0, 1, 2), 0, 4.0, Op.REDUCE_SCATTER, done=False)
    finding = only(judge(story))
    assert finding.kind is Kind.MISSING_CALL
    assert finding.culprits.ranks == (1,)
    assert "left out ALL_REDUCE #1" in finding.summary


def test_a_deadlock_over_two_communicators_prints_its_circle() -> None:
    story = Story(((0, 1, 2), (0, 1, 2)))
    story.call((0, 1, 2), 0, 1.0).call((0, 1, 2), 1, 2.0)
    story.call((0, 2), 0, 3.0, done=False, start=3.1)
    story.call(1, 1, 3.0, done=False, start=3.1)
    finding = only(judge(story))
    assert finding.kind is Kind.DEADLOCK
    assert finding.culprits.ranks == (1,)
    circle = finding.evidence[0].text
    assert "which waits for rank 1 in ALL_REDUCE #1" in circle
    assert circle.startswith("the circle: rank ")


def test_a_process_that_died_with_a_call_in_flight() -> None:
    story = healthy()
    story.call((0, 1), FIRST, 300.0, done=False, start=300.1)
    run(story, (1,), FIRST, 301.0, 5, done=False)
    finding = only(judge(story))
    assert finding.kind is Kind.DEAD_RANK
    assert finding.culprits.ranks == (0,)


def test_a_rank_known_dead_is_called_dead() -> None:
    story = stuck_host()
    result = find_hangs(story.frontier(until=LONG), LAYOUT, hints=Hints(dead={0: T0 + 122 * MS}))
    assert only(result).kind is Kind.DEAD_RANK


def test_who_died_later_is_a_victim() -> None:
    story = Story(((0, 1), (2, 3), (0, 1, 2, 3)))
    story.call((0, 1), 0, 1.0).call((2, 3), 1, 1.0)
    story.call(1, 0, 2.0, done=False, start=2.1)
    for at in range(2, 40):
        story.call((2, 3), 1, float(at))
    story.call(3, 1, 41.0, done=False, start=41.1)  # rank 2 died long after rank 0 had stopped
    finding = only(judge(story))
    assert finding.culprits.ranks == (0,)
    assert 2 in finding.victims
    assert any("rank 2 stopped only afterwards" in line.text for line in finding.evidence)


def test_a_finished_job_does_not_hang() -> None:
    result = judge(healthy(), middle=False)
    assert result.findings == ()
    assert not result.undecidable
    assert result.reason == "no rank waits for a call that another rank has not made"


def test_silence_in_the_middle_without_anybody_waiting_cannot_be_judged() -> None:
    result = judge(healthy(), completions=False)
    assert result.findings == ()
    assert result.undecidable
    assert result.next_steps[0].command == "py-spy dump --pid PID"


@pytest.mark.parametrize("until", [None, LONG])
def test_a_log_that_merely_ends(until: float | None) -> None:
    story = healthy()
    story.call((0, 1, 2), WORLD, 280.0)
    result = judge(story, completions=False, until=until, middle=False)
    assert result.findings == ()
    assert not result.undecidable
    assert result.reason.endswith("the end of a log, not a hang")
    assert "rank 3 (node1 gpu1) lacks only ALL_REDUCE #3 of the world group" in result.reason


def test_a_snapshot_of_a_moving_job() -> None:
    story = healthy()
    run(story, (0, 1), FIRST, 300.0, 2)
    story.call(1, FIRST, 302.0, done=False, start=302.1)
    result = judge(story, until=302.5)
    assert result.findings == ()


def test_half_a_second_of_silence_before_a_snapshot_is_not_enough() -> None:
    result = judge(stuck_host(), until=800.0)
    assert result.findings == ()
    assert result.undecidable
    assert 0 in result.suspects


def test_two_frontiers_without_movement_prove_it() -> None:
    story = stuck_host()
    early, late = story.frontier(until=700.0), story.frontier(until=1701.0)
    result = find_hangs(late, LAYOUT, hints=Hints(earlier=early))
    assert only(result).culprits.ranks == (0,)
    assert "no rank moved for 1.0 s" in " ".join(line.text for line in result.findings[0].evidence)


def test_two_frontiers_with_movement_disprove_it() -> None:
    story = stuck_host()
    early = story.frontier(until=LONG)
    story.call(0, FIRST, LONG + 1, done=False)
    story.call(1, FIRST, LONG + 2, done=False)
    late = story.frontier(until=LONG + 2000)
    result = find_hangs(late, LAYOUT, hints=Hints(earlier=early))
    assert result.findings == ()


def test_a_missing_log_is_not_accused() -> None:
    story = Story(((0, 1, 2),))
    story.call((0, 1), 0, 1.0, done=False, start=1.1)
    result = judge(story)
    assert result.findings == ()
    assert result.undecidable
    assert result.suspects == (2,)
    assert "whose logs are missing" in result.reason


def test_a_torn_tail_is_the_end_of_a_log() -> None:
    story = healthy()
    story.call((0, 1, 2), WORLD, 280.0)
    frontier = story.frontier(completions=False, until=LONG)
    result = find_hangs(frontier, LAYOUT, coverage=Coverage(torn_tails=(3,)))
    assert result.findings == ()


def test_nothing_recorded() -> None:
    result = find_hangs(Story(()).frontier(), None)
    assert result.reason == "no calls were recorded, so nothing can be said about a hang"


def test_calls_that_never_fitted_belong_to_two_communicators() -> None:
    story = Story(((0, 1, 2, 3),))
    for k in range(12):  # one group of all ranks was inferred, but stages call different sizes
        story.call((0, 1), 0, 10.0 * k, count=4096)
        story.call((2, 3), 0, 10.0 * k, count=8192)
    frontier = story.frontier(completions=False, until=LONG, tail=4)
    told = find_hangs(frontier, LAYOUT, history=story.events(completions=False))
    assert told.findings == ()
    assert find_hangs(frontier, LAYOUT).findings[0].kind is Kind.MISMATCH  # nothing known of the past


def test_calls_that_fitted_until_now_are_a_mismatch() -> None:
    story = Story(((0, 1, 2, 3),))
    for k in range(12):
        story.call((0, 1, 2, 3), 0, 10.0 * k)
    story.call((0, 1, 2), 0, 120.0, done=False)
    story.call(3, 0, 120.0, count=8192, done=False)
    finding = only(judge(story, completions=False))
    assert (finding.kind, finding.culprits.ranks) == (Kind.MISMATCH, (3,))
