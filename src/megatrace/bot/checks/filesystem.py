"""File systems: mounted, answering, with room, writable."""

from __future__ import annotations

from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.bot.mounts import LOCAL, Mount, declared, mounts
from megatrace.model.check import Step
from megatrace.model.finding import Severity
from megatrace.model.system import Unreadable, Why

FULL = 97.0
NEARLY = 90.0


@check(
    "FS-01",
    summary="a file system that is not mounted, or does not answer",
    subject="file system",
    severity="P0",
    step="A1",
    kind="resource",
    timeout_s=10,
    hang="a file system",
    must=True,
)
def mounted(look: Look) -> Iterator[Problem]:
    """The file systems that should be there, and whether remote ones answer.

    A job that reads its data from a mount that hangs stands in state D and cannot even be killed. Each remote
    file system is asked for its free space in a process that is killed or abandoned; the mount point that did
    not answer is named. Source: template key `fs.mounts`, `/etc/fstab` (without noauto and nofail),
    `/proc/mounts`, statvfs. Threshold: missing; no answer within 10 s, because a healthy server answers in
    milliseconds. Remedy: check the server and the path to it; mount it."""
    there = {item.point: item for item in mounts(look)}
    wanted = look.expected("fs.mounts")
    named = [str(item) for item in wanted] if isinstance(wanted, list | tuple) else []
    told = [
        item.point
        for item in declared(look)
        if item.kind != "swap" and not {"nofail", "x-systemd.automount"} & set(item.options)
    ]
    for point in dict.fromkeys([*named, *told]):
        if point.rstrip("/") not in there and point not in there and point not in ("none", "swap"):
            yield look.fail(
                f"{point} is not mounted",
                device=point,
                severity=Severity.P0 if point in named else Severity.P1,
                evidence=["the template names it" if point in named else "/etc/fstab names it"],
                remedy=f"mount {point}; check the server if that fails",
            )
    remote = [item for item in there.values() if item.remote]
    for item in remote:
        look.at(f"{item.point} ({item.kind})")
        try:
            look.system.space(item.point)
        except Unreadable as error:
            if error.why in (Why.HUNG, Why.FAILED):
                hangs = error.why is Why.HUNG
                yield look.fail(
                    f"{item.point} ({item.kind} from {item.source}) {'does not answer' if hangs else 'fails'}",
                    device=item.point,
                    evidence=[str(error)],
                    remedy="check the server and the path to it; a stale handle needs umount -l and mount",
                    step=Step.MEND,
                )
    look.said = f"{len(there)} mounted, {len(remote)} of them remote"


@check(
    "FS-02",
    summary="a file system that is full",
    subject="file system",
    severity="P1",
    step="A1",
    kind="resource",
    period_s=60,
    timeout_s=20,
    must=True,
)
def room(look: Look) -> Iterator[Problem]:
    """Space and inodes of local file systems and of /dev/shm.

    A full root stops every service; a full /dev/shm ends a rank with a bus error. Remote ones are not probed
    here: they may hang, and their fill is the storage team's business. Source: statvfs. Threshold: 97 % is
    P1, 90 % is P2; on /dev/shm only 97 %. Remedy: clean up; find what grows."""
    looked = 0
    for item in _local(look):
        try:
            space = look.system.space(item.point)
        except Unreadable:
            continue
        looked += 1
        used, inodes = space.used_percent, space.files_used_percent
        worst = max(used, inodes)
        if worst < (FULL if item.kind == "tmpfs" else look.limit("percent", NEARLY)):
            continue
        what = f"{used:.0f} % full" if used >= inodes else f"{inodes:.0f} % of its inodes are in use"
        full = worst >= FULL
        remedy = "find what grows (du -x, journal, core dumps, container images) and clean up"
        if full:
            yield look.fail(f"{item.point}: {what}", device=item.point, remedy=remedy)
        else:
            yield look.warn(f"{item.point}: {what}", device=item.point, remedy=remedy)
    look.said = f"{looked} file systems"


def _local(look: Look) -> list[Mount]:
    """Local file systems, each device once, and the memory that processes share."""
    found: dict[str, Mount] = {}
    for item in mounts(look):
        if item.kind in LOCAL:
            found.setdefault(item.source, item)
        elif item.point == "/dev/shm":
            found[item.point] = item
    return list(found.values())


@check(
    "FS-03",
    summary="a file system that turned read-only",
    subject="file system",
    severity="P0",
    step="A3",
    must=True,
)
def read_only(look: Look) -> Iterator[Problem]:
    """Local file systems that cannot be written to though they should be.

    The kernel remounts a file system read-only when its disk gives errors; checkpoints and logs then fail.
    Source: `/proc/mounts` against `/etc/fstab`; `errors=remount-ro` tells that it once was writable.
    Threshold: any. Images that are read-only by design (squashfs, erofs, an fstab that says so) are none.
    Remedy: drain; check the disk, then fsck."""
    wanted = {item.point: item for item in declared(look)}
    local = [item for item in mounts(look) if item.kind in LOCAL]
    if not local:
        raise Skipped("no local file system")
    for item in local:
        known = wanted.get(item.point)
        meant = known is not None and known.read_only
        told = known is not None or "errors=remount-ro" in item.options
        if item.read_only and told and not meant:
            yield look.fail(
                f"{item.point} ({item.source}, {item.kind}) is read-only",
                device=item.point,
                remedy="drain the node; read dmesg and smartctl -x of the disk; fsck before it is used again",
            )
    look.said = f"{len(local)} file systems are as they should be"
