"""Writes a ``Trace`` as the dumps of PyTorch's flight recorder: one pickle or JSON a rank.

A dump holds the last calls of a rank with their states, the groups that the rank belongs to, and how far it
got on each. Numbers are as the recorder counts them: collectives and messages apart, per group; record
numbers are the process' own and mean nothing to others.

Takes a trace with starts, ends, peers and members (the simulator's ring view). Never writes the truth.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from megatrace.errors import UsageError
from megatrace.model.events import UNSEEN, Op
from megatrace.model.layout import Axis
from megatrace.model.trace import Trace
from megatrace.simulator.torch_pickle import Shared, torch_pickle

ENTRIES = 2000
"""Entries that PyTorch's recorder keeps by default."""
VERSION = "2.10"
TIMEOUT_MS = 600_000
NAMES = {
    Op.UNKNOWN: "unknown", Op.ALL_REDUCE: "all_reduce", Op.ALL_GATHER: "_all_gather_base",
    Op.REDUCE_SCATTER: "_reduce_scatter_base", Op.BROADCAST: "broadcast", Op.REDUCE: "reduce",
    Op.ALL_TO_ALL: "all_to_all", Op.GATHER: "gather", Op.SCATTER: "scatter", Op.BARRIER: "barrier",
}  # fmt: skip
DESCRIPTIONS = {
    Axis.TENSOR: "TENSOR_MODEL_PARALLEL_GROUP", Axis.PIPELINE: "PIPELINE_MODEL_PARALLEL_GROUP",
    Axis.DATA: "DATA_PARALLEL_GROUP", Axis.CONTEXT: "CONTEXT_PARALLEL_GROUP",
    Axis.EXPERT: "EXPERT_MODEL_PARALLEL_GROUP", Axis.WORLD: "default_pg", Axis.MODEL: "MODEL_PARALLEL_GROUP",
    Axis.DATA_CONTEXT: "DATA_PARALLEL_GROUP_WITH_CP", Axis.EMBEDDING: "EMBEDDING_GROUP",
    Axis.EXPERT_DATA: "EXPERT_DATA_PARALLEL_GROUP",
}  # fmt: skip


