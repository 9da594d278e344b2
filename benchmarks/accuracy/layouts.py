"""The jobs of the matrix: small, and each of them different in one thing that an analysis may trip over.

8 to 64 ranks mostly, because what has to be told apart (tensor peers, replicas, stages, nodes) is all there
at that size and a run takes a second; two of 128 and 256. Few layers and micro-batches for the same reason.
Nodes have four ranks in some, so that groups and pipelines cross nodes in every way.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

_SMALL: Settings = {"layers_per_stage": 4, "micro_batches": 8}

MEGATRON: dict[str, Settings] = {
    "tp2-pp4-dp2": {"tp": 2, "pp": 4, "dp": 2},
    "tp1-pp4-dp4": {"pp": 4, "dp": 4, "ranks_per_node": 4},
    "tp4-pp2-dp2": {"tp": 4, "pp": 2, "dp": 2},
    "tp8-pp2-dp2": {"tp": 8, "pp": 2, "dp": 2},
    "tp8-pp4-dp1": {"tp": 8, "pp": 4},
    "tp2-pp8-dp1": {"tp": 2, "pp": 8, "ranks_per_node": 4},
    "tp1-pp8-dp2": {"pp": 8, "dp": 2, "ranks_per_node": 2},
    "tp2-pp2-dp8": {"tp": 2, "pp": 2, "dp": 8},
    "tp4-pp4-dp4": {"tp": 4, "pp": 4, "dp": 4},
    "tp2-pp1-dp8": {"tp": 2, "dp": 8},
    "tp1-pp2-dp16": {"pp": 2, "dp": 16},
    "tp2-pp2-cp2-dp2": {"tp": 2, "pp": 2, "cp": 2, "dp": 2},
    "cp2-gather": {"tp": 2, "pp": 2, "cp": 2, "dp": 2, "context_parallel_comm": "all_gather"},
    "tp2-pp2-dp4-ep2": {"tp": 2, "pp": 2, "dp": 4, "ep": 2},
    "interleaved": {"tp": 2, "pp": 4, "dp": 2, "vpp": 2},
    "gpipe": {"tp": 2, "pp": 4, "dp": 2, "schedule": "gpipe"},
    "sequence-parallel": {"tp": 4, "pp": 2, "dp": 2, "sequence_parallel": True},
    "grad-overlap": {"tp": 2, "pp": 2, "dp": 4, "overlap_grad_reduce": True},
    "plain-optimizer": {"tp": 2, "pp": 2, "dp": 4, "ranks_per_node": 4,
                        "distributed_optimizer": False, "tied_embeddings": True},
    "tp8-pp4-dp4": {"tp": 8, "pp": 4, "dp": 4, "layers_per_stage": 2},
    "tp4-pp4-dp16": {"tp": 4, "pp": 4, "dp": 16, "layers_per_stage": 2},
}  # fmt: skip

# More layers: kernels must outlast the gradient traffic, or a slow device hides behind the network.
_WIDE: Settings = {
    "micro_batches": 2, "layers_per_stage": 8, "micro_batch_size": 4,
    "layer_forward_ms": 12.0, "layer_backward_ms": 24.0,
}  # fmt: skip
SHARDED: dict[str, Settings] = {
    "ddp8": {"pattern": "ddp", "dp": 8, "ranks_per_node": 4, "micro_batches": 2, "layers_per_stage": 8},
    "ddp16": {"pattern": "ddp", "dp": 16, "micro_batches": 4, "layers_per_stage": 8},
    "fsdp16": {"pattern": "fsdp", "dp": 16, **_WIDE},
    "zero3-16": {"pattern": "zero3", "dp": 16, **_WIDE},
}

LAYOUTS: dict[str, Settings] = {
    name: {**_SMALL, **settings} for name, settings in {**MEGATRON, **SHARDED}.items()
}

LARGE = frozenset({"tp8-pp4-dp4", "tp4-pp4-dp16"})
"""128 ranks and more: a few runs of each fault are enough to see that size changes nothing."""
