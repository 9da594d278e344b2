"""Where a call stands in the job, and who is at the other end: against what the simulator knows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from megatrace.analysis import phases as phase_tables
from megatrace.analysis.infer_layout import Resolved, resolve
from megatrace.analysis.locate import Locator, communicator_names, with_peers
from megatrace.analysis.phases import PhaseTable
from megatrace.model.events import NO_PEER, Op
from megatrace.model.finding import Where
from megatrace.model.job import JobConfig, ScheduleKind
from megatrace.model.layout import Axis, ParallelLayout
from megatrace.model.schedule import Phase
from megatrace.model.trace import Communicator, Trace
from megatrace.simulator import Scenario, observe, simulate

SMALL = {"layers_per_stage": 2, "iterations": 6, "seed": 11, "tp": 2, "pp": 4, "dp": 2, "micro_batches": 8}
JOBS = {
    "1f1b": Scenario.model_validate(SMALL),
    "gpipe": Scenario.model_validate({**SMALL, "schedule": "gpipe"}),
    "interleaved": Scenario.model_validate({**SMALL, "vpp": 2}),
    "two stages": Scenario.model_validate({**SMALL, "pp": 2}),
    "evaluation": Scenario.model_validate({**SMALL, "iterations": 16, "evaluate_every": 5}),
}


@lru_cache(maxsize=8)
def simulated(name: str) -> Trace:
    return simulate(JOBS[name]).trace


def as_text(trace: Trace, *, declared: bool = False) -> Trace:
    seen = observe(trace, "text")
    return seen if declared else replace(seen, job=JobConfig())


def read(trace: Trace) -> tuple[Resolved, PhaseTable]:
    resolved = resolve(trace)
    slices = phase_tables.cut(resolved)
    assert slices is not None
    found = phase_tables.infer_schedule(resolved, slices)
    assert found is not None
    return resolved, phase_tables.tabulate_phases(resolved, slices, *found)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "two stages"])
def test_the_schedule_is_inferred(name: str) -> None:
    _, table = read(as_text(simulated(name)))
    assert table.schedule == JOBS[name].plan
    assert table.fit == 1.0


@pytest.mark.parametrize("name", list(JOBS))
def test_the_partners_of_sends_and_receives_are_the_true_ones(name: str) -> None:
    whole = simulated(name)
    truth = whole.events.peer
    assert truth is not None
    resolved, table = read(as_text(whole))
    found = with_peers(resolved, table).events.peer
    assert found is not None
    pipeline = np.isin(whole.events.op, (Op.SEND, Op.RECV))
    known = pipeline & (found != NO_PEER)
    np.testing.assert_array_equal(found[known], truth[known])
    # Evaluation has no backward and another schedule; nearly everything else must be known.
    assert known.sum() >= (0.8 if name == "evaluation" else 1.0) * pipeline.sum()
    assert (found[~pipeline] == NO_PEER).all()


def test_partners_in_an_iteration_that_was_never_finished() -> None:
    whole = simulated("1f1b")
    cut_at = int(np.quantile(whole.events.enqueue, 0.93))
    cut = replace(whole, events=whole.events.take(whole.events.enqueue < cut_at))
    truth = cut.events.peer
    resolved, table = read(as_text(cut))
    found = with_peers(resolved, table).events.peer
    assert found is not None
    assert truth is not None
    pipeline = np.isin(cut.events.op, (Op.SEND, Op.RECV))
    np.testing.assert_array_equal(found[pipeline], truth[pipeline])


def test_peers_that_were_seen_are_left_alone() -> None:
    trace = observe(simulated("1f1b"), "ring")
    resolved, table = read(trace)
    assert with_peers(resolved, table) is resolved.trace


def test_without_phases_the_ends_still_have_one_neighbour() -> None:
    whole = simulated("1f1b")
    resolved, _ = read(as_text(whole))
    found = with_peers(resolved, None).events.peer
    truth = whole.events.peer
    assert found is not None
    assert truth is not None
    stage = ParallelLayout(tp=2, pp=4, dp=2).stages()[whole.events.rank]
    pipeline = np.isin(whole.events.op, (Op.SEND, Op.RECV))
    ends = pipeline & np.isin(stage, (0, 3))
    np.testing.assert_array_equal(found[ends], truth[ends])
    assert (found[pipeline & ~ends] == NO_PEER).all()


# --- where ---


@pytest.fixture(scope="module")
def plain() -> tuple[Resolved, PhaseTable]:
    return read(as_text(simulated("1f1b")))


def call_of(resolved: Resolved, rank: int, row: int) -> int:
    return int(row - resolved.trace.events.rows_of(rank).start)


@pytest.mark.parametrize("rank", [0, 5, 9, 15])
def test_every_task_stands_where_the_schedule_put_it(plain: tuple[Resolved, PhaseTable], rank: int) -> None:
    resolved, table = plain
    locator = Locator(resolved, table)
    stage = int(table.stage[rank])
    op = resolved.trace.events.op
    for iteration in (2, 4):
        for i, task in enumerate(table.tasks[stage]):
            for column in (table.begin, table.last, table.recv, table.send):
                row = int(column[rank, iteration, i])
                if row < 0:
                    continue
                where = locator.where(rank, call_of(resolved, rank, row))
                assert where == Where(
                    stage=stage,
                    iteration=iteration,
                    micro_batch=task.micro_batch,
                    phase=task.phase,
                    op=Op(int(op[row])).name,
                )


def test_the_gradient_synchronisation_is_sync(plain: tuple[Resolved, PhaseTable]) -> None:
    resolved, table = plain
    it = resolved.iterations
    assert it is not None
    row = int(it.row[(it.rank == 5) & (it.number == 3)][0])
    where = Locator(resolved, table).where(5, call_of(resolved, 5, row))
    assert (where.phase, where.iteration, where.micro_batch) == (Phase.SYNC, 3, None)


def test_the_call_that_a_rank_would_make_next() -> None:
    """Cut rank 6 in front of a call of its last iteration: one beyond its last call is that call."""
    whole = as_text(simulated("1f1b"))
    resolved, table = read(whole)
    rank, stage = 6, 1
    task = 5
    row = int(table.recv[rank, 5, task])
    call = call_of(resolved, rank, row)
    part = whole.events.rows_of(rank)
    kept = np.ones(len(whole.events), np.bool_)
    kept[part.start + call : part.stop] = False
    cut, cut_table = read(replace(whole, events=whole.events.take(kept)))
    locator = Locator(cut, cut_table)
    expected = table.tasks[stage][task]
    following = locator.where(rank, call)
    assert (following.stage, following.iteration, following.op) == (stage, 5, "RECV")
    assert (following.micro_batch, following.phase) == (expected.micro_batch, expected.phase)
    last = locator.where(rank, call - 1)
    assert (last.micro_batch, last.phase) != (following.micro_batch, following.phase)


def test_what_is_not_known_is_not_said(plain: tuple[Resolved, PhaseTable]) -> None:
    resolved, table = plain
    assert Locator(resolved, None).where(5, 400).micro_batch is None
    assert Locator(resolved, None).where(5, 400).stage == 1
    first = Locator(resolved, table).where(5, 0)
    assert first.micro_batch is None
    beyond = Locator(resolved, table).where(5, 10_000_000)
    assert beyond.micro_batch is None
    nothing = resolve(Trace(resolved.trace.events.take(slice(0, 30)).with_columns(comm=None)))
    assert Locator(nothing, None).where(0, 3) == Where(stage=None)


def test_phases_need_no_complete_job() -> None:
    """Three quarters of the ranks are enough for the schedule, which every stage alone would show."""
    whole = as_text(simulated("1f1b"), declared=True)
    kept = whole.events.take(whole.events.rank % 4 != 3)
    _, table = read(replace(whole, events=kept))
    assert table.schedule.kind is ScheduleKind.ONE_F_ONE_B
    assert (table.begin[3] == -1).all()
    assert (table.begin[2, 3] >= 0).all()


def test_evaluation_has_no_phases() -> None:
    resolved, table = read(as_text(simulated("evaluation")))
    assert table.schedule == JOBS["evaluation"].plan
    assert resolved.iterations is not None
    assert resolved.iterations.count == 13  # three of the sixteen are evaluations, which synchronise nothing
    known = (table.send[0] >= 0).any(axis=1)
    assert np.flatnonzero(~known[1:]).tolist() == [3, 7, 11]


def test_names_of_groups() -> None:
    layout = ParallelLayout(tp=2, pp=2, dp=2)
    communicators = (
        Communicator(0, (2, 3), axis=Axis.TENSOR),
        Communicator(1, tuple(range(8)), axis=Axis.WORLD),
        Communicator(2, (0, 4), axis=Axis.PIPELINE),
        Communicator(3, (1, 6)),
        Communicator(4, (0, 2), name="dp0", axis=Axis.DATA),
    )
    names = communicator_names(communicators, layout)
    assert names == ("TP group 1 of stage 0", "the world group", "PP group 0", None, "dp0")
    assert communicator_names(communicators, None) == (None, None, None, None, "dp0")
