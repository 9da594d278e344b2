"""One run of a scenario: programs, engine and recorder put together.

``simulate`` is a pure function of the scenario (and its seed). It reads and writes nothing; ``emit`` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from megatrace.errors import ConfigError
from megatrace.model.trace import Trace
from megatrace.simulator.blurred import blurred
from megatrace.simulator.cluster import F8, Cluster
from megatrace.simulator.effects import clocks, generator
from megatrace.simulator.engine import Engine
from megatrace.simulator.faults import (
    STANDSTILLS,
    CommDeadlock,
    DeadLink,
    DeadNode,
    DeadRank,
    Fault,
    LateDeaths,
    OrderMismatch,
    SizeMismatch,
    SkippedCollective,
    sporadic,
)
from megatrace.simulator.observe import captured
from megatrace.simulator.patterns import IterationKind, megatron
from megatrace.simulator.program import Channel, Program
from megatrace.simulator.recording import Recorder, Rewrite, Skip
from megatrace.simulator.scenario import Scenario
from megatrace.simulator.sharded import sharded
from megatrace.simulator.state import StageState
from megatrace.simulator.stops import (
    Hit,
    Stop,
    Strike,
    call_of,
    crossed_calls,
    stands_at,
    strike_of,
    struck,
    swapped_calls,
)
from megatrace.simulator.truth import Truth, compared, describe

ProgramKey: TypeAlias = tuple[int, IterationKind]
_LATE = 0x1A7E


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What a run gave: the recording, and the truth about it."""

    scenario: Scenario
    trace: Trace
    truth: Truth
    kernels: tuple[F8, ...] | None = None
    """Per rank float64 [kernels, 3]: launch, begin and end of what its device computed, ns after the start of
    the job by its node's clock; None where that was not kept."""
    waits: tuple[F8, ...] | None = None
    """Per rank float64 [waits, 2]: begin and end of its host's waits for the device, likewise."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Raw results of the engine."""

    recorder: Recorder
    strikes: _Strikes
    ends: F8
    """[iterations + 1]: ns at which the last host left iteration k − 1; inf where it never did"""
    work: F8
    """[world, iterations]: ns of kernels that a rank's device was asked to do"""
    struck_at: dict[int, float]
    states: list[StageState]
    """as the engine left them"""


def simulate(scenario: Scenario, *, kernels: bool = False) -> Simulation:
    """Runs a scenario; ``kernels`` keeps what every device computed, too.

    ``ConfigError`` where a fault names a call that its rank never makes.
    """
    deaths = _deaths(scenario)
    run = _run(scenario, deaths, kernels=kernels)
    until = scenario.capture.cut_at_s * 1e9 if scenario.capture.cut_at_s else np.inf
    trace = run.recorder.trace(run.strikes.rewrites, run.strikes.skips, until)
    trace = captured(trace, scenario)
    hits = run.strikes.hits
    truth = describe(scenario, run.recorder.cluster, run.ends, run.work, run.struck_at, hits, deaths)
    computed = _by_rank(run, [state.busy or [] for state in run.states], 3) if kernels else None
    waited = _by_rank(run, [state.waits for state in run.states], 2) if kernels else None
    return Simulation(scenario, trace, blurred(truth, scenario, trace), computed, waited)


def _by_rank(run: _Run, kept: Sequence[Sequence[tuple[F8, ...]]], width: int) -> tuple[F8, ...]:
    """Times that each stage kept as [dp, cp, tp], rank by rank and on the clocks of the nodes."""
    cluster = run.recorder.cluster
    offset, drift = clocks(cluster)
    found: dict[int, F8] = {}
    for grid, busy in zip(cluster.grid, kept, strict=True):
        times = np.array(busy).reshape(len(busy), width, grid.size)
        for column, rank in enumerate(grid.reshape(-1).tolist()):
            node = rank // cluster.scenario.ranks_per_node
            found[rank] = times[:, :, column] * (1 + drift[node]) + offset[node]
    return tuple(found[rank] for rank in range(cluster.scenario.world_size))


def iteration_times(scenario: Scenario) -> F8:
    """float64 ns of each iteration, without recording anything (NaN from a standstill on)."""
    return np.diff(np.where(np.isfinite(ends := _run(scenario, _deaths(scenario)).ends), ends, np.nan))


