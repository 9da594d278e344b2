"""What a text log of a standstill leaves open: who stands at one wait, who is level, who died too soon."""

from __future__ import annotations

from typing import Any

import pytest

from megatrace.model.schedule import Phase
from megatrace.simulator import (
    Answer,
    Fault,
    LateDeaths,
    Scenario,
    SizeMismatch,
    StuckHost,
    StuckInside,
    StuckKernelBefore,
    Truth,
    simulate,
)
from megatrace.simulator.blurred import everybody_is_level

JOB: dict[str, Any] = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 4, "layers_per_stage": 2, "iterations": 2}


def truth(*faults: Fault, **settings: Any) -> Truth:
    return simulate(Scenario.model_validate({**JOB, **settings, "faults": faults})).truth


def text(*faults: Fault, **settings: Any) -> Answer:
    return truth(*faults, **settings).faults[0].answers["text"]


INSIDE = StuckInside(rank=3, iteration=1, micro_batch=1, phase=Phase.FORWARD, call=0)


@pytest.mark.parametrize(
    ("settings", "together"),
    [
        ({}, (2, 3)),
        # Every attention layer ties the two tensor groups of a context group together, as ring or gather.
        ({"cp": 2}, (0, 1, 2, 3)),
        ({"cp": 2, "context_parallel_comm": "all_gather"}, (0, 1, 2, 3)),
        # Experts are shared by two replicas.
        ({"dp": 4, "ep": 2}, (0, 1, 2, 3)),
        ({"dp": 4}, (2, 3)),
    ],
)
def test_hosts_that_stand_at_one_wait(settings: dict[str, Any], together: tuple[int, ...]) -> None:
    answer = text(INSIDE, **settings)
    assert answer.ranks == together
    assert not answer.undecidable
    kernel = StuckKernelBefore(rank=3, iteration=1, micro_batch=1, phase=Phase.FORWARD, call=0)
    assert text(kernel, **settings).ranks == together


def test_completions_tell_them_apart() -> None:
    kernel = StuckKernelBefore(rank=3, iteration=1, micro_batch=1, phase=Phase.FORWARD, call=0)
    ring = truth(kernel, cp=2).faults[0].answers["ring"]
    assert ring.ranks == (3,)
    assert not ring.undecidable


def test_after_the_last_micro_batch_all_hosts_get_to_the_call_of_all() -> None:
    last = StuckKernelBefore(rank=1, iteration=1, micro_batch=3, phase=Phase.BACKWARD)
    answer = text(last)
    assert answer.undecidable
    assert answer.ranks == tuple(range(8))
    # The last stage still has its gradient to send: it stands before that.
    assert text(StuckKernelBefore(rank=5, iteration=1, micro_batch=3, phase=Phase.BACKWARD)).ranks == (4, 5)


def test_weight_gradients_lie_behind_the_send() -> None:
    # The kernel after the last all-reduce of a backward keeps neither the Send nor the peers back, but no
    # message passes any more.
    tail = StuckKernelBefore(rank=5, iteration=1, micro_batch=1, phase=Phase.BACKWARD, call=3)
    before = StuckKernelBefore(rank=5, iteration=1, micro_batch=1, phase=Phase.BACKWARD, call=0)
    assert text(before).ranks == (4, 5)
    assert 5 in text(tail).ranks


def test_gradient_buckets_hold_up_nobody_before_they_are_waited_for() -> None:
    # Two layers of two all-reduces, and a bucket after each of them.
    bucket = StuckInside(rank=0, iteration=1, micro_batch=3, phase=Phase.BACKWARD, call=2)
    answer = text(bucket, dp=4, overlap_grad_reduce=True)
    assert answer.ranks == (0, 2, 4, 6)
    assert not answer.undecidable
    # Without overlap it is the device that waits for the gradients: all hosts get to the calls of all.
    assert text(StuckInside(rank=0, iteration=1, phase=Phase.SYNC, call=1), dp=4).undecidable


def test_where_everybody_is_level_nothing_tells_a_stop_from_a_cut() -> None:
    settings: dict[str, Any] = {"pattern": "fsdp", "tp": 1, "pp": 1, "dp": 8}
    stuck = Scenario.model_validate(
        {**JOB, **settings, "faults": [StuckInside(rank=3, iteration=1, micro_batch=1, call=0)]}
    )
    assert everybody_is_level(simulate(stuck).trace)
    assert text(*stuck.faults, **settings).undecidable
    host = StuckHost(rank=3, iteration=1, micro_batch=1, call=0)
    assert not text(host, **settings).undecidable
    # Calls that do not fit are seen although everybody made as many.
    size = SizeMismatch(rank=3, iteration=1, micro_batch=1, call=0, factor=0.5)
    assert not text(size, **settings).undecidable


def test_a_node_that_died_within_an_ordinary_pause_may_have_been_first() -> None:
    kernel = StuckKernelBefore(rank=3, iteration=1, micro_batch=1, phase=Phase.FORWARD, call=0)
    whole = truth(kernel, LateDeaths(count=1), dp=8, ranks_per_node=4, seed=3)
    fault = whole.faults[0]
    assert fault.start_s is not None
    (died,) = set(whole.late_deaths_s.values())
    answer = fault.answers["text"]
    node = set(whole.late_deaths_s)
    soon = died - fault.start_s <= 2 * 2 * (3.0 + 6.6) / 1e3
    assert (tuple(sorted({*answer.ranks, *node})) in answer.also) is soon
    assert fault.answers["ring"].also == ()


def test_the_sets_are_published() -> None:
    kernel = StuckKernelBefore(rank=3, iteration=1, micro_batch=1, phase=Phase.FORWARD, call=0)
    told = truth(kernel).as_json()["faults"][0]["answers"]["text"]
    assert told["ranks"] == [2, 3]
    assert told["also"] == []
