"""Reads what a job was told to be: ``job.yaml`` and the host file.

Written by hand, often in a hurry, so each mistake gets one sentence with the key path, the value, what is
allowed and the key that was probably meant. Both files are untrusted input: YAML without tags, aliases or
repeated keys, size bounded. Whether the values agree with each other or with the calls is not checked here
(``model.declared``, ``analysis.infer_layout``): a stale file must not stop a diagnosis.
"""

from __future__ import annotations

from collections.abc import Hashable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from megatrace.errors import ConfigError, UsageError, clip
from megatrace.model.blind_spots import BlindSpot
from megatrace.model.job import JobConfig, ScheduleKind, Sourced

MAX_BYTES = 1 << 20
"""A job.yaml has a kilobyte; a host file of 100,000 nodes with long names still fits."""
MAX_COUNT = 10_000_000
"""A hundred times the largest job there is: a slip of the keyboard must not allocate an array of that
size."""
AXES = ("tp", "cp", "ep", "dp", "pp")
ORDER = "each of tp, cp, ep, dp and pp once, such as tp-cp-ep-dp-pp"

T = TypeVar("T")
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
Word = Annotated[str, Field(strict=True, min_length=1, max_length=200)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ParallelSection(_Section):
    """Sizes of the parallel axes, in GPUs."""

    tensor: Count | None = Field(default=None, description="tensor parallel size (TP)")
    pipeline: Count | None = Field(default=None, description="pipeline stages (PP)")
    data: Count | None = Field(default=None, description="data parallel size (DP)")
    context: Count | None = Field(default=None, description="context parallel size (CP)")
    expert: Count | None = Field(
        default=None, description="expert parallel size (EP); divides data × context"
    )
    virtual: Count | None = Field(
        default=None, description="model chunks per stage of the interleaved schedule"
    )


class BatchSection(_Section):
    """Batch sizes, in sequences."""

    micro: Count | None = Field(default=None, description="sequences in a micro-batch")
    whole: Count | None = Field(
        default=None, alias="global", description="sequences in an iteration of the job"
    )


class ModelSection(_Section):
    """Shape of the model: what its compute and messages should cost."""

    layers: Count | None = Field(default=None, description="transformer layers of the whole model")
    hidden: Count | None = Field(default=None, description="hidden size")
    sequence_length: Count | None = Field(default=None, description="tokens in a sequence")
    vocabulary: Count | None = Field(default=None, description="size of the vocabulary")


class JobFile(_Section):
    """``job.yaml``. Every key may be left out: what is not declared is inferred from the recordings."""

    world_size: Count | None = Field(default=None, description="ranks (GPUs) of the job")
    ranks_per_node: Count | None = Field(
        default=None, description="ranks on a node; names nodes and GPUs from ranks"
    )
    parallel: ParallelSection | None = Field(default=None, description="sizes of the parallel axes")
    order: Word | None = Field(
        default=None, description="order of the axes, fastest first, as Megatron-LM writes it"
    )
    batch: BatchSection | None = Field(default=None, description="batch sizes")
    schedule: ScheduleKind | None = Field(default=None, description="pipeline schedule")
    model: ModelSection | None = Field(default=None, description="shape of the model")
    gpu: Word | None = Field(default=None, description="type of the GPU, such as `H100 SXM`")
    features: Annotated[list[Word], Field(max_length=100)] | None = Field(
        default=None,
        description="what is switched on, such as `sequence_parallel` or `distributed_optimizer`",
    )
    unobserved: Annotated[list[Word], Field(max_length=100)] | None = Field(
        default=None,
        description="communication that is not recorded: "
        + ", ".join(f"`{spot.value}`" for spot in BlindSpot),
    )


SYNONYMS = {
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "data",
    "cp": "context",
    "ep": "expert",
    "vpp": "virtual",
    "gbs": "global",
    "mbs": "micro",
    "gpus": "world_size",
    "gpu_type": "gpu",
    "hidden_size": "hidden",
    "num_layers": "layers",
    "seq_length": "sequence_length",
    "vocab_size": "vocabulary",
}
"""What other tools call the keys: no typo, so similarity alone would not find them."""


def read_job_config(path: Path) -> JobConfig:
    """The configuration in ``path``. ``UsageError``: it is no YAML, ``ConfigError``: it is wrong."""
    return parse_job_config(_read(path), path.name, str(path))


def parse_job_config(text: str, name: str = "job.yaml", path: str = "") -> JobConfig:
    """The configuration in YAML text; ``name`` goes into the sources, ``path`` into errors.

    Raises like ``read_job_config``.
    """
    path = path or name
    values = _yaml(text, path)
    try:
        file = JobFile.model_validate(values)
    except ValidationError as error:
        raise _config_error(error, path) from None
    if file.order is not None and sorted(file.order.split("-")) != sorted(AXES):
        raise ConfigError("order", file.order, ORDER, path=path)
    parallel = file.parallel or ParallelSection()
    batch, model = file.batch or BatchSection(), file.model or ModelSection()

    def said(value: T | None, key: str) -> Sourced[T] | None:
        return None if value is None else Sourced(value, f"{name}: {key}")

    return JobConfig(
        world_size=said(file.world_size, "world_size"),
        ranks_per_node=said(file.ranks_per_node, "ranks_per_node"),
        tensor=said(parallel.tensor, "parallel.tensor"),
        pipeline=said(parallel.pipeline, "parallel.pipeline"),
        data=said(parallel.data, "parallel.data"),
        context=said(parallel.context, "parallel.context"),
        expert=said(parallel.expert, "parallel.expert"),
        virtual=said(parallel.virtual, "parallel.virtual"),
        order=said(file.order, "order"),
        micro_batch=said(batch.micro, "batch.micro"),
        global_batch=said(batch.whole, "batch.global"),
        schedule=said(file.schedule, "schedule"),
        layers=said(model.layers, "model.layers"),
        hidden=said(model.hidden, "model.hidden"),
        sequence_length=said(model.sequence_length, "model.sequence_length"),
        vocabulary=said(model.vocabulary, "model.vocabulary"),
        gpu_type=said(file.gpu, "gpu"),
        features=said(None if file.features is None else tuple(file.features), "features"),
        unobserved=said(None if file.unobserved is None else tuple(file.unobserved), "unobserved"),
    )


def read_hostfile(path: Path) -> tuple[tuple[str, ...], int | None]:
    """Node names in order of rank, and the ranks per node where every line has the same ``slots=N``.

    One host a line as MPI and DeepSpeed write it; ``#`` starts a comment. ``UsageError`` where the file
    cannot be read or names no host, ``ConfigError`` for a line that is none or for unequal slots.
    """
    hosts: list[str] = []
    slots: dict[int, int] = {}
    for number, line in enumerate(_read(path).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, *rest = words
        key = f"line {number}"
        if host in hosts:
            raise ConfigError(key, host, "each host once", path=str(path))
        hosts.append(host)
        if not rest:
            continue
        name, _, value = rest[0].partition("=")
        if len(rest) > 1 or name != "slots" or not value.isdecimal() or not 1 <= int(value) <= MAX_COUNT:
            raise ConfigError(key, " ".join(rest), "slots=N after the host, N at least 1", path=str(path))
        slots[number] = int(value)
    if not hosts:
        raise UsageError(f"{path}: no hosts; write one host name a line")
    if len(set(slots.values())) > 1 or (slots and len(slots) != len(hosts)):
        found = sorted(set(slots.values()))
        raise ConfigError("slots", found, "the same slots=N on every line", path=str(path))
    return tuple(hosts), next(iter(slots.values()), None)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MiB; this is no configuration")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: not text in UTF-8 (byte {error.start}); this is no configuration"
        ) from None


class _Loader(yaml.SafeLoader):
    """Safe YAML, further without aliases (a few lines of them can make gigabytes) and without repeated
    keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _wrong("aliases are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise _wrong("a key must be a word", key.start_mark)
            if key.value in seen:
                raise _wrong(f"the key {clip(key.value)} stands here a second time", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _wrong(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def _yaml(text: str, path: str) -> dict[str, Any]:
    try:
        # A subclass of SafeLoader: no tags that make objects.
        values = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path} line {mark.line + 1}" if mark else path
        problem = clip(error.problem or "broken", 120)[1:-1]
        raise UsageError(f"{where}: not the YAML of a configuration: {problem}") from None
    except RecursionError:
        raise UsageError(f"{path}: not the YAML of a configuration: nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise UsageError(f"{path}: not the YAML of a configuration: {said}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError("the whole file", values, f"a mapping with keys {_keys(JobFile)}", path=path)
    return values


def _config_error(error: ValidationError, path: str) -> ConfigError:
    """The first thing that is wrong, in the words of the file."""
    first = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    location = [str(part) for part in first["loc"] if not str(part).startswith("function-")]
    key = ".".join(location)
    section = _section(location[:-1])
    if first["type"] == "extra_forbidden":
        allowed = f"one of {_keys(section)}"
        return ConfigError(key, location[-1], allowed, path=path, do=_meant(location[-1], section))
    return ConfigError(key, first["input"], _allowed(location), path=path)


def _meant(name: str, section: type[BaseModel]) -> str:
    """A hint at the key that was probably meant, wherever in the file it belongs; '' where none is near."""
    places = {key: key for key in _names(JobFile)}
    for part in ("parallel", "batch", "model"):
        places |= {f"{part}.{key}": key for key in _names(_section([part]))}
    wanted = SYNONYMS.get(name.lower(), name.lower())
    near = get_close_matches(wanted, _names(section), n=1) or get_close_matches(wanted, places.values(), n=1)
    if not near:
        return ""
    own = near[0] in _names(section)
    full = near[0] if own else next(place for place, key in places.items() if key == near[0])
    return f"did you mean {full}?"


def _names(section: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items()]


def _keys(section: type[BaseModel]) -> str:
    return ", ".join(_names(section))


def _section(location: list[str]) -> type[BaseModel]:
    """The model of the section that a key path stands in."""
    sections: dict[str, type[BaseModel]] = {
        "parallel": ParallelSection,
        "batch": BatchSection,
        "model": ModelSection,
    }
    return sections.get(location[0], JobFile) if location else JobFile


def _allowed(location: list[str]) -> str:
    """What may stand at a key path."""
    if location == ["schedule"]:
        return ", ".join(kind.value for kind in ScheduleKind)
    if location[0] in ("features", "unobserved"):
        return "a list of words"
    if location[0] == "order":
        return ORDER
    if location[0] == "gpu":
        return "a word"
    if len(location) == 1 and _section(location) is not JobFile:
        return f"a mapping with keys {_keys(_section(location))}"
    return f"a whole number from 1 to {MAX_COUNT:,}"


def reference_page() -> str:
    """The reference of ``job.yaml`` as Markdown, from the models above."""
    parts = ["# job.yaml", "", _INTRODUCTION, "", "```yaml", _EXAMPLE.strip(), "```", ""]
    parts += ["| key | value | meaning |", "|---|---|---|"]
    for name in JobFile.model_fields:
        section = _section([name])
        if section is JobFile:
            parts.append(_row([name], JobFile, name))
            continue
        fields = section.model_fields.items()
        parts += [_row([name, field.alias or key], section, key) for key, field in fields]
    return "\n".join([*parts, "", _RULES.strip(), ""])


def _row(location: list[str], section: type[BaseModel], name: str) -> str:
    return f"| `{'.'.join(location)}` | {_allowed(location)} | {section.model_fields[name].description} |"


_INTRODUCTION = (
    "What the job was told to be. Every key may be left out: the rest is inferred from the recordings."
)
_EXAMPLE = """
world_size: 3480
ranks_per_node: 8
parallel: {tensor: 8, pipeline: 5, data: 87}
batch: {micro: 1, global: 696}
schedule: 1f1b
model: {layers: 40, hidden: 8192, sequence_length: 4096, vocabulary: 128256}
gpu: H100 SXM
features: [sequence_parallel, distributed_optimizer]
"""

_RULES = """
A value that contradicts the recordings gives a warning, and the recordings are believed. A key that does not
exist or a value that is not allowed ends the command with exit code 2. The file is YAML in UTF-8 of at most 1
MiB without tags, aliases and repeated keys.
"""
