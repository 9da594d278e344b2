"""Whether all GPUs are there and answer: count, lost ones, a hung driver, what the driver asks for,
leftovers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from megatrace.bot.checks import check
from megatrace.bot.gpus import Gpu, driver_query, gpus, on_bus, place_of, refusals
from megatrace.bot.kernel_log import kernel_facts, of
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.bot.processes import Process, all_visible, processes
from megatrace.model.check import Step
from megatrace.model.finding import Severity
from megatrace.model.series import FactKind
from megatrace.model.system import Why

STEPS = {
    "gpu reset": Step.RESET_GPU,
    "drain and reset": Step.RESET_GPU,
    "node reboot": Step.REBOOT,
    "system reboot": Step.REBOOT,
    "drain p2p": Step.ISOLATE,
    "bus reset": Step.RESET_GPU,
}
"""The driver's recovery actions (NVML field 230) as steps of the ladder."""
LEFT_MIB = 1024
"""MiB: the driver and its services hold up to 600 MiB of a GPU that nobody uses."""
LEFT_S = 120.0
"""Seconds: a job that ends frees its memory within a minute."""
SECOND_S = 15.0


@check(
    "GPU-01",
    summary="fewer GPUs than the machine has",
    subject="GPU",
    severity="P0",
    step="A5",
    timeout_s=20,
    must=True,
)
def count(look: Look) -> Iterator[Problem]:
    """How many GPUs answer, against the template and the PCI bus.

    A job that is started on seven of eight GPUs fails at once; one that runs has lost a rank. Three cases
    differ in what to do: a GPU that the bus sees and the driver does not (reboot), one that is gone from the
    bus (cold power cycle), and a machine that never had it (the template is wrong).

    Source: `nvidia-smi -q`, `/sys/bus/pci/devices`, template key `gpu.count`. Threshold: any difference,
    because GPUs do not come and go by themselves. Remedy: reboot; power-cycle cold; replace the GPU."""
    seen = gpus(look)
    bus = on_bus(look)
    wanted = look.expected("gpu.count")
    answering = {gpu.place for gpu in seen}
    lost = {place_of(fact.device) for fact in refusals(look) if fact.name == "lost"}
    silent = [place for place in bus if place not in answering | lost]
    look.said = f"{len(seen)} GPUs"
    for place in silent:
        yield look.fail(
            f"GPU {place} is on the PCI bus and the driver does not see it: {len(seen)} of {len(bus)} answer",
            device=place,
            evidence=[f"lspci shows {place}, nvidia-smi -q does not"],
            remedy="look for RmInitAdapter in dmesg; drain and reboot; power-cycle cold if it stays away",
        )
    missing = int(wanted) - len(bus) if isinstance(wanted, int | float) else 0
    if missing > 0:
        yield look.fail(
            f"{missing} of {wanted} GPUs are gone from the PCI bus; {len(bus)} are there",
            evidence=[f"on the bus: {', '.join(bus) or 'none'}"],
            remedy="drain, power-cycle cold; reseat or replace the GPU that does not come back",
            step=Step.POWER_CYCLE,
            key="bus",
        )
    elif missing < 0:
        yield look.warn(
            f"{len(bus)} GPUs where the template expects {wanted}: the template is of another machine",
            Severity.P3,
            remedy="choose the template of this machine type",
            key="template",
        )


