"""Cases by name: FAULT:LAYOUT:SEED is all there is to a case, so that every one can be run again alone.

A case is one simulated job; each kind of source that looks at it is one run. Seeds of the benchmark start at
``BENCH_SEED``, those of the tests at ``TEST_SEED``: what the tests keep right is not what the benchmark
measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from benchmarks.accuracy.drawing import FAULTS, HANGS, HEALTHY, Draw, settings_of
from benchmarks.accuracy.layouts import LARGE, LAYOUTS, SHARDED
from megatrace.errors import ConfigError, UsageError
from megatrace.simulator import Scenario, Simulation, simulate, with_counterfactual

SOURCES = ("ring", "text", "text-hash")
BENCH_SEED = 120_000
"""Those of the figures that are recorded; who mends the analysis on their misses takes others."""
TEST_SEED = 900_000
ATTEMPTS = 20
"""Draws of a place for a fault before giving up: not every rank makes every call in every phase."""
LONG_LAYOUTS = ("tp2-pp4-dp2", "tp1-pp4-dp4", "tp4-pp2-dp2", "tp2-pp2-cp2-dp2", "tp2-pp8-dp1")
"""Intermittent faults need many iterations, so they are drawn for few layouts."""


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One job with what breaks in it."""

    fault: str
    layout: str
    seed: int

    @property
    def id(self) -> str:
        """FAULT:LAYOUT:SEED."""
        return f"{self.fault}:{self.layout}:{self.seed}"

    @staticmethod
    def parse(text: str) -> Case:
        """The case of an id. Raises UsageError."""
        parts = text.split(":")
        if len(parts) != 3 or not parts[2].isdigit():
            raise UsageError(f"--case {text}: a case is FAULT:LAYOUT:SEED, as slow_gpu:tp2-pp4-dp2:1000")
        fault, layout, seed = parts
        if fault not in FAULTS and fault not in HEALTHY:
            raise UsageError(f"--case {text}: no fault {fault!r}; there are {', '.join([*FAULTS, *HEALTHY])}")
        if layout not in LAYOUTS:
            raise UsageError(f"--case {text}: no layout {layout!r}; there are {', '.join(LAYOUTS)}")
        return Case(fault, layout, int(seed))

    @property
    def waited(self) -> bool:
        """Whether whoever looks at a job that stands says so (``--now``, ten minutes later): every other."""
        return self.fault in HANGS and self.seed % 2 == 0


def scenarios(case: Case) -> Iterator[Scenario]:
    """Draws for a case, none where the layout cannot have the fault."""
    base = Scenario.model_validate(
        {**LAYOUTS[case.layout], **settings_of(case.fault), "name": case.id, "seed": case.seed}
    )
    draw = {**FAULTS, **HEALTHY}[case.fault]
    key = (case.seed, crc32(case.fault.encode()), crc32(case.layout.encode()))
    random = np.random.default_rng(key)
    for _ in range(ATTEMPTS):
        drawn = draw(Draw(base, random))
        if drawn is None:
            return
        yield drawn


def run(case: Case) -> Simulation | None:
    """The job of a case with its truth and counterfactual, None where the layout cannot have the fault."""
    return next(filter(None, map(_simulated, scenarios(case))), None)


def _simulated(scenario: Scenario) -> Simulation | None:
    """None where the fault's rank makes no such call: another place must be drawn."""
    try:
        return with_counterfactual(simulate(scenario))
    except ConfigError:
        return None


def possible(fault: str, layout: str) -> bool:
    """Whether a layout can have a fault, as far as the draw knows without running it."""
    if fault == "comm_deadlock" and layout in SHARDED:
        return False
    if fault == "slow_gpu_intermittent" and layout not in LONG_LAYOUTS:
        return False
    if layout in LARGE and fault not in ("slow_gpu", "stuck_kernel_before", "missing_recv", "late_deaths"):
        return False
    return next(scenarios(Case(fault, layout, 0)), None) is not None


def matrix(seed_base: int = BENCH_SEED, per_fault: int = 20, healthy: int = 120) -> list[Case]:
    """``per_fault`` cases of every fault, spread over the layouts that can have it, and healthy ones.

    Seeds are counted up over the whole matrix, so that no two cases share their noise.
    """
    cases: list[Case] = []
    for fault in FAULTS:
        layouts = [layout for layout in LAYOUTS if possible(fault, layout)]
        start = crc32(fault.encode()) % len(layouts)
        for index in range(per_fault):
            layout = layouts[(start + index) % len(layouts)]
            cases.append(Case(fault, layout, seed_base + len(cases)))
    small = [layout for layout in LAYOUTS if layout not in LARGE]
    kinds = list(HEALTHY)
    for index in range(healthy):
        layout = small[(index // len(kinds) * 7 + index) % len(small)]
        cases.append(Case(kinds[index % len(kinds)], layout, seed_base + len(cases)))
    return cases
