"""The reference page of scenario files, made from the models that read them."""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args

from pydantic import BaseModel

from megatrace.model.schedule import Phase
from megatrace.simulator.faults import Fault
from megatrace.simulator.scenario import Capture, Scenario, builtin_scenarios, load_scenario

KEYS: dict[str, str] = {
    "name": "name of the scenario, stands in the truth",
    "description": "one sentence for a person",
    "seed": "decides all noise; the same seed gives the same bytes",
    "pattern": "`megatron` (3-D parallel), or `ddp`, `fsdp`, `zero3` (data parallel only)",
    "tp": "tensor-parallel size",
    "pp": "pipeline stages",
    "dp": "data-parallel replicas",
    "cp": "context-parallel size",
    "ep": "expert-parallel size; divides dp · cp",
    "vpp": "model chunks a stage (above 1: interleaved schedule)",
    "order": "order of the axes, fastest first",
    "ranks_per_node": "GPUs of a node",
    "schedule": "`1f1b`, `interleaved` or `gpipe`; left out: by vpp",
    "micro_batches": "micro-batches an iteration and replica",
    "iterations": "iterations to run",
    "layers_per_stage": "transformer layers of a stage, a multiple of vpp",
    "sequence_length": "tokens of a sequence",
    "hidden": "hidden size",
    "vocabulary": "size of the vocabulary",
    "micro_batch_size": "sequences of a micro-batch",
    "sequence_parallel": "all-gather and reduce-scatter in place of tensor-parallel all-reduces",
    "distributed_optimizer": "reduce-scatter gradients, all-gather parameters",
    "overlap_grad_reduce": "reduce gradients in buckets during the last backward",
    "tied_embeddings": "all-reduce embedding gradients between first and last stage",
    "context_parallel_comm": "`ring` or `all_gather`",
    "startup": "calls before the first iteration",
    "evaluate_every": "every n-th iteration only evaluates (forward passes)",
    "evaluate_iterations": "evaluation passes of such an iteration",
    "checkpoint_every": "every n-th iteration saves",
    "checkpoint_ms": "time that saving takes",
    "log_every": "every n-th iteration logs (a few small collectives)",
    "layer_forward_ms": "device time of one layer forward",
    "layer_backward_ms": "device time of one layer backward",
    "optimizer_ms": "device time of the optimizer step",
    "loss_ms": "device time of the loss, forward and backward each",
    "first_iteration_ms": "host time before the first iteration",
    "host_call_ms": "host time from one call to the next inside a block",
    "host_step_ms": "host time between blocks",
    "launch_ahead": "kernels that a host can be ahead of its device",
    "node_bandwidth": "GB/s between GPUs of a node",
    "network_bandwidth": "GB/s of one rank between nodes",
    "node_latency_us": "latency of a message within a node",
    "network_latency_us": "latency of a message between nodes",
    "compute_noise": "spread of kernel times (share, one-sided)",
    "host_noise": "spread of host times (share, one-sided)",
    "noise_memory": "share of a device's noise that stays for four iterations, as heat and clocks do",
    "outlier_share": "share of kernels with a heavy-tailed delay",
    "outlier_ms": "smallest such delay",
    "clock_offset_us": "standard deviation of the offset of a node's clock",
    "clock_drift_ppm": "standard deviation of its drift",
    "start_time_ns": "start of the job, ns since the Unix epoch",
    "faults": "what breaks, see below",
    "capture": "what the recording keeps, see below",
}
"""What each key of a scenario means. Kept whole by a test."""

CAPTURE_KEYS: dict[str, str] = {
    "last_records": "only the last n calls of each rank (an overwritten ring)",
    "torn_tails": "ranks whose log ends in the middle of a line",
    "missing_ranks": "ranks that left no log",
    "cut_at_s": "the recording ends this long after the start while the job moves on",
}

_INTRO = """# Scenarios

`megatrace simulate` runs a scenario: a YAML file, or one of those that come with MegaTrace. Ranks, nodes,
stages, iterations and micro-batches count from 0; windows of iterations are inclusive and open where
`last_iteration` is left out. Noise belongs to its position, not to the order of drawing: the same scenario
without its faults is the same job, and the difference is the fault.

```yaml
tp: 2
pp: 4
dp: 2
micro_batches: 8
iterations: 20
seed: 1
faults:
  - {fault: slow_gpu, rank: 3, factor: 2.0, first_iteration: 5, last_iteration: 9}
  - {fault: stuck_host, rank: 6, iteration: 15, micro_batch: 2, phase: backward}
```

Beside the folder of the logs `simulate` writes `job.yaml` (the declared configuration) and `truth.json`
(schema `megatrace.truth/1`): per fault its kind, culprits, place and window; under `answers`, for a source
with start and end times (`ring`) and for a text log (`text`), which kinds are right, the smallest set of
ranks that the source can separate, and whether "cannot tell" is right too; `positive` is true where the
same job without the fault has iterations at least 5 % shorter, or where the job stands.
"""


def reference_page() -> str:
    """Markdown: the keys of a scenario, its faults, and the scenarios that come with MegaTrace."""
    parts = [_INTRO, "## Keys\n", _table(Scenario, KEYS)]
    parts += ["\n## capture\n", _table(Capture, CAPTURE_KEYS), "\n## Faults\n"]
    for model in fault_models():
        name = str(model.model_fields["fault"].default)
        text = " ".join((model.__doc__ or "").replace("``", "`").split())
        keys = {key: "" for key in model.model_fields if key != "fault"}
        listed = ", ".join(_key(model, key) for key in keys)
        parts.append(f"### {name}\n\n{text}\n\nKeys: {listed}.\n")
    found = {name: load_scenario(path) for name, path in builtin_scenarios().items()}
    rows = "\n".join(f"| `{name}` | {item.description} |" for name, item in found.items())
    parts.append(f"## Scenarios that come with MegaTrace\n\n| name | what happens |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def fault_models() -> tuple[type[BaseModel], ...]:
    """The classes of faults, in the order of their definition."""
    union = get_args(Fault)[0]
    return tuple(get_args(union))


def _table(model: type[BaseModel], meanings: dict[str, str]) -> str:
    rows = [f"| `{key}` | {_default(model, key)} | {meanings[key]} |" for key in model.model_fields]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _key(model: type[BaseModel], key: str) -> str:
    default = _default(model, key)
    return f"`{key}`" + (f" (default {default})" if default else "")


def _default(model: type[BaseModel], key: str) -> str:
    field = model.model_fields[key]
    if field.is_required():
        return ""
    value: Any = field.default
    if isinstance(value, Phase | Enum):
        return f"{value.value}"
    if value is None or value == () or isinstance(value, BaseModel) or value == "":
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
