"""The process groups of one process: names, members, numbers of calls, and a file that tells them.

NCCL knows a communicator by a hash and this process' index in it; what it is *for* and which global ranks it
joins is known to torch alone. So each process writes ``groups-HOST-PID.json`` beside its ring: small, whole
at any time, and enough to give the hashes in the ring their members and names.

Standard library only: this runs inside the processes of a job.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from contextlib import suppress
from types import ModuleType
from typing import Any, Protocol

from . import blind_spots

SCHEMA = "megatrace.groups/1"
MAX_ARGUMENTS = 512
"""Words of the command line that are kept; Megatron-LM's longest ones have some two hundred."""


MAX_MAPS = 8 << 20
"""Bytes of a memory map that are read: some milliseconds, at the first call of each group."""


class Place(Protocol):
    """Where the file goes."""

    folder: str

    def open(self) -> None:
        """Makes the ring, so that whoever looks for this process finds it."""


class Group:
    """One process group as this process sees it. ``number`` counts its collectives from 0; ``hash`` is as in
    the ring, 8 bytes."""

    __slots__ = ("hash", "mixed", "number", "ranks", "received", "recorded", "sent")

    def __init__(self, ranks: list[int], name: str, backend: str) -> None:
        self.ranks = ranks
        self.hash = hash_of(name, ranks)
        self.number = 0
        self.sent = [0] * len(ranks)
        self.received = [0] * len(ranks)
        self.recorded = backend != "nccl"
        self.mixed = self.recorded and "nccl" in backend

    def message(self, send: bool, index: Any) -> tuple[int, int]:
        """(global rank of the other end, number of the message in this direction, from 0)."""
        if not 0 <= index < len(self.ranks):
            return -1, -1  # a Recv from anybody
        counts = self.sent if send else self.received
        number = counts[index]
        counts[index] = number + 1
        return self.ranks[index], number


def _unobserved() -> dict[str, str]:
    """What this process has loaded that communicates past every recorder, by word; empty where nobody can
    tell."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            maps = file.read(MAX_MAPS)
    except OSError:
        return {}
    return blind_spots.of_libraries(maps, os.environ) | blind_spots.of_environment(os.environ)


def hash_of(name: str, ranks: list[int]) -> bytes:
    """64 bits that are the same on every member: torch gives a group the same name everywhere."""
    text = f"{name}\0{','.join(map(str, ranks))}".encode()
    return hashlib.blake2b(text, digest_size=8).digest()


class Groups:
    """The groups by their object, learned at their first call."""

    def __init__(self, module: ModuleType, place: Place) -> None:
        self.module, self.place = module, place
        self.known: dict[Any, Group] = {}
        self.told: list[dict[str, Any]] = []

    def reset(self) -> None:
        """Forgets all, in place."""
        self.known.clear()
        self.told.clear()

    def learn(self, pg: Any) -> Group:
        """Looks a group up in torch's own tables and writes the file anew."""
        module = self.module
        ranks = [int(rank) for rank in module.get_process_group_ranks(pg)]
        name = str(getattr(pg, "group_name", ""))
        description = str(getattr(pg, "group_desc", ""))
        backend = str(module.get_backend(pg))
        with suppress(Exception):  # a private table, but it alone tells "cpu:gloo,cuda:nccl"
            backend = str(module._world.pg_map[pg][0])
        self.place.open()
        group = Group(ranks, name, backend.lower())
        self.known[pg] = group
        self.told.append(
            {
                "hash": group.hash.hex(),
                "name": name,
                "description": description,
                "backend": backend,
                "ranks": ranks,
                "recorded": group.recorded,
            }
        )
        with suppress(OSError):
            self._tell()
        return group

    def _tell(self) -> None:
        host, pid = socket.gethostname(), os.getpid()
        told = {
            "schema": SCHEMA,
            "host": host,
            "pid": pid,
            "rank": int(self.module.get_rank()),
            "world_size": int(self.module.get_world_size()),
            "local_rank": os.environ.get("LOCAL_RANK"),
            "written_at_ns": str(time.time_ns()),
            "argv": sys.argv[:MAX_ARGUMENTS],
            "groups": self.told,
            "unobserved": _unobserved(),
        }
        path = os.path.join(self.place.folder, f"groups-{host}-{pid}.json")  # noqa: PTH118
        with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(told, file)
        os.replace(f"{path}.new", path)  # noqa: PTH105
