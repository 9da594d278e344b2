"""Parts of machines by their own numbers, and what became of them.

A place (a PCI address, a port) is where a fault shows; the part that sits there is what has it, and takes it
along when it is moved. Types only: `bot.ledger` keeps them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from megatrace.model.finding import Severity

FAULT, MOVED, CLEARED = "fault", "moved", "cleared"
"""What an event of a record is."""


@dataclass(frozen=True, slots=True)
class Component:
    """One part. ``serial`` what the maker engraved, ``uuid`` another number of its own; one of both is there.
    ``slot`` is its place as findings name it first, ``names`` all words for it."""

    kind: str
    serial: str
    uuid: str
    slot: str
    model: str = ""
    names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What it is known by: its serial number, else its UUID."""
        return self.serial or self.uuid

    def is_called(self, device: str) -> bool:
        """Whether a finding's device is this part: itself, or a partition, port or namespace of it."""
        words = (self.slot, *self.names)
        return device in words or any(
            re.fullmatch(rf"{re.escape(word)}(?:/\d+|n\d+|p\d+)+", device) for word in words
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a record. ``began``, ``seen`` (last), ``ended`` ns since the epoch; ended None: it lasts.
    ``source`` is the check, or who cleared it."""

    what: str
    node: str
    slot: str
    began: int
    seen: int
    ended: int | None
    source: str
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """A part, or a machine by its name (``kind`` "node"), with all that happened, newest first."""

    kind: str
    name: str
    model: str
    node: str
    slot: str
    first_seen: int
    last_seen: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Lemon:
    """Something that breaks again and again: ``episodes`` on ``days`` different days in the window."""

    kind: str
    name: str
    node: str
    slot: str
    episodes: int
    days: int
    last: int
    worst: Severity
    text: str
