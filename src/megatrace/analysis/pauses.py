"""Iterations before which the whole job stood still for seconds: a checkpoint that takes too long.

Nobody works and nobody is late, but every few iterations the next one begins seconds after the last. Saving
takes time in every job: a pause that no healthy file system needs is a fault, a shorter one may be what this
job's checkpoints cost, and is noted as such. Where single ranks were late, their lateness is the cause and no
pause of all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.patterns import Pattern
from megatrace.analysis.suspects import LOOKS
from megatrace.model.finding import Kind, Severity

F8 = NDArray[np.float64]

# Writing a rank's share (some 10 GB) to a shared file system at a few GB/s, or copying it to host memory for
# writing later, takes up to 3 s; all wait for the slowest rank, which takes a tenth and more longer.
SECONDS = 3.5
# Pauses worth a note; shorter ones nobody would look into.
NOTED = 1.0
# Once is a start of something; twice is a habit.
LEAST = 2
# Ranks do not leave a pause together: the iteration after it is longer by up to this share of it.
RAGGED = 0.1
# Lateness of single ranks that is this share of a pause explains it.
EXPLAINED = 0.5


def find_pauses(costs: Costs, times: F8) -> list[Pattern]:
    """The pattern, if there is one. ``times`` float64 [iterations of the job]: seconds, NaN unknown."""
    measured = times[costs.iterations]
    work = costs.makespan(costs.work, costs.comm, costs.transfer) - costs.ideal()
    late = costs.entry.reshape(len(measured), -1).max(axis=1)
    pause = np.nan_to_num(measured - costs.usual - np.maximum(work, 0.0))
    stands = (pause >= NOTED) & (late < EXPLAINED * pause)
    longer = np.nan_to_num(measured - costs.usual)
    around = np.maximum(np.append(longer[1:], 0.0), np.append(0.0, longer[:-1]))
    stands &= around < np.maximum(LOOKS * costs.usual, RAGGED * pause)
    if stands.sum() < LEAST:
        return []
    lost = np.where(stands, pause, 0.0)
    seconds = float(np.median(pause[stands]))
    text = f"all ranks stood still for {seconds:.1f} s between two iterations, {int(stands.sum())} times"
    severity = Severity.P2 if seconds >= SECONDS else Severity.P3
    return [Pattern(Kind.SLOW_STORAGE, None, lost, text, 1 + seconds / costs.usual, severity)]
