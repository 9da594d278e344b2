"""Faults of GPUs, NVLinks and NVSwitches."""

from __future__ import annotations

from random import Random

from megatrace.bot.specimens.faults import SXM, fault, gpu, xid
from megatrace.bot.specimens.machine import Machine, Running
from megatrace.model.system import Ran

HOPPER = ("h100-ib", "h100-roce", "h200-roce")
NEWER = (*HOPPER, "l40s-roce")


@fault("gpu_silent", "GPU-01", "a GPU that the driver could not start", "P0", job=False)
def gpu_silent(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.unseen.add(index)
    machine.log(30, f"NVRM: GPU {place}: RmInitAdapter failed! (0x62:0x55:2477)")
    return place


@fault(
    "gpu_gone",
    "GPU-01",
    "a GPU that is gone from the bus after a boot",
    "P0",
    job=False,
    template={"gpu.count": 8},
)
def gpu_gone(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    machine.gone.add(place)
    return ""


@fault("gpu_lost", "GPU-02", "a GPU that fell off the bus beside a job", "P0")
def gpu_lost(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    xid(machine, place, 79, "GPU has fallen off the bus.", who="pid='<unknown>', name=<unknown>, ")
    said = f"Unable to determine the device handle for GPU {place}: GPU is lost.  Reboot the system to recover this GPU\n"
    for argv in (("nvidia-smi", "-q", "-x"), ("nvidia-smi", "-q")):
        machine.commands[argv] = Ran(argv, 15, output=said)
    return place


@fault("gpu_ones", "GPU-02", "a GPU whose configuration space reads as ones", "P0")
def gpu_ones(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    machine.overrides[f"/sys/bus/pci/devices/{place}/config"] = "\ufffd" * 64
    return place


@fault("driver_hangs", "GPU-03", "a driver that does not answer any more", "P0", looks=(60.0,))
def driver_hangs(machine: Machine, draw: Random) -> str:
    machine.hung.add("nvidia-smi")
    return ""


@fault("smi_stuck", "GPU-03", "nvidia-smi processes that stand in the kernel", "P1")
def smi_stuck(machine: Machine, draw: Random) -> str:
    machine.processes += [Running(50_000 + n, "nvidia-smi", "D") for n in range(3)]
    return ""


@fault("recovery_reset", "GPU-04", "the driver asks for a reset", "P1", NEWER)
def recovery_reset(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["gpu_recovery_action"] = "GPU Reset"
    return place


@fault("recovery_reboot", "GPU-04", "the driver asks for a reboot", "P1", NEWER)
def recovery_reboot(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["gpu_recovery_action"] = "Node Reboot"
    return place


@fault("xid_dbe", "GPU-05", "a double-bit error, its row remapped, a reset asked for", "P0")
def xid_dbe(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    xid(
        machine,
        place,
        48,
        "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer",
    )
    xid(machine, place, 63, "Row Remapper: New row marked for remapping, reset gpu to activate.", 19)
    xid(
        machine, place, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", 18, ""
    )
    return place


@fault("xid_gsp", "GPU-05", "a system processor that does not answer", "P0")
def xid_gsp(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    for second in range(3):
        xid(
            machine,
            place,
            119,
            "Timeout after 6s of waiting for RPC response from GPU GSP! Expected function 76",
            30 - 6 * second,
        )
    return place


@fault("xid_contained", "GPU-05", "a contained memory error", "P1")
def xid_contained(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    xid(machine, place, 94, "Contained: SM (0x1). RST: No, D-RST: No")
    return place


@fault("xid_second_lost", "GPU-05", "two GPUs that fell off the bus", "P0")
def xid_second_lost(machine: Machine, draw: Random) -> str:
    first, second = draw.sample(machine.gpu_places, 2)
    xid(machine, first, 79, "GPU has fallen off the bus.", 30)
    xid(machine, second, 79, "GPU has fallen off the bus.", 20)
    return second


@fault("xid_ctx_timeout", "GPU-05", "a context switch that never ends: the flagship's hanging GPU", "P1")
def xid_ctx_timeout(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    xid(machine, place, 109, "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x2c014")
    return place


@fault("ecc_dram", "GPU-06", "a new uncorrectable error of GPU memory", "P1")
def ecc_dram(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {
        "ecc_errors/volatile/dram_uncorrectable": "1",
        "ecc_errors/aggregate/dram_uncorrectable": "1",
    }
    return place


@fault("ecc_sram", "GPU-06", "new uncorrectable errors of a GPU's caches", "P1")
def ecc_sram(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {"ecc_errors/volatile/sram_uncorrectable_secded": "2"}
    return place


@fault("remap_pending", "GPU-08", "a row remap that waits for a reset", "P1")
def remap_pending(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {
        "remapped_rows/remapped_row_pending": "Yes",
        "remapped_rows/remapped_row_unc": "1",
    }
    return place


@fault("page_pending", "GPU-08", "a page retirement that waits for a reset", "P1", ("a100-ib", "l40s-roce"))
def page_pending(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {"retired_pages/pending_blacklist": "Yes"}
    return place


@fault("remap_failed", "GPU-09", "a row that could not be remapped", "P0")
def remap_failed(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {
        "remapped_rows/remapped_row_failure": "Yes",
        "remapped_rows/remapped_row_unc": "8",
    }
    return place


@fault("unrepairable", "GPU-09", "memory that cannot be repaired", "P0", NEWER)
def unrepairable(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {"ecc_errors/unrepairable_memory": "Yes"}
    return place


@fault(
    "near_slowdown",
    "GPU-13",
    "a GPU three degrees below its slowdown limit",
    "P2",
    HOPPER,
    looks=(60.0, 90.0, 60.0),
)
def near_slowdown(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {"temperature/gpu_temp": "84 C", "temperature/gpu_temp_tlimit": "1 C"}
    return place


@fault("at_slowdown", "GPU-13", "a GPU at its slowdown limit", "P1", ("a100-ib", "l40s-roce"))
def at_slowdown(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {"temperature/gpu_temp": "91 C"}
    return place


@fault("thermal_slowdown", "GPU-15", "a GPU that is slowed by heat", "P1", looks=(60.0, 60.0))
def thermal_slowdown(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {
        "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Active",
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown": "41000000 us",
    }
    return place


@fault("power_brake", "GPU-15", "a GPU that the power brake slowed for part of the time", "P1")
def power_brake(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake": "9000000 us"
    }
    return place


@fault("low_clock", "GPU-17", "a busy GPU at 60 % of its clock", "P1", looks=(60.0, 200.0, 200.0))
def low_clock(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["clocks/sm_clock"] = f"{machine.kind.clock * 6 // 10} MHz"
    return place


@fault("idle_clock", "GPU-17", "a busy GPU that is stuck at its idle clock", "P1", looks=(60.0, 200.0, 200.0))
def idle_clock(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["clocks/sm_clock"] = "345 MHz"
    return place


@fault("no_persistence", "GPU-19", "persistence mode off on all GPUs", "P2")
def no_persistence(machine: Machine, draw: Random) -> str:
    for tree in machine.gpus:
        tree["persistence_mode"] = "Disabled"
    return ""


@fault("one_without_persistence", "GPU-19", "persistence mode off on one GPU", "P2")
def one_without_persistence(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["persistence_mode"] = "Disabled"
    return place


@fault("left_memory", "GPU-22", "GPU memory that nobody owns", "P2", looks=(60.0, 180.0), job=False)
def left_memory(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["fb_memory_usage/used"] = "31200 MiB"
    return place


@fault("dead_owner", "GPU-22", "GPU memory of a process that is gone", "P2", job=False)
def dead_owner(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["fb_memory_usage/used"] = "9120 MiB"
    machine.owners.append((index, 77_123))
    return place


@fault("links_dark", "NVL-01", "two NVLinks of a GPU that are inactive", "P0", SXM)
def links_dark(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    for link in draw.sample(range(machine.kind.links), 2):
        machine.dark[index, link] = "<inactive>"
    return place


@fault("all_links_dark", "NVL-01", "a GPU without any NVLink", "P0", SXM)
def all_links_dark(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    for link in range(machine.kind.links):
        machine.dark[index, link] = "<inactive>"
    return place


@fault("link_recovery", "NVL-02", "an NVLink that recovered once", "P1", SXM)
def link_recovery(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.link_errors[index, draw.randrange(machine.kind.links), "Recovery"] = 1
    return place


@fault("link_crc", "NVL-02", "an NVLink with many CRC errors", "P1", SXM)
def link_crc(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.link_errors[index, draw.randrange(machine.kind.links), "CRC"] = 4_200
    return place


@fault("fabric_failure", "NVL-04", "a GPU that could not join the fabric", "P0", HOPPER, job=False)
def fabric_failure(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {"fabric/state": "Completed", "fabric/status": "Failure"}
    return place


@fault("fabric_not_started", "NVL-04", "a GPU that never joined the fabric", "P0", HOPPER, job=False)
def fabric_not_started(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index] |= {"fabric/state": "Not Started", "fabric/status": "N/A"}
    return place


@fault("fm_failed", "NVL-05", "a fabric manager that failed", "P0", SXM, job=False)
def fm_failed(machine: Machine, draw: Random) -> str:
    machine.services["nvidia-fabricmanager"]["ActiveState"] = "failed"
    return ""


@fault("fm_version", "NVL-05", "a fabric manager of another version", "P0", SXM, job=False)
def fm_version(machine: Machine, draw: Random) -> str:
    machine.services["nvidia-fabricmanager"]["ActiveState"] = "failed"
    machine.overrides["/var/log/fabricmanager.log"] = (
        "[May 28 2026 20:26:20] [ERROR] [tid 4121] fabric manager NVIDIA GPU driver interface version 550.90.07 "
        f"don't match with driver version {machine.kind.driver}. Please update with matching NVIDIA driver package.\n"
    )
    return ""


@fault("fm_restarts", "NVL-05", "a fabric manager that restarts all the time", "P0", SXM, job=False)
def fm_restarts(machine: Machine, draw: Random) -> str:
    machine.services["nvidia-fabricmanager"]["NRestarts"] = "4"
    return ""


@fault("sxid_fatal", "NVL-06", "a fatal error of an NVSwitch", "P0", SXM)
def sxid_fatal(machine: Machine, draw: Random) -> str:
    number = draw.randrange(4)
    place = f"0000:0{5 + number}:00.0"
    machine.log(15, f"nvidia-nvswitch{number}: SXid (PCI:{place}): 20034, Fatal, Link 28 LTSSM Fault Up")
    return place


@fault("sxid_always_fatal", "NVL-06", "an error of an NVSwitch that needs a reset of all", "P0", SXM)
def sxid_always_fatal(machine: Machine, draw: Random) -> str:
    number = draw.randrange(4)
    place = f"0000:0{5 + number}:00.0"
    machine.log(
        15,
        f"nvidia-nvswitch{number}: SXid (PCI:{place}): 24007, Fatal, Link 12 sourcetrack TCEN0 crubmstore DBE",
    )
    return place


@fault(
    "idle_beside_busy", "GPU-25", "a GPU that idles while its job computes", "P1", looks=(60.0, 300.0, 400.0)
)
def idle_beside_busy(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["utilization/gpu_util"] = "0 %"
    return place


@fault("capped_alone", "GPU-16", "one GPU that its power limit holds down", "P3")
def capped_alone(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    machine.gpus[index]["clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap"] = (
        "55000000 us"
    )
    return place


@fault("imex_down", "NVL-08", "the memory domain of a rack that is not up", "P0", SXM, job=False)
def imex_down(machine: Machine, draw: Random) -> str:
    argv = ("nvidia-imex-ctl", "-q")
    machine.commands[argv] = Ran(argv, 0, "UNAVAILABLE\n")
    return ""


@fault("exporter_blind", "MON-01", "an exporter that has lost a GPU", "P2")
def exporter_blind(machine: Machine, draw: Random) -> str:
    index, place = gpu(machine, draw)
    lines = [
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="{number}", UUID="{tree["uuid"]}", device="nvidia{number}"}} 41'
        for number, tree in enumerate(machine.gpus)
        if number != index
    ]
    argv = ("curl", "-s", "--max-time", "10", "http://127.0.0.1:9400/metrics")
    machine.commands[argv] = Ran(argv, 0, "\n".join([*lines, ""]))
    return place


@fault("exporter_hangs", "MON-01", "an exporter that does not answer", "P2")
def exporter_hangs(machine: Machine, draw: Random) -> str:
    argv = ("curl", "-s", "--max-time", "10", "http://127.0.0.1:9400/metrics")
    machine.commands[argv] = Ran(argv, 28)
    return ""
