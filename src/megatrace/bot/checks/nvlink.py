"""NVLinks between GPUs and the fabric of NVSwitches: states, errors, speed, the fabric manager."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megatrace.analysis.evidence_links import judge_nvlinks
from megatrace.analysis.evidence_switches import judge_driver
from megatrace.bot.checks import check
from megatrace.bot.fabric import fabric_facts
from megatrace.bot.gpus import Gpu, gpus, place_of
from megatrace.bot.kernel_log import of, problems
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.readers.tool_links import read_nvlink
from megatrace.units import format_number

STATE = ("nvidia-smi", "nvlink", "-s")
ERRORS = ("nvidia-smi", "nvlink", "-e")
REMOTE = ("nvidia-smi", "nvlink", "-R")
FM_UNIT = ("systemctl", "show", "nvidia-fabricmanager", "--property=ActiveState,SubState,NRestarts,LoadState")
CRC_PER_HOUR = 100.0
RESTARTS = 3
_REMOTE = re.compile(r"Link (\d+): Remote Device ([0-9A-Fa-f:.]+)[,:] *Link (\d+)")
_ROW = re.compile(r"Link (\d+): ([A-Za-z ]+?)(?: Errors?)?: (\d+)", re.ASCII)


def _states(look: Look) -> dict[int, LogFact]:
    """What nvidia-smi nvlink -s says, by GPU index."""
    return look.memo(
        "nvlink states",
        lambda: {fact.code or 0: fact for fact in read_nvlink(look.output(*STATE)) if fact.name == "nvlink"},
    )


def _far_ends(look: Look) -> dict[tuple[int, str], str]:
    """(GPU index, link) → "PCI address link N" of the device at the other end, where the driver tells."""
    ran = look.run(*REMOTE)
    found: dict[tuple[int, str], str] = {}
    index = -1
    for line in ran.output.splitlines() if ran.ok else ():
        gpu = re.match(r"GPU (\d+):", line)
        link = _REMOTE.search(line)
        if gpu is not None:
            index = int(gpu[1])
        elif link is not None:
            found[index, link[1]] = f"{place_of(link[2]) or link[2]} link {link[3]}"
    return found


def _expected(look: Look, gpu: Gpu) -> int | None:
    wanted = look.expected("nvlink.links")
    return int(wanted) if isinstance(wanted, int | float) else gpu.model.links


@check(
    "NVL-01",
    summary="NVLinks that are not active",
    subject="NVLink",
    severity="P0",
    step="A4",
    timeout_s=20,
    must=True,
)
def links_active(look: Look) -> Iterator[Problem]:
    """Which NVLinks of each GPU are up, against the model or the template.

    NCCL falls back to PCIe and the job runs at a tenth of its speed, or does not start. A link has two ends;
    both are named, because the dark end need not be the sick one. PCIe cards have bridges or none: nothing is
    expected of them without a template.

    Source: `nvidia-smi nvlink -s` and `-R`; template key `nvlink.links`. Threshold: any link less than the
    model has (A100 12, H100 and H200 18). Remedy: reset all GPUs of the node together, reboot; replace the
    part if it stays dark."""
    try:
        seen = [gpu for gpu in gpus(look) if _expected(look, gpu)]
    except (Skipped, Unknown):
        # Without the models of the GPUs, what nvidia-smi prints of the links is judged by itself.
        yield from problems(look, judge_nvlinks(list(_states(look).values())))
        return
    if not seen:
        raise Skipped("no NVLink is expected of these GPUs")
    states = _states(look)
    look.said = f"all links of {len(seen)} GPUs are active"
    for gpu in seen:
        wanted = _expected(look, gpu) or 0
        fact = states.get(gpu.index)
        links = (
            {} if fact is None else {key[5:]: said for key, said in fact.fields if key.startswith("link ")}
        )
        dark = [name for name in map(str, range(wanted)) if links.get(name) in ("inactive", None)]
        if not dark:
            continue
        far = _far_ends(look)
        ends = [f"link {name} leads to {far[gpu.index, name]}" for name in dark if (gpu.index, name) in far]
        all_dark = len(dark) == wanted
        first = dark[0]
        yield look.fail(
            f"{gpu.name}: all {wanted} NVLinks are inactive"
            if all_dark
            else f"{gpu.name}: {len(dark)} of {wanted} NVLinks are inactive: link {', '.join(dark)}",
            device=gpu.place,
            link=(f"{gpu.place} link {first}", far.get((gpu.index, first))),
            evidence=ends or ["the driver does not tell what is at the other end: the fault may sit there"],
            remedy="look for Xid 74 and SXid in dmesg and at the fabric manager; reset all GPUs together, then reboot",
        )


@check(
    "NVL-02",
    summary="NVLink errors that grow",
    subject="NVLink",
    severity="P1",
    step="A4",
    timeout_s=20,
    must=True,
)
def link_errors(look: Look) -> Iterator[Problem]:
    """Growth of the error counters of every NVLink.

    A recovery stops the link for milliseconds, in every iteration; CRC errors are repeated and cost
    bandwidth. Source: `nvidia-smi nvlink -e`. Threshold: any recovery since the last look, because healthy
    links never have one; more than 100 CRC or replay errors an hour. Remedy: reset all GPUs together at the
    end of the job; the same link twice: replace."""
    seen = {gpu.index: gpu for gpu in gpus(look) if gpu.model.links != 0}
    if not seen:
        raise Skipped("these GPUs have no NVLink")
    limit = look.limit("per_hour", CRC_PER_HOUR)
    index, links = -1, 0
    for line in look.output(*ERRORS).splitlines():
        gpu_line, row = re.match(r"GPU (\d+):", line), _ROW.search(line)
        index = int(gpu_line[1]) if gpu_line else index
        if row is None or index not in seen:
            continue
        gpu, name = seen[index], row[2].strip()
        links += 1
        growth = look.grown(f"gpu.{gpu.place}.nvlink.{row[1]}.{name}", float(row[3]), 3600)
        if growth is None or growth.amount <= 0:
            continue
        recovery = "recovery" in name.lower()
        if recovery or growth.exceeds(limit):
            yield look.fail(
                f"{gpu.name}: NVLink {row[1]}: {growth.amount:.0f} {name.lower()} errors since the last look",
                device=gpu.place,
                link=(f"{gpu.place} link {row[1]}", _far_ends(look).get((index, row[1]))),
                evidence=[f"the counter stands at {row[3]}; {growth.per_hour:,.0f} an hour"],
                remedy="reset all GPUs together at the end of the job; replace the part if the same link does it again",
                key=f"{row[1]}.{name}",
            )
    look.said = f"{links} counters read"


@check(
    "NVL-03",
    summary="NVLinks slower than they should be",
    subject="NVLink",
    severity="P1",
    step="A4",
    period_s=300,
    timeout_s=20,
)
def link_speed(look: Look) -> Iterator[Problem]:
    """The speed at which each NVLink runs, against the model. Source: `nvidia-smi nvlink -s`. Threshold: 1 %
    below what the model has (H100 26.562 GB/s), because speeds are steps, not a range. Remedy: reset all GPUs
    together."""
    for gpu in gpus(look):
        fact = _states(look).get(gpu.index) if gpu.model.link_gbs else None
        if fact is None or gpu.model.link_gbs is None:
            continue
        slow = {
            key[5:]: said
            for key, said in fact.fields
            if key.startswith("link ") and isinstance(said, float) and said < 0.99 * gpu.model.link_gbs
        }
        if slow:
            name, speed = next(iter(slow.items()))
            yield look.fail(
                f"{gpu.name}: NVLink {', '.join(slow)} at {format_number(speed, 5)} of {gpu.model.link_gbs} GB/s",
                device=gpu.place,
                link=(f"{gpu.place} link {name}", _far_ends(look).get((gpu.index, name))),
                remedy="reset all GPUs of the node together at the end of the job",
            )


@check(
    "NVL-04",
    summary="a GPU that is not part of the NVLink fabric",
    subject="NVSwitch",
    severity="P0",
    step="A5",
    timeout_s=20,
    must=True,
)
def fabric_state(look: Look) -> Iterator[Problem]:
    """Whether each GPU has joined the fabric of NVSwitches.

    Until it has, CUDA fails to initialise on it (error 802). N/A is normal on machines without NVSwitch.
    Source: `Fabric` of `nvidia-smi -q`. Threshold: any state but Completed, any status but Success; in
    progress only after 2 min, because the fabric manager takes as long after boot. Remedy: restart the fabric
    manager; reboot."""
    known = 0
    for gpu in gpus(look):
        state, status = gpu.get("fabric/state"), gpu.get("fabric/status")
        if not state:
            continue
        known += 1
        bad = state != "Completed" or status not in ("Success", "")
        seconds = look.lasting(f"gpu.{gpu.place}.fabric", bad)
        up = look.number("/proc/uptime") or 600.0
        if bad and (state != "In Progress" or seconds >= 120 or up > 600):
            yield look.fail(
                f"{gpu.name} is not part of the NVLink fabric: state {state}, status {status or 'not told'}",
                device=gpu.place,
                remedy="systemctl status nvidia-fabricmanager (its version must be the driver's); restart it, then reboot",
            )
    if not known:
        raise Skipped("no GPU speaks of a fabric")
    look.said = f"{known} GPUs have joined"


@check(
    "NVL-05",
    summary="the fabric manager does not run, or is of another version than the driver",
    subject="NVSwitch",
    severity="P0",
    step="A1",
    kind="software",
    timeout_s=20,
    must=True,
)
def fabric_manager(look: Look) -> Iterator[Problem]:
    """The service that sets up the NVSwitches, on machines that have them.

    Without it no CUDA program starts; one of another version than the driver refuses to work. On a machine
    without NVSwitch it is not needed, and that it ends there is no fault. Source: `systemctl show
    nvidia-fabricmanager`, its log. Threshold: not active; three restarts. Remedy: install the driver's
    version; restart it; reset the GPUs."""
    facts = fabric_facts(look)
    ran = look.run(*FM_UNIT)
    said = dict(line.split("=", 1) for line in ran.output.splitlines() if "=" in line) if ran.ok else {}
    state, loaded = said.get("ActiveState", ""), said.get("LoadState", "")
    told = [fact for fact in facts if fact.kind is FactKind.FABRIC and fact.name != "fabric_version"]
    judged = problems(look, judge_driver(told))
    try:
        switched = any(gpu.model.switched for gpu in gpus(look))
    except (Skipped, Unknown):
        yield from judged
        raise
    if not switched:
        yield from (problem for problem in judged if problem.finding.severity > Severity.P2)
        raise Skipped("this machine has no NVSwitch")
    look.said = state or "its log was read"
    versions = of(facts, FactKind.FABRIC, "fabric_version")
    if versions:
        yield look.fail(
            "the fabric manager is of another version than the driver",
            evidence=[versions[-1].text[:200]],
            remedy="install the fabric manager of the driver's version, restart it",
            key="version",
        )
    elif (state and state not in ("active", "activating", "reloading")) or loaded == "not-found":
        yield look.fail(
            f"the fabric manager is {'not installed' if loaded == 'not-found' else state}: no CUDA program starts",
            evidence=[fact.text[:200] for fact in facts[-2:]],
            remedy="systemctl restart nvidia-fabricmanager; read /var/log/fabricmanager.log",
        )
    restarts = int(said.get("NRestarts", "0") or 0)
    growth = look.grown("service.nvidia-fabricmanager.restarts", restarts) if said else None
    if growth is not None and growth.amount >= RESTARTS:
        yield look.fail(
            f"the fabric manager was restarted {growth.amount:.0f} times since the last look",
            remedy="read /var/log/fabricmanager.log: it crashes for a reason",
            key="restarts",
        )
    if state != "failed":
        yield from (problem for problem in judged if problem.finding.severity <= Severity.P2)


@check(
    "NVL-08",
    summary="the memory domain of a rack (IMEX) is not up",
    subject="NVLink",
    severity="P0",
    step="A1",
    kind="software",
    period_s=60,
    timeout_s=20,
    observe=True,
)
def memory_domain(look: Look) -> Iterator[Problem]:
    """The service that lets GPUs of several nodes of an NVLink rack (NVL72) share memory.

    Without it NCCL uses the network between them. Source: `nvidia-imex-ctl -q`. Threshold: anything but READY
    on a machine that has the program. Remedy: restart nvidia-imex on all nodes of the rack."""
    said = look.output("nvidia-imex-ctl", "-q").strip()
    look.said = said.splitlines()[-1] if said else "no answer"
    if "READY" not in said.upper():
        yield look.fail(
            f"the memory domain of the rack is not up: {look.said[:100]}",
            remedy="systemctl restart nvidia-imex on all nodes of the rack; nvidia-imex-ctl -N names who is missing",
        )
