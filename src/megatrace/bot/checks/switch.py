"""A switch: ports that should be up, errors and drops on them, pauses that they ask for, its restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from megatrace.bot.checks import check
from megatrace.bot.look import Look, Problem
from megatrace.bot.switches import Port, Switch, switch
from megatrace.model.check import Step
from megatrace.model.finding import Severity

ERRORS_PER_HOUR = 100.0
"""Frames with errors: a clean 400 Gb/s link has none for days, a dirty connector thousands an hour."""
DISCARDS_PER_MINUTE = 1_000.0
"""Frames dropped for want of buffer on a fabric that should drop none."""
PAUSES_PER_MINUTE = 71_500.0
"""One pause frame stops at most 65,535 quanta of 512 bit times, 84 µs at 400 Gb/s: so many are 10 % of a
minute."""
RESTARTED_S = 3_600.0
"""A switch that started within the hour did so since somebody last looked."""


def _link(here: Switch, port: Port) -> tuple[str, str | None]:
    return f"{here.name}/{port.name}", port.peer


def _wanted(look: Look, here: Switch) -> dict[str, int | None]:
    """Ports that should be up, with the speed that each should have in Mb/s, None where nobody said."""
    named = look.expected("switch.ports")
    speed = look.expected("switch.speed_mbps")
    expected = int(speed) if isinstance(speed, int | float) else None
    if isinstance(named, list | tuple):
        return {str(name): expected for name in named}
    return {port.name: expected for port in here.ports if port.admin_up and port.peer is not None}


@check(
    "SW-01",
    summary="ports of a switch that are down or too slow",
    subject="switch",
    severity="P1",
    step="A3",
    scope="switch",
    must=True,
    period_s=60,
    timeout_s=90,
)
def port_status(look: Look) -> Iterator[Problem]:
    """The state and the speed of every port that should carry traffic.

    Source: ifOperStatus, ifHighSpeed and LLDP by SNMP. Threshold: a port that the template names
    (`switch.ports`), or one that was up at an earlier look, is not up; a port slower than the template says
    (`switch.speed_mbps`), else than most of the switch's ports that are up. Ports that nobody named and
    nobody has seen up are no finding: a switch has many empty cages. Remedy: cable and optics at both ends,
    which the finding names; the node at the other end shows the same as IB-01."""
    here = switch(look)
    wanted = _wanted(look, here)
    there = {port.name: port for port in here.ports}
    most = Counter(port.speed for port in here.ports if port.up and port.speed).most_common(1)
    usual = most[0][0] if most and most[0][1] > 1 else 0
    for port in here.ports:
        # 1 while it is up and 0 else: the counter falls when the port goes down after having been up.
        grown = look.grown(f"switch.{port.name}.up", float(port.up), window_s=86_400)
        fell = grown is not None and grown.reset
        if not port.up and (port.name in wanted or fell) and port.admin_up:
            peer = f" (cable to {port.peer})" if port.peer else ""
            yield look.fail(
                f"port {port.name} is down{peer}", device=port.name, link=_link(here, port),
                remedy="look at cable and optics at both ends",
            )  # fmt: skip
        slow = wanted.get(port.name) or usual
        if port.up and port.speed and slow and port.speed < slow and (port.peer or port.name in wanted):
            yield look.fail(
                f"port {port.name} runs at {port.speed / 1000:g} Gb/s, expected {slow / 1000:g}",
                device=port.name, link=_link(here, port), key="speed",
                remedy="clean or replace the optics; look at the lanes of the cable",
            )  # fmt: skip
    for name in sorted(set(wanted) - set(there)):
        yield look.fail(f"port {name} does not exist on this switch", device=name, key="missing")
    look.said = f"{sum(port.up for port in here.ports)} of {len(here.ports)} ports are up"


@check(
    "SW-02",
    summary="errors and drops on ports of a switch",
    subject="switch",
    severity="P2",
    step="A3",
    scope="switch",
    must=True,
    period_s=60,
    timeout_s=90,
)
def port_errors(look: Look) -> Iterator[Problem]:
    """Frames that arrived broken, and frames that were dropped, on every port that is up.

    Source: ifInErrors, ifInDiscards, ifOutDiscards by SNMP, by growth between looks. Threshold: 100 broken
    frames an hour, since a clean link has none for days; 1,000 dropped a minute, since a lossless fabric
    drops none. Remedy: broken frames: optics and cable of this port; drops: PFC and ECN on the way."""
    here = switch(look)
    dropped = 60 * look.limit("discards_per_minute", DISCARDS_PER_MINUTE)
    for port in here.ports:
        for what, value, limit, window in (
            ("frames with errors", port.in_errors, look.limit("errors_per_hour", ERRORS_PER_HOUR), 3600.0),
            ("dropped frames", port.in_discards, dropped, 600.0),
            ("dropped frames out", port.out_discards, dropped, 600.0),
        ):  # fmt: skip
            if value is None:
                continue
            grown = look.grown(f"switch.{port.name}.{what}", float(value), window)
            # Fewer than a tenth of an hour's worth within minutes is chance.
            if grown and grown.amount >= limit / 10 and grown.per_hour > limit:
                yield look.warn(
                    f"port {port.name}: {grown.amount:,.0f} {what} in {grown.seconds:,.0f} s",
                    device=port.name, link=_link(here, port), key=what,
                )  # fmt: skip
    look.said = f"{len(here.ports)} ports"


@check(
    "SW-03",
    summary="a port that keeps its neighbour paused",
    subject="switch",
    severity="P1",
    step="A0",
    scope="switch",
    must=True,
    period_s=60,
    timeout_s=90,
    kind="slow_network",
)
def pauses(look: Look) -> Iterator[Problem]:
    """Pause frames (PFC) that a port receives: who sends them is too slow to take what it is sent.

    Source: ieee8021PfcIndications of IEEE8021-PFC-MIB by SNMP, by growth. Threshold: 71,500 a minute, which
    at 400 Gb/s is up to 10 % of the time in pause. Remedy: look at the machine at the other end, which is the
    slow receiver; a storm spreads to ports that only share a queue with it. The configuration of PFC and ECN
    on the switch is not in public MIBs and is not compared here."""
    here = switch(look)
    known = [port for port in here.ports if port.pauses_received is not None]
    for port in known:
        grown = look.grown(f"switch.{port.name}.pauses", float(port.pauses_received or 0), 600.0)
        if (
            grown
            and grown.seconds >= 30
            and grown.per_hour / 60 > look.limit("per_minute", PAUSES_PER_MINUTE)
        ):
            yield look.fail(
                f"{port.peer or 'its neighbour'} tells port {port.name} to pause {grown.per_hour / 60:,.0f}"
                " times a minute", device=port.name, link=_link(here, port), remedy="look at the machine at the other end",
            )  # fmt: skip
    look.said = f"{len(known)} ports count pauses" if known else "this switch does not tell of pauses"


@check(
    "SW-05",
    summary="a switch that started anew",
    subject="switch",
    severity="P1",
    step="A0",
    scope="switch",
    period_s=60,
    timeout_s=90,
    observe=True,
)
def restarted(look: Look) -> Iterator[Problem]:
    """Whether the switch started within the last hour.

    Source: sysUpTime by SNMP. Threshold: under an hour, watched only, because maintenance does this too and
    is not known here. Remedy: ask who did; a switch that restarts by itself is replaced."""
    here = switch(look)
    look.said = f"up for {here.up_s / 3600:,.1f} h"
    if here.up_s < RESTARTED_S:
        yield look.warn(
            f"the switch started {here.up_s / 60:.0f} min ago", severity=Severity.P1, step=Step.OBSERVE
        )
