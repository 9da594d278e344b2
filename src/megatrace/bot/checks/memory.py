"""Memory of the host: how much there is, errors of DIMMs, and the out-of-memory killer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from megatrace.analysis.evidence_claim import Claim
from megatrace.analysis.evidence_host import judge_host
from megatrace.bot.checks import check
from megatrace.bot.kernel_log import kernel_facts, of, problems
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind
from megatrace.units import format_size

LESS = 0.05
CORRECTED_PER_DAY = 10.0
EDAC = "/sys/devices/system/edac/mc"
_KIB = 1024


@check(
    "MEM-01",
    summary="less memory than the machine has",
    subject="memory",
    severity="P1",
    step="A6",
    period_s=3600,
    must=True,
)
def total(look: Look) -> Iterator[Problem]:
    """How much memory the kernel has, against the template and the last look.

    Firmware switches a DIMM off that failed its test at boot; the node then has less memory and less
    bandwidth. Source: `MemTotal` in `/proc/meminfo`; template key `memory.total_gib`. Threshold: 5 % less
    than the template, because the kernel keeps some for itself; without one, 2 % less than at the last look.
    Remedy: read the BMC's event log; replace the DIMM."""
    text = look.text("/proc/meminfo") or ""
    known = re.search(r"^MemTotal:\s+(\d{1,15}) kB", text, re.MULTILINE | re.ASCII)
    if known is None:
        raise Unknown("/proc/meminfo does not say how much memory there is")
    have = float(known[1]) * _KIB
    wanted = look.expected("memory.total_gib")
    before = look.before("memory.total", have)
    look.said = format_size(have)
    goal, share = (
        (float(wanted) * (1 << 30), LESS) if isinstance(wanted, int | float) else (before or have, 0.02)
    )
    if have < (1 - share) * goal:
        yield look.fail(
            f"{format_size(have)} of memory, expected {format_size(goal)}",
            device="memory",
            evidence=["against the template" if wanted else "against the last look, before a boot"],
            remedy="read the BMC's event log for the DIMM that was switched off; replace it",
        )


@check(
    "MEM-02",
    summary="a DIMM with many corrected errors",
    subject="memory",
    severity="P2",
    step="A8",
    period_s=300,
    observe=True,
)
def corrected(look: Look) -> Iterator[Problem]:
    """Corrected errors of each DIMM, or memory controller where DIMMs are not counted.

    Source: `/sys/devices/system/edac/mc/mc*`, and the kernel log where sysfs counts none. Threshold: 10 a day
    and DIMM: single ones are cosmic rays, repeated ones are a cell that fails. Remedy: plan the replacement
    of the DIMM."""
    looked = 0
    for name, count in _counts(look, "ce"):
        looked += 1
        growth = look.grown(f"edac.{name}.ce", count, 86_400)
        if growth is not None and growth.amount > look.limit("per_day", CORRECTED_PER_DAY):
            yield look.warn(
                f"DIMM {name}: {growth.amount:,.0f} corrected memory errors in {max(growth.seconds / 3600, 0.1):.1f} h",
                device=f"DIMM {name}",
                remedy="plan the replacement of the DIMM",
            )
    if not looked:
        raise Skipped("the kernel counts no memory errors here (EDAC)")
    look.said = f"{looked} DIMMs or controllers counted"


@check(
    "CPU-03",
    summary="an uncorrected memory error or machine check of the host",
    subject="memory",
    severity="P0",
    step="A8",
    must=True,
)
def uncorrected(look: Look) -> Iterator[Problem]:
    """Machine checks and uncorrected errors of DIMMs.

    Data was lost: the kernel kills the process that used it, or stops. Corrected ones in the kernel log are
    notes. Source: growth of `ue_count` of EDAC, `[Hardware Error]`, EDAC and machine check lines of the
    kernel log. Threshold: any. Remedy: drain; replace the DIMM that is named, else read the BMC's event log.
    """
    for name, count in _counts(look, "ue"):
        growth = look.grown(f"edac.{name}.ue", count, 86_400)
        if growth is not None and growth.amount > 0 and count > 0:
            yield look.fail(
                f"DIMM {name}: {growth.amount:.0f} uncorrected memory errors within a day",
                device=f"DIMM {name}",
                remedy="drain the node and replace the DIMM",
            )
    with suppress(Skipped, Unknown):
        facts = [fact for fact in of(kernel_facts(look), FactKind.MEMORY) if fact.name != "thermal"]
        yield from problems(look, judge_host(facts))
    look.said = "no uncorrected error"


