"""Micro-batch and phase of calls without a pipeline, from strings written by hand."""

from __future__ import annotations

import numpy as np

from megatrace.analysis.flat_places import FlatPlace, flat_places
from megatrace.analysis.roles import Role
from megatrace.analysis.templates import CallString
from megatrace.model.events import Op
from megatrace.model.schedule import Phase

REDUCE, GATHER, SCATTER = Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER
LAYER, LOSS, BUCKET = 8_000_000, 4_096, 25_000_000


def placed(calls: list[tuple[Op, int]], role: Role = Role.DATA) -> list[str]:
    """The places of the calls, as F0, B1, other, sync and - for what is not known."""
    op, count = np.array([c[0] for c in calls], np.uint8), np.array([c[1] for c in calls], np.int64)
    roles = np.where(count > 1, role, Role.OTHER).astype(np.uint8)
    return [spelt(place) for place in flat_places(CallString(0, roles, op, count, flat=True))]


def spelt(place: FlatPlace) -> str:
    if place.phase in (Phase.FORWARD, Phase.BACKWARD):
        number = "" if place.micro_batch is None else str(place.micro_batch)
        return str(place.phase.value)[0].upper() + number
    return str(place.phase.value) if place.phase else "-"


def test_the_loss_ends_a_forward_of_tensor_ranks() -> None:
    forward, backward = [(REDUCE, LAYER)] * 4 + [(REDUCE, LOSS)] * 2, [(REDUCE, LAYER)] * 4
    flags = [(REDUCE, 1)] * 2
    # One more call on the tensor channel: gradients of the layer norms.
    calls = flags + (forward + backward) * 3 + [(REDUCE, 20_000)] + flags
    halves = [f"F{m}" for m in range(3)], [f"B{m}" for m in range(3)]
    expected = [name for f, b in zip(*halves, strict=True) for name in [f] * 6 + [b] * 4]
    assert placed(calls, Role.TENSOR) == ["other"] * 2 + expected + ["sync"] * 3


def test_one_micro_batch_is_not_taken_for_several() -> None:
    calls = [(REDUCE, LAYER)] * 4 + [(REDUCE, LOSS)] + [(REDUCE, LAYER)] * 4
    assert placed(calls, Role.TENSOR) == ["F0"] * 5 + ["B0"] * 4


def test_calls_that_are_all_alike_tell_nothing() -> None:
    assert set(placed([(REDUCE, LAYER)] * 12, Role.TENSOR)) == {"-"}
    assert set(placed([(GATHER, LAYER)] * 3 + [(SCATTER, LAYER)] * 2)) == {"-"}


def test_sharded_gradients_are_scattered_in_the_backward() -> None:
    gather, scatter = (GATHER, LAYER), (SCATTER, LAYER)
    again = [gather] * 3 + [gather, gather, scatter, gather, scatter, scatter]
    assert placed([*again, *again, (REDUCE, 1)]) == [
        *["F0"] * 3, *["B0"] * 6, *["F1"] * 3, *["B1"] * 6, "sync",
    ]  # fmt: skip
    kept = [gather] * 3 + [scatter] * 3
    assert placed([*kept, *kept]) == [*["F0"] * 3, *["B0"] * 3, *["F1"] * 3, *["B1"] * 3]


def test_plain_data_parallelism_calls_in_a_backward_of_unknown_number() -> None:
    assert placed([(REDUCE, 1), *[(REDUCE, BUCKET)] * 3, (REDUCE, 1)]) == ["other", "B", "B", "B", "sync"]
    # Statistics of batch norms are reduced in the forward as well: what is what, sizes do not tell.
    assert set(placed([(REDUCE, 2_049), *[(REDUCE, BUCKET)] * 3])) == {"-"}
