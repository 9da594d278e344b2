"""The sentences of slow findings: what happened, who, where, since when, what it cost.

Kept together so that wording is consistent; the numbers come in, nothing is decided here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.costs import Costs
from megatrace.analysis.infer_layout import Resolved
from megatrace.analysis.member import Member
from megatrace.analysis.suspects import Cause, Suspect
from megatrace.analysis.work import WorkTable
from megatrace.model.finding import Evidence, Finding, Kind, Severity, Status
from megatrace.units import say_ranks

_VERB = {
    Kind.SLOW_COMPUTE: "computed",
    Kind.SLOW_HOST: "made their calls",
    Kind.SLOW_NETWORK: "exchanged data",
    Kind.SLOW_STORAGE: "came late to the first call of the iteration",
}

_REMEDY = {
    Kind.SLOW_COMPUTE: "check the GPU for throttling, other processes and ECC errors "
    "(nvidia-smi -q -d PERFORMANCE,ECC); drain the node if it comes back",
    Kind.SLOW_HOST: "check the node's processors: other load, cgroup limits, frequency governor, swapping",
    Kind.SLOW_NETWORK: "check the path's NICs, cables and switch ports for errors and a reduced link speed",
    Kind.SLOW_STORAGE: "check the storage that feeds the data loader and takes the checkpoints",
    Kind.SLOW_UNIFORM: "compare clocks, driver, NCCL environment and storage with a run that was fast",
    Kind.IMBALANCE: "rebalance: layers over the stages, or tokens over the micro-batches",
    Kind.JITTER: "look for noise on all hosts: garbage collection, daemons, frequency scaling",
}


def remedy(kind: Kind) -> str:
    """What to do first."""
    return _REMEDY.get(kind, "")


def places(resolved: Resolved, ranks: tuple[int, ...]) -> str:
    """ "rank 2 (stage 1, TP 0)", with node and GPU where known; a set of ranks for several, with their node
    where they are all that it has."""
    if len(ranks) != 1:
        node = _whole_node(resolved, ranks)
        return f"{node} ({say_ranks(ranks)})" if node else say_ranks(ranks)
    rank = ranks[0]
    parts: list[str] = []
    where = resolved.trace.place_of(rank)
    if where.node is not None:
        parts.append(f"{where.node} {where.device}" if where.device else where.node)
    if resolved.layout is not None and rank < resolved.layout.world_size:
        place = resolved.layout.place(rank)
        if resolved.layout.pp > 1:
            parts.append(f"stage {place.stage}")
        if resolved.layout.tp > 1:
            parts.append(f"TP {place.tp}")
        if resolved.layout.dp > 1:
            parts.append(f"DP {place.dp}")
    return f"rank {rank} ({', '.join(parts)})" if parts else f"rank {rank}"


def _whole_node(resolved: Resolved, ranks: tuple[int, ...]) -> str | None:
    """The node of which these are all ranks, None where there is none."""
    nodes = {resolved.trace.place_of(rank).node for rank in ranks}
    node = nodes.pop() if len(nodes) == 1 else None
    others = (rank for rank in range(resolved.world) if rank not in ranks)
    if node is None or any(resolved.trace.place_of(rank).node == node for rank in others):
        return None
    return node


def _path(resolved: Resolved, ranks: tuple[int, ...]) -> str:
    """ "the path between rank 9 (node1 gpu1) and rank 17 (node2 gpu1)"."""
    ends = []
    for rank in ranks:
        place = resolved.trace.place_of(rank)
        where = " ".join(part for part in (place.node, place.device) if part)
        ends.append(f"rank {rank} ({where})" if where else f"rank {rank}")
    return f"the path between {ends[0]} and {ends[1]}"


def when(finding: Finding) -> str:
    """ "in iterations 21–31"."""
    window = finding.window
    if window is None or window.first_iteration is None:
        return ""
    first, last = window.first_iteration, window.last_iteration
    if finding.status is Status.INTERMITTENT:
        return f"now and then between iterations {first} and {last}"
    if first == last:
        return f"in iteration {first}"
    return f"in iterations {first}–{last}"


def summarised(resolved: Resolved, finding: Finding, usual: float, slow: float, ratio: float) -> Finding:
    """The finding with its sentence."""
    who = places(resolved, finding.culprits.ranks)
    if finding.ambiguous:
        who = f"one of {who}" if len(finding.culprits.ranks) > 1 else who
    verb = _VERB.get(finding.kind, "was")
    if finding.kind is Kind.SLOW_HOST and len(finding.culprits.ranks) == 1:
        verb = "made its calls"
    if finding.kind is Kind.SLOW_NETWORK and len(finding.culprits.ranks) == 2 and not finding.ambiguous:
        who, verb = _path(resolved, finding.culprits.ranks), "was"
    factor = f"{ratio:.1f}× slower" if ratio >= 1.05 else "slower"
    if finding.kind is Kind.SLOW_STORAGE:
        factor = "(data loading or checkpoint)"
    seconds = finding.impact.seconds_lost or 0.0
    state = {
        Status.RECOVERED: ", recovered",
        Status.ONGOING: ", still so at the end",
        Status.INTERMITTENT: "",
    }
    text = (
        f"{who} {verb} {factor} {when(finding)}: iteration {usual:.2f} → {slow:.2f} s, "
        f"{seconds:.1f} s of the job's time{state[finding.status]}"
    )
    if resolved.layout is not None and resolved.layout.pp == 1:
        # An iteration as a whole: "forward" is but its place in the tables.
        finding = replace(finding, where=replace(finding.where, phase=None))
    return replace(finding, summary=text)


def pattern_summarised(finding: Finding, usual: float, slow: float) -> Finding:
    """The sentence of a pattern that belongs to nobody."""
    stage = finding.where.stage
    subject = {
        Kind.IMBALANCE: f"stage {stage} is longer than the others"
        if stage is not None
        else "micro-batches are uneven",
        Kind.JITTER: "all ranks are scattered, none in particular",
        Kind.SLOW_UNIFORM: "the whole job became slower at once, no rank in particular",
        Kind.SLOW_STORAGE: "no rank in particular: the whole job stood still between iterations (checkpoint)",
    }[finding.kind]
    seconds = finding.impact.seconds_lost or 0.0
    text = (
        f"{subject} {when(finding)}: iteration {usual:.2f} → {slow:.2f} s, {seconds:.1f} s of the job's time"
    )
    if finding.severity > Severity.P2:
        text += "; as long as a healthy job may take, only an earlier run tells whether it is slow"
    return replace(finding, summary=text)


def work_evidence(costs: Costs, lead: Suspect, hit: NDArray[np.intp]) -> Evidence:
    """What the place spent against what it normally spends."""
    s, d = lead.stage, lead.replica
    if lead.cause is Cause.TRANSFER:
        m = lead.member or 0
        value = float(np.median(costs.transfer[hit, s, d, m].sum(axis=-1)) * 1e3)
        normal = float(np.median(costs.normal_transfer[hit, s, d, m].sum(axis=-1)) * 1e3)
        text = (
            f"transfers from stage {lead.feeder} to stage {s}: {normal:,.1f} → {value:,.1f} ms an iteration"
        )
        text += ", with both sides ready"
        return Evidence(text, round(value, 3), "ms")
    if lead.cause is Cause.COLLECTIVE:
        value = float(np.median(costs.comm[hit, s, d].sum(axis=-1)) * 1e3)
        normal = float(np.median(costs.normal_comm[hit, s, d].sum(axis=-1)) * 1e3)
        text = f"collectives of the group: {normal:,.1f} → {value:,.1f} ms an iteration"
        text += " after the last member had come"
        return Evidence(text, round(value, 3), "ms")
    if lead.cause is Cause.SYNC:
        value = float(np.median(lead.lost[hit]) * 1e3)
        text = f"gradient collectives of its data group took {value:,.0f} ms longer, with every member there"
        return Evidence(text, round(value, 3), "ms")
    m = 0 if lead.member is None else lead.member
    if lead.cause is Cause.ENTRY:
        value = float(np.median(costs.entry[hit, s, d, m]) * 1e3)
        text = (
            f"came {value:,.0f} ms after the other ranks of its stage to the calls before the first forward"
        )
        text += f", {len(hit)} times"
        return Evidence(text, round(value, 3), "ms")
    value = float(np.median(costs.work[hit, s, d, m].sum(axis=-1)) * 1e3)
    normal = float(np.median(costs.normal[hit, s, d, m].sum(axis=-1)) * 1e3)
    alone = lead.member is not None or costs.entry.shape[3] == 1
    whose = "its own work" if alone else f"work of its tensor group on stage {s}"
    return Evidence(
        f"{whose}: {normal:,.0f} → {value:,.0f} ms an iteration, waiting subtracted", round(value, 3), "ms"
    )


def member_evidence(table: WorkTable, lead: Suspect, late: Member) -> Evidence:
    """The offset that the late member carries."""
    others = [int(r) for i, r in enumerate(table.grid[lead.stage, lead.replica]) if i != late.index]
    text = f"{1e3 * late.offset_s:,.1f} ms behind {say_ranks(others)} through each block of calls"
    text += f", the latest in {100 * late.share:.0f} % of {late.blocks} blocks"
    if late.normal_s:
        text += f" ({1e3 * late.normal_s:.1f} ms outside)"
    return Evidence(text, round(1e3 * late.offset_s, 3), "ms")


def no_member_evidence(late: Member) -> Evidence:
    """Why no member is named."""
    return Evidence(
        "no member of the group is late consistently "
        f"(the latest one in {100 * late.share:.0f} % of {late.blocks} blocks)",
        round(late.share, 3),
        None,
    )


def loading_evidence(lead: Suspect) -> Evidence:
    """Why it is the data loader."""
    return Evidence(
        f"all of it lies before the iteration's first forward on stage {lead.stage}, which loads data"
    )


def path_evidence(ranks: tuple[int, ...], sure: bool) -> Evidence:
    """A path is a path until two independent peers share one end of it."""
    if sure:
        return Evidence(f"slow paths to different peers have rank {ranks[0]} in common")
    return Evidence("one path only: its two ends cannot be told apart without a second peer")
