"""Runs that were wrong once, by what the analysis lacked: each stands for a kind of cause, not for a seed."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.cases import Case, run
from benchmarks.accuracy.scoring import decidable, diagnosed, score, seen
from megatrace.model.finding import Severity, Verdict

BY_CAUSE: dict[str, tuple[str, str]] = {
    "context peers are tied by their ring, so two tensor groups stand for one reason": (
        "stuck_kernel_before:tp2-pp2-cp2-dp2:80304",
        "text-hash",
    ),
    "hosts run ahead, so of two groups that met the one that stopped first is not the one": (
        "stuck_kernel_before:tp2-pp2-dp4-ep2:90306",
        "text-hash",
    ),
    "a host of a dead node made one more call, two milliseconds after the others": (
        "dead_node:tp2-pp1-dp8:104482",
        "ring",
    ),
    "a device and a collective of others on its node stopped at once": (
        "dead_node:tp4-pp2-dp2:104498",
        "ring",
    ),
    "a rank that stands at a message to a dead node was only waiting for it": (
        "dead_node:tp1-pp4-dp4:105497",
        "text",
    ),
    "calls whose members are not known stop on one node only": ("dead_node:tp2-pp2-dp4-ep2:115486", "text"),
    "of two that differ, the one that calls as other replicas do under that number is right": (
        "skipped_collective:tp2-pp2-cp2-dp2:98390",
        "ring",
    ),
    "half of the job does not stop at once, but a node that holds half of it may": (
        "dead_node:cp2-gather:105485",
        "text-hash",
    ),
    "who stands at the call that one ran ahead of does not move": (
        "skipped_collective:tp8-pp4-dp1:110383",
        "text",
    ),
    "a message that a dead node sent last may never have left it": ("dead_node:tp1-pp4-dp4:105497", "text"),
    "two tensor groups that came to their waits a millisecond apart stopped in no known order": (
        "late_deaths:tp8-pp4-dp1:104523",
        "text",
    ),
    "in a circle over a pair, other pairs tell which of the two left its path": (
        "skipped_collective:gpipe:95394",
        "ring",
    ),
    "one of two alike calls around a third was left out, not swapped": (
        "skipped_collective:tp2-pp2-dp4-ep2:96392",
        "ring",
    ),
    "sizes of an uneven all-to-all tell nothing": ("size_mismatch:tp2-pp2-dp4-ep2:96427", "text"),
    "ranks that stand where an equal went on did not stand at a call": (
        "dead_node:grad-overlap:96490",
        "text",
    ),
    "a node that stands where it often stood may have died after a rank that stopped alone": (
        "late_deaths:tp8-pp4-dp1:96534",
        "text",
    ),
    "a stage whose last backward never shows has a past of its own": ("slow_host:tp1-pp4-dp4:80072", "ring"),
    "half of all hosts are starved, and late to the first gradients": ("slow_host:ddp16:96005", "text"),
    "another one of the starved hosts is the slowest every time": ("slow_host:zero3-16:96014", "ring"),
    "a host costs 6 % in most iterations": ("slow_host:ddp16:97206", "text"),
    "one pause makes two iterations begin late": ("gc_pauses:ddp8:96035", "text"),
    "a host that paused catches up and is not slow afterwards": ("gc_pauses:ddp16:97236", "text"),
    "an anchor is enqueued while devices still wait for a late rank": (
        "data_loader_stall:fsdp16:96056",
        "text",
    ),
    "ranks leave a checkpoint one after another": ("checkpoint_stall:ddp16:97255", "text"),
    "four paths of one NIC are not each other's rivals": ("slow_nic:tp8-pp4-dp1:80118", "text"),
    "jitter may hit one path three times": ("gc_pauses:tp2-pp2-dp4-ep2:80198", "text-hash"),
    "a rank that waits for a slow neighbour begins late, too": ("slow_gpu_drift:tp1-pp8-dp2:95543", "text"),
    "both ends of a slow path take their other inputs late": ("slow_nic:interleaved:80105", "text"),
}


@pytest.mark.parametrize(("name", "source"), BY_CAUSE.values(), ids=BY_CAUSE.keys())
def test_what_was_wrong_once_stays_right(name: str, source: str) -> None:
    case = Case.parse(name)
    simulation = run(case)
    assert simulation is not None
    diagnosis, _ = diagnosed(seen(simulation, source), case.waited)
    told = score(diagnosis, decidable(simulation, case.waited), source)
    assert not told.reasons, "; ".join(told.reasons)


LOCATED: dict[str, tuple[str, str]] = {
    "gathers and scatters tell micro-batches of sharded jobs": ("stuck_host:fsdp16:90291", "text"),
    "the loss tells them without a pipeline": ("slow_then_hang:tp2-pp1-dp8:90275", "text"),
    "a host may stand anywhere since it heard from another stage": (
        "stuck_inside:sequence-parallel:90324",
        "text",
    ),
    "of what others wait for and the message that always came next, the message comes first": (
        "late_deaths:tp2-pp8-dp1:90524",
        "text",
    ),
    "as for a send at the end of the forwards": ("missing_send:gpipe:90372", "ring"),
    "a call that was left out stands where the others made it": ("skipped_collective:ddp8:90398", "text"),
    "not where somebody waits for what came later": ("skipped_collective:gpipe:90394", "ring"),
    "messages of a context ring are not from another stage, whoever their other end is": (
        "stuck_kernel_before:tp2-pp2-cp2-dp2:108304",
        "text",
    ),
    "a host that is one call short at the end of a run may have left out any of the run": (
        "skipped_collective:interleaved:108393",
        "text",
    ),
    "groups of two stages share no phase": ("late_deaths:tp8-pp4-dp1:104523", "text"),
    "a node died where its ranks would have called next": ("dead_node:tp2-pp1-dp8:90482", "text"),
}


@pytest.mark.parametrize(("name", "source"), LOCATED.values(), ids=LOCATED.keys())
def test_a_standstill_is_found_where_it_is(name: str, source: str) -> None:
    case = Case.parse(name)
    simulation = run(case)
    assert simulation is not None
    diagnosis, _ = diagnosed(seen(simulation, source), case.waited)
    told = score(diagnosis, decidable(simulation, case.waited), source)
    assert not told.reasons, "; ".join(told.reasons)
    assert {fault.where_right for fault in told.faults} <= {True, None}
    assert any(fault.where_right for fault in told.faults)


def test_a_slowdown_does_not_hide_that_the_job_may_stand() -> None:
    case = Case.parse("slow_then_hang:tp2-pp2-dp4-ep2:70279")
    simulation = run(case)
    assert simulation is not None
    diagnosis, _ = diagnosed(seen(simulation, "text"), case.waited)
    assert diagnosis.verdict is Verdict.SLOW
    (note,) = [finding for finding in diagnosis.findings if finding.severity is Severity.P3]
    assert note.culprits.ranks == (6,)
    assert note.victims == ()
    assert note.summary.startswith("rank 6 may have stopped, but the recording ends")
    assert note.summary.endswith("a hang and a cut recording look alike here")


def test_nor_that_it_stands_although_nobody_is_seen_to_hold_it_up() -> None:
    case = Case.parse("stuck_kernel_before:tp8-pp4-dp4:97312")
    simulation = run(case)
    assert simulation is not None
    diagnosis, _ = diagnosed(seen(simulation, "text"), case.waited)
    if diagnosis.verdict is not Verdict.UNDECIDABLE:  # else nothing was found that could hide it
        assert diagnosis.verdict is Verdict.HANG
    assert diagnosis.headline.startswith("the job stands: nobody made a call for 10 m; but no rank waits")
