"""Communication that no recorder of ours can see, by the word that ``job.yaml`` has for it.

A rank that waits in such a call looks like one that made no further call: whoever judges has to know that
there is such a thing in the job. What is hidden is known as an axis (tensor, expert), or not at all.

Knows nothing of how one is found (``collect.blind_spots``) or what follows (``analysis.blind_spots``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from megatrace.model.layout import Axis


class BlindSpot(Enum):
    """What may be there and is not recorded."""

    USERBUFFERS = "userbuffers"
    """Transformer Engine's overlap of tensor-parallel communication with GEMMs: copies of its own"""
    DEEPEP = "deepep"
    """dispatch and combine of experts by DeepEP's kernels"""
    NVSHMEM = "nvshmem"
    """puts and gets that kernels start, between any two ranks"""
    GPU_RDMA = "gpu_rdma"
    """work requests that GPUs post themselves (IBGDA, NCCL's GIN)"""
    DLOPEN_NCCL = "dlopen_nccl"
    """NCCL's functions looked up by name (vLLM, CuPy, JAX), where only the preloaded library records"""
    MISSING_CALLS = "missing_calls"
    """torch says that NCCL ran calls on a group, and none is in the rings"""

    @property
    def says(self) -> str:
        """What it is, as the subject of a sentence."""
        return _SAYS[self]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Along which axes of the layout it joins ranks; () where it may join any two."""
        return _AXES.get(self, ())

    @property
    def of_calls(self) -> bool:
        """Whether a rank can wait there; false where only what is below calls is hidden."""
        return self is not BlindSpot.GPU_RDMA


_SAYS = {
    BlindSpot.USERBUFFERS: "tensor-parallel overlap through userbuffers (tp_comm_overlap)",
    BlindSpot.DEEPEP: "the exchange of experts by DeepEP",
    BlindSpot.NVSHMEM: "communication by NVSHMEM",
    BlindSpot.GPU_RDMA: "RDMA that GPUs start by themselves",
    BlindSpot.DLOPEN_NCCL: "NCCL called through dlopen and dlsym, without the profiler plug-in",
    BlindSpot.MISSING_CALLS: "NCCL's calls on groups that torch knows and no ring has",
}
_AXES = {
    BlindSpot.USERBUFFERS: (Axis.TENSOR,),
    BlindSpot.DEEPEP: (Axis.EXPERT,),
}


@dataclass(frozen=True, slots=True)
class Unobserved:
    """One blind spot of a job. ``source`` says how it was found; ``members`` are the ranks among which it
    lies, () where that follows from the layout or is not known."""

    spot: BlindSpot
    source: str
    members: tuple[int, ...] = ()


OF_FEATURES = {"tp_comm_overlap": BlindSpot.USERBUFFERS, "deepep": BlindSpot.DEEPEP}
"""Features in the configuration of a job → what they hide."""


def of_features(features: Iterable[str]) -> dict[BlindSpot, str]:
    """Blind spot → source, of what is switched on in a job."""
    return {OF_FEATURES[name]: f"feature {name}" for name in features if name in OF_FEATURES}


def spot_named(word: str) -> BlindSpot | None:
    """The blind spot of a word; None for one that is not known (a newer version's)."""
    return next((spot for spot in BlindSpot if spot.value == word), None)
