"""The GPUs of a machine: what NVML says of each (through nvidia-smi), and what the PCI bus says.

nvidia-smi rather than NVML in this process: it is on every machine that has the driver, its output can be
recorded, and when the driver hangs it is a process that can be killed. One call a round serves all checks. A
value that is "N/A" is absent, which is no fault: cards differ in what they have."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from megatrace.analysis.evidence_gpu import address
from megatrace.bot.gpu_models import Model, model_of
from megatrace.bot.look import Look, Skipped, Unknown
from megatrace.model.series import LogFact
from megatrace.model.system import Ran, Why
from megatrace.readers.tool_query import query_trees, state_of
from megatrace.readers.tool_table import read_table

QUERY = ("nvidia-smi", "-q", "-x")
QUERY_TEXT = ("nvidia-smi", "-q")
QUERY_S = 15.0
"""Seconds: without persistence mode the driver first starts every GPU, 1 to 2 s each."""
VENDOR = "0x10de"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_ABSENT = ("N/A", "[N/A]", "", "REQUESTED FUNCTIONALITY HAS BEEN DEPRECATED", "UNKNOWN ERROR")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML sees it. ``place`` is its PCI address as sysfs has it, ``index`` its number in
    nvidia-smi.

    ``tree`` value by path of lower-case words; ``fact`` the fields that differ in name between drivers.
    """

    index: int
    place: str
    fact: LogFact
    tree: dict[str, str] = field(repr=False)
    model: Model

    @property
    def name(self) -> str:
        """As findings call it."""
        return f"gpu{self.index} ({self.place})"

    def get(self, *ends: str) -> str:
        """The first value whose path ends so; "" where there is none."""
        for end in ends:
            for path, said in self.tree.items():
                if path == end or path.endswith(
                    (f"/{end}", f" {end}") if end.startswith("counters ") else f"/{end}"
                ):
                    return "" if said.upper() in _ABSENT else said
        return ""

    def number(self, *ends: str) -> float | None:
        """The same as a number, without its unit."""
        found = _NUMBER.match(self.get(*ends))
        return None if found is None else float(found[0])

    def yes(self, *ends: str) -> bool:
        """Whether it says Yes."""
        return self.get(*ends).lower() in ("yes", "true")

    @property
    def serial(self) -> str:
        """Of the board."""
        return self.get("serial", "serial number")

    @property
    def uuid(self) -> str:
        """Of the GPU."""
        return self.get("uuid", "gpu uuid")


def driver_query(look: Look) -> Ran:
    """nvidia-smi's answer to "everything of all GPUs", as XML, or as text where there is no XML."""
    ran = look.run(*QUERY, timeout_s=QUERY_S)
    if not ran.ok and ran.why is not Why.HUNG:
        text = look.run(*QUERY_TEXT, timeout_s=QUERY_S)
        return text if text.ok else ran
    return ran


def gpus(look: Look) -> tuple[Gpu, ...]:
    """Every GPU that answers, in the driver's order.

    Raises Skipped where the machine has no NVIDIA GPU, Unknown where it has and the driver gives no answer.
    """
    return look.memo("gpus", lambda: _gpus(look))


def _gpus(look: Look) -> tuple[Gpu, ...]:
    ran = driver_query(look)
    if not ran.ok:
        if not on_bus(look) and ran.why in (Why.ABSENT, Why.NOT_RECORDED):
            raise Skipped("no NVIDIA GPU in this machine")
        if ran.why is Why.NOT_RECORDED:
            raise Skipped(ran.problem)
        found = _beside_lost(look) if ran.why is None else ()
        if not found:
            raise Unknown(ran.problem)
        return found
    found = _read(ran)
    if not found and not on_bus(look):
        raise Skipped("no NVIDIA GPU in this machine")
    return found


def _read(ran: Ran) -> tuple[Gpu, ...]:
    try:
        trees = query_trees(ran.output)
    except (ValueError, RecursionError) as error:
        raise Unknown(f"nvidia-smi -q printed something damaged ({error})") from None
    found = []
    for index, (bus, tree) in enumerate(trees):
        fact = state_of(bus, tree, index)
        found.append(Gpu(index, place_of(bus) or bus, fact, tree, model_of(fact.word("product"))))
    return tuple(found)


def _beside_lost(look: Look) -> tuple[Gpu, ...]:
    """The GPUs that still answer where nvidia-smi gives up because of one that is lost: each asked alone."""
    lost = {place_of(fact.device) for fact in refusals(look) if fact.name == "lost"} - {""}
    found: list[Gpu] = []
    for index, place in enumerate(on_bus(look) if lost else ()):
        if place not in lost:
            ran = look.run(*QUERY, "-i", place, timeout_s=QUERY_S)
            found += [replace(gpu, index=index) for gpu in _read(ran)] if ran.ok else []
    return tuple(found)


def on_bus(look: Look) -> tuple[str, ...]:
    """PCI addresses of NVIDIA GPUs (display and 3D controllers) as the kernel enumerated them."""
    return look.memo("gpus on the bus", lambda: _on_bus(look))


def _on_bus(look: Look) -> tuple[str, ...]:
    found = []
    for path in look.system.glob("/sys/bus/pci/devices/*/vendor"):
        if look.text(path) == VENDOR:
            folder = path.rpartition("/")[0]
            # 0x0300 VGA, 0x0302 3D controller; audio functions and NVSwitches (0x0680) are something else.
            if (look.text(f"{folder}/class") or "").startswith(("0x0300", "0x0302")):
                found.append(folder.rpartition("/")[2])
    return tuple(found)


def refusals(look: Look) -> list[LogFact]:
    """Sentences that nvidia-smi prints instead of, or after, its answer: lost GPUs, no driver, a damaged
    InfoROM."""
    ran = driver_query(look)
    text = "\n".join((ran.output[:20_000] if not ran.ok else "", ran.output[-4_000:], ran.error))
    return [fact for fact in read_table(text) if fact.name != "row"]


def place_of(bus: str | None) -> str:
    """A PCI address as sysfs has it ("0000:19:00.0"), from whatever a tool writes; "" where it is none."""
    found = address(bus)
    return f"{found}.0" if found else ""


def by_place(look: Look) -> dict[str, Gpu]:
    """GPUs by PCI address."""
    return {gpu.place: gpu for gpu in gpus(look)}
