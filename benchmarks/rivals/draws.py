"""The runs of the comparison: the paper's job, and jobs of another generator that nothing was tuned on.

Paper's set-up: TP2 PP4 DP4, 48 layers, a forward of about 40 ms a stage; a hang or a delay of 50 ms to 30 s
at a random position in a forward, a backward or a transmission. How a hang was brought about is not said, so
half of those in a forward or backward are hosts that stop and half are kernels that never end; in a
transmission a Recv or a Send is never posted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from megatrace.errors import ConfigError
from megatrace.model.schedule import Phase
from megatrace.simulator import Scenario, Simulation, simulate, with_counterfactual
from megatrace.simulator import faults as f

PAPER: dict[str, Any] = {
    "tp": 2, "pp": 4, "dp": 4, "layers_per_stage": 12, "micro_batches": 8,
    "layer_forward_ms": 40 / 12, "layer_backward_ms": 80 / 12,
}  # fmt: skip
OTHER_JOBS: tuple[dict[str, Any], ...] = (
    {"tp": 4, "pp": 3, "dp": 3, "layers_per_stage": 5, "micro_batches": 9},
    {"tp": 1, "pp": 6, "dp": 4, "layers_per_stage": 3, "micro_batches": 12, "ranks_per_node": 6},
    {"tp": 8, "pp": 2, "dp": 3, "layers_per_stage": 6, "micro_batches": 6},
    {"tp": 2, "pp": 5, "dp": 3, "layers_per_stage": 4, "micro_batches": 10, "ranks_per_node": 10},
    {"tp": 2, "pp": 4, "dp": 3, "layers_per_stage": 6, "micro_batches": 8, "vpp": 3},
    {"tp": 4, "pp": 2, "cp": 2, "dp": 3, "layers_per_stage": 6, "micro_batches": 7},
)
"""Layouts that are in no other matrix: odd sizes, nodes of six and ten, three chunks a stage."""
SLOW_ITERATIONS = 16
HANG_ITERATIONS = 5
SHORTEST_MS, LONGEST_MS = 50.0, 30_000.0
ATTEMPTS = 20
"""Draws of a place before giving up: not every rank makes every call."""


def run(generator: str, state: str, seed: int) -> Simulation:
    """One run with its truth and counterfactual."""
    random = np.random.default_rng((seed, 0x9A9E2 if generator == "paper" else 0x07E2))
    for _ in range(ATTEMPTS):
        scenario = GENERATORS[generator](random, state, seed)
        try:
            return with_counterfactual(simulate(scenario))
        except ConfigError:
            continue  # the rank makes no such call: another place must be drawn
    raise RuntimeError(f"no {state} job could be drawn from seed {seed}")  # a bug of the draw


def paper_job(random: np.random.Generator, state: str, seed: int) -> Scenario:
    """A job of the paper's set-up."""
    iterations = HANG_ITERATIONS if state == "hang" else SLOW_ITERATIONS
    job = Scenario.model_validate({**PAPER, "seed": seed, "iterations": iterations, "name": f"paper-{seed}"})
    return _broken(job, random, state, _paper_slow)


def other_job(random: np.random.Generator, state: str, seed: int) -> Scenario:
    """A job with another layout, correlated noise with a longer tail, and faults of other shapes."""
    iterations = HANG_ITERATIONS if state == "hang" else SLOW_ITERATIONS + 6
    settings: dict[str, Any] = {
        **OTHER_JOBS[int(random.integers(len(OTHER_JOBS)))],
        "compute_noise": float(random.uniform(0.005, 0.03)),
        "host_noise": float(random.uniform(0.05, 0.15)),
        "outlier_share": float(random.uniform(1e-4, 6e-4)),
        "outlier_ms": float(random.uniform(1.0, 4.0)),
        "noise_memory": 0.7,
        "clock_offset_us": float(random.uniform(50, 1000)),
    }
    job = Scenario.model_validate(
        {**settings, "seed": seed, "iterations": iterations, "name": f"other-{seed}"}
    )
    return _broken(job, random, state, _other_slow)


GENERATORS: dict[str, Callable[[np.random.Generator, str, int], Scenario]] = {
    "paper": paper_job,
    "other": other_job,
}


def _broken(
    job: Scenario,
    random: np.random.Generator,
    state: str,
    slow: Callable[[Scenario, np.random.Generator], f.Fault],
) -> Scenario:
    if state == "healthy":
        return job
    fault = _hang(job, random) if state == "hang" else slow(job, random)
    return job.model_validate({**job.model_dump(), "faults": (fault,)})


def _hang(job: Scenario, random: np.random.Generator) -> f.Fault:
    rank = int(random.integers(job.world_size))
    where: dict[str, Any] = {
        "rank": rank,
        "iteration": int(random.integers(2, job.iterations)),
        "micro_batch": int(random.integers(job.micro_batches)),
    }
    part = ("forward", "backward", "transmission")[int(random.integers(3))]
    if part == "transmission":
        kind = (f.MissingRecv, f.MissingSend)[int(random.integers(2))]
        phase = (Phase.FORWARD, Phase.BACKWARD)[int(random.integers(2))]
        return kind(**where, phase=phase)
    call = int(random.integers(2 * job.layers_per_stage))
    stopped = (f.StuckHost, f.StuckKernelBefore)[int(random.integers(2))]
    return stopped(**where, phase=Phase(part), call=call)


def _window(job: Scenario, random: np.random.Generator) -> dict[str, Any]:
    """A stretch of four iterations to half the job, with a healthy past."""
    length = int(random.integers(4, job.iterations // 2 + 1))
    first = int(random.integers(3, job.iterations - length + 1))
    return {"first_iteration": first, "last_iteration": first + length - 1}


def _delay_ms(random: np.random.Generator) -> float:
    """Log-uniform over the paper's range."""
    return float(np.exp(random.uniform(np.log(SHORTEST_MS), np.log(LONGEST_MS))))


def _paper_slow(job: Scenario, random: np.random.Generator) -> f.Fault:
    part = ("forward", "backward", "transmission")[int(random.integers(3))]
    where: dict[str, Any] = {
        "delay_ms": _delay_ms(random),
        "micro_batch": int(random.integers(job.micro_batches)),
        **_window(job, random),
    }
    if part != "transmission":
        return f.Delay(rank=int(random.integers(job.world_size)), phase=Phase(part), **where)
    phase = (Phase.FORWARD, Phase.BACKWARD)[int(random.integers(2))]
    return f.DelayedMessage(rank=_sender(job, random, phase), phase=phase, **where)


def _sender(job: Scenario, random: np.random.Generator, phase: Phase) -> int:
    """A rank that sends something on after this phase."""
    end = job.pp - 1 if phase is Phase.FORWARD else 0
    ranks = [rank for rank in range(job.world_size) if job.layout.place(rank).stage != end]
    return ranks[int(random.integers(len(ranks)))]


def _other_slow(job: Scenario, random: np.random.Generator) -> f.Fault:
    """Delays of one task, devices that are slow in some iterations of a window, and those that wear off."""
    rank, window = int(random.integers(job.world_size)), _window(job, random)
    shape = int(random.integers(3))
    if shape == 0:
        return _paper_slow(job, random)
    if shape == 1:
        return f.SlowGpu(rank=rank, factor=float(random.uniform(1.4, 4.0)), **window)
    length = window["last_iteration"] - window["first_iteration"] + 1
    factor = float(random.uniform(2.5, 4.0))
    return f.SlowGpu(rank=rank, factor=factor, drift=(1.5 - factor) / length, **window)
