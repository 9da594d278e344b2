"""Known faults of made machines: what breaks, which check must find it, and on which device.

Every fault happens between two looks at a machine that was healthy at the first, because counters only count
from there. It is described as the field meets it: in the kernel's and the tools' own words (kernel sources,
NVIDIA's Xid catalogue, the documents of the tools), at a place that is drawn, so that a check which always
names the same device fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from megatrace.bot.specimens.machine import Machine
from megatrace.errors import UnknownName

Break = Callable[[Machine, Random], str]
"""Breaks the machine; returns what must be named (a PCI address, a port, a mount point), "" where it is the
node."""
SXM = ("a100-ib", "h100-ib", "h100-roce", "h200-roce")
GPUS = (*SXM, "l40s-roce")
ALL = (*GPUS, "cpu-ib")
ROCE = ("h100-roce", "h200-roce", "l40s-roce")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``looks``: seconds between the looks from the fault on; ``job``: whether a job runs.

    ``severity`` the name of the worst that may be expected of the finding, e.g. "P0".
    """

    name: str
    check: str
    about: str
    apply: Break
    kinds: tuple[str, ...]
    severity: str
    looks: tuple[float, ...] = (60.0,)
    job: bool = True
    template: Mapping[str, object] = field(default_factory=dict)


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    check: str,
    about: str,
    severity: str,
    kinds: tuple[str, ...] = GPUS,
    *,
    looks: tuple[float, ...] = (60.0,),
    job: bool = True,
    template: Mapping[str, object] | None = None,
) -> Callable[[Break], Break]:
    """Registers a fault under its name."""

    def file(apply: Break) -> Break:
        FAULTS[name] = Fault(name, check, about, apply, kinds, severity, looks, job, template or {})
        return apply

    return file


def every() -> tuple[Fault, ...]:
    """All faults there are."""
    from megatrace.bot.specimens import faults_gpu, faults_host, faults_network  # noqa: F401 - they register

    return tuple(FAULTS.values())


def find(name: str) -> Fault:
    """Raises UnknownName."""
    every()
    if name not in FAULTS:
        raise UnknownName("fault", name, FAULTS)
    return FAULTS[name]


def gpu(machine: Machine, draw: Random) -> tuple[int, str]:
    """A GPU of the machine: index and PCI address."""
    index = draw.randrange(len(machine.gpus))
    return index, machine.gpu_places[index]


def xid(
    machine: Machine,
    place: str,
    code: int,
    text: str,
    ago: float = 20.0,
    who: str = "pid=41003, name=python3, ",
) -> None:
    """A line of the driver."""
    machine.log(ago, f"NVRM: Xid (PCI:{place.removesuffix('.0')}): {code}, {who}{text}")
