"""A scenario: which job runs, on what, and what breaks. From Python or from YAML.

Values come from outside, so they are validated here, once; everything further down trusts them. Defaults are
those of a 12-layer stage of a dense model of hidden size 6144 as seen in a real call log: 42 ms a forward, 87
ms a backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from megatrace.errors import ConfigError, TraceError, UnknownName
from megatrace.model.job import JobConfig, ScheduleKind, Sourced
from megatrace.model.layout import DEFAULT_ORDER, ParallelLayout
from megatrace.model.schedule import Phase, Schedule
from megatrace.simulator.faults import Delay, DelayedMessage, Fault

Positive: TypeAlias = Annotated[int, Field(ge=1)]
Ms: TypeAlias = Annotated[float, Field(ge=0)]

MAX_WORLD = 65_536
"""Ranks. Beyond that the arrays of one iteration no longer fit an ordinary machine."""


class Capture(BaseModel):
    """What the recording keeps of what happened.

    ``last_records`` keeps only the last N calls of a rank (a ring that was overwritten); ``torn_tails`` ranks
    end in the middle of a line; ``missing_ranks`` left no file; ``cut_at_s`` stops the recording at that time
    after the start while the job moves on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    last_records: Positive | None = None
    torn_tails: tuple[int, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    cut_at_s: Annotated[float, Field(gt=0)] | None = None


class Scenario(BaseModel):
    """One job. Times in ms unless the name says otherwise, bandwidths in GB/s of one rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "scenario"
    description: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    pattern: Literal["megatron", "ddp", "fsdp", "zero3"] = "megatron"

    tp: Positive = 1
    pp: Positive = 1
    dp: Positive = 1
    cp: Positive = 1
    ep: Positive = 1
    vpp: Positive = 1
    order: str = DEFAULT_ORDER
    ranks_per_node: Positive = 8

    schedule: ScheduleKind | None = None
    micro_batches: Positive = 8
    iterations: Positive = 10
    layers_per_stage: Positive = 4

    sequence_length: Positive = 4096
    hidden: Positive = 6144
    vocabulary: Positive = 51200
    micro_batch_size: Positive = 1

    sequence_parallel: bool = False
    distributed_optimizer: bool = True
    overlap_grad_reduce: bool = False
    tied_embeddings: bool = False
    context_parallel_comm: Literal["ring", "all_gather"] = "ring"
    startup: bool = True
    evaluate_every: Positive | None = None
    evaluate_iterations: Positive = 2
    checkpoint_every: Positive | None = None
    checkpoint_ms: Ms = 2000.0
    log_every: Positive | None = 1

    layer_forward_ms: Ms = 3.0
    layer_backward_ms: Ms = 6.6
    optimizer_ms: Ms = 44.0
    loss_ms: Ms = 2.0
    first_iteration_ms: Ms = 800.0
    host_call_ms: Ms = 0.75
    host_step_ms: Ms = 0.5
    launch_ahead: Positive = 1024
    """Kernels that a host can have launched and its device not begun (the depth of the launch queue)."""

    node_bandwidth: Annotated[float, Field(gt=0)] = 200.0
    network_bandwidth: Annotated[float, Field(gt=0)] = 40.0
    node_latency_us: Ms = 8.0
    network_latency_us: Ms = 15.0

    compute_noise: Annotated[float, Field(ge=0, le=1)] = 0.01
    host_noise: Annotated[float, Field(ge=0, le=2)] = 0.05
    noise_memory: Annotated[float, Field(ge=0, le=1)] = 0.0
    outlier_share: Annotated[float, Field(ge=0, le=0.1)] = 2e-4
    outlier_ms: Ms = 2.0
    clock_offset_us: Ms = 100.0
    clock_drift_ppm: Ms = 1.0
    start_time_ns: Annotated[int, Field(ge=0)] = 1_755_590_104_248_717_000

    faults: tuple[Fault, ...] = ()
    capture: Capture = Capture()

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        layout = self.layout  # raises ValueError with its own sentence
        _ = self.plan
        if layout.world_size > MAX_WORLD:
            raise ValueError(f"{layout.world_size} ranks are more than the simulator takes ({MAX_WORLD})")
        if self.pattern != "megatron" and layout.world_size != layout.dp:
            raise ValueError(
                f"pattern {self.pattern} has data parallelism only: tp, pp, cp, ep and vpp must be 1"
            )
        if self.layers_per_stage % self.vpp:
            raise ValueError(f"layers_per_stage {self.layers_per_stage} is not a multiple of vpp {self.vpp}")
        for index, fault in enumerate(self.faults):
            self._check_fault(f"faults.{index}", fault)
        return self

    def _check_fault(self, where: str, fault: Fault) -> None:
        limits = {
            "rank": self.world_size,
            "src": self.world_size,
            "dst": self.world_size,
            "node": self.nodes,
            "stage": self.pp,
            "iteration": self.iterations,
            "first_iteration": self.iterations,
            "micro_batch": self.micro_batches,
        }
        for name, limit in limits.items():
            value = getattr(fault, name, None)
            if value is not None and value >= limit:
                raise ValueError(f"{where}.{name} is {value}, this job has {limit} (counted from 0)")
        if isinstance(fault, Delay | DelayedMessage) and fault.phase not in (Phase.FORWARD, Phase.BACKWARD):
            raise ValueError(f"{where}.phase is {fault.phase.value}: forward or backward")
        if isinstance(fault, DelayedMessage) and self.vpp == 1:
            stage = self.layout.place(fault.rank).stage
            if stage == (self.pp - 1 if fault.phase is Phase.FORWARD else 0):
                raise ValueError(f"{where}: a {fault.phase.value} of stage {stage} has nobody to send to")

    @property
    def layout(self) -> ParallelLayout:
        """Which rank plays which part."""
        return ParallelLayout(self.tp, self.pp, self.dp, self.cp, self.ep, self.vpp, self.order)

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def nodes(self) -> int:
        """Machines of the job; the last may be partly filled."""
        return -(-self.world_size // self.ranks_per_node)

    @property
    def plan(self) -> Schedule:
        """The schedule of a training iteration."""
        kind = self.schedule or (ScheduleKind.INTERLEAVED if self.vpp > 1 else ScheduleKind.ONE_F_ONE_B)
        return Schedule(kind, self.pp, self.micro_batches, self.vpp)

    def without_faults(self) -> Scenario:
        """The same job with the same noise in which nothing breaks."""
        return self.model_copy(update={"faults": ()})

    def without_fault(self, index: int) -> Scenario:
        """The same job without one of its faults."""
        return self.model_copy(update={"faults": self.faults[:index] + self.faults[index + 1 :]})

    def job(self) -> JobConfig:
        """The configuration as its user would declare it."""

        def said(value: int) -> Sourced[int]:
            return Sourced(value, "scenario")

        return JobConfig(
            world_size=said(self.world_size),
            ranks_per_node=said(self.ranks_per_node),
            tensor=said(self.tp),
            pipeline=said(self.pp),
            data=said(self.dp),
            context=said(self.cp),
            expert=said(self.ep),
            virtual=said(self.vpp),
            order=Sourced(self.order, "scenario"),
            micro_batch=said(self.micro_batch_size),
            global_batch=said(self.micro_batch_size * self.micro_batches * self.dp),
            schedule=Sourced(self.plan.kind, "scenario"),
            layers=said(self.layers_per_stage * self.pp),
            hidden=said(self.hidden),
            sequence_length=said(self.sequence_length),
            vocabulary=said(self.vocabulary),
        )


def load_scenario(path: Path) -> Scenario:
    """A scenario from YAML. ``TraceError`` where it cannot be read, ``ConfigError`` with the key path."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: the scenario cannot be read: {error}", path=str(path)) from None
    return parse_scenario(text, str(path))


