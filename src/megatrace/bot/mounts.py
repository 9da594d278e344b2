"""The file systems of a machine: what is mounted where, what should be, read once a round."""

from __future__ import annotations

from dataclasses import dataclass

from megatrace.bot.look import Look

REMOTE = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "lustre",
            "gpfs",
            "beegfs",
            "ceph",
            "fuse.ceph",
            "wekafs",
            "daos",
            "orangefs",
            "afs",
        ),
        *("cifs", "smb3", "9p", "virtiofs", "glusterfs", "fuse.glusterfs"),
        *("fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse"),
    }
)
"""File systems whose data is elsewhere: they hang when a server does not answer."""
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"})


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/mounts or /etc/fstab."""

    source: str
    point: str
    kind: str
    options: tuple[str, ...]

    @property
    def remote(self) -> bool:
        """Whether its data is elsewhere."""
        return self.kind in REMOTE

    @property
    def read_only(self) -> bool:
        """Whether it cannot be written to."""
        return "ro" in self.options


def mounts(look: Look) -> tuple[Mount, ...]:
    """What is mounted, the topmost of each mount point."""
    return look.memo("mounts", lambda: _parsed(look.system.read("/proc/mounts")))


def declared(look: Look) -> tuple[Mount, ...]:
    """What /etc/fstab says should be mounted at boot."""
    text = look.text("/etc/fstab") or ""
    return tuple(
        item for item in _parsed(text) if item.point.startswith("/") and "noauto" not in item.options
    )


def _parsed(text: str) -> tuple[Mount, ...]:
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) >= 4 and not line.lstrip().startswith("#"):
            point = parts[1].replace("\\040", " ").replace("\\011", "\t")
            found[point] = Mount(parts[0], point, parts[2], tuple(parts[3].split(",")))
    return tuple(found.values())
