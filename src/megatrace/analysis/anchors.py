"""Where one iteration ends and the next begins: the anchor call of each rank.

The anchor is a call that happens once an iteration: the gradient synchronisation. It is found from the calls
alone: a signature (channel, operation, element count), or two in a row, such that between two occurrences
*every* heavy signature of the rank occurs, the same number of times in nearly every segment. A call of a
micro-batch fails (its segments lack the gradient synchronisation); a call of every tenth, logging iteration
is rarer than the anchor. Of what remains the most frequent wins, gradient reductions first.

Does not align ranks with each other; ``iterations`` numbers the anchors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import Events, Op

# A call of at most this many elements is bookkeeping (flags, norms, timers): logging changes how many there
# are, so they say nothing about the period. Megatron's are 1..96 elements; the smallest activation is
# thousands.
LIGHT_COUNT = 1024
# Share of segments that must look alike. Evaluation and checkpoints make outliers; 0.7 still leaves the loop
# the rule.
REGULAR = 0.7
# A heavy signature belongs to the loop if its occurrences span this share of the rank's calls; start-up does
# not.
SPANNING = 0.5
# ... and if it occurs at least this often: once is not a loop.
RECURRING = 2
# Candidates this much rarer than the most frequent one that qualifies compete with it. A bookkeeping call may
# also be made by a checkpoint every few iterations: a rarer one that is more regular is the better anchor.
OFTEN = 0.9
LIGHT_OFTEN = 0.75
# Golden ratio and another odd 64-bit constant: they only have to spread the bits of small integers.
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class AnchorRule:
    """One signature, or two consecutive ones, that end an iteration on every rank of a class."""

    first: int
    second: int | None


def signatures(events: Events, ordinal: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [events]: one number per (channel ordinal within the rank's roles, op, count)."""
    count = events.count if events.count is not None else np.zeros(len(events), np.int64)
    # How many tokens go to which expert differs in every call: sizes of all-to-alls tell nothing apart.
    count = np.where(events.op == Op.ALL_TO_ALL, LIGHT_COUNT + 1, count)
    mixed = (count.astype(np.uint64) * np.uint64(16) + events.op) * _PRIME
    mixed ^= ordinal.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    return np.asarray(mixed.astype(np.int64))


