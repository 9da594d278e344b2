"""Where recordings end: after an iteration or inside one, with the others or long before them.

A job that ends leaves every rank at the end of an iteration. Whether a recording that ends inside of one was
cut there, or the job stands there, its calls alone do not say.

In a synchronous job nobody gets far without anybody: when a rank stops, all others come to stand within the
iteration, because they need its gradients. So a rank whose calls end while the others go through further
iterations cannot have stopped: its recording has. Nor can a rank of a pipeline have stopped in the last
iteration if all others ended that one to its last call: their hosts wait for each other on the way there.
Such ranks are left out where the end of calls is evidence.

Does not judge hangs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.anchors import LIGHT_COUNT
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.roles import Role
from megatrace.model.events import UNSEEN
from megatrace.units import format_ranks

# Iterations that end elsewhere after a rank's last call. A host runs ahead of its device, so one more
# gradient synchronisation may be enqueued without the rank; for the one after that its gradients must have
# come.
IMPOSSIBLE = 2
# Share of all ranks that may have been cut within the last iteration: the others must be the rule.
FEW = 0.25


def early_ends(resolved: Resolved) -> tuple[int, ...]:
    """Ranks, ascending, after whose last call others went through two more iterations, or to the end of one.

    Empty where there are no iterations to count.
    """
    it = resolved.iterations
    if it is None:
        return ()
    ranks, bounds = resolved.trace.events.offsets()
    last_call = resolved.trace.events.enqueue[bounds[1:] - 1]
    times = np.sort(it.times(resolved.trace.events), axis=0)  # NaN last
    seen = np.sum(~np.isnan(times), axis=0)
    middle = times[np.maximum(seen - 1, 0) // 2, np.arange(it.count)]
    ended = np.sort(middle[~np.isnan(middle)])
    passed = len(ended) - np.searchsorted(ended, last_call, "right")
    early = passed >= IMPOSSIBLE
    last = passed >= 1
    if (last & ~early).any() and last.sum() <= FEW * len(ranks) and _through(resolved, ranks[last]):
        early = last
    return _listed(ranks[early])


def _through(resolved: Resolved, lacking: NDArray[np.int32]) -> bool:
    """Whether all ranks but these got to the end of an iteration on which hosts of a pipeline wait for all.

    Hosts of other jobs run ahead of their devices to the end: their calls prove nothing.
    """
    events = resolved.trace.events
    pipeline = bool((resolved.role == Role.PIPELINE).any())
    others = ~np.isin(events.rank, lacking)
    pending = events.end is not None and bool((events.end[others] == UNSEEN).any())
    return pipeline and not pending and bool(ended_normally(resolved, _listed(lacking)))


def _listed(ranks: NDArray[np.int32]) -> tuple[int, ...]:
    return tuple(int(rank) for rank in ranks)


COMPUTING = (Role.TENSOR, Role.PIPELINE, Role.CONTEXT, Role.EXPERT)
"""Roles of the calls of forwards and backwards."""


def ended_normally(resolved: Resolved, early: tuple[int, ...]) -> bool | None:
    """Whether every rank's calls end after an iteration: all that came between two iterations before has come
    again, but for one record of a few ranks, and nothing of the next forward.

    ``early``: ranks whose logs were cut before that. None where too few iterations were seen to tell.
    """
    it, events = resolved.iterations, resolved.trace.events
    if it is None:
        return None
    begun = np.cumsum(_begins(resolved))
    lacking: list[int] = []
    for rank in it.ranks[~np.isin(it.ranks, early)]:
        anchors = it.row[slice(*np.searchsorted(it.rank, [rank, rank + 1]))]
        stop = events.rows_of(int(rank)).stop
        # The row of the first call of a forward after each anchor but the last.
        first = np.searchsorted(begun, begun[anchors[:-1]], "right")
        between = first - anchors[:-1] - 1
        between = between[(first < anchors[1:]) & (first < stop)]
        after = int(stop - 1 - anchors[-1])
        if begun[stop - 1] > begun[anchors[-1]]:
            if not _interlude(np.diff(anchors), between, after):
                return False
        elif len(between):
            lacking.append(int(between.min()) - after)
    if not lacking:
        return None
    short = [number for number in lacking if number > 0]
    return not short or (max(short) == 1 and 2 * len(short) <= len(lacking))


def _interlude(lengths: NDArray[np.int64], between: NDArray[np.int64], after: int) -> bool:
    """Whether the calls after the last anchor are an evaluation from its beginning to its end: an iteration
    (``lengths`` in calls) was once longer than another by as much.

    ``between``: calls between an anchor and the next forward, more where logs were written.
    """
    if not len(between) or len(lengths) < 2:
        return False
    seen = np.unique(lengths)[-KINDS:]
    longer = np.unique(seen[:, None] - seen)
    longer = longer[longer > EVALUATION * int(np.median(lengths))]
    extra = after - np.unique(between)
    return bool((np.abs(longer[:, None] - extra) <= 1).any())


KINDS = 64
"""Lengths of iterations that are compared: plain ones, and those with logs, checkpoints and evaluations."""
EVALUATION = 0.125
"""Of an iteration's calls: an evaluation has all forwards of an iteration, logs and checkpoints few calls."""


def _begins(resolved: Resolved) -> NDArray[np.bool_]:
    """bool [events]: calls of forwards and backwards; heavy ones after light ones where roles do not tell."""
    computing = np.isin(resolved.role, COMPUTING)
    count = resolved.trace.events.count
    if computing.any() or count is None:
        return computing
    heavy = count > LIGHT_COUNT
    return np.asarray(heavy & ~np.concatenate([[True], heavy[:-1]]))


def early_note(resolved: Resolved, early: tuple[int, ...]) -> str:
    """One sentence for a person about the ranks that ``early_ends`` found."""
    events = resolved.trace.events
    last = max(int(events.enqueue[events.rows_of(rank).stop - 1]) for rank in early)
    quiet = (int(events.enqueue.max()) - last) / 1e9
    whose = (
        f"the log of rank {early[0]} ends"
        if len(early) == 1
        else f"the logs of ranks {format_ranks(early)} end"
    )
    return f"{whose} {quiet:.1f} s before the others', which went on to an iteration's end: cut, not stopped"
