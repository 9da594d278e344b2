"""Tests that put load on an idle machine, by the field's own programs: DCGM, nccl-tests, nvbandwidth,
perftest, STREAM.

None of them runs beside a job. Where the program is not installed the check is skipped and says so. What they
measure is kept for the fleet's median; a number is a fault only against a template, or against what is known
of the model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.gpus import Gpu, gpus
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.bot.ports import ports
from megatrace.bot.processes import processes
from megatrace.units import format_number

SHARE = 0.95
"""Of what is expected: healthy machines of one type repeat a measurement within 2 %."""
H2D_GBS = {5: 48.0, 4: 22.0}
"""GB/s from host to GPU by PCIe generation: 48 is what Azure's node checks ask of an H100, 22 is 0.9 of what
a x16 link of generation 4 carries after its headers (24.6)."""
ALLREDUCE_GBS = {"H100 80GB HBM3": 460.0}
"""Bus bandwidth of an all-reduce of 8 GB over the eight GPUs of a node: what Azure's node checks ask."""
_DEVICE = re.compile(r"[\w.-]{1,32}", re.ASCII)


def _idle(look: Look) -> None:
    if any(item.in_job for item in processes(look)):
        raise Skipped("a job is running: load needs an idle machine")


@check(
    "GPU-28",
    summary="DCGM's diagnostics fail",
    subject="GPU",
    severity="P1",
    step="A9",
    cost="active",
    period_s=86400,
    timeout_s=1500,
)
def dcgm(look: Look) -> Iterator[Problem]:
    """`dcgmi diag`, level 1 (a minute: deployment and software) or the template's `active.dcgm_level` (3:
    stress).

    Source: `dcgmi diag -r LEVEL -j`. Threshold: any test that fails; a warning is a warning. Remedy: by the
    test that fails; run it again alone, then replace the GPU that it names."""
    _idle(look)
    level = look.expected("active.dcgm_level") or 1
    # It ends with a code of its own where a test fails: the answer stands in the JSON.
    ran = look.run("dcgmi", "diag", "-r", str(level), "-j", timeout_s=1_400)
    if ran.code is None:
        look.output("dcgmi", "diag", "-r", str(level), "-j")
    try:
        tests = list(_tests(json.loads(ran.output[ran.output.index("{") :]), ""))
    except (ValueError, RecursionError):
        raise Unknown(ran.problem or "dcgmi diag printed no JSON") from None
    look.said = f"{sum(status == 'pass' for _, _, status, _ in tests)} tests passed"
    for name, place, status, why in tests:
        if status in ("fail", "warn"):
            text = f"DCGM: {name} {'fails' if status == 'fail' else 'warns'}" + (
                f" on GPU {place}" if place else ""
            )
            evidence = [why] if why else []
            remedy = "run it again alone (dcgmi diag -r NAME); replace the GPU if it fails again"
            device = f"gpu{place}" if place else None
            if status == "fail":
                yield look.fail(text, device=device, evidence=evidence, remedy=remedy, key=name)
            else:
                yield look.warn(text, device=device, evidence=evidence, remedy=remedy, key=name)


def _tests(value: object, name: str) -> Iterator[tuple[str, str, str, str]]:
    """(test, GPU, status, why) wherever a status stands; the form of the JSON differs between versions of
    DCGM."""
    if isinstance(value, list):
        for item in value:
            yield from _tests(item, name)
    if not isinstance(value, dict):
        return
    known = str(value.get("name") or value.get("category") or name)
    status = value.get("status")
    if isinstance(status, str):
        place = value.get("gpu_id", value.get("gpu_ids", value.get("entity_id", "")))
        yield known, str(place), status.lower(), str(value.get("warnings") or value.get("info") or "")[:300]
    for item in value.values():
        if isinstance(item, dict | list):
            yield from _tests(item, known)


@check(
    "NVL-07",
    summary="an all-reduce inside the node is slow",
    subject="NVLink",
    severity="P1",
    step="A9",
    kind="slow_network",
    cost="active",
    period_s=86400,
    timeout_s=200,
)
def all_reduce(look: Look) -> Iterator[Problem]:
    """`all_reduce_perf` of nccl-tests over all GPUs of the node.

    Source: its average bus bandwidth at 8 GB. Threshold: 95 % of the template's `active.allreduce_gbs`, else
    of what is known of the model (H100: 460 GB/s). Remedy: look for a slow or dark NVLink; reset all GPUs
    together."""
    _idle(look)
    seen = gpus(look)
    if len(seen) < 2:
        raise Skipped("an all-reduce needs two GPUs")
    text = look.output("all_reduce_perf", "-b", "8G", "-e", "8G", "-g", str(len(seen)), timeout_s=180)
    found = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", text)
    if found is None:
        raise Unknown("all_reduce_perf printed no bandwidth")
    yield from _judged(
        look, "all-reduce GB/s", float(found[1]), _expected(look, seen), "an all-reduce over the node's GPUs"
    )


def _expected(look: Look, seen: tuple[Gpu, ...]) -> float | None:
    wanted = look.expected("active.allreduce_gbs")
    known = ALLREDUCE_GBS.get(seen[0].model.name) if len(seen) == 8 else None
    return float(wanted) if isinstance(wanted, int | float) else known


def _judged(
    look: Look, name: str, value: float, goal: float | None, what: str, device: str | None = None
) -> Iterator[Problem]:
    look.measured[f"{device} {name}" if device else name] = value
    unit = name.rpartition(" ")[2]
    look.said = f"{format_number(value)} {unit}"
    if goal is not None and value < SHARE * goal:
        yield look.fail(
            f"{what} reaches {format_number(value)} of {format_number(goal)} {unit}",
            device=device,
            remedy="look at the links and PCIe of this machine; measure again; keep it out until it is as fast as its peers",
        )


