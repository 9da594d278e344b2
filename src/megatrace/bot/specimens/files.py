"""Writes the state of a made machine as files and outputs, each as the kernel or the tool gives it."""

from __future__ import annotations

from megatrace.bot.checks.kernel import SERVICES
from megatrace.bot.recorded_system import Recording
from megatrace.bot.specimens import gpu_query
from megatrace.bot.specimens.machine import Machine, PortState, Running, hung, smart_json
from megatrace.model.system import FileInfo, FileKind, Ran, Why

CLASSES = {"gpu": "0x030200", "nic": "0x020700", "ethernet": "0x020000", "nvme": "0x010802"}
SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
_CHARACTER = FileInfo(FileKind.CHARACTER, 0, 0o666)


def written(machine: Machine) -> Recording:
    """The recording, with ``overrides``, ``commands`` and ``hung`` applied last."""
    recording = Recording(machine.name, machine.time, machine.root)
    for part in (_host, _kernel, _processes, _gpus, _pci, _ports, _disks, _services):
        part(machine, recording)
    for path, text in machine.overrides.items():
        if text is None:
            for key in [key for key in recording.files if key == path or key.startswith(f"{path}/")]:
                del recording.files[key]
        else:
            recording.files[path] = text
    recording.commands.update(machine.commands)
    for program in machine.hung:
        if program.startswith("/"):
            recording.spaces.pop(program, None)
            recording.refused[program] = Why.HUNG
            continue
        for argv in [key for key in recording.commands if key[0] == program]:
            recording.commands[argv] = hung(*argv)
    return recording


def _host(machine: Machine, to: Recording) -> None:
    kind = machine.kind
    last = kind.threads - 1
    total = round(kind.ram_gib * (1 << 20) * 0.985)
    threads = len(machine.processes) * 20 + 1_500
    to.files |= {
        "/proc/uptime": f"{machine.uptime:.2f} {machine.uptime * kind.threads * 0.9:.2f}\n",
        "/proc/sys/kernel/random/boot_id": f"{machine.boot}\n",
        "/proc/sys/kernel/osrelease": "5.15.0-122-generic\n",
        "/proc/sys/kernel/tainted": "12289\n",
        "/proc/sys/kernel/numa_balancing": "0\n",
        "/proc/sys/kernel/pid_max": "4194304\n",
        "/proc/sys/fs/file-nr": "23904\t0\t9223372036854775807\n",
        "/proc/loadavg": f"12.40 11.90 11.20 9/{threads} 41100\n",
        "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/md0 ro iommu=pt console=ttyS0\n",
        "/proc/meminfo": f"MemTotal:       {total} kB\nMemFree:        {total // 2} kB\n",
        "/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nmlx5_ib 462848 0 - Live 0x0\n",
        "/proc/mounts": "".join(f"{source} {point} {form} {options} 0 0\n" for source, point, form, options in machine.mounts),
        "/etc/fstab": "/dev/nvme0n1p2 / ext4 errors=remount-ro 0 1\n/dev/md0 /scratch xfs noatime 0 0\n",
        "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
        "/sys/devices/system/cpu/present": f"0-{last}\n",
        "/sys/devices/system/cpu/online": f"0-{last}\n",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "/sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm\n",
    }  # fmt: skip
    for node in range(kind.sockets):
        folder = f"/sys/devices/system/node/node{node}"
        to.files[f"{folder}/meminfo"] = f"Node {node} MemTotal:       {total // kind.sockets} kB\n"
        to.files[f"{folder}/cpulist"] = (
            f"{node * kind.threads // kind.sockets}-{(node + 1) * kind.threads // kind.sockets - 1}\n"
        )
    for cpu in (0, kind.threads // 2):
        folder = f"/sys/devices/system/cpu/cpu{cpu}"
        to.files[f"{folder}/cpufreq/scaling_governor"] = "performance\n"
        to.files[f"{folder}/thermal_throttle/package_throttle_total_time_ms"] = "0\n"
        to.files[f"{folder}/topology/physical_package_id"] = f"{0 if cpu == 0 else 1}\n"
    for number, (label, count) in enumerate(machine.edac.items()):
        folder = f"/sys/devices/system/edac/mc/mc{number // 4}/dimm{number % 4}"
        to.files |= {
            f"{folder}/dimm_label": f"{label}\n",
            f"{folder}/dimm_ce_count": f"{count}\n",
            f"{folder}/dimm_ue_count": "0\n",
        }
    to.spaces.update(machine.spaces)
    offset = f"{machine.offset_s:.9f}"
    to.answer(("chronyc", "-c", "tracking"),
              f"0A090001,10.9.0.1,3,1779999990.1,{offset},0.000003,0.00001,1.2,0.001,0.02,0.0004,0.0001,64.3,{machine.leap}\n")  # fmt: skip
    before = "shutdown system down  5.15.0-122\n" if machine.shut_down else ""
    boots = f"reboot   system boot  5.15.0-122\n{before}reboot   system boot  5.15.0-122\n"
    to.answer(("last", "-x", "-n", "40", "reboot", "shutdown"), boots)


def _kernel(machine: Machine, to: Recording) -> None:
    lines = sorted(machine.kernel, key=lambda item: item[0])
    records = [f"6,{number},{round(at * 1e6)},-;{text}" for number, (at, text) in enumerate(lines)]
    if machine.root:
        to.files["/dev/kmsg"] = "\n".join([*records, ""])
    else:
        to.refused["/dev/kmsg"] = Why.DENIED
        argv = ("dmesg",)
        to.commands[argv] = Ran(argv, 1, error="dmesg: read kernel buffer failed: Operation not permitted")


def _processes(machine: Machine, to: Recording) -> None:
    for item in machine.processes:
        _process(item, machine.kind.threads, to)


def _process(item: Running, threads: int, to: Recording) -> None:
    folder = f"/proc/{item.pid}"
    rest = " ".join(["0"] * 17 + [str(item.pid * 7), "0"])
    to.files[f"{folder}/stat"] = f"{item.pid} ({item.name}) {item.state} {item.parent} {rest}\n"
    to.files[f"{folder}/cgroup"] = f"{item.cgroup}\n"
    to.files[f"{folder}/status"] = (
        f"Name:\t{item.name}\nCpus_allowed_list:\t{item.cores or f'0-{threads - 1}'}\n"
    )
    to.files[f"{folder}/limits"] = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max open files            {item.files:<20} {item.files:<20} files     \n"
        f"Max locked memory         {item.locked:<20} {item.locked:<20} bytes     \n"
    )


