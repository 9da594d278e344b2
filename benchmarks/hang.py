"""Who is behind, who differs, and the whole hang verdict, against reading the columns once.

10,240 ranks × 1,000 calls on 2,624 communicators of three axes, one rank stopped eight calls early,
another passed a wrong size once. The limit is to read rank, communicator, number, operation and size of
every call once. The verdict from ready frontiers (what agents report) is timed apart, for a job of 16,384
ranks.
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


def groups(layout: ParallelLayout) -> tuple[Communicator, ...]:
    """TP, DP and model groups: every rank is in three."""
    found: list[Communicator] = []
    for axis in (Axis.TENSOR, Axis.DATA, Axis.MODEL):
        for members in np.sort(layout.groups(axis), axis=1).tolist():
            found.append(Communicator(len(found), tuple(members), axis=axis))
    return tuple(found)


def calls(layout: ParallelLayout, communicators: tuple[Communicator, ...], number: int) -> Events:
    """Every rank makes the same calls, eight in ten on its TP group; the odd ranks deviate as said above."""
    world = layout.world_size
    of = np.empty((3, world), np.int32)
    for item in communicators:
        axis = (Axis.TENSOR, Axis.DATA, Axis.MODEL).index(item.axis or Axis.TENSOR)
        of[axis, list(item.members or ())] = item.id
    kind = np.where(np.arange(number) % 10 < 8, 0, np.arange(number) % 10 - 7)
    seq = np.empty(number, np.int64)
    for one in range(3):
        seq[kind == one] = np.arange((kind == one).sum())
    rank = np.repeat(np.arange(world, dtype=np.int32), number)
    events = Events(
        rank=rank,
        op=np.tile((kind + 1).astype(np.uint8), world),
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


def main() -> int:
    """Measures, prints, writes ``results/hang.json``; 1 where a goal is missed."""
    layout = ParallelLayout(tp=8, pp=16, dp=80)
    communicators = groups(layout)
    members = Members.of(communicators)
    events = calls(layout, communicators, CALLS)

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
    many = groups(large)
    frontier = Frontier.from_events(calls(large, many, 200), many)
    hints = Hints(until=frontier.end + 3600 * SECOND)
    verdict = interleaved({"verdict": lambda: find_hangs(frontier, large, hints=hints)}, rounds=3)
    result = find_hangs(frontier, large, hints=hints)
    assert result.findings, result.reason
    assert result.findings[0].culprits.ranks in ((STOPPED,), (WRONG,)), result.reason
    timing |= verdict

    limit = timing["read"].median
    goals = [
        Goal("lag / reading the columns", timing["lag"].median / limit, 5),
        Goal("lag and mismatch / reading the columns", timing["lag and mismatch"].median / limit, 15),
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
        "cpu": {name: taken.as_json() for name, taken in timing.items()},
    }
    print(f"wrote {write_result('hang', figures, goals).name}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
