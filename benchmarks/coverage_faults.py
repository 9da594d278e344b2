"""The faults of ``coverage.yaml`` as machines show them, in the words of kernel, driver and tools.

Written for the rows and apart from the faults with which the checks were developed (``bot.specimens``), of
which only the healthy machine is used. Each takes the machine and the row's parameters, breaks it, and
returns what has to be named ("mlx5_5 or ibp192s0" where one device has two names).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from megatrace.bot.recorded_system import Recording
from megatrace.bot.specimens.machine import Machine
from megatrace.model.system import Ran, Why

Break = Callable[[Machine, Mapping[str, Any]], str]
FAULTS: dict[str, Break] = {}
XIDS = {
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    109: "pid=41003, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x2c014",
    95: "pid=41003, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    31: "pid=41003, name=python3, Ch 00000012, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ "
    "0x7f9c_4a000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    119: "pid=41003, name=python3, Timeout after 45s of waiting for RPC response from GPU4 GSP! Expected function 76 "
    "(GSP_RM_CONTROL) (0x20801702 0x4).",
    120: "pid='<unknown>', name=<unknown>, GSP task exception: EXC_LOAD_ACCESS_FAULT (5) @ pc:0x1234, partition:4#0",
}


def fault(apply: Break) -> Break:
    """Registers it under its function's name."""
    FAULTS[apply.__name__] = apply
    return apply


def _xid(machine: Machine, place: str, code: int, text: str, ago: float = 20.0) -> None:
    machine.log(ago, f"NVRM: Xid (PCI:{place.removesuffix('.0')}): {code}, {text}")


