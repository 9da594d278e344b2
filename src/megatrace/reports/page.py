"""A page of labelled rows for a terminal: a label column, wrapped text beside it, colour where it is wanted.

Colour is only an accent: every word that matters is there without it. Codes are the eight standard colours,
because those follow the reader's own dark or light theme.

Does not know what a diagnosis is.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from megatrace.reports.columns import cells, hang, pad

INDENT = 2
MIN_WIDTH = 40
"""Narrower than this no label column makes sense; lines then run over and the terminal wraps them."""


class Style(Enum):
    """Select Graphic Rendition codes (ECMA-48)."""

    PLAIN = ""
    BOLD = "1"
    DIM = "2"
    RED = "1;31"
    GREEN = "32"
    YELLOW = "1;33"
    MAGENTA = "1;35"
    CYAN = "36"


class Page:
    """Collects lines. ``width`` in cells, ``label_width`` cells for the widest label."""

    def __init__(self, width: int, label_width: int, colour: bool) -> None:
        self.width = max(width, MIN_WIDTH)
        self.margin = INDENT + label_width + 2
        self.colour = colour
        self._lines: list[str] = []

    @property
    def room(self) -> int:
        """Cells beside the label."""
        return self.width - self.margin

    def text(self) -> str:
        """Everything so far, with a final newline."""
        return "\n".join(self._lines) + "\n"

    def blank(self) -> None:
        """An empty line, never two in a row and never the first."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def headline(self, word: str, style: Style, text: str) -> None:
        """A verdict and its sentence, which hangs under its own beginning."""
        first = f"{word}  "
        lines = hang(first, " " * cells(first), text, self.width)
        self._lines.append(self._paint(style, word) + self._paint(Style.BOLD, lines[0][len(word) :]))
        self._lines += [self._paint(Style.BOLD, line) for line in lines[1:]]

    def row(
        self, label: str, items: Sequence[str], *, bullets: bool = False, style: Style = Style.PLAIN
    ) -> None:
        """A label and its items, each on its own lines; nothing where there are no items."""
        mark = "• " if bullets else ""
        rest = " " * (self.margin + cells(mark))
        for index, item in enumerate(items):
            head = self._head(label if index == 0 else "")
            for number, line in enumerate(hang(head + mark, rest, item, self.width)):
                tail = line[len(head) :] if number == 0 else line
                begin = (
                    self._paint(Style.DIM, head)
                    if number == 0 and index == 0
                    else head
                    if number == 0
                    else ""
                )
                self._lines.append((begin + self._paint(style, tail)).rstrip())

    def numbered(self, label: str, items: Sequence[tuple[str, str]], first: int = 1) -> None:
        """Commands with reasons: "1. command   (why)", the reason below where it does not fit beside."""
        for index, (command, why) in enumerate(items, start=first):
            head = self._head(label if index == first else "")
            mark = f"{index}. "
            reason = f"({why})" if why else ""
            fits = self.margin + cells(mark) + cells(command) + 3 + cells(reason) <= self.width
            begin = self._paint(Style.DIM, head) if index == first else head
            # A command is never wrapped: it is there to be copied.
            line = begin + mark + self._paint(Style.CYAN, command)
            self._lines.append(line + (f"   {reason}" if reason and fits else ""))
            if reason and not fits:
                indent = " " * (self.margin + len(mark))
                self._lines += hang(indent, indent, reason, self.width)

    def right(self, label: str, left: str, right: str, style: Style) -> None:
        """One row with something at the right edge, or below where there is no room for that."""
        room = min(self.width, self.margin + 90) - self.margin
        if cells(left) + cells(right) + 2 > room:
            self.row(label, [left], style=style)
            self.row("", [right])
            return
        head = self._paint(Style.DIM, self._head(label))
        self._lines.append(head + self._paint(style, pad(left, room - cells(right))) + right)

    def block(self, label: str, lines: Sequence[str], styles: Sequence[Style] = ()) -> None:
        """Lines that are laid out already (a table)."""
        for index, line in enumerate(lines):
            style = styles[index] if index < len(styles) else Style.PLAIN
            head = self._head(label if index == 0 else "")
            self._lines.append(
                ((self._paint(Style.DIM, head) if index == 0 else head) + self._paint(style, line)).rstrip()
            )

    def _head(self, label: str) -> str:
        return " " * INDENT + pad(label, self.margin - INDENT)

    def _paint(self, style: Style, text: str) -> str:
        if not self.colour or style is Style.PLAIN or not text.strip():
            return text
        return f"\x1b[{style.value}m{text}\x1b[0m"