@check(
    "PCI-07",
    summary="copies between host and GPU are slow",
    subject="PCIe",
    severity="P1",
    step="A9",
    kind="slow_host",
    cost="active",
    period_s=86400,
    timeout_s=200,
)
def host_copies(look: Look) -> Iterator[Problem]:
    """`nvbandwidth`: copies from host memory to every GPU.

    Source: its row of host_to_device_memcpy_ce. Threshold: 48 GB/s on PCIe generation 5, 22 on generation 4
    (template `active.h2d_gbs`). Remedy: check the PCIe link and the NUMA node of that GPU."""
    _idle(look)
    seen = gpus(look)
    text = look.output("nvbandwidth", "-t", "host_to_device_memcpy_ce", timeout_s=180)
    row = re.search(r"^\s*0((?:\s+\d+\.\d+)+)\s*$", text.partition("bandwidth (GB/s)")[2], re.MULTILINE)
    values = [float(part) for part in row[1].split()] if row else []
    if len(values) != len(seen):
        raise Unknown(f"nvbandwidth printed {len(values)} values for {len(seen)} GPUs")
    for gpu, value in zip(seen, values, strict=True):
        wanted = look.expected("active.h2d_gbs")
        goal = float(wanted) if isinstance(wanted, int | float) else H2D_GBS.get(gpu.model.pcie or 0)
        # The known numbers are floors already, those of a template are what a healthy machine reaches.
        floor = goal if goal is None or isinstance(wanted, int | float) else goal / SHARE
        yield from _judged(
            look, "host to GPU GB/s", value, floor, f"{gpu.name}: copies from the host", gpu.place
        )
    look.said = f"{format_number(min(values))} to {format_number(max(values))} GB/s"


@check(
    "IB-14",
    summary="a port is slow under load",
    subject="network",
    severity="P1",
    step="A9",
    kind="slow_network",
    cost="active",
    period_s=86400,
    timeout_s=300,
    must=True,
)
def port_bandwidth(look: Look) -> Iterator[Problem]:
    """`ib_write_bw` of perftest between neighbouring ports of the node, in a ring, so that a slow port shows
    in two pairs.

    Source: its average bandwidth. Threshold: 95 % of the port's rate (380 Gb/s of 400). Where two pairs that
    share a port are slow, that port is named, else the pair. Remedy: check the PCIe link, the optic and the
    firmware of that port."""
    _idle(look)
    up = [port for port in ports(look) if port.up and not port.virtual and _DEVICE.fullmatch(port.device)]
    if len(up) < 2:
        raise Skipped("a loop needs two ports that are up")
    slow: dict[tuple[str, str], float] = {}
    for index, port in enumerate(up if len(up) > 2 else up[:1]):
        other = up[(index + 1) % len(up)]
        value = _write_bandwidth(look, port.device, other.device)
        look.measured[f"{port.name} to {other.name} Gb/s"] = value
        if value < SHARE * min(port.rate or 0.0, other.rate or 0.0):
            slow[port.name, other.name] = value
    look.said = f"{len(up)} ports measured"
    named = {name for pair in slow for name in pair if sum(name in other for other in slow) > 1}
    for pair, value in slow.items():
        shared = [name for name in pair if name in named]
        yield look.fail(
            f"{pair[0]} to {pair[1]}: {format_number(value)} Gb/s"
            + (f"; {shared[0]} is in two slow pairs" if shared else "; one of the two is slow"),
            device=shared[0] if shared else pair[0],
            link=pair,
            key=pair[1],
            confidence=0.9 if shared else 0.5,
            remedy="check the PCIe link, the optic and the firmware of that port",
        )


def _write_bandwidth(look: Look, server: str, client: str) -> float:
    """Average Gb/s. The server must listen before the client asks, hence the shell and its second of
    patience."""
    options = "-F --report_gbits -D 3 -s 1048576"
    script = f"ib_write_bw -d {server} {options} >/dev/null & sleep 1; ib_write_bw -d {client} {options} localhost; wait"
    ran = look.run("sh", "-c", f"command -v ib_write_bw >/dev/null || exit 127; {script}", timeout_s=30)
    if ran.code == 127:
        raise Skipped("ib_write_bw (perftest) is not installed")
    rows = re.findall(r"^\s*1048576\s+\d+\s+([\d.]+)\s+([\d.]+)", ran.output, re.MULTILINE)
    if not rows:
        raise Unknown(
            f"ib_write_bw from {client} to {server} printed no bandwidth: {ran.problem or ran.error[:100]}"
        )
    return float(rows[-1][1])


@check(
    "MEM-05",
    summary="the memory of the host is slow",
    subject="memory",
    severity="P2",
    step="A9",
    kind="slow_host",
    cost="active",
    period_s=86400,
    timeout_s=120,
)
def stream(look: Look) -> Iterator[Problem]:
    """The Triad of STREAM. Source: `stream` or `stream_c`. Threshold: 95 % of the template's
    `active.triad_gbs`; without one it is measured only. Remedy: look for a DIMM that was switched off or runs
    at a lower speed."""
    _idle(look)
    text = ""
    for program in ("stream", "stream_c"):
        ran = look.run(program, timeout_s=100)
        text = text or (ran.output if ran.ok else "")
    found = re.search(r"^Triad:\s+([\d.]+)", text, re.MULTILINE)
    if found is None:
        raise Skipped("STREAM is not installed")
    wanted = look.expected("active.triad_gbs")
    goal = float(wanted) if isinstance(wanted, int | float) else None
    yield from _judged(look, "Triad GB/s", float(found[1]) / 1_000, goal, "the memory (STREAM Triad)")
