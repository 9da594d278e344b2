"""What-if analysis of operation tables: the replay against simulated truth, and who is found to be slow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.optable_data import Factor, Job, operation_table
from megatrace.analysis.diagnosing import diagnose
from megatrace.analysis.whatif import study
from megatrace.model.events import Events
from megatrace.model.finding import Diagnosis, Kind, Status, Verdict
from megatrace.model.optable import NUMBER, OpTable, OpType, dense
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace
from megatrace.reports.jsonfile import to_json

FOUR = Job(pp=4, dp=4)


def worker(stage: int, replica: int, by: float = 1.6) -> Factor:
    return lambda _s, st, d, _m: by if (st, d) == (stage, replica) else 1.0


def long_stage(stage: int, by: float = 1.5) -> Factor:
    return lambda _s, st, _d, _m: by if st == stage else 1.0


def judged(job: Job, factor: Factor | None = None) -> Diagnosis:
    table, _ = operation_table(job, factor)
    return diagnose(Trace(Events.empty(), operations=table))


@pytest.mark.parametrize(
    ("job", "factor"),
    [
        (Job(), None),
        (FOUR, worker(1, 2)),
        (Job(), long_stage(3)),
        (Job(pp=1, dp=4), worker(0, 2)),
        (Job(dp=1), long_stage(2)),
    ],
)
def test_the_replay_takes_as_long_as_the_simulated_steps(job: Job, factor: Factor | None) -> None:
    table, seconds = operation_table(job, factor)
    result = study(table).result
    assert result.recorded_s == pytest.approx(seconds, rel=1e-6)
    assert result.replayed_s == pytest.approx(seconds, rel=1e-3)


def test_the_replay_of_a_virtual_pipeline_takes_as_long_as_its_steps() -> None:
    # The last messages of a stage are posted in another order than they are used: 2 in a thousand.
    table, seconds = operation_table(Job(vpp=2), long_stage(3))
    assert study(table).result.replayed_s == pytest.approx(seconds, rel=3e-3)


def test_two_workers_by_hand() -> None:
    """One stage, two replicas, one micro-batch: 1 s of compute on one and 3 s on the other, a reduce-scatter
    of 0.5 s after both. Equal would be 2 s each: 2.5 s a step instead of 3.5 s."""
    rows = [
        (0, 0, OpType.FORWARD, 0.0, 1.0),
        (0, 0, OpType.GRADS_SCATTER, 1.0, 2.5),
        (0, 1, OpType.FORWARD, 0.0, 3.0),
        (0, 1, OpType.GRADS_SCATTER, 3.0, 0.5),
    ]
    result = study(by_hand(rows)).result
    assert result.recorded_s == pytest.approx([3.5])
    assert result.replayed_s == pytest.approx([3.5])
    assert result.equal_s == pytest.approx([2.5])
    assert result.slowdown == pytest.approx(3.5 / 2.5)
    assert dict(result.by_type) == pytest.approx({"forward-compute": 1.4, "grads-reduce-scatter": 1.0})
    assert dict(result.by_replica) == pytest.approx({1: 1.4, 0: 1.0})
    assert result.slowest == (1,)
    assert result.slowest_share == pytest.approx(1.0)


def by_hand(rows: list[tuple[int, int, OpType, float, float]]) -> OpTable:
    """(stage, replica, type, start, seconds) of one step of two replicas."""
    count = len(rows)
    seen: dict[tuple[int, int, OpType], int] = {}
    seq = [seen.setdefault(row[:3], seen.get(row[:3], -1) + 1) for row in rows]
    return OpTable(
        step=np.zeros(count, np.int64),
        replica=np.array([row[1] for row in rows], np.int32),
        stage=np.array([row[0] for row in rows], np.int32),
        rank=np.array([2 * row[0] + row[1] for row in rows], np.int32),
        optype=np.array([NUMBER[row[2]] for row in rows], np.uint8),
        start=np.array([row[3] * 1e9 for row in rows]).astype(np.int64),
        duration=np.array([row[4] * 1e9 for row in rows]).astype(np.int64),
        seq=np.array(seq, np.int32),
        chunk=np.full(count, -1, np.int32),
        micro_batch=np.full(count, -1, np.int32),
    )


def test_equal_steps_take_the_mean_of_compute() -> None:
    quiet = replace(FOUR, noise=0.0)
    equal = study(operation_table(quiet, worker(1, 2, 2.6))[0]).result.equal_s
    grown = 1 + 1.6 / 16
    alike = replace(quiet, forward_s=quiet.forward_s * grown, backward_s=quiet.backward_s * grown)
    assert equal == pytest.approx(operation_table(alike)[1], rel=1e-3)


def test_a_job_whose_workers_are_alike_is_healthy() -> None:
    seen = judged(Job())
    assert seen.verdict is Verdict.HEALTHY
    assert not seen.findings
    assert "1.00×" in seen.headline


def test_one_slow_worker_is_named() -> None:
    seen = judged(FOUR, worker(1, 2))
    finding = seen.findings[0]
    assert seen.verdict is Verdict.SLOW
    assert (finding.kind, finding.culprits.ranks) == (Kind.SLOW_COMPUTE, (6,))
    assert "rank 6 (stage 1, DP 2) computed 1.6× slower than its peers in all 6 steps" in finding.summary
    assert 6 not in finding.victims
    assert len(finding.victims) == 15


def test_a_worker_that_was_slow_for_some_steps_has_recovered() -> None:
    job = replace(FOUR, steps=12)
    seen = judged(job, lambda s, st, d, _m: 2.5 if (st, d) == (1, 2) and 4 <= s < 8 else 1.0)
    finding = seen.findings[0]
    assert finding.status is Status.RECOVERED
    assert finding.where.training_step == 4
    assert "2.5× slower than its peers in steps 4–7" in finding.summary


def test_a_slow_worker_of_the_last_stage_is_no_imbalance() -> None:
    found = study(operation_table(FOUR, worker(3, 1))[0]).result
    assert found.last_stage_share is not None
    assert found.last_stage_share > 0.9  # its stage made equal saves it, too
    assert judged(FOUR, worker(3, 1)).findings[0].culprits.ranks == (13,)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("vpp", [1, 2])
def test_a_long_stage_is_an_imbalance_of_nobody(stage: int, vpp: int) -> None:
    seen = judged(Job(vpp=vpp, micro_batches=16), long_stage(stage, 1.7))
    finding = seen.findings[0]
    assert (finding.kind, finding.where.stage, finding.ambiguous) == (Kind.IMBALANCE, stage, False)
    assert not finding.culprits.ranks
    assert "in every step and on all 2 replicas" in finding.summary


def test_with_one_replica_a_long_stage_may_be_a_slow_worker() -> None:
    finding = judged(Job(dp=1), long_stage(2)).findings[0]
    assert (finding.kind, finding.kind_alternatives) == (Kind.IMBALANCE, (Kind.SLOW_COMPUTE,))
    assert finding.ambiguous
    assert not finding.culprits.ranks


def test_long_sequences_make_micro_batches_uneven() -> None:
    tokens = (1.0, 1.0, 0.6, 2.5, 1.0, 0.5, 0.8, 0.6)
    finding = judged(FOUR, lambda s, _st, d, m: tokens[(5 * m + 3 * s + 7 * d) % 8]).findings[0]
    assert (finding.kind, finding.where.stage) == (Kind.IMBALANCE, None)
    assert "micro-batches are uneven" in finding.summary


def test_a_slow_replica_names_nobody() -> None:
    seen = judged(FOUR, lambda _s, _st, d, _m: 1.5 if d == 3 else 1.0)
    assert seen.verdict is Verdict.UNDECIDABLE
    assert "replica 3 1.3" in seen.headline
    assert not seen.findings


def test_two_slow_workers_of_many_are_both_named() -> None:
    job = Job(pp=4, dp=16, micro_batches=4, steps=3)
    slow = {(1, 2), (2, 9)}
    seen = judged(job, lambda _s, st, d, _m: 2.0 if (st, d) in slow else 1.0)
    assert seen.findings[0].culprits.ranks == (1 * 16 + 2, 2 * 16 + 9)


def test_a_step_that_lacks_an_operation_is_left_out() -> None:
    table, _ = operation_table(Job(steps=5))
    torn = table.take(~((table.step == 3) & (table.rank == 2) & (table.optype == NUMBER[OpType.CLIP])))
    grid = dense(torn)
    assert grid.steps.tolist() == [0, 1, 2, 4]
    assert "1 of 5 steps were left out" in grid.notes[0]
    assert study(torn).result.replayed_s == pytest.approx(np.delete(study(table).result.replayed_s, 3))


def test_operations_that_do_not_match_are_said() -> None:
    table, _ = operation_table(Job())
    torn = table.take(~((table.optype == NUMBER[OpType.FORWARD_RECV]) & (table.seq > 5)))
    seen = diagnose(Trace(Events.empty(), operations=torn))
    assert seen.verdict is Verdict.UNDECIDABLE
    assert "stage 1 has 6 forward-recv for 8 forward-compute operations" in seen.headline


def test_operations_that_take_no_time_are_said() -> None:
    table, _ = operation_table(Job())
    still = replace(table, duration=np.zeros_like(table.duration), start=np.zeros_like(table.start))
    seen = diagnose(Trace(Events.empty(), operations=still))
    assert "no operation takes any time" in seen.headline


@pytest.mark.parametrize("seed", range(40))
def test_any_rows_end_in_a_verdict(seed: int) -> None:
    """Rows lost, doubled and overwritten: a verdict that can be shown, never an exception."""
    rng = np.random.default_rng(seed)
    table, _ = operation_table(Job(pp=2, dp=2, micro_batches=4, steps=2, vpp=1 + seed % 2))
    table = table.take(rng.integers(0, len(table), len(table)) if seed % 3 else np.arange(len(table)))
    for name in rng.choice(OpTable.__slots__, 2):
        column = getattr(table, name).copy()
        rows = rng.integers(0, len(column), max(1, len(column) // 20))
        column[rows] = rng.integers(0, 10**9 if name in ("start", "duration") else 6, len(rows))
        table = replace(table, **{name: column})
    seen = diagnose(Trace(Events.empty(), operations=table))
    assert seen.headline
    assert to_json(seen)


def test_pictures_show_the_work_of_the_slow_worker() -> None:
    pictures = judged(FOUR, worker(1, 2)).pictures
    assert pictures.work_ranks is not None
    assert pictures.work_ms is not None
    level = np.median(pictures.work_ms, axis=1)
    assert pictures.work_ranks[int(level.argmax())] == 6
    assert pictures.task_critical is not None
    assert pictures.task_critical.any()


@pytest.mark.shared
def test_the_published_table_of_a_long_last_stage(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "whatif_stage_imbalance"
    truth = json.loads((folder / "result-ST.json").read_text())
    trace = open_trace([folder / "trace-ST.parquet"])
    assert trace.operations is not None
    result = study(trace.operations).result
    for name, mine in (
        ("step_t_base", result.recorded_s),
        ("step_t_nodelay", result.replayed_s),
        ("step_t_noblk", result.equal_s),
    ):
        published = [truth[name][str(step)] for step in result.steps]
        assert mine == pytest.approx(published, rel=1e-5), name
    assert dict(result.by_type) == pytest.approx(truth["blocking_decompose_by_optype"], rel=1e-5)
    for name, numbers in (("stage", result.by_stage), ("dp_rank", result.by_replica)):
        theirs = {int(key): value for key, value in truth[f"blocking_decompose_by_{name}"].items()}
        assert dict(numbers) == pytest.approx(theirs, rel=1e-5)
    workers = json.loads((folder / "mw-ST.json").read_text())
    stage = json.loads((folder / "ms-ST.json").read_text())
    assert result.slowest_share == pytest.approx(workers["Mw"], rel=1e-4)
    assert result.last_stage_share == pytest.approx(stage["Ms"], rel=1e-4)


@pytest.mark.shared
def test_the_published_table_is_an_imbalance_of_its_last_stage(shared_dir: Path) -> None:
    seen = diagnose(open_trace([shared_dir / "data" / "whatif_stage_imbalance" / "trace-ST.parquet"]))
    assert len(seen.findings) == 1
    finding = seen.findings[0]
    assert (finding.kind, finding.where.stage, finding.ambiguous) == (Kind.IMBALANCE, 3, False)
    assert not finding.culprits.ranks
    assert not seen.coverage.notes
