"""Types of machines: what is built into each, from the data sheets of their makers.

Sources: NVIDIA DGX A100 and DGX H100 data sheets and user guides (GPUs, NVLinks, network cards, processors,
memory, PCI addresses as their nvidia-smi prints them), NVIDIA H200 and L40S data sheets, ``nvidia-smi -q`` of
an H200 (driver 590) for which fields there are. A machine without GPUs stands for the processor nodes of the
same clusters."""

from __future__ import annotations

from dataclasses import dataclass

from megatrace.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Kind:
    """One type. Sizes in MiB and GiB as the tools print them; ``link_gbs`` GB/s of one NVLink; ``rate``
    Gb/s."""

    name: str
    about: str
    product: str
    pci_id: str
    gpus: tuple[str, ...]
    memory_mib: int
    watts: int
    clock: int
    links: int
    link_gbs: str
    pcie: int
    margins: bool
    """Temperatures as margins (T.Limit: Hopper and later) rather than degrees."""
    nics: tuple[str, ...]
    nic_id: str
    board: str
    layer: str
    rate: int
    width: str
    sockets: int
    threads: int
    ram_gib: int
    disks: int
    driver: str


_DGX_H100_GPUS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_DGX_H100_NICS = ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc")
_DGX_A100_GPUS = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
_DGX_A100_NICS = ("0c", "12", "4b", "54", "8d", "94", "ba", "cc")

KINDS = {
    kind.name: kind
    for kind in (
        Kind("a100-ib", "8×A100 SXM, InfiniBand HDR", "NVIDIA A100-SXM4-80GB", "0x20b2", _DGX_A100_GPUS, 81920, 400,
             1410, 12, "25", 4, False, _DGX_A100_NICS, "0x101b", "MT_0000000223", "InfiniBand", 200, "4X HDR", 2, 256,
             2048, 8, "535.183.01"),
        Kind("h100-ib", "8×H100 SXM, InfiniBand NDR", "NVIDIA H100 80GB HBM3", "0x2330", _DGX_H100_GPUS, 81559, 700,
             1980, 18, "26.562", 5, True, _DGX_H100_NICS, "0x1021", "MT_0000000838", "InfiniBand", 400, "4X NDR", 2, 224,
             2048, 8, "550.127.08"),
        Kind("h100-roce", "8×H100 SXM, RoCE 400 GbE", "NVIDIA H100 80GB HBM3", "0x2330", _DGX_H100_GPUS, 81559, 700,
             1980, 18, "26.562", 5, True, _DGX_H100_NICS, "0x1021", "MT_0000000838", "Ethernet", 400, "4X NDR", 2, 192,
             2048, 8, "550.127.08"),
        Kind("h200-roce", "8×H200 SXM, RoCE 400 GbE", "NVIDIA H200", "0x2335", _DGX_H100_GPUS, 143771, 700, 1980, 18,
             "26.562", 5, True, _DGX_H100_NICS, "0x1021", "MT_0000000838", "Ethernet", 400, "4X NDR", 2, 192, 2048, 8,
             "590.48.01"),
        Kind("l40s-roce", "8×L40S PCIe, RoCE 200 GbE", "NVIDIA L40S", "0x26b9",
             ("0a", "1b", "3c", "4d", "8a", "9b", "bc", "cd"), 46068, 350, 2520, 0, "", 4, False, ("21", "a1"), "0x101d",
             "MT_0000000359", "Ethernet", 200, "4X HDR", 2, 128, 1024, 4, "550.127.08"),
        Kind("cpu-ib", "processors only, InfiniBand HDR100", "", "", (), 0, 0, 0, 0, "", 0, False, ("21",), "0x101b",
             "MT_0000000225", "InfiniBand", 100, "2X HDR", 2, 256, 512, 2, ""),
    )
}  # fmt: skip


def kind(name: str) -> Kind:
    """Raises UnknownName."""
    if name not in KINDS:
        raise UnknownName("type of machine", name, KINDS)
    return KINDS[name]