def parse_scenario(text: str, source: str) -> Scenario:
    """A scenario from YAML text; ``source`` names it in errors."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise ConfigError("scenario", first, "a YAML mapping", path=source) from None
    if not isinstance(values, Mapping):
        raise ConfigError("scenario", values, "a YAML mapping of keys to values", path=source)
    try:
        return Scenario.model_validate(dict(values))
    except ValidationError as error:
        first_error = error.errors()[0]
        key = ".".join(str(part) for part in first_error["loc"]) or "scenario"
        allowed = first_error["msg"].removeprefix("Value error, ")
        found = first_error["input"] if first_error["loc"] else dict(values)
        raise ConfigError(key, found, allowed, path=source) from None


def builtin_scenarios() -> dict[str, Path]:
    """The scenarios that come with MegaTrace: files by name, sorted."""
    folder = Path(__file__).with_name("scenarios")
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def named_scenario(name: str) -> Scenario:
    """One of the scenarios that come with MegaTrace. Raises ``UnknownName``."""
    known = builtin_scenarios()
    if name not in known:
        raise UnknownName("scenario", name, known)
    return load_scenario(known[name])


def flagship() -> Scenario:
    """3,480 GPUs: the second GPU of node 188 misses a Recv in the forward of the third micro-batch."""
    return named_scenario("flagship")


def flagship_late_deaths() -> Scenario:
    """The same job: a kernel on that GPU stalls, and three other nodes die at random afterwards."""
    return named_scenario("flagship-late-deaths")
