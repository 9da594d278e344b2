"""Where a training was, as its own process said: steps of the optimizer, micro-batches forward and backward.

Unlike what is inferred from calls these are numbers of the job itself. They come from the hook of
torch.distributed (``collect.torch_marks``), as far as the framework lets micro-batches be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class MarkKind(IntEnum):
    """What happened; as in the ring."""

    STEP = 1
    """the optimizer's step ``number`` is done"""
    FORWARD = 2
    """micro-batch ``number`` of step ``step`` begins its forward"""
    BACKWARD = 3


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """rank int32, time int64 ns, kind uint8 (``MarkKind``), number int64, step int64; one entry a mark, those
    of a rank in order of time."""

    rank: NDArray[np.int32]
    time: NDArray[np.int64]
    kind: NDArray[np.uint8]
    number: NDArray[np.int64]
    step: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rank)

    def of_rank(self, rank: int) -> Marks:
        """Those of one rank."""
        rows = np.flatnonzero(self.rank == rank)
        return Marks(self.rank[rows], self.time[rows], self.kind[rows], self.number[rows], self.step[rows])

    @staticmethod
    def concatenate(parts: Sequence[Marks]) -> Marks:
        """One after the other."""
        return Marks(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("rank", "time", "kind", "number", "step")
            )
        )


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """A process group that torch has and whose calls others record: its name and members, ascending."""

    name: str
    members: tuple[int, ...]
