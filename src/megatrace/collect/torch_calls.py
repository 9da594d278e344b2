"""What the methods of torch's ``ProcessGroup`` do, and where in their arguments the payload stands.

The names differ between releases of torch (``_allgather_base`` became ``all_gather_single``), so this lists
all that there ever were and the hook patches those that it finds. Payload is what NCCL counts: the input of
an all-gather, the output of a reduce-scatter. Numbers of operations are those of ``model.events.Op``, which
cannot be imported here: this runs inside the processes of a job, with the standard library alone.
"""

from __future__ import annotations

from typing import Any

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SEND, RECV, ALL_TO_ALL = 1, 2, 3, 4, 5, 6, 7, 8
GATHER, SCATTER, BARRIER = 9, 10, 11

MESSAGES = frozenset({SEND, RECV})

CALLS: dict[str, tuple[int, int]] = {
    "allreduce": (ALL_REDUCE, 0),
    "allreduce_coalesced": (ALL_REDUCE, 0),
    "allgather": (ALL_GATHER, 1),
    "_allgather_base": (ALL_GATHER, 1),
    "all_gather_single": (ALL_GATHER, 1),
    "allgather_coalesced": (ALL_GATHER, 1),
    "all_gather_single_coalesced": (ALL_GATHER, 1),
    "allgather_into_tensor_coalesced": (ALL_GATHER, 1),
    "reduce_scatter": (REDUCE_SCATTER, 0),
    "_reduce_scatter_base": (REDUCE_SCATTER, 0),
    "reduce_scatter_single": (REDUCE_SCATTER, 0),
    "reduce_scatter_single_coalesced": (REDUCE_SCATTER, 0),
    "reduce_scatter_tensor_coalesced": (REDUCE_SCATTER, 0),
    "broadcast": (BROADCAST, 0),
    "reduce": (REDUCE, 0),
    "gather": (GATHER, 1),
    "scatter": (SCATTER, 0),
    "alltoall": (ALL_TO_ALL, 1),
    "alltoall_base": (ALL_TO_ALL, 1),
    "all_to_all_single": (ALL_TO_ALL, 1),
    "barrier": (BARRIER, -1),
    "monitored_barrier": (BARRIER, -1),
    "send": (SEND, 0),
    "recv": (RECV, 0),
    "recv_anysource": (RECV, 0),
}
"""Method → (operation, position of the payload behind ``self``; -1 for none)."""

DTYPES = {
    "torch.int8": 0,
    "torch.uint8": 1,
    "torch.bool": 1,
    "torch.int32": 2,
    "torch.uint32": 3,
    "torch.int64": 4,
    "torch.uint64": 5,
    "torch.float16": 6,
    "torch.float32": 7,
    "torch.float64": 8,
    "torch.bfloat16": 9,
}
"""torch's types → NCCL's numbers of data types."""


def payload(value: Any) -> tuple[int, Any]:
    """(bytes, the first tensor or None) of an argument; (0, None) where it is of no known shape."""
    try:
        return value.nbytes, value
    except AttributeError:
        if not isinstance(value, list | tuple):
            return 0, None
    parts = [payload(item) for item in value]
    return sum(part[0] for part in parts), parts[0][1] if parts else None
