"""What nvidia-smi prints of the GPUs of a made machine: the XML of ``-q -x``, NVLinks, processes.

The tree follows the driver's own document type (nvsmi_device_v12 and v13): the same sections, names and
units, without those that no check reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from megatrace.bot.specimens.kinds import Kind

NA = "N/A"
Tree = dict[str, str]


def gpu_tree(kind: Kind, index: int, bus: str) -> Tree:
    """A healthy idle GPU: value by path of XML tags."""
    tree = {
        "product_name": kind.product,
        "persistence_mode": "Enabled",
        "mig_mode/current_mig": "Disabled" if kind.links else NA,
        "mig_mode/pending_mig": "Disabled" if kind.links else NA,
        "serial": f"16{index:02d}524{int(bus, 16):06d}",
        "uuid": f"GPU-{int(bus, 16):08x}-9ac9-cbdc-3b54-5db75d6f{index:04x}",
        "minor_number": str(index),
        "vbios_version": "96.00.89.00.01",
        "compute_mode": "Default",
        "performance_state": "P0",
        "pci/pci_bus_id": f"00000000:{bus.upper()}:00.0",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": str(kind.pcie),
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen": str(kind.pcie),
        "pci/pci_gpu_link_info/link_widths/max_link_width": "16x",
        "pci/pci_gpu_link_info/link_widths/current_link_width": "16x",
        "pci/replay_counter": "0",
        "fb_memory_usage/total": f"{kind.memory_mib} MiB",
        "fb_memory_usage/used": "4 MiB",
        "utilization/gpu_util": "0 %",
        "utilization/memory_util": "0 %",
        "ecc_mode/current_ecc": "Enabled",
        "ecc_mode/pending_ecc": "Enabled",
        "power_readings/current_power_limit": f"{kind.watts}.00 W",
        "clocks/sm_clock": f"{kind.clock} MHz",
        "clocks/mem_clock": "2619 MHz",
        "max_clocks/sm_clock": f"{kind.clock} MHz",
    }
    del tree["power_readings/current_power_limit"]
    return tree | _newer(kind) | _reasons() | _errors(kind) | _heat(kind) | _power(kind)


def _newer(kind: Kind) -> Tree:
    """Fields of drivers from 550 on; NVSwitch machines have a fabric from Hopper on."""
    old = kind.driver.startswith("535")
    fabric = bool(kind.links) and kind.margins
    tree = {"fabric/state": "Completed" if fabric else NA, "fabric/status": "Success" if fabric else NA}
    return tree if old else tree | {"gpu_recovery_action": "None"}


def _reasons() -> Tree:
    names = (
        "gpu_idle",
        "sw_power_cap",
        "hw_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "sw_thermal_slowdown",
    )
    tree = {f"clocks_event_reasons/clocks_event_reason_{name}": "Not Active" for name in names}
    counted = ("sw_power_cap", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake")
    return tree | {
        f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}": "0 us" for name in counted
    }


def _errors(kind: Kind) -> Tree:
    tree = {}
    for part in ("volatile", "aggregate"):
        for name in (
            "sram_correctable",
            "sram_uncorrectable_parity",
            "sram_uncorrectable_secded",
            "dram_correctable",
            "dram_uncorrectable",
        ):
            tree[f"ecc_errors/{part}/{name}"] = "0"
    tree["ecc_errors/aggregate/sram_threshold_exceeded"] = "No"
    tree["retired_pages/pending_blacklist"] = NA
    for name, value in (("corr", "0"), ("unc", "0"), ("pending", "No"), ("failure", "No")):
        tree[f"remapped_rows/remapped_row_{name}"] = value
    banks = {"A100-SXM4-80GB": 640, "L40S": 192}.get(kind.product.removeprefix("NVIDIA "), 2560)
    for name, count in (("max", banks), ("high", 0), ("partial", 0), ("low", 0), ("none", 0)):
        tree[f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}"] = f"{count} bank(s)"
    return tree


def _heat(kind: Kind) -> Tree:
    tree = {"temperature/gpu_temp": "33 C", "temperature/memory_temp": "38 C" if kind.links else NA}
    if kind.margins:
        return tree | {
            "temperature/gpu_temp_tlimit": "54 C",
            "temperature/gpu_temp_max_tlimit_threshold": "-8 C",
            "temperature/gpu_temp_slow_tlimit_threshold": "-2 C",
        }
    return tree | {
        "temperature/gpu_temp_max_threshold": "92 C",
        "temperature/gpu_temp_slow_threshold": "89 C",
    }


def _power(kind: Kind) -> Tree:
    return {
        "gpu_power_readings/average_power_draw": "72.10 W",
        "gpu_power_readings/instant_power_draw": "72.33 W",
        "gpu_power_readings/current_power_limit": f"{kind.watts}.00 W",
        "gpu_power_readings/default_power_limit": f"{kind.watts}.00 W",
    }


def as_xml(driver: str, trees: Sequence[Mapping[str, str]]) -> str:
    """The whole document."""
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
    ]
    lines += [
        f"\t<driver_version>{driver}</driver_version>",
        f"\t<attached_gpus>{len(trees)}</attached_gpus>",
    ]
    for tree in trees:
        lines.append(f'\t<gpu id="{tree["pci/pci_bus_id"]}">')
        _nested(lines, sorted(tree.items()), 2)
        lines.append("\t</gpu>")
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


def _nested(lines: list[str], items: Sequence[tuple[str, str]], depth: int) -> None:
    """Paths that begin alike share their element."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for path, value in items:
        head, slash, rest = path.partition("/")
        groups.setdefault(head, []).append((rest if slash else "", value))
    for head, inner in groups.items():
        if inner[0][0] == "":
            lines.append(f"{chr(9) * depth}<{head}>{escape(inner[0][1])}</{head}>")
            continue
        lines.append(f"{chr(9) * depth}<{head}>")
        _nested(lines, inner, depth + 1)
        lines.append(f"{chr(9) * depth}</{head}>")


