"""Congestion and losses on the compute network: retransmissions, full buffers, flow control."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from megatrace.bot.checks import check
from megatrace.bot.counters import Growth
from megatrace.bot.look import Look, Problem, Skipped
from megatrace.bot.ports import far_end, ports, statistics

DISCARDS_PER_MINUTE = 1_000.0
PAUSED = 0.10
"""Share of the time: a port that is paused for a tenth of it slows the job by about as much."""
OUTLIER = 10.0
SEQUENCE_PER_HOUR = 1_000.0
_SEQUENCE = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")


@check(
    "IB-07",
    summary="packets of one port that are lost or late",
    subject="network",
    severity="P1",
    step="A3",
    kind="slow_network",
    must=True,
)
def losses(look: Look) -> Iterator[Problem]:
    """Retransmissions of every port, against the other ports of the node.

    A packet that is lost stalls its queue pair for the time-out, milliseconds to seconds. Losses on all ports
    at once come with a peer that died, or a fabric without flow control; on one port they have a local cause.
    Source: `hw_counters` out_of_sequence, packet_seq_err, local_ack_timeout_err, rnr_nak_retry_err.
    Threshold: ten times the median of the other ports and 1,000 an hour (time-outs: 10 an hour). Remedy:
    check flow control (PFC, ECN) and the path of that port."""
    grown: dict[str, dict[str, float]] = {}
    every = {port.name: port for port in ports(look)}
    for port in every.values():
        for name in _SEQUENCE:
            value = port.counters.get(name)
            growth = None if value is None else look.grown(f"port.{port.name}.{name}", value, 3600)
            if growth is not None:
                grown.setdefault(name, {})[port.name] = growth.amount
    for name, amounts in grown.items():
        floor = 10.0 if "timeout" in name else SEQUENCE_PER_HOUR
        for key, amount in amounts.items():
            others = [value for other, value in amounts.items() if other != key]
            peers = median(others) if others else 0.0
            if amount > floor and amount > OUTLIER * peers:
                far = far_end(look, every[key])
                yield look.fail(
                    f"{key}: {name} grew by {amount:,.0f}, by {peers:,.0f} on the other ports of the node",
                    device=key,
                    link=(key, far),
                    evidence=[f"its cable leads to {far}"] if far else (),
                    remedy="check PFC and ECN of this port and its switch port, and the errors of the link",
                    key=name,
                )


@check(
    "IB-08",
    summary="a port that drops packets because its buffers are full",
    subject="network",
    severity="P2",
    step="A0",
    kind="slow_network",
    must=True,
)
def discards(look: Look) -> Iterator[Problem]:
    """Packets that a port threw away. Source: `hw_counters/out_of_buffer`, `rx_discards_phy` of `ethtool -S`.

    Full buffers mean a host that does not take packets in time (PCIe, memory, ring size) or flow control that
    does not work. Threshold: 1,000 a minute, because bursts of some hundred are seen when jobs start. Remedy:
    check ring sizes and PFC."""
    for port in ports(look):
        found = {"out_of_buffer": port.counters.get("out_of_buffer")}
        for interface in port.interfaces:
            found[f"rx_discards_phy of {interface}"] = statistics(look, interface).get("rx_discards_phy")
        for name, value in found.items():
            growth = None if value is None else look.grown(f"port.{port.name}.{name}", value, 60)
            limit = look.limit("per_minute", DISCARDS_PER_MINUTE)
            if growth is not None and _burst(growth, limit):
                yield look.warn(
                    f"{port.name}: {name} grows by {growth.per_hour / 60:,.0f} a minute",
                    device=port.name,
                    remedy="check ring sizes (ethtool -g) and priority flow control of the port and its switch port",
                    key=name,
                )


def _burst(growth: Growth, limit: float) -> bool:
    return growth.seconds > 0 and growth.amount > limit * max(growth.seconds / 60, 1)


@check(
    "IB-09",
    summary="a port that is paused by its switch for much of the time, or storms it with pauses",
    subject="network",
    severity="P1",
    step="A3",
    kind="slow_network",
    must=True,
)
def pauses(look: Look) -> Iterator[Problem]:
    """Priority flow control on RoCE ports.

    A receiver that is slow pauses its switch, that pauses the senders, and the whole fabric stands: the
    culprit is the node that *sends* pauses. Source: `rx_prio*_pause_duration`, `tx_prio*_pause_duration`
    (microseconds) and `tx_pause_storm_*` of `ethtool -S`. Threshold: paused for 10 % of the time; any storm
    that the card itself declares. Remedy: find the slow receiver (tx pauses), its PCIe link and memory."""
    looked = 0
    for port in ports(look):
        for interface in port.interfaces if port.ethernet else ():
            counted = statistics(look, interface)
            looked += bool(counted)
            for name, value in counted.items():
                storm = name.startswith("tx_pause_storm") and "error" in name
                if not storm and not name.endswith("pause_duration"):
                    continue
                growth = look.grown(f"port.{port.name}.{name}", value)
                if growth is None or growth.seconds <= 0 or growth.amount <= 0:
                    continue
                share = growth.amount / 1e6 / growth.seconds
                if storm or share > look.limit("share", PAUSED):
                    sends = name.startswith("tx")
                    far = far_end(look, port)
                    yield look.fail(
                        f"{port.name} ({interface}) "
                        + (f"declares a pause storm ({name} {growth.amount:.0f})" if storm else
                           f"{'pauses its switch' if sends else 'is paused by its switch'} for {min(share, 1):.0%} of the time ({name})"),
                        device=port.name,
                        link=(port.name, far),
                        evidence=["this node is the slow receiver: it sends the pauses"] if sends else
                        ["the slow receiver is elsewhere: look which node sends pauses"],
                        remedy="check PCIe width and speed of this card, memory and IOMMU of this node" if sends else
                        "look for the node whose tx_prio*_pause grows",
                        key=name,
                    )  # fmt: skip
    if not looked:
        raise Skipped("no RoCE port whose pauses are counted (ethtool)")
