"""Roles of channels, groups from members and from times, and what a declared layout is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megatrace.analysis import coupling
from megatrace.analysis.anchors import anchor_rows, signatures
from megatrace.analysis.channels import tabulate
from megatrace.analysis.coupling import Ends
from megatrace.analysis.groups import Group, fit_layouts
from megatrace.analysis.infer_layout import declared_layout, resolve
from megatrace.analysis.roles import Role, channel_roles
from megatrace.model.events import Events, Op
from megatrace.model.job import JobConfig, Sourced
from megatrace.model.layout import Axis, ParallelLayout
from megatrace.model.trace import Trace
from megatrace.simulator import Scenario, observe, simulate
from tests.unit.analysis_cases import GATHER, NORM, RECV, REDUCE, SCATTER, SEND, Call, events_of

MICRO_BATCH = [RECV, REDUCE, REDUCE, SEND]
ITERATION = [*MICRO_BATCH * 4, SCATTER, GATHER, NORM]


def roles_of(events: Events, sizes: dict[int, int] | None = None) -> dict[int, Role]:
    """Role by stream of the lowest rank."""
    channels = tabulate(events)
    ordinal = np.arange(len(channels)) - np.searchsorted(channels.rank, channels.rank, "left")
    anchors = anchor_rows(events, signatures(events, ordinal[channels.of_event]))
    members = np.asarray([(sizes or {}).get(int(key), 0) for key in channels.key], np.int64)
    found = channel_roles(events, channels, anchors, members)
    first = channels.rank == channels.rank[0]
    return {int(key): Role(int(role)) for key, role in zip(channels.key[first], found[first], strict=True)}


# --- roles ---


def test_roles_follow_from_what_is_carried() -> None:
    assert roles_of(events_of({0: ITERATION * 8})) == {
        0x10: Role.TENSOR, 0x20: Role.PIPELINE, 0x30: Role.DATA, 0x40: Role.OTHER,
    }  # fmt: skip


def test_a_ring_of_context_parallelism_is_busier_than_the_pipeline() -> None:
    ring = [Call(Op.SEND, stream=0x50), Call(Op.RECV, stream=0x50)] * 4
    found = roles_of(events_of({0: [*[RECV, *ring, REDUCE, REDUCE, SEND] * 4, SCATTER, NORM] * 8}))
    assert (found[0x20], found[0x50]) == (Role.PIPELINE, Role.CONTEXT)


def test_a_pipeline_of_two_channels_is_no_ring() -> None:
    back = [Call(Op.RECV, stream=0x22), REDUCE, REDUCE, Call(Op.SEND, stream=0x22)]
    found = roles_of(events_of({0: [*[RECV, REDUCE, REDUCE, SEND, *back] * 4, SCATTER, NORM] * 8}))
    assert (found[0x20], found[0x22]) == (Role.PIPELINE, Role.PIPELINE)


def test_all_to_all_is_expert_traffic() -> None:
    experts = [Call(Op.ALL_TO_ALL, stream=0x60)] * 2
    found = roles_of(events_of({0: [*[RECV, REDUCE, REDUCE, *experts, SEND] * 4, SCATTER, NORM] * 8}))
    assert (found[0x60], found[0x10]) == (Role.EXPERT, Role.TENSOR)


def test_a_group_of_one_is_not_tensor_parallel() -> None:
    found = roles_of(events_of({0: ITERATION * 8}), sizes={0x10: 1})
    assert found[0x10] is not Role.TENSOR


def test_gradients_of_experts_are_data_traffic() -> None:
    more = Call(Op.REDUCE_SCATTER, 50_000_000, 0x32)
    found = roles_of(events_of({0: [*MICRO_BATCH * 4, more, SCATTER, GATHER, NORM] * 8}))
    assert (found[0x30], found[0x32]) == (Role.DATA, Role.DATA)


@pytest.mark.parametrize("source", ["ring", "text-hash"])
def test_keys_and_values_gathered_by_a_named_group_are_context_traffic(source: str) -> None:
    # One layer gathers as often as its tensor group reduces: only where the calls lie tells them apart.
    job = {"tp": 2, "pp": 2, "cp": 2, "dp": 2, "micro_batches": 4, "layers_per_stage": 2, "iterations": 6}
    scenario = Scenario.model_validate({**job, "context_parallel_comm": "all_gather"})
    resolved = resolve(observe(simulate(scenario).trace, source))
    assert resolved.layout is not None
    assert resolved.layout.cp == 2
    pair = next(c.id for c in resolved.trace.communicators if c.members == (0, 2))
    assert resolved.trace.events.comm is not None
    rows = (resolved.trace.events.rank == 0) & (resolved.trace.events.comm == pair)
    assert set(resolved.role[rows].tolist()) == {Role.CONTEXT}


# --- groups ---


def groups_of(layout: ParallelLayout) -> list[Group]:
    roles = (
        (Axis.TENSOR, Role.TENSOR, 4000),
        (Axis.PIPELINE, Role.PIPELINE, 300),
        (Axis.DATA, Role.DATA, 20),
    )
    return [
        Group(tuple(int(rank) for rank in sorted(group)), role, calls)
        for axis, role, calls in roles
        for group in layout.groups(axis)
        if len(group) > 1
    ]


def test_of_equals_the_one_with_fewer_assumptions_wins() -> None:
    layout = ParallelLayout(tp=2, pp=2, dp=4)
    found = fit_layouts(groups_of(layout), 16, np.arange(16, dtype=np.int32))[0].layout
    assert (found.cp, found.ep, found.order) == (1, 1, layout.order)


def test_a_busy_tensor_group_does_not_drown_the_others() -> None:
    """tp 2 pp 2 and tp 2 dp 2 share all tensor groups; the few pipeline groups decide."""
    for layout in (ParallelLayout(tp=2, pp=4, dp=2), ParallelLayout(tp=2, pp=2, dp=4)):
        found = fit_layouts(groups_of(layout), 16, np.arange(16, dtype=np.int32))[0].layout
        assert (found.tp, found.pp, found.dp) == (2, layout.pp, layout.dp)


def test_one_stray_group_lowers_the_score_only() -> None:
    groups = [*groups_of(ParallelLayout(tp=2, pp=2, dp=2)), Group((0, 3), Role.TENSOR, 10)]
    best = fit_layouts(groups, 8, np.arange(8, dtype=np.int32))[0]
    assert (best.layout.tp, best.layout.pp, best.layout.dp) == (2, 2, 2)
    assert 0.9 < best.score < 1.0


def test_nothing_is_said_from_nothing() -> None:
    assert fit_layouts([], 8, np.arange(8, dtype=np.int32)) == []


# --- times ---


@pytest.mark.parametrize(
    ("first", "other", "depth", "world", "expected"),
    [
        ((0, 1), (2, 3, 4, 5, 6, 7), 4, 8, (2, 4)),
        ((0, 1), (2, 3), None, 8, (2, 4)),  # GPipe: the depth does not show, the boundary does
        ((0,), (2, 4, 6), 4, 8, (2, 4)),  # rank 1 is missing; four stages of eight ranks
        ((0,), (4, 6), 4, 8, None),  # the boundary is anywhere from 1 to 4
        ((), (2, 3), None, 4, None),
        ((0, 1), (), None, 2, None),
        ((0, 1, 2), (3, 4), None, 8, None),  # three is no part of eight
        ((0, 1, 2, 3), (4, 5, 6), 3, 16, (4, 4)),  # interleaved stages send one less before they receive
    ],
)
def test_the_ends_of_the_pipeline_tell_its_size(
    first: tuple[int, ...],
    other: tuple[int, ...],
    depth: int | None,
    world: int,
    expected: tuple[int, int] | None,
) -> None:
    assert Ends(first, other, depth).stage_size(world) == expected


def undeclared(trace: Trace, source: str) -> Trace:
    """A simulated trace as a source sees it, without what the scenario declares."""
    return replace(observe(trace, source), job=JobConfig())


JOB = {"micro_batches": 8, "layers_per_stage": 2, "iterations": 8, "seed": 5}


@pytest.mark.parametrize(
    "sizes",
    [
        {"tp": 2, "pp": 4, "dp": 1},
        {"tp": 2, "pp": 2, "dp": 4},
        {"tp": 4, "pp": 2, "dp": 2},
        {"tp": 1, "pp": 4, "dp": 2},
        {"tp": 2, "pp": 3, "dp": 2, "schedule": "gpipe"},
    ],
)
@pytest.mark.parametrize("source", ["text", "text-hash", "ring"])
def test_layouts_of_simulated_jobs_are_found(sizes: dict[str, object], source: str) -> None:
    scenario = Scenario.model_validate({**JOB, **sizes})
    resolved = resolve(undeclared(simulate(scenario).trace, source))
    assert resolved.layout is not None
    assert (resolved.layout.tp, resolved.layout.pp, resolved.layout.dp) == (
        scenario.tp,
        scenario.pp,
        scenario.dp,
    )
    assert resolved.layout_source == "inferred"
    axes = {comm.axis for comm in resolved.trace.communicators}
    assert Axis.PIPELINE in axes
    assert Axis.TENSOR in axes or scenario.tp == 1
    for comm in resolved.trace.communicators:
        if comm.axis in (Axis.TENSOR, Axis.PIPELINE) and comm.members:
            assert comm.members in {tuple(sorted(g.tolist())) for g in scenario.layout.groups(comm.axis)}


def test_replicas_are_looser_than_members() -> None:
    """The same times with all ranks as tight as members: nothing tells groups apart, and nothing is said."""
    scenario = Scenario.model_validate({**JOB, "tp": 2, "pp": 2, "dp": 2})
    trace = undeclared(simulate(scenario).trace, "text")
    resolved = resolve(trace)
    tensor = np.flatnonzero(resolved.role == Role.TENSOR)
    assert len(tensor)
    channels, it = resolved.channels, resolved.iterations
    assert it is not None
    role = np.zeros(len(channels), np.uint8)
    role[channels.of_event] = resolved.role
    assert coupling.tensor_size(trace.events, channels, role, 4, False) == 2
    even = trace.events.with_columns(enqueue=trace.events.seq * 1_000_000)
    assert coupling.tensor_size(even, channels, role, 4, False) is None
    assert (
        coupling.tensor_size(even, channels, role, 4, True) == 4
    )  # no replicas: all of a stage are one group


@pytest.mark.parametrize(
    ("looseness", "size"),
    [
        ([50, 120, 55, 125, 52, 118, 50], 2),
        ([50, 60, 55, 125, 52, 48, 50], 4),
        # The third group waits for its second member: 140 ms from the others, and further from itself than
        # replicas in step.
        ([50, 120, 55, 140_000, 300, 140_000, 50], 2),
        ([50, 60, 55, 90_000, 52, 300, 50], 4),
        ([50, 60, 55, 52, 49, 61, 50], None),
        ([50, 120, 55, 56, 52, 118, 50], None),
    ],
)
def test_boundaries_are_looser_than_the_joints_beside_them(looseness: list[int], size: int | None) -> None:
    assert coupling._size_of_groups({i: 1e3 * us for i, us in enumerate(looseness)}, 8) == size


def test_a_slow_member_hides_no_groups() -> None:
    fault = {"fault": "slow_gpu", "rank": 5, "factor": 3.0}
    scenario = Scenario.model_validate({**JOB, "tp": 2, "pp": 2, "dp": 4, "faults": [fault]})
    resolved = resolve(undeclared(simulate(scenario).trace, "text"))
    assert resolved.layout is not None
    assert (resolved.layout.tp, resolved.layout.pp, resolved.layout.dp) == (2, 2, 4)


# --- declarations ---


def declared(**values: int) -> JobConfig:
    return JobConfig(**{name: Sourced(value, f"job.yaml: {name}") for name, value in values.items()})  # type: ignore[arg-type]


def test_a_declaration_is_completed_from_the_world() -> None:
    layout = declared_layout(declared(tensor=2, pipeline=2), 16)
    assert layout is not None
    assert layout.dp == 4
    assert declared_layout(JobConfig(), 16) is None
    assert declared_layout(declared(tensor=3), 16) is None
    assert declared_layout(declared(tensor=2, expert=3), 16) is None


@pytest.fixture(scope="module")
def small() -> Trace:
    scenario = Scenario.model_validate({**JOB, "tp": 2, "pp": 2, "dp": 2})
    return undeclared(simulate(scenario).trace, "text-hash")


def test_a_declaration_that_the_calls_contradict_is_a_warning(small: Trace) -> None:
    resolved = resolve(replace(small, job=declared(tensor=4, pipeline=2)))
    assert resolved.layout is not None
    assert (resolved.layout.tp, resolved.layout_source) == (2, "inferred")
    assert [warning.split(",")[0] for warning in resolved.warnings] == ["job.yaml: tensor says 4"]
    assert "the log's tensor groups have 2 members each (checked on 8 ranks)" in resolved.warnings[0]


def test_a_declaration_that_the_calls_bear_out_is_taken(small: Trace) -> None:
    resolved = resolve(replace(small, job=declared(tensor=2, pipeline=2, data=2)))
    assert (resolved.layout_source, resolved.warnings) == ("config", ())


def test_a_declaration_that_cannot_be_checked_says_so() -> None:
    events = events_of({0: ITERATION * 6})
    resolved = resolve(Trace(events, job=declared(world_size=8, tensor=2, pipeline=4)))
    assert resolved.layout is not None
    assert (resolved.layout.tp, resolved.layout.pp, resolved.layout_source) == (2, 4, "config")
    assert any("could not be checked" in warning for warning in resolved.warnings)


def test_ranks_without_a_log_are_missing(small: Trace) -> None:
    kept = small.events.take(~np.isin(small.events.rank, (3, 6)))
    resolved = resolve(replace(small, events=kept, job=declared(world_size=8)))
    assert resolved.trace.coverage.ranks_missing == (3, 6)
    assert resolved.layout is not None
    assert (resolved.layout.tp, resolved.layout.pp) == (2, 2)
