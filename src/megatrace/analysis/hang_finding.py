"""From the end of the chains to a finding: culprits, victims, where in the job, evidence, what to do.

What an end means is said by ``hang_stopped`` and ``hang_stuck``; the rest is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from megatrace.analysis.hang_call import NextCall
from megatrace.analysis.hang_claim import Claim, Scene
from megatrace.analysis.hang_pace import ENOUGH, History
from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.hang_stall import Stall, Standing
from megatrace.analysis.hang_stopped import Stopped
from megatrace.analysis.hang_stuck import Stuck
from megatrace.analysis.hang_tied import Meetings
from megatrace.analysis.hang_words import place_in_job
from megatrace.model.events import Op
from megatrace.model.finding import Culprits, Device, Evidence, Finding, Kind, Severity, Where, Window
from megatrace.units import format_count, say_ranks

I8 = NDArray[np.int64]


class Reporter:
    """Makes findings of one scene."""

    def __init__(
        self,
        scene: Scene,
        where: Callable[[int, int], Where],
        past: History | None,
        stall: Stall,
        dead: Mapping[int, int | None],
    ) -> None:
        self.scene, self.where, self.stall = scene, where, stall
        self.stopped, self.stuck = Stopped(scene, past, dead, where), Stuck(scene)
        self.graph, self.words, self.frontier = scene.graph, scene.words, scene.frontier
        self.layout, self.place_of = scene.layout, scene.place_of
        self.met = Meetings(scene.frontier, scene.layout)

    def proven(self, roots: list[Root]) -> bool:
        """Whether the calls themselves prove a fault, whatever the time: they do not fit, or leave all
        habit."""
        if any(root.kind is RootKind.MISMATCH for root in roots):
            return True
        return self.stopped.strayed(roots) is not None

    def _claim(self, roots: list[Root], later: list[Root]) -> Claim:
        """What the first end means; several simultaneous ends of one kind are said together."""
        roots = [self.stopped.settled(root) for root in roots]
        # Where the job is known to stand, fewer repetitions suffice to say what should have come.
        whole = self.stopped.strayed(roots, ENOUGH) or self.stopped.node(roots, later)
        if whole is not None:
            return whole
        make = {
            RootKind.MISMATCH: self.stuck.mismatch,
            RootKind.DEVICE: self.stuck.device,
            RootKind.HOST: self.stopped.host,
            RootKind.DEATH: self.stuck.death,
            RootKind.AHEAD: self.stuck.ahead,
            RootKind.BEHIND: self.stopped.behind,
            RootKind.CALL: self.stuck.call,
            RootKind.GROUP: self.stuck.call,
            RootKind.CYCLE: self.stuck.cycle,
        }
        kind = min((root.kind for root in roots), key=list(make).index)
        return make[kind]([root for root in roots if root.kind is kind])

    def finding(self, roots: list[Root], later: list[Root]) -> Finding:
        """One finding of the roots that stopped first."""
        claim = self._claim(roots, later)
        ranks = np.asarray(claim.ranks, np.int64)
        instances = np.asarray([i for root in roots for i in root.instances], np.int64)
        held = self.graph.held_up(ranks, instances)
        held[ranks] = False
        # The job stands, so everybody else is a victim: those who wait, and those who died later.
        victims = np.setdiff1d(np.arange(len(self.frontier)), ranks)
        where = self._where(claim)
        since = int(self.frontier.last_time[ranks].max()) if len(ranks) else self.stall.since
        return Finding(
            kind=claim.kind,
            severity=Severity.P0,
            summary=claim.text + place_in_job(where),
            confidence=claim.confidence,
            kind_alternatives=claim.alternatives,
            ambiguous=claim.ambiguous,
            culprits=self._culprits(claim),
            victims=tuple(self.frontier.ranks[victims].tolist()),
            where=where,
            window=Window(since, None, where.iteration, where.iteration),
            evidence=(*claim.evidence, *self._shared(claim, int(held.sum()), later)),
            exonerated=claim.exonerated,
            chain=self._chain(claim, instances),
            remedy=self._remedy(claim),
        )

    def _culprits(self, claim: Claim) -> Culprits:
        ranks = tuple(int(self.frontier.ranks[rank]) for rank in claim.ranks)
        devices: tuple[Device, ...] = ()
        if claim.kind is Kind.HANG_DEVICE:
            places = [self.place_of(rank) for rank in ranks]
            devices = tuple(Device(place.node, place.device) for place in places if place.node)
        return Culprits(ranks, claim.nodes, devices, claim.links)

    def _where(self, claim: Claim) -> Where:
        """Where in the job the missing or stuck call stands."""
        found = Where()
        if claim.call is not None:
            seen, number = claim.call.seen_at
            found = self.where(int(self.frontier.ranks[seen]), number)
            found = replace(found, op=claim.call.op.name, peer=claim.call.peer, seq=None, communicator=None)
            if self._any_of_a_run(claim.call):
                found = _shared(found, self._where_open(claim.ranks[0]))
            if not claim.call.op.is_p2p:
                name = self.words.communicator(claim.call.comm)
                found = replace(found, seq=claim.call.seq, communicator=name)
        elif claim.instance is not None:
            found = self._where_instance(claim)
        elif claim.kind is Kind.HANG_GROUP:
            found, *others = (self._where_open(rank) for rank in self._of_each_stage(claim.ranks))
            for other in others:
                found = _shared(found, other)
        elif claim.ranks:  # their hosts made no further call: where the one stands that always came next
            found = self._next(claim.ranks[0])
            for rank in claim.ranks[1:] if claim.nodes else ():
                found = _shared(found, self._next(rank))
        stage = self._stage(claim.ranks)
        return replace(found, stage=stage) if stage is not None else found

    def _any_of_a_run(self, call: NextCall) -> bool:
        """Whether a rank that is a call short stands where its peer does, at the end of a run: without
        completions it may have left out any one of the run as well."""
        seen, number = call.seen_at
        alike = call.role_peer and not call.op.is_p2p and number == int(self.frontier.calls[seen]) - 1
        return alike and not self.frontier.has_end

    def _next(self, rank: int) -> Where:
        return self.where(int(self.frontier.ranks[rank]), int(self.frontier.calls[rank]))

    def _where_open(self, rank: int) -> Where:
        """Where a rank (index) stands of which completions are not known: in any of the calls that it made
        since it heard from another stage, or began the iteration. What they do not share is not known."""
        name, last = int(self.frontier.ranks[rank]), int(self.frontier.calls[rank]) - 1
        found = self.where(name, last)
        after = self.met.after_message(rank)
        lead = self.frontier.tail - after if after else last + 1
        for number in range(last - 1, last - lead, -1):
            other = self.where(name, number)
            if other.iteration != found.iteration or (found.phase is None and found.micro_batch is None):
                break
            found = _shared(found, other)
        return found

    def _where_instance(self, claim: Claim) -> Where:
        """Where a call stands: for those who made it as they should, where others are said not to have."""
        instance = claim.instance
        assert instance is not None  # the caller has one
        rows = self.graph.rows_of(instance)
        theirs = np.isin(self.graph.calls.rank[rows], claim.ranks)
        mine = rows[~theirs if claim.kind in (Kind.MISSING_CALL, Kind.MISMATCH) else theirs]
        row = int((mine if len(mine) else rows)[0])
        rank, column = int(self.graph.calls.rank[row]), int(self.graph.calls.column[row])
        found = self.where(int(self.frontier.ranks[rank]), int(self.graph.calls.call[row]))
        op = Op(int(self.frontier.tail_op[rank, column]))
        comm = self.scene.comm(instance)
        name = self.words.communicator(comm) if comm >= 0 else None
        seq = int(self.graph.instances.seq[instance]) if comm >= 0 else None
        return replace(found, op=op.name, communicator=name, seq=seq)

    def _of_each_stage(self, ranks: tuple[int, ...]) -> list[int]:
        """The first rank (index) of each stage: the others of a stage run the same program."""
        first = {self._stage((rank,)): rank for rank in reversed(ranks)}
        return sorted(first.values())

    def _stage(self, ranks: tuple[int, ...]) -> int | None:
        """The stage that all culprits share."""
        if self.layout is None or self.layout.pp == 1 or not ranks:
            return None
        members = [int(self.frontier.ranks[rank]) for rank in ranks]
        if max(members) >= self.layout.world_size:
            return None
        stages = {self.layout.place(rank).stage for rank in members}
        return stages.pop() if len(stages) == 1 else None

    def _shared(self, claim: Claim, waiting: int, later: list[Root]) -> list[Evidence]:
        """Evidence that every kind has: how many wait, how long, who died later."""
        total = len(self.frontier)
        lines = []
        if waiting:
            text = f"{format_count(waiting)} of {format_count(total)} ranks wait for it, "
            lines.append(Evidence(f"{text}directly or through others", waiting, "ranks"))
        if self.stall.standing is Standing.STANDS:
            lines.append(Evidence(f"the job stands: {self.stall.reason}", self.stall.quiet / 1e9, "s"))
        else:
            # What is wrong shows in the calls themselves; that the job stands is not seen and not claimed.
            text = (
                "the recording ends before it could show that the job stands: the calls alone prove the fault"
            )
            lines.append(Evidence(text))
        named = {int(self.frontier.ranks[rank]) for rank in claim.ranks}
        died = sorted({int(self.frontier.ranks[rank]) for root in later for rank in root.ranks} - named)
        if died:
            lines.append(Evidence(f"{say_ranks(died)} stopped only afterwards: victims, not the cause"))
        return lines

    def _chain(self, claim: Claim, instances: I8) -> tuple[str, ...]:
        """From one of the victims farthest away, the first of them to stop."""
        ranks = np.asarray(claim.ranks, np.int64)
        if not len(ranks):
            return ()
        away = self.graph.distance(ranks, instances)
        far = np.flatnonzero(away == away.max())
        victim = int(far[np.argmin(self.frontier.last_call[far])])
        return self.words.chain(victim, set(claim.ranks)) if away[victim] > 0 else ()

    def _remedy(self, claim: Claim) -> str:
        """What to do first."""
        places = [self.place_of(int(self.frontier.ranks[rank])) for rank in claim.ranks]
        nodes = sorted({place.node for place in places if place.node})
        who = ", ".join(nodes) if nodes else "its node" if len(claim.ranks) == 1 else "their nodes"
        collect = (
            f"save stacks (py-spy dump), kernel log and GPU state of {who} before the watchdog kills the job"
        )
        if claim.kind in (Kind.MISMATCH, Kind.DEADLOCK):
            return (
                "Look at the code path that this rank took: its calls differ from its peers'. "
                "No hardware is suspected."
            )
        if claim.kind is Kind.HANG_NETWORK:
            return f"{collect}; then test the path between these ranks and drain what fails."
        if claim.kind is Kind.HANG_GROUP:
            return f"{collect}: stacks tell the members apart; record with completions next time."
        they = ("it" if len(nodes) == 1 else "them") if nodes else who
        return f"{collect}; then drain {they} and requeue from the last checkpoint."


def _shared(one: Where, other: Where) -> Where:
    """What two places have in common; of both the first one's call."""
    return replace(
        one,
        stage=one.stage if one.stage == other.stage else None,
        iteration=one.iteration if one.iteration == other.iteration else None,
        micro_batch=one.micro_batch if one.micro_batch == other.micro_batch else None,
        phase=one.phase if one.phase is other.phase else None,
    )
