"""The PCIe links of GPUs, network cards and disks: there, as wide and fast as they can be, without errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from megatrace.analysis.evidence_host import judge_host
from megatrace.bot.checks import check
from megatrace.bot.gpus import by_place
from megatrace.bot.kernel_log import kernel_facts, of, problems
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.bot.numbers import number
from megatrace.model.check import Outcome
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind
from megatrace.model.system import Unreadable

ROOT = "/sys/bus/pci/devices"
CORRECTED_PER_HOUR = 100.0
REPLAYS_PER_HOUR = 600.0
BUSY = 50.0
_KINDS = {
    "0x0300": "GPU",
    "0x0302": "GPU",
    "0x0207": "network card",
    "0x0200": "network card",
    "0x0108": "NVMe disk",
    "0x0680": "NVSwitch",
}
_CLASSES = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class Device:
    """One device of interest; width in lanes, speed in GT/s, None where the kernel does not say."""

    place: str
    kind: str
    identity: str
    width: float | None
    width_max: float | None
    speed: float | None
    speed_max: float | None
    upstream: str


def _devices(look: Look) -> tuple[Device, ...]:
    return look.memo("pcie devices", lambda: tuple(_read(look)))


def _read(look: Look) -> Iterator[Device]:
    for path in look.system.glob(f"{ROOT}/*/class"):
        folder = path.rpartition("/")[0]
        code = (look.text(path) or "")[:6]
        vendor = look.text(f"{folder}/vendor") or ""
        if (
            code not in _CLASSES
            or (code == "0x0680" and vendor != "0x10de")
            or look.system.glob(f"{folder}/physfn")
        ):
            continue
        if code in ("0x0300", "0x0302") and vendor != "0x10de":
            continue
        upstream = ""
        with suppress(Unreadable):
            parts = look.system.link(folder).split("/")
            upstream = parts[-2] if len(parts) >= 2 and ":" in parts[-2] else ""
        yield Device(
            folder.rpartition("/")[2],
            _KINDS[code],
            f"{vendor}:{look.text(f'{folder}/device') or ''}".replace("0x", ""),
            look.number(f"{folder}/current_link_width"),
            look.number(f"{folder}/max_link_width"),
            _speed(look.text(f"{folder}/current_link_speed")),
            _speed(look.text(f"{folder}/max_link_speed")),
            upstream,
        )


def _speed(text: str | None) -> float | None:
    found = re.match(r"([\d.]+) GT/s", text or "")
    return float(found[1]) if found else None


@check(
    "PCI-01",
    summary="a PCIe link that is narrower or slower than it can be",
    subject="PCIe",
    severity="P1",
    step="A6",
    timeout_s=20,
    must=True,
)
def link(look: Look) -> Iterator[Problem]:
    """Width and speed of the PCIe link of every GPU, network card, NVMe disk and NVSwitch.

    A card that lost lanes works at a fraction of its bandwidth, and nothing else tells. The slot counts, too:
    a card is compared with the less of what it and its slot can do. A GPU that idles lowers its speed to save
    power; its speed is looked at only while it computes. Source: `current_link_width` and `_speed` in sysfs
    against `max_link_*` of the card and of its upstream port. Threshold: any less. Remedy: reseat the card or
    cable; cold power cycle."""
    devices = _devices(look)
    if not devices:
        raise Skipped("no PCIe device of interest")
    busy: dict[str, float] = {}
    with suppress(Unknown, Skipped):
        busy = {
            place: gpu.number("utilization/gpu", "utilization/gpu util") or 0.0
            for place, gpu in by_place(look).items()
        }
    looked = 0
    for item in devices:
        if not item.width or not item.width_max:
            continue
        looked += 1
        slot = f"{ROOT}/{item.upstream}"
        wide = min(item.width_max, look.number(f"{slot}/max_link_width") or item.width_max)
        fast = min(
            item.speed_max or 0.0, _speed(look.text(f"{slot}/max_link_speed")) or item.speed_max or 0.0
        )
        rests = item.kind == "GPU" and busy.get(item.place, 0.0) < BUSY
        if item.width < wide:
            text = f"has {item.width:.0f} of {wide:.0f} lanes"
        elif item.speed and item.speed < fast and not rests and item.kind != "NVMe disk":
            text = f"runs at {item.speed:g} of {fast:g} GT/s"
        else:
            continue
        yield look.fail(
            f"{item.kind} {item.place}: its PCIe link {text}"
            + (f" (slot {item.upstream})" if item.upstream else ""),
            device=item.place,
            link=(item.place, item.upstream or None),
            severity=Severity.P1 if item.kind != "NVMe disk" else Severity.P2,
            remedy="drain at the end of the job; reseat the card, its riser or cable; power-cycle cold",
        )
    look.said = f"{looked} links"


@check(
    "PCI-02",
    summary="errors on a PCIe link",
    subject="PCIe",
    severity="P1",
    step="A6",
    must=True,
)
def errors(look: Look) -> Iterator[Problem]:
    """What PCIe's advanced error reporting counts on each device, and what the kernel log says of it.

    Source: `aer_dev_fatal`, `aer_dev_nonfatal`, `aer_dev_correctable` in sysfs, `PCIe Bus Error` lines.
    Threshold: any new fatal one is P0, any new non-fatal one P1, because both lose data or the card;
    corrected ones P2 from 100 an hour, because each costs a retransmission. Remedy: reseat the card or cable;
    power-cycle cold; replace the riser."""
    counted = 0
    for item in _devices(look):
        for kind, severity in (
            ("fatal", Severity.P0),
            ("nonfatal", Severity.P1),
            ("correctable", Severity.P2),
        ):
            text = look.text(f"{ROOT}/{item.place}/aer_dev_{kind}")
            total = None if text is None else _total(text)
            if total is None:
                continue
            counted += 1
            growth = look.grown(f"pcie.{item.place}.{kind}", total, 3600)
            if (
                growth is None
                or growth.amount <= 0
                or (kind == "correctable" and not growth.exceeds(CORRECTED_PER_HOUR))
            ):
                continue
            word = {"fatal": "fatal", "nonfatal": "uncorrected", "correctable": "corrected"}[kind]
            yield look.problem(
                Outcome.WARN if kind == "correctable" else Outcome.FAIL,
                f"{item.kind} {item.place}: {growth.amount:.0f} {word} PCIe errors since the last look",
                device=item.place,
                link=(item.place, item.upstream or None),
                severity=severity,
                evidence=[line for line in (text or "").splitlines() if not line.endswith(" 0")][:4],
                remedy="drain; reseat the card, its riser or cable; power-cycle cold; replace it if they come back",
                key=kind,
            )
    with suppress(Skipped, Unknown):
        facts = kernel_facts(look)
        if of(facts, FactKind.PCIE, "aer", "link_down"):
            yield from problems(
                look, judge_host([fact for fact in facts if fact.kind in (FactKind.PCIE, FactKind.XID)])
            )
    look.said = (
        f"{counted} counters read" if counted else "nothing in the kernel log; sysfs counts no errors here"
    )


def _total(text: str) -> float | None:
    """The sum of a file of advanced error reporting: its TOTAL line, else that of all lines."""
    rows = [line.split() for line in text.splitlines()]
    numbers = {row[0]: value for row in rows if len(row) == 2 and (value := number(row[1])) is not None}
    total = next((value for name, value in numbers.items() if name.startswith("TOTAL")), None)
    return total if total is not None else (sum(numbers.values()) if numbers else None)


@check(
    "PCI-03",
    summary="a GPU whose PCIe transfers are repeated",
    subject="PCIe",
    severity="P2",
    step="A6",
    timeout_s=20,
    observe=True,
)
def replays(look: Look) -> Iterator[Problem]:
    """The GPU's own count of PCIe replays. Source: `Replays Since Reset` of `nvidia-smi -q`. Threshold: 600
    an hour (10 a minute), because each costs microseconds and healthy links have none. Remedy: reseat the
    GPU."""
    for gpu in by_place(look).values():
        count = gpu.number("pci/replays since reset", "pci/replay counter")
        growth = None if count is None else look.grown(f"gpu.{gpu.place}.replays", count, 3600)
        if growth is not None and growth.exceeds(REPLAYS_PER_HOUR):
            yield look.warn(
                f"{gpu.name}: {growth.amount:,.0f} PCIe transfers were repeated since the last look",
                device=gpu.place,
                remedy="reseat the GPU or its riser at the next maintenance",
            )


@check(
    "PCI-04",
    summary="a PCIe device that is missing",
    subject="PCIe",
    severity="P1",
    step="A6",
    period_s=60,
    must=True,
)
def inventory(look: Look) -> Iterator[Problem]:
    """The devices of interest on the bus, against the template and the last look.

    Source: `/sys/bus/pci/devices`; template key `pci.devices` ({"10de:2330": 8}). Threshold: any less than
    the template; without one, any less than at the last look. Where an earlier look knew them, the addresses
    of those that are gone are named. Remedy: cold power cycle; reseat or replace.
    """
    devices = _devices(look)
    counts = Counter(item.identity for item in devices)
    kinds = {item.identity: item.kind for item in devices}
    wanted = look.expected("pci.devices")
    if isinstance(wanted, dict):
        goals = {str(key): float(value) for key, value in wanted.items()}
    else:
        goals = {key.removeprefix("pci."): value for key, value in look.counters.levels("pci.").items()}
        for key, count in counts.items():
            # The most that was ever seen: a device that is gone stays missing until somebody says otherwise.
            look.before(f"pci.{key}", max(float(count), goals.get(key, 0.0)))
    look.said = ", ".join(f"{count}×{kinds[key]}" for key, count in counts.items()) or "none"
    places: dict[str, list[str]] = {key: [] for key in (*counts, *goals)}
    for item in devices:
        places[item.identity].append(item.place)
    for identity, there in places.items():
        gone = _gone(look, identity, there)
        goal = goals.get(identity, 0.0)
        if len(there) < goal:
            yield from _missing(look, identity, kinds.get(identity, "none left"), goal, there, gone)


def _gone(look: Look, identity: str, there: list[str]) -> list[str]:
    """Addresses at which a device of that sort was at an earlier look, and is no more."""
    begin = f"pci at {identity} "
    known = {key.removeprefix(begin) for key in look.counters.levels(begin)}
    for place in there:
        look.before(f"{begin}{place}", 1.0)
    return sorted(known - set(there))


def _missing(
    look: Look, identity: str, kind: str, goal: float, there: list[str], gone: list[str]
) -> Iterator[Problem]:
    """One problem for each device whose place is known, else one for all."""
    short = goal - len(there)
    evidence = [f"there are {', '.join(there)}" if there else "none is there"]
    remedy = "drain, power-cycle cold; reseat or replace the device that does not come back"
    if len(gone) == short:
        for place in gone:
            said = f"{kind} {identity} is gone from {place}: {len(there)} of {goal:.0f} are left"
            yield look.fail(said, device=place, key=identity, evidence=evidence, remedy=remedy)
        return
    more = [f"earlier there was one at {', '.join(gone)}"] if gone else []
    yield look.fail(
        f"{short:.0f} of {goal:.0f} PCIe devices {identity} ({kind}) are missing",
        device=identity,
        evidence=[*evidence, *more],
        remedy=remedy,
    )


@check(
    "PCI-05",
    summary="transfers between GPUs go through the processor",
    subject="PCIe",
    severity="P2",
    step="A7",
    kind="configuration",
    period_s=3600,
    observe=True,
)
def translation(look: Look) -> Iterator[Problem]:
    """Whether the IOMMU translates what GPUs and network cards send each other.

    Source: `/proc/cmdline`, `/sys/kernel/iommu_groups/*/type`. Threshold: groups of type DMA (translating) on
    a machine with GPUs and network cards that is no guest: peer-to-peer transfers then make a detour, or
    hang. Remedy: `iommu=pt` on the kernel's command line, and ACS off on the PCIe switches."""
    kinds = {item.kind for item in _devices(look)}
    if not {"GPU", "network card"} <= kinds:
        raise Skipped("no GPU beside a network card")
    if " hypervisor" in (look.text("/proc/cpuinfo") or "")[:20_000]:
        raise Skipped("a virtual machine: its host decides")
    types = Counter(look.text(path) for path in look.system.glob("/sys/kernel/iommu_groups/*/type"))
    look.said = ", ".join(f"{count} groups {name}" for name, count in types.items()) or "no IOMMU"
    if types["DMA"] or types["DMA-FQ"]:
        yield look.warn(
            f"the IOMMU translates transfers of {types['DMA'] + types['DMA-FQ']} device groups",
            evidence=[f"kernel command line: {(look.text('/proc/cmdline') or '')[:160]}"],
            remedy="boot with iommu=pt; switch ACS off on the PCIe switches between GPUs and network cards",
        )


