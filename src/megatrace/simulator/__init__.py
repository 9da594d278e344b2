"""A training job without a GPU: calls, times and ground truth from a scenario.

This is how people learn the tool, and the yardstick of every claim about the analysis: a scenario says which
job runs and what breaks, ``simulate`` says what every rank's calls would look like and who did it. Belongs
here: the job's programs, the physics of host, device and network, faults, and the writing of what was
simulated. Does not belong here: anything that judges. The simulator may not import ``analysis``; both know
schedules from ``model.schedule``.
"""

from __future__ import annotations

from megatrace.simulator.faults import (
    CheckpointStall,
    CommDeadlock,
    DataLoaderStall,
    DeadLink,
    DeadNode,
    DeadRank,
    Delay,
    DelayedMessage,
    Fault,
    GcPauses,
    Jitter,
    LateDeaths,
    MissingRecv,
    MissingSend,
    OrderMismatch,
    SequenceImbalance,
    SizeMismatch,
    SkippedCollective,
    SlowGpu,
    SlowHost,
    SlowLink,
    SlowNic,
    StageImbalance,
    StuckHost,
    StuckInside,
    StuckKernelBefore,
)
from megatrace.simulator.observe import OBSERVATIONS, observe
from megatrace.simulator.scenario import (
    Capture,
    Scenario,
    builtin_scenarios,
    flagship,
    flagship_late_deaths,
    load_scenario,
    named_scenario,
)
from megatrace.simulator.simulation import Simulation, iteration_times, simulate, with_counterfactual
from megatrace.simulator.truth import Answer, FaultTruth, Truth

__all__ = [
    "OBSERVATIONS",
    "Answer",
    "Capture",
    "CheckpointStall",
    "CommDeadlock",
    "DataLoaderStall",
    "DeadLink",
    "DeadNode",
    "DeadRank",
    "Delay",
    "DelayedMessage",
    "Fault",
    "FaultTruth",
    "GcPauses",
    "Jitter",
    "LateDeaths",
    "MissingRecv",
    "MissingSend",
    "OrderMismatch",
    "Scenario",
    "SequenceImbalance",
    "Simulation",
    "SizeMismatch",
    "SkippedCollective",
    "SlowGpu",
    "SlowHost",
    "SlowLink",
    "SlowNic",
    "StageImbalance",
    "StuckHost",
    "StuckInside",
    "StuckKernelBefore",
    "Truth",
    "builtin_scenarios",
    "flagship",
    "flagship_late_deaths",
    "iteration_times",
    "load_scenario",
    "named_scenario",
    "observe",
    "simulate",
    "with_counterfactual",
]
