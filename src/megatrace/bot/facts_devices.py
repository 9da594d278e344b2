"""How the devices of a machine are set up: GPUs, RDMA ports and their lossless queues. See ``facts``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from megatrace.bot.gpus import gpus
from megatrace.bot.look import Look
from megatrace.bot.numbers import number

Value: TypeAlias = "str | int | float | bool | list[str]"
"""Of a fact."""
Read: TypeAlias = "Callable[[Look], Iterator[tuple[str, Value]]]"
"""What reads one family of facts."""
PRIORITIES = range(8)
"""Traffic classes of IEEE 802.1Q."""


def device_facts() -> tuple[tuple[str, Read], ...]:
    """Families with what reads them."""
    return (("gpu", _gpus), ("ib", _rdma), ("roce", _roce), ("net", _interfaces))


def _one(values: set[str]) -> str | None:
    """The value that all share; nothing where they differ, which is a finding of its own and no setting."""
    return values.pop() if len(values) == 1 else None


def _gpus(look: Look) -> Iterator[tuple[str, Value]]:
    found = gpus(look)
    yield "gpu.count", len(found)
    for key, ends in (
        ("model", ("product name",)),
        ("vbios", ("vbios version",)),
        ("ecc", ("current_ecc", "current ecc", "ecc mode/current")),
        ("mig", ("current_mig", "current mig", "mig mode/current")),
        ("persistence", ("persistence mode",)),
        ("compute_mode", ("compute mode",)),
    ):
        value = _one({gpu.get(*ends) for gpu in found})
        if value and value not in ("N/A", "[N/A]"):
            yield f"gpu.{key}", value
    limits = {gpu.fact.number("power_limit") for gpu in found}
    if len(limits) == 1 and (limit := limits.pop()) is not None:
        yield "gpu.power_limit_w", round(limit)


def _rdma(look: Look) -> Iterator[tuple[str, Value]]:
    places = look.system.glob("/sys/class/infiniband/*/ports/*")
    devices = sorted({path.split("/")[4] for path in places})
    if devices:
        yield "ib.devices", devices
    active, rates, firmware = [], set(), {}
    for path in places:
        device, port = path.split("/")[4], path.rpartition("/")[2]
        if "ACTIVE" in (look.text(f"{path}/state") or ""):
            active.append(f"{device}/{port}")
            rates.add((look.text(f"{path}/rate") or "").partition(" ")[0])
        board = look.text(f"/sys/class/infiniband/{device}/board_id")
        version = look.text(f"/sys/class/infiniband/{device}/fw_ver")
        if board and version:
            firmware[board] = version
    if active:
        yield "ib.ports", sorted(active)
    rate = _one(rates)
    speed = number(rate or "")
    if speed is not None:
        yield "ib.rate_gbps", speed
    for board, version in firmware.items():
        yield f"ib.firmware.{board}", version


def _roce(look: Look) -> Iterator[tuple[str, Value]]:
    """Per port: traffic class, type of service, notification of congestion; per interface: lossless
    queues."""
    for path in look.system.glob("/sys/class/infiniband/*/tc/1/traffic_class"):
        found = re.search(r"Global tclass=(\d+)", look.text(path) or "")
        yield f"roce.traffic_class.{path.split('/')[4]}", int(found[1]) if found else "not set"
    for path in look.system.glob("/sys/kernel/config/rdma_cm/*/ports/1/default_roce_tos"):
        yield f"roce.tos.{path.split('/')[5]}", look.text(path) or ""
    for path in look.system.glob("/sys/class/net/*/ecn/roce_*/enable"):
        interface, side = path.split("/")[4], path.split("/")[6]
        on = [str(number) for number in PRIORITIES if look.text(f"{path}/{number}") == "1"]
        yield f"roce.ecn.{interface}.{side}", on
    for interface in rdma_interfaces(look):
        ran = look.run("mlnx_qos", "-i", interface, timeout_s=10.0)
        if ran.ok:
            yield from _qos(interface, ran.output)


def _qos(interface: str, text: str) -> Iterator[tuple[str, Value]]:
    trust = re.search(r"Priority trust state:\s*(\w+)", text)
    if trust:
        yield f"roce.trust.{interface}", trust[1]
    enabled = re.search(r"PFC configuration:.*?enabled\s+([01 ]+)", text, re.DOTALL)
    if enabled:
        lossless = [str(number) for number, bit in enumerate(enabled[1].split()) if bit == "1"]
        yield f"roce.pfc.{interface}", lossless


def rdma_interfaces(look: Look) -> list[str]:
    """Ethernet interfaces that carry RDMA."""
    paths = look.system.glob("/sys/class/infiniband/*/device/net/*")
    return sorted({path.rpartition("/")[2] for path in paths})


def _interfaces(look: Look) -> Iterator[tuple[str, Value]]:
    for path in look.system.glob("/sys/class/net/*/mtu"):
        name = path.split("/")[4]
        if not name.startswith(("lo", "veth", "docker", "cali", "cni", "virbr", "br-", "tun", "dummy")):
            value = look.text(path)
            if value and value.isdecimal():
                yield f"net.mtu.{name}", int(value)