def _gpu(machine: Machine, row: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    return machine.gpu_places[row["gpu"]], machine.gpus[row["gpu"]]


@fault
def xid(machine: Machine, row: Mapping[str, Any]) -> str:
    place, _ = _gpu(machine, row)
    _xid(machine, place, row["code"], XIDS[row["code"]])
    if row["code"] == 79:
        said = f"Unable to determine the device handle for GPU {place}: GPU is lost.  Reboot the system to recover this GPU\n"
        for argv in (("nvidia-smi", "-q", "-x"), ("nvidia-smi", "-q")):
            machine.commands[argv] = Ran(argv, 15, output=said)
    return place


@fault
def gpu_missing(machine: Machine, row: Mapping[str, Any]) -> str:
    place, _ = _gpu(machine, row)
    machine.unseen.add(row["gpu"])
    machine.log(31, f"NVRM: GPU {place}: RmInitAdapter failed! (0x26:0xffff:1482)")
    machine.log(31, f"NVRM: GPU {place}: rm_init_adapter failed, device minor number {row['gpu']}")
    return place


@fault
def gpu_gone(machine: Machine, row: Mapping[str, Any]) -> str:
    place, _ = _gpu(machine, row)
    machine.gone.add(place)
    return place


@fault
def nvlink_error(machine: Machine, row: Mapping[str, Any]) -> str:
    place, _ = _gpu(machine, row)
    _xid(
        machine,
        place,
        74,
        f"pid=41003, name=python3, NVLink: fatal error detected on link {row['link']}(0x10000, 0x0, 0x0)",
    )
    machine.link_errors[row["gpu"], row["link"], "Recovery"] = 2
    return place


@fault
def nvlink_down(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.dark[row["gpu"], row["link"]] = "<inactive>"
    return str(machine.gpu_places[row["gpu"]])


@fault
def recovery_action(machine: Machine, row: Mapping[str, Any]) -> str:
    place, tree = _gpu(machine, row)
    tree["gpu_recovery_action"] = "GPU Reset"
    _xid(machine, place, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    return place


@fault
def driver_hang(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.hung.add("nvidia-smi")
    return machine.name


@fault
def pcie_link(machine: Machine, row: Mapping[str, Any]) -> str:
    place, _ = _gpu(machine, row)
    machine.widths[place] = (row["width"], row["speed"])
    return place


@fault
def contained(machine: Machine, row: Mapping[str, Any]) -> str:
    place, tree = _gpu(machine, row)
    _xid(machine, place, 63, "pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000000b2dd57) marked for remapping,"
         " reset gpu to activate.", 21)  # fmt: skip
    _xid(machine, place, 94, "pid=41003, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No")
    tree |= {"remapped_rows/remapped_row_pending": "Yes", "remapped_rows/remapped_row_unc": "1"}
    return place


@fault
def double_bit(machine: Machine, row: Mapping[str, Any]) -> str:
    place, tree = _gpu(machine, row)
    _xid(machine, place, 48, "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in"
         " the framebuffer at partition 4, subpartition 1.")  # fmt: skip
    tree["ecc_errors/volatile/dram_uncorrectable"] = "1"
    return place


@fault
def remap_failed(machine: Machine, row: Mapping[str, Any]) -> str:
    place, tree = _gpu(machine, row)
    _xid(
        machine,
        place,
        64,
        "pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row: no spare rows available",
    )
    tree |= {"remapped_rows/remapped_row_failure": "Yes", "remapped_rows/remapped_row_unc": "8"}
    return place


@fault
def oom(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.log(
        22,
        "pt_data_worker invoked oom-killer: gfp_mask=0x1100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
    )
    machine.log(21, "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
                    "task_memcg=/slurm/uid_1001/job_8812,task=pt_data_worker,pid=43211,uid=1001")  # fmt: skip
    machine.log(
        21,
        "Out of memory: Killed process 43211 (pt_data_worker) total-vm:2131432212kB, anon-rss:1911232312kB",
    )
    return machine.name


@fault
def segfault(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.log(20, f"python3[41003]: segfault at 18 ip 00007f4a6c1b2f30 sp 00007f49b7ffe8d0 error 4 in {row['library']}.21.5"
                    "[7f4a6c100000+8ac0000]")  # fmt: skip
    return machine.name


@fault
def port_down(machine: Machine, row: Mapping[str, Any]) -> str:
    port = _port(machine, row)
    port.state, port.physical = "1: DOWN", "2: Polling"
    return str(row["nic"])


@fault
def port_flap(machine: Machine, row: Mapping[str, Any]) -> str:
    port = _port(machine, row)
    port.counters["link_downed"] += row["times"]
    for number in range(row["times"]):
        machine.log(58 - 13 * number, f"mlx5_core 0000:{port.bus}:00.0 {port.interface}: Link down")
        machine.log(52 - 13 * number, f"mlx5_core 0000:{port.bus}:00.0 {port.interface}: Link up")
    return f"{row['nic']} or {port.interface}"


@fault
def port_errors(machine: Machine, row: Mapping[str, Any]) -> str:
    _port(machine, row).counters["symbol_error"] += 180
    return str(row["nic"])


def _port(machine: Machine, row: Mapping[str, Any]) -> Any:
    return next(port for port in machine.ports if port.device == row["nic"])


@fault
def unexpected_reboot(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.boot, machine.uptime, machine.shut_down = "c0ffee00-0000-4000-8000-000000000002", 240.0, False
    machine.kernel = [line for line in machine.kernel if line[0] < 100]
    machine.overrides["/sys/fs/pstore/dmesg-efi-173301900101001"] = (
        "Panic#1 Part1\n<0>Kernel panic - not syncing: Fatal exception\n"
    )
    return machine.name


@fault
def soft_lockup(machine: Machine, row: Mapping[str, Any]) -> str:
    for ago, seconds in ((50, 22), (22, 48)):
        machine.log(
            ago,
            f"watchdog: BUG: soft lockup - CPU#{row['cpu']} stuck for {seconds}s! [kworker/{row['cpu']}:1:3021]",
        )
    return f"CPU#{row['cpu']}"


@fault
def readonly_root(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.log(
        30,
        "EXT4-fs error (device nvme0n1p2): ext4_journal_check_start:84: comm kworker: Detected aborted journal",
    )
    machine.log(30, "EXT4-fs (nvme0n1p2): Remounting filesystem read-only")
    machine.mounts = [(s, p, f, o.replace("rw", "ro") if p == "/" else o) for s, p, f, o in machine.mounts]
    return "/"


@fault
def sram_error(machine: Machine, row: Mapping[str, Any]) -> str:
    place, tree = _gpu(machine, row)
    _xid(machine, place, 172, "pid='<unknown>', name=<unknown>, Uncorrectable SRAM error, SM 3", 21)
    _xid(
        machine,
        place,
        48,
        "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU",
    )
    tree["ecc_errors/volatile/sram_uncorrectable_parity"] = "1"
    return place


@fault
def sram_threshold(machine: Machine, row: Mapping[str, Any]) -> str:
    place, tree = _gpu(machine, row)
    tree["ecc_errors/aggregate/sram_threshold_exceeded"] = "Yes"
    return place


@fault
def nic_gone(machine: Machine, row: Mapping[str, Any]) -> str:
    place = f"0000:{_port(machine, row).bus}:00.0"
    machine.gone.add(place)
    return f"{row['nic']} or {place}"


@fault
def nic_health(machine: Machine, row: Mapping[str, Any]) -> str:
    port = _port(machine, row)
    machine.log(
        20,
        f"mlx5_core 0000:{port.bus}:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
    )
    machine.log(
        20,
        f"mlx5_core 0000:{port.bus}:00.0: print_health_info:425:(pid 0): Health issue observed, firmware internal error",
    )
    return f"0000:{port.bus}:00.0"


@fault
def gpu_temperature(machine: Machine, row: Mapping[str, Any]) -> str:
    place, tree = _gpu(machine, row)
    tree |= {"temperature/gpu_temp": f"{row['celsius']} C", "temperature/gpu_temp_tlimit": "1 C"}
    return place


@fault
def gpu_slowdown(machine: Machine, row: Mapping[str, Any]) -> str:
    place, tree = _gpu(machine, row)
    tree |= {
        "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Active",
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown": "52000000 us",
        "clocks/sm_clock": "1200 MHz",
    }
    return place


@fault
def nvme_critical(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.disks[int(row["drive"].removeprefix("nvme"))] |= {"available_spare": 2, "critical_warning": 1}
    return str(row["drive"])


@fault
def nvme_timeout(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.log(35, f"nvme {row['drive']}: I/O 512 (Write) QID 12 timeout, aborting")
    machine.log(5, f"nvme {row['drive']}: I/O 512 QID 12 timeout, reset controller")
    return str(row["drive"])


@fault
def io_board(machine: Machine, row: Mapping[str, Any]) -> str:
    place, _ = _gpu(machine, row)
    machine.gone |= {place, f"0000:{_port(machine, row).bus}:00.0"}
    return place


@fault
def driver_mismatch(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.overrides["/sys/module/nvidia/version"] = f"{machine.kind.driver}\n"
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.57\n"
    for argv in (("nvidia-smi", "-q", "-x"), ("nvidia-smi", "-q")):
        machine.commands[argv] = Ran(argv, 18, output=said)
    return machine.name


@fault
def machine_check(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.log(
        20, f"mce: [Hardware Error]: CPU {row['cpu']}: Machine Check Exception: 5 Bank 3: be00000000800400"
    )
    machine.log(20, "mce: [Hardware Error]: RIP !INEXACT! 10:<ffffffff81a1b2c3> {native_safe_halt+0xe/0x10}")
    machine.log(20, "mce: [Hardware Error]: Machine check: Processor context corrupt")
    return f"CPU {row['cpu']}"


@fault
def edac_uncorrected(machine: Machine, row: Mapping[str, Any]) -> str:
    machine.log(20, f"EDAC MC2: 1 UE memory read error on {row['dimm']} (channel:0 slot:0 page:0x1f4a3b offset:0x40 grain:32 -"
                    " err_code:0x0101:0x0091 socket:1 imc:0 rank:1)")  # fmt: skip
    return str(row["dimm"])


def solo_hang(recording: Recording, gpu: int, program: str) -> None:
    """The suspected GPU hangs in its solo run: the job's program never ends."""
    text = next(ran.output for argv, ran in recording.commands.items() if argv[:2] == ("nvidia-smi", "-q"))
    uuid = text.split("<uuid>")[gpu + 1].split("</uuid>")[0]
    argv = ("python3", program, "--gpu", uuid, "--seconds", "60")
    recording.commands[argv] = Ran(
        argv, None, json.dumps({"stage": "start", "seconds": 0.0}) + "\n", "", Why.HUNG, 240.0
    )
    recording.answer(
        ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,process_name", "--format=csv,noheader"), ""
    )


# ---- what only the job's own logs show

TRACEBACK = """\
[rank13]: Traceback (most recent call last):
[rank13]:   File "/workspace/train.py", line 412, in <module>
[rank13]:     main()
[rank13]:   File "/workspace/train.py", line 371, in main
[rank13]:     loss = model(batch["tokens"], labels=batch["labels"])
[rank13]:   File "/workspace/model/embedding.py", line 58, in forward
[rank13]:     raise ValueError(f"token id {int(tokens.max())} is outside the vocabulary of {self.size}")
[rank13]: ValueError: token id 128256 is outside the vocabulary of 128256
E1201 02:13:44.120000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 5 (pid: 4250) of binary: /usr/bin/python3
"""
WATCHDOG = """\
[rank{rank}]:[E1201 02:23:41.207 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.
[rank{rank}]:[E1201 02:23:41.209 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: 4711, last enqueued NCCL work: 4712, last completed NCCL work: 4710.
"""
"""Every rank but one says this; the one that never joined says nothing."""