def _counts(look: Look, kind: str) -> Iterator[tuple[str, float]]:
    """(DIMM or controller, count of corrected or uncorrected errors)."""
    dimms = look.system.glob(f"{EDAC}/mc*/dimm*/dimm_{kind}_count")
    for path in dimms or look.system.glob(f"{EDAC}/mc*/{kind}_count"):
        folder = path.rpartition("/")[0]
        count = look.number(path)
        if count is not None:
            label = look.text(f"{folder}/dimm_label") if dimms else None
            yield label or "/".join(folder.split("/")[6:]), count


@check(
    "MEM-03",
    summary="the kernel killed a process because memory ran out",
    subject="memory",
    severity="P1",
    step="A2",
    kind="resource",
    must=True,
)
def out_of_memory(look: Look) -> Iterator[Problem]:
    """Kills by the out-of-memory killer within a day.

    A job that hits its own limit is its owner's business (P3); a host that runs out of memory hits whoever
    has most, often a rank of a job that did nothing wrong (P1). Source: the kernel log. Threshold: any.
    Remedy: see who used the memory; give the job more, or use less."""
    facts = of(kernel_facts(look), FactKind.OUT_OF_MEMORY)
    look.said = "nobody was killed within a day"
    yield from problems(look, [_softened(item) for item in judge_host(facts)])


def _softened(claim: Claim) -> Claim:
    limited = "cgroup's memory limit" in claim.finding.summary
    return replace(claim, finding=replace(claim.finding, severity=Severity.P3)) if limited else claim


@check(
    "MEM-04",
    summary="swap is in use, or memory is in pieces",
    subject="memory",
    severity="P3",
    step="A1",
    kind="configuration",
    period_s=300,
    observe=True,
)
def fragments(look: Look) -> Iterator[Problem]:
    """Swap that is used, and whether large pages can still be had.

    A rank whose pages are swapped out stands for seconds; registration of memory for RDMA is slow in small
    pieces. Source: `/proc/meminfo`, `/proc/buddyinfo`. Threshold: more than 1 GiB in swap; no free piece of 4
    MiB on a NUMA node with more than a tenth of its pages free. Remedy: `swapoff -a`; `echo 1 >
    /proc/sys/vm/compact_memory` between jobs."""
    text = look.text("/proc/meminfo") or ""
    sizes = {
        name: int(value) * _KIB
        for name, value in re.findall(r"^(\w+):\s+(\d{1,15}) kB", text, re.MULTILINE | re.ASCII)
    }
    used = sizes.get("SwapTotal", 0) - sizes.get("SwapFree", 0)
    look.said = f"{format_size(max(used, 0))} in swap"
    if used > 1 << 30:
        yield look.warn(
            f"{format_size(used)} are in swap", Severity.P3, key="swap", remedy="swapoff -a between jobs"
        )
    for line in (look.text("/proc/buddyinfo") or "").splitlines():
        parts = line.split()
        # Node 0, zone Normal, then the free pieces of 4 KiB, 8 KiB, … 4 MiB
        counts = [int(part) for part in parts[4:] if part.isdecimal() and part.isascii()]
        if len(counts) < 11 or parts[3] != "Normal":
            continue
        free = sum(count << order for order, count in enumerate(counts)) * 4 * _KIB
        if counts[10] == 0 and free > 0.1 * sizes.get("MemTotal", 0):
            yield look.warn(
                f"NUMA node {parts[1].rstrip(',')} has {format_size(free)} free and no piece of 4 MiB",
                Severity.P3,
                key=parts[1],
                remedy="echo 1 > /proc/sys/vm/compact_memory between jobs",
            )
