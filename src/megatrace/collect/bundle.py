"""The bundle: what a diagnosis was made from, in one file that repeats it anywhere.

A tar archive packed with zstd, which every reader of archives opens: the inputs under ``inputs/``, unpacked,
and under ``.megatrace/`` what else belongs to the run: what was declared, the verdict, the frontier, the
environment. The same inputs make the same bytes. This module knows the format; it is given bytes and gives
bytes, so that packing and unpacking can be tested without files.

Does not choose what is packed, and does not mask it (``masking``).
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from megatrace.collect.jobconfig import parse_job_config
from megatrace.errors import UsageError
from megatrace.model.job import JobConfig, Sourced

SCHEMA = "megatrace.bundle/1"
FOLDER = ".megatrace"
MANIFEST = f"{FOLDER}/bundle.json"
CONFIG = f"{FOLDER}/job.yaml"
INPUTS = "inputs"
LARGEST = 16 << 20
"""Bytes of the manifest and of the configuration that are believed: ten thousand host names take 300 KB."""
LEVEL = 9
"""zstd: text logs shrink 14 fold at 60 MB a second; higher levels gain 5 % for twice the time."""


class Manifest(BaseModel):
    """What stands in ``.megatrace/bundle.json``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: str = Field(alias="schema")
    tool_version: str = ""
    command: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    ranks_per_node: int | None = Field(None, ge=1)
    now: int | None = None
    nodes: tuple[str, ...] = ()
    masked: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Packed:
    """What a bundle says about its job: the declared configuration, and until when the job stood (ns)."""

    job: JobConfig | None
    now: int | None
    manifest: Manifest


def add(archive: tarfile.TarFile, name: str, size: int, content: BinaryIO, modified: int = 0) -> None:
    """One member; nothing in its header depends on who packs it. ``modified`` seconds since the epoch."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, modified
    archive.addfile(member, content)


def add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """A member that is in memory."""
    add(archive, name, len(content), io.BytesIO(content))


def as_json(values: Mapping[str, Any]) -> bytes:
    """Readable JSON with keys in the order given."""
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def read_packed(stream: BinaryIO, path: str) -> Packed | None:
    """What the beginning of an unpacked bundle says; None where it is no bundle.

    Raises UsageError where it is one that this version cannot read, ConfigError where the configuration in it
    is wrong.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            head = dict(_head(archive))
    except (tarfile.TarError, OSError, EOFError, ValueError):
        return None
    if MANIFEST not in head:
        return None
    try:
        manifest = Manifest.model_validate_json(head[MANIFEST])
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole file"
        raise UsageError(f"{path}: {MANIFEST} is damaged ({key}); pack the bundle again") from None
    if manifest.format != SCHEMA:
        raise UsageError(f"{path}: a bundle of another version ({manifest.format}); this one reads {SCHEMA}")
    return Packed(_job(manifest, head.get(CONFIG)), manifest.now, manifest)


def _head(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """The members before the inputs that say what was declared."""
    for member in archive:
        if not member.name.startswith(f"{FOLDER}/"):
            return
        if member.isreg() and member.name in (MANIFEST, CONFIG) and member.size <= LARGEST:
            data = archive.extractfile(member)
            yield member.name, b"" if data is None else data.read()


def _job(manifest: Manifest, config: bytes | None) -> JobConfig | None:
    if config is None and not manifest.hosts and manifest.ranks_per_node is None:
        return None
    text = "" if config is None else config.decode("utf-8", "replace")
    job = parse_job_config(text, path=CONFIG) if config is not None else JobConfig()
    if manifest.hosts:
        job = replace(job, hosts=manifest.hosts)
    if manifest.ranks_per_node is not None:
        job = replace(job, ranks_per_node=Sourced(manifest.ranks_per_node, "--ranks-per-node"))
    return job
