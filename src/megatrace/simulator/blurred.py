"""What a text log of this very run cannot show, beyond what it cannot show of such a fault.

Where every rank made all the calls that any other waits for, the log of a job that stands is that of a job
that was cut. And where a node died within an ordinary pause of the stop that it died of, host times do not
tell which of them came first.

Calls that do not fit each other are seen all the same, and a recording with completions shows who waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from megatrace.model.events import Op
from megatrace.model.finding import Kind
from megatrace.model.trace import Trace
from megatrace.simulator.scenario import Scenario
from megatrace.simulator.truth import Answer, FaultTruth, Truth

_FIT = frozenset({Kind.MISMATCH, Kind.DEADLOCK})
"""Kinds that the calls themselves show."""


def blurred(truth: Truth, scenario: Scenario, trace: Trace) -> Truth:
    """The truth with what its text log leaves open."""
    standing = [fault for fault in truth.faults if fault.kind.verdict.value == "hang"]
    if not standing:
        return truth
    level = everybody_is_level(trace)
    told = []
    for fault in truth.faults:
        if fault in standing:
            answer = fault.answers["text"]
            if level and fault.kind not in _FIT:
                answer = replace(answer, undecidable=True)
            answer = replace(answer, also=_also(fault, answer, truth.late_deaths_s, scenario))
            fault = replace(fault, answers={**fault.answers, "text": answer})
        told.append(fault)
    return replace(truth, faults=tuple(told))


def everybody_is_level(trace: Trace) -> bool:
    """Whether all members of a communicator made equally many calls there, for all of them, and every Send
    has its Recv."""
    events = trace.events
    if events.comm is None or events.peer is None:
        return False
    rank, width = events.rank.astype(np.int64), int(events.rank.max(initial=0)) + 1
    sends, recvs = (np.flatnonzero(events.op == op) for op in (Op.SEND, Op.RECV))
    there, sent = np.unique(rank[sends] * width + events.peer[sends], return_counts=True)
    here, received = np.unique(events.peer[recvs] * np.int64(width) + rank[recvs], return_counts=True)
    if not (np.array_equal(there, here) and np.array_equal(sent, received)):
        return False
    shared = (events.op != Op.SEND) & (events.op != Op.RECV) & (events.comm >= 0)
    key, made = np.unique(events.comm[shared].astype(np.int64) * width + rank[shared], return_counts=True)
    comm = key // width
    first = np.flatnonzero(np.diff(comm, prepend=-1))
    if not len(first):
        return True
    if (np.maximum.reduceat(made, first) != np.minimum.reduceat(made, first)).any():
        return False
    recorded = set(events.ranks().tolist())
    members = [len(recorded.intersection(trace.communicators[c].members or ())) for c in comm[first].tolist()]
    return bool(members == np.diff(np.append(first, len(comm))).tolist())


def _also(
    fault: FaultTruth, answer: Answer, deaths: Mapping[int, float], scenario: Scenario
) -> tuple[tuple[int, ...], ...]:
    """The same with the nodes that died within an ordinary pause of the stop, and such a node alone where the
    struck rank waits for one of its ranks."""
    if fault.start_s is None:
        return ()
    # A host stands at a wait while its device works off a block and its neighbour's, forward and backward.
    pause = 2 * scenario.layers_per_stage * (scenario.layer_forward_ms + scenario.layer_backward_ms) / 1e3
    nodes: dict[int, set[int]] = {}
    for rank, time in sorted(deaths.items(), key=lambda item: item[1]):
        if time - fault.start_s <= pause:
            nodes.setdefault(rank // scenario.ranks_per_node, set()).add(rank)
    soon = list(nodes.values())[:FIRST]
    sets = [node for node in soon if fault.peer in node]
    for number in range(1, len(soon) + 1):
        sets += [set(answer.ranks).union(*some) for some in combinations(soon, number)]
    return tuple(tuple(sorted(ranks)) for ranks in sets)


FIRST = 6
"""Nodes of those that died at once with the stop for which all combinations are listed."""
