"""The calls and phases of a stretch of a job, for those who want to look at them one by one.

A report gets a ``Diagnosis`` and nothing else, and a diagnosis holds no calls: there may be a hundred
million. Whoever wants to draw them asks the analysis for a ``Timeline``: the calls of a window and of the
ranks that matter, cut to a size that a viewer opens, together with what the analysis made of them. What was
left out is said, so that nobody takes a missing call for one that was not made.

Decides nothing: which stretch is shown is chosen in ``analysis.timeline``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megatrace.model.events import Events

I8 = NDArray[np.int64]
I4 = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """Forwards and backwards, one entry a rank and task; all arrays of one length, times int64 ns.

    rank, stage, iteration, micro_batch   int32; micro_batch −1 where an iteration has no parts
    phase      uint8, index into ``tuple(Phase)``
    start      when its inputs were there;  end: when its output was, ``UNSEEN`` where it never was
    wait       int64 ns of waiting for its input before ``start``
    critical   bool: on the critical path of its iteration
    """

    rank: I4
    stage: I4
    iteration: I4
    micro_batch: I4
    phase: NDArray[np.uint8]
    start: I8
    end: I8
    wait: I8
    critical: NDArray[np.bool_]

    @staticmethod
    def empty() -> Tasks:
        """No tasks."""
        none4, none8 = np.empty(0, np.int32), np.empty(0, np.int64)
        return Tasks(
            none4, none4, none4, none4, np.empty(0, np.uint8), none8, none8, none8, np.empty(0, np.bool_)
        )

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A stretch of a job.

    start, end       ns, inclusive: what is shown
    events           its calls, rank-major;  ``communicators[i]`` names ``events.comm == i``, None unknown
    senders, receivers   int64 [n]: rows of ``events`` that are the two ends of one transfer
    tasks            forwards and backwards that touch the stretch
    iteration        int64 [k]: numbers;  iteration_start, iteration_end int64 [k] ns
    last_call        ns of the last call of each of ``ranks`` (int32 [r], ascending) in the whole recording
    note             "" where everything is shown, else one sentence on what is not
    """

    start: int
    end: int
    events: Events
    ranks: I4
    last_call: I8
    communicators: tuple[str | None, ...] = ()
    senders: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    receivers: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    tasks: Tasks = field(default_factory=Tasks.empty)
    iteration: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    iteration_start: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    iteration_end: I8 = field(default_factory=lambda: np.empty(0, np.int64))
    note: str = ""