def _gpus(machine: Machine, to: Recording) -> None:
    kind = machine.kind
    if not kind.gpus:
        return
    seen = [
        (index, tree)
        for index, tree in enumerate(machine.gpus)
        if machine.gpu_places[index] not in machine.gone and index not in machine.unseen
    ]
    trees = [tree for _, tree in seen]
    to.answer(("nvidia-smi", "-q", "-x"), gpu_query.as_xml(kind.driver, trees))
    for index, tree in seen:
        alone = ("nvidia-smi", "-q", "-x", "-i", machine.gpu_places[index])
        to.answer(alone, gpu_query.as_xml(kind.driver, [tree]))
    to.answer(("nvidia-smi",), gpu_query.table(trees))
    to.answer(
        ("nvidia-smi", "-L"),
        "".join(f"GPU {i}: {t['product_name']} (UUID: {t['uuid']})\n" for i, t in enumerate(trees)),
    )
    to.answer(("nvidia-smi", "nvlink", "-s"), gpu_query.nvlink_states(kind, trees, machine.dark))
    to.answer(("nvidia-smi", "nvlink", "-e"), gpu_query.nvlink_errors(kind, trees, machine.link_errors))
    to.answer(("nvidia-smi", "nvlink", "-R"), gpu_query.nvlink_remotes(kind, trees))
    rows = [f"{machine.gpus[gpu]['pci/pci_bus_id']}, {pid}, 70000\n" for gpu, pid in machine.owners]
    query = "--query-compute-apps=gpu_bus_id,pid,used_memory"
    to.answer(("nvidia-smi", query, "--format=csv,noheader,nounits"), "".join(rows))
    to.files["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {kind.driver}  Release Build  (dvs-builder)\n"
    )
    for index, tree in seen:
        place = f"0000:{kind.gpus[index]}:00.0"
        to.files[f"/proc/driver/nvidia/gpus/{place}/information"] = (
            f"Model: \t\t {tree['product_name']}\nBus Location: \t {place}\nDevice Minor: \t {index}\n"
        )
        to.infos[f"/dev/nvidia{index}"] = _CHARACTER
    to.infos |= {"/dev/nvidiactl": _CHARACTER, "/dev/nvidia-uvm": _CHARACTER}


def _pci(machine: Machine, to: Recording) -> None:
    kind = machine.kind
    nic = CLASSES["ethernet" if kind.layer == "Ethernet" else "nic"]
    devices = [
        (f"0000:{bus}:00.0", "0x10de", kind.pci_id, CLASSES["gpu"], 16, kind.pcie) for bus in kind.gpus
    ]
    devices += [(f"0000:{bus}:00.0", "0x15b3", kind.nic_id, nic, 16, kind.pcie or 4) for bus in kind.nics]
    devices += [
        (f"{0x10 + number:04x}:01:00.0", "0x144d", "0xa824", CLASSES["nvme"], 4, 4)
        for number in range(kind.disks)
    ]
    for place, vendor, identity, code, lanes, generation in devices:
        if place in machine.gone:
            continue
        domain, bus, _ = place.split(":")
        port = f"{domain}:{max(int(bus, 16) - 1, 0):02x}:01.0"
        folder, above = f"/sys/bus/pci/devices/{place}", f"/sys/bus/pci/devices/{port}"
        now, speed = machine.widths.get(place, (lanes, SPEEDS[generation]))
        to.files |= {
            f"{folder}/vendor": f"{vendor}\n",
            f"{folder}/device": f"{identity}\n",
            f"{folder}/class": f"{code}\n",
            f"{folder}/config": "\x00\x10 made",
            f"{folder}/current_link_width": f"{now}\n",
            f"{folder}/max_link_width": f"{lanes}\n",
            f"{folder}/current_link_speed": f"{speed}\n",
            f"{folder}/max_link_speed": f"{SPEEDS[generation]}\n",
            f"{above}/max_link_width": "16\n",
            f"{above}/max_link_speed": f"{SPEEDS[max(generation, 4)]}\n",
        }
        to.links[folder] = f"../../../devices/pci{domain}:{bus}/{port}/{place}"
        counted = machine.aer.get(place, {})
        for kind_of, total in (
            ("correctable", "TOTAL_ERR_COR"),
            ("nonfatal", "TOTAL_ERR_NONFATAL"),
            ("fatal", "TOTAL_ERR_FATAL"),
        ):
            to.files[f"{folder}/aer_dev_{kind_of}"] = (
                f"RxErr 0\nBadTLP {counted.get(kind_of, 0)}\n{total} {counted.get(kind_of, 0)}\n"
            )


