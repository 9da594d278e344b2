"""Faults of the network and of PCIe links."""

from __future__ import annotations

from random import Random

from megatrace.bot.specimens.faults import ALL, GPUS, ROCE, SXM, fault, gpu
from megatrace.bot.specimens.machine import Machine, PortState

MANY = SXM


def _port(machine: Machine, draw: Random) -> PortState:
    return draw.choice(machine.ports)


@fault("port_down", "IB-01", "a port that lost its link beside a job", "P0", ALL)
def port_down(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.state, port.physical = "1: DOWN", "3: Disabled" if draw.random() < 0.3 else "2: Polling"
    return port.device


@fault("port_init", "IB-01", "a port without a subnet manager", "P0", ALL)
def port_init(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.state = "2: INIT"
    return port.device


@fault("one_lane", "IB-02", "a port that trained to one lane", "P1", ALL)
def one_lane(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.rate = f"{machine.kind.rate // 4} Gb/sec (1X NDR)"
    return port.device


@fault("half_rate", "IB-02", "a port at half its rate", "P1", ALL)
def half_rate(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.rate = f"{machine.kind.rate // 2} Gb/sec (4X HDR)"
    return port.device


@fault("nic_gone", "IB-03", "a network card that is gone from the bus", "P1", MANY)
def nic_gone(machine: Machine, draw: Random) -> str:
    machine.gone.add(f"0000:{_port(machine, draw).bus}:00.0")
    return ""


@fault("nic_without_driver", "IB-03", "a network card whose driver gave up", "P1", MANY)
def nic_without_driver(machine: Machine, draw: Random) -> str:
    place = f"0000:{_port(machine, draw).bus}:00.0"
    machine.without_driver.add(place)
    return place


@fault("flapping", "IB-04", "a port that lost its link four times", "P1", ALL)
def flapping(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.counters["link_downed"] += 4
    return port.device


@fault("carrier_lost", "IB-04", "a port that loses its carrier again and again, by the kernel log", "P1", ALL)
def carrier_lost(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    for number in range(4):
        machine.log(50 - number * 10, f"mlx5_core 0000:{port.bus}:00.0 {port.interface}: Link down")
        machine.log(45 - number * 10, f"mlx5_core 0000:{port.bus}:00.0 {port.interface}: Link up")
    return port.interface


@fault("symbol_errors", "IB-05", "a link with many symbol errors", "P2", ALL)
def symbol_errors(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.counters["symbol_error"] += 240
    return port.device


@fault("link_retrained", "IB-05", "a link that recovered", "P2", ALL)
def link_retrained(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.counters["link_error_recovery"] += 2
    return port.device


@fault("out_of_sequence", "IB-07", "one port whose packets arrive out of sequence", "P1", MANY)
def out_of_sequence(machine: Machine, draw: Random) -> str:
    for port in machine.ports:
        port.hw_counters["out_of_sequence"] += 40
    port = _port(machine, draw)
    port.hw_counters["out_of_sequence"] += 80_000
    return port.device


@fault("ack_timeouts", "IB-07", "one port whose packets are not acknowledged", "P1", MANY)
def ack_timeouts(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.hw_counters["local_ack_timeout_err"] += 160
    return port.device


@fault("out_of_buffer", "IB-08", "a port that drops packets: no buffers", "P2", ALL)
def out_of_buffer(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.hw_counters["out_of_buffer"] += 30_000
    return port.device


@fault("discards", "IB-08", "a port that discards packets at its entrance", "P2", ROCE)
def discards(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.statistics["rx_discards_phy"] += 12_000
    return port.device


@fault("slow_receiver", "IB-09", "a node that pauses its switch", "P1", ROCE)
def slow_receiver(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.statistics["tx_prio3_pause_duration"] += 24_000_000
    return port.device


@fault("pause_storm", "IB-09", "a card that declares a pause storm", "P1", ROCE)
def pause_storm(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.statistics["tx_pause_storm_error_events"] += 1
    return port.device


@fault("other_firmware", "IB-12", "one card with older firmware", "P2", MANY)
def other_firmware(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    port.firmware = "28.36.1010"
    return port.device


@fault(
    "firmware_drift",
    "IB-12",
    "cards with another firmware than the template",
    "P2",
    ALL,
    template={"ib.firmware": "28.43.1014"},
)
def firmware_drift(machine: Machine, draw: Random) -> str:
    return machine.ports[0].device


@fault("bond_member_down", "ETH-01", "a bond that has lost a member", "P2", ALL)
def bond_member_down(machine: Machine, draw: Random) -> str:
    name = draw.choice(("eno1", "eno2"))
    states = {item: "down" if item == name else "up" for item in ("eno1", "eno2")}
    machine.overrides["/proc/net/bonding/bond0"] = "Bonding Mode: IEEE 802.3ad\nMII Status: up\n" + "".join(
        f"\nSlave Interface: {item}\nMII Status: {state}\nSpeed: 25000 Mbps\n"
        for item, state in states.items()
    )
    return name


@fault(
    "interface_down",
    "ETH-01",
    "a management interface that is down",
    "P2",
    ALL,
    template={"eth.interfaces": ["eno1"]},
)
def interface_down(machine: Machine, draw: Random) -> str:
    machine.overrides["/sys/class/net/eno1/operstate"] = "down\n"
    return "eno1"


@fault("gpu_narrow", "PCI-01", "a GPU that lost lanes", "P1")
def gpu_narrow(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    machine.widths[place] = (8, {4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}[machine.kind.pcie])
    return place


@fault("nic_slow_link", "PCI-01", "a network card at half its PCIe speed", "P1", GPUS)
def nic_slow_link(machine: Machine, draw: Random) -> str:
    place = f"0000:{_port(machine, draw).bus}:00.0"
    machine.widths[place] = (16, "8.0 GT/s PCIe")
    return place


@fault("aer_fatal", "PCI-02", "a fatal PCIe error of a GPU", "P0")
def aer_fatal(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    machine.aer[place] = {"fatal": 1}
    return place


@fault("aer_corrected", "PCI-02", "thousands of corrected PCIe errors of a card", "P2", ALL)
def aer_corrected(machine: Machine, draw: Random) -> str:
    place = f"0000:{_port(machine, draw).bus}:00.0"
    machine.aer[place] = {"correctable": 5_000}
    return place


@fault("aer_logged", "PCI-02", "an uncorrected PCIe error in the kernel log", "P1")
def aer_logged(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    machine.log(
        20,
        f"pcieport {place}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
    )
    return place.removesuffix(".0")


@fault("card_missing", "PCI-04", "a network card that is not on the bus", "P1", MANY)
def card_missing(machine: Machine, draw: Random) -> str:
    place = f"0000:{_port(machine, draw).bus}:00.0"
    machine.gone.add(place)
    return place


@fault("gpu_missing", "PCI-04", "a GPU that is not on the bus", "P1", job=False)
def gpu_missing(machine: Machine, draw: Random) -> str:
    _, place = gpu(machine, draw)
    machine.gone.add(place)
    return place


@fault("no_roce_v2", "IB-11", "a RoCE port without an address for version 2", "P1", ROCE)
def no_roce_v2(machine: Machine, draw: Random) -> str:
    port = _port(machine, draw)
    for other in machine.ports:
        kind = "IB/RoCE v1" if other is port else "RoCE v2"
        machine.overrides[f"/sys/class/infiniband/{other.device}/ports/1/gid_attrs/types/3"] = f"{kind}\n"
    return port.device
