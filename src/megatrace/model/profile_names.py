"""What the names in a profile mean: operations of collectives, sizes of elements.

PyTorch, NCCL and RCCL write the same thing in many ways ("all_reduce", "allreduce",
"ncclDevKernel_AllReduce_…", "_allgather_base"); this is the one place that knows them. Names that it does not
know stay unknown.
"""

from __future__ import annotations

import re

from megatrace.model.events import Op

_OPS = {
    "allreduce": Op.ALL_REDUCE,
    "reducescatter": Op.REDUCE_SCATTER,
    "allgather": Op.ALL_GATHER,
    "broadcast": Op.BROADCAST,
    "reduce": Op.REDUCE,
    "alltoall": Op.ALL_TO_ALL,
    "all2all": Op.ALL_TO_ALL,
    "sendrecv": Op.UNKNOWN,
    "send": Op.SEND,
    "recv": Op.RECV,
    "gather": Op.GATHER,
    "scatter": Op.SCATTER,
    "barrier": Op.BARRIER,
}
"""How a name of a collective begins, letters only -> the operation; the first that fits counts."""
ELEMENT_BYTES = {
    "double": 8,
    "long": 8,
    "longint": 8,
    "complexfloat": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "shortint": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "unsignedchar": 1,
    "signedchar": 1,
}
"""Type of an element as PyTorch or C++ names it, lower case without ``c10::`` and spaces -> bytes."""
_KERNEL_OP = re.compile(r"^(?:nccl|rccl)(?:Dev)?Kernel_?([A-Za-z]+)")


def operation(name: str) -> Op:
    """The operation that a name of a collective or of its kernel stands for, ``Op.UNKNOWN`` for none."""
    kernel = _KERNEL_OP.match(name)
    letters = re.sub("[^a-z0-9]", "", (kernel[1] if kernel else name).lower()).lstrip("_")
    return next((op for word, op in _OPS.items() if letters.startswith(word)), Op.UNKNOWN)


def element_bytes(dtype: str) -> int | None:
    """Bytes of an element of a type by its name, None for an unknown one."""
    word = dtype.replace("c10::", "").replace(" ", "").lower()
    return 1 if word.startswith("float8") else ELEMENT_BYTES.get(word)
