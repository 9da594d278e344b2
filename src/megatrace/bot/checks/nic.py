"""Network cards and the management network: what the driver complains of, bonds, frame sizes, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megatrace.analysis.evidence_host import judge_host
from megatrace.bot.checks import check
from megatrace.bot.kernel_log import kernel_facts, of, problems
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.bot.ports import ports, usual
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind
from megatrace.model.system import Why

ERROR_RATE = 1e-6
"""Errors per packet: TCP loses throughput from about one in a million on."""
MIN_ERRORS = 100
_VIRTUAL = (
    "lo",
    "docker",
    "veth",
    "br-",
    "virbr",
    "cni",
    "flannel",
    "cali",
    "tun",
    "tap",
    "dummy",
    "kube",
    "cilium",
    "lxc",
)


@check(
    "IB-18",
    summary="a network card that complains: firmware, heat, optic, power",
    subject="network",
    severity="P1",
    step="A3",
)
def complaints(look: Look) -> Iterator[Problem]:
    """What the card's driver reports in the kernel log.

    Source: lines of mlx5_core (health, firmware, ACCESS_REG, module events, temperature), transmit queues
    that timed out. Threshold: any within a day. Remedy:
    reset the firmware of the card, check optic and airflow, replace it."""
    names = ("nic_health", "nic_hot", "nic_cable", "tx_timeout")
    look.said = "nothing in the kernel log"
    yield from problems(look, judge_host(of(kernel_facts(look), FactKind.LINK, *names)))


@check(
    "ETH-01",
    summary="a management link or a member of a bond that is down",
    subject="ethernet",
    severity="P2",
    step="A0",
    period_s=60,
    must=True,
)
def management(look: Look) -> Iterator[Problem]:
    """Bonds and the network devices that carry the node's addresses.

    A bond with one member left works until that one fails, and has half the bandwidth for storage. Source:
    `/proc/net/bonding`, `/sys/class/net/*/operstate`, template key `eth.interfaces`. Threshold: a member that
    is down; an interface of the template that is not up. Remedy: check the cable."""
    looked = 0
    for path in look.system.glob("/proc/net/bonding/*"):
        bond = path.rpartition("/")[2]
        for name, state in _members(look.text(path) or ""):
            looked += 1
            if state != "up":
                yield look.warn(
                    f"{name}, a member of {bond}, is {state}",
                    device=name,
                    link=(name, None),
                    remedy="check the cable and the switch port",
                )
    wanted = look.expected("eth.interfaces")
    for name in wanted if isinstance(wanted, list | tuple) else ():
        looked += 1
        operating = look.text(f"/sys/class/net/{name}/operstate")
        if operating != "up":
            yield look.warn(
                f"interface {name} is {operating or 'missing'}",
                device=str(name),
                link=(str(name), None),
                remedy="check the cable and the switch port",
            )
    if not looked:
        raise Skipped("no bond, and no template that names interfaces")
    look.said = f"{looked} links"


def _members(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split("Slave Interface: ")[1:]:
        state = re.search(r"^MII Status: (\S+)", part, re.MULTILINE)
        yield part.split("\n", 1)[0].strip(), state[1] if state else "of unknown state"


@check(
    "ETH-02",
    summary="network devices of one kind with different frame sizes",
    subject="ethernet",
    severity="P1",
    step="A1",
    kind="configuration",
    period_s=3600,
)
def frame_size(look: Look) -> Iterator[Problem]:
    """The MTU of the interfaces of the compute network, against the template or each other.

    A hop with a smaller one drops large packets without a word: small tests pass, training hangs. Source:
    `/sys/class/net/*/mtu`; template key `ib.mtu`. Threshold: any difference among ports of one kind. Remedy:
    set it everywhere, on a node without a job."""
    sizes = {
        name: (port.layer, look.text(f"/sys/class/net/{name}/mtu") or "")
        for port in ports(look)
        if port.up and not port.virtual
        for name in port.interfaces
    }
    wanted = look.expected("ib.mtu")
    for name, (layer, size) in sizes.items():
        goal = str(wanted) if wanted else usual([mtu for kind, mtu in sizes.values() if kind == layer])
        if goal and size and size != goal:
            yield look.fail(
                f"{name} has a frame size (MTU) of {size}, expected {goal}",
                device=name,
                remedy=f"ip link set {name} mtu {goal}, while the node is empty, and in its configuration",
            )


@check(
    "ETH-03",
    summary="errors of a network interface",
    subject="ethernet",
    severity="P2",
    step="A0",
    observe=True,
)
def interface_errors(look: Look) -> Iterator[Problem]:
    """Frames that arrive damaged. Source: `/sys/class/net/*/statistics`. Threshold: one in a million packets
    and at least 100 since the last look, because single ones occur when a peer reboots. Remedy: check the
    cable."""
    looked = 0
    for path in look.system.glob("/sys/class/net/*/statistics/rx_errors"):
        name = path.split("/")[4]
        if name.startswith(_VIRTUAL):
            continue
        looked += 1
        folder = path.rpartition("/")[0]
        packets = look.grown(f"eth.{name}.packets", look.number(f"{folder}/rx_packets") or 0.0, 3600)
        for kind in ("rx_errors", "rx_crc_errors", "tx_errors"):
            growth = look.grown(f"eth.{name}.{kind}", look.number(f"{folder}/{kind}") or 0.0, 3600)
            if growth is None or packets is None or growth.amount < MIN_ERRORS:
                continue
            if growth.amount > ERROR_RATE * max(packets.amount, 1.0):
                yield look.warn(
                    f"{name}: {kind} grew by {growth.amount:,.0f} in {packets.amount:,.0f} packets",
                    Severity.P2,
                    device=name,
                    link=(name, None),
                    remedy="check the cable and the optic, and the counters of the switch port",
                    key=kind,
                )
    look.said = f"{looked} interfaces"


@check(
    "IB-11",
    summary="a RoCE port without an address for RoCE v2",
    subject="network",
    severity="P1",
    step="A1",
    kind="configuration",
    period_s=300,
    observe=True,
)
def roce_addresses(look: Look) -> Iterator[Problem]:
    """The table of addresses (GIDs) of every RoCE port that is up.

    NCCL picks an entry of type RoCE v2 that stands for an IP address; where there is none, it falls back to
    RoCE v1, which no router forwards, or fails. Source: `ports/*/gid_attrs/types`. Threshold: no entry of
    type RoCE v2 on a port whose peers have one. Remedy: give the interface its address; restart the network
    service."""
    found: dict[str, bool] = {}
    for port in ports(look):
        folder = f"/sys/class/infiniband/{port.device}/ports/{port.number}/gid_attrs/types"
        types = (
            [look.text(path) for path in look.system.glob(f"{folder}/*")] if port.ethernet and port.up else []
        )
        if types:
            found[port.name] = any("v2" in (text or "") for text in types)
    if not found:
        raise Skipped("no RoCE port whose addresses can be read")
    look.said = f"{sum(found.values())} of {len(found)} ports have one"
    for name, there in found.items():
        if not there and any(found.values()):
            yield look.fail(
                f"{name} has no address for RoCE v2",
                device=name,
                remedy="give the interface its IP address; look at its configuration",
            )


@check(
    "ETH-04",
    summary="names cannot be resolved",
    subject="ethernet",
    severity="P1",
    step="A0",
    kind="resource",
    period_s=60,
    timeout_s=15,
    observe=True,
)
def names(look: Look) -> Iterator[Problem]:
    """Whether the machine can resolve a name: its own, or the template's `eth.resolve`.

    Rendezvous of a job begins with a name. Source: `getent hosts`. Threshold: no answer within 5 s, or none
    at all. Remedy: check /etc/resolv.conf and the name servers."""
    name = str(look.expected("eth.resolve") or look.system.name)
    ran = look.run("getent", "hosts", name, timeout_s=5)
    if ran.why is Why.HUNG or (ran.why is None and ran.code == 2):
        yield look.fail(
            f"{name} cannot be resolved",
            evidence=[ran.problem],
            remedy="check /etc/resolv.conf and the name servers",
        )
    elif not ran.ok:
        raise Skipped(ran.problem)
    look.said = f"{name} is known"
