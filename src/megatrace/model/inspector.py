"""Completed collectives as NCCL's Inspector reports them: one row a rank and call, with how long it took
there.

The time of a call on a rank runs from when its kernel starts to when it ends, so it holds the waiting for the
last rank to come. Only what completed is there, and by default nothing below 8 KiB.

Does not judge: ``analysis.inspector``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class InspectorComm:
    """A communicator: ``size`` ranks on ``nodes`` nodes; ``places`` (rank, host, process id) of those
    seen."""

    hash: str
    name: str
    size: int
    nodes: int | None
    places: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class InspectorCalls:
    """All rows, columns of one length, in any order.

    comm int32 index into ``comms``; rank int32 within it; seq int64 of (communicator, operation); op int32
    index into ``ops``; nbytes int64; exec_us float64; dumped int64 ns, when the row was written (0
    unknown). ``timing`` the sources of times met ("kernel_gpu", …); ``messages`` rows of Sends and Recvs,
    which are only counted; ``dropped`` records that the Inspector itself says it lost.
    """

    comms: tuple[InspectorComm, ...]
    ops: tuple[str, ...]
    comm: NDArray[np.int32]
    rank: NDArray[np.int32]
    seq: NDArray[np.int64]
    op: NDArray[np.int32]
    nbytes: NDArray[np.int64]
    exec_us: NDArray[np.float64]
    dumped: NDArray[np.int64]
    timing: tuple[str, ...] = ()
    messages: int = 0
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.comm)