def table(trees: Sequence[Mapping[str, str]]) -> str:
    """``nvidia-smi`` without options: two lines a GPU in a frame."""
    lines = ["| NVIDIA-SMI 550.127.08             Driver Version: 550.127.08     CUDA Version: 12.4     |"]
    for index, tree in enumerate(trees):
        name = tree["product_name"][:24]
        lines += [
            f"|   {index}  {name:<24}       On  |   {tree['pci/pci_bus_id']} Off |                    0 |",
            f"| N/A   33C    P0             72W /  700W | {tree['fb_memory_usage/used']:>10} / {tree['fb_memory_usage/total']} | 0%      Default |",
        ]
    return "\n".join([*lines, ""])


def nvlink_states(kind: Kind, trees: Sequence[Mapping[str, str]], dark: Mapping[tuple[int, int], str]) -> str:
    """``nvidia-smi nvlink -s``; ``dark``: (GPU, link) → what stands in place of the speed."""
    lines = []
    for index, tree in enumerate(trees):
        lines.append(_title(index, tree))
        if all((index, link) in dark for link in range(kind.links)):
            lines.append("NVML: Unable to retrieve NVLink information as all links are inactive")
            continue
        lines += [
            f"\t Link {link}: {dark.get((index, link), f'{kind.link_gbs} GB/s')}"
            for link in range(kind.links)
        ]
    return "\n".join([*lines, ""])


def nvlink_errors(
    kind: Kind, trees: Sequence[Mapping[str, str]], counts: Mapping[tuple[int, int, str], int]
) -> str:
    """``nvidia-smi nvlink -e``; ``counts``: (GPU, link, "Replay", "Recovery" or "CRC") → count."""
    lines = []
    for index, tree in enumerate(trees):
        lines.append(_title(index, tree))
        lines += [
            f"\t Link {link}: {name} Errors: {counts.get((index, link, name), 0)}"
            for link in range(kind.links)
            for name in ("Replay", "Recovery", "CRC")
        ]
    return "\n".join([*lines, ""])


def nvlink_remotes(kind: Kind, trees: Sequence[Mapping[str, str]]) -> str:
    """``nvidia-smi nvlink -R``: every link leads to one of four NVSwitches (DGX H100) or six (DGX A100)."""
    switches = ("05", "06", "07", "08") if kind.margins else ("c4", "c5", "c6", "c7", "c8", "c9")
    lines = []
    for index, tree in enumerate(trees):
        lines.append(_title(index, tree))
        for link in range(kind.links):
            switch, port = switches[link % len(switches)], index * 4 + link // len(switches)
            lines.append(f"\t Link {link}: Remote Device 00000000:{switch.upper()}:00.0: Link {port}")
    return "\n".join([*lines, ""])


def _title(index: int, tree: Mapping[str, str]) -> str:
    return f"GPU {index}: {tree['product_name']} (UUID: {tree['uuid']})"