def with_counterfactual(simulation: Simulation) -> Simulation:
    """Adds to the truth what the job would have been without its faults, and which faults count as positive.

    Runs the scenario once without any fault and once without each fault that slows it.
    """
    scenario, truth = simulation.scenario, simulation.truth
    told = []
    numbers = [n for n, fault in enumerate(scenario.faults) if not isinstance(fault, LateDeaths)]
    for number, fault in zip(numbers, truth.faults, strict=True):
        if isinstance(scenario.faults[number], STANDSTILLS):
            told.append(replace(fault, positive=True))
        else:
            without = iteration_times(scenario.without_fault(number)) / 1e6
            told.append(compared(fault, truth.iteration_ms, without, sporadic(scenario.faults[number])))
    plain = iteration_times(scenario.without_faults()) / 1e6
    return replace(simulation, truth=replace(truth, faults=tuple(told), counterfactual_ms=plain))


def _deaths(scenario: Scenario) -> F8 | None:
    """Times of death that are known only after a run without them: of nodes, and of late victims."""
    nodes = [fault for fault in scenario.faults if isinstance(fault, DeadNode)]
    late = [fault for fault in scenario.faults if isinstance(fault, LateDeaths)]
    if not nodes and not late:
        return None
    deaths = np.full(scenario.world_size, np.inf)
    others = tuple(f for f in scenario.faults if not isinstance(f, DeadNode | LateDeaths))
    alive = scenario.model_copy(update={"faults": others})
    for fault in nodes:
        ranks = _ranks_of(scenario, fault.node)
        probes = tuple(
            DeadRank(
                rank=rank,
                iteration=fault.iteration,
                micro_batch=fault.micro_batch,
                phase=fault.phase,
                call=fault.call,
            )
            for rank in ranks
        )
        probed = _run(alive.model_copy(update={"faults": (*others, *probes)}), None)
        deaths[list(ranks)] = min(probed.struck_at.values(), default=np.inf)
    for victims in late:
        deaths = np.minimum(deaths, _late_deaths(alive, victims, deaths if nodes else None))
    return deaths