@check(
    "GPU-02",
    summary="a GPU that is lost: it fell off the bus",
    subject="GPU",
    severity="P0",
    step="A6",
    timeout_s=20,
    must=True,
)
def lost(look: Look) -> Iterator[Problem]:
    """Whether a GPU is gone while the driver still holds it.

    Every rank of its job waits for ever. A reboot often does not bring it back, because the board has lost
    its link or its power: hence the cold power cycle.

    Source: what `nvidia-smi` says instead of values (`GPU is lost`, `Unable to determine the device handle`),
    the GPU's configuration space that reads as ones, values that all read `[GPU is lost]`. Threshold: any.
    Remedy: drain, power-cycle cold; replace the GPU the second time."""
    places = on_bus(look)
    if not places:
        raise Skipped("no NVIDIA GPU in this machine")
    gone: dict[str, list[str]] = {}
    for fact in refusals(look):
        if fact.name == "lost":
            gone.setdefault(place_of(fact.device), []).append(f"nvidia-smi: {fact.text.strip()[:160]}")
    for place in places:
        config = look.text(f"/sys/bus/pci/devices/{place}/config") or ""
        if config[:4] == "\ufffd" * 4:
            gone.setdefault(place, []).append(
                "its PCI configuration space reads as ones: nothing answers there"
            )
    seen: tuple[Gpu, ...] = ()
    if not gone:
        seen = gpus(look)
    for gpu in seen:
        if "lost" in gpu.get("uuid", "serial", "performance state").lower():
            gone.setdefault(gpu.place, []).append("its values read GPU is lost")
    look.said = f"{len(places)} GPUs answer on the bus"
    fell = _fell(look)
    for place, evidence in gone.items():
        number = f"gpu{places.index(place)} ({place})" if place in places else "a GPU"
        yield look.fail(
            f"{number} is lost: it has fallen off the bus",
            device=place or None,
            since=fell.get(place),
            evidence=list(dict.fromkeys(evidence)),
            remedy="drain, power-cycle cold; reseat it; replace it if it falls off again",
        )


def _fell(look: Look) -> dict[str, int]:
    """When each GPU fell off the bus, ns, by the kernel log; by PCI address."""
    with suppress(Skipped, Unknown):
        found = [fact for fact in of(kernel_facts(look), FactKind.XID) if fact.code == 79]
        return {place_of(fact.device): fact.time for fact in reversed(found) if fact.time is not None}
    return {}


@check(
    "GPU-03",
    summary="the driver hangs: nvidia-smi does not answer",
    subject="GPU",
    severity="P0",
    step="A5",
    timeout_s=45,
    hang="the NVIDIA driver",
    must=True,
)
def driver_hangs(look: Look) -> Iterator[Problem]:
    """Whether the driver answers within 15 s, asked twice.

    A driver that hangs takes every process that touches it into state D; such a machine looks idle and
    healthy to a monitor that waits for it. This check waits in a process that is killed, or abandoned where
    it cannot be.

    Source: `nvidia-smi -q`, then `nvidia-smi -L`; processes of nvidia-smi in state D. Threshold: two answers
    missing within 15 s each, because the first one may be slow while the driver starts its GPUs. Remedy:
    drain and reboot."""
    ran = driver_query(look)
    if ran.why is Why.ABSENT and not on_bus(look):
        raise Skipped("no NVIDIA GPU in this machine")
    stuck = [
        item for item in processes(look) if item.state == "D" and item.name.startswith(("nvidia-smi", "dcgm"))
    ]
    said = [f"{item.name} (process {item.pid}) stands in the kernel, state D" for item in stuck[:4]]
    if ran.why is not Why.HUNG:
        if ran.why is Why.ABSENT:
            raise Unknown("nvidia-smi is not installed")
        if ran.why is Why.NOT_RECORDED:
            raise Skipped(ran.problem)
        look.said = f"the driver answers in {ran.seconds:.1f} s"
        if len(stuck) >= 2:
            yield look.warn("nvidia-smi processes stand in the kernel", Severity.P1, evidence=said)
        return
    look.at("nvidia-smi -L, the second try")
    again = look.system.run(("nvidia-smi", "-L"), SECOND_S)
    if again.why is Why.HUNG:
        yield look.fail(
            "the NVIDIA driver hangs: nvidia-smi did not answer twice",
            evidence=[ran.problem, again.problem, *said],
            remedy="drain the node and reboot it: processes in state D cannot be killed",
        )
    else:
        yield look.warn(
            "the NVIDIA driver is slow: one query did not end within 15 s, a second one did",
            evidence=[ran.problem, *said],
            remedy="look again; nvidia-smi -pm 1 if persistence mode is off",
        )


