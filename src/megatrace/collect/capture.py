"""Finds out what a job is told to be from how it is started, so that nobody has to write ``job.yaml``.

Looks at the command line, the configuration files that it names, and the environment, in this order of
trust: an argument overrides a file in every framework there is. What follows by arithmetic (data parallel
size, virtual stages, the schedule) is marked as worked out. A script that hides its arguments hides them
from here, too; the recorder keeps the arguments of each rank and ``refine`` reads them afterwards.

Does not check the values against each other or against the calls: ``analysis`` does, and believes the calls.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from megatrace.collect import blind_spots, frameworks
from megatrace.collect.frameworks import FIELDS, Found
from megatrace.collect.jobconfig import MAX_BYTES
from megatrace.model.blind_spots import of_features
from megatrace.model.job import JobConfig, ScheduleKind, Sourced

MAX_FILES = 8
"""Files that one command line may name; real ones name one or two."""


def capture(
    argv: Sequence[str], environment: Mapping[str, str], folder: Path
) -> tuple[JobConfig, tuple[str, ...]]:
    """(configuration, notes on files that could not be read). ``folder`` is where relative paths begin.

    Raises nothing: what cannot be read is a note, for the job must start.
    """
    found, features, files = frameworks.from_arguments(argv)
    config_file = environment.get("CONFIG_FILE")
    if config_file:  # torchtitan's run_train.sh
        files.append(("torchtitan", config_file))
    notes: list[str] = []
    for kind, name in files[:MAX_FILES]:
        values, note = _read(kind, folder / name)
        if note:
            notes.append(note)
        more, switched = frameworks.from_file(values, Path(name).name)
        found = {**more, **found}
        features = {**switched, **features}
    found = {**frameworks.from_environment(environment), **found}
    job = _job(found, features)
    hidden = {spot.value: source for spot, source in of_features(features).items()}
    hidden |= blind_spots.of_environment(environment)
    return with_unobserved(job, sourced(hidden)), tuple(notes)


def sourced(hidden: Mapping[str, str]) -> list[Sourced[tuple[str, ...]]]:
    """Blind spot → source as values of a configuration."""
    return [Sourced((word,), source) for word, source in hidden.items()]


def refine(job: JobConfig, argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> JobConfig:
    """``job`` with what the arguments of a rank add. What was known before stays."""
    more, _ = capture(argv, environment, folder)
    values = {
        item.name: getattr(job, item.name) or getattr(more, item.name)
        for item in fields(JobConfig)
        if item.name not in ("hosts", "unobserved")
    }
    values["unobserved"] = job.unobserved
    refined = JobConfig(**values, hosts=job.hosts)
    return with_unobserved(refined, [more.unobserved] if more.unobserved else [])


def with_unobserved(job: JobConfig, more: Sequence[Sourced[tuple[str, ...]]]) -> JobConfig:
    """``job`` with further communication that is not recorded; each word once, with its first source."""
    known = job.unobserved
    for said in more:
        new = [word for word in said.value if known is None or word not in known.value]
        if new:
            words = sorted({*new, *(known.value if known else ())})
            sources = [known.source, said.source] if known else [said.source]
            known = Sourced(tuple(words), ", ".join(dict.fromkeys(sources)))
    return replace(job, unobserved=known)


def _job(found: Found, features: Mapping[str, str]) -> JobConfig:
    def count(field: str) -> Sourced[int] | None:
        value, source = found.get(field, (None, ""))
        return Sourced(value, source) if isinstance(value, int) else None

    values: dict[str, Any] = {field: count(field) for field in FIELDS}
    nodes, per_node = count("nodes"), count("per_node")
    if nodes and per_node and values["world_size"] is None:
        source = f"{nodes.source} × {per_node.source}"
        values["world_size"] = Sourced(nodes.value * per_node.value, source)
    elif per_node and values["world_size"] is None and "nproc" in per_node.source and not nodes:
        values["world_size"] = per_node  # torchrun without --nnodes starts one node
    values["ranks_per_node"] = values["ranks_per_node"] or per_node
    values["virtual"] = values["virtual"] or _virtual(values, count("layers_per_chunk"))
    values["data"] = _data(values)
    values["schedule"] = _schedule(values, found)
    order = found.get("order")
    values["order"] = Sourced(str(order[0]), order[1]) if order else None
    if features:
        values["features"] = Sourced(tuple(sorted(features)), ", ".join(sorted(set(features.values()))))
    return JobConfig(**values)


def _virtual(values: Mapping[str, Any], per_chunk: Sourced[int] | None) -> Sourced[int] | None:
    layers, stages = values["layers"], values["pipeline"]
    if not (per_chunk and layers and stages) or layers.value % (stages.value * per_chunk.value):
        return None
    return Sourced(layers.value // (stages.value * per_chunk.value), per_chunk.source)


def _data(values: Mapping[str, Any]) -> Sourced[int] | None:
    """World size over the product of the other axes. Only where tensor or pipeline was declared: a job that
    declares neither may still be sharded in a way that nobody named."""
    world = values["world_size"]
    if world is None or not (values["tensor"] or values["pipeline"]):
        return None
    others = 1
    for axis in ("tensor", "pipeline", "context"):
        others *= values[axis].value if values[axis] else 1
    if world.value % others:
        return None
    return Sourced(world.value // others, "world size over tensor × pipeline × context")


def _schedule(values: Mapping[str, Any], found: Found) -> Sourced[ScheduleKind] | None:
    named = found.get("schedule_name")
    if named is not None:
        return Sourced(ScheduleKind(named[0]), named[1])
    stages, virtual = values["pipeline"], values["virtual"]
    if stages is None or stages.value == 1 or "model-parallel" not in stages.source:
        return None  # only Megatron-LM has one schedule for each of the two cases
    if virtual is not None and virtual.value > 1:
        return Sourced(ScheduleKind.INTERLEAVED, virtual.source)
    return Sourced(ScheduleKind.ONE_F_ONE_B, stages.source)


def _read(kind: str, path: Path) -> tuple[Mapping[str, object], str]:
    """(mapping, '') or ({}, why not)."""
    ending = path.suffix.lower()
    if kind == "any" and ending not in (".json", ".toml", ".yaml", ".yml"):
        return {}, ""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return {}, f"{path}: larger than {MAX_BYTES >> 20} MiB, not read for the configuration"
        values = _parsed(content.decode("utf-8-sig"), ending)
    except OSError as error:
        return {}, f"{path}: cannot be read for the configuration: {error.strerror}"
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        return {}, f"{path}: not understood as configuration: {str(error).partition(chr(10))[0]}"
    return (values, "") if isinstance(values, Mapping) else ({}, "")


def _parsed(text: str, ending: str) -> object:
    if ending == ".json":
        return json.loads(text)
    if ending != ".toml":
        return yaml.safe_load(text)
    try:
        toml = importlib.import_module("tomllib")
    except ImportError:
        raise ValueError("TOML is read from Python 3.11 on") from None
    return toml.loads(text)


def job_file(job: JobConfig) -> str:
    """The configuration as the text of a ``job.yaml``, each value with its source behind it."""
    sections: dict[str, list[str]] = {"": []}
    for section, key, field in _PLACES:
        value = getattr(job, field)
        if value is None:
            continue
        shown = value.value.value if isinstance(value.value, ScheduleKind) else value.value
        if isinstance(shown, tuple):
            shown = "[" + ", ".join(shown) + "]"
        indent = "  " if section else ""
        source = value.source.replace("\n", " ")
        sections.setdefault(section, []).append(f"{indent}{key}: {shown}  # {source}")
    parts = ["# What the job was told to be, as megatrace run found it; after the # where it was read."]
    parts += sections.pop("")
    for name, lines in sections.items():
        parts += [f"{name}:", *lines]
    return "\n".join(parts) + "\n"


_PLACES = (
    ("", "world_size", "world_size"),
    ("", "ranks_per_node", "ranks_per_node"),
    ("", "order", "order"),
    ("", "schedule", "schedule"),
    ("", "features", "features"),
    ("", "unobserved", "unobserved"),
    ("parallel", "tensor", "tensor"),
    ("parallel", "pipeline", "pipeline"),
    ("parallel", "data", "data"),
    ("parallel", "context", "context"),
    ("parallel", "expert", "expert"),
    ("parallel", "virtual", "virtual"),
    ("batch", "micro", "micro_batch"),
    ("batch", "global", "global_batch"),
    ("model", "layers", "layers"),
    ("model", "hidden", "hidden"),
    ("model", "sequence_length", "sequence_length"),
    ("model", "vocabulary", "vocabulary"),
)
"""(section of ``job.yaml``, key, field of ``JobConfig``)."""
