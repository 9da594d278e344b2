"""Who is behind in what RAS counts, and whether anything moved between two answers.

Counts are of launches. Hosts run ahead of each other, so a difference in one answer is as normal as it is
in a hang; the same difference in two answers, with no count anywhere moving, is not. Those with fewer
launches hold up the others: whoever is ahead waits for them. A rank that is behind in one communicator and
ahead in another waits itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatrace.model.ras import RasCommunicator, RasSnapshot, Tally

LEAST_APART = 1_000_000_000
"""ns. Two answers closer than that may both lie between two calls of a healthy job."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Members of one communicator launched different numbers of one operation.

    ``behind`` and ``ahead`` ranks of the communicator, None where RAS does not list them; ``lead`` operations
    between the last and the first.
    """

    communicator: RasCommunicator
    operation: str
    low: int
    high: int
    behind: tuple[int, ...] | None
    behind_count: int
    ahead: tuple[int, ...] | None
    ahead_count: int

    @property
    def lead(self) -> int:
        """By how many operations the first are ahead of the last."""
        return self.high - self.low


def lags_of(snapshot: RasSnapshot) -> list[Lag]:
    """All differences, the largest lead first."""
    found = [lag for item in snapshot.communicators for lag in _of_communicator(item)]
    return sorted(found, key=lambda lag: (-lag.lead, -lag.communicator.size, lag.communicator.name))


def operations(communicator: RasCommunicator) -> Iterator[tuple[str, list[Tally]]]:
    """(operation, its tallies) of those of which ranks launched different numbers."""
    named: dict[str, list[Tally]] = {}
    for tally in communicator.tallies:
        if not tally.text:
            named.setdefault(tally.what, []).append(tally)
    yield from named.items()


def _of_communicator(communicator: RasCommunicator) -> Iterator[Lag]:
    for operation, tallies in operations(communicator):
        high, low = max(tally.value for tally in tallies), min(tally.value for tally in tallies)
        if high == low:
            continue
        behind = [tally for tally in tallies if tally.value < high]
        ahead = [tally for tally in tallies if tally.value == high]
        yield Lag(
            communicator, operation, low, high, _ranks(behind), sum(tally.count for tally in behind),
            _ranks(ahead), sum(tally.count for tally in ahead),
        )  # fmt: skip


def _ranks(tallies: list[Tally]) -> tuple[int, ...] | None:
    if any(tally.ranks is None for tally in tallies):
        return None
    return tuple(sorted(rank for tally in tallies for rank in tally.ranks or ()))


def pure_laggards(lags: list[Lag]) -> list[tuple[Lag, tuple[int, ...]]]:
    """Each difference with those behind who are ahead of nobody elsewhere; as it is where all of them are."""
    leading = {
        process
        for lag in lags
        for rank in lag.ahead or ()
        if (process := lag.communicator.process_of(rank)) is not None
    }
    found = []
    for lag in lags:
        behind = lag.behind or ()
        pure = tuple(rank for rank in behind if lag.communicator.process_of(rank) not in leading)
        found.append((lag, pure))
    return found if any(pure for _, pure in found) else [(lag, lag.behind or ()) for lag in lags]


def moved(earlier: RasSnapshot, later: RasSnapshot) -> bool | None:
    """Whether any count changed between two answers; None where they show no count of one communicator."""
    before = {item.hash: item for item in earlier.communicators}
    common = [(before[item.hash], item) for item in later.communicators if item.hash in before]
    known = None
    for old, new in common:
        a, b = _counts(old), _counts(new)
        if not a and not b:
            continue
        if a != b:
            return True
        known = False
    return known


def _counts(communicator: RasCommunicator) -> set[tuple[str, int, int, tuple[int, ...] | None]]:
    tallies = {(t.what, t.value, t.count, t.ranks) for t in communicator.tallies if not t.text}
    return tallies | {(name, number, -1, None) for name, number in communicator.counts}


def apart(earlier: RasSnapshot, later: RasSnapshot) -> int | None:
    """ns between two answers, None where they carry no times."""
    if earlier.taken_at is None or later.taken_at is None:
        return None
    return later.taken_at - earlier.taken_at
