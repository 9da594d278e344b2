"""`megatrace bundle`: everything that a diagnosis was made from, in one file, without personal data.

For handing a problem to somebody else: `megatrace diagnose bundle.tar.zst` there says what it says here.
Names of hosts and users, addresses and secrets are replaced, each everywhere by the same; what was replaced
by what is told to nobody unless asked with ``--mapping``, and that file stays here.

Collects nothing from machines: it packs what there is.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from megatrace import __version__, native
from megatrace.clock import SystemClock
from megatrace.collect import bundle as bundles
from megatrace.collect.masking import Masks
from megatrace.commands import command, output, packing, pipeline
from megatrace.errors import TraceError, UsageError
from megatrace.model.frontier import Frontier
from megatrace.model.job import JobConfig
from megatrace.model.trace import Trace
from megatrace.readers.opening import open_trace
from megatrace.reports import ReportOptions, reports
from megatrace.units import format_count, format_size

SHOWN = ("NCCL_", "CUDA_", "TORCH_", "MEGATRACE_", "SLURM_", "OMP_", "UCX_", "GLOO_")
"""Environment variables that change how a job or this tool runs. Others are nobody's business."""


@command(
    "bundle",
    summary="packs the recordings of a run, masked, to be diagnosed elsewhere",
    examples=[
        "megatrace bundle logs/ -o hang.tar.zst",
        "megatrace bundle logs/ --ranks-per-node 8 --nodes node188 -o node188.tar.zst",
        "megatrace bundle logs/ -o hang.tar.zst --keep-names",
    ],
    order=30,
)
def bundle(
    paths: Annotated[list[str], typer.Argument(help="Files, directories or globs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The bundle: FILE.tar.zst.")],
    nodes: Annotated[str | None, typer.Option(help="Only the inputs of these nodes: a,b,c.")] = None,
    config: Annotated[Path | None, typer.Option(help="What the job was told to be (job.yaml).")] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Names nodes and GPUs from ranks.")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="Node names in order of rank, one a line.")] = None,
    now: Annotated[
        str | None, typer.Option(help="Until when the job stands: ISO time (UTC), epoch seconds, or now.")
    ] = None,
    keep_names: Annotated[bool, typer.Option("--keep-names", help="Mask nothing but secrets.")] = False,
    mapping: Annotated[
        Path | None, typer.Option(help="Write here what was replaced by what; keep that file to yourself.")
    ] = None,
) -> None:
    """Packs the inputs of a run, what was declared, the verdict and the environment.

    Host names, user names, addresses and secrets are replaced by others of the same length, in all files
    alike. The original files are not touched.
    """
    if "-" in paths:
        raise UsageError("a bundle is read twice, so standard input cannot be packed; name a file")
    declared = pipeline.Declared(config, ranks_per_node, hostfile)
    job = declared.job()
    until = None if now is None else pipeline.parse_now(now, SystemClock().now())
    masks = Masks()
    hosts = job.hosts if job is not None else ()
    masks.declare([*hosts, socket.gethostname()], _user())
    chosen = packing.Chosen(paths, packing.look(paths, masks), masks)
    if not chosen.inputs:
        raise TraceError(f"nothing to pack: no file in {', '.join(paths)}")
    trace = _trace(paths, job, chosen)
    if trace is not None:
        masks.declare([place.node for place in trace.places if place.node])
    if nodes is not None:
        wanted = [name.strip() for name in nodes.split(",") if name.strip()]
        chosen.inputs = packing.of_nodes(chosen.inputs, paths, job, wanted)
    if keep_names:
        masks.hosts, masks.users, masks.addresses = set(), set(), set()
    masks.settle()
    size = packing.write(out, chosen, _before(chosen, job, config, until), _after(chosen, trace, until))
    if mapping is not None:
        output.write_whole(mapping, json.dumps(masks.mapping(), indent=1, ensure_ascii=False) + "\n")
        mapping.chmod(0o600)
    _tell(out, size, chosen, keep_names)


