"""What bubbles forgive: the same delay at different places of an iteration, and who reports it.

For each place: how long the iteration takes with a delay of 10 to 500 ms, the smallest delay that lengthens
it by the 5 % that count, and the smallest that each of two methods reports: MegaTrace, which asks what the
delay costs, and one threshold per phase, which cannot know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.rivals.draws import PAPER
from benchmarks.rivals.duel import ours
from benchmarks.rivals.fixed_threshold import FixedThreshold
from benchmarks.rivals.seen import Seen
from megatrace.model.schedule import Phase
from megatrace.simulator import Delay, Scenario, simulate, with_counterfactual

DELAYS_MS = (10, 20, 40, 60, 80, 105, 150, 200, 300, 400, 500)
ITERATIONS = 12
FIRST, LAST = 5, 9
PLACES: tuple[tuple[str, int, int, Phase], ...] = (
    ("steady state, stage 1", 10, 4, Phase.BACKWARD),
    ("warm-up, stage 0: the fourth forward", 2, 3, Phase.FORWARD),
    ("cool-down, stage 3: the last backward", 26, 7, Phase.BACKWARD),
    ("warm-up, stage 1: the third forward", 10, 2, Phase.FORWARD),
)
"""Name, rank, micro-batch and phase."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place with its delays. Smallest delays in ms, None where none of those tried was enough."""

    name: str
    iteration_ms: dict[int, float]
    lengthens: int | None
    ours: int | None
    fixed: int | None

    def as_json(self) -> dict[str, Any]:
        """The row as it stands in the result."""
        return {
            "place": self.name,
            "iteration_ms": {str(ms): round(value, 1) for ms, value in self.iteration_ms.items()},
            "lengthens_ms": self.lengthens,
            "megatrace_ms": self.ours,
            "fixed_threshold_ms": self.fixed,
        }


def places(threshold_s: float, done: Callable[[str], None]) -> list[Place]:
    """All places; ``threshold_s`` is that of the fixed threshold per phase."""
    found = []
    for number, (name, rank, micro_batch, phase) in enumerate(PLACES):
        times: dict[int, float] = {}
        counts: list[int] = []
        told: list[int] = []
        hot: list[int] = []
        for ms in DELAYS_MS:
            fault = Delay(
                rank=rank, delay_ms=ms, micro_batch=micro_batch, phase=phase,
                first_iteration=FIRST, last_iteration=LAST,
            )  # fmt: skip
            job = Scenario.model_validate(
                {**PAPER, "seed": 31_000 + number, "iterations": ITERATIONS, "faults": (fault,)}
            )
            simulation = with_counterfactual(simulate(job))
            seen = Seen(simulation.trace, job.layout)
            times[ms] = float(simulation.truth.iteration_ms[FIRST : LAST + 1].mean())
            counts += [ms] * bool(simulation.truth.faults[0].positive)
            told += [ms] * (rank in ours(seen))
            hot += [ms] * (rank in FixedThreshold().slow(seen, threshold_s))
            done(f"{name}, {ms} ms")
        found.append(Place(name, times, *(min(values, default=None) for values in (counts, told, hot))))
    return found