@check(
    "GPU-04",
    summary="the driver asks for a recovery of a GPU",
    subject="GPU",
    severity="P1",
    step="A4",
    timeout_s=20,
    must=True,
)
def recovery_action(look: Look) -> Iterator[Problem]:
    """What the driver itself says must be done with a GPU.

    It knows more than any table of error codes; its word overrides them. Source: `GPU Recovery Action` of
    `nvidia-smi -q` (NVML field 230; drivers from 550). Threshold: any but None. Remedy: what it says.
    """
    seen = gpus(look)
    told = [(gpu, gpu.get("gpu recovery action", "recovery action")) for gpu in seen]
    if not any(said for _, said in told):
        raise Skipped("this driver names no recovery action")
    look.said = f"none asked for on {len(seen)} GPUs"
    for gpu, said in told:
        if said and said.lower() != "none":
            yield look.fail(
                f"{gpu.name}: the driver asks for: {said}",
                device=gpu.place,
                remedy=f"drain the node, then: {said.lower()}",
                step=STEPS.get(said.lower().removesuffix(" required"), Step.RESET_GPU),
            )


@check(
    "GPU-22",
    summary="GPU memory in use though no job is there",
    subject="GPU",
    severity="P2",
    step="A1",
    kind="resource",
    period_s=60,
    timeout_s=20,
    must=True,
)
def leftovers(look: Look) -> Iterator[Problem]:
    """Memory of a GPU that nobody owns, and processes on GPUs outside of any job.

    The next job on that GPU runs out of memory, or shares it and is slow. Source: `FB Memory Usage` and
    processes of `nvidia-smi`; whether a process belongs to a job is told by its control group. Threshold:
    more than 1 GiB without a living process for 2 min, because a job that ends frees its memory within a
    minute. Remedy: end the process; reset the GPU where there is none left."""
    seen = gpus(look)
    if not all_visible(look):
        raise Skipped("the processes of the machine cannot be seen from this container")
    owners = _owners(look)
    jobs = [item for item in processes(look) if item.in_job]
    scheduled = any(item.name in ("slurmd", "kubelet") for item in processes(look))
    alive = {item.pid: item for item in processes(look)}
    look.said = f"{len(owners)} processes on {len(seen)} GPUs"
    for gpu in seen:
        used = gpu.number("fb memory usage/used") or 0.0
        mine = owners.get(gpu.place, [])
        living = [alive[pid] for pid in mine if pid in alive]
        ownerless = used > LEFT_MIB and not living
        seconds = look.lasting(f"gpu.{gpu.place}.ownerless", ownerless)
        if ownerless and (seconds >= LEFT_S or any(pid not in alive for pid in mine)):
            yield look.warn(
                f"{gpu.name}: {used:,.0f} MiB in use and no process owns it",
                device=gpu.place,
                evidence=[f"dead processes in the driver's list: {', '.join(map(str, mine))}"]
                if mine
                else (),
                remedy="fuser -v /dev/nvidia*: end what is left; reset the GPU if nothing is",
            )
        stray = [item for item in living if not item.in_job]
        if stray and scheduled and not jobs:
            yield look.warn(
                f"{gpu.name}: {_named(stray)} runs outside of any job",
                device=gpu.place,
                evidence=[f"{used:,.0f} MiB in use; the scheduler has no job here"],
                remedy="ask its owner, or end it",
                key="stray",
            )


def _named(found: list[Process]) -> str:
    names = Counter(item.name for item in found)
    return ", ".join(f"{name} ({count} processes)" if count > 1 else name for name, count in names.items())


def _owners(look: Look) -> dict[str, list[int]]:
    """Processes with memory on each GPU, by PCI address."""
    fields = "--query-compute-apps=gpu_bus_id,pid,used_memory"
    found: dict[str, list[int]] = {}
    for line in look.run("nvidia-smi", fields, "--format=csv,noheader,nounits").output.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) >= 2 and parts[1].isdecimal():
            found.setdefault(place_of(parts[0]), []).append(int(parts[1]))
    return found
