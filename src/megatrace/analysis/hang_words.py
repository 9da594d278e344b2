"""Sentences about a hang: names of ranks and calls, chains, places in the job.

Only words: every number and every name comes from the graph. A sentence names the operation and its
number, because that is what an engineer looks for in the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from megatrace.analysis.hang_call import NextCall
from megatrace.analysis.waits_for import Hold, WaitsFor
from megatrace.model.events import Op
from megatrace.model.finding import Where
from megatrace.model.layout import ParallelLayout
from megatrace.model.schedule import Phase
from megatrace.model.trace import RankPlace
from megatrace.units import say_ranks

PlaceOf = Callable[[int], RankPlace]


class Words:
    """Names things of one graph."""

    def __init__(
        self, graph: WaitsFor, layout: ParallelLayout | None, place_of: PlaceOf, names: tuple[str | None, ...]
    ) -> None:
        self.graph, self.layout, self.place_of, self.names = graph, layout, place_of, names

    def rank(self, index: int) -> str:
        """ "rank 1505 (node188 gpu1)"."""
        return self.global_rank(int(self.graph.frontier.ranks[index]))

    def global_rank(self, rank: int) -> str:
        """The same for a global rank."""
        place = self.place_of(rank)
        where = " ".join(part for part in (place.node, place.device) if part)
        return f"rank {rank} ({where})" if where else f"rank {rank}"

    def ranks(self, indices: Iterable[int]) -> str:
        """ "rank 3" or "ranks 3, 5-7"."""
        return say_ranks(int(self.graph.frontier.ranks[i]) for i in indices)

    def communicator(self, comm: int) -> str:
        """ "TP group 188 of stage 2", or what is known of it."""
        members = tuple(int(rank) for rank in self.graph.frontier.members.of_comm(comm))
        layout = self.layout
        if layout is not None and len(members) == layout.world_size:
            return "the world group"
        if layout is not None and members and max(members) < layout.world_size and layout.axis_of(members):
            return layout.name(members)
        name = self.names[comm] if 0 <= comm < len(self.names) else None
        if name:
            return f"group {name}"
        return f"the group of {say_ranks(members)}" if members else f"communicator {comm}"

    def instance(self, instance: int) -> str:
        """ "ALL_REDUCE #4,712 of TP group 188", "the Send from rank 809 to rank 1505"."""
        graph = self.graph
        group, seq = int(graph.instances.group[instance]), int(graph.instances.seq[instance])
        if group >= graph.pairs.base:
            pair = group - graph.pairs.base
            return f"the Send from rank {graph.pairs.src[pair]} to rank {graph.pairs.dst[pair]}"
        row = int(graph.rows_of(instance)[0])
        op = Op(int(graph.frontier.tail_op[graph.calls.rank[row], graph.calls.column[row]]))
        return f"{op.name} #{seq:,} of {self.communicator(group)}"

    def call(self, call: NextCall) -> str:
        """ "Recv from rank 809", "ALL_REDUCE #4,712 of TP group 188"."""
        if call.op.is_p2p:
            word = "Recv from" if call.op is Op.RECV else "Send to"
            if call.peer is None:
                return call.op.name.capitalize()
            return f"{word} rank {call.peer}"
        if call.comm < 0:
            return call.op.name
        return f"{call.op.name} #{call.seq:,} of {self.communicator(call.comm)}"

    def last_call(self, index: int) -> str:
        """The last call of a rank, as it was recorded."""
        frontier = self.graph.frontier
        op = Op(int(frontier.tail_op[index, -1]))
        if op.is_p2p:
            peer = int(frontier.tail_peer[index, -1])
            other = f" {'to' if op is Op.SEND else 'from'} rank {peer}" if peer >= 0 else ""
            return f"{op.name.capitalize()}{other}"
        comm = int(frontier.tail_comm[index, -1])
        of = f" of {self.communicator(comm)}" if comm >= 0 else ""
        return f"{op.name} #{int(frontier.tail_seq[index, -1]):,}{of}"

    def chain(self, victim: int, ends: set[int]) -> tuple[str, ...]:
        """From a victim (index) to one of the ends, one step each; shortest that a breadth-first search
        finds."""
        graph = self.graph
        came: dict[int, tuple[int, int, Hold]] = {}
        seen, edge, looked = {victim}, [victim], set[int]()
        goal = victim if victim in ends else None
        while edge and goal is None:
            after = []
            for rank in edge:
                for instance in graph.wait_instance[graph.wait_rank == rank]:
                    holders = [] if int(instance) in looked else graph.holders(int(instance))
                    looked.add(int(instance))
                    for holder, why in holders:
                        if holder < 0 or holder in seen:
                            continue
                        seen.add(holder)
                        came[holder] = (rank, int(instance), why)
                        after.append(holder)
                        goal = holder if holder in ends and goal is None else goal
            edge = after
        steps: list[str] = []
        while goal is not None and goal != victim:
            rank, instance, why = came[goal]
            steps.append(
                f"rank {graph.frontier.ranks[rank]} waits for rank {graph.frontier.ranks[goal]} "
                f"in {self.instance(instance)} ({_WHY[why]})"
            )
            goal = rank
        return tuple(reversed(steps))


_WHY = {
    Hold.ABSENT: "not called there",
    Hold.QUEUED: "queued there behind an earlier call",
    Hold.UNSTARTED: "called there, not started on its device",
    Hold.UNRECORDED: "nothing recorded there",
}


def place_in_job(where: Where) -> str:
    """ ": stage 2, forward of micro-batch 2, iteration 6", ": stage 2, after iteration 5", or nothing.

    What follows the last gradient synchronisation is counted to the next iteration; to a reader it is the end
    of the one before.
    """
    parts = []
    if where.stage is not None:
        parts.append(f"stage {where.stage}")
    if where.phase is Phase.OTHER and where.iteration:
        parts.append(f"after iteration {where.iteration - 1}")
        return ": " + ", ".join(parts)
    if where.phase is not None:
        of = f" of micro-batch {where.micro_batch}" if where.micro_batch is not None else ""
        parts.append(f"{where.phase.value}{of}")
    if where.iteration is not None:
        parts.append(f"iteration {where.iteration}")
    return ": " + ", ".join(parts) if parts else ""