def _late_deaths(alive: Scenario, fault: LateDeaths, deaths: F8 | None) -> F8:
    """Picks nodes and times between the first stop and the moment when the last host stands."""
    run = _run(alive, deaths)
    first = min(run.struck_at.values(), default=None)
    if first is None:
        raise ConfigError(
            "faults (late_deaths)", fault.count, "another fault that brings the job to a standstill"
        )
    # Hosts may all stand before the device that they wait for gets to where it stops.
    last = max(first, *run.recorder.last_call_times())
    guilty = {rank // alive.ranks_per_node for rank in run.struck_at}
    innocent = np.array([node for node in range(alive.nodes) if node not in guilty], np.int64)
    if len(innocent) < fault.count:
        raise ConfigError("faults (late_deaths).count", fault.count, f"at most {len(innocent)} other nodes")
    random = generator(alive.seed, _LATE)
    times = np.full(alive.world_size, np.inf)
    for node in random.choice(innocent, fault.count, replace=False):
        times[list(_ranks_of(alive, int(node)))] = random.uniform(first, last)
    return times


def _ranks_of(scenario: Scenario, node: int) -> tuple[int, ...]:
    first = node * scenario.ranks_per_node
    return tuple(range(first, min(first + scenario.ranks_per_node, scenario.world_size)))


def iteration_kind(scenario: Scenario, iteration: int) -> IterationKind:
    """What is special about an iteration (evaluation iterations stand between training ones and count as
    such)."""

    def every(period: int | None) -> bool:
        return period is not None and (iteration + 1) % period == 0

    return IterationKind(
        startup=iteration == 0 and scenario.startup,
        evaluate=every(scenario.evaluate_every),
        checkpoint=every(scenario.checkpoint_every),
        log=every(scenario.log_every),
    )


def programs_of(scenario: Scenario, kind: IterationKind, cache: dict[ProgramKey, Program]) -> list[Program]:
    """The programs of all stages for one kind of iteration."""
    make = megatron if scenario.pattern == "megatron" else sharded
    for stage in range(scenario.pp):
        if (stage, kind) not in cache:
            cache[stage, kind] = make(scenario, stage, kind)
    return [cache[stage, kind] for stage in range(scenario.pp)]


@dataclass(slots=True)
class _Strikes:
    """Collects what strikes whom while a scenario runs."""

    scenario: Scenario
    cluster: Cluster
    rewrites: list[Rewrite] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    hits: dict[int, Hit] = field(default_factory=dict)
    """By index of the fault."""
    used: dict[tuple[int, Channel], int] = field(default_factory=dict)
    """Operation numbers used up in earlier iterations, per stage and channel."""

    def of(self, iteration: int, programs: list[Program]) -> list[Strike]:
        """The strikes of one iteration."""
        now: list[Strike] = []
        for number, fault in enumerate(self.scenario.faults):
            if isinstance(fault, DeadNode) and fault.iteration == iteration:
                self._aim(number, fault, programs)
            rank = getattr(fault, "rank", None)
            if rank is None or not struck(fault, iteration):
                continue
            program = programs[self.cluster.locate(rank)[0]]
            strike = strike_of(fault, program)
            if strike is not None:
                now.append(strike)
                self.hits[number] = Hit(strike, program, self._number(strike, program))
                self._rewrite(fault, strike, program, iteration)
        for program in programs:
            for channel, calls in program.calls.items():
                key = (program.stage, channel)
                self.used[key] = self.used.get(key, 0) + calls
        return now

    def _aim(self, number: int, fault: DeadNode, programs: list[Program]) -> None:
        """Where a node dies, whose ranks end at a time and not at an instruction: where its first one is."""
        rank = fault.node * self.scenario.ranks_per_node
        program = programs[self.cluster.locate(rank)[0]]
        strike = Strike(Stop.DEATH, rank, call_of(fault, program, messages=True))
        self.hits[number] = Hit(strike, program, self._number(strike, program))

    def _number(self, strike: Strike, program: Program) -> int | None:
        found = stands_at(program, strike)
        if found is None or found[0].channel in program.alone:
            return None
        row = found[0]
        return row.seq + self.used.get((program.stage, row.channel), 0)

    def _rewrite(self, fault: Fault, strike: Strike, program: Program, iteration: int) -> None:
        """What the faulty rank calls instead of what its peers call."""
        row = program.first_row[strike.instruction]
        if isinstance(fault, SizeMismatch):
            self.rewrites.append(Rewrite(fault.rank, iteration, row, factor=fault.factor))
        elif isinstance(fault, SkippedCollective):
            self.skips.append(Skip(fault.rank, iteration, row))
        elif isinstance(fault, OrderMismatch | CommDeadlock):
            swapped = swapped_calls(fault, program) if isinstance(fault, OrderMismatch) else None
            pair = swapped or crossed_calls(program)
            first, second = (program.first_row[index] for index in pair)
            self.rewrites.append(Rewrite(fault.rank, iteration, first, instead=second))
            self.rewrites.append(Rewrite(fault.rank, iteration, second, instead=first))


def _run(scenario: Scenario, deaths: F8 | None, *, kernels: bool = False) -> _Run:
    cluster = Cluster(scenario)
    _check_links(scenario, cluster)
    engine, recorder, strikes = Engine(cluster, deaths), Recorder(cluster), _Strikes(scenario, cluster)
    if kernels:
        for state in engine.states:
            state.busy = []
    cache: dict[ProgramKey, Program] = {}
    ends = np.full(scenario.iterations + 1, np.inf)
    ends[0] = 0.0
    work = np.full((scenario.world_size, scenario.iterations), np.nan)
    for iteration in range(scenario.iterations):
        programs = programs_of(scenario, iteration_kind(scenario, iteration), cache)
        recorded = engine.iterate(iteration, programs, strikes.of(iteration, programs))
        recorder.add([part for part in recorded if np.isfinite(part.enqueue).any()])
        for part in recorded:
            work[cluster.grid[part.program.stage].reshape(-1), iteration] = part.work
        finished = engine.finished()
        if not finished.any():
            break
        if finished.all():
            ends[iteration + 1] = max(float(state.host.max()) for state in engine.states)
    return _Run(recorder, strikes, ends, work, engine.struck_at, engine.states)


def _check_links(scenario: Scenario, cluster: Cluster) -> None:
    for fault in scenario.faults:
        if isinstance(fault, DeadLink):
            (a, flat_a), (b, flat_b) = cluster.locate(fault.src), cluster.locate(fault.dst)
            near = abs(a - b) == 1 or (scenario.vpp > 1 and abs(a - b) == scenario.pp - 1)
            if flat_a != flat_b or not near:
                raise ConfigError("faults (dead_link).dst", fault.dst, "a pipeline neighbour of src")
