"""Finds communication that will not be recorded, in the environment and in the loaded libraries of a process.

Each sign is one that is there before anything hangs: a variable of a library, a file in a memory map. The
words are those of ``model.blind_spots``, which also has what switches of a framework mean. A sign may be
there without the communication (a library that is loaded and never called); it then costs confidence and
never a wrong name.

Standard library only, with no import of ours: this runs inside the processes of a job, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

DEEPEP, NVSHMEM = "deepep", "nvshmem"
GPU_RDMA, DLOPEN_NCCL = "gpu_rdma", "dlopen_nccl"

_VARIABLES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"NVSHMEM_IB_ENABLE_IBGDA=(?:1|true|yes|on)\Z", re.I), GPU_RDMA),
    (re.compile(r"NVSHMEM_REMOTE_TRANSPORT=ibgda\Z", re.I), GPU_RDMA),
    (
        re.compile(r"NCCL_GIN_TYPE=(?!2\Z)[1-9]\Z"),
        GPU_RDMA,
    ),  # 2: the host posts for the GPUs
    (re.compile(r"NVSHMEM_(?:BOOTSTRAP|REMOTE_TRANSPORT|SYMMETRIC_SIZE|IB_ENABLE_IBGDA)=."), NVSHMEM),
)
_LIBRARIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"deep_ep_cpp[^/]*\.so"), DEEPEP),
    (re.compile(r"nvshmem_transport_ibgda[^/]*\.so"), GPU_RDMA),
    (re.compile(r"nvshmem_(?:bootstrap|transport)_[^/]*\.so"), NVSHMEM),
)
"""NVSHMEM's own library is no sign: PyTorch is linked with it. It loads these when it is initialised."""
_LOADERS = re.compile(r"cupy_backends/cuda/libs/nccl|jaxlib/[^/]*\.so|libtensorflow_cc|vllm/_C")
"""Libraries that come with programs that take NCCL's functions by name."""
_NCCL = re.compile(r"/lib(?:nccl|rccl)\.so")
PLUGIN = "NCCL_PROFILER_PLUGIN"
_OURS = "nccl-profiler-megatrace"


def of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Blind spot → source, of variables."""
    found: dict[str, str] = {}
    for name, value in environment.items():
        for pattern, spot in _VARIABLES:
            if pattern.match(f"{name}={value}"):
                found.setdefault(spot, f"environment {name}")
    return found


def of_libraries(maps: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Blind spot → source, of the text of ``/proc/PID/maps``.

    NCCL's functions taken by name are out of reach of the preloaded library alone: where the plug-in is
    ours, they are seen.
    """
    paths = sorted({line[line.find("/") :] for line in maps.splitlines() if "/" in line})
    found: dict[str, str] = {}
    for path in paths:
        for pattern, spot in _LIBRARIES:
            if pattern.search(path):
                found.setdefault(spot, f"loaded {path.rpartition('/')[2]}")
    by_name = next((path for path in paths if _LOADERS.search(path)), None)
    if environment.get("VLLM_NCCL_SO_PATH"):
        by_name = by_name or "VLLM_NCCL_SO_PATH"
    if by_name and any(_NCCL.search(path) for path in paths) and _OURS not in environment.get(PLUGIN, ""):
        found[DLOPEN_NCCL] = f"loaded {by_name.rpartition('/')[2]} without the profiler plug-in"
    return found
