"""The solo run: a GPU that a diagnosis suspects is tried without the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from megatrace.bot.checks import check
from megatrace.bot.gpus import Gpu, gpus
from megatrace.bot.kernel_log import kernel_facts
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.bot.solo import job as solo_job
from megatrace.model.finding import Kind, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.model.system import Ran, Why
from megatrace.units import NS_PER_S

SECONDS = 60.0
LIMIT_S = 240.0
_APPS = ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid,process_name", "--format=csv,noheader")
_STAGES = {
    "start": "while it was started",
    "memory": "while its memory was written and read back",
    "products": "in matrix products",
    "collectives": "in collectives of one rank",
}


@check(
    "SOLO-01",
    summary="a suspected GPU hangs, errs or miscomputes alone",
    subject="GPU",
    severity="P0",
    step="A3",
    cost="intrusive",
    kind="hang_device",
    timeout_s=260,
    must=True,
    hang="the suspected GPU",
)
def alone(look: Look) -> Iterator[Problem]:
    """A bounded job on one GPU: most of its memory written and read back, matrix products compared with each
    other, collectives of one rank.

    A diagnosis names who stood; whether the GPU is why, it cannot always tell. A GPU that hangs, errs or
    miscomputes without any other rank is sick. Runs only where asked for (`megatrace inspect --suspect GPU`),
    only on a GPU that nobody uses, with a Python that has PyTorch (`--solo-python`). Source: its own program,
    the kernel log. Threshold: no step for 30 s (none takes a second on a GPU that works), one word of memory
    or one product that differs, any CUDA or NCCL error, any Xid of this GPU meanwhile. A run that passes
    refutes a lasting defect, not one that comes once a day. Remedy: isolate the node; the kernel log and
    `dcgmi diag -r 3` next."""
    gpu = _suspect(look)
    _unused(look, gpu)
    python = str(look.expected("suspect.python") or "python3")
    seconds = float(str(look.expected("suspect.seconds") or SECONDS))
    begun = look.system.now()
    program = str(Path(solo_job.__file__).resolve())
    ran = look.run(python, program, "--gpu", gpu.uuid, "--seconds", f"{seconds:g}", timeout_s=LIMIT_S)
    steps = _steps(ran)
    yield from _problems(look, gpu, ran, steps, python)
    meanwhile, read = _xids(look, gpu, begun)
    for fact in meanwhile:
        yield look.fail(
            f"{gpu.name}: Xid {fact.code} while it ran alone",
            device=gpu.place,
            kind=Kind.HARDWARE,
            evidence=[fact.text[:200]],
            key="xid",
        )
    rate = next((step["tflops"] for step in reversed(steps) if "tflops" in step), None)
    if isinstance(rate, int | float):
        look.measured["solo.tflops"] = float(rate)
    look.said = (
        f"{gpu.name} ran alone for {ran.seconds:.0f} s without a hang, an error or a wrong result"
        + (f", {rate} TFLOP/s" if rate is not None else "")
        + f": a lasting defect is refuted{'' if read else ' (the kernel log could not be read)'}"
    )


def _suspect(look: Look) -> Gpu:
    """The GPU that was named by number, PCI address, UUID or serial number."""
    name = str(look.expected("suspect.gpu") or "")
    if not name:
        raise Skipped("nobody is suspected (megatrace inspect --suspect GPU)")
    try:
        every = gpus(look)
    except Skipped as none:
        raise Unknown(str(none)) from None
    for gpu in every:
        if name.lower() in (str(gpu.index), gpu.place, gpu.place[:-2], gpu.uuid.lower(), gpu.serial.lower()):
            return gpu
    raise Unknown(f"there is no GPU {name} here; there is {', '.join(gpu.name for gpu in every)}")


def _unused(look: Look, gpu: Gpu) -> None:
    for line in look.output(*_APPS).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 3 and cells[1] == gpu.uuid:
            raise Unknown(f"{gpu.name} is in use by {cells[2]} (pid {cells[0]}): drain the node first")


def _xids(look: Look, gpu: Gpu, begun: int) -> tuple[list[LogFact], bool]:
    """(Xids of the GPU since then, whether the kernel log could be read)."""
    try:
        facts = kernel_facts(look)
    except (Skipped, Unknown):
        return [], False
    mine = [fact for fact in facts if fact.device and gpu.place.startswith(fact.device)]
    since = begun - NS_PER_S
    return [fact for fact in mine if fact.kind is FactKind.XID and (fact.time or 0) >= since], True


def _steps(ran: Ran) -> list[dict[str, object]]:
    found = []
    for line in ran.output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _problems(
    look: Look, gpu: Gpu, ran: Ran, steps: list[dict[str, object]], python: str
) -> Iterator[Problem]:
    """What the run shows. Raises Unknown where it shows nothing of the GPU."""
    last = steps[-1] if steps else {}
    where = _STAGES.get(str(last.get("stalled") or last.get("at") or last.get("stage") or "start"), "")
    evidence = [f"last step: {json.dumps(last)}"] if last else []
    if ran.why is Why.ABSENT:
        raise Unknown(f"{python} is not installed: name a Python that has PyTorch (--solo-python)")
    if "missing" in last:
        raise Unknown(f"{python}: {last['missing']}: name a Python that has PyTorch (--solo-python)")
    if ran.why is Why.HUNG or ran.code == solo_job.STALLED:
        yield look.fail(
            f"{gpu.name} hung alone {where}: no step for {solo_job.STALL_S:.0f} s, without any other rank",
            device=gpu.place,
            evidence=evidence,
            key="hang",
        )
    elif ran.code == solo_job.BUSY:
        raise Unknown(f"{gpu.name} has too little free memory: {last.get('error', '')}"[:300])
    elif ran.code == solo_job.FAILED:
        yield look.fail(
            f"{gpu.name} failed alone {where}: {last.get('error', '')}"[:300],
            device=gpu.place,
            kind=Kind.HARDWARE,
            evidence=evidence,
            key="error",
        )
    elif ran.code == solo_job.WRONG:
        yield look.fail(
            f"{gpu.name} miscomputes alone: {last.get('wrong')} results differ from what they must be",
            device=gpu.place,
            kind=Kind.HARDWARE,
            severity=Severity.P0,
            evidence=evidence,
            key="wrong",
        )
    elif ran.code != 0 or not last.get("done"):
        yield look.fail(
            f"the job on {gpu.name} ended with {ran.code} {where}",
            device=gpu.place,
            kind=Kind.HARDWARE,
            severity=Severity.P1,
            evidence=[*evidence, ran.error[-300:]],
            key="died",
        )
