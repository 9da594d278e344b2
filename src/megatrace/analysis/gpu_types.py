"""What GPUs can do at most, from their vendors' data sheets.

Dense (no sparsity) matrix throughput in bfloat16, because that is what training does; data sheets often print
twice the number, "with sparsity". V100 has no bfloat16: its number is for float16. What a job reaches of it
is ``baseline``'s business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuType:
    """``words`` are those that a name must contain; peak in FLOP/s, memory bandwidth in bytes/s.

    ``link`` bytes/s that a GPU sends to the others of its machine at most, one way: all its NVLinks, or PCIe
    where it has none; None where that depends on how the cards were bridged."""

    name: str
    words: tuple[str, ...]
    peak: float
    bandwidth: float
    link: float | None = None


_TERA = 1e12
_GIGA = 1e9
# Links one way, half of what data sheets print for both: NVLink 300 (V100), 600 (A100), 900 (H100), 1,800
# (B200) GB/s; 400 where exports are limited; PCIe 4.0 x16 where there is no NVLink (L40S).

GPU_TYPES = (
    # NVIDIA V100 data sheet, January 2020: SXM2 125 TFLOPS (tensor), 900 GB/s.
    GpuType("V100 SXM", ("V100",), 125 * _TERA, 0.900 * _TERA, 150 * _GIGA),
    # NVIDIA A100 data sheet, June 2021: 312 TFLOPS; 2,039 GB/s (80 GB SXM), 1,935 (80 GB PCIe), 1,555 (40
    # GB).
    GpuType("A100 SXM", ("A100",), 312 * _TERA, 2.039 * _TERA, 300 * _GIGA),
    GpuType("A100 PCIe", ("A100", "PCIE"), 312 * _TERA, 1.935 * _TERA),
    GpuType("A100 40GB", ("A100", "40GB"), 312 * _TERA, 1.555 * _TERA, 300 * _GIGA),
    # NVIDIA A800 data sheet: an A100 with NVLink of 400 instead of 600 GB/s.
    GpuType("A800", ("A800",), 312 * _TERA, 2.039 * _TERA, 200 * _GIGA),
    # NVIDIA H100 data sheet: 1,979 / 1,513 / 1,671 TFLOPS with sparsity (SXM / PCIe / NVL), half of that
    # dense; 3.35 / 2 / 3.9 TB/s.
    GpuType("H100 SXM", ("H100",), 989.5 * _TERA, 3.35 * _TERA, 450 * _GIGA),
    GpuType("H100 PCIe", ("H100", "PCIE"), 756.5 * _TERA, 2.0 * _TERA),
    GpuType("H100 NVL", ("H100", "NVL"), 835.5 * _TERA, 3.9 * _TERA),
    # NVIDIA H800: an H100 with NVLink of 400 instead of 900 GB/s.
    GpuType("H800", ("H800",), 989.5 * _TERA, 3.35 * _TERA, 200 * _GIGA),
    # NVIDIA H200 data sheet: compute of the H100; 4.8 TB/s. The NVL form: 1,671 with sparsity.
    GpuType("H200 SXM", ("H200",), 989.5 * _TERA, 4.8 * _TERA, 450 * _GIGA),
    GpuType("H200 NVL", ("H200", "NVL"), 835.5 * _TERA, 4.8 * _TERA),
    # NVIDIA GH200 data sheet: 990 dense; 4 TB/s (HBM3).
    GpuType("GH200", ("GH200",), 990 * _TERA, 4.0 * _TERA, 450 * _GIGA),
    # NVIDIA H20, as published by system vendors: 148 dense; 4 TB/s.
    GpuType("H20", ("H20",), 148 * _TERA, 4.0 * _TERA, 450 * _GIGA),
    # NVIDIA DGX B200 data sheet and Blackwell architecture brief: 4.5 PFLOPS with sparsity a GPU; 8 TB/s.
    GpuType("B200", ("B200",), 2250 * _TERA, 8.0 * _TERA, 900 * _GIGA),
    # NVIDIA GB200 NVL72 data sheet: 5 PFLOPS with sparsity a GPU; 8 TB/s.
    GpuType("GB200", ("GB200",), 2500 * _TERA, 8.0 * _TERA, 900 * _GIGA),
    # NVIDIA L40S data sheet: 733 with sparsity; 864 GB/s.
    GpuType("L40S", ("L40S",), 362 * _TERA, 0.864 * _TERA, 32 * _GIGA),
    # AMD Instinct MI250X and MI300X data sheets: 383 and 1,307 dense; 3.2 and 5.3 TB/s.
    GpuType("MI250X", ("MI250X",), 383 * _TERA, 3.2 * _TERA),
    GpuType("MI300X", ("MI300X",), 1307 * _TERA, 5.3 * _TERA),
)


def gpu_type(name: str) -> GpuType | None:
    """The type that a declared name means ("NVIDIA H100 80GB HBM3", "h100-sxm5", "A100 PCIe"); None if
    unknown.

    Of several the one with most words in the name: "H100 PCIe" is not the SXM form.
    """
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    fitting = [kind for kind in GPU_TYPES if words.issuperset(kind.words)]
    return max(fitting, key=lambda kind: len(kind.words), default=None)
