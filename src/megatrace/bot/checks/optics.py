"""Light and bit errors of the links between nodes and switches: what a cable or module shows before it
fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.model.check import Step

PORTS = "/sys/class/infiniband/*/ports/1"
BER_LIMIT = 1e-15
"""Effective bit error rate after correction: NVIDIA gives 1e-15 as the limit of a healthy NDR or HDR link."""
RX_DBM = -8.0
"""Received power below which a 400G module is at the edge of its sensitivity (modules specify -7 to -9
dBm)."""
HOT_C = 70.0
"""Case temperature at which modules are specified to end."""


def _ports(look: Look) -> list[str]:
    found = [path.split("/")[4] for path in look.system.glob(PORTS)]
    if not found:
        raise Skipped("no InfiniBand or RoCE port on this machine")
    return found


def _mlxlink(look: Look, device: str, *words: str) -> dict[str, Any]:
    """What mlxlink says of a port, its levels flattened; empty where it says nothing."""
    ran = look.run("mlxlink", "-d", device, *words, "--json", timeout_s=20.0)
    if ran.why is not None:
        raise Skipped(ran.problem)
    try:
        found = json.loads(ran.output)
    except ValueError:
        return {}
    flat: dict[str, Any] = {}

    def take(level: object) -> None:
        for key, value in level.items() if isinstance(level, dict) else ():
            if isinstance(value, dict) and "values" not in value:
                take(value)
            else:
                flat[str(key)] = value

    take(found)
    return flat


def _floats(value: object) -> list[float]:
    """Numbers of "1.6,1.5 [-8.2..5]" or {"values": [...]}, lane by lane; limits in brackets left out."""
    if isinstance(value, dict):
        value = value.get("values", [])
    if isinstance(value, list):
        value = ",".join(map(str, value))
    text = re.sub(r"\[.*?\]", "", str(value))
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)]


@check(
    "IB-06",
    summary="bit errors that correction no longer hides",
    subject="InfiniBand",
    severity="P2",
    step="A3",
    period_s=600,
    timeout_s=120,
    observe=True,
)
def bit_errors(look: Look) -> Iterator[Problem]:
    """The effective bit error rate of every port.

    Source: `mlxlink -d DEVICE --show_ber --json`. Threshold: above 1e-15 (`limits.IB-06.ber`), where a 400
    Gb/s link retransmits several times an hour. Remedy: clean the optic, reseat, then replace; ask the switch
    for the same of its end, since one end alone does not say which is dirty."""
    limit = look.limit("ber", BER_LIMIT)
    seen = 0
    for device in _ports(look):
        found = _mlxlink(look, device, "--show_ber")
        rates = _floats(found.get("Effective Physical BER", ""))
        seen += bool(rates)
        if rates and max(rates) > limit:
            yield look.warn(
                f"{device}: effective bit error rate {max(rates):.0e}, limit {limit:.0e}",
                device=device,
                link=(f"{device}/1", None),
                evidence=(f"raw {found.get('Raw Physical BER', '?')}",),
                remedy="clean the optic, reseat it, then replace it; look at the switch's end too",
            )
    look.said = f"{seen} ports"


@check(
    "IB-13",
    summary="optical modules that are dark or hot",
    subject="InfiniBand",
    severity="P2",
    step="A3",
    period_s=600,
    timeout_s=120,
    observe=True,
)
def module_state(look: Look) -> Iterator[Problem]:
    """Received light and temperature of every module.

    Source: `mlxlink -d DEVICE -m --json`; a copper cable has neither. Threshold: a lane below −8 dBm, the
    edge of a 400G module's sensitivity; a case above 70 °C, where its specification ends. Remedy: one dark
    lane: clean or replace; all lanes dark: the far end does not send; hot: airflow."""
    for device in _ports(look):
        found = _mlxlink(look, device, "-m")
        power = _floats(found.get("Rx Power Current [dBm]", found.get("Rx Power [dBm]", "")))
        celsius = _floats(found.get("Temperature [C]", ""))
        dark = [str(lane) for lane, value in enumerate(power) if value < look.limit("rx_dbm", RX_DBM)]
        if dark:
            yield look.warn(
                f"{device}: lane {', '.join(dark)} receives {min(power):g} dBm",
                device=device,
                link=(f"{device}/1", None),
                key="light",
                remedy="clean the optic; where all lanes are dark, look at the far end",
            )
        if celsius and celsius[0] > look.limit("celsius", HOT_C):
            yield look.warn(
                f"{device}: its module is at {celsius[0]:g} °C",
                device=device,
                step=Step.OBSERVE,
                key="heat",
            )


@check(
    "IB-16",
    summary="ports without an address, or outside their partition",
    subject="InfiniBand",
    severity="P0",
    step="A0",
    kind="configuration",
    period_s=60,
    observe=True,
)
def subnet(look: Look) -> Iterator[Problem]:
    """The address (LID) that the subnet manager gave each InfiniBand port, and its partition key.

    Source: `ports/1/{link_layer,lid,sm_lid,pkeys/0}` in sysfs. Threshold: a port that is ACTIVE with LID 0 or
    without a subnet manager; a key that is not the template's (`infiniband.pkey`). LID 0 is normal on
    Ethernet. Remedy: the subnet manager; many ports at once mean it is down."""
    seen = 0
    for device in _ports(look):
        place = f"/sys/class/infiniband/{device}/ports/1"
        if look.text(f"{place}/link_layer") != "InfiniBand" or "ACTIVE" not in (
            look.text(f"{place}/state") or ""
        ):
            continue
        seen += 1
        for name in ("lid", "sm_lid"):
            value = look.text(f"{place}/{name}")
            if value is not None and int(value, 16) == 0:
                what = "no address (LID 0)" if name == "lid" else "no subnet manager"
                yield look.fail(f"{device} is active and has {what}", device=device, key=name)
        key, wanted = look.text(f"{place}/pkeys/0"), look.expected("infiniband.pkey")
        if wanted is not None and key is not None and key.lower() != str(wanted).lower():
            yield look.warn(f"{device}: partition key {key}, the template says {wanted}", device=device)
    look.said = f"{seen} InfiniBand ports"


@check(
    "IB-17",
    summary="cables in other ports than planned",
    subject="InfiniBand",
    severity="P2",
    step="A0",
    kind="configuration",
    period_s=3600,
    timeout_s=20,
    observe=True,
)
def cabling(look: Look) -> Iterator[Problem]:
    """Who is at the other end of each Ethernet cable, against the plan.

    Source: `lldpctl -f json0`; the plan is the template's `cabling.INTERFACE: SWITCH/PORT`. Threshold:
    another switch or port. Remedy: a ticket for the hall, with both ends."""
    plan = {
        key.removeprefix("cabling."): str(value)
        for key, value in look.template.items()
        if key.startswith("cabling.")
    }
    if not plan:
        raise Skipped("the template has no plan of cables")
    found = _neighbours(json.loads(look.output("lldpctl", "-f", "json0")))
    for interface, wanted in sorted(plan.items()):
        seen = found.get(interface)
        if seen is not None and seen != wanted:
            yield look.warn(
                f"{interface} is cabled to {seen}, planned {wanted}", device=interface, link=(interface, seen)
            )
    look.said = f"{len(found)} neighbours"


def _neighbours(said: object) -> dict[str, str]:
    """ "switch/port" by interface, of lldpd's json0 form, in which everything is a list."""
    found: dict[str, str] = {}
    top = said.get("lldp", []) if isinstance(said, dict) else []
    for level in top if isinstance(top, list) else []:
        for item in level.get("interface", []):
            name = item.get("chassis", [{}])[0].get("name", [{}])[0].get("value")
            port = item.get("port", [{}])[0].get("id", [{}])[0].get("value")
            if name and port:
                found[str(item.get("name"))] = f"{name}/{port}"
    return found
