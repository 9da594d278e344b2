"""RDMA ports that were watched while the job ran: which went down, lost packets, or runs slower than the others.

Here growth is known, and so is what the other ports of the job did in the same time; a counter that grows
everywhere is weather, one that grows on one port is that port. Ports that were down all the time are not in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from megatrace.analysis.evidence_claim import Claim, Order, claim, listed, plural
from megatrace.model.finding import Culprits, Device, Kind, NextStep, Severity
from megatrace.model.series import FactKind, LogFact
from megatrace.units import NS_PER_S, format_count, format_duration

_LINK = (
    "symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "rx_icrc_encapsulated",
)  # fmt: skip
_LOSS = (
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err", "roce_adp_retrans",
    "roce_adp_retrans_to", "rx_write_requests_dropped", "port_xmit_discards", "duplicate_request",
)  # fmt: skip
LEAST = 10
"""Errors in a recording from which on a port is looked at: a cable within its specification (one bit error in
10^12 before correction) shows fewer in minutes."""
BEYOND = 10
"""Times what the other ports have in the middle: switches that drop under load do so on many ports at once."""
_CABLE = "Check cable, optic and switch port of it; drain the node if it goes on."


def judge_watched_ports(facts: Sequence[LogFact]) -> list[Claim]:
    """Ports that changed while they were watched, and queue pairs that failed."""
    ports = [fact for fact in facts if fact.kind is FactKind.PORT_STATE and fact.name == "watched"]
    pairs = [fact for fact in facts if fact.kind is FactKind.PORT_STATE and fact.name == "failed_queue_pair"]
    claims = [*_down(ports), *_errors(ports), *_slower(ports), *_failed(pairs)]
    if ports and not claims:
        text = (
            f"{plural(len(ports), 'RDMA port')} watched: none went down, none had more errors than the others"
        )
        claims.append(claim(Order.NOTE, Kind.HARDWARE, Severity.INFO, text, ports))
    return claims


def _name(port: LogFact) -> str:
    return f"{port.node} {port.device}"


def _who(port: LogFact) -> Culprits:
    return Culprits(devices=(Device(port.node, port.device),))


def _for(port: LogFact) -> str:
    return format_duration((port.number("seconds") or 0) * NS_PER_S)


def _down(ports: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for port in ports:
        downs = int(port.number("downs") or 0)
        dropped = int(port.number("grown link_downed") or 0)
        if not downs and not dropped:
            continue
        now = port.word("last_state") or "not known"
        times = max(downs, dropped)
        text = (
            f"port {_name(port)} went down {plural(times, 'time')} while the job ran; at the end it was {now}"
        )
        claims.append(
            claim(
                Order.HARDWARE,
                Kind.HARDWARE,
                Severity.P1,
                text,
                [port],
                evidence=[
                    f"watched for {_for(port)}: state {port.word('first_state')} at the beginning, {now} at the end"
                ]
                + ([f"link_downed grew by {dropped}"] if dropped else []),
                remedy=_CABLE,
                culprits=_who(port),
                confidence=0.95,
                steps=(
                    NextStep(
                        f"ssh {port.node} 'ibstat; dmesg | grep -i mlx5 | tail'",
                        "state and messages of the port",
                    ),
                ),
            )
        )
    return claims


def _errors(ports: Sequence[LogFact]) -> list[Claim]:
    claims = []
    for port in ports:
        bad = []
        for name in (*_LINK, *_LOSS):
            count = int(port.number(f"grown {name}") or 0)
            others = [int(other.number(f"grown {name}") or 0) for other in ports if other is not port]
            usual = median(others) if others else 0
            if count >= LEAST and count > BEYOND * usual:
                bad.append((name, count, usual))
        if not bad:
            continue
        said = listed(f"{name} +{format_count(count)}" for name, count, _ in bad)
        kind = "has errors on its link" if any(name in _LINK for name, _, _ in bad) else "loses packets"
        evidence = [
            f"{name} grew by {format_count(count)} in {_for(port)}, on the other ports by {usual:g} in the middle"
            for name, count, usual in bad
        ]
        claims.append(
            claim(
                Order.SPEED,
                Kind.SLOW_NETWORK,
                Severity.P2,
                f"port {_name(port)} {kind}: {said}",
                [port],
                evidence=evidence,
                remedy=_CABLE,
                culprits=_who(port),
                confidence=0.8 if len(ports) > 2 else 0.6,
            )
        )
    return claims


def _slower(ports: Sequence[LogFact]) -> list[Claim]:
    up = [port for port in ports if port.word("last_state") == "ACTIVE" and port.number("rate")]
    fastest = max((port.number("rate") or 0 for port in up), default=0)
    most = [port for port in up if port.number("rate") == fastest]
    claims = []
    for port in up:
        rate = port.number("rate") or 0
        if rate < fastest and len(most) > len(up) / 2:  # else the node has cards of two kinds
            text = f"port {_name(port)} runs at {rate:g} Gb/s, {len(most)} other ports at {fastest:g} Gb/s"
            claims.append(
                claim(
                    Order.SPEED,
                    Kind.SLOW_NETWORK,
                    Severity.P2,
                    text,
                    [port],
                    remedy=_CABLE,
                    culprits=_who(port),
                )
            )
    return claims


def _failed(pairs: Sequence[LogFact]) -> list[Claim]:
    by_device: dict[tuple[str | None, str | None], list[LogFact]] = {}
    for pair in pairs:
        by_device.setdefault((pair.node, pair.device), []).append(pair)
    claims = []
    for (node, device), failed in by_device.items():
        numbers = listed(f"{int(pair.number('number') or 0)}" for pair in failed[:4])
        pids = sorted({int(pair.number("pid") or 0) for pair in failed if pair.number("pid")})
        of = f" (process {listed(map(str, pids[:4]))})" if pids else ""
        text = f"{plural(len(failed), 'queue pair')} of {node} {device}{of} failed and carries nothing more: {numbers}"
        claims.append(
            claim(
                Order.TRANSPORT,
                Kind.HANG_NETWORK,
                Severity.P1,
                text,
                failed,
                evidence=[f"rdma shows state {failed[0].word('state')}"],
                remedy="Look at both ends: the port's state and counters, and whether the other process lives.",
                culprits=Culprits(devices=(Device(node, device),)),
                confidence=0.8,
            )
        )
    return claims
