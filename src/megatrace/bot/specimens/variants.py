"""Healthy machines that look different: what a check must be silent on.

Each variant is something that is seen on healthy fleets every day: old counts on counters, errors of
applications, a port that was never cabled, a boot, an update of the driver, tools that are missing, a look
without root. Which of them come together is drawn; the same seed makes the same machine."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from megatrace.bot.specimens.faults import xid
from megatrace.bot.specimens.kinds import KINDS
from megatrace.bot.specimens.machine import BOOT_LINES, Machine, PortState, machine
from megatrace.model.system import Ran, Why

Change = Callable[[Machine, Random], None]


def old_counts(made: Machine, draw: Random) -> None:
    """Counters that have seen something, long ago."""
    for port in made.ports:
        port.counters |= {
            "link_downed": draw.randrange(30),
            "symbol_error": draw.randrange(5_000),
            "link_error_recovery": draw.randrange(9),
        }
        port.hw_counters |= {
            "out_of_sequence": draw.randrange(10**6),
            "local_ack_timeout_err": draw.randrange(900),
        }
        for name in port.statistics:
            port.statistics[name] = draw.randrange(10**6)
    for index, tree in enumerate(made.gpus):
        tree |= {
            "ecc_errors/volatile/dram_correctable": str(draw.randrange(50)),
            "ecc_errors/aggregate/dram_uncorrectable": str(draw.randrange(2)),
        }
        tree["remapped_rows/remapped_row_unc"] = str(draw.randrange(2))
        if made.kind.links:
            made.link_errors[index, draw.randrange(made.kind.links), "CRC"] = draw.randrange(10**6)
            made.link_errors[index, draw.randrange(made.kind.links), "Recovery"] = draw.randrange(3)
    for place in made.gpu_places:
        made.aer[place] = {"correctable": draw.randrange(10**5)}
    for disk in made.disks:
        disk |= {"media_errors": draw.randrange(4), "percentage_used": draw.randrange(70)}


def applications_failed(made: Machine, draw: Random) -> None:
    """Jobs that crashed on this machine today, each for a reason of its own."""
    if made.gpus:
        place = draw.choice(made.gpu_places)
        xid(
            made,
            place,
            31,
            "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f0a_00000000.",
            7_000,
        )
        xid(made, place, 43, "Ch 00000008", 6_999)
        for other in made.gpu_places:
            xid(made, other, 45, "Ch 00000008", 3_000, "pid=3877, name=pt_main_thread, ")
    made.log(5_001, "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0")
    made.log(
        5_000,
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/slurm/job_17,task=python3,pid=4003,uid=1001",
    )
    made.log(
        5_000,
        "Memory cgroup out of memory: Killed process 4003 (python3) total-vm:9123456kB, anon-rss:8800000kB, file-rss:0kB, shmem-rss:0kB",
    )


def uncabled_port(made: Machine, draw: Random) -> None:
    """A card for storage whose second port was never cabled."""
    made.ports.append(
        PortState(
            "mlx5_90",
            "f1",
            "ens241f1",
            state="1: DOWN",
            physical="3: Disabled",
            rate="40 Gb/sec (4X QDR)",
            board="MT_0000000359",
        )
    )


def missing_tools(made: Machine, draw: Random) -> None:
    """An image without some of the tools."""
    for name in draw.sample(("lldpctl", "smartctl", "ethtool", "chronyc", "last"), 2):
        for argv in (("lldpctl", "-f", "keyvalue"), ("chronyc", "-c", "tracking"), ("last", "-x", "-n", "40", "reboot", "shutdown"),
                     *((name, "-S", port.interface) for port in made.ports),
                     *((name, "-a", "-j", f"/dev/nvme{number}") for number in range(len(made.disks)))):  # fmt: skip
            if argv[0] == name:
                made.commands[argv] = Ran(argv, None, why=Why.ABSENT)


def not_root(made: Machine, draw: Random) -> None:
    """Somebody without privileges looks."""
    made.root = False


def warm(made: Machine, draw: Random) -> None:
    """Busy GPUs: hot, capped by power, clocked lower than they could be."""
    for tree in made.gpus:
        degrees = draw.randrange(60, 80)
        tree |= {
            "temperature/gpu_temp": f"{degrees} C",
            "clocks/sm_clock": f"{round(made.kind.clock * draw.uniform(0.7, 1.0))} MHz",
            "clocks_event_reasons/clocks_event_reason_sw_power_cap": "Active",
            "temperature/memory_temp": f"{draw.randrange(60, 92)} C",
        }
        if made.kind.margins:
            tree["temperature/gpu_temp_tlimit"] = f"{draw.randrange(6, 30)} C"


def resting(made: Machine, draw: Random) -> None:
    """GPUs that idle and save power: low clock, low PCIe speed."""
    if made.owners:
        return
    for tree, place in zip(made.gpus, made.gpu_places, strict=True):
        tree |= {
            "clocks/sm_clock": "345 MHz",
            "performance_state": "P8",
            "clocks_event_reasons/clocks_event_reason_gpu_idle": "Active",
        }
        made.widths[place] = (16, "2.5 GT/s PCIe")


def noise(made: Machine, draw: Random) -> None:
    """Lines of the kernel that sound worse than they are."""
    for text in draw.sample(_NOISE, 5):
        made.log(draw.uniform(60, 80_000), text)


_NOISE = (
    "TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x12 offset:0x0 grain:32)",
    "audit: type=1400 audit(1780000000.123:77): apparmor=\"STATUS\" operation=\"profile_load\"",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    "perf: interrupt took too long (3131 > 3130), lowering kernel.perf_event_max_sample_rate to 63750",
    "systemd-journald[812]: Data hash table of /run/log/journal/system.journal has a fill level at 75.0, suggesting rotation.",
    "INFO: task kworker/u449:2:3121 blocked for more than 120 seconds.",
    "docker0: port 1(veth12ab) entered disabled state",
    "python3[4411]: segfault at 0 ip 00007f1 sp 00007ff error 4 in libtorch_cpu.so[7f1+1000]",
    "pcieport 0000:14:01.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
    "sr 0:0:0:0: [sr0] tag#0 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK I/O error, dev sr0, sector 0",
)  # fmt: skip
BEFORE: tuple[Change, ...] = (
    old_counts, applications_failed, uncabled_port, missing_tools, not_root, warm, resting, noise,
)  # fmt: skip


# ---- what happens between two looks


def little_growth(made: Machine, draw: Random) -> None:
    """Counters that grow as they do on a healthy machine."""
    for port in made.ports:
        port.counters["symbol_error"] = port.counters.get("symbol_error", 0) + draw.randrange(3)
        for name in port.hw_counters:
            port.hw_counters[name] += draw.randrange(8)
        for name in port.statistics:
            port.statistics[name] += draw.randrange(200) if name != "tx_pause_storm_error_events" else 0
    for tree in made.gpus:
        tree["ecc_errors/volatile/dram_correctable"] = str(
            int(tree["ecc_errors/volatile/dram_correctable"]) + draw.randrange(3)
        )


def rebooted(made: Machine, draw: Random) -> None:
    """A planned boot half an hour ago: every counter of the kernel and the driver begins anew."""
    made.boot, made.uptime, made.shut_down = (
        f"b0071d00-0000-4000-8000-{draw.randrange(10**12):012d}",
        1_800.0,
        True,
    )
    made.kernel = list(BOOT_LINES)
    _zeroed(made)


def just_booted(made: Machine, draw: Random) -> None:
    """A planned boot two minutes ago: links train, the clock is not set yet, the fabric is being set up."""
    rebooted(made, draw)
    made.uptime, made.leap = 120.0, "Not synchronised"
    for port in made.ports[:3]:
        made.kernel.append((30.0, f"mlx5_core 0000:{port.bus}:00.0 {port.interface}: Link down"))
        made.kernel.append((41.0, f"mlx5_core 0000:{port.bus}:00.0 {port.interface}: Link up"))
    for tree in made.gpus:
        if tree.get("fabric/state") == "Completed":
            tree |= {"fabric/state": "In Progress", "fabric/status": "N/A"}


def driver_updated(made: Machine, draw: Random) -> None:
    """The driver was loaded anew, in another version: its counters begin anew, those of the network go on."""
    for tree in made.gpus:
        for path in tree:
            if "volatile" in path or path.startswith("clocks_event_reasons_counters"):
                tree[path] = "0 us" if "counters/" in path else "0"
    made.link_errors.clear()


def job_ended(made: Machine, draw: Random) -> None:
    """The job has ended a moment ago; its memory is being freed."""
    made.processes = [item for item in made.processes if item.name != "python3"]
    made.owners.clear()
    for tree in made.gpus:
        tree |= {"utilization/gpu_util": "0 %", "fb_memory_usage/used": "560 MiB"}


def counters_cleared(made: Machine, draw: Random) -> None:
    """Somebody cleared the counters of the ports."""
    for port in made.ports:
        port.counters = dict.fromkeys(port.counters, 0)


def maintained(made: Machine, draw: Random) -> None:
    """The scheduler's daemon was stopped for work on the machine."""
    made.services["slurmd"]["ActiveState"] = "inactive"
    made.processes = [item for item in made.processes if item.name not in ("slurmd", "python3")]
    job_ended(made, draw)


