"""Names of ranks in what RAS says: the job's own ranks where they follow, else communicator and process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from megatrace.model.ras import Process, RasCommunicator, RasSnapshot
from megatrace.model.trace import RankPlace
from megatrace.units import say_ranks

LISTED = 3
"""Ranks that are named with their processes; of more only the numbers."""


class Names:
    """Names for one snapshot."""

    def __init__(self, snapshot: RasSnapshot) -> None:
        self.snapshot = snapshot
        self._rank: dict[Process, int] = {}
        self._process: dict[int, Process] = {}
        for communicator in snapshot.communicators:
            if snapshot.global_ranks(communicator):
                for rank, process in communicator.places:
                    self._rank.setdefault(process, rank)
                    self._process.setdefault(rank, process)

    def global_rank(self, communicator: RasCommunicator | None, rank: int) -> int | None:
        """The job's rank of a communicator's rank, None where it does not follow."""
        if communicator is None or self.snapshot.global_ranks(communicator):
            return rank
        process = communicator.process_of(rank)
        return None if process is None else self._rank.get(process)

    def rank_of(self, process: Process) -> int | None:
        """The job's rank of a process with one GPU."""
        found = self._rank.get(process)
        if found is not None:
            return found
        same = [
            rank
            for other, rank in self._rank.items()
            if (other.host, other.pid) == (process.host, process.pid)
        ]
        return same[0] if len(same) == 1 else None

    def communicator(self, communicator: RasCommunicator) -> str:
        """ "communicator #0-0 (fa93dae0000b060b, 32 ranks)"."""
        name = " ".join(part for part in (communicator.name, f"({communicator.hash[:16]}") if part)
        return f"communicator {name}, {communicator.size} ranks)"

    def ranks(self, communicator: RasCommunicator, ranks: Sequence[int]) -> str:
        """ "rank 12 (10.20.1.132 GPU 4)", or "ranks 0-11, 14-31"; with the communicator where ranks are its
        own."""
        known = [self.global_rank(communicator, rank) for rank in ranks]
        own = any(rank is None for rank in known)
        said = say_ranks(ranks if own else [rank for rank in known if rank is not None])
        if own:
            said = f"{said} of {self.communicator(communicator)}"
        places = [self.place(communicator.process_of(rank)) for rank in ranks[:LISTED]]
        if len(ranks) > LISTED or not all(places):
            return said
        return f"{said} ({'; '.join(places)})"

    @staticmethod
    def place(process: Process | None) -> str:
        """ "10.20.1.3 GPU 1, process 1524345"."""
        if process is None or process.host is None:
            return ""
        gpu = "" if process.gpu is None else f" GPU {process.gpu}"
        pid = "" if process.pid is None else f", process {process.pid}"
        return f"{process.host}{gpu}{pid}"

    def places(self, world: int) -> tuple[RankPlace, ...]:
        """Where each rank runs; empty where nothing is known."""
        if not self._process:
            return ()
        found = []
        for rank in range(world):
            process = self._process.get(rank)
            if process is None:
                found.append(RankPlace(rank))
            else:
                gpu = None if process.gpu is None else f"gpu{process.gpu.split()[0]}"
                found.append(RankPlace(rank, process.host, None, gpu))
        return tuple(found)


def nodes_of(processes: Iterable[Process | None]) -> tuple[str, ...]:
    """The nodes of processes, sorted."""
    return tuple(sorted({one.host for one in processes if one is not None and one.host is not None}))
