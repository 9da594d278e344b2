"""What an iteration would have cost without a fault: counterfactuals on the iteration graph.

``Costs`` holds what each place spent and what it normally spends; the difference is its excess. Seconds count
only as far as they lie on the critical path: ``with_work`` puts one place's excess into an otherwise
normal pipeline and reads how much longer the iteration becomes. A delay that a bubble absorbs costs nothing
and accuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.reductions import median
from megatrace.analysis.work import WorkTable
from megatrace.model.graph import IterationGraph
from megatrace.model.schedule import Schedule

F8 = NDArray[np.float64]

# Iterations whose work lies within 8 % of the quick fifth are a place's normal ones. Real jobs without a
# fault stay within 3 % (Megatron log: 1.60–1.62 s); a fault worth reporting costs at least 5 % of the
# iteration.
NORMAL_BAND = 1.08
QUICK_SHARE = 0.2
# Where taking the excess out makes the usual iteration shorter by more than this, undisturbed ones were too
# rare to be seen; below, the difference is that of two medians.
RARE = 0.03
# Share of a place's tasks that have to show, in some iteration, for what is seen of it to be its work.
WHOLE = 0.75
# From this many places that do the same work on, their median is a yardstick; of two, the quicker one is.
PEERS = 3


# A fault counts where it costs 5 % of the iteration (the scoring rule).
COUNTS = 0.05
# Linux lets a process wait for its turn about as long as this; where iterations are so short that it is 5 %
# of them, what any host meets would look like a fault.
SLICE_S = 0.003


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """K usable iterations of S stages × D replicas × M members × T tasks; seconds.

    iterations  int64 [K]: their numbers
    work        [K, S, D, M, T]: M = 1 where only the tensor group's work is known
    normal      like ``work``: what the place normally spends on the task
    comm        [K, S, D, T]: collectives inside a task, ``normal_comm`` likewise
    stagger     [K, S, D, T]: what a group takes while nobody in it or tied to it works
    transfer    [K, S, D, M, T]: from both sides ready to the input being there, ``normal_transfer`` likewise
    entry       [K, S, D, M]: lateness before the first task, against the stage's other ranks
    sync        [K, S, D, M]: gradient collectives after their last member came, ``normal_sync`` likewise
    calls       [S, T]: calls inside a task, 0 where none are made or seen
    measured    [K]: iteration time;  usual float: the median of the undisturbed ones
    quiet       bool [K]: iterations of usual length, for jobs whose work hides traffic: while everybody waits
                for one rank the others' traffic is hidden and their work looks short; else None
    """

    graph: IterationGraph
    iterations: NDArray[np.int64]
    work: F8
    normal: F8
    comm: F8
    normal_comm: F8
    stagger: F8
    transfer: F8
    normal_transfer: F8
    entry: F8
    sync: F8
    normal_sync: F8
    calls: F8
    measured: F8
    usual: float
    quiet: NDArray[np.bool_] | None = None

    @property
    def counts(self) -> float:
        """Seconds an iteration from which on a delay counts."""
        return max(COUNTS * self.usual, SLICE_S)

    @property
    def excess(self) -> F8:
        """[K, S, D, M]: work beyond normal, seconds an iteration."""
        return np.asarray((self.work - self.normal).sum(axis=-1))

    @property
    def excess_share(self) -> F8:
        """[K, S, D, M]: the same as a share of the normal work."""
        return np.asarray(self.excess / np.maximum(self.normal.sum(axis=-1), 1e-9))

    def makespan(self, work: F8, comm: F8, transfer: F8) -> F8:
        """[K]: length of the pipeline part of each iteration.

        A transfer occupies both its ends: Megatron's hosts wait for their Sends, so it counts as part of the
        task that it empties, and the next task of either side follows it.
        """
        duration = work.max(axis=3) + comm
        into = np.moveaxis(transfer.max(axis=3), 2, 3).reshape(len(duration), -1, duration.shape[2])
        receiver = self.graph.receiver
        out = np.where((receiver >= 0)[None, :, None], into[:, np.maximum(receiver, 0)], 0.0)
        k, s, d, t = duration.shape
        return np.asarray(self.graph.makespan(duration + np.moveaxis(out.reshape(k, s, t, d), 2, 3)))

    def ideal(self) -> F8:
        """[K]: makespan with everything normal."""
        return self.makespan(self.normal, self.normal_comm, self.normal_transfer)

    def with_work(self, chosen: NDArray[np.bool_]) -> F8:
        """[K]: makespan with everything normal but the work at the chosen places ([S, D, M])."""
        work = np.where(chosen[None, ..., None], self.work, self.normal)
        return self.makespan(work, self.normal_comm, self.normal_transfer)

    def with_transfer(self, chosen: NDArray[np.bool_]) -> F8:
        """[K]: makespan with everything normal but the transfers chosen by destination ([S, D, M, T])."""
        transfer = np.where(chosen[None], self.transfer, self.normal_transfer)
        return self.makespan(self.normal, self.normal_comm, transfer)

    def with_comm(self, chosen: NDArray[np.bool_]) -> F8:
        """[K]: makespan with everything normal but the collectives of the chosen groups ([S, D])."""
        comm = np.where(chosen[None, ..., None], self.comm, self.normal_comm)
        return self.makespan(self.normal, comm, self.normal_transfer)

    def relative_to(self, normal: F8) -> Costs:
        """The same with another idea of normal work."""
        return replace(self, normal=normal)


def tabulate_costs(table: WorkTable, schedule: Schedule) -> Costs | None:
    """Costs of the iterations in which at least half of the groups were seen; None where there are none."""
    known = ~np.isnan(table.group).any(axis=3)
    usable = known.mean(axis=(1, 2)) >= 0.5
    usable &= ~np.isnan(table.iteration)
    if not usable.any():
        return None
    # Waiting is estimated, and where calls of iterations overlap, too high: no work is less than none.
    seen = np.maximum(table.own if table.own is not None else table.group[:, :, :, None, :], 0.0)
    hidden = table.own is not None and schedule.total == 1
    quiet = quiet_iterations(table.iteration[usable]) if hidden else None
    work, normal = _known(seen[usable], normal_work(seen[usable], quiet))
    if table.own is None:
        work = _shared_out(work, normal, schedule)
    if table.comm is not None:
        cheapest = np.fmin.reduce(table.comm[usable], axis=3)  # the last member to come waits for nobody
        comm, normal_comm = _known(cheapest, quick_level(cheapest))
    else:
        comm = normal_comm = np.zeros((*work.shape[:3], work.shape[4]))
    # Clock offsets between nodes make single transfers look negative: they are bounded by 0. No Recv, no
    # transfer.
    seen = np.maximum(table.transfer[usable], 0.0)
    transfer, normal_transfer = _known(seen, normal_transfers(seen))
    entry = np.nan_to_num(table.entry[usable], nan=0.0)
    sync, normal_sync = _syncs(table, usable)
    if quiet is not None:
        # The one task of such a job has the gradients in it: what they take longer is no rank's own work.
        beyond = np.maximum(sync - np.minimum(sync, normal_sync), 0.0)[..., None]
        work = work - np.minimum(beyond, np.maximum(work - normal, 0.0))
    measured = table.iteration[usable]
    if table.own is None and schedule.total == 1 and table.grid.shape[2] == 1:
        work, entry = _lengthening(work, normal, entry, measured)
    costs = Costs(
        graph=IterationGraph.of(schedule),
        iterations=np.flatnonzero(usable),
        work=work,
        normal=normal,
        comm=comm,
        normal_comm=np.minimum(comm, normal_comm),
        stagger=np.zeros(comm.shape) if table.stagger is None else np.nan_to_num(table.stagger[usable]),
        transfer=transfer,
        normal_transfer=np.minimum(transfer, normal_transfer),
        entry=entry,
        sync=sync,
        normal_sync=np.minimum(sync, normal_sync),
        calls=table.calls,
        measured=measured,
        usual=usual_time(measured),
        quiet=quiet,
    )
    explained = costs.makespan(work, comm, transfer) - costs.ideal()
    without = usual_time(measured - np.maximum(explained, 0.0))
    return replace(costs, usual=without) if without < (1 - RARE) * costs.usual else costs


def _lengthening(work: F8, normal: F8, entry: F8, measured: F8) -> tuple[F8, F8]:
    """(work, entry) of hosts that run ahead of their devices, as far as iterations became longer with them.

    A host may be late for its device and still be ahead of it. What tells is the iteration against those in
    which the same host was not late; one that nearly always was has none to compare with.
    """
    excess = np.maximum((work - normal).sum(axis=-1), 0.0)  # [K, S, D, 1]
    late = excess + entry >= COUNTS / 2 * float(np.median(measured))
    in_time = np.where(late, np.nan, measured[:, None, None, None])
    longer = np.maximum(measured[:, None, None, None] - median(in_time, 0), 0.0)
    longer = np.where(late.mean(axis=0) <= 1 - QUICK_SHARE, longer, np.inf)
    kept = np.minimum(excess, longer) / np.maximum(excess, 1e-9)
    work = np.where(work > normal, normal + (work - normal) * kept[..., None], work)
    return work, np.minimum(entry, longer)


def _shared_out(work: F8, normal: F8, schedule: Schedule) -> F8:
    """Like ``work``: tasks that follow each other without a Send between share their time as they usually do.

    On the host only the whole of them shows: where the device lags, the calls of the second are made while
    the first still runs.
    """
    shared = work.copy()
    for stage in range(work.shape[1]):
        for run in _runs(schedule, stage):
            total = work[:, stage][..., run].sum(axis=-1, keepdims=True)
            usual = normal[:, stage][..., run]
            whole = usual.sum(axis=-1, keepdims=True)
            part = usual / np.maximum(whole, 1e-9)
            shared[:, stage][..., run] = np.where(whole > 0.0, total * part, work[:, stage][..., run])
    return np.asarray(shared)


def _runs(schedule: Schedule, stage: int) -> list[list[int]]:
    """Indices of tasks that a stage runs without a Send or Recv between, two or more each."""
    runs: list[list[int]] = [[]]
    task = 0
    for step in schedule.program(stage):
        if step.action.is_compute:
            runs[-1].append(task)
            task += 1
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _syncs(table: WorkTable, usable: NDArray[np.bool_]) -> tuple[F8, F8]:
    """(gradient collectives, what they normally take): own quick iterations, or the stage's quicker
    groups."""
    if table.sync is None:
        nothing = np.zeros((int(usable.sum()), *table.grid.shape))
        return nothing, nothing
    seen = table.sync[usable]
    k, s, d, m = seen.shape
    level = peer_normal(seen.reshape(k, s, d, m, 1))
    quick = np.broadcast_to(quick_level(seen), seen.shape)
    # A data group of all of a stage's ranks has only its past to be compared with; others have each other.
    return _known(seen, quick if level is None or m == 1 else np.fmin(quick, level[..., 0]))


def _known(values: F8, normal: F8) -> tuple[F8, F8]:
    """(values, normal) without NaN: what was not seen counts as normal, what has no normal (a place that was
    never seen whole) as its own, and what was never seen as nothing."""
    normal = np.broadcast_to(normal, values.shape)
    normal = np.nan_to_num(np.where(np.isnan(normal), values, normal), nan=0.0)
    return np.where(np.isnan(values), normal, values), normal


def quiet_iterations(measured: F8) -> NDArray[np.bool_]:
    """bool [K]: iterations within the band of the quick fifth."""
    return np.asarray(measured <= NORMAL_BAND * float(np.quantile(measured, QUICK_SHARE)), np.bool_)


def usual_time(measured: F8) -> float:
    """Seconds: the undisturbed iteration, as the median of those within the band of the quick fifth."""
    known = measured[~np.isnan(measured)]
    if len(known) == 0:
        return float("nan")
    quick = float(np.quantile(known, QUICK_SHARE))
    return float(np.median(known[known <= quick * NORMAL_BAND]))


def quick_level(values: F8) -> F8:
    """[1, ...]: what each place spends in its quick iterations: the median of its quick half; NaN never
    seen."""
    ordered = np.sort(values, axis=0)  # NaN last
    count = np.sum(~np.isnan(values), axis=0, keepdims=True)
    index = np.maximum((count + 1) // 2 - 1, 0) // 2
    return np.asarray(np.take_along_axis(ordered, index, axis=0))


def own_normal(work: F8, quiet: NDArray[np.bool_] | None = None) -> F8:
    """[1, S, D, M, T]: a place's median in its own undisturbed iterations; NaN where it was never seen
    whole.

    ``quiet`` bool [K]: which they are, where the work itself does not tell. A task that never shows (the last
    backward of a first stage without tensor groups, which no Send ends) does not make the others unknown.
    """
    if quiet is not None:
        return median(work[quiet], 0)[None]
    shown = ~np.isnan(work).all(axis=0)  # [S, D, M, T]
    total = np.where(shown, work, 0.0).sum(axis=-1)
    total = np.where(shown.mean(axis=-1) >= WHOLE, total, np.nan)
    ordered = np.sort(total, axis=0)
    count = np.sum(~np.isnan(total), axis=0, keepdims=True)
    quick = np.take_along_axis(ordered, np.maximum((count * QUICK_SHARE).astype(np.int64), 0), axis=0)
    undisturbed = total <= quick * NORMAL_BAND
    return median(np.where(undisturbed[..., None], work, np.nan), 0)[None]


def peer_normal(work: F8) -> F8 | None:
    """[K, S, 1, 1, T]: the median of all places that do the same work in the same iteration; None for a lone
    one."""
    k, s, d, m, t = work.shape
    if d * m < 2:
        return None
    together = work.reshape(k, s, d * m, t)
    level = median(together, 2) if d * m >= PEERS else np.fmin.reduce(together, axis=2)
    return np.asarray(level)[:, :, None, None, :]


def normal_work(work: F8, quiet: NDArray[np.bool_] | None = None) -> F8:
    """The lower of a place's own past and its peers' present, like ``work``; ``quiet`` as ``own_normal``.

    While all wait for one rank the traffic of the others is hidden: what they work then is no measure for it.
    """
    own = np.broadcast_to(own_normal(work, quiet), work.shape)
    peers = peer_normal(work)
    if peers is not None and quiet is not None:
        peers = np.fmax(peers, median(peers[quiet], 0)[None])
    return np.array(own) if peers is None else np.fmin(own, peers)


def normal_transfers(transfer: F8) -> F8:
    """Like ``transfer``: the lower of a path's own quick iterations and the paths into the same task
    elsewhere.

    Paths inside a node are quicker than paths between nodes, so peers are those of the same stage, task and
    member: the same hop of another replica. Members of one group often sit on one node and share its hop.
    """
    own = np.broadcast_to(quick_level(transfer), transfer.shape)
    k, s, d, m, t = transfer.shape
    if d * m < 2:
        return np.array(own)
    together = transfer.reshape(k, s, d * m, t)
    level = median(together, 2) if d * m >= PEERS else np.fmin.reduce(together, axis=2)
    return np.fmin(own, level[:, :, None, None, :])