def _zeroed(made: Machine) -> None:
    for port in made.ports:
        port.counters = dict.fromkeys(port.counters, 0)
        port.hw_counters = dict.fromkeys(port.hw_counters, 0)
        port.statistics = dict.fromkeys(port.statistics, 0)
    made.aer.clear()
    made.link_errors.clear()
    for tree in made.gpus:
        for path in tree:
            if "volatile" in path:
                tree[path] = "0"
    job_ended(made, Random(0))


def nothing(made: Machine, draw: Random) -> None:
    """Nothing happens."""


BETWEEN: tuple[Change, ...] = (
    nothing, little_growth, rebooted, just_booted, driver_updated, job_ended, counters_cleared, maintained,
)  # fmt: skip


def healthy(seed: int) -> tuple[Machine, Change, str]:
    """A healthy machine, what happens to it between two looks, and both in words."""
    draw = Random(seed)
    name = sorted(KINDS)[seed % len(KINDS)]
    made = machine(name)
    made.uptime = draw.uniform(1_200, 200 * 86_400)
    if draw.random() < 0.6:
        made.job()
    chosen = [change for change in BEFORE if draw.random() < 0.35]
    for change in chosen:
        change(made, draw)
    between = BETWEEN[(seed // len(KINDS)) % len(BETWEEN)]
    words = [
        name,
        "with a job" if made.owners else "idle",
        *(change.__name__ for change in chosen),
        f"then {between.__name__}",
    ]
    return made, between, ", ".join(words)
