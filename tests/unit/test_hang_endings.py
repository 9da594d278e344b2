"""Ends of recordings as the whole analysis sees them: moved, ended, cut or standing; and which of several
ends came first.

Small simulated jobs, because what matters is what hosts and devices do once something stops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from megatrace.analysis.diagnosing import diagnose
from megatrace.analysis.early_ends import ended_normally
from megatrace.analysis.infer_layout import resolve
from megatrace.analysis.roles import Role
from megatrace.model.finding import Diagnosis, Kind, Verdict
from megatrace.model.job import JobConfig, Sourced
from megatrace.model.schedule import Phase
from megatrace.model.trace import Trace
from megatrace.simulator import (
    Capture,
    Fault,
    LateDeaths,
    MissingRecv,
    MissingSend,
    Scenario,
    SkippedCollective,
    StuckHost,
    StuckInside,
    StuckKernelBefore,
    observe,
    simulate,
)

LATER_NS = 600 * 10**9
SMALL: dict[str, Any] = {"tp": 2, "pp": 2, "dp": 2, "iterations": 5}


def seen(source: str, *faults: Fault, **settings: Any) -> Trace:
    """What a source has of a job, nodes included."""
    scenario = Scenario.model_validate({**SMALL, **settings, "faults": faults})
    trace = observe(simulate(scenario).trace, source)
    return trace.with_job(JobConfig(ranks_per_node=Sourced(scenario.ranks_per_node, "test")))


def later(trace: Trace) -> Diagnosis:
    """Diagnosed by somebody who says that the job still stood ten minutes later."""
    return diagnose(trace, now=int(trace.events.enqueue.max()) + LATER_NS)


def normally(trace: Trace) -> bool | None:
    return ended_normally(resolve(trace), ())


@pytest.mark.parametrize("source", ["ring", "text", "text-hash"])
def test_a_job_that_ended(source: str) -> None:
    trace = seen(source)
    assert normally(trace) is True
    assert diagnose(trace).verdict is Verdict.HEALTHY
    assert normally(seen(source, pattern="ddp", tp=1, pp=1, dp=8)) is True


def test_a_job_that_ended_with_an_evaluation() -> None:
    job: dict[str, Any] = {"iterations": 12, "evaluate_every": 4, "evaluate_iterations": 1}
    whole = seen("text", **job)
    assert normally(whole) is not False
    assert diagnose(whole).verdict is Verdict.HEALTHY
    rows = whole.events.rank >= 0
    for rank in whole.events.ranks():  # twenty calls before the end of the evaluation
        part = whole.events.rows_of(int(rank))
        rows[part.stop - 20 : part.stop] = False
    assert normally(replace(whole, events=whole.events.take(rows))) is False


def test_a_few_torn_last_lines_are_no_other_end() -> None:
    assert normally(seen("text", capture=Capture(torn_tails=(1, 6)))) is True
    assert normally(seen("text", capture=Capture(torn_tails=(0, 1, 2, 3, 4, 5, 6)))) is False


def test_a_stop_before_the_last_call_of_an_iteration_is_no_end_of_it() -> None:
    fault = StuckInside(rank=0, iteration=3, phase=Phase.SYNC, call=3)
    assert normally(seen("text", fault)) is False


def test_a_recording_of_hosts_at_a_wait_is_undecidable_until_somebody_says_that_the_job_stands() -> None:
    # The last micro-batch: all hosts get to the all-reduce of the whole job and wait there.
    fault = StuckKernelBefore(rank=1, iteration=3, micro_batch=7, phase=Phase.BACKWARD)
    trace = seen("text", fault)
    cut = diagnose(trace)
    assert cut.verdict is Verdict.UNDECIDABLE
    assert "cannot tell whether the job stands there or the recording was cut" in cut.headline
    assert cut.next_steps[0].command == "megatrace diagnose PATH --now TIME"
    stands = later(trace)
    assert stands.verdict is Verdict.UNDECIDABLE
    assert stands.headline.startswith("the job stands: nobody made a call for 10 m")


def test_a_collective_in_flight_everywhere_may_be_a_moving_job() -> None:
    fault = StuckInside(rank=6, iteration=3, phase=Phase.FORWARD, micro_batch=0, call=2)
    trace = seen("ring", fault, pattern="fsdp", tp=1, pp=1, dp=8)
    assert diagnose(trace).verdict is Verdict.UNDECIDABLE
    assert later(trace).findings[0].kind is Kind.HANG_NETWORK


def test_a_snapshot_of_a_job_in_full_motion_is_healthy() -> None:
    whole = seen("ring", pp=4, dp=4)
    end = float(whole.events.enqueue.max() - whole.events.enqueue.min()) / 1e9
    diagnosis = diagnose(seen("ring", pp=4, dp=4, capture=Capture(cut_at_s=0.8 * end)))
    assert diagnosis.verdict is Verdict.HEALTHY


def test_silence_longer_than_every_pause_of_anybody_needs_no_word() -> None:
    fault = StuckHost(rank=8, iteration=3, micro_batch=2, phase=Phase.BACKWARD, call=0)
    settings = {"tp": 2, "pp": 2, "dp": 4, "ep": 2, "seed": 1283}
    finding = diagnose(seen("ring", fault, **settings)).findings[0]
    assert finding.culprits.ranks == (8,)
    assert any("others went on for" in line.text for line in finding.evidence)


def test_a_host_that_prefetches_by_hundreds_of_calls_keeps_its_first_open_one() -> None:
    fault = StuckHost(rank=8, iteration=2, micro_batch=0, phase=Phase.BACKWARD, call=2)
    settings = {"pattern": "zero3", "tp": 1, "pp": 1, "dp": 16, "micro_batches": 2, "layers_per_stage": 8}
    finding = later(seen("ring", fault, **settings)).findings[0]
    assert (finding.kind, finding.culprits.ranks) == (Kind.HANG_HOST, (8,))


@pytest.mark.parametrize("source", ["ring", "text"])
def test_a_node_that_died_at_about_the_same_time_is_a_victim(source: str) -> None:
    fault = MissingRecv(rank=30, iteration=3, micro_batch=5)
    settings = {"tp": 1, "pp": 2, "dp": 16, "seed": 1528}
    finding = later(seen(source, fault, LateDeaths(count=1), **settings)).findings[0]
    assert finding.culprits.ranks == (30,)
    assert Kind.MISSING_CALL in (finding.kind, *finding.kind_alternatives)
    assert set(range(8)) <= set(finding.victims)
    assert any("ranks 0–7 stopped only afterwards" in line.text for line in finding.evidence)


def test_groups_that_met_with_the_one_that_is_short_of_a_call_are_held_up_by_it() -> None:
    fault = SkippedCollective(rank=11, iteration=3, micro_batch=4, phase=Phase.BACKWARD, call=0)
    settings = {"tp": 2, "pp": 2, "dp": 4, "ep": 2, "seed": 1392}
    finding = later(seen("text-hash", fault, **settings)).findings[0]
    assert finding.culprits.ranks == (11,)
    assert Kind.MISSING_CALL in (finding.kind, *finding.kind_alternatives)


def test_an_exchange_that_lacks_a_message_its_peers_have_was_half_posted() -> None:
    fault = MissingSend(rank=3, iteration=2, micro_batch=6, phase=Phase.FORWARD)
    settings = {"pp": 4, "vpp": 2, "seed": 1371}
    finding = later(seen("text", fault, **settings)).findings[0]
    assert (finding.kind, finding.culprits.ranks) == (Kind.MISSING_CALL, (3,))
    assert not finding.ambiguous
    assert "rank 3 (node0 gpu3) never posted Send to rank 7" in finding.summary


def test_the_end_of_an_iteration_is_said_to_come_after_it() -> None:
    fault = SkippedCollective(rank=2, iteration=3, phase=Phase.SYNC, call=3)
    finding = later(seen("ring", fault, tp=1, dp=4)).findings[0]
    assert finding.culprits.ranks == (2,)
    assert finding.where.iteration == 4
    assert finding.summary.endswith("after iteration 3")


def test_context_traffic_and_gradient_buckets_are_no_group_of_all_ranks() -> None:
    gather = seen("text", cp=2, context_parallel_comm="all_gather", evaluate_every=5, iterations=12)
    resolved = resolve(gather)
    heavy = resolved.role[np.asarray(gather.events.count) > 1024]
    assert set(heavy.tolist()) == {Role.TENSOR, Role.PIPELINE, Role.DATA, Role.CONTEXT}
    assert diagnose(gather).findings == ()
    buckets = resolve(seen("text", dp=4, overlap_grad_reduce=True, layers_per_stage=6))
    data = [comm.members for comm in buckets.trace.communicators if comm.axis and comm.axis.value == "dp"]
    assert sorted(group or () for group in data) == [
        (0, 2, 4, 6),
        (1, 3, 5, 7),
        (8, 10, 12, 14),
        (9, 11, 13, 15),
    ]
