"""Processors of the host: their number, how they are clocked, what the kernel says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem, Skipped

GOVERNORS = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"


@check(
    "CPU-04",
    summary="processors that are not clocked for performance",
    subject="CPU",
    severity="P2",
    step="A1",
    kind="configuration",
    period_s=3600,
)
def governor(look: Look) -> Iterator[Problem]:
    """The frequency governor of every processor.

    A rank's host thread issues kernels one by one; a processor that saves power issues them later, and its
    whole job waits. Source: `cpufreq/scaling_governor`. Threshold: any processor that is not on `performance`
    (`schedutil` and the drivers of clouds without cpufreq are left alone: no governor, no finding). Remedy:
    `cpupower frequency-set -g performance`, and in the boot configuration."""
    found = Counter(look.text(path) or "" for path in look.system.glob(GOVERNORS))
    if not found:
        raise Skipped("no processor has a frequency governor (virtual machine, or firmware rules)")
    slow = {name: count for name, count in found.items() if name in ("powersave", "ondemand", "conservative")}
    driver = look.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver") or ""
    if driver == "intel_pstate":
        # Its powersave is a dynamic governor; only the preference for energy makes it slow.
        slow.pop("powersave", None)
    look.said = ", ".join(f"{count} on {name}" for name, count in found.items())
    if slow:
        said = ", ".join(f"{count} of {sum(found.values())} on {name}" for name, count in slow.items())
        yield look.warn(
            f"processors are clocked to save power: {said}",
            remedy="cpupower frequency-set -g performance, and in the boot configuration",
        )
