"""Local disks: there, alive, healthy by their own account, and without errors in the kernel log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megatrace.analysis.evidence_host import judge_host
from megatrace.analysis.evidence_ports import judge_disks
from megatrace.bot.checks import check
from megatrace.bot.kernel_log import kernel_facts, of, problems
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.model.system import Why
from megatrace.readers.tool_disk import read_smart

MAX_DISKS = 32
WORN = 90.0
_HARD = ("nvme_timeout", "io_error", "medium_error", "fs_error", "read_only", "raid")


def _disks(look: Look) -> list[str]:
    """Controllers of NVMe disks and SCSI disks, as /dev has them; not partitions, not remote ones."""
    local = [
        path.rpartition("/")[2]
        for path in look.system.glob("/sys/class/nvme/nvme[0-9]*")
        if (look.text(f"{path}/transport") or "pcie") == "pcie"
    ]
    return local + [path.rpartition("/")[2] for path in look.system.glob("/sys/block/sd[a-z]*")]


@check(
    "DSK-01",
    summary="a disk that is missing, dead or worn out",
    subject="disk",
    severity="P1",
    step="A8",
    period_s=300,
    timeout_s=60,
    must=True,
)
def smart(look: Look) -> Iterator[Problem]:
    """How many NVMe disks there are, whether their controllers live, and what each says of its own health.

    The disk's own verdict "passed" does not look at its spare blocks, so those are judged here. Source:
    `/sys/class/nvme/*/state`, `smartctl -a -j` (needs root); template key `disk.nvme`. Threshold: fewer than
    the template or the last look; a state other than live; spare below its own threshold, a critical warning,
    a failed self test; new media errors; 90 % of the specified writes is a note. Remedy: move data off,
    replace the disk."""
    disks = _disks(look)
    controllers = [disk for disk in disks if disk.startswith("nvme")]
    wanted = look.expected("disk.nvme")
    before = look.before("disk.nvme", float(len(controllers)))
    goal = float(wanted) if isinstance(wanted, int | float) else before or 0.0
    if len(controllers) < goal:
        yield look.fail(
            f"{len(controllers)} of {goal:.0f} NVMe disks are there",
            evidence=[f"there are {', '.join(controllers) or 'none'}"],
            remedy="look for nvme lines in dmesg; power-cycle cold; replace the disk",
            key="count",
        )
    if not disks and not goal:
        raise Skipped("no local disk")
    for disk in controllers:
        state = look.text(f"/sys/class/nvme/{disk}/state") or "live"
        if state not in ("live", "new"):
            yield look.fail(
                f"disk {disk}: its controller is {state}",
                device=disk,
                remedy="drain; power-cycle cold; replace the disk",
                key="state",
            )
    judged = 0
    for disk in disks[:MAX_DISKS]:
        ran = look.run("smartctl", "-a", "-j", f"/dev/{disk}", timeout_s=10)
        if ran.why is Why.ABSENT:
            break
        if '"json_format_version"' in ran.output or '"device"' in ran.output:
            judged += 1
            yield from _health(look, disk, ran.output)
    look.said = (
        f"{len(disks)} disks, {judged} asked for their health"
        if judged
        else f"{len(disks)} disks; health was not asked (smartctl, root)"
    )


def _health(look: Look, disk: str, text: str) -> Iterator[Problem]:
    try:
        (fact,) = read_smart(text)
    except ValueError:
        return
    grown: list[str] = []
    fields = []
    for name, value in fact.fields:
        number = float(value) if isinstance(value, int | float) else None
        if number is not None and (name == "media_errors" or name.startswith("attribute ")):
            # Counted over the disk's life: only what is new says something of today.
            growth = look.grown(f"disk.{disk}.{name}", number, 86_400)
            if growth is not None and growth.amount > 0:
                grown.append(f"{growth.amount:.0f} new {name.removeprefix('attribute ').replace('_', ' ')}")
                fields.append((name, value))
        elif not (name == "used" and (number or 0) < WORN):
            fields.append((name, value))
    for problem in problems(look, judge_disks([replace(fact, device=f"/dev/{disk}", fields=tuple(fields))])):
        yield replace(
            problem, finding=replace(problem.finding, fingerprint=f"{look.info.id}:{look.system.name}:{disk}")
        )


@check(
    "DSK-02",
    summary="errors of a local disk or its file system in the kernel log",
    subject="disk",
    severity="P1",
    step="A3",
    must=True,
)
def kernel_errors(look: Look) -> Iterator[Problem]:
    """What the kernel reports of disks within a day: time-outs, dead controllers, I/O errors, file systems
    that give up.

    Source: the kernel log (NVMe time-outs and resets, I/O and medium errors, EXT4/XFS errors, remounts,
    RAID). Threshold: any, because a healthy disk reports none; errors of CD drives, floppies and loop devices
    count for nothing. Remedy: drain; read `smartctl -x`; replace the disk."""
    found = of(kernel_facts(look), FactKind.STORAGE, *_HARD)
    look.said = "none within a day"
    yield from problems(look, judge_host([fact for fact in found if not _toy(fact)]))


def _toy(fact: LogFact) -> bool:
    return (fact.device or "").startswith(("sr", "fd", "loop", "zram", "ram"))


@check(
    "DSK-03",
    summary="a RAID array that has lost a member",
    subject="disk",
    severity="P2",
    step="A8",
    period_s=300,
)
def raid(look: Look) -> Iterator[Problem]:
    """Software RAID arrays. Source: `/proc/mdstat`. Threshold: a member that is missing ([U_]). Remedy:
    replace the disk."""
    arrays = look.text("/proc/mdstat")
    if not arrays or "blocks" not in arrays:
        raise Skipped("no software RAID")
    name = ""
    for line in arrays.splitlines():
        name = line.partition(" : ")[0] if " : active" in line or " : inactive" in line else name
        members = (
            line.rpartition("[")[2].rstrip("]") if line.rstrip().endswith("]") and "blocks" in line else ""
        )
        if "_" in members or " : inactive" in line:
            yield look.warn(
                f"RAID array {name} has lost a member ([{members}])"
                if members
                else f"RAID array {name} is inactive",
                Severity.P2,
                device=name,
                remedy="replace the disk and rebuild the array",
            )