class Dumps:
    """The dumps of one trace. ``entries`` kept of each rank; ``timing``: starts are recorded, which PyTorch
    does only when asked to."""

    def __init__(self, trace: Trace, entries: int = ENTRIES, *, timing: bool = True) -> None:
        events = trace.events
        if events.comm is None or events.end is None or events.start is None:
            raise UsageError("a flight recorder needs groups, starts and ends: take the ring view of the job")
        self.trace, self.entries, self.timing = trace, entries, timing
        self._of_rank: dict[int, list[int]] = {}
        for communicator in trace.communicators:
            for rank in communicator.members or ():
                self._of_rank.setdefault(rank, []).append(communicator.id)
        self._config: dict[int, dict[str, str]] = {}

    def value(self, rank: int) -> dict[str, Any]:
        """The dump of one rank, as Python values."""
        groups = self._of_rank.get(rank, [])
        entries, status = self._entries(rank, groups)
        return {
            "version": VERSION,
            "pg_config": {str(comm): self._group(comm) for comm in groups},
            "nccl_version": "2.27.3",
            "pg_status": status,
            "entries": entries,
        }

    def _group(self, comm: int) -> dict[str, str]:
        if comm not in self._config:
            communicator = self.trace.communicators[comm]
            desc = DESCRIPTIONS.get(communicator.axis, "undefined") if communicator.axis else "undefined"
            ranks = str(list(communicator.members or ()))
            self._config[comm] = {"name": str(comm), "desc": desc, "ranks": ranks}
        return self._config[comm]

    def _entries(
        self, rank: int, groups: list[int]
    ) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]]]:
        """The last entries, and how far the rank got on each group."""
        events = self.trace.events
        rows = events.rows_of(rank)
        names = ("op", "seq", "enqueue", "count", "comm", "start", "end", "peer")
        columns = [_column(getattr(events, name), rows) for name in names]
        local = {comm: i for i, comm in enumerate(groups)}
        words = {comm: (str(comm), self._group(comm)["desc"]) for comm in groups}
        last = {comm: [-1, -1, -1] for comm in groups}
        messages = dict.fromkeys(groups, 0)
        collectives = dict.fromkeys(groups, 0)
        entries: list[dict[str, Any]] = []
        first = max(rows.stop - rows.start - self.entries, 0)
        for i, (op, seq, enqueue, count, comm, start, end, peer) in enumerate(zip(*columns, strict=True)):
            if comm not in local:
                continue
            p2p = op in (Op.SEND, Op.RECV)
            start = start if self.timing else UNSEEN
            counter = messages if p2p else collectives
            counter[comm] = counter[comm] + 1 if p2p else seq
            state = "completed" if end != UNSEEN else "started" if start != UNSEEN else "scheduled"
            for at, reached in enumerate((True, start != UNSEEN, end != UNSEEN)):
                if reached:
                    last[comm][at] = max(last[comm][at], counter[comm])
            if i < first:
                continue
            frames = self.frames(Op(op), comm)
            entries.append(
                {
                    **({} if frames is None else {"frames": frames}),
                    "record_id": i,
                    "pg_id": local[comm],
                    "process_group": words[comm],
                    "collective_seq_id": collectives[comm],
                    "p2p_seq_id": messages[comm],
                    "op_id": collectives[comm] + messages[comm],
                    "profiling_name": self._name(op, comm, rank, peer),
                    "time_created_ns": enqueue,
                    "input_sizes": [[count]],
                    "input_dtypes": ["BFloat16"],
                    "output_sizes": [[count]],
                    "output_dtypes": ["BFloat16"],
                    "state": state,
                    "time_discovered_started_ns": None if start == UNSEEN else start,
                    "time_discovered_completed_ns": None if end == UNSEEN else end,
                    "retired": end != UNSEEN,
                    "timeout_ms": TIMEOUT_MS,
                    "is_p2p": p2p,
                    "thread_id": "140737",
                    "thread_name": "python3",
                }
            )
        keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        return entries, {str(local[c]): dict(zip(keys, last[c], strict=True)) for c in groups}

    def frames(self, op: Op, comm: int) -> list[Shared] | None:
        """The stack frames of a call, innermost first; None: none are recorded, as if switched off."""
        del op, comm
        return None

    def _name(self, op: int, comm: int, rank: int, peer: int) -> str:
        if op not in (Op.SEND, Op.RECV):
            return f"nccl:{NAMES[Op(op)]}"
        members = self.trace.communicators[comm].members or ()
        own, other = members.index(rank), members.index(peer) if peer in members else 0
        return f"nccl:send {own}->{other}" if op == Op.SEND else f"nccl:recv {own}<-{other}"

    def pickled(self, rank: int) -> bytes:
        """The dump of one rank as PyTorch writes it."""
        return torch_pickle(self.value(rank))


def _column(column: np.ndarray[Any, Any] | None, rows: slice) -> list[int]:
    found: list[int] = [] if column is None else column[rows].tolist()
    return found if column is not None else [0] * (rows.stop - rows.start)


def write_dumps(
    trace: Trace,
    directory: Path,
    *,
    entries: int = ENTRIES,
    timing: bool = True,
    as_json: bool = False,
    written_at: int | None = None,
    dumps: Dumps | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Writes ``nccl_trace_rank_N`` for every rank of the trace's communicators; the number of files.

    ``dumps`` are those of the trace, if they are of a kind of their own.
    ``written_at`` ns since the epoch: the time that the files get, as if they had been written then. Ranks in
    ``coverage.ranks_missing`` get none. Raises ``UsageError`` where the directory cannot be written.
    """
    dumps = dumps or Dumps(trace, entries, timing=timing)
    ranks = sorted(
        {rank for item in trace.communicators for rank in item.members or ()}
        - set(trace.coverage.ranks_missing)
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for done, rank in enumerate(ranks):
            path = directory / f"nccl_trace_rank_{rank}{'.json' if as_json else ''}"
            data = json.dumps(dumps.value(rank)).encode() if as_json else dumps.pickled(rank)
            path.write_bytes(data)
            if written_at is not None:
                os.utime(path, ns=(written_at, written_at))
            if progress is not None:
                progress(done + 1, len(ranks))
    except OSError as error:
        raise UsageError(f"{directory} cannot be written ({error.strerror})") from error
    return len(ranks)
