"""What each training framework calls the values of a ``JobConfig``, and what they imply.

Tables, and the pure functions that read them: argument names of Megatron-LM, keys of DeepSpeed's JSON, of
torchtitan's TOML and of Megatron's and NeMo's YAML, options of launchers, variables of the environment. A
value that is no positive number is left out rather than guessed: a wrong declaration costs more than none.

Opens no file and reads no environment; that is ``capture``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from megatrace.collect.jobconfig import MAX_COUNT

Found = dict[str, tuple[int | str, str]]
"""Field of ``JobConfig`` (or one of the helping names below) → (value, where it was read)."""

ARGUMENTS: Mapping[str, str] = {
    # Megatron-LM, megatron/training/arguments.py
    "tensor-model-parallel-size": "tensor",
    "pipeline-model-parallel-size": "pipeline",
    "context-parallel-size": "context",
    "expert-model-parallel-size": "expert",
    "num-virtual-stages-per-pipeline-rank": "virtual",
    "num-layers-per-virtual-pipeline-stage": "layers_per_chunk",
    "micro-batch-size": "micro_batch",
    "global-batch-size": "global_batch",
    "num-layers": "layers",
    "hidden-size": "hidden",
    "seq-length": "sequence_length",
    "vocab-size": "vocabulary",
    # torchtitan: any key of its TOML can be given as --section.key
    "parallelism.tensor-parallel-degree": "tensor",
    "parallelism.pipeline-parallel-degree": "pipeline",
    "parallelism.context-parallel-degree": "context",
    "parallelism.expert-parallel-degree": "expert",
    "parallelism.pipeline-parallel-schedule": "schedule_name",
    "training.local-batch-size": "micro_batch",
    "training.global-batch-size": "global_batch",
    "training.seq-len": "sequence_length",
}
"""Arguments with one value, written with dashes; underscores are the same to every one of these parsers."""

SWITCHES: Mapping[str, str] = {
    "sequence-parallel": "sequence_parallel",
    "use-distributed-optimizer": "distributed_optimizer",
    "overlap-grad-reduce": "overlap_grad_reduce",
    "overlap-param-gather": "overlap_param_gather",
    "tp-comm-overlap": "tp_comm_overlap",
    "recompute-activations": "recompute_activations",
    "use-torch-fsdp2": "fsdp2",
    "use-megatron-fsdp": "megatron_fsdp",
    "enable-cuda-graph": "cuda_graphs",
    "moe-enable-deepep": "deepep",
    "overlap-moe-expert-parallel-comm": "overlap_moe",
}
"""Arguments without a value → the feature that they switch on."""

LAUNCHER_SIZES: Mapping[str, str] = {
    "nnodes": "nodes",
    "nproc-per-node": "per_node",
    "num-gpus": "per_node",
    "num-nodes": "nodes",
    "ntasks": "world_size",
    "ntasks-per-node": "per_node",
    "np": "world_size",
    "npernode": "per_node",
}
"""Options of torchrun, deepspeed, srun and mpirun that say how many processes there will be."""

SHORT: Mapping[str, Mapping[str, str]] = {
    "srun": {"n": "world_size", "N": "nodes"},
    "mpirun": {"n": "world_size", "np": "world_size", "N": "per_node", "npernode": "per_node"},
    "mpiexec": {"n": "world_size", "np": "world_size"},
    "torchrun": {},
    "deepspeed": {},
}
"""Options with one dash, which mean other things to other programs."""

FILES: Mapping[str, str] = {
    "deepspeed-config": "deepspeed",
    "deepspeed": "deepspeed",
    "ds-config": "deepspeed",
    "yaml-cfg": "yaml",
    "config-file": "any",
    "job.config-file": "torchtitan",
    "config": "any",
}
"""Arguments that name a file of configuration → the kind of file, ``any`` to go by its ending."""

KEYS: Mapping[str, str] = {
    # Megatron's and NeMo's YAML
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "context_parallel_size": "context",
    "expert_model_parallel_size": "expert",
    "virtual_pipeline_model_parallel_size": "virtual",
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "num_layers": "layers",
    "hidden_size": "hidden",
    "seq_length": "sequence_length",
    "encoder_seq_length": "sequence_length",
    "vocab_size": "vocabulary",
    # torchtitan's TOML, the part after the section
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
    "context_parallel_degree": "context",
    "expert_parallel_degree": "expert",
    "pipeline_parallel_schedule": "schedule_name",
    "local_batch_size": "micro_batch",
    "seq_len": "sequence_length",
    # DeepSpeed's JSON
    "train_micro_batch_size_per_gpu": "micro_batch",
    "train_batch_size": "global_batch",
}
KEY_SWITCHES: Mapping[str, str] = {
    "sequence_parallel": "sequence_parallel",
    "use_distributed_optimizer": "distributed_optimizer",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "tp_comm_overlap": "tp_comm_overlap",
}

ENVIRONMENT: Mapping[str, str] = {
    "WORLD_SIZE": "world_size",
    "OMPI_COMM_WORLD_SIZE": "world_size",
    "SLURM_NTASKS": "world_size",
    "PMI_SIZE": "world_size",
    "LOCAL_WORLD_SIZE": "ranks_per_node",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "ranks_per_node",
    "SLURM_NTASKS_PER_NODE": "ranks_per_node",
}
"""Variables that a process of the job itself is started with. A value of 1 from Slurm says nothing: one
launcher a node is started that way, too."""

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
"""Where a process finds its global rank, in the order in which they are believed. SLURM_PROCID comes after
what torchrun and Open MPI set, for it is there as well where srun only started their launchers."""

SCHEDULES: Mapping[str, str] = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved"}
"""torchtitan's names of schedules → ours."""

