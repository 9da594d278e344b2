"""Whether the GPUs run as fast as they can: heat, power, clocks, and settings that cost speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.gpus import Gpu, gpus
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.model.finding import Kind, Severity

NEAR_C = 5.0
"""Degrees below the slowdown limit: a GPU so close reaches it with the next hot batch of the job."""
HOT_S = 120.0
HBM_C = 95.0
LOW_CLOCK = 0.80
"""Share of the maximum SM clock: power capping alone takes a training GPU down to 85 % of it."""
BUSY = 80.0
LOW_S = 300.0
THROTTLED = 0.05
"""Share of the time: a GPU that is slowed for a twentieth of it slows its whole job by as much."""
_COOLING = "check fans, coolant and inlet temperature of the node, dust, and the seat of the cooler"
_HARD = ("hw thermal slowdown", "hw power brake slowdown", "hw slowdown")
_COUNTERS = (
    ("heat", ("counters hw therm slowdown", "counters/hw thermal slowdown")),
    ("the power brake", ("counters hw power brake", "counters/hw power braking")),
)


@check(
    "GPU-13",
    summary="a GPU near its slowdown temperature",
    subject="GPU",
    severity="P2",
    step="A0",
    timeout_s=20,
    must=True,
)
def temperature(look: Look) -> Iterator[Problem]:
    """The temperature of the chip against the limit at which it slows down.

    Hopper and later report the margin left (T.Limit), older ones degrees and a limit. Source: `Temperature`
    of `nvidia-smi -q`. Threshold: within 5 °C of the slowdown limit for 2 min, because short peaks are normal
    under load; at the limit it is P1 at once. Remedy: check fans, coolant and inlet temperature."""
    hottest = -300.0
    for gpu in gpus(look):
        margin = _margin(gpu)
        if margin is None:
            continue
        hottest = max(hottest, -margin)
        seconds = look.lasting(f"gpu.{gpu.place}.hot", margin <= NEAR_C)
        now = gpu.number("temperature/gpu current temp", "temperature/gpu temp")
        said = f"{now:.0f} °C, " if now is not None else ""
        if margin <= 0:
            yield look.fail(
                f"{gpu.name}: {said}at its slowdown temperature",
                severity=Severity.P1,
                device=gpu.place,
                remedy=_COOLING,
            )
        elif seconds >= HOT_S:
            yield look.warn(
                f"{gpu.name}: {said}{margin:.0f} °C below its slowdown temperature for {seconds / 60:.0f} min",
                device=gpu.place,
                remedy=_COOLING,
            )
    if hottest == -300.0:
        raise Skipped("no GPU reports how far it is from its slowdown temperature")
    look.said = f"at least {-hottest:.0f} °C below slowdown"


def _margin(gpu: Gpu) -> float | None:
    """Degrees left to the slowdown limit."""
    left = gpu.number("temperature/gpu t limit temp", "temperature/gpu temp tlimit")
    if left is not None:
        slow = gpu.number(
            "temperature/gpu slowdown t limit temp", "temperature/gpu temp slow tlimit threshold"
        )
        return left - (slow or 0.0)
    now = gpu.number("temperature/gpu current temp", "temperature/gpu temp")
    limit = gpu.number("temperature/gpu slowdown temp", "temperature/gpu temp slow threshold")
    return None if now is None or limit is None else limit - now


@check(
    "GPU-14",
    summary="a GPU's memory is too hot",
    subject="GPU",
    severity="P2",
    step="A0",
    timeout_s=20,
    observe=True,
)
def memory_temperature(look: Look) -> Iterator[Problem]:
    """The temperature of the HBM. Source: `Memory Current Temp` of `nvidia-smi -q`. Threshold: 95 °C, because
    HBM is rated to 105 °C and refreshes twice as often from 85 °C on. Remedy: check the cooling of the node.
    """
    for gpu in gpus(look):
        now = gpu.number("temperature/memory current temp", "temperature/memory temp")
        if now is not None and HBM_C <= look.limit("celsius", HBM_C) <= now < 200:
            yield look.warn(
                f"{gpu.name}: its memory has {now:.0f} °C",
                device=gpu.place,
                remedy="check fans, coolant and inlet temperature of the node",
            )


@check(
    "GPU-15",
    summary="a GPU that its hardware slows down: heat or the power brake",
    subject="GPU",
    severity="P1",
    step="A3",
    kind="slow_compute",
    timeout_s=20,
    must=True,
)
def slowdown(look: Look) -> Iterator[Problem]:
    """How much of the time the hardware held the clock down.

    One throttled GPU slows a whole job, for all others wait for it. The power brake is a signal of the
    chassis: a power supply is overloaded or has failed. Source: `Clocks Event Reasons` and their counters in
    `nvidia-smi -q`. Threshold: 5 % of the time since the last look (a job loses as much), or active at two
    looks a minute apart; once is a warning. Remedy: check cooling, or the power supplies."""
    for gpu in gpus(look):
        active = [name for name in gpu.fact.word("throttle").split(", ") if name in _HARD]
        shares = list(_shares(look, gpu))
        seconds = look.lasting(f"gpu.{gpu.place}.slowdown", bool(active))
        evidence = [
            f"slowed by {cause} for {share:.0%} of the time since the last look" for cause, share in shares
        ]
        evidence += [f"active now: {', '.join(active)}"] if active else []
        limit = look.limit("share", THROTTLED)
        if seconds >= 60 or any(share >= limit for _, share in shares):
            heat = any("thermal" in name for name in active) or any(cause == "heat" for cause, _ in shares)
            yield look.fail(
                f"{gpu.name}: slowed by its hardware, {'heat' if heat else 'the power brake'}",
                device=gpu.place,
                evidence=evidence,
                remedy="check fans, coolant and inlet temperature"
                if heat
                else "check the power supplies (one may have failed) and the power budget of the rack",
            )
        elif active:
            yield look.warn(
                f"{gpu.name}: slowed by its hardware at this moment: {', '.join(active)}",
                device=gpu.place,
                evidence=evidence,
                remedy="look again in a minute; then check cooling and power supplies",
            )


def _shares(look: Look, gpu: Gpu) -> Iterator[tuple[str, float]]:
    """(cause, share of the time) since the last look, where the driver counts it."""
    for cause, names in _COUNTERS:
        micros = gpu.number(*names)
        growth = None if micros is None else look.grown(f"gpu.{gpu.place}.throttled.{cause}", micros)
        if growth is not None and growth.seconds > 0 and growth.amount > 0:
            yield cause, min(1.0, growth.amount / 1e6 / growth.seconds)


@check(
    "GPU-17",
    summary="a busy GPU with a low clock",
    subject="GPU",
    severity="P1",
    step="A3",
    kind="slow_compute",
    timeout_s=20,
    must=True,
)
def low_clock(look: Look) -> Iterator[Problem]:
    """The SM clock of GPUs that are busy.

    A GPU that is stuck at a low clock (after a power event, a bad setting) computes right and slow; nothing
    else is wrong with it, so only its clock tells. Source: `Clocks / SM`, `Max Clocks / SM`, `Utilization` of
    `nvidia-smi -q`. Threshold: below 80 % of the maximum (template `limits.GPU-17.share`) at more than 80 %
    utilisation for 5 min, without being capped by power. Remedy: reset the GPU's clocks (`nvidia-smi -rgc`),
    then the GPU."""
    share = look.limit("share", LOW_CLOCK)
    for gpu in gpus(look):
        now, most = (
            gpu.number("clocks/sm", "clocks/sm clock"),
            gpu.number("max clocks/sm", "max clocks/sm clock"),
        )
        busy = gpu.number("utilization/gpu", "utilization/gpu util") or 0.0
        if now is None or not most:
            continue
        look.measured[f"{gpu.place} SM clock MHz"] = now
        capped = "sw power cap" in gpu.fact.word("throttle")
        seconds = look.lasting(f"gpu.{gpu.place}.slow", busy > BUSY and now < share * most and not capped)
        if seconds >= LOW_S:
            yield look.fail(
                f"{gpu.name}: {now:.0f} of {most:.0f} MHz at {busy:.0f} % utilisation for {seconds / 60:.0f} min",
                device=gpu.place,
                evidence=[f"active reasons: {gpu.fact.word('throttle') or 'none'}"],
                remedy="nvidia-smi -rgc (reset locked clocks); reset the GPU at the end of the job",
            )


@check(
    "GPU-18",
    summary="a power limit below what the GPU may use",
    subject="GPU",
    severity="P2",
    step="A1",
    kind="configuration",
    period_s=3600,
    timeout_s=20,
)
def power_limit(look: Look) -> Iterator[Problem]:
    """The power limit against the template's, or the board's default, and among the GPUs of the node.

    A GPU with a lower limit than its peers is the slowest of every job. Source: `Current Power Limit` and
    `Default Power Limit` of `nvidia-smi -q`, template key `gpu.power_limit_w`. Threshold: 1 % below. Remedy:
    `nvidia-smi -pl`."""
    wanted = look.expected("gpu.power_limit_w")
    for gpu in gpus(look):
        now = gpu.fact.number("power_limit")
        usual = gpu.number("default power limit")
        goal = float(wanted) if isinstance(wanted, int | float) else usual
        if now is not None and goal and now < 0.99 * goal:
            yield look.warn(
                f"{gpu.name}: limited to {now:.0f} W of {goal:.0f} W",
                device=gpu.place,
                remedy=f"nvidia-smi -i {gpu.place} -pl {goal:.0f}",
            )


@check(
    "GPU-19",
    summary="persistence mode is off",
    subject="GPU",
    severity="P2",
    step="A1",
    kind="configuration",
    period_s=3600,
    timeout_s=20,
    must=True,
)
def persistence(look: Look) -> Iterator[Problem]:
    """Whether the driver stays loaded while nobody uses a GPU.

    Without it every first CUDA call waits seconds for the driver to start the GPU, and settings are lost in
    between. Source: `Persistence Mode` of `nvidia-smi -q`. Threshold: Disabled on a data-centre GPU. Remedy:
    start nvidia-persistenced, or `nvidia-smi -pm 1`."""
    seen = gpus(look)
    modes = Counter(gpu.get("persistence mode") for gpu in seen if not _desktop(gpu))
    look.said = f"on for {modes['Enabled']} GPUs"
    off = [gpu for gpu in seen if gpu.get("persistence mode") == "Disabled" and not _desktop(gpu)]
    if off:
        who = "all GPUs" if len(off) == len(seen) else ", ".join(gpu.name for gpu in off)
        yield look.warn(
            f"persistence mode is off on {who}",
            device=off[0].place if len(off) == 1 else None,
            remedy="systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1)",
        )


def _desktop(gpu: Gpu) -> bool:
    return any(word in gpu.fact.word("product") for word in ("GeForce", "RTX", "Quadro", "TITAN"))


@check(
    "GPU-21",
    summary="MIG or compute mode differ from what jobs expect",
    subject="GPU",
    severity="P2",
    step="A1",
    kind="configuration",
    period_s=3600,
    timeout_s=20,
)
def modes(look: Look) -> Iterator[Problem]:
    """MIG and compute mode against the template, or among the GPUs of the node.

    A GPU that is split serves no training rank; one in exclusive mode refuses a second process. Source: `MIG
    Mode`, `Compute Mode` of `nvidia-smi -q`; template keys `gpu.mig_mode`, `gpu.compute_mode`. Threshold: any
    difference. Remedy: set it while the node is idle."""
    seen = gpus(look)
    for word, key, ends in (
        ("MIG mode", "gpu.mig_mode", ("mig mode/current", "mig mode/current mig")),
        ("compute mode", "gpu.compute_mode", ("compute mode",)),
    ):
        values = {gpu.place: gpu.get(*ends) for gpu in seen}
        usual = Counter(value for value in values.values() if value).most_common(1)
        wanted = str(look.expected(key) or (usual[0][0] if usual else ""))
        for gpu in seen:
            if values[gpu.place] and values[gpu.place] != wanted:
                yield look.warn(
                    f"{gpu.name}: {word} is {values[gpu.place]}, expected {wanted}",
                    device=gpu.place,
                    kind=Kind.CONFIGURATION,
                    key=word,
                    remedy="set it with nvidia-smi while the node is idle",
                )


@check(
    "GPU-24",
    summary="GPUs of one node with different firmware",
    subject="GPU",
    severity="P2",
    step="A7",
    kind="configuration",
    period_s=3600,
    timeout_s=20,
)
def vbios(look: Look) -> Iterator[Problem]:
    """VBIOS versions against the template, or among the GPUs of the node. Source: `VBIOS Version` of
    `nvidia-smi -q`, template key `gpu.vbios`. Threshold: any difference among GPUs of one model, because
    boards that were exchanged bring theirs along and are clocked differently. Remedy: firmware task."""
    seen = gpus(look)
    versions = Counter((gpu.fact.word("product"), gpu.get("vbios version")) for gpu in seen)
    wanted = look.expected("gpu.vbios")
    for gpu in seen:
        product, mine = gpu.fact.word("product"), gpu.get("vbios version")
        usual = max((item for item in versions if item[0] == product), key=lambda item: versions[item])[1]
        goal = str(wanted) if wanted else usual
        if mine and mine != goal:
            yield look.warn(
                f"{gpu.name}: VBIOS {mine}, expected {goal}",
                Severity.P3 if not wanted else Severity.P2,
                device=gpu.place,
                remedy="update the firmware at the next maintenance",
            )
