"""Claims about ranks whose hosts stopped calling: one rank, a whole node, a rank that left its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from megatrace.analysis.call_table import EXCHANGE_NS
from megatrace.analysis.hang_call import NextCall, missing_call
from megatrace.analysis.hang_claim import Claim, Scene, circle
from megatrace.analysis.hang_node import dead_node
from megatrace.analysis.hang_pace import CONSTANT, CONTEXTS, ENOUGH, History
from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.hang_tied import Meetings
from megatrace.analysis.mismatch import blame
from megatrace.model.events import NO_COMM, Op
from megatrace.model.finding import Evidence, Kind, Link, Where

SPELT = 4
"""Ranks of which each one's missing call is named."""


class Stopped:
    """Makes the claims of one scene. ``past`` None where there is no history; ``dead`` global ranks known
    dead; ``where`` as ``find_hangs`` takes it."""

    def __init__(
        self,
        scene: Scene,
        past: History | None,
        dead: Mapping[int, int | None],
        where: Callable[[int, int], Where],
    ) -> None:
        self.scene, self.past, self.dead, self.where = scene, past, dead, where

    def _lacking(self, rank: int) -> NextCall | None:
        """The first call that a rank (index) lacks: of peers that run its program; else, of what others wait
        for and the message that its iterations always went on with, the latter, since that comes first."""
        call = missing_call(self.scene.graph, rank, self.scene.layout)
        if call is None or call.role_peer:
            return call
        number = int(self.scene.frontier.calls[rank])
        usual = self.where(int(self.scene.frontier.ranks[rank]), number)
        if usual.peer is None or usual.op not in (Op.SEND.name, Op.RECV.name):
            return call
        if (usual.op, usual.peer) == (call.op.name, call.peer):
            return call
        return NextCall(Op[usual.op], NO_COMM, -1, usual.peer, (rank, number), role_peer=False)

    def node(self, roots: list[Root], later: list[Root]) -> Claim | None:
        """All ranks of one node stopped short at once: the node died."""
        met = Meetings(self.scene.frontier, self.scene.layout)
        found = dead_node(self.scene.graph, met, roots, [*roots, *later], self.scene.place_of, self.past)
        if found is None:
            return None
        node, here = found
        text = f"all {len(here)} ranks of {node} ({self.scene.words.ranks(here)}) stopped at the same moment"
        evidence = (
            Evidence(
                "several of them stopped where nothing held them up, in the middle of what they were doing"
            ),
        )
        others = (Kind.HANG_HOST, Kind.HANG_DEVICE)
        return Claim(Kind.DEAD_RANK, here, text, 0.9, others, evidence=evidence, nodes=(node,))

    def strayed(self, roots: list[Root], least: int = CONSTANT) -> Claim | None:
        """One rank whose own past says that it left a call out or made it in another order than ever
        before."""
        if self.past is None or any(root.kind is RootKind.MISMATCH for root in roots):
            return None
        suspects = self._suspects(roots)
        strayed = {}
        for rank in suspects:
            deviation = self.past.deviation(int(self.scene.frontier.ranks[rank]), least)
            if deviation is not None:
                strayed[rank] = deviation
        if len(strayed) != 1 or len(suspects) < 2:
            return None
        rank, deviation = next(iter(strayed.items()))
        cycle = any(root.kind is RootKind.CYCLE for root in roots)
        flying = any(root.kind is RootKind.DEATH and rank in self._with(root) for root in roots)
        if not len(self.scene.graph.directly(rank)) and not cycle and not flying:
            return None  # nobody misses a call of it: an evaluation or a checkpoint looks like that as well
        call = missing_call(self.scene.graph, rank, self.scene.layout)
        if deviation.seq >= 0 and not deviation.expected.is_p2p:
            alone = len(self.scene.frontier.members.of_comm(deviation.comm)) == 1
            comm, seen = NO_COMM if alone else deviation.comm, (rank, deviation.call)
            op, seq = deviation.expected, deviation.seq
            call = NextCall(op, comm, seq, None, seen, role_peer=False, went_on=True)
        name = self.scene.words.rank(rank)
        what = self.scene.words.call(call) if call is not None else deviation.expected.name
        evidence = [
            Evidence(
                f"after the calls that {name} made last, {deviation.expected.name} always came; this time it "
                f"called {deviation.made.name}, while its peers did as always"
            )
        ]
        instance = next((i for root in roots for i in root.instances), None)
        if cycle:
            text = (
                f"deadlock: {name} called {deviation.made.name} before {what}, its peers the other way round"
            )
            evidence.append(Evidence("the circle: " + circle(self.scene, roots)))
            others = (Kind.MISSING_CALL, Kind.MISMATCH)
            return Claim(
                Kind.DEADLOCK,
                (rank,),
                text,
                0.95,
                others,
                call=call,
                instance=instance,
                evidence=tuple(evidence),
            )
        text = f"{name} left out {what} and went on without it"
        others = (Kind.MISMATCH, Kind.DEADLOCK)
        return Claim(
            Kind.MISSING_CALL,
            (rank,),
            text,
            0.95,
            others,
            call=call,
            instance=instance,
            evidence=tuple(evidence),
        )

    def settled(self, root: Root) -> Root:
        """A mismatch of which neither side is the majority, settled where only one of them left its habit."""
        mismatch = root.mismatch
        if self.past is None or mismatch is None or not mismatch.ambiguous:
            return root
        ranks = self.scene.frontier.ranks
        for size in CONTEXTS[:2]:
            strayed = [
                i
                for i in root.ranks
                if self.past.deviation(int(ranks[i]), ENOUGH, size, always=False) is not None
            ]
            if len(strayed) == 1:
                break
        else:
            return root
        settled = blame(self.scene.graph, mismatch, strayed[0])
        return replace(root, ranks=settled.odd, mismatch=settled)

    def _suspects(self, roots: list[Root]) -> list[int]:
        """Ranks at the ends, those with which they share an unfinished collective, and those in circles."""
        found: set[int] = set()
        for root in roots:
            found |= set(root.ranks)
            if root.kind is RootKind.DEATH:
                found |= self._with(root)
            for rank in root.ranks[:8]:
                held = self.scene.graph.directly(rank)
                small = [i for i in held if self.scene.graph.instances.group[i] < self.scene.graph.pairs.base]
                for instance in sorted(small, key=lambda i: len(self.scene.graph.waiters(int(i))))[:2]:
                    found |= {int(waiter) for waiter in self.scene.graph.waiters(int(instance))[:8]}
        return sorted(found)[:24]

    def _with(self, root: Root) -> set[int]:
        """Ranks (indices) that are in the collectives in which the ranks of a root stand.

        One that is there by another call than they are holds them up without lacking one.
        """
        calls, rows = self.scene.graph.calls, self.scene.graph.rows_of
        return {int(calls.rank[row]) for instance in root.instances[:4] for row in rows(int(instance))[:64]}

    def host(self, roots: list[Root]) -> Claim:
        """Nothing open on the rank while others wait for it."""
        ranks = tuple(sorted(rank for root in roots for rank in root.ranks))
        rank = ranks[0]
        call = self._lacking(rank)
        hosts = "its host" if len(ranks) == 1 else "their hosts"
        evidence = [Evidence(f"{self._idle(ranks)}: {hosts} stopped calling")]
        evidence += self._peers(rank, call)
        text, kind, others = self._stopped_text(ranks, call)
        calls = [self._lacking(one) for one in ranks[:SPELT]]
        if len({None if one is None else (one.comm, one.seq, one.peer) for one in calls}) > 1:
            text = f"{self.scene.name(ranks)} stopped calling: " + "; ".join(
                f"rank {self.scene.frontier.ranks[one]} never posted {self.scene.words.call(made)}"
                for one, made in zip(ranks, calls, strict=False)
                if made is not None
            )
            kind, others = Kind.HANG_HOST, (Kind.HANG_DEVICE, Kind.MISSING_CALL)
        exonerated = (f"not the network: every call that {self.scene.name(ranks)} made has completed",)
        return Claim(
            kind, ranks, text, 0.99 if len(ranks) == 1 else 0.9, others, call=call, evidence=tuple(evidence),
            exonerated=exonerated,
        )  # fmt: skip

    def _idle(self, ranks: tuple[int, ...]) -> str:
        """That nothing is pending there."""
        name = self.scene.name(ranks)
        if not self.scene.frontier.calls[list(ranks)].any():
            return f"nothing is pending on {name}: all that was called there has completed"
        last = self.scene.words.last_call(ranks[0])
        return f"last call of {name}: {last}, completed; nothing is pending there"

    def _stopped_text(
        self, ranks: tuple[int, ...], call: NextCall | None
    ) -> tuple[str, Kind, tuple[Kind, ...]]:
        """(sentence, kind, alternatives) of ranks whose hosts stopped."""
        known = [rank for rank in ranks if int(self.scene.frontier.ranks[rank]) in self.dead]
        if len(known) == len(ranks):
            return f"{self.scene.name(ranks)} died", Kind.DEAD_RANK, ()
        if call is None:
            return (
                f"{self.scene.name(ranks)} stopped calling",
                Kind.HANG_HOST,
                (Kind.DEAD_RANK, Kind.HANG_DEVICE),
            )
        text = f"{self.scene.name(ranks)} never posted {self.scene.words.call(call)}"
        if call.went_on:
            return text + " and went on without it", Kind.MISSING_CALL, (Kind.HANG_HOST, Kind.MISMATCH)
        if call.op.is_p2p:
            return text, Kind.MISSING_CALL, (Kind.HANG_HOST, Kind.HANG_DEVICE)
        return text, Kind.HANG_HOST, (Kind.HANG_DEVICE, Kind.MISSING_CALL)

    def _peers(self, rank: int, call: NextCall | None) -> list[Evidence]:
        """What those who wait for the rank did."""
        if call is None:
            return []
        peer = self.scene.words.rank(call.seen_at[0])
        if call.seen_at[0] == rank:
            return [Evidence(f"in every iteration before, {peer} made that call after the ones it made last")]
        if call.role_peer:
            return [Evidence(f"{peer}, which runs the same program, made that call and waits in a later one")]
        return [Evidence(f"{peer} made its side of that call and waits")]

    def behind(self, roots: list[Root]) -> Claim:
        """Without completion times: the only ranks that their peers are ahead of."""
        ranks = tuple(sorted(rank for root in roots for rank in root.ranks))
        ranks = self._short(ranks) or ranks
        seen = Evidence("nothing completed can be seen in this log")
        only = (
            f"{self.scene.name(ranks)} is the only one that its peers are ahead of"
            if len(ranks) == 1
            else f"{self.scene.name(ranks)} are the only ones that their peers are ahead of; "
            "the log cannot separate them"
        )
        if len(ranks) > 1:
            return self._inseparable(ranks, (seen, Evidence(only, len(ranks), "ranks")))
        call = self._lacking(ranks[0])
        text, kind, others = self._stopped_text(ranks, call)
        evidence = [Evidence(f"{seen.text}; {only}"), *self._peers(ranks[0], call)]
        evidence.append(Evidence(f"its last call was {self.scene.words.last_call(ranks[0])}"))
        if call is not None and not call.role_peer and kind is not Kind.DEAD_RANK:
            # Nobody in the same role went further, so its device may hold it up as well as its host.
            others = tuple(dict.fromkeys((Kind.HANG_DEVICE, Kind.HANG_HOST, Kind.MISSING_CALL)))
            others = tuple(item for item in others if item is not kind)[:2]
        return Claim(kind, ranks, text, 0.95, others, call=call, evidence=tuple(evidence))

    def _short(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Those of several ranks that left a call out and went on, or whose last exchange lacks a message
        that a peer made: it progresses on nobody's side until it is whole."""
        graph, found = self.scene.graph, []
        for rank in ranks if len(ranks) > 1 else ():
            call = missing_call(graph, rank, self.scene.layout)
            if call is None or not call.role_peer:
                continue
            peer, number = call.seen_at
            row = np.flatnonzero((graph.calls.rank == peer) & (graph.calls.call == number))
            partial = call.op.is_p2p and any(self._posted_with_another(int(one)) for one in row)
            if call.went_on or partial:
                found.append(rank)
        return tuple(found)

    def _posted_with_another(self, row: int) -> bool:
        """Whether a message (row of the calls) was posted right after another one of its exchange."""
        calls, time = self.scene.graph.calls, self.scene.frontier.tail_time
        rank, column = calls.rank[row], calls.column[row]
        if calls.step[row] >= calls.call[row] or column == 0:
            return False
        return bool(time[rank, column] - time[rank, column - 1] <= EXCHANGE_NS)

    def _inseparable(self, ranks: tuple[int, ...], evidence: tuple[Evidence, ...]) -> Claim:
        members = tuple(int(self.scene.frontier.ranks[rank]) for rank in ranks)
        name = self.scene.name(ranks)
        if self.scene.layout is not None and max(members) < self.scene.layout.world_size:
            group = self.scene.layout.name(members)
            name = f"{group} ({name})" if self.scene.layout.axis_of(members) is not None else name
        text = f"the job stands at {name}: all its members made the same calls and none went on"
        pair = self._pair(ranks)
        if pair is not None:
            others = (Kind.HANG_NETWORK, Kind.HANG_DEVICE)
            return Claim(Kind.HANG_GROUP, ranks, text, 0.9, others, True, evidence=evidence, links=(pair,))
        nodes = {self.scene.place_of(rank).node for rank in members}
        others = (
            Kind.HANG_DEVICE,
            Kind.DEAD_RANK if len(nodes) == 1 and None not in nodes else Kind.HANG_NETWORK,
        )
        return Claim(Kind.HANG_GROUP, ranks, text, 0.9, others, True, evidence=evidence)

    def _pair(self, ranks: tuple[int, ...]) -> Link | None:
        """The link between two ranks whose last calls are a Send and its Recv."""
        if len(ranks) != 2 or not all(
            Op(int(self.scene.frontier.tail_op[rank, -1])).is_p2p for rank in ranks
        ):
            return None
        return self.scene.link(*(int(self.scene.frontier.ranks[rank]) for rank in ranks))
