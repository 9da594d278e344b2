"""Starved hosts: against whose pace, in which iterations, and when nobody in particular is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs, tabulate_costs
from megatrace.analysis.flat import ONE_TASK
from megatrace.analysis.hosts import slow_hosts
from megatrace.analysis.slow_nodes import _by_turns
from megatrace.analysis.slow_scene import cost
from megatrace.analysis.work import WorkTable
from tests.unit.analysis_cases import costs_of, table_of

F8 = NDArray[np.float64]
USUAL = 100e-6
"""Seconds a call."""


def flat(pace: F8 | None = None, step_pace: F8 | None = None) -> tuple[WorkTable, Costs]:
    """Twelve iterations of eight ranks without groups."""
    work = np.full((12, 1, 8, 1, 2), 0.2)
    shape = (12, 1, 8, 1)
    table = table_of(
        work,
        pace=np.full((*shape, 2), np.nan) if pace is None else np.repeat(pace.reshape(*shape, 1), 2, axis=4),
        step_pace=np.full(shape, np.nan) if step_pace is None else step_pace.reshape(shape),
    )
    costs = tabulate_costs(table, ONE_TASK)
    assert costs is not None
    return table, costs


def test_bookkeeping_tells_of_the_iteration_that_it_closes() -> None:
    """It stands before the next iteration's first task."""
    pace = np.full((12, 8), USUAL)
    pace[5:9, 2] *= 8
    hosts = slow_hosts(*flat(step_pace=pace))
    assert hosts is not None
    assert np.flatnonzero(hosts.starved[:, 0, 2, 0]).tolist() == [4, 5, 6, 7, 8]
    assert not np.delete(hosts.starved, 2, axis=2).any()


def test_a_host_that_catches_up_is_not_slow_otherwise() -> None:
    """A rank that paused is behind: its launch queue is empty, and it makes its calls at once."""
    pace = np.full((12, 8), USUAL)
    pace[[1, 5, 9], 2] /= 6
    hosts = slow_hosts(*flat(pace=pace))
    assert hosts is not None
    assert not hosts.starved.any()
    pace[3:7, 4:] *= 3
    hosts = slow_hosts(*flat(pace=pace))
    assert hosts is not None
    assert hosts.starved[3:7, 0, 4:].all()


def test_a_starved_node_is_the_same_every_time() -> None:
    random = np.random.default_rng(1)
    assert _by_turns(random.random((15, 1, 16, 1)) < 0.5)
    node = np.zeros((15, 1, 16, 1), np.bool_)
    node[3:12, 0, 8:] = random.random((9, 8, 1)) < 0.9
    assert not _by_turns(node)


def test_a_fault_in_most_iterations_is_measured_against_the_others() -> None:
    """A twentieth more hides in the band of usual iterations, and most of them are long."""
    measured = np.where(np.arange(15) < 4, 0.66, 0.70)
    costs = costs_of(ONE_TASK, np.full((15, 1, 4, 1, 2), 0.33), measured=measured, usual=0.70)
    lost = np.where(np.arange(15) < 4, 0.0, 0.042)
    seconds, usual, slow = cost(costs, lost, np.arange(4, 15))
    assert abs(seconds - 11 * 0.04) < 1e-9
    assert (usual, slow) == (0.66, 0.70)


def test_hosts_show_a_part_of_what_a_device_costs() -> None:
    """Iterations of 0.29 s that take 0.46 s are not 0.03 s longer each."""
    measured = np.where(np.arange(20) < 8, 0.29, 0.46)
    costs = costs_of(ONE_TASK, np.full((20, 1, 4, 1, 2), 0.1), measured=measured, usual=0.29)
    seconds, _, _ = cost(costs, np.where(np.arange(20) < 8, 0.0, 0.031), np.arange(8, 20))
    assert abs(seconds - 12 * 0.17) < 1e-9
