"""Places whose excess lengthens the iteration: the candidates among which ``slow`` finds the culprits.

A suspect is a set of places (one rank's or one tensor group's work, one edge's transfers, one group's
collectives) with the seconds that it alone would cost each iteration. Few places can have a large enough
excess, and only those are put through the counterfactual.

Does not judge: neither kinds nor windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs

F8 = NDArray[np.float64]

# Share of the iteration that opens an inspection: half of what counts.
LOOKS = 0.025
# Lateness below this share of what an iteration is longer for all is the spread of a common pause.
UNEVEN = 0.2
# Counterfactuals per trace. More places than that are not single culprits but a pattern of the whole job.
MOST = 64


Places: TypeAlias = tuple[tuple[int, int, int], ...]
"""(stage, replica, member) of each."""


class Cause(Enum):
    """What a suspect spent its excess on."""

    WORK = "work"
    TRANSFER = "transfer"
    COLLECTIVE = "collective"
    ENTRY = "entry"
    SYNC = "sync"


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """stage, replica, member (None = the whole group); ``feeder`` is the stage at the other end of a
    transfer. ``places`` (stage, replica, member): the members of a gradient collective (SYNC), together.

    lost  float64 [K]: seconds that its excess alone adds to each iteration
    """

    cause: Cause
    stage: int
    replica: int
    member: int | None
    feeder: int | None
    lost: F8
    places: Places = ()

    def affected(self, usual: float) -> NDArray[np.bool_]:
        """Iterations that it lengthens noticeably."""
        return np.asarray(self.lost >= LOOKS * usual, dtype=np.bool_)


def find_suspects(costs: Costs, batched: bool = False) -> list[Suspect]:
    """All suspects, most expensive first.

    ``batched``: hosts that wait for both neighbours at once are all that is seen of transfers.
    """
    ideal = costs.ideal()
    transfers = _by_transfer(costs, ideal)
    if batched:
        transfers = _without_echoes(transfers, costs.usual)
    found = _by_work(costs, ideal) + transfers + _by_collective(costs, ideal) + _by_sync(costs)
    found += _by_entry(costs)
    found.sort(key=lambda suspect: -float(suspect.lost.sum()))
    return found


def crowded(costs: Costs) -> NDArray[np.bool_]:
    """bool [S, D, M]: places whose work is noticeably above normal in some iteration."""
    return np.asarray((costs.excess >= LOOKS * costs.usual).any(axis=0), dtype=np.bool_)


def _by_work(costs: Costs, ideal: F8) -> list[Suspect]:
    places = np.argwhere(crowded(costs))
    weight = costs.excess.max(axis=0)[tuple(places.T)]
    found: list[Suspect] = []
    for place in places[np.argsort(-weight)][:MOST]:
        s, d, m = (int(i) for i in place)
        chosen = np.zeros(costs.work.shape[1:4], np.bool_)
        chosen[s, d, m] = True
        lost = costs.with_work(chosen) - ideal
        if lost.max() >= LOOKS * costs.usual:
            member = m if costs.work.shape[3] > 1 else None
            found.append(Suspect(Cause.WORK, s, d, member, None, lost))
    return found


def _by_transfer(costs: Costs, ideal: F8) -> list[Suspect]:
    excess = costs.transfer - costs.normal_transfer  # [K, S, D, M, T]
    stages, tasks = costs.graph.schedule.pp, costs.graph.tasks
    sender = costs.graph.sender.reshape(stages, tasks)
    feeder = np.where(sender >= 0, sender // tasks, -1)
    paths: list[tuple[float, int, int, int, int]] = []
    for s in range(stages):
        for source in np.unique(feeder[s][feeder[s] >= 0]):
            total = excess[:, s][..., feeder[s] == source].sum(axis=3).max(axis=0)  # [D, M]
            for d, m in np.argwhere(total >= LOOKS * costs.usual):
                paths.append((-float(total[d, m]), s, int(d), int(m), int(source)))
    found: list[Suspect] = []
    for _, s, d, m, source in sorted(paths)[:MOST]:
        chosen = np.zeros(costs.transfer.shape[1:], np.bool_)
        chosen[s, d, m, feeder[s] == source] = True
        lost = costs.with_transfer(chosen) - ideal
        if lost.max() >= LOOKS * costs.usual:
            found.append(Suspect(Cause.TRANSFER, s, d, m, source, lost))
    return found


def _without_echoes(paths: list[Suspect], usual: float) -> list[Suspect]:
    """Paths without those that only share a batch with a slow one.

    Both ends of a slow path wait for it before they take anything else from their batch, so that the inputs
    from their other neighbours look late, too. The slow path is the one of which both ends wait.
    """
    # Of each, who waits at its sender, at the same time.
    at_sender = [[other for other in paths if _sends_to(other, path, usual)] for path in paths]
    slow = [path for path, waiting in zip(paths, at_sender, strict=True) if waiting]

    def echo(path: Suspect) -> bool:
        return any(
            (path.replica, path.member) == (other.replica, other.member)
            and path.stage in (other.stage, other.feeder)
            and _at_once(path, other, usual)
            for other in slow
        )

    return [path for path in paths if path in slow or not echo(path)]


def _sends_to(receiver: Suspect, path: Suspect, usual: float) -> bool:
    """Whether the one that waits in ``receiver`` is the one that feeds ``path``."""
    here, sender = (
        (receiver.replica, receiver.member, receiver.stage),
        (path.replica, path.member, path.feeder),
    )
    return here == sender and _at_once(receiver, path, usual)


def _at_once(one: Suspect, other: Suspect, usual: float) -> bool:
    """Whether two are affected in the same iterations, by half or more of those of either."""
    first, second = one.affected(usual), other.affected(usual)
    return bool(2 * np.sum(first & second) >= np.sum(first | second) > 0)


def _by_entry(costs: Costs) -> list[Suspect]:
    """Ranks that come late to the calls before the first task: everybody waits for them there.

    A whole data group late together, or both ends of a pipeline, were held by a collective of their own:
    that is the network's business.
    """
    # Ranks that all save a checkpoint differ a little in how long they take.
    longer = (costs.measured - costs.usual)[:, None, None, None]
    late = np.where(costs.entry >= UNEVEN * longer, costs.entry, 0.0)
    noticed = late >= LOOKS * costs.usual
    found: list[Suspect] = []
    for places in _bound_together(noticed):
        index = tuple(np.asarray(places).T)
        together = _at(noticed, index).all(axis=1)
        lost = np.where(together, _at(late, index).min(axis=1), 0.0)
        found.append(_sync_suspect(places, lost))
        for s, d, m in places:
            late[together, s, d, m] = 0.0
    where = np.argwhere(late.max(axis=0) >= LOOKS * costs.usual)
    weight = late.max(axis=0)[tuple(where.T)]
    for place in where[np.argsort(-weight)][:MOST]:
        s, d, m = (int(i) for i in place)
        found.append(Suspect(Cause.ENTRY, s, d, m, None, np.maximum(late[:, s, d, m], 0.0)))
    return found


def _bound_together(noticed: NDArray[np.bool_]) -> list[Places]:
    """Data groups and pipeline ends of which all members were noticed in the same iteration, at least once.

    ``noticed`` bool [K, S, D, M].
    """
    _, stages, replicas, members = noticed.shape
    found: list[Places] = []
    if replicas > 1 and members > 1:
        for s, m in np.argwhere(noticed.all(axis=2).any(axis=0)):
            found.append(tuple((int(s), d, int(m)) for d in range(replicas)))
    if stages > 1:
        ends = noticed[:, 0] & noticed[:, -1]
        covered = {place for group in found for place in group}
        for d, m in np.argwhere(ends.any(axis=0)):
            places = ((0, int(d), int(m)), (stages - 1, int(d), int(m)))
            # One end in a slow data group explains its own lateness, not that of the other end.
            if not set(places) <= covered:
                found.append(places)
    return found


def _sync_suspect(places: Places, lost: F8) -> Suspect:
    stage, replica, member = places[0]
    return Suspect(Cause.SYNC, stage, replica, member, None, np.maximum(lost, 0.0), places)


def _by_sync(costs: Costs) -> list[Suspect]:
    """Groups whose gradient collectives take long after the last member has come."""
    excess = costs.sync - costs.normal_sync  # [K, S, D, M]
    noticed = excess >= LOOKS * costs.usual
    if not noticed.any():
        return []
    found: list[Suspect] = []
    groups = _bound_together(noticed)
    alone = np.asarray(noticed.any(axis=0))
    for places in groups:
        index = tuple(np.asarray(places).T)
        found.append(_sync_suspect(places, _at(excess, index).min(axis=1)))
        alone[index] = False
    if alone.any() and not groups:
        rest: Places = tuple((int(s), int(d), int(m)) for s, d, m in np.argwhere(alone))
        index = tuple(np.asarray(rest).T)
        # No whole group of those that are known was noticed: the data group of the first is as good a name.
        stage, replica, member = rest[0]
        lost = np.maximum(_at(excess, index).min(axis=1), 0.0)
        found.append(Suspect(Cause.SYNC, stage, replica, member, None, lost))
    return found


def _by_collective(costs: Costs, ideal: F8) -> list[Suspect]:
    excess = (costs.comm - costs.normal_comm).sum(axis=3)  # [K, S, D]
    places = np.argwhere((excess >= LOOKS * costs.usual).any(axis=0))
    weight = excess.max(axis=0)[tuple(places.T)]
    found: list[Suspect] = []
    for place in places[np.argsort(-weight)][:MOST]:
        s, d = int(place[0]), int(place[1])
        chosen = np.zeros(costs.comm.shape[1:3], np.bool_)
        chosen[s, d] = True
        lost = costs.with_comm(chosen) - ideal
        if lost.max() >= LOOKS * costs.usual:
            found.append(Suspect(Cause.COLLECTIVE, s, d, None, None, lost))
    return found


def _at(table: NDArray[Any], index: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
    """[K, places]: [K, S, D, M] at the places whose stages, replicas and members these are."""
    stages, replicas, members = index
    return np.asarray(table[:, stages, replicas, members])