def _user() -> list[str]:
    try:
        return [getpass.getuser()]
    except (KeyError, OSError):  # a container without an entry for its user
        return []


def _trace(paths: Sequence[str], job: JobConfig | None, chosen: packing.Chosen) -> Trace | None:
    """The inputs as a trace; what cannot be read is packed all the same, for that is worth reporting."""
    try:
        trace = open_trace(paths)
    except TraceError as error:
        chosen.notes.append(f"no diagnosis: {error}")
        return None
    return trace if job is None else trace.with_job(job)


def _before(
    chosen: packing.Chosen, job: JobConfig | None, config: Path | None, until: int | None
) -> dict[str, bytes]:
    """What is read before the inputs: the manifest and the declared configuration."""
    assert chosen.masks is not None  # the command made them
    apply = chosen.masks.text
    per_node = job.ranks_per_node.value if job is not None and job.ranks_per_node is not None else None
    manifest = {
        "schema": bundles.SCHEMA,
        "tool_version": __version__,
        "command": [apply(word) for word in sys.argv[1:]],
        "hosts": [apply(host) for host in job.hosts] if job is not None else [],
        "ranks_per_node": per_node,
        "now": until,
        "inputs": [apply(item.name) for item in chosen.inputs],
        "masked": {what.value: count for what, count in chosen.masks.counts().items()},
        "notes": [apply(note) for note in chosen.notes],
    }
    members = {bundles.MANIFEST: bundles.as_json(manifest)}
    if config is not None:
        members[bundles.CONFIG] = chosen.masks.apply(config.read_bytes())
    return members


def _after(chosen: packing.Chosen, trace: Trace | None, until: int | None) -> dict[str, bytes]:
    """The verdict, the frontier and the environment: for people, and for those who cannot read the inputs."""
    assert chosen.masks is not None  # the command made them
    members = {f"{bundles.FOLDER}/environment.json": bundles.as_json(_environment(chosen.masks, os.environ))}
    if trace is None:
        return members
    named = replace(trace, job=replace(trace.job, hosts=tuple(map(chosen.masks.text, trace.job.hosts))))
    report = reports.get("json")(pipeline.diagnose_trace(named, until), ReportOptions())
    text = report if isinstance(report, bytes) else report.encode("utf-8")
    members[f"{bundles.FOLDER}/diagnosis.json"] = chosen.masks.apply(text)
    frontier = Frontier.from_events(trace.events, trace.communicators, trace.snapshot_at)
    members[f"{bundles.FOLDER}/frontier.bin"] = frontier.to_bytes()
    return members


def _environment(masks: Masks, environment: Mapping[str, str]) -> dict[str, Any]:
    """Where the bundle was packed."""
    status = native.status()
    shown = {key: value for key, value in sorted(environment.items()) if key.startswith(SHOWN)}
    lines = masks.text("\n".join(f"{key}={value}" for key, value in shown.items()))
    return {
        "megatrace": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "native": status.loaded,
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "variables": dict(line.partition("=")[::2] for line in lines.splitlines()),
    }


def _tell(out: Path, size: int, chosen: packing.Chosen, keep_names: bool) -> None:
    assert chosen.masks is not None  # the command made them
    inputs = f"{format_count(len(chosen.inputs))} input{'' if len(chosen.inputs) == 1 else 's'}"
    unpacked = format_size(sum(item.size for item in chosen.inputs))
    print(f"{inputs} ({unpacked}) packed into {out} ({format_size(size)}).")
    counts = [f"{format_count(n)} {what.value}" for what, n in chosen.masks.counts().items() if n]
    print(f"Masked: {', '.join(counts)}." if counts else "Masked: nothing was found to mask.")
    if keep_names:
        print("Names and addresses were kept, as asked: the bundle tells where the job ran.")
    for note in chosen.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"Next: megatrace diagnose {shlex.quote(str(out))}")
