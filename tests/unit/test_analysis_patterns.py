"""Slowness that belongs to nobody: imbalance, jitter, everybody at once; and culprits inside of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from megatrace.analysis.patterns import find_patterns
from megatrace.analysis.restless import find_restless
from megatrace.analysis.scatter import _levelled, find_scatter
from megatrace.analysis.suspects import find_suspects
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
        assert all(suspect.lost.max() < regular.counts for suspect in find_suspects(regular))


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


def test_what_is_left_of_uneven_micro_batches_accuses_nobody() -> None:
    # On the host a length cannot be taken out exactly; a sick place is slow in all its tasks.
    work = steady_work(PLAIN, 12, replicas=2)
    work[5, 0, 1, 0, ::4] *= 2.2
    work[6:, 2, 1] *= 1.6
    level = steady_work(PLAIN, 12, replicas=2)
    level[6:, 2, 1] *= 1.6
    np.testing.assert_allclose(_levelled(work), level)


def test_a_task_that_is_long_in_every_iteration_is_no_jitter() -> None:
    work = steady_work(PLAIN, 14, replicas=2, noise=0.002)
    work[:, 0, :, :, 5] *= 4.0
    work[:, 2, :, :, 7] *= 4.0
    assert find_scatter(costs_of(PLAIN, work))[0] is None


def test_scatter_of_one_place_is_its_own_fault() -> None:
    rng = np.random.default_rng(5)
    work = steady_work(PLAIN, 12, replicas=4, noise=0.005)
    work[:, 2, 1] *= 1 + np.abs(rng.normal(0, 0.8, work[:, 2, 1].shape))
    assert find_scatter(costs_of(PLAIN, work))[0] is None


def test_pauses_of_random_places_are_jitter_though_one_is_hit_more_often() -> None:
    rng = np.random.default_rng(6)
    small = Schedule(ScheduleKind.ONE_F_ONE_B, 2, 8)
    work = steady_work(small, 24, replicas=2, noise=0.003)
    for k, (stage, replica) in enumerate([(1, 1), (1, 0), (1, 1), (0, 1), (1, 1), (0, 0)] * 4):
        work[k, stage, replica, 0, rng.integers(3, 12)] += 0.08
    found, _ = find_scatter(costs_of(small, work))
    assert found is not None
    assert found.kind is Kind.JITTER
    work = steady_work(small, 24, replicas=2, noise=0.003)
    for k in range(24):
        work[k, 1, 1, 0, rng.integers(3, 12)] += 0.08
    assert find_scatter(costs_of(small, work))[0] is None


@pytest.mark.parametrize(("sigma", "told"), [(0.0, False), (0.03, False), (0.2, True), (0.4, True)])
@pytest.mark.parametrize("replicas", [1, 3])
def test_jitter_that_was_always_there_shows_by_the_spread_of_tasks(
    sigma: float, told: bool, replicas: int
) -> None:
    rng = np.random.default_rng(7)
    kernels = 16
    work = steady_work(PLAIN, 14, replicas=replicas, noise=0.001)
    work *= (1 + np.abs(rng.normal(0, sigma, (*work.shape, kernels)))).mean(axis=-1)
    found, _ = find_scatter(costs_of(PLAIN, work, calls=np.full((4, 16), float(kernels))))
    assert (found is not None and found.kind is Kind.JITTER) is told
    if found is not None:
        # A half-normal kernel is late by 0.8 of sigma and spreads by 0.6 of it, of which so much is believed.
        assert 0.3 * sigma < np.median(found.lost) / np.median(costs_of(PLAIN, work).measured) < 0.9 * sigma


def test_shifts_of_whole_iterations_are_no_jitter() -> None:
    rng = np.random.default_rng(8)
    work = steady_work(PLAIN, 14, replicas=3, noise=0.002)
    work *= rng.uniform(0.8, 1.2, (14, 1, 3, 1, 1))
    assert find_restless(costs_of(PLAIN, work, calls=np.full((4, 16), 16.0))) is None
    whole = rng.normal(1.0, 0.001, (14, 1, 4, 1, 2)) * rng.uniform(0.8, 1.2, (14, 1, 1, 1, 1))
    one = Schedule(ScheduleKind.ONE_F_ONE_B, 1, 1)
    assert find_restless(costs_of(one, whole, calls=np.full((1, 2), 100.0))) is None
    restless = whole * rng.normal(1.0, 0.012, whole.shape)
    found = find_restless(costs_of(one, restless, calls=np.full((1, 2), 100.0)))
    assert found is not None
    assert found[1] == pytest.approx(0.012, rel=0.35)


def test_a_stage_that_grew_in_all_its_places_is_imbalance() -> None:
    work = steady_work(PLAIN, 20, replicas=4, noise=0.01)
    work[8:, 2] *= 1.4
    patterns, costs = find_patterns(costs_of(PLAIN, work))
    assert [(pattern.kind, pattern.stage) for pattern in patterns] == [(Kind.IMBALANCE, 2)]
    assert patterns[0].ratio == pytest.approx(1.4, abs=0.02)
    assert np.flatnonzero(patterns[0].lost > 0.01).tolist() == list(range(8, 20))
    assert all(suspect.lost.max() < costs.counts for suspect in find_suspects(costs))


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


def test_stages_between_the_ends_have_no_embedding_and_no_loss() -> None:
    work = steady_work(PLAIN, 20, replicas=4, noise=0.01)
    work[:, 1] *= 1.15
    patterns, _ = find_patterns(costs_of(PLAIN, work))
    assert [(pattern.kind, pattern.stage) for pattern in patterns] == [(Kind.IMBALANCE, 1)]
    work[:, 1] *= 1.05 / 1.15
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
    assert all(suspect.lost.max() < costs.counts for suspect in find_suspects(costs))


def test_a_quiet_job_has_no_pattern() -> None:
    for seed in range(4):
        work = steady_work(PLAIN, 20, replicas=4, noise=0.03, seed=seed)
        assert find_patterns(costs_of(PLAIN, work))[0] == []
