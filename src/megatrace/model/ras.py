"""What NCCL's RAS says of a job at one moment: who answers, and how many collectives each rank has launched.

Ranks here are ranks of a communicator, as RAS prints them; ``RasSnapshot.global_ranks`` says where they are
the job's own. RAS counts launches, not completions, has no messages between two ranks and no order between
operations of different kinds.

Does not judge: a lead of one operation is as normal as a hang (``analysis.ras``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Absence(Enum):
    """Why RAS has no data of a rank."""

    DEAD = "dead"
    """Considered dead: it could not be reached for about a minute."""
    UNRESPONSIVE = "unresponsive"
    """It did not answer this query."""
    NO_COMMUNICATOR = "no communicator"
    """Its process answered, and knows no such communicator."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the job: node address, process id, its GPU or GPUs as printed."""

    host: str | None = None
    pid: int | None = None
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank of which RAS has no data."""

    rank: int
    process: Process
    why: Absence


@dataclass(frozen=True, slots=True)
class Tally:
    """Ranks of a communicator that stand alike.

    ``what`` the operation ("AllGather"), or what is compared otherwise ("status", "initialization error",
    "asynchronous error"); ``value`` a count for operations; ``text`` a status or an error; ``ranks`` None
    where RAS does not list them and they do not follow from the others.
    """

    what: str
    value: int
    count: int
    ranks: tuple[int, ...] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One communicator. ``size`` ranks it has; ``name`` as printed ("#0-0"); ``tallies`` only where ranks
    differ, or errors; ``counts`` launched operations by name where all ranks agree (JSON alone says)."""

    hash: str
    size: int
    name: str = ""
    nodes: int | None = None
    status: str = ""
    tallies: tuple[Tally, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    missing: tuple[Missing, ...] = ()
    places: tuple[tuple[int, Process], ...] = ()

    def process_of(self, rank: int) -> Process | None:
        """Who has a rank, None where RAS does not say."""
        return next((process for number, process in self.places if number == rank), None)


@dataclass(frozen=True, slots=True)
class RasSnapshot:
    """The answer to one query. ``taken_at`` ns since the epoch, None where it has no time; ``groups`` rows of
    the summary: (communicators, ranks of each, status, errors)."""

    source: str
    version: str = ""
    taken_at: int | None = None
    nodes: int | None = None
    processes: int | None = None
    gpus: int | None = None
    communicators: tuple[RasCommunicator, ...] = ()
    groups: tuple[tuple[int, int, str, str], ...] = ()
    dead: tuple[Process, ...] = ()
    unresponsive: tuple[Process, ...] = ()
    timeouts: int = 0

    @property
    def world(self) -> int:
        """Ranks of the job: GPUs that RAS knows of, at least those of its largest communicator."""
        sizes = [communicator.size for communicator in self.communicators]
        return max([*sizes, *(size for _, size, _, _ in self.groups), self.gpus or 0])

    def global_ranks(self, communicator: RasCommunicator) -> bool:
        """Whether the ranks of a communicator are those of the job: it spans all of it."""
        return 0 < communicator.size == self.world
