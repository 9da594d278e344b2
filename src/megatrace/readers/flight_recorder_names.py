"""What the names of a flight recorder mean: operations, both ends of a message, bytes of an element.

Does not look at entries, only at their words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from megatrace.model.events import NO_PEER, Op

OPS: dict[str, Op] = {
    "all_reduce": Op.ALL_REDUCE,
    "allreduce": Op.ALL_REDUCE,
    "all_reduce_barrier": Op.BARRIER,
    "all_reduce_sparse": Op.ALL_REDUCE,
    "allreduce_coalesced": Op.ALL_REDUCE,
    "allreduce_coalesced_": Op.ALL_REDUCE,
    "all_gather": Op.ALL_GATHER,
    "_all_gather_base": Op.ALL_GATHER,
    "all_gather_into_tensor": Op.ALL_GATHER,
    "all_gather_into_tensor_coalesced": Op.ALL_GATHER,
    "all_gather_single": Op.ALL_GATHER,
    "reduce_scatter": Op.REDUCE_SCATTER,
    "_reduce_scatter_base": Op.REDUCE_SCATTER,
    "reduce_scatter_tensor": Op.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": Op.REDUCE_SCATTER,
    "reduce_scatter_single": Op.REDUCE_SCATTER,
    "broadcast": Op.BROADCAST,
    "_broadcast_oop": Op.BROADCAST,
    "reduce": Op.REDUCE,
    "_reduce_oop": Op.REDUCE,
    "all_to_all": Op.ALL_TO_ALL,
    "all_to_all_single": Op.ALL_TO_ALL,
    "alltoall_base": Op.ALL_TO_ALL,
    "gather": Op.GATHER,
    "scatter": Op.SCATTER,
    "barrier": Op.BARRIER,
    "send": Op.SEND,
    "recv": Op.RECV,
    "recvanysource": Op.RECV,
}
"""Names after the backend ("nccl:all_reduce"), in lower case."""

BYTES: dict[str, int] = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "complexfloat": 8, "complexdouble": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes of an element, by the names that the recorder writes, in lower case."""

_PEER = re.compile(r"(send|recv)\s+(\d{1,9})\s*(->|<-)\s*(\d{1,9})")
COALESCED = "coalesced"


@dataclass(frozen=True, slots=True)
class Call:
    """What a profiling name says: the operation, and the group ranks of a Send or Recv (−1 none)."""

    op: Op
    own: int = NO_PEER
    peer: int = NO_PEER
    closes: bool = False
    """The end of a coalesced group, which holds the state of all its calls."""
    stateless: bool = False
    """The backend never reports states: only "retired" tells that a call is over."""


@lru_cache(maxsize=65_536)
def call_of(name: str) -> Call:
    """ "nccl:send 0->1" → SEND, own 0, peer 1."""
    backend, _, rest = name.partition(":")
    word = (rest or backend).strip().lower()
    stateless = backend in ("gloo", "mpi", "ucc")
    if word == COALESCED:
        return Call(Op.UNKNOWN, closes=True, stateless=stateless)
    found = _PEER.match(word)
    if found is not None:
        op = Op.SEND if found.group(1) == "send" else Op.RECV
        return Call(op, int(found.group(2)), int(found.group(4)), stateless=stateless)
    first = word.split(" ")[0]
    return Call(OPS.get(first, OPS.get(first.strip("_"), Op.UNKNOWN)), stateless=stateless)
