"""Rings of requests that NCCL's proxy made (``native/nccl_steps.cc``): from which rank to which.

A path is what one rank sends to another over the network, on all communicators together; NCCL tells neither
the NIC nor the queue pair. How each queue stood last is in the record of its path, which the recorder writes
in place: a queue that came to a stand between two samples shows as it was.

Is no reader of its own: ``verbs_ring`` takes these rings beside those of work requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from megatrace.model.ringformat import RECORD, Ring

SOURCE = b'"source": "proxy"'
SAMPLE, PATH = 10, 14


def members_of(rings: Iterable[Ring]) -> dict[tuple[int, int], str]:
    """(communicator, index within it) → "node rank N", of every process that sent anything."""
    found = {}
    for ring in rings:
        for path in _paths(ring):
            found[int(path["comm"]), int(path["thread"])] = f"{ring.host} rank {ring.rank}"
    return found


def names_of(ring: Ring, members: Mapping[tuple[int, int], str]) -> dict[int, str]:
    """``source → destination`` of every queue of one process, by its key."""
    source = f"{ring.host} rank {ring.rank}"
    found = {}
    for path in _paths(ring):
        comm, peer = int(path["comm"]), int(path["peer"])
        other = members.get((comm, peer), f"member {peer} of communicator {comm:#x}")
        found[int(path["stream"])] = f"{source} → {other}"
    return found


def samples_of(ring: Ring) -> NDArray[np.void]:
    """The samples of one process in order of time, and behind them how each queue stood last."""
    samples = ring.records[ring.records["kind"] == SAMPLE]
    ends = []
    for path in _paths(ring):
        own = samples[samples["stream"] == path["stream"]]
        end = np.zeros(1, RECORD)
        end["kind"], end["stream"] = SAMPLE, path["stream"]
        end["time"] = np.uint64((int(path["time"]) + ring.offset) % (1 << 64))
        end["flags"], end["nbytes"], end["number"] = path["flags"], path["nbytes"], path["number"]
        if len(own) and end["time"] < own[-1]["time"]:
            continue  # the ring was read while it was written
        if len(own):
            # A queue that empties, or stops being empty, is always sampled: it is busy still, or idle still.
            busy = own[-1]["flags"] > 0
            end["comm"] = own[-1]["comm"] + (end["time"] - own[-1]["time"] if busy else np.uint64(0))
        ends.append(end)
    whole = np.concatenate([samples, *ends])
    return whole[np.argsort(whole["time"], kind="stable")]


def out_of_reach(steps: Sequence[Ring], verbs: Sequence[Ring]) -> list[Ring]:
    """The rings of ranks whose work requests were not recorded; those say more, and the same again."""
    seen = {ring.rank for ring in verbs if (ring.records["kind"] == SAMPLE).any()}
    return [ring for ring in steps if ring.rank is not None and ring.rank not in seen and len(_paths(ring))]


def _paths(ring: Ring) -> NDArray[np.void]:
    paths: NDArray[np.void] = ring.kept[ring.kept["kind"] == PATH]
    return paths
