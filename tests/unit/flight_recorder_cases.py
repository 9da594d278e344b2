"""Flight-recorder dumps for tests, as the recorder writes them: dictionaries, pickled or as JSON."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

T0 = 1_758_580_155_000_000_000
MS = 1_000_000


@dataclass
class Recorder:
    """The recorder of one rank. ``groups``: name → (description, global ranks)."""

    rank: int
    groups: dict[str, tuple[str, list[int]]]
    entries: list[dict[str, Any]] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)
    p2p: dict[str, int] = field(default_factory=dict)

    def call(
        self,
        group: str,
        name: str,
        state: str = "completed",
        *,
        at: float = 0.0,
        sizes: Sequence[Sequence[int]] = ((2048, 5120),),
        is_p2p: bool = False,
        frames: Sequence[Mapping[str, Any]] | None = None,
        bump: bool = True,
    ) -> Recorder:
        """Adds an entry; ``at`` in ms."""
        counter = self.p2p if is_p2p else self.seqs
        counter[group] = counter.get(group, 0) + bump
        created = T0 + int(at * MS)
        entry: dict[str, Any] = {
            "record_id": len(self.entries),
            "pg_id": list(self.groups).index(group),
            "process_group": (group, self.groups[group][0]),
            "collective_seq_id": self.seqs.get(group, 0),
            "p2p_seq_id": self.p2p.get(group, 0),
            "op_id": self.seqs.get(group, 0) + self.p2p.get(group, 0),
            "profiling_name": f"nccl:{name}",
            "time_created_ns": created,
            "input_sizes": [list(size) for size in sizes],
            "input_dtypes": ["BFloat16"] * len(sizes),
            "output_sizes": [list(size) for size in sizes],
            "output_dtypes": ["BFloat16"] * len(sizes),
            "state": state,
            "time_discovered_started_ns": created + MS if state == "started" else None,
            "time_discovered_completed_ns": created + 2 * MS if state == "completed" else None,
            "retired": state == "completed",
            "timeout_ms": 600_000,
            "is_p2p": is_p2p,
            "thread_id": "1",
            "thread_name": "python3",
        }
        if frames is not None:
            entry["frames"] = list(frames)
        self.entries.append(entry)
        return self

    def send(
        self, group: str, to: int, state: str = "completed", *, at: float = 0.0, bump: bool = True
    ) -> Recorder:
        """``to`` is a rank of the group."""
        own = self.groups[group][1].index(self.rank)
        return self.call(group, f"send {own}->{to}", state, at=at, is_p2p=True, bump=bump)

    def recv(
        self, group: str, source: int, state: str = "completed", *, at: float = 0.0, bump: bool = True
    ) -> Recorder:
        """``source`` is a rank of the group."""
        own = self.groups[group][1].index(self.rank)
        return self.call(group, f"recv {own}<-{source}", state, at=at, is_p2p=True, bump=bump)

    def coalesced(self, group: str, state: str, *, at: float = 0.0) -> Recorder:
        """The end of a coalesced group of messages."""
        return self.call(group, "coalesced", state, at=at, is_p2p=True, bump=False, sizes=())

    def dump(self, version: str = "2.10", *, status: bool = True) -> dict[str, Any]:
        """The whole dump."""
        config = {
            name: {"name": name, "desc": desc, "ranks": str(ranks)}
            for name, (desc, ranks) in self.groups.items()
        }
        whole: dict[str, Any] = {
            "version": version,
            "pg_config": config,
            "nccl_version": "2.27.3",
            "entries": self.entries,
        }
        if status:
            whole["pg_status"] = {
                str(i): {
                    "last_enqueued_collective": self.seqs.get(name, -1),
                    "last_started_collective": -1,
                    "last_completed_collective": self.completed(name),
                }
                for i, name in enumerate(self.groups)
            }
        return whole

    def completed(self, group: str) -> int:
        """The last collective of a group that completed."""
        done = [
            entry["collective_seq_id"]
            for entry in self.entries
            if entry["process_group"][0] == group and entry["state"] == "completed" and not entry["is_p2p"]
        ]
        return max(done, default=-1)


def write(folder: Path, recorders: Sequence[Recorder], name: str = "dump_{}", **options: Any) -> Path:
    """Pickles, as the recorder names them; JSON where the name ends so."""
    folder.mkdir(parents=True, exist_ok=True)
    for recorder in recorders:
        value = recorder.dump(**options)
        path = folder / name.format(recorder.rank)
        if path.suffix == ".json":
            path.write_text(json.dumps(value))
        else:
            path.write_bytes(pickle.dumps(value, protocol=2))
    return folder


def world(size: int) -> dict[str, tuple[str, list[int]]]:
    """Only the default group."""
    return {"0": ("default_pg", list(range(size)))}
