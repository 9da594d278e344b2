"""What must not change a hang verdict: names of ranks and communicators, the loss of an innocent's log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megatrace.analysis.hang import HangResult, Hints, find_hangs
from megatrace.model.events import NO_PEER, Events
from megatrace.model.frontier import Frontier
from megatrace.model.schedule import Phase
from megatrace.model.trace import Communicator, Trace
from megatrace.simulator import (
    DeadRank,
    MissingRecv,
    Scenario,
    StuckHost,
    StuckInside,
    StuckKernelBefore,
    simulate,
)

AT: dict[str, Any] = {"iteration": 2, "micro_batch": 1}
JOB = Scenario(tp=2, pp=2, dp=2, iterations=4, micro_batches=4, layers_per_stage=2, ranks_per_node=4)
FAULTS = (
    StuckHost(rank=5, phase=Phase.FORWARD, call=1, **AT),
    StuckKernelBefore(rank=2, phase=Phase.FORWARD, call=1, **AT),
    StuckInside(rank=6, phase=Phase.FORWARD, call=1, **AT),
    MissingRecv(rank=7, phase=Phase.FORWARD, **AT),
    DeadRank(rank=1, phase=Phase.BACKWARD, call=2, **AT),
)
TRACES = tuple(simulate(JOB.model_copy(update={"faults": (fault,)})) for fault in FAULTS)
WORLD = JOB.world_size


def judge(trace: Trace) -> HangResult:
    frontier = Frontier.from_events(trace.events, trace.communicators)
    until = int(trace.events.enqueue.max()) + 600 * 10**9
    return find_hangs(frontier, history=trace.events, hints=Hints(until=until, ended_normally=False))


def renamed(trace: Trace, ranks: list[int], order: list[int]) -> Trace:
    """The same job with rank r called ``ranks[r]`` and communicator c called ``order[c]``."""
    to_rank, to_comm = np.asarray(ranks, np.int32), np.asarray(order, np.int32)
    events = trace.events
    assert events.comm is not None
    assert events.peer is not None
    peer = np.where(events.peer == NO_PEER, NO_PEER, to_rank[np.maximum(events.peer, 0)]).astype(np.int32)
    moved = events.with_columns(rank=np.sort(events.rank), comm=to_comm[events.comm], peer=peer)
    new = to_rank[events.rank]
    place = np.argsort(new, kind="stable")
    columns = {name: column[place] for name, column in moved.columns()}
    columns["rank"] = new[place]
    groups: list[Communicator] = [trace.communicators[0]] * len(order)
    for item in trace.communicators:
        assert item.members is not None
        members = tuple(sorted(ranks[rank] for rank in item.members))
        groups[order[item.id]] = Communicator(order[item.id], members)
    return replace(trace, events=Events(**columns), communicators=tuple(groups))


@settings(max_examples=15)
@given(
    case=st.integers(0, len(TRACES) - 1),
    ranks=st.permutations(range(WORLD)),
    seed=st.integers(0, 2**32 - 1),
    text=st.booleans(),
)
def test_names_do_not_matter(case: int, ranks: list[int], seed: int, text: bool) -> None:
    trace = TRACES[case].trace
    order = np.random.default_rng(seed).permutation(len(trace.communicators)).tolist()
    other = renamed(trace, ranks, order)
    if text:
        trace, other = (
            replace(t, events=t.events.with_columns(start=None, end=None)) for t in (trace, other)
        )
    mine, theirs = judge(trace).findings, judge(other).findings
    assert len(mine) == len(theirs) == 1
    assert theirs[0].kind is mine[0].kind
    assert theirs[0].culprits.ranks == tuple(sorted(ranks[rank] for rank in mine[0].culprits.ranks))
    assert set(theirs[0].victims) == {ranks[rank] for rank in mine[0].victims}


@settings(max_examples=20)
@given(case=st.integers(0, len(TRACES) - 1), lost=st.integers(0, WORLD - 1), text=st.booleans())
def test_a_lost_log_never_makes_a_victim_guilty(case: int, lost: int, text: bool) -> None:
    truth = TRACES[case].truth.faults[0]
    guilty = set(truth.answers["text" if text else "ring"].ranks) | set(truth.ranks)
    trace = TRACES[case].trace
    events = trace.events.take(trace.events.rank != lost)
    if text:
        events = events.with_columns(start=None, end=None)
    for finding in judge(replace(trace, events=events)).findings:
        wrong = set(finding.culprits.ranks) - guilty
        assert not wrong or finding.confidence < 0.9, f"{finding.summary} ({wrong})"


@settings(max_examples=20)
@given(case=st.integers(0, len(TRACES) - 1), data=st.data(), text=st.booleans())
def test_a_moving_job_is_not_accused_wherever_it_is_cut(case: int, data: st.DataObject, text: bool) -> None:
    """Before the fault strikes, any moment is a moment of a healthy job."""
    trace = TRACES[case].trace
    start = TRACES[case].truth.faults[0].start_s
    assert start is not None
    first = int(trace.events.enqueue.min())
    cut = first + int(data.draw(st.floats(0.3, 0.95)) * start * 1e9)
    rows = trace.events.enqueue <= cut
    events = trace.events.take(rows)
    assert events.start is not None
    assert events.end is not None
    unseen = np.iinfo(np.int64).min
    events = events.with_columns(
        start=None if text else np.where(events.start <= cut, events.start, unseen),
        end=None if text else np.where(events.end <= cut, events.end, unseen),
    )
    frontier = Frontier.from_events(events, trace.communicators, cut)
    assert find_hangs(frontier, history=events).findings == ()


@settings(max_examples=25)
@given(case=st.integers(0, len(TRACES) - 1), tail=st.integers(1, 300))
def test_a_frontier_survives_its_bytes(case: int, tail: int) -> None:
    trace = TRACES[case].trace
    frontier = Frontier.from_events(trace.events, trace.communicators, tail=tail)
    again = Frontier.from_bytes(frontier.to_bytes())
    for (name, one), (_, two) in zip(frontier.arrays(), again.arrays(), strict=True):
        assert np.array_equal(one, two), name
