"""Which parts a machine is made of: serial numbers and UUIDs beside the places that findings name.

A fault is told of a place ("0000:19:00.0", "mlx5_3/1", "nvme2"), but what is sick is the part that sits
there, and it takes its fault along when it is moved or replaced. From sysfs, and two programs that may be
absent; a part without a number of its own is known by its place alone, and has no history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from megatrace.bot.gpus import place_of
from megatrace.model.parts import Component
from megatrace.model.system import System, Unreadable

GPU_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,pci.bus_id,uuid,serial,name",
    "--format=csv,noheader",
)
DIMM_QUERY = ("dmidecode", "-t", "17")
QUERY_S = 15.0
MAX_PARTS = 256
_NO_SERIAL = re.compile(
    r"(?:|0+|n/?a|\[n/a\]|none|unknown|default string|not specified|not available|no dimm|no module installed"
    r"|to be filled by o\.e\.m\.|system serial number|x+)",
    re.IGNORECASE,
)
"""What firmware writes where it knows no number."""


def components(system: System, *, ask_driver: bool = True) -> tuple[Component, ...]:
    """Every part that has a number of its own: the machine itself first.

    ``ask_driver``: not where it is known to hang.
    """
    gpus = _gpus(system) if ask_driver else ()
    parts = (*_machine(system), *gpus, *_ports(system), *_disks(system), *_dimms(system))
    return tuple(parts[:MAX_PARTS])


def owner(parts: Iterable[Component], device: str) -> Component | None:
    """The part that a device of a finding is."""
    return next((part for part in parts if part.is_called(device)), None)


def _machine(system: System) -> Iterator[Component]:
    serial = _number(_text(system, "/sys/class/dmi/id/product_serial"))
    uuid = _number(_text(system, "/sys/class/dmi/id/product_uuid"))
    if serial or uuid:
        yield Component("machine", serial, uuid, "", _text(system, "/sys/class/dmi/id/product_name"))


def _gpus(system: System) -> Iterator[Component]:
    ran = system.run(GPU_QUERY, QUERY_S)
    for line in ran.output.splitlines() if ran.ok else ():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 5 and cells[0].isdigit() and cells[2].startswith("GPU-"):
            place = place_of(cells[1]) or cells[1]
            yield Component("GPU", _number(cells[3]), cells[2], place, cells[4], (f"gpu{cells[0]}",))


def _ports(system: System) -> Iterator[Component]:
    for path in system.glob("/sys/class/infiniband/*/node_guid"):
        folder = path.rpartition("/")[0]
        name = folder.rpartition("/")[2]
        guid = _number(_text(system, path).replace(":", ""))
        if not guid:
            continue
        place = ""
        with suppress(Unreadable):
            place = system.link(f"{folder}/device").rpartition("/")[2]
        interfaces = tuple(net.rpartition("/")[2] for net in system.glob(f"{folder}/device/net/*"))
        model = _text(system, f"{folder}/hca_type") or _text(system, f"{folder}/board_id")
        yield Component("NIC", "", guid, name, model, tuple(filter(None, (place, *interfaces))))


def _disks(system: System) -> Iterator[Component]:
    for path in system.glob("/sys/class/nvme/nvme[0-9]*"):
        name = path.rpartition("/")[2]
        serial = _number(_text(system, f"{path}/serial"))
        if serial and (_text(system, f"{path}/transport") or "pcie") == "pcie":
            yield Component("disk", serial, "", name, _text(system, f"{path}/model"), (f"/dev/{name}",))
    for path in system.glob("/sys/block/sd[a-z]*"):
        name = path.rpartition("/")[2]
        uuid = _number(_text(system, f"{path}/device/wwid"))
        if uuid:
            yield Component("disk", "", uuid, name, _text(system, f"{path}/device/model"), (f"/dev/{name}",))


def _dimms(system: System) -> Iterator[Component]:
    ran = system.run(DIMM_QUERY, QUERY_S)
    for block in ran.output.split("\n\n") if ran.ok else ():
        told = dict(re.findall(r"^\s+(Locator|Serial Number|Part Number): *(.*?) *$", block, re.MULTILINE))
        serial = _number(told.get("Serial Number", ""))
        if serial and told.get("Locator"):
            slot = f"DIMM {told['Locator']}"
            yield Component("DIMM", serial, "", slot, told.get("Part Number", ""), (told["Locator"],))


def _text(system: System, path: str) -> str:
    with suppress(Unreadable):
        return system.read(path, 4096).strip()
    return ""


def _number(said: str) -> str:
    """A number that tells one part from another; "" where firmware put a word in its place."""
    said = said.strip()
    return "" if _NO_SERIAL.fullmatch(said) else said[:128]
