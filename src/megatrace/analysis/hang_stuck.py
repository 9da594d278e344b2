"""Claims about calls, devices and communicators that came to stand: what is stuck although everybody
called."""

from __future__ import annotations

import numpy as np

from megatrace.analysis.hang_call import missing_call
from megatrace.analysis.hang_claim import Claim, Scene, circle
from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.mismatch import Misfit, Signature
from megatrace.analysis.waits_for import Hold
from megatrace.model.events import Op
from megatrace.model.finding import Evidence, Kind
from megatrace.model.frontier import STARTED
from megatrace.units import format_count, format_duration

SPELT = 4
"""Ranks of which each one's call is named."""


class Stuck:
    """Makes the claims of one scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def device(self, roots: list[Root]) -> Claim:
        """The host made the call, the device did not start it, or did not finish what a peer finished."""
        ranks = tuple(sorted({rank for root in roots for rank in root.ranks}))
        instance = roots[0].instances[0]
        what = self.scene.words.instance(instance)
        started = self._started(instance, ranks[0])
        done = self.scene.graph.finished(instance)
        text = f"the device of {self.scene.name(ranks)} stopped before {what}"
        proof = f"its peers have started {what}; there it was called and never started"
        seen = self.scene.frontier.has_start
        if started:
            text = f"the device of {self.scene.name(ranks)} stopped in {what}"
            proof = (
                f"{format_count(len(done))} of its peers completed {what}; there it started and never ended"
            )
        elif len(done):
            never = "never started" if seen else "was called and never completed"
            proof = f"{format_count(len(done))} of its peers have completed {what}; there it {never}"
        if not seen:
            text = f"the device of {self.scene.name(ranks)} stopped at {what}"
        places = {root.ranks: root.instances[0] for root in roots if len(root.ranks) == 1}
        if len(set(places.values())) > 1 and len(places) == len(ranks) <= SPELT:
            text = f"the devices of {self.scene.name(ranks)} stopped: " + "; ".join(
                f"rank {self.scene.frontier.ranks[rank]} at {self.scene.words.instance(where)}"
                for (rank,), where in sorted(places.items())
            )
        evidence = (
            Evidence(proof),
            Evidence("nothing is pending there before it: its host went on, its queue did not"),
        )
        exonerated: tuple[str, ...] = (f"not the host: {self.scene.name(ranks)} made the call",)
        others: tuple[Kind, ...] = ()
        if not seen:
            others, exonerated = (Kind.HANG_HOST,), ()
        if self.scene.comm(instance) < 0 and not started:
            # A coalesced exchange starts when its last message is posted, which the host may not have done.
            others, exonerated = (Kind.MISSING_CALL, Kind.HANG_HOST), ()
        return Claim(
            Kind.HANG_DEVICE, ranks, text, 0.97 if len(ranks) == 1 else 0.85, others, instance=instance,
            evidence=evidence, exonerated=exonerated,
        )  # fmt: skip

    def _started(self, instance: int, rank: int) -> bool:
        rows = self.scene.graph.rows_of(instance)
        rows = rows[self.scene.graph.calls.rank[rows] == rank]
        return bool((self.scene.graph.calls.state[rows] == STARTED).any())

    def death(self, roots: list[Root]) -> Claim:
        """A call in flight completed nowhere, and one participant made fewer calls than the others."""
        ranks = tuple(sorted({rank for root in roots for rank in root.ranks}))
        instance = roots[0].instances[0]
        call = missing_call(self.scene.graph, ranks[0], self.scene.layout)
        what = self.scene.words.instance(instance)
        peers = self.scene.graph.waiters(instance)
        last = self.scene.frontier.last_call
        later = int(last[peers].max() - last[list(ranks)].max())
        farthest = int(peers[np.argmax(last[peers])])
        # Hosts call in lockstep: who stopped within two of its peers' calls went on as long as they did.
        lockstep = 2 * int(np.median(np.diff(self.scene.frontier.tail_time[farthest, -4:])))
        if (call is not None and call.went_on) or later <= lockstep:
            comm = self.scene.words.communicator(self.scene.comm(instance))
            text = f"{self.scene.name(ranks)} left out a call of {comm}"
            evidence = (
                Evidence(f"{what} was called by all and completed nowhere"),
                Evidence(
                    f"{self.scene.name(ranks)} made fewer calls there than its peers, "
                    "and stopped no earlier than they did"
                ),
            )
            others = (Kind.DEAD_RANK, Kind.HANG_HOST)
            if call is not None and not call.went_on and call.comm != self.scene.comm(instance):
                call = None  # what waits for it elsewhere came later
            return Claim(
                Kind.MISSING_CALL, ranks, text, 0.9, others, call=call, instance=instance, evidence=evidence
            )
        text = f"{self.scene.name(ranks)} died: its host and its device stopped at the same moment"
        evidence = (
            Evidence(f"{what} was in flight there and completed nowhere"),
            Evidence(f"its peers made calls for another {format_duration(later)}", later / 1e6, "ms"),
        )
        return Claim(
            Kind.DEAD_RANK,
            ranks,
            text,
            0.9,
            (Kind.HANG_HOST, Kind.MISSING_CALL),
            call=call,
            evidence=evidence,
        )

    def ahead(self, roots: list[Root]) -> Claim:
        """A few went on past a call at which all others stand."""
        ranks, instance = roots[0].ranks, roots[0].instances[0]
        what = self.scene.words.instance(instance)
        comm = self.scene.words.communicator(self.scene.comm(instance))
        standing = len(self.scene.frontier.members.of_comm(self.scene.comm(instance))) - len(ranks)
        text = f"{self.scene.name(ranks)} left out a call of {comm} and went on without it"
        evidence = (
            Evidence(f"all others stand at {what}", standing, "ranks"),
            Evidence("hosts that run the same program wait there; it went on, so its calls come too early"),
        )
        others = (Kind.MISMATCH,)
        return Claim(Kind.MISSING_CALL, ranks, text, 0.9, others, instance=instance, evidence=evidence)

    def call(self, roots: list[Root]) -> Claim:
        """A call that all made and nobody finished."""
        instance = roots[0].instances[0]
        ranks = tuple(sorted({rank for root in roots for rank in root.ranks}))
        what = self.scene.words.instance(instance)
        started = roots[0].kind is RootKind.CALL
        proof = Evidence(
            f"all {len(ranks)} participants have {'started' if started else 'called'} {what}, "
            "and none has completed it"
        )
        proofs = (proof, *self._unsized(instance))
        pair = int(self.scene.graph.instances.group[instance]) - self.scene.graph.pairs.base
        if pair >= 0 and started:
            src, dst = int(self.scene.graph.pairs.src[pair]), int(self.scene.graph.pairs.dst[pair])
            link = self.scene.link(src, dst)
            ends = [self.scene.words.global_rank(rank) for rank in (src, dst)]
            text = f"nothing passes between {ends[0]} and {ends[1]}"
            exonerated = ("not the hosts: both ends made the call and started it",)
            return Claim(
                Kind.HANG_NETWORK, ranks, text, 0.9, (Kind.HANG_DEVICE,), instance=instance,
                evidence=(proof,), exonerated=exonerated, links=(link,),
            )  # fmt: skip
        if started:
            text = f"{what} started on all its members and ended on none: the network, or inside the kernel"
            others = (Kind.HANG_GROUP, Kind.HANG_DEVICE)
            return Claim(
                Kind.HANG_NETWORK, ranks, text, 0.9, others, True, instance=instance, evidence=proofs
            )
        text = f"{what} was called by all its members and completed on none"
        others = (Kind.HANG_DEVICE, Kind.HANG_NETWORK)
        return Claim(Kind.HANG_GROUP, ranks, text, 0.9, others, True, instance=instance, evidence=proofs)

    def _unsized(self, instance: int) -> tuple[Evidence, ...]:
        """That the sizes of an all-to-all were not compared, where one stands."""
        rows = self.scene.graph.rows_of(instance)
        calls, frontier = self.scene.graph.calls, self.scene.frontier
        if frontier.tail_op[calls.rank[rows[0]], calls.column[rows[0]]] != Op.ALL_TO_ALL:
            return ()
        text = (
            "members of an all-to-all may pass different sizes, so sizes were not compared: a part sent in "
            "another size than it was awaited looks the same (TORCH_DISTRIBUTED_DEBUG=DETAIL compares them)"
        )
        return (Evidence(text),)

    def _absent(self, instance: int) -> tuple[int, ...]:
        """Rank indices that have not made a call at which others wait."""
        holders = self.scene.graph.holders(instance)
        return tuple(sorted(rank for rank, why in holders if why is Hold.ABSENT and rank >= 0))

    def _behind(self, instance: int) -> tuple[int, ...]:
        """Rank indices whose queue holds the call behind another: their devices have not come to it."""
        holders = self.scene.graph.holders(instance)
        return tuple(sorted(rank for rank, why in holders if why is Hold.QUEUED and rank >= 0))

    def _by_siblings(self, one: int, other: int) -> tuple[int, int, tuple[int, ...]] | None:
        """Of a circle over two collectives: (entered last, entered first, by whom), where ranks outside the
        smaller group tell in which order everybody does it: those who wait in the larger one either made
        their own groups' call of that number before it, or not."""
        graph, frontier = self.scene.graph, self.scene.frontier
        sizes = frontier.members.counts()
        small, large = sorted(
            (one, other), key=lambda i: (int(sizes[self.scene.comm(i)]), -len(graph.waiters(i)))
        )
        comm, seq = self.scene.comm(small), int(graph.instances.seq[small])
        inside = frontier.indices(frontier.members.of_comm(comm))
        peers = np.setdiff1d(graph.waiters(large), inside)
        mine = np.isin(frontier.entry_rank, peers) & (sizes[frontier.entry_comm] == sizes[comm])
        ahead = frontier.entry_last[mine] - seq
        made, lacking = int((ahead == 0).sum()), int((ahead == -1).sum())
        if made == lacking:
            return None
        if made > lacking:
            odd = self._absent(small)
            return (small, large, odd) if odd else None
        odd = tuple(sorted(int(rank) for rank in graph.waiters(small)))
        return (large, small, odd) if len(odd) < len(peers) else None

    def mismatch(self, roots: list[Root]) -> Claim:
        """Members of a communicator called different things under one number."""
        mismatch = roots[0].mismatch
        assert mismatch is not None
        ranks = tuple(sorted({rank for root in roots for rank in root.ranks}))
        what = self.scene.words.instance(mismatch.instance)
        comm = self.scene.words.communicator(self.scene.comm(mismatch.instance))
        theirs, usual = mismatch.theirs, mismatch.usual
        if mismatch.misfit is Misfit.SIZE:
            differs = (
                f"{format_count(theirs.count)} elements where the others passed {format_count(usual.count)}"
            )
        else:
            differs = f"{_spelt(theirs)}{' elements' if theirs.count >= 0 else ''} where the others called "
            differs += _spelt(usual)
        verb = "passed" if mismatch.misfit is Misfit.SIZE else "called"
        text = f"{self.scene.name(ranks)} {verb} {differs}, as {what}"
        kind = Kind.MISMATCH
        others: tuple[Kind, ...] = (Kind.MISSING_CALL,)
        if mismatch.misfit is Misfit.ORDER:
            text = (
                f"{self.scene.name(ranks)} made two calls of {comm} in the wrong order: {differs}, as {what}"
            )
        elif mismatch.misfit is Misfit.SKIPPED:
            text = f"{self.scene.name(ranks)} left out {what}: {differs}"
            kind, others = Kind.MISSING_CALL, (Kind.MISMATCH,)
        elif mismatch.misfit is Misfit.SIZE:
            others = ()
        evidence = (
            Evidence("NCCL pairs calls by their order alone: calls that differ hang or corrupt data"),
        )
        if mismatch.ambiguous:
            text = f"{self.scene.name(ranks)} called different things as {what}; who is wrong is not known"
        confidence = 0.8 if mismatch.ambiguous else 0.97
        return Claim(
            kind,
            ranks,
            text,
            confidence,
            others,
            mismatch.ambiguous,
            instance=mismatch.instance,
            evidence=evidence,
        )

    def cycle(self, roots: list[Root]) -> Claim:
        """Ranks wait for each other in a circle; the few who entered it the other way round did it."""
        root = roots[0]
        absent = {instance: self._absent(instance) or self._behind(instance) for instance in root.instances}
        sizes = self.scene.frontier.members.counts()
        order = sorted(
            absent,
            key=lambda instance: (len(absent[instance]), int(sizes[max(self.scene.comm(instance), 0)])),
        )
        evidence = [Evidence("the circle: " + circle(self.scene, roots))]
        few = next((instance for instance in order if absent[instance]), order[0])
        many = next(instance for instance in reversed(order) if instance != few or len(order) == 1)
        told = (len(absent[few]), sizes[max(self.scene.comm(few), 0)]) < (
            len(absent[many]) or sizes[max(self.scene.comm(many), 0)] // 2,
            sizes[max(self.scene.comm(many), 0)],
        )
        collective = few != many and min(self.scene.comm(few), self.scene.comm(many)) >= 0
        by_siblings = self._by_siblings(few, many) if collective and len(order) == 2 else None
        if by_siblings is not None or (told and absent[few] and collective):
            few, many, ranks = by_siblings or (few, many, absent[few])
            text = (
                f"deadlock: {self.scene.name(ranks)} entered {self.scene.words.instance(many)} before "
                f"{self.scene.words.instance(few)}, the others the other way round"
            )
            waiting = len(np.setdiff1d(self.scene.graph.waiters(few), ranks))
            evidence.append(Evidence(f"{waiting} of the others wait in {self.scene.words.instance(few)}"))
            others = (Kind.MISSING_CALL, Kind.MISMATCH)
            return Claim(Kind.DEADLOCK, ranks, text, 0.9, others, evidence=tuple(evidence), instance=few)
        text = f"deadlock: {self.scene.name(root.ranks)} wait for each other in a circle"
        return Claim(
            Kind.DEADLOCK, tuple(sorted(root.ranks)), text, 0.85, (), True, evidence=tuple(evidence),
            instance=root.instances[0],
        )  # fmt: skip


def _spelt(signature: Signature) -> str:
    """ "ALL_REDUCE of 4,096"; the operation alone where sizes do not tell."""
    known = signature.count >= 0
    return f"{signature.op.name} of {format_count(signature.count)}" if known else signature.op.name