FIELDS = frozenset(
    {"world_size", "ranks_per_node", "tensor", "pipeline", "context", "expert", "virtual", "micro_batch"}
    | {"global_batch", "layers", "hidden", "sequence_length", "vocabulary"}
)
"""Fields of ``JobConfig`` that are counts and are read as such."""


def count_of(value: object) -> int | None:
    """A positive count, whatever it is written as; None for anything else (``auto``, -1, null, a float)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) <= len(str(MAX_COUNT)) else 0
    return value if isinstance(value, int) and 1 <= value <= MAX_COUNT else None


def options_of(argv: Sequence[str]) -> Iterator[tuple[str, str | None, str]]:
    """Every option of a command line as (name, value or None, as written), names with dashes.

    ``--a=b``, ``--a b``, ``key=value`` of Hydra and single-dash options alike. A word after an option that
    begins with a dash is no value; of words that belong to no option only ``key=value`` is given.
    """
    for at, word in enumerate(argv):
        following = argv[at + 1] if at + 1 < len(argv) else ""
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            as_written = word.partition("=")[0]
            taken = value if equals else (following if following and not following.startswith("-") else None)
            prefix = "" if word.startswith("--") else "-"
            yield prefix + name.replace("_", "-"), taken, as_written
        elif "=" in word:
            name, _, value = word.partition("=")
            yield "=" + name.lstrip("+"), value, name


def from_arguments(argv: Sequence[str]) -> tuple[Found, dict[str, str], list[tuple[str, str]]]:
    """(values, features with their source, [(kind, path)] of files that the arguments name)."""
    found: Found = {}
    features: dict[str, str] = {}
    files: list[tuple[str, str]] = []
    launcher = next((word.rpartition("/")[2] for word in argv if word.rpartition("/")[2] in SHORT), "")
    for name, value, written in options_of(argv):
        source = f"argv {written}"
        if name.startswith("="):
            _add_key(found, features, name[1:].rpartition(".")[2], value, source)
            continue
        if name.startswith("-"):
            field = SHORT.get(launcher, {}).get(name[1:])
        else:
            field = ARGUMENTS.get(name) or LAUNCHER_SIZES.get(name)
        if name in SWITCHES and (value is None or value.lower() != "false"):
            features.setdefault(SWITCHES[name], source)
        if name == "use-tp-pp-dp-mapping":
            found["order"] = ("tp-cp-ep-pp-dp", source)
        if name in FILES and value is not None:
            files.append((FILES[name], value))
        if field is not None and value is not None:
            _add(found, field, value, source)
    return found, features, files


def from_mapping(
    values: Mapping[str, object], source: str, depth: int = 8
) -> Iterator[tuple[str, object, str]]:
    """Every leaf of nested mappings as (last key, value, ``source: dotted.path``)."""
    for key, value in values.items():
        where = f"{source}{': ' if depth == 8 else '.'}{key}"
        if isinstance(value, Mapping):
            if depth:
                yield from from_mapping(value, where, depth - 1)
        else:
            yield str(key), value, where


def from_file(values: Mapping[str, object], name: str) -> tuple[Found, dict[str, str]]:
    """(values, features) of a configuration file that was parsed into mappings."""
    found: Found = {}
    features: dict[str, str] = {}
    for key, value, source in from_mapping(values, name):
        _add_key(found, features, key, value, source)
    zero = values.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, Mapping) else None
    if isinstance(stage, int) and 1 <= stage <= 3:
        features.setdefault(f"zero{stage}", f"{name}: zero_optimization.stage")
    return found, features


def from_environment(environment: Mapping[str, str]) -> Found:
    """World size and ranks of a node, where the launcher of this process has set them."""
    found: Found = {}
    for name, field in ENVIRONMENT.items():
        size = count_of(environment.get(name, ""))
        if size is not None and not (size == 1 and name.startswith("SLURM_")):
            found.setdefault(field, (size, f"environment {name}"))
    return found


def rank_of(environment: Mapping[str, str]) -> int | None:
    """The global rank of a process with this environment, None where nobody has set it."""
    for name in RANK_VARIABLES:
        word = environment.get(name, "").strip()
        if word.isascii() and word.isdigit():
            return int(word)
    return None


def _add_key(found: Found, features: dict[str, str], key: str, value: object, source: str) -> None:
    if key in KEY_SWITCHES and (value is True or str(value).lower() == "true"):
        features.setdefault(KEY_SWITCHES[key], source)
    field = KEYS.get(key)
    if field is not None:
        _add(found, field, value, source)


def _add(found: Found, field: str, value: object, source: str) -> None:
    """Keeps the last value of an argument, as the parsers do."""
    if field == "schedule_name":
        if isinstance(value, str) and value.lower() in SCHEDULES:
            found[field] = (SCHEDULES[value.lower()], source)
        return
    size = count_of(value)
    if size is not None:
        found[field] = (size, source)
