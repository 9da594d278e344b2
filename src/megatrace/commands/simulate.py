"""`megatrace simulate`: the logs of a job that never ran, with a fault of your choice and the truth beside
them.

For learning what a hang or a straggler looks like, and for trying the tool on a job of one's own shape before
it is needed. The truth goes beside the logs and never among them, so that what diagnoses them cannot peek.
"""

from __future__ import annotations

import json
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml

from megatrace.commands import command, output, pipeline
from megatrace.errors import UsageError
from megatrace.simulator import (
    Scenario,
    Simulation,
    builtin_scenarios,
    load_scenario,
    named_scenario,
    simulate,
    with_counterfactual,
)
from megatrace.simulator.emit import free_space, write_text
from megatrace.simulator.emit_flight_recorder import ENTRIES, TIMEOUT_MS, write_dumps
from megatrace.simulator.emit_kineto import write_profiles
from megatrace.simulator.truth import Truth

LINE_BYTES = 160
"""An upper bound of a line of any dialect, for asking whether the disk has room."""
ON_DEMAND_NS = 200_000_000
"""Between the last call of a moving job and the dumps that somebody asked for."""


class Dialect(str, Enum):
    """Layouts of a call log, dumps of PyTorch's flight recorder, and profiles of PyTorch."""

    bare = "bare"
    op_count = "opCount"
    group_hash = "groupHash"
    bracketed = "bracketed"
    flight_recorder = "flight-recorder"
    kineto = "kineto"


@command(
    "simulate",
    summary="writes the logs of a simulated job, with a fault and the truth",
    examples=[
        "megatrace simulate stuck-host --out /tmp/job/logs",
        "megatrace simulate --list",
        "megatrace simulate my-job.yaml --out /tmp/job/logs --dialect opCount --seed 7",
        "megatrace simulate stuck-kernel --out /tmp/job/dumps --dialect flight-recorder",
    ],
    order=40,
)
def simulate_(
    scenario: Annotated[
        str | None, typer.Argument(help="A scenario file (YAML), or the name of one that comes with it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the logs, empty or not there yet.")] = None,
    dialect: Annotated[Dialect, typer.Option(help="Layout of the lines.")] = Dialect.group_hash,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed than the scenario's.")] = None,
    names: Annotated[bool, typer.Option("--list", help="List the scenarios that come with it.")] = False,
) -> None:
    """Simulates a training job and writes one call log a rank.

    `truth.json` (what was broken) and `job.yaml` (what a user would declare) go beside the folder of the
    logs.
    """
    if names:
        _list()
        return
    if scenario is None:
        raise UsageError(
            "no scenario: name a YAML file or one of those that `megatrace simulate --list` shows"
        )
    if out is None:
        raise UsageError("no place for the logs: name an empty folder with --out")
    chosen = _scenario(scenario)
    if seed is not None:
        chosen = chosen.model_copy(update={"seed": seed})
    _check(out)
    begin = time.monotonic()
    with pipeline.progress() as say:
        if say is not None:
            say(0, 0, f"simulating {chosen.world_size:,} ranks")
        run = with_counterfactual(simulate(chosen, kernels=dialect is Dialect.kineto))
        needed, free = len(run.trace.events) * LINE_BYTES, free_space(out)
        if needed > free:
            raise UsageError(
                f"{out}: the logs need up to {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
                "name a folder on a larger disk"
            )
        lines = _write(run, out, dialect, say)
    output.write_whole(out.parent / "truth.json", json.dumps(run.truth.as_json(), indent=1) + "\n")
    output.write_whole(out.parent / "job.yaml", yaml.safe_dump(job_yaml(chosen), sort_keys=False))
    seconds = time.monotonic() - begin
    print(f"{lines:,} calls of {chosen.world_size:,} ranks written to {out} in {seconds:.1f} s.")
    print(f"The truth is in {out.parent / 'truth.json'}: {_said(run.truth)}.")
    told = f"diagnose {out} --ranks-per-node {chosen.ranks_per_node}"
    print(f"Next: megatrace {f'profile {out}' if dialect is Dialect.kineto else told}")


def _write(run: Simulation, out: Path, dialect: Dialect, say: pipeline.Say | None) -> int:
    """Writes the recording; how many calls it holds."""
    trace, chosen = run.trace, run.scenario

    def progress(done: int, of: int) -> None:
        if say is not None:
            say(done, of, "writing logs")

    if dialect is Dialect.kineto:
        write_profiles(run, out, progress)
        return len(trace.events)
    if dialect is not Dialect.flight_recorder:
        return write_text(trace, out, dialect.value, progress)
    # A watchdog dumps when a call has not completed in time; a job that is cut while it moves, on demand.
    wait = TIMEOUT_MS * 1_000_000 if chosen.capture.cut_at_s is None else ON_DEMAND_NS
    write_dumps(trace, out, written_at=int(trace.events.enqueue.max()) + wait, progress=progress)
    _, bounds = trace.events.offsets()
    return int(np.minimum(np.diff(bounds), ENTRIES).sum())


def _list() -> None:
    found = {name: load_scenario(path) for name, path in builtin_scenarios().items()}
    width = max(len(name) for name in found)
    for name, item in found.items():
        print(f"{name:<{width}}  {item.description}")


def _scenario(word: str) -> Scenario:
    """A file where the word names one or looks like one, else one that comes with MegaTrace."""
    path = Path(word)
    if path.suffix in (".yaml", ".yml") or "/" in word or path.is_file():
        return load_scenario(path)
    return named_scenario(word)


def _check(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: is a file; name a folder with --out")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(
            f"{out}: is not empty: its files would be taken for logs of this job; name another --out"
        )


def _said(truth: Truth) -> str:
    if not truth.faults:
        return "nothing is wrong"
    return "; ".join(
        f"{fault.kind.value}"
        + (f" of rank {', '.join(map(str, fault.ranks[:8]))}" if fault.ranks else "")
        + ("" if fault.positive else " (absorbed: it lengthens no iteration by 5 %)")
        for fault in truth.faults
    )


def job_yaml(scenario: Scenario) -> dict[str, object]:
    """The configuration of the job in the form of ``job.yaml``."""
    return {
        "world_size": scenario.world_size,
        "ranks_per_node": scenario.ranks_per_node,
        "parallel": {
            "tensor": scenario.tp,
            "pipeline": scenario.pp,
            "data": scenario.dp,
            "context": scenario.cp,
            "expert": scenario.ep,
            "virtual": scenario.vpp,
        },
        "order": scenario.order,
        "batch": {
            "micro": scenario.micro_batch_size,
            "global": scenario.micro_batch_size * scenario.micro_batches * scenario.dp,
        },
        "schedule": scenario.plan.kind.value,
        "model": {
            "layers": scenario.layers_per_stage * scenario.pp,
            "hidden": scenario.hidden,
            "sequence_length": scenario.sequence_length,
            "vocabulary": scenario.vocabulary,
        },
    }
