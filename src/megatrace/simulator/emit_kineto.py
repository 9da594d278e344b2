"""Writes a simulated job as PyTorch's profiler would have: one ``rank_N.pt.trace.json.gz`` a rank.

Host calls, kernels that compute, communication kernels with their group and size, and the steps of training.
The names are made up; what launched what, which stream it ran on and when is what the simulator knows. There
are no operators above the runtime calls and no waits of the host: the simulator's host has none with a name.

Never writes the truth.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from megatrace.errors import UsageError
from megatrace.model.events import NO_COMM, UNSEEN, Op
from megatrace.model.trace import Communicator
from megatrace.simulator.emit import NAMES
from megatrace.simulator.simulation import Simulation

COMPUTE_STREAM = 7
FIRST_STREAM = 20
"""Streams of communication: one a communicator, in order of their first call."""
LAUNCH_US = 2.0
"""A call that launches lasts so long, or until the host does the next thing."""
SHORTEST_US = 0.001
_COLLECTIVES = {
    Op.ALL_REDUCE: "allreduce",
    Op.ALL_GATHER: "_allgather_base",
    Op.REDUCE_SCATTER: "_reduce_scatter_base",
    Op.BROADCAST: "broadcast",
    Op.SEND: "send",
    Op.RECV: "recv",
    Op.ALL_TO_ALL: "all_to_all",
}

Event = dict[str, Any]


def write_profiles(
    simulation: Simulation, folder: Path, progress: Callable[[int, int], None] | None = None
) -> int:
    """One file a rank; how many kernels they hold. Raises UsageError where the folder cannot be written to.

    The simulation has to have kept its kernels.
    """
    world = simulation.scenario.world_size
    written = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(world):
            if progress is not None:
                progress(rank, world)
            events = _in_turn([*_events(simulation, rank)])
            whole = {
                "schemaVersion": 1,
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
                "baseTimeNanoseconds": simulation.scenario.start_time_ns,
                "traceEvents": events,
            }
            path = folder / f"rank_{rank}.pt.trace.json.gz"
            path.write_bytes(gzip.compress(json.dumps(whole).encode(), 1, mtime=0))
            written += sum(event["cat"] == "kernel" for event in events)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from error
    return written


def _events(simulation: Simulation, rank: int) -> Iterator[Event]:
    yield from _steps(simulation, rank)
    assert simulation.kernels is not None
    number = 0
    for launch, begin, end in simulation.kernels[rank].tolist():
        if np.isfinite(end) and end > begin:
            number += 1
            yield _call(rank, launch, number)
            yield _kernel("void kernel(float*)", begin, end, number, COMPUTE_STREAM, {})
    yield from _communication(simulation, rank, number)
    assert simulation.waits is not None
    for begin, end in simulation.waits[rank].tolist():
        if np.isfinite(end) and end > begin:
            yield _host(rank, "cuda_runtime", "cudaDeviceSynchronize", begin / 1e3, (end - begin) / 1e3, {})


def _in_turn(events: list[Event]) -> list[Event]:
    """The events by begin, calls of the host cut where the next one begins: a host has one hand."""
    ordered = sorted(events, key=lambda event: float(event["ts"]))
    host = [event for event in ordered if event["cat"] == "cuda_runtime"]
    for one, following in pairwise(host):
        one["dur"] = round(max(min(one["dur"], following["ts"] - one["ts"]), SHORTEST_US), 3)
    return ordered


def _steps(simulation: Simulation, rank: int) -> Iterator[Event]:
    end = np.cumsum(simulation.truth.iteration_ms) * 1e3
    for number, (start, over) in enumerate(zip([0.0, *end[:-1].tolist()], end.tolist(), strict=True)):
        if np.isfinite(over):
            yield _host(rank, "user_annotation", f"ProfilerStep#{number}", start, over - start, {})


def _communication(simulation: Simulation, rank: int, launched: int) -> Iterator[Event]:
    events, base = simulation.trace.events, simulation.scenario.start_time_ns
    streams: dict[int, int] = {}
    assert events.start is not None
    assert events.end is not None
    for row in range(*events.rows_of(rank).indices(len(events))):
        if events.start[row] == UNSEEN or events.end[row] == UNSEEN:
            continue
        group = int(events.comm[row]) if events.comm is not None else NO_COMM
        stream = streams.setdefault(group, FIRST_STREAM + len(streams))
        op = Op(int(events.op[row]))
        nbytes = int(events.nbytes[row]) if events.nbytes is not None else 0
        said = _carried(op, simulation.trace.communicators[group], nbytes)
        launched += 1
        yield _call(rank, float(events.enqueue[row] - base), launched)
        times = float(events.start[row] - base), float(events.end[row] - base)
        name = "SendRecv" if op.is_p2p else NAMES[op]
        yield _kernel(f"ncclDevKernel_{name}(ncclDevKernelArgs)", *times, launched, stream, said)


def _carried(op: Op, group: Communicator, nbytes: int) -> Event:
    members = list(group.members or ())
    return {
        "Collective name": _COLLECTIVES.get(op, op.name.lower()),
        "In msg nelems": nbytes,
        "Out msg nelems": nbytes,
        "Group size": len(members),
        "dtype": "Byte",
        "Process Group Name": group.name or str(group.id),
        "Process Group Ranks": str(members),
    }


def _call(rank: int, at: float, number: int) -> Event:
    args = {"correlation": number, "External id": number}
    return _host(rank, "cuda_runtime", "cudaLaunchKernel", at / 1e3, LAUNCH_US, args)


def _host(rank: int, category: str, name: str, start: float, length: float, args: Event) -> Event:
    place = {"pid": 1000 + rank, "tid": 1000 + rank, "ts": round(start, 3), "dur": round(length, 3)}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def _kernel(name: str, begin: float, end: float, number: int, stream: int, args: Event) -> Event:
    said = {"device": 0, "stream": stream, "correlation": number, "External id": number, **args}
    place = {"pid": 0, "tid": stream, "ts": round(begin / 1e3, 3), "dur": round((end - begin) / 1e3, 3)}
    return {"ph": "X", "cat": "kernel", "name": name, **place, "args": said}