def _ports(machine: Machine, to: Recording) -> None:
    lldp: list[str] = []
    for number, port in enumerate(machine.ports):
        if f"0000:{port.bus}:00.0" in machine.gone | machine.without_driver:
            continue
        _port(machine, port, number, to)
        if port.peer and port.state.endswith("ACTIVE"):
            switch, _, name = port.peer.partition("/")
            lldp += [
                f"lldp.{port.interface}.chassis.name={switch}",
                f"lldp.{port.interface}.port.ifname={name}",
            ]
    to.answer(("lldpctl", "-f", "keyvalue"), "\n".join([*lldp, ""]))


def _port(machine: Machine, port: PortState, number: int, to: Recording) -> None:
    folder = f"/sys/class/infiniband/{port.device}"
    to.files |= {
        f"{folder}/fw_ver": f"{port.firmware}\n",
        f"{folder}/board_id": f"{port.board or machine.kind.board}\n",
        f"{folder}/ports/1/state": f"{port.state}\n",
        f"{folder}/ports/1/phys_state": f"{port.physical}\n",
        f"{folder}/ports/1/rate": f"{port.rate}\n",
        f"{folder}/ports/1/link_layer": f"{machine.kind.layer}\n",
        f"{folder}/device/net/{port.interface}/mtu": f"{port.mtu}\n",
        f"/sys/class/net/{port.interface}/mtu": f"{port.mtu}\n",
        f"/sys/class/net/{port.interface}/operstate": "up\n" if port.state.endswith("ACTIVE") else "down\n",
    }
    for name, value in port.counters.items():
        to.files[f"{folder}/ports/1/counters/{name}"] = f"{value}\n"
    for name, value in port.hw_counters.items():
        to.files[f"{folder}/ports/1/hw_counters/{name}"] = f"{value}\n"
    to.links[f"{folder}/device"] = f"../../../0000:{port.bus}:00.0"
    to.files[f"/sys/class/infiniband_verbs/uverbs{number}/ibdev"] = f"{port.device}\n"
    to.infos[f"/dev/infiniband/uverbs{number}"] = _CHARACTER
    if port.statistics:
        rows = "".join(f"     {name}: {value}\n" for name, value in port.statistics.items())
        to.answer(("ethtool", "-S", port.interface), f"NIC statistics:\n{rows}")


def _disks(machine: Machine, to: Recording) -> None:
    for number, values in enumerate(machine.disks):
        folder = f"/sys/class/nvme/nvme{number}"
        to.files |= {f"{folder}/state": "live\n", f"{folder}/transport": "pcie\n"}
        if machine.root:
            to.answer(("smartctl", "-a", "-j", f"/dev/nvme{number}"), smart_json(f"nvme{number}", values))
        else:
            argv = ("smartctl", "-a", "-j", f"/dev/nvme{number}")
            to.commands[argv] = Ran(argv, 2, output='{"smartctl": {"exit_status": 2}}')


def _services(machine: Machine, to: Recording) -> None:
    blocks = []
    for name in SERVICES:
        said = machine.services.get(name)
        loaded = "loaded" if said else "not-found"
        said = {"NRestarts": "0", "ActiveState": "inactive", "UnitFileState": "enabled" if said else ""} | (
            said or {}
        )
        blocks.append(
            "\n".join(
                [
                    f"Id={name}.service",
                    f"LoadState={loaded}",
                    *(f"{key}={value}" for key, value in said.items()),
                ]
            )
        )
    argv = ("systemctl", "show", "--property=Id,LoadState,ActiveState,NRestarts,UnitFileState", *SERVICES)
    to.answer(argv, "\n\n".join(blocks) + "\n")
    fabric = machine.services["nvidia-fabricmanager"]
    unit = "ActiveState,SubState,NRestarts,LoadState"
    to.answer(("systemctl", "show", "nvidia-fabricmanager", f"--property={unit}"),
              f"ActiveState={fabric['ActiveState']}\nSubState=running\nNRestarts={fabric['NRestarts']}\nLoadState=loaded\n")  # fmt: skip