def anchor_rows(events: Events, signature: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of the anchor calls of all ranks, ascending. Ranks with the same calls share one rule."""
    count = events.count if events.count is not None else np.full(len(events), LIGHT_COUNT + 1, np.int64)
    heavy = count > LIGHT_COUNT
    rows: list[NDArray[np.int64]] = []
    by_class: dict[int, AnchorRule | None] = {}
    ranks, bounds = events.offsets()
    for i in range(len(ranks)):
        part = slice(int(bounds[i]), int(bounds[i + 1]))
        key = _class_key(signature[part], heavy[part])
        rule = by_class.get(key)
        found = np.empty(0, np.int64) if rule is None else _apply(rule, signature[part])
        if rule is None or len(found) < 2:
            rule = find_rule(signature[part], heavy[part], events.op[part])
            by_class[key] = rule
            found = np.empty(0, np.int64) if rule is None else _apply(rule, signature[part])
        if rule is not None:
            # Start-up makes the same bookkeeping calls, before the first heavy call of the rank.
            rows.append(found[found >= np.argmax(heavy[part])] + part.start)
    return np.concatenate(rows) if rows else np.empty(0, np.int64)


def _class_key(signature: NDArray[np.int64], heavy: NDArray[np.bool_]) -> int:
    # Up to a few thousand calls are enough to see every heavy signature of the loop; the tail is the steady
    # state.
    tail = signature[-4096:][heavy[-4096:]]
    return hash(np.unique(tail).tobytes())


def _apply(rule: AnchorRule, signature: NDArray[np.int64]) -> NDArray[np.int64]:
    if rule.second is None:
        return np.flatnonzero(signature == rule.first)
    return np.flatnonzero((signature[:-1] == rule.first) & (signature[1:] == rule.second))


def find_rule(
    signature: NDArray[np.int64], heavy: NDArray[np.bool_], op: NDArray[np.uint8]
) -> AnchorRule | None:
    """The anchor of one rank's calls, or None where nothing repeats."""
    if len(signature) < 4:
        return None
    codes, inverse, counts = np.unique(signature, return_inverse=True, return_counts=True)
    is_heavy = np.zeros(len(codes), np.bool_)
    is_heavy[inverse[heavy]] = True
    if not is_heavy.any():
        is_heavy[:] = True
    is_heavy &= _recurring(inverse, counts)
    light = _light_per_call(inverse, counts, heavy)
    single = _best(_candidates(inverse, counts), inverse, counts, is_heavy, op, light)
    if single is not None:
        return AnchorRule(int(codes[inverse[single]]), None)
    pair_key = inverse[:-1].astype(np.int64) * len(codes) + inverse[1:]
    _, pair, pair_counts = np.unique(pair_key, return_inverse=True, return_counts=True)
    double = _best(_candidates(pair, pair_counts), inverse, counts, is_heavy, op, light)
    if double is None:
        return None
    return AnchorRule(int(codes[inverse[double]]), int(codes[inverse[double + 1]]))


def _light_per_call(
    inverse: NDArray[np.intp], counts: NDArray[np.intp], heavy: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """int64 [calls + 1]: bookkeeping calls (loss, norms, flags) that recur throughout, before each call.

    Every framework makes some once an iteration; gradient buckets and layers of equal size look periodic
    without.
    """
    recurring = _recurring(inverse, counts)[inverse] & ~heavy
    return np.concatenate([[0], np.cumsum(recurring)]).astype(np.int64)


def _recurring(inverse: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Codes that recur throughout: they must all be in one iteration."""
    n, rows = len(inverse), np.arange(len(inverse))
    first, last = np.full(len(counts), n), np.zeros(len(counts), np.int64)
    np.minimum.at(first, inverse, rows)
    np.maximum.at(last, inverse, rows)
    return np.asarray((counts >= RECURRING) & (last - first >= SPANNING * n), dtype=np.bool_)


def _candidates(inverse: NDArray[np.intp], counts: NDArray[np.intp]) -> Iterable[NDArray[np.int64]]:
    """Occurrences of each signature seen at least twice, most frequent first."""
    order = np.argsort(inverse, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])
    for code in np.argsort(-counts, kind="stable"):
        if counts[code] >= 2:
            yield order[starts[code] : starts[code + 1]]


def _best(
    candidates: Iterable[NDArray[np.int64]],
    inverse: NDArray[np.intp],
    counts: NDArray[np.intp],
    is_heavy: NDArray[np.bool_],
    op: NDArray[np.uint8],
    light: NDArray[np.int64],
) -> int | None:
    """A row of the anchor: of the most frequent candidate that qualifies."""
    best: tuple[tuple[float, ...], int, int] | None = None
    begin = int(np.argmax(is_heavy[inverse]))
    for occurrences in candidates:
        rows = occurrences[occurrences >= begin]  # start-up is no iteration
        if len(rows) < RECURRING:
            continue
        if best is not None and len(rows) < best[2] * (OFTEN if best[0][1] else LIGHT_OFTEN):
            break  # rarer than what already qualified: a logging or evaluation call
        if light[-1] >= RECURRING and float(np.median(np.diff(light[rows]))) < 1:
            continue  # a part of an iteration: most of its segments have no bookkeeping at all
        regular = _regularity(rows, inverse, counts, is_heavy)
        if regular < REGULAR:
            continue
        rank = (float(_preference(int(op[rows[0]]))), float(is_heavy[inverse[rows[0]]]), regular)
        if best is None or rank > best[0]:
            best = (rank, int(rows[0]), len(rows))
    return None if best is None else best[1]


def _preference(op: int) -> int:
    """Gradient reductions first: they end the backward; a parameter gather belongs to the next iteration."""
    return {Op.REDUCE_SCATTER: 3, Op.ALL_REDUCE: 2, Op.REDUCE: 1}.get(Op(op), 0)


def _regularity(
    rows: NDArray[np.int64], inverse: NDArray[np.intp], counts: NDArray[np.intp], is_heavy: NDArray[np.bool_]
) -> float:
    """Share of segments between occurrences with the usual number of every heavy signature; 0 if one is
    missing."""
    segments = len(rows) - 1
    heavy_codes = np.flatnonzero(is_heavy)
    if segments < 1 or not len(heavy_codes):
        return 0.0
    width = len(heavy_codes)
    column = np.full(len(counts), -1, np.int64)
    column[heavy_codes] = np.arange(width)
    inside = inverse[rows[0] + 1 : rows[-1] + 1]
    segment = np.searchsorted(rows[1:], np.arange(rows[0] + 1, rows[-1] + 1), "left")
    keep = column[inside] >= 0
    table = np.bincount(segment[keep] * width + column[inside][keep], minlength=segments * width)
    table = table.reshape(segments, width)
    usual = np.median(table, axis=0)
    if bool(np.any(usual < 1)):
        return 0.0
    return float(np.mean(np.all(table == usual, axis=1)))
