"""A claim about one end of the chains, and what every claim needs: names of its ranks, its link, its
communicator.

Kept apart so that the modules that make claims (``hang_stopped`` for ranks that stopped, ``hang_stuck``
for calls and devices that did) do not know each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatrace.analysis.hang_call import NextCall
from megatrace.analysis.hang_roots import Root, RootKind
from megatrace.analysis.hang_words import PlaceOf, Words
from megatrace.analysis.waits_for import WaitsFor
from megatrace.model.finding import Endpoint, Evidence, Kind, Link
from megatrace.model.layout import ParallelLayout


@dataclass(frozen=True, slots=True)
class Claim:
    """What is said of one end: everything of a finding that depends on its kind."""

    kind: Kind
    ranks: tuple[int, ...]
    """indices"""
    text: str
    """the sentence without its place in the job"""
    confidence: float
    alternatives: tuple[Kind, ...] = ()
    ambiguous: bool = False
    call: NextCall | None = None
    instance: int | None = None
    evidence: tuple[Evidence, ...] = ()
    exonerated: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    nodes: tuple[str, ...] = ()


class Scene:
    """What claims are made about: a graph, the words for it, the layout, and where ranks run."""

    def __init__(
        self, graph: WaitsFor, words: Words, layout: ParallelLayout | None, place_of: PlaceOf
    ) -> None:
        self.graph, self.words, self.layout, self.place_of = graph, words, layout, place_of
        self.frontier = graph.frontier

    def name(self, ranks: tuple[int, ...]) -> str:
        """One rank with its place, or several ranks (indices)."""
        return self.words.rank(ranks[0]) if len(ranks) == 1 else self.words.ranks(ranks)

    def comm(self, instance: int) -> int:
        """The communicator of a collective, −1 for P2P."""
        group = int(self.graph.instances.group[instance])
        return group if group < self.graph.pairs.base else -1

    def link(self, src: int, dst: int) -> Link:
        """The path between two global ranks."""
        ends = [self.place_of(rank) for rank in (src, dst)]
        a, b = (Endpoint(place.rank, place.node, place.device) for place in ends)
        return Link(a, b)


def circle(scene: Scene, roots: list[Root]) -> str:
    """The circle among the roots, as "rank 1 in A, which waits for rank 2 in B, which waits for rank 1"."""
    root = next(root for root in roots if root.kind is RootKind.CYCLE)
    steps = [
        f"rank {scene.frontier.ranks[rank]} in {scene.words.instance(instance)}"
        for rank, instance in zip(root.ranks, root.instances, strict=True)
    ]
    return ", which waits for ".join([*steps, f"rank {scene.frontier.ranks[root.ranks[0]]}"])
