"""What differs between two profiled runs: times by operator, kernel and collective, and what the runs were
told.

Times are ns of one rank in one training step, so runs of different length and size can be laid side by side.
A difference is what was measured; a change of a setting is what may explain it. Neither accuses anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from megatrace.model.profile_result import TimeKind
from megatrace.model.run_settings import Area


class Subject(Enum):
    """What a difference is about."""

    OPERATOR = "operator"
    """own time on the host"""
    KERNEL = "kernel"
    """time on the device"""
    COLLECTIVE = "collective"
    """time of a communication kernel of one size and group"""


class Change(Enum):
    """How a thing differs in the second run."""

    NEW = "new"
    GONE = "gone"
    SLOWER = "slower"
    """each call takes longer"""
    FASTER = "faster"
    MORE = "more calls"
    FEWER = "fewer calls"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that differs; None where a run had none of it (or nobody recorded it)."""

    area: Area
    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One operator, kernel or collective. Times in ns, counts, both a step and rank; 0 where it does not
    occur.

    ``instead_of`` names what is gone where the same operator launched it before.
    """

    subject: Subject
    name: str
    change: Change
    before: float
    after: float
    before_count: float
    after_count: float
    instead_of: str = ""

    @property
    def delta(self) -> float:
        """ns a step and rank that it takes longer."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the device's step: how long, before and after (ns)."""

    name: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class ProfileDiff:
    """Two runs side by side; ``before`` and ``after`` name them.

    ``step_before`` and ``step_after`` are ns of the median step (or of the device's span where no steps were
    marked: ``stepped`` False). ``differences`` are those worth a word, the most time first; ``path`` compares
    the critical path by kind, ns a step.
    """

    before: str
    after: str
    step_before: float
    step_after: float
    stepped: bool
    parts: tuple[Part, ...]
    path: tuple[tuple[TimeKind, float, float], ...]
    differences: tuple[Difference, ...]
    settings: tuple[SettingChange, ...]
    recorded: tuple[Area, ...]
    """areas of which both runs recorded something"""
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The later step against the earlier one."""
        return self.step_after / self.step_before if self.step_before else 1.0
