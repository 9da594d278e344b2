"""Micro-batch and phase of the calls of an iteration without a pipeline.

No Send cuts such an iteration, so its calls have to do. Tensor-parallel calls repeat with every micro-batch,
and the vocabulary-parallel loss, reductions smaller than the layers' own, ends each forward. Sharded
parameters (FSDP, ZeRO) are gathered in forward and backward, and gradients scattered in the backward alone.
Plain data parallelism calls in the last backward only. Where none of this fits, nothing is said.

Does not look at times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.anchors import LIGHT_COUNT
from megatrace.analysis.roles import Role
from megatrace.analysis.templates import CallString
from megatrace.model.events import Op
from megatrace.model.schedule import Phase

SPARE = 2
"""Calls on the tensor channel after the last micro-batch: gradients of layer norms and of embeddings."""
BUCKET = 1 << 17
"""Elements of a gradient bucket at least: half of the smallest that PyTorch makes (1 MiB)."""


@dataclass(frozen=True, slots=True)
class FlatPlace:
    """What a call belongs to; None where its iteration does not tell."""

    phase: Phase | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class _Cut:
    """Calls (positions, ascending) of all micro-batches: ``period`` each, the first ``forward`` of them in
    the forward."""

    at: NDArray[np.intp]
    period: int
    forward: int


def flat_places(string: CallString) -> tuple[FlatPlace, ...]:
    """The place of each position of a string."""
    found = [FlatPlace()] * len(string.op)
    heavy = string.count > LIGHT_COUNT
    tensor = np.flatnonzero(heavy & (string.role == Role.TENSOR))
    if len(tensor):
        cut = _by_loss(string, tensor)
    elif (string.op[heavy] == Op.REDUCE_SCATTER).any():
        cut = _by_gradients(string, np.flatnonzero(heavy))
    else:
        return _last_backward(string, found)
    if cut is None:
        return tuple(found)
    for number, begin in enumerate(range(0, len(cut.at), cut.period)):
        halves = ((Phase.FORWARD, begin), (Phase.BACKWARD, begin + cut.forward))
        for phase, first in halves:
            found[int(cut.at[first]) :] = [FlatPlace(phase, number)] * (len(found) - int(cut.at[first]))
    return _ends(found, int(cut.at[0]), int(cut.at[-1]))


def _ends(found: list[FlatPlace], first: int, last: int) -> tuple[FlatPlace, ...]:
    found[:first] = [FlatPlace(Phase.OTHER)] * first
    found[last + 1 :] = [FlatPlace(Phase.SYNC)] * (len(found) - last - 1)
    return tuple(found)


def _last_backward(string: CallString, found: list[FlatPlace]) -> tuple[FlatPlace, ...]:
    """Gradients are reduced in the last backward; how many came before it, no call tells."""
    buckets = np.flatnonzero((string.op == Op.ALL_REDUCE) & (string.count >= BUCKET))
    if not len(buckets) or (string.count > LIGHT_COUNT).sum() > len(buckets):
        return tuple(found)
    first, last = int(buckets[0]), int(buckets[-1])
    found[first : last + 1] = [FlatPlace(Phase.BACKWARD)] * (last + 1 - first)
    return _ends(found, first, last)


def _period(keys: NDArray[np.int64]) -> int:
    """After how many calls the same ones come again, to the end but for a few; all of them where nothing
    repeats."""
    n = len(keys)
    for period in range(1, n // 2 + 1):
        whole = n - n % period
        if n % period <= SPARE and bool((keys[period:whole] == keys[: whole - period]).all()):
            return period
    return n


def _keys(string: CallString, at: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.asarray(string.count[at] * 16 + string.op[at], np.int64)


def _by_loss(string: CallString, at: NDArray[np.intp]) -> _Cut | None:
    period = _period(_keys(string, at))
    op, count = string.op[at[:period]], string.count[at[:period]]
    values, numbers = np.unique(count, return_counts=True)
    reduces = np.isin(op, (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER))
    loss = np.flatnonzero(reduces & (count < values[np.argmax(numbers)]))
    if not len(loss) or loss[-1] + 1 >= period:
        return None
    return _Cut(at[: len(at) - len(at) % period], period, int(loss[-1]) + 1)


def _by_gradients(string: CallString, at: NDArray[np.intp]) -> _Cut | None:
    at = at[np.isin(string.op[at], (Op.ALL_GATHER, Op.REDUCE_SCATTER))]
    period = _period(_keys(string, at))
    op = string.op[at[:period]]
    scatters, gathers = np.flatnonzero(op == Op.REDUCE_SCATTER), np.flatnonzero(op == Op.ALL_GATHER)
    if len(gathers) == 2 * len(scatters):  # gathered again in the backward
        forward = int(gathers[len(scatters)])
    elif len(gathers) == len(scatters):
        forward = int(scatters[0])
    else:
        return None
    return _Cut(at[: len(at) - len(at) % period], period, forward) if forward else None
