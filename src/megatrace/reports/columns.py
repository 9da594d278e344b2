"""Line breaking and columns for a terminal, where a Chinese character takes two cells.

Own and small because the lines of a report have a hanging indent under their label and because nothing in
them may be read as markup: input strings pass through as they are. Widths come from rich's tables of the
Unicode standard.

Does not colour: colour codes take no cells and would have to be known here; `terminal` adds them afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

SEPARATOR = " · "

_TOKEN = re.compile(r"\s+|[⺀-鿿　-〿＀-￯]|[^\s⺀-鿿　-〿＀-￯]+")
"""A run of blanks, one wide character (lines may break before any of them), or a word."""

_SHORT = 6
"""A line is not left this short (in cells, "P3 ·") to keep the item after it whole."""

_GLUE = "\ue000"
"""Stands for a blank at which no line breaks (a private character: no text has it, or it becomes a blank)."""

_GLUED = re.compile(
    r"\d (?:ns|µs|ms|s|m|h|d|%|B|[KMGT]iB|GPU-hours?|UTC)(?![\w-])"
    r"|\b(?:ranks?|stages?|group|micro-batch(?:es)?|iterations?|step|TP|DP|CP|EP|PP) \d"
    r"|\bt = \d|\d → \d"
)
"""Blanks inside of a quantity ("17.1 s", "1.61 → 3.25 s") or a name ("rank 809", "micro-batch 1")."""

_NEVER_FIRST = frozenset("，。；：！？、）】」』》％")
"""Closing punctuation must not begin a line."""


def cells(text: str) -> int:
    """How many terminal cells a text takes."""
    return cell_len(text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """A text filled with blanks to a width in cells; longer texts stay as they are."""
    blanks = " " * max(width - cells(text), 0)
    return blanks + text if right else text + blanks


def clip(text: str, width: int) -> str:
    """A text cut to a width in cells, with an ellipsis where it was cut."""
    if cells(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells; longer words are cut. At least one line, which may be empty.

    Items joined by " · " are kept whole where they fit, so that "rank 809" does not lose its number.
    """
    width = max(width, 2)
    items = _GLUED.sub(_glued, text).split(SEPARATOR)
    lines = [""]
    for index, item in enumerate(items):
        ending = SEPARATOR.rstrip() if index < len(items) - 1 else ""
        if lines[-1] and cells(f"{lines[-1]} {item}{ending}") <= width:
            lines[-1] += f" {item}{ending}"
        elif lines[-1] and (cells(item + ending) > width or cells(lines[-1]) <= _SHORT):
            # It fits nowhere as a whole, or would leave nearly nothing before it: go on beside.
            lines[-1:] = _words(f"{lines[-1]} {item}{ending}", width)
        else:
            lines[-1:] = [*filter(None, lines[-1:]), *_words(item + ending, width)]
    return [line.replace(_GLUE, " ") for line in lines]


def _glued(match: re.Match[str]) -> str:
    return match.group().replace(" ", _GLUE)


def _words(text: str, width: int) -> list[str]:
    lines: list[str] = []
    line = ""
    for token in _pieces(text, width):
        if not line.strip() and token.isspace():
            continue
        if cells(line) + cells(token) <= width:
            line += token
            continue
        if token in _NEVER_FIRST and len(line) > 1 and cells(line[-1] + token) <= width:
            lines.append(line[:-1].rstrip())
            line = line[-1] + token
            continue
        lines.append(line.rstrip())
        line = "" if token.isspace() else token
    if line.strip() or not lines:
        lines.append(line.rstrip())
    return lines


def _pieces(text: str, width: int) -> Iterator[str]:
    for token in _TOKEN.findall(text):
        while cells(token) > width:
            head = _head(token, width)
            yield head
            token = token[len(head) :]
        yield token


def _head(token: str, width: int) -> str:
    """The longest beginning that fits, at least one character."""
    taken = 0
    for index, char in enumerate(token):
        taken += cells(char)
        if taken > width:
            return token[: max(index, 1)]
    return token


def hang(first: str, rest: str, text: str, width: int) -> list[str]:
    """A text wrapped after a prefix; further lines begin with `rest` (as wide as `first`)."""
    lines = wrap(text, width - cells(first))
    return [(first if index == 0 else rest) + line for index, line in enumerate(lines)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table with right-aligned columns, two blanks apart; the last column is aligned left."""
    widths = [max(cells(row[i]) for row in (head, *rows)) for i in range(len(head))]
    last = len(head) - 1
    return [
        "  ".join(pad(cell, widths[i], right=i < last) for i, cell in enumerate(row)).rstrip()
        for row in (head, *rows)
    ]
