"""What a run was told and what it ran on, for comparing it with another: written into ``run.json``, read
from it.

Kept are the variables of the environment that decide how a job runs (NCCL, CUDA, PyTorch, the network
libraries), the commit of the folder that the job was started in, and the nodes that the scheduler gave.
Secrets do not belong here: only named prefixes are kept, and of those nothing that looks like a credential.

Does not run git, and asks no scheduler: both are read from what lies there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megatrace.model.run_settings import Area, Setting

PREFIXES = (
    "NCCL_", "RCCL_", "TORCH_", "PYTORCH_", "CUDA_", "HIP_", "HSA_", "UCX_", "GLOO_", "FI_", "OMP_", "MKL_",
    "NVTE_", "NVSHMEM_", "LD_PRELOAD",
)  # fmt: skip
"""Variables that change how fast a job runs."""
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|_KEY", re.IGNORECASE)
NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
RUN_FILE = "run.json"
MAX_BYTES = 4 << 20
MAX_VALUE = 2_000
"""Characters of a value: a library path of some dozen folders."""
MAX_NODES = 100_000
PARENTS = 3
"""Folders above a recording in which its ``run.json`` may lie: rings/ or profiles/ of the run's own
folder."""
_COMMIT = re.compile("[0-9a-f]{40,64}")
_BRACKETS = re.compile(r"([^,\[\]]*)\[([0-9,\-]+)\]([^,\[\]]*)|([^,\[\]]+)")


def surroundings(environment: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """What ``run.json`` says of the environment, the commit and the nodes; parts that are not known are left
    out."""
    kept = {
        name: value[:MAX_VALUE]
        for name, value in sorted(environment.items())
        if name.startswith(PREFIXES) and not _SECRET.search(name)
    }
    found: dict[str, Any] = {"environment": kept}
    commit = commit_of(folder)
    if commit:
        found["commit"] = commit
    nodes = next((environment[name] for name in NODE_LISTS if environment.get(name)), "")
    if nodes:
        found["nodes"] = list(expanded(nodes))
    return found


def commit_of(folder: Path) -> str:
    """The commit that is checked out in a folder or one above it, "" where there is none."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        try:
            if git.is_file():  # a worktree or a submodule
                git = place / git.read_text("utf-8").partition("gitdir:")[2].strip()
            if not git.is_dir():
                continue
            head = (git / "HEAD").read_text("utf-8").strip()
            return head if _COMMIT.fullmatch(head) else _resolved(git, head.partition("ref:")[2].strip())
        except (OSError, ValueError):
            return ""
    return ""


def _resolved(git: Path, ref: str) -> str:
    common = git / "commondir"
    shared = git / common.read_text("utf-8").strip() if common.is_file() else git
    for place in (git, shared):
        if ref and ".." not in ref and (place / ref).is_file():
            found = (place / ref).read_text("utf-8").strip()
            return found if _COMMIT.fullmatch(found) else ""
    packed = shared / "packed-refs"
    lines = packed.read_text("utf-8").splitlines() if ref and packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {ref}")), "")


def expanded(nodes: str) -> Iterator[str]:
    """The names of Slurm's short form: node[1-3,7],login → node1 node2 node3 node7 login."""
    count = 0
    for before, numbers, after, plain in _BRACKETS.findall(nodes):
        if plain:
            yield plain.strip()
            count += 1
        for part in filter(None, numbers.split(",")):
            first, _, last = part.partition("-")
            for number in range(int(first or 0), int(last or first or 0) + 1):
                count += 1
                if count > MAX_NODES:
                    return
                yield f"{before}{number:0{len(first)}d}{after}"


def settings_near(path: Path) -> tuple[tuple[Setting, ...], str]:
    """(what the ``run.json`` of a recording says, a note where it cannot be read). Both empty where there is
    none."""
    start = path if path.is_dir() else path.parent
    places = [start, *list(start.resolve().parents)[:PARENTS]]
    file = next((place / RUN_FILE for place in places if (place / RUN_FILE).is_file()), None)
    if file is None:
        return (), ""
    try:
        with file.open("rb") as opened:
            told = json.loads(opened.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return (), f"{file} cannot be read: its settings are not compared."
    if not isinstance(told, dict):
        return (), f"{file} is no description of a run: its settings are not compared."
    return tuple(_settings(told)), ""


def _settings(told: dict[str, Any]) -> Iterator[Setting]:
    config, environment = told.get("config"), told.get("environment")
    if isinstance(config, dict):
        for key, said in config.items():
            if isinstance(said, dict) and "value" in said:
                yield Setting(Area.CONFIGURATION, str(key), _word(said["value"]))
    if isinstance(told.get("command"), list):
        yield Setting(Area.CONFIGURATION, "command", " ".join(map(str, told["command"]))[:MAX_VALUE])
    if isinstance(environment, dict):
        for key, value in environment.items():
            yield Setting(Area.ENVIRONMENT, str(key), _word(value))
    if isinstance(told.get("commit"), str):
        yield Setting(Area.COMMIT, "commit", told["commit"][:64])
    nodes = told.get("nodes")
    names = nodes if isinstance(nodes, list) else [told["host"]] if isinstance(told.get("host"), str) else []
    for name in names[:MAX_NODES]:
        yield Setting(Area.NODES, str(name), "in the job")


def _word(value: object) -> str:
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value))[:MAX_VALUE]
