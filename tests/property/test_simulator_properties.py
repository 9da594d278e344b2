"""What holds for every simulated job, whatever its shape."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megatrace.model.events import NO_PEER, UNSEEN, Op
from megatrace.model.job import ScheduleKind
from megatrace.simulator import Scenario, StuckHost, simulate
from megatrace.simulator.simulation import iteration_kind, programs_of

ORDERS = ["tp-cp-ep-dp-pp", "tp-dp-ep-cp-pp", "tp-cp-ep-pp-dp"]
"""The last puts replicas outermost; experts allow only orders in which they keep the stages."""


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    pp = draw(st.integers(1, 4))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    cp, dp = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 4]))
    ep = draw(st.sampled_from([n for n in (1, 2, 3) if dp * cp % n == 0]))
    kinds = [ScheduleKind.INTERLEAVED] if vpp > 1 else [ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE]
    micro_batches = draw(st.integers(1, 3)) * (pp if vpp > 1 else 1)
    return Scenario(
        seed=draw(st.integers(0, 9)),
        tp=draw(st.sampled_from([1, 2, 4])),
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        order=draw(st.sampled_from(ORDERS if ep == 1 else ORDERS[:2])),
        ranks_per_node=draw(st.sampled_from([2, 8])),
        schedule=draw(st.sampled_from(kinds)),
        micro_batches=micro_batches,
        layers_per_stage=draw(st.integers(1, 2)) * vpp,
        iterations=2,
        sequence_parallel=draw(st.booleans()),
        distributed_optimizer=draw(st.booleans()),
        overlap_grad_reduce=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        context_parallel_comm=draw(st.sampled_from(["ring", "all_gather"])),
        evaluate_every=draw(st.sampled_from([None, 2])),
        clock_offset_us=0.0,
        clock_drift_ppm=0.0,
    )


@given(scenarios())
@settings(max_examples=25)
def test_calls_are_conserved_and_obey_causality(scenario: Scenario) -> None:
    run = simulate(scenario)
    trace, events = run.trace, run.trace.events
    assert events.count is not None
    assert events.comm is not None
    assert events.start is not None
    assert events.end is not None
    assert events.peer is not None
    assert np.isfinite(run.truth.iteration_ms).all()
    assert (events.start >= events.enqueue).all()
    assert (events.end >= events.start).all()
    for rank in range(scenario.world_size):
        inside = events.rows_of(rank)
        assert (np.diff(events.enqueue[inside]) >= 0).all()
    # Sends and Recvs of each ordered pair balance, and each ends after both are there.
    ends: dict[Op, dict[tuple[int, int], list[int]]] = {op: defaultdict(list) for op in (Op.SEND, Op.RECV)}
    for row in np.flatnonzero(events.peer != NO_PEER):
        op, rank, peer = Op(int(events.op[row])), int(events.rank[row]), int(events.peer[row])
        ends[op][(rank, peer) if op is Op.SEND else (peer, rank)].append(int(events.end[row]))
    assert ends[Op.SEND].keys() == ends[Op.RECV].keys()
    for pair, times in ends[Op.SEND].items():
        assert len(times) == len(ends[Op.RECV][pair])
    # Every collective has all its members, with one operation; all start before any ends.
    collective = events.peer == NO_PEER
    members = np.array([len(item.members or ()) for item in trace.communicators])
    alone = members[events.comm] == 1
    assert (events.seq[alone] == 0).all()
    chosen = np.flatnonzero(collective & ~alone)
    order = chosen[np.lexsort((events.seq[chosen], events.comm[chosen]))]
    change = (np.diff(events.comm[order]) != 0) | (np.diff(events.seq[order]) != 0)
    for group in np.split(order, np.flatnonzero(change) + 1):
        if not len(group):
            continue
        expected = trace.communicators[events.comm[group[0]]].members
        assert sorted(events.rank[group].tolist()) == list(expected or ())
        assert len(set(events.op[group].tolist())) == 1
        assert events.start[group].max() <= events.end[group].min()
        if events.op[group[0]] != Op.ALL_TO_ALL:
            assert len(set(events.count[group].tolist())) == 1


@given(scenarios(), st.data())
@settings(max_examples=15)
def test_a_stuck_host_stops_everybody_who_depends_on_it(scenario: Scenario, data: st.DataObject) -> None:
    scenario = scenario.model_copy(update={"evaluate_every": None})
    rank = data.draw(st.integers(0, scenario.world_size - 1))
    micro_batch = data.draw(st.integers(0, scenario.micro_batches - 1))
    fault = StuckHost(rank=rank, iteration=1, micro_batch=micro_batch)
    healthy = simulate(scenario).trace.events
    run = simulate(scenario.model_copy(update={"faults": (fault,)}))
    events = run.trace.events
    assert np.isnan(run.truth.iteration_ms[1])
    assert events.end is not None
    for other in range(scenario.world_size):
        mine, all_of_it = events.rows_of(other), healthy.rows_of(other)
        made = mine.stop - mine.start
        # A prefix of the healthy calls, at the same times as long as nobody waits in vain.
        np.testing.assert_array_equal(events.op[mine], healthy.op[all_of_it][:made])
        done = events.end[mine] != UNSEEN
        np.testing.assert_array_equal(events.enqueue[mine], healthy.enqueue[all_of_it][:made])
        assert healthy.end is not None
        np.testing.assert_array_equal(events.end[mine][done], healthy.end[all_of_it][:made][done])
        if other != rank:
            assert not done.all() or scenario.world_size == 1


@given(scenarios())
@settings(max_examples=15)
def test_programs_number_their_calls_without_holes(scenario: Scenario) -> None:
    for program in programs_of(scenario, iteration_kind(scenario, 0), {}):
        seen: dict[object, list[int]] = defaultdict(list)
        for row in program.rows:
            seen[row.channel].append(row.seq)
        for channel, numbers in seen.items():
            assert sorted(set(numbers)) == list(range(program.calls[channel]))  # type: ignore[index]
