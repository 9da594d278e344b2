"""GPU errors that the driver reports by number: Xid of GPUs, SXid of NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megatrace.analysis.evidence_claim import Claim
from megatrace.analysis.evidence_gpu import judge_gpus
from megatrace.analysis.evidence_switches import judge_driver
from megatrace.bot.checks import check
from megatrace.bot.fabric import fabric_facts
from megatrace.bot.gpus import Gpu, on_bus
from megatrace.bot.kernel_log import gpu_events, kernel_facts, of, problems
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.model.check import Step
from megatrace.model.series import FactKind
from megatrace.model.xid import Action

STEPS = {
    Action.OBSERVE: Step.OBSERVE,
    Action.RESTART_APP: Step.RESTART_JOB,
    Action.RESET_LATER: Step.RESET_GPU,
    Action.CHECK_SYSTEM: Step.MEND,
    Action.RESET: Step.RESET_GPU,
    Action.REBOOT: Step.REBOOT,
    Action.POWER_CYCLE: Step.POWER_CYCLE,
    Action.REPLACE: Step.REPLACE,
}
"""What the table of Xids asks for, as a step of the ladder."""


def _step(claim: Claim) -> Step:
    return STEPS[claim.action] if claim.action is not None else Step.OBSERVE


@check(
    "GPU-05",
    summary="Xid: an error that the GPU's driver reports by number",
    subject="GPU",
    severity="P0",
    step="A4",
    must=True,
)
def xid(look: Look) -> Iterator[Problem]:
    """Every Xid of the last 24 hours in the kernel log, one finding per fault.

    The driver reports one fault several times: on the GPU that has it, on peers behind a link, and when it
    cleans up. Codes are folded into one incident on one GPU within an hour, and across GPUs within a minute
    only where the table says that one brings the other about: a second dead GPU is a second finding. What to
    do follows NVIDIA's catalogue; where the driver itself names a recovery action (Xid 154), that wins. Codes
    of an application that crashed (13, 31) are notes: they say nothing against the machine.

    Source: the kernel log first, because DCGM keeps only the last Xid and never forgets it. Threshold: none,
    each code has its own severity, because one event of its kind is enough. Remedy: as the finding says."""
    try:
        facts = kernel_facts(look)
    except (Skipped, Unknown):
        events = gpu_events(look)
        if events is None:
            raise
        facts = events
    found = of(facts, FactKind.XID)
    if not found and not on_bus(look):
        raise Skipped("no NVIDIA GPU in this machine")
    claims = judge_gpus(facts) if found else []
    names = {place: f"gpu{index} ({place})" for index, place in enumerate(on_bus(look))}
    # The driver may not answer now: its numbers are used only if another check has asked for them.
    asked = look.shared.get("gpus")
    names |= (
        {gpu.place: gpu.name for gpu in asked if isinstance(gpu, Gpu)} if isinstance(asked, tuple) else {}
    )
    look.said = "no Xid within a day"
    for problem in problems(look, claims, _step):
        device = next((item.device for item in problem.finding.culprits.devices), None)
        yield _named(problem, device, names)


def _named(problem: Problem, device: str | None, names: dict[str, str]) -> Problem:
    """With the GPU's index, which the kernel does not know, in the sentence."""
    name = names.get(device or "")
    if name is None or device is None:
        return problem
    short = device.removesuffix(".0")
    summary = problem.finding.summary.replace(f"GPU {short}", name, 1)
    return replace(problem, finding=replace(problem.finding, summary=summary))


@check(
    "NVL-06",
    summary="SXid: an error that an NVSwitch reports by number",
    subject="NVSwitch",
    severity="P0",
    step="A5",
    must=True,
)
def sxid(look: Look) -> Iterator[Problem]:
    """Errors of NVSwitches of the last 24 hours in the kernel log and the fabric manager's.

    A fatal one stops the NVLink traffic of all GPUs behind the switch; a non-fatal one is corrected, and
    counts only when it repeats. Source: `nvidia-nvswitch…: SXid` lines. Threshold: fatal is P0; any non-fatal
    one is a note, because single ones occur on healthy fabrics. Remedy: reset all GPUs together, or reboot
    the node."""
    found = of(fabric_facts(look), FactKind.SXID)
    try:
        found = of(kernel_facts(look), FactKind.SXID) + found
    except (Skipped, Unknown):
        if not found:
            raise
    look.said = "no SXid within a day"
    yield from problems(look, judge_driver(found))
