"""Slowness that belongs to nobody: imbalance, jitter, everybody at once; and culprits inside of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from megatrace.analysis.patterns import find_patterns
from megatrace.analysis.scatter import find_scatter
from megatrace.analysis.suspects import COUNTS, find_suspects
from megatrace.model.finding import Kind
from megatrace.model.job import ScheduleKind
from megatrace.model.schedule import Schedule
from tests.unit.analysis_cases import costs_of, steady_work

PLAIN = Schedule(ScheduleKind.ONE_F_ONE_B, 4, 8)
F8 = NDArray[np.float64]


def uneven_work(seed: int) -> F8:
    """Micro-batches whose length is the same on all stages of a replica."""
    work = steady_work(PLAIN, 12, replicas=4, noise=0.01)
    factor = np.random.default_rng(seed).lognormal(0, 0.4, (12, 4, PLAIN.micro_batches))
    for stage in range(4):
        for i, task in enumerate(PLAIN.tasks(stage)):
            work[:, stage, :, 0, i] *= factor[:, :, task.micro_batch]
    return work


def test_uneven_micro_batches_are_imbalance_and_nobodys_fault() -> None:
    for seed in range(4):
        found, regular = find_scatter(costs_of(PLAIN, uneven_work(seed)))
        assert found is not None
        assert found.kind is Kind.IMBALANCE
        assert found.spread > 0.2
        assert all(suspect.lost.max() < COUNTS * regular.usual for suspect in find_suspects(regular))


def test_a_culprit_among_uneven_micro_batches_still_shows() -> None:
    work = uneven_work(3)
    work[5:, 2, 1] *= 1.6
    found, regular = find_scatter(costs_of(PLAIN, work))
    assert found is not None
    lead = find_suspects(regular)[0]
    assert (lead.stage, lead.replica) == (2, 1)
    assert np.flatnonzero(lead.affected(regular.usual)).tolist() == list(range(5, 12))


def test_jitter_of_all_ranks_is_jitter() -> None:
    rng = np.random.default_rng(4)
    work = steady_work(PLAIN, 12, replicas=4)
    work *= 1 + np.abs(rng.normal(0, 0.4, work.shape))
    found, _ = find_scatter(costs_of(PLAIN, work))
    assert found is not None
    assert found.kind is Kind.JITTER


def test_scatter_of_one_place_is_its_own_fault() -> None:
    rng = np.random.default_rng(5)
    work = steady_work(PLAIN, 12, replicas=4, noise=0.005)
    work[:, 2, 1] *= 1 + np.abs(rng.normal(0, 0.8, work[:, 2, 1].shape))
    assert find_scatter(costs_of(PLAIN, work))[0] is None


def test_a_stage_that_grew_in_all_its_places_is_imbalance() -> None:
    work = steady_work(PLAIN, 20, replicas=4, noise=0.01)
    work[8:, 2] *= 1.4
    patterns, costs = find_patterns(costs_of(PLAIN, work))
    assert [(pattern.kind, pattern.stage) for pattern in patterns] == [(Kind.IMBALANCE, 2)]
    assert patterns[0].ratio == pytest.approx(1.4, abs=0.02)
    assert np.flatnonzero(patterns[0].lost > 0.01).tolist() == list(range(8, 20))
    assert all(suspect.lost.max() < COUNTS * costs.usual for suspect in find_suspects(costs))


def test_a_culprit_inside_a_pattern_still_shows() -> None:
    work = steady_work(PLAIN, 20, replicas=4, noise=0.01)
    work[8:, 2] *= 1.4
    work[8:, 2, 3] *= 1.5
    patterns, costs = find_patterns(costs_of(PLAIN, work))
    assert [pattern.stage for pattern in patterns] == [2]
    lead = find_suspects(costs)[0]
    assert (lead.stage, lead.replica) == (2, 3)


def test_a_stage_that_is_always_longer_is_imbalance() -> None:
    work = steady_work(PLAIN, 20, replicas=4, noise=0.01)
    work[:, 3] *= 1.35
    patterns, _ = find_patterns(costs_of(PLAIN, work))
    assert [(pattern.kind, pattern.stage) for pattern in patterns] == [(Kind.IMBALANCE, 3)]
    work[:, 3] *= 1.1 / 1.35  # embedding or loss: no word about it
    assert find_patterns(costs_of(PLAIN, work))[0] == []


def test_one_slow_place_of_a_stage_is_no_imbalance() -> None:
    work = steady_work(PLAIN, 20, replicas=4, noise=0.01)
    work[8:, 2, 1] *= 1.6
    assert find_patterns(costs_of(PLAIN, work))[0] == []


def test_a_job_that_is_slower_everywhere_at_once_is_uniform() -> None:
    work = steady_work(PLAIN, 20, replicas=2, members=2, noise=0.01)
    work[12:] *= 1.3
    patterns, costs = find_patterns(costs_of(PLAIN, work))
    assert [pattern.kind for pattern in patterns] == [Kind.SLOW_UNIFORM]
    assert np.flatnonzero(patterns[0].lost > 0.01).tolist() == list(range(12, 20))
    assert all(suspect.lost.max() < COUNTS * costs.usual for suspect in find_suspects(costs))


def test_a_quiet_job_has_no_pattern() -> None:
    for seed in range(4):
        work = steady_work(PLAIN, 20, replicas=4, noise=0.03, seed=seed)
        assert find_patterns(costs_of(PLAIN, work))[0] == []
