"""Time: whether the machine's clock is right, and which clock the kernel uses."""

from __future__ import annotations

from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.bot.numbers import number
from megatrace.model.system import Why
from megatrace.units import NS_PER_S, format_duration

OFFSET_S = 0.1
LONG_S = 600.0
CHRONY = ("chronyc", "-c", "tracking")
NTPQ = ("ntpq", "-c", "rv")
TIMEDATE = ("timedatectl", "show", "--property=NTPSynchronized")


@check(
    "TIM-01",
    summary="a clock that is wrong or not synchronised",
    subject="clock",
    severity="P2",
    step="A1",
    kind="configuration",
    period_s=60,
    must=True,
)
def synchronised(look: Look) -> Iterator[Problem]:
    """The offset of the clock, and whether anything keeps it right.

    Logs and recordings of two nodes can only be joined by their times; certificates and leases fail from
    seconds on. Source: `chronyc tracking`, `ntpq`, `timedatectl`. Threshold: 100 ms; not synchronised for 10
    min (at once where the daemon itself says that it never was), because a daemon needs some minutes after
    boot. Remedy: check the servers; `chronyc makestep` on a node without a job."""
    offset, synced, source = _state(look)
    up = look.number("/proc/uptime") or LONG_S
    look.said = (
        f"{source}: {format_duration(round(abs(offset) * NS_PER_S))} off"
        if offset is not None
        else f"{source}: synchronised"
    )
    seconds = look.lasting("clock.unsynchronised", not synced)
    if not synced and (seconds >= LONG_S or (seconds == 0 and up > 2 * LONG_S)):
        yield look.warn(
            "the clock is not synchronised",
            evidence=[f"{source} says so"],
            remedy="chronyc sources -v: whether the servers answer; start the daemon",
            key="sync",
        )
    if offset is not None and abs(offset) > look.limit("seconds", OFFSET_S):
        yield look.warn(
            f"the clock is {format_duration(round(abs(offset) * NS_PER_S))} {'slow' if offset > 0 else 'fast'}",
            evidence=[f"{source} says so"],
            remedy="chronyc makestep while the node is empty; check the servers",
            key="offset",
        )


def _state(look: Look) -> tuple[float | None, bool, str]:
    """(offset in seconds, whether it is synchronised, who says so)."""
    ran = look.run(*CHRONY)
    parts = ran.output.strip().split(",") if ran.ok else []
    if len(parts) >= 14:
        # Reference id, name, stratum, reference time, offset of the system clock, …, leap status.
        synced = parts[13] in ("Normal", "Insert second", "Delete second") and parts[0] not in (
            "00000000",
            "7F7F0101",
        )
        return number(parts[4]), synced, "chronyd"
    ran = look.run(*NTPQ)
    if ran.ok and "offset=" in ran.output:
        text = ran.output.partition("offset=")[2].split(",")[0]
        offset = number(text)
        return (
            None if offset is None else offset / 1e3,
            "leap_alarm" not in ran.output and "sync_unspec" not in ran.output,
            "ntpd",
        )
    ran = look.run(*TIMEDATE)
    if ran.ok and "NTPSynchronized=" in ran.output:
        return None, "NTPSynchronized=yes" in ran.output, "systemd-timesyncd"
    if ran.why is Why.ABSENT:
        raise Skipped("no chronyd, ntpd or systemd to ask")
    raise Skipped("nobody here can say whether the clock is right (a container, or no time daemon)")


@check(
    "TIM-02",
    summary="a slow clock source",
    subject="clock",
    severity="P2",
    step="A5",
    kind="slow_host",
    period_s=3600,
    observe=True,
)
def source(look: Look) -> Iterator[Problem]:
    """The clock that the kernel reads for every time stamp.

    The kernel gives the TSC up when a processor's is out of step, and then reads a chip: every time stamp
    costs microseconds instead of nanoseconds, and a host that enqueues kernels is slow. Source:
    `/sys/devices/system/clocksource`. Threshold: hpet or acpi_pm. Clocks of hypervisors are fast and none.
    Remedy: reboot; update the firmware if it comes back."""
    now = look.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if now is None:
        raise Skipped("the kernel does not say which clock it uses")
    look.said = now
    if now in ("hpet", "acpi_pm", "jiffies", "refined-jiffies"):
        yield look.warn(
            f"the kernel reads time from {now} instead of the TSC: every time stamp is slow",
            evidence=[
                f"available: {look.text('/sys/devices/system/clocksource/clocksource0/available_clocksource') or 'not told'}"
            ],
            remedy="reboot at the end of the job; update the firmware if the TSC is given up again",
        )
