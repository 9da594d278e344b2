"""Slurm: nodes that it lost or that somebody forgot, jobs that do not end, its controller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from megatrace.bot.checks import check
from megatrace.bot.elsewhere import of_node
from megatrace.bot.look import Look, Problem
from megatrace.model.check import Step
from megatrace.model.finding import Severity
from megatrace.units import NS_PER_S

SINFO = ("sinfo", "-N", "-h", "-o", "%N|%T|%H|%u|%E")
"""Node, state, when and by whom the reason was set, the reason. Text, because Slurm's JSON has had another
shape in every second release and this has not changed since 2.3."""
COMPLETING = ("squeue", "-h", "-t", "CG", "-o", "%i|%N|%e|%j")
OURS = re.compile(r"^MT#")
"""How a drain of MegaTrace's own begins; it has an owner who will end it."""
PLANNED = ("reboot", "maint", "planned", "powering", "powered", "power_down", "resv", "blocked")
FORGOTTEN_H = 24.0
"""Hours after which a drain that nobody claims is taken for forgotten: a working day has passed."""
MUTE_S = 120.0
"""A node that was just resumed carries the mark until it is asked again; SlurmdTimeout is 300 s by
default."""
COMPLETING_S = 600.0
"""Slurm's UnkillableStepTimeout is 60 s by default; ten times that is a process that does not die."""


@dataclass(frozen=True, slots=True)
class Node:
    """``state`` in lower case without its marks; ``marks`` are * (no answer), ~ # ! % $ @ ^ (power,
    reboot)."""

    name: str
    state: str
    marks: str
    since: int | None
    by: str
    reason: str


def _nodes(look: Look) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for line in look.output(*SINFO).splitlines():
        cells = line.split("|", 4)
        if len(cells) == 5:
            state = cells[1].strip().lower()
            bare = state.rstrip("*~#!%$@^-+")
            since = _moment(cells[2].strip())
            reason = cells[4].strip()
            found[cells[0].strip()] = Node(
                cells[0].strip(), bare, state[len(bare) :], since, cells[3].strip(), reason
            )
    return found


def _moment(text: str) -> int | None:
    """Slurm prints the local time of the machine that runs the command; a day's limit forgives the zone."""
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return int(moment.timestamp()) * NS_PER_S


@check(
    "SLM-01",
    summary="nodes that Slurm lost, refuses, or that somebody drained and forgot",
    subject="Slurm",
    severity="P1",
    step="A0",
    scope="scheduler",
    must=True,
    period_s=60,
    timeout_s=20,
    kind="software",
)
def node_state(look: Look) -> Iterator[Problem]:
    """The state of every node.

    Source: `sinfo -N`. Threshold: down, not responding (any other state for two minutes), invalid
    registration (INVAL: fewer GPUs or less memory than configured), failing; drained for more than 24 hours
    by nobody who says so (a reason that begins with MT# has an owner). Planned work is no finding: reboot,
    maintenance, power saving, reservation. Remedy: a node that does not respond is first asked through its
    board and a second path, never power-cycled for this alone; a forgotten drain is asked of the person who
    set it."""
    nodes = _nodes(look)
    for node in nodes.values():
        said = f"{node.name} is {node.state}{node.marks}"
        why = f", reason: {node.reason} ({node.by})" if node.reason not in ("", "none") else ""
        if node.state in PLANNED or any(mark in node.marks for mark in "~#!%@^$"):
            continue
        problem: Problem | None = None
        mute = look.lasting(f"slurm.{node.name}.mute", "*" in node.marks and node.state != "down")
        if ("*" in node.marks and node.state == "down") or (
            mute >= MUTE_S and not node.state.startswith("drain")
        ):
            problem = look.fail(f"{said}: it does not respond{why}", since=node.since)
        elif node.state == "inval":
            problem = look.fail(f"{said}: it has less than slurm.conf says{why}", step=Step.ISOLATE)
        elif node.state in ("down", "fail", "failing", "error", "unknown"):
            problem = look.fail(f"{said}{why}", since=node.since)
        elif node.state in ("drained", "draining", "drain") and not OURS.match(node.reason):
            hours = None if node.since is None else (look.now - node.since) / NS_PER_S / 3600
            limit = look.limit("forgotten_h", FORGOTTEN_H)
            if hours is not None and hours > limit:
                problem = look.warn(
                    f"{said} for {hours:,.0f} h and nobody of ours owns that{why}",
                    since=node.since,
                    step=Step.OBSERVE,
                    remedy=f"ask {node.by or 'who drained it'}; resume it if it is well",
                )
        if problem is not None:
            yield of_node(problem, node.name)
    look.said = f"{len(nodes)} nodes"


@check(
    "SLM-02",
    summary="jobs whose processes do not die",
    subject="Slurm",
    severity="P2",
    step="A5",
    scope="scheduler",
    period_s=60,
    timeout_s=20,
    kind="software",
    observe=True,
)
def stuck_completing(look: Look) -> Iterator[Problem]:
    """Jobs that have been completing for more than ten minutes, and nodes drained for "Kill task failed".

    A process that cannot be killed waits in the kernel: for a file system or for a GPU's driver. Source:
    `squeue -t CG`, `sinfo`. Threshold: 10 minutes, ten times Slurm's own limit. Remedy: look at the state of
    the processes on the node (D: which file, which driver), then reboot."""
    for node in _nodes(look).values():
        if re.search(r"kill task failed", node.reason, re.IGNORECASE):
            yield of_node(look.warn(f"{node.name}: a process of a job could not be killed"), node.name)
    jobs = 0
    for line in look.output(*COMPLETING).splitlines():
        cells = line.split("|", 3)
        jobs += 1
        ended = _moment(cells[2]) if len(cells) == 4 else None
        if ended is not None and (look.now - ended) / NS_PER_S > COMPLETING_S:
            minutes = (look.now - ended) / NS_PER_S / 60
            yield of_node(
                look.warn(f"job {cells[0]} has been completing for {minutes:,.0f} min on {cells[1]}"),
                cells[1],
            )
    look.said = f"{jobs} jobs are completing"


@check(
    "SLM-03",
    summary="Slurm's controller",
    subject="Slurm",
    severity="P0",
    step="A0",
    scope="scheduler",
    period_s=60,
    timeout_s=20,
    kind="software",
    hang="Slurm's controller",
    observe=True,
)
def controller(look: Look) -> Iterator[Problem]:
    """Whether slurmctld answers.

    Source: `scontrol ping`. Threshold: the primary is down; a backup that is down is a WARN. Remedy: page the
    person who runs the scheduler: nothing starts, and nothing that the Bot asks for is done."""
    text = look.output("scontrol", "ping")
    for role, host, state in re.findall(r"Slurmctld\((\w+)\) at (\S+) is (\w+)", text):
        if state != "UP" and role == "primary":
            yield look.fail(f"slurmctld on {host} is {state}", device=host)
        elif state != "UP":
            yield look.warn(f"the backup slurmctld on {host} is {state}", device=host, severity=Severity.P2)
    look.said = text.strip().splitlines()[0] if text.strip() else ""
