"""Adds the scores up: one row per (fault, source), the goals, and every miss with its command.

Precision counts every serious finding that fits no fault, an accusation of somebody innocent or a right rank
with a wrong kind or window alike; recall counts positive faults. A fault that bubbles absorbed counts in
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.accuracy.cases import SOURCES
from benchmarks.accuracy.drawing import HANGS
from benchmarks.accuracy.running import Record
from benchmarks.measure import Goal


@dataclass(slots=True)
class Row:
    """Counts of runs of one kind with one kind of source."""

    runs: int = 0
    positives: int = 0
    hits: int = 0
    wrong: int = 0
    accusations: int = 0
    undecided: int = 0
    ambiguous: int = 0
    separable: int = 0
    located: int = 0
    locatable: int = 0
    crashes: int = 0

    def add(self, record: Record) -> None:
        """Counts one run."""
        self.runs += 1
        self.crashes += "crash" in record
        self.wrong += len(record["wrong"])
        self.accusations += len(record["accusations"])
        self.undecided += record.get("verdict") == "undecidable"
        for fault in record["faults"]:
            if not fault["positive"]:
                continue
            self.positives += 1
            self.hits += fault["hit"]
            if fault["separable"]:
                self.separable += 1
                self.ambiguous += fault["ambiguous"]
            if fault["where_right"] is not None:
                self.locatable += 1
                self.located += fault["where_right"]

    @property
    def precision(self) -> float:
        """Hits among all that was said; 1 where nothing was."""
        return self.hits / (self.hits + self.wrong) if self.hits + self.wrong else 1.0

    @property
    def recall(self) -> float:
        """Hits among all positive faults; 1 where there were none."""
        return self.hits / self.positives if self.positives else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of the two."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    @property
    def ambiguous_share(self) -> float:
        """Share of ambiguous answers where the source can separate."""
        return self.ambiguous / self.separable if self.separable else 0.0

    def as_json(self) -> dict[str, float]:
        """The row as it stands in the result file."""
        return {
            "runs": self.runs,
            "positives": self.positives,
            "hits": self.hits,
            "wrong_findings": self.wrong,
            "false_accusations": self.accusations,
            "undecided": self.undecided,
            "ambiguous_share": round(self.ambiguous_share, 4),
            "located": self.located,
            "locatable": self.locatable,
            "precision": round(self.precision, 4),
            "recall": round(self.recall, 4),
            "f1": round(self.f1, 4),
            "crashes": self.crashes,
        }


def kind_of(fault: str) -> str:
    """hang, slow or healthy."""
    if fault.startswith("healthy"):
        return "healthy"
    return "hang" if fault in HANGS else "slow"


def summed(records: Iterable[Record], name: Callable[[str], str]) -> dict[tuple[str, str], Row]:
    """Rows by (name of the fault's row, source), in order of appearance."""
    rows: dict[tuple[str, str], Row] = {}
    for record in records:
        if not record.get("impossible"):
            rows.setdefault((name(record["fault"]), record["source"]), Row()).add(record)
    return rows


def missed(record: Record) -> list[str]:
    """What is wrong with a run, one sentence each; empty for a right one."""
    return list(record.get("reasons", ()))


def goals(records: Iterable[Record]) -> list[Goal]:
    """What was promised, against what was measured."""
    rows = summed(records, kind_of)

    def row(kind: str, source: str) -> Row:
        return rows.get((kind, source), Row())

    found = [
        Goal("ring hangs, precision", row("hang", "ring").precision, 1.0, at_least=True),
        Goal("ring hangs, recall", row("hang", "ring").recall, 1.0, at_least=True),
        Goal("ring slowness, F1", row("slow", "ring").f1, 0.97, at_least=True),
    ]
    for source in SOURCES[1:]:
        found.append(Goal(f"{source} hangs, hits", row("hang", source).recall, 1.0, at_least=True))
        found.append(Goal(f"{source} slowness, F1", row("slow", source).f1, 0.95, at_least=True))
    for source in SOURCES:
        healthy = row("healthy", source)
        found.append(Goal(f"{source} healthy runs", healthy.runs, 100, at_least=True))
        found.append(Goal(f"{source} findings on healthy runs", healthy.wrong, 0))
        for kind in ("hang", "slow"):
            share = row(kind, source).ambiguous_share
            found.append(Goal(f"{source} {kind}, ambiguous where separable", share, 0.10))
    return found