@check(
    "PCI-06",
    summary="network cards that ask for small pieces of memory",
    subject="PCIe",
    severity="P3",
    step="A1",
    kind="configuration",
    period_s=3600,
    timeout_s=20,
    observe=True,
)
def read_requests(look: Look) -> Iterator[Problem]:
    """The largest read request (MaxReadReq) of every network card of the compute network.

    A card that asks for 512 bytes at a time reaches half of its rate when it sends. Source: `lspci -vv -s`
    (needs root). Threshold: below 4096, which vendors set on cards from 100 Gb/s on. Remedy: `setpci`, on a
    node without a job."""
    looked = 0
    for item in _devices(look):
        if item.kind != "network card" or not look.system.glob(f"{ROOT}/{item.place}/infiniband/*"):
            continue
        found = re.search(r"MaxReadReq (\d+) bytes", look.output("lspci", "-vv", "-s", item.place))
        if found is None:
            continue
        looked += 1
        if int(found[1]) < 4096:
            yield look.warn(
                f"network card {item.place} asks for {found[1]} bytes at a time (MaxReadReq), 4096 are usual",
                Severity.P3,
                device=item.place,
                remedy=f"setpci -s {item.place} CAP_EXP+8.w, bits 14-12 to 5, while the node is empty",
            )
    if not looked:
        raise Skipped("no network card tells how much it asks for (lspci -vv needs root)")
    look.said = f"{looked} cards"


@check(
    "PCI-08",
    summary="a card that warns of its slot's power",
    subject="PCIe",
    severity="P2",
    step="A0",
    period_s=300,
)
def slot_power(look: Look) -> Iterator[Problem]:
    """Warnings of network cards that their slot gives too little power.

    Many cards print it once at start-up, where it is a note. Source: `mlx5_pcie_event` lines of the kernel
    log. Threshold: any is a note. Remedy: check the slot's power budget if the link of that card is unstable.
    """
    look.said = "none within a day"
    yield from problems(look, judge_host(of(kernel_facts(look), FactKind.LINK, "nic_power")))
