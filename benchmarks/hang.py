"""Who is behind, who differs, and the whole hang verdict, against reading the columns once.

10,240 ranks × 1,000 calls on 2,624 communicators of three axes, one rank stopped eight calls early,
another passed a wrong size once. The limit is to read rank, communicator, number, operation and size of
every call once. The verdict from ready frontiers (what agents report) is timed apart, for a job of 16,384
ranks in twelve communicators each.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.measure import Goal, interleaved, write_result
from megatrace.analysis.hang import Hints, find_hangs
from megatrace.model.events import Events
from megatrace.model.frontier import Frontier
from megatrace.model.frontier_index import Members
from megatrace.model.frontier_scan import differing_rows, lags
from megatrace.model.layout import Axis, ParallelLayout
from megatrace.model.trace import Communicator

CALLS = 1000
STOPPED, EARLY = 7777, 8
WRONG = 3333
SECOND = 1_000_000_000


THREE = (Axis.TENSOR, Axis.DATA, Axis.MODEL)
TWELVE = (*THREE, *3 * (Axis.TENSOR, Axis.DATA, Axis.PIPELINE))
"""The communicators of a rank by axis. Jobs have several on the same ranks, one for each process group."""


def groups(layout: ParallelLayout, axes: tuple[Axis, ...]) -> tuple[Communicator, ...]:
    """The communicators, those of the first axis first."""
    found: list[Communicator] = []
    for axis in axes:
        for members in np.sort(layout.groups(axis), axis=1).tolist():
            found.append(Communicator(len(found), tuple(members), axis=axis))
    return tuple(found)


def calls(layout: ParallelLayout, axes: tuple[Axis, ...], number: int) -> Events:
    """Every rank makes the same calls, eight in turn on its first communicator and then one on each other;
    the odd ranks deviate as said above."""
    world, kinds = layout.world_size, len(axes)
    of = np.empty((kinds, world), np.int32)
    for item, which in zip(groups(layout, axes), _kinds(layout, axes), strict=True):
        of[which, list(item.members or ())] = item.id
    turn = np.arange(number) % (8 + kinds - 1)
    kind = np.maximum(turn - 7, 0)
    seq = np.empty(number, np.int64)
    for one in range(kinds):
        seq[kind == one] = np.arange((kind == one).sum())
    rank = np.repeat(np.arange(world, dtype=np.int32), number)
    events = Events(
        rank=rank,
        op=np.tile((kind % 3 + 1).astype(np.uint8), world),
        seq=np.tile(seq, world),
        enqueue=np.tile(np.arange(number, dtype=np.int64) * 1_000_000, world) + SECOND,
        count=np.full(len(rank), 4096, np.int64),
        comm=of[kind].T.reshape(-1).copy(),
    )
    assert events.count is not None
    events.count[WRONG * number + number // 2] = 1
    keep = np.ones(len(rank), bool)
    keep[(STOPPED + 1) * number - EARLY : (STOPPED + 1) * number] = False
    return events.take(keep)


def _kinds(layout: ParallelLayout, axes: tuple[Axis, ...]) -> list[int]:
    """Which of the axes each communicator is of."""
    return [kind for kind, axis in enumerate(axes) for _ in layout.groups(axis)]


def main() -> int:
    """Measures, prints, writes ``results/hang.json``; 1 where a goal is missed."""
    layout = ParallelLayout(tp=8, pp=16, dp=80)
    communicators = groups(layout, THREE)
    members = Members.of(communicators)
    events = calls(layout, THREE, CALLS)

    def read() -> int:
        columns = (events.rank, events.comm, events.seq, events.op, events.count)
        return sum(int(column.sum(dtype=np.int64)) for column in columns if column is not None)

    def both() -> None:
        lags(events, members)
        differing_rows(events, members)

    found = lags(events, members)
    assert set(found.rank[found.behind > 0].tolist()) == {STOPPED}
    assert WRONG in set(events.rank[differing_rows(events, members)].tolist())
    timing = interleaved(
        {"read": read, "lag": lambda: lags(events, members), "lag and mismatch": both}, rounds=5
    )

    large = ParallelLayout(tp=8, pp=16, dp=128)
    frontier = Frontier.from_events(calls(large, TWELVE, 200), groups(large, TWELVE))
    assert len(frontier.entry_rank) == large.world_size * len(TWELVE)
    hints = Hints(until=frontier.end + 3600 * SECOND)
    verdict = interleaved({"verdict": lambda: find_hangs(frontier, large, hints=hints)}, rounds=9)
    result = find_hangs(frontier, large, hints=hints)
    assert result.findings, result.reason
    assert result.findings[0].culprits.ranks in ((STOPPED,), (WRONG,)), result.reason
    timing |= verdict

    limit = timing["read"].median
    goals = [
        Goal("lag / reading the columns", timing["lag"].median / limit, 5),
        Goal("lag and mismatch / reading the columns", timing["lag and mismatch"].median / limit, 15),
        Goal("verdict from frontiers, ms CPU", timing["verdict"].median * 1e3, 50),
        Goal("bytes of a frontier a rank", len(frontier.to_bytes()) / len(frontier), 4096),
    ]
    for name, taken in timing.items():
        print(f"{name:34} {taken.median * 1e3:9.3f} ms CPU")
    for goal in goals:
        print(goal.line())
    figures = {
        "calls": len(events),
        "communicators": len(communicators),
        "verdict_ranks": large.world_size,
        "verdict_communicators": len(frontier.members.bounds) - 1,
        "cpu": {name: taken.as_json() for name, taken in timing.items()},
    }
    print(f"wrote {write_result('hang', figures, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
