"""What files without calls state (logs, outputs of tools, metrics, alerts, tables), on its way to a Trace.

Each of those readers turns a file into facts; what is common to them stands here: facts carry the name of
their file, and one fact of the kind ``LINES`` says of each file how much of it stated something.

Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from megatrace.errors import TraceError
from megatrace.model.events import Events
from megatrace.model.series import FactKind, LogFact
from megatrace.model.trace import Coverage, InputInfo, Trace


class Statements:
    """Facts and notes of all files that one reader took."""

    def __init__(self, reader: str) -> None:
        self.facts: list[LogFact] = []
        self.notes: list[str] = []
        self._reader = reader
        self._inputs: list[InputInfo] = []

    def take(
        self, name: str, facts: Iterable[LogFact], *, shape: str, lines: int, stated: int, ranks: int = 0
    ) -> None:
        """One file: what it states, what kind of text it is, its lines, and how many facts it holds."""
        self.facts += [fact if fact.source == name else replace(fact, source=name) for fact in facts]
        fields = ("shape", shape), ("lines", lines), ("stated", stated)
        self.facts.append(LogFact(FactKind.LINES, "", name="read", fields=fields, source=name))
        self._inputs.append(InputInfo(name, self._reader, frozenset(), ranks))

    def trace(self, nothing: str) -> Trace:
        """A Trace of facts. Raises TraceError with ``nothing`` where no file was taken."""
        if not self._inputs:
            raise TraceError(nothing)
        return Trace(
            Events.empty(),
            coverage=Coverage(notes=tuple(self.notes)),
            inputs=tuple(self._inputs),
            facts=tuple(self.facts),
        )
