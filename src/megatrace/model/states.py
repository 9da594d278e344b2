"""What sources say that know how far ranks got, but not call by call: counters, open calls, dumps.

A flight recorder keeps a few of a rank's calls and counts all of them; NCCL RAS only counts. Counters tell
what a rank has enqueued, started and completed on a communicator even where the calls themselves are no
longer recorded, and for a rank of which no call is left they are all there is.

Does not judge what a lag means, and holds no times of calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import NO_SEQ, Op

I4 = NDArray[np.int32]
I8 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """How far ranks got on communicators, one row a (rank, communicator), in any order.

    rank, comm   int32: global rank, index into ``Trace.communicators``
    enqueued     int64: last sequence number enqueued; ``started`` and ``completed`` likewise (``NO_SEQ``
                 none, or not observable)
    """

    rank: I4
    comm: I4
    enqueued: I8
    started: I8
    completed: I8

    def __post_init__(self) -> None:
        sizes = {len(self.rank), len(self.comm), len(self.enqueued), len(self.started), len(self.completed)}
        if len(sizes) > 1:
            raise ValueError(f"positions have columns of different lengths: {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.rank)

    @staticmethod
    def of(rows: list[tuple[int, int, int, int, int]]) -> Positions:
        """From (rank, communicator, enqueued, started, completed)."""
        table = np.asarray(rows, np.int64).reshape(-1, 5)
        return Positions(
            table[:, 0].astype(np.int32), table[:, 1].astype(np.int32), table[:, 2], table[:, 3], table[:, 4]
        )

    @staticmethod
    def concatenate(parts: list[Positions]) -> Positions:
        """All rows."""
        columns = ("rank", "comm", "enqueued", "started", "completed")
        return Positions(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


@dataclass(frozen=True, slots=True)
class CallNote:
    """What a source says of one open call beyond its columns.

    ``shape``: "all_to_all [2048, 5120] BFloat16"; ``frame``: the place in the user's program, "" unknown.
    """

    rank: int
    comm: int
    op: Op
    seq: int = NO_SEQ
    shape: str = ""
    frame: str = ""


@dataclass(frozen=True, slots=True)
class Dumped:
    """What is known of when dumps were made; they carry no time of their own.

    by        ns: no later than this (the time of the last file), None not known
    timeout   ns: after so long a watchdog makes a dump (the shortest of the open calls), None not known
    fired     a log of the same job says that a watchdog gave a call up: the job stood
    """

    by: int | None = None
    timeout: int | None = None
    fired: bool = False
