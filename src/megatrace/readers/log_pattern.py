"""How a kind of log line is described: a word that must stand in it, and an expression with named parts.

A table of patterns is most of a recogniser. The word makes reading fast: the expression runs only on lines that
have it. Named parts become fields of the fact; ``rank``, ``local``, ``node``, ``device`` and ``code`` go to their places.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from megatrace.model.series import FactKind, LogFact, Value
from megatrace.readers.log_clean import Line

MAX_TEXT = 400
"""Characters of a line that a fact quotes."""
_PLACES = frozenset({"rank", "local", "node", "device", "code"})
_INT = re.compile(r"-?\d{1,18}", re.ASCII)
_FLOAT = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)


class Recogniser(Protocol):
    """Knows some kinds of lines. ``needles``: a line without any of them is shown only while ``open``."""

    needles: tuple[str, ...]

    @property
    def open(self) -> bool:
        """Whether it wants the next lines whatever they hold."""
        ...

    def feed(self, line: Line) -> list[LogFact]:
        """What a line states."""
        ...

    def flush(self) -> list[LogFact]:
        """What the end of a file completes."""
        ...


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line."""

    kind: FactKind
    name: str
    needle: str
    form: re.Pattern[str]


def pattern(kind: FactKind, name: str, needle: str, form: str) -> Pattern:
    """A pattern of plain texts; ``form`` is searched for, ASCII digits only."""
    return Pattern(kind, name, needle, re.compile(form, re.ASCII))


def value(text: str) -> Value:
    """A number where the whole text is one."""
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text.strip()


def fact_of(line: Line, kind: FactKind, name: str, parts: dict[str, str | None], **more: Value) -> LogFact:
    """The fact that a line states, with its parts in their places."""
    fields = tuple(
        (key, value(part)) for key, part in parts.items() if part is not None and key not in _PLACES
    )

    def number(key: str) -> int | None:
        part = parts.get(key)
        return int(part) if part and _INT.fullmatch(part) else None

    rank = number("rank")
    local = number("local")
    return LogFact(
        kind,
        line.text[:MAX_TEXT],
        time=line.time,
        rank=rank if rank is not None else line.rank,
        node=parts.get("node") or line.node,
        device=parts.get("device"),
        code=number("code"),
        name=name,
        fields=fields + tuple(more.items()),
        source=line.source,
        line=line.number,
        local_rank=local if local is not None else line.local_rank,
        clock=line.clock,
    )


class Table:
    """A recogniser that is nothing but a table: the first pattern that fits a line states the fact."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = tuple(patterns)
        self.needles = tuple(dict.fromkeys(item.needle for item in patterns))

    @property
    def open(self) -> bool:
        """Never: each line stands alone."""
        return False

    def feed(self, line: Line) -> list[LogFact]:
        """At most one fact a line."""
        for item in self._patterns:
            if item.needle in line.text:
                match = item.form.search(line.text)
                if match is not None:
                    return [fact_of(line, item.kind, item.name, match.groupdict())]
        return []

    def flush(self) -> list[LogFact]:
        """Nothing is held back."""
        return []
