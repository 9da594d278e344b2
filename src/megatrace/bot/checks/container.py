"""The container runtime of a node, and the communication settings of the ranks that run in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.bot.processes import processes
from megatrace.model.finding import Severity
from megatrace.model.system import Unreadable, Why

RUNTIMES = (("crictl", "info"), ("docker", "info", "--format", "{{.ServerVersion}}"))
ANSWER_S = 10.0
"""A runtime that needs longer for its own version does not start a container in time either."""
WATCHED = re.compile(r"^(NCCL_[A-Z0-9_]+)=(.*)$")
NOISY = {"NCCL_DEBUG": ("TRACE",)}
"""Settings that cost time on every call, whatever a template says."""


@check(
    "CTR-02",
    summary="a container runtime that does not answer",
    subject="container",
    severity="P1",
    step="A1",
    kind="software",
    period_s=300,
    timeout_s=30,
    observe=True,
)
def runtime(look: Look) -> Iterator[Problem]:
    """Whether containerd, CRI-O or Docker answers.

    Source: `crictl info`, else `docker info`. Threshold: no answer in 10 s. Remedy: restart the runtime on a
    node without jobs."""
    for argv in RUNTIMES:
        ran = look.run(*argv, timeout_s=ANSWER_S)
        if ran.why is Why.ABSENT:
            continue
        if ran.why is Why.HUNG or (ran.code or 0) != 0:
            yield look.fail(f"the container runtime does not answer: {ran.problem}", device=argv[0])
        look.said = f"{argv[0]} answers"
        return
    raise Skipped("neither crictl nor docker is installed")


@check(
    "CTR-04",
    summary="communication settings of running ranks that differ from the policy",
    subject="container",
    severity="P3",
    step="A0",
    kind="configuration",
    period_s=300,
    observe=True,
)
def nccl_settings(look: Look) -> Iterator[Problem]:
    """NCCL_* variables of the ranks that run here, against the template and against each other.

    One rank that reaches for another network than its peers slows all of them. Source: `/proc/PID/environ` of
    processes with GPUs. Threshold: a value that is not the template's (`nccl.env.NAME`); ranks of one job
    that differ; `NCCL_DEBUG=TRACE`. Remedy: tell the job's owner; nothing is changed under a running job."""
    wanted = {
        key.removeprefix("nccl.env."): str(value)
        for key, value in look.template.items()
        if key.startswith("nccl.env.")
    }
    found = {pid: settings for pid in _ranks(look) if (settings := _settings(look, pid)) is not None}
    if not found:
        raise Skipped("no rank runs here that could be looked at")
    for name in sorted({name for settings in found.values() for name in settings} | set(wanted)):
        values = {settings.get(name, "") for settings in found.values()}
        bad = values & set(NOISY.get(name, ()))
        if bad:
            yield look.warn(f"{name} is {bad.pop()} on a running rank", severity=Severity.P3, key=name)
        elif name in wanted and values != {wanted[name]}:
            shown = ", ".join(sorted(value or "not set" for value in values))
            yield look.warn(
                f"{name} is {shown}, the template says {wanted[name]}", severity=Severity.P3, key=name
            )
        elif name not in wanted and len(values) > 1 and not name.endswith(("_FILE", "_DUMP", "_COMM_ID")):
            shown = ", ".join(sorted(value or "not set" for value in values))
            yield look.warn(f"ranks on this node differ in {name}: {shown}", severity=Severity.P3, key=name)
    look.said = f"{len(found)} ranks"


def _ranks(look: Look) -> list[int]:
    return [item.pid for item in processes(look) if re.search(r"python|torchrun|train", item.name)]


def _settings(look: Look, pid: int) -> dict[str, str] | None:
    """NCCL_* of a process that says its rank; None for any other process, or one of another user."""
    try:
        items = look.system.read(f"/proc/{pid}/environ").split("\0")
    except Unreadable:
        return None
    if not any(item.startswith(("RANK=", "SLURM_PROCID=", "OMPI_COMM_WORLD_RANK=")) for item in items):
        return None
    matches = (WATCHED.match(item) for item in items)
    return {match[1]: match[2] for match in matches if match}
