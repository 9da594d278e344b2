"""A new template tried on recorded machines before anybody is accused by it.

Every machine is judged twice, by the template in force and by the new one; whose verdict changes is named. A
new template that changes the verdict of more than 2 % of the machines is held until a person says so: either
the fleet drifted, or the template is wrong, and only a person can tell which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from megatrace.bot.catalogue import CheckInfo
from megatrace.bot.inspecting import inspect_recording
from megatrace.bot.recorded_system import Recording
from megatrace.bot.templates import HELD_ABOVE
from megatrace.model.check import Inspection, Outcome


@dataclass(frozen=True, slots=True)
class Changed:
    """A machine whose verdict changes; ``new`` and ``gone`` are findings in words."""

    node: str
    new: tuple[str, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a new template would do. ``machines`` is how many were judged."""

    machines: int
    changed: tuple[Changed, ...]

    @property
    def share(self) -> float:
        """Of machines whose verdict changes, 0 to 1."""
        return len(self.changed) / self.machines if self.machines else 0.0

    @property
    def held(self) -> bool:
        """Whether a person has to say so first. One machine of a few is held too: it may be all of them."""
        return self.share > HELD_ABOVE


def evaluate(
    machines: Iterable[Recording],
    new: Mapping[str, object],
    old: Mapping[str, object],
    wanted: tuple[CheckInfo, ...] | None = None,
) -> Shadow:
    """Judges every machine by both templates, with all passive checks of nodes unless told which."""
    count = 0
    changed = []
    for recording in machines:
        count += 1
        before, after = (
            _verdict(inspect_recording(recording, wanted, template=template)) for template in (old, new)
        )
        if before != after:
            appear, vanish = sorted(after - before), sorted(before - after)
            changed.append(Changed(recording.name, tuple(appear), tuple(vanish)))
    return Shadow(count, tuple(changed))


def _verdict(inspection: Inspection) -> set[str]:
    """What counts: findings of checks that are not merely watched, and checks that could not look."""
    found = {
        f"{result.check} {finding.severity.name} {finding.summary}"
        for result, finding, _ in inspection.troubles
        if not result.observed
    }
    return found | {f"{result.check} cannot tell" for result in inspection.of(Outcome.UNKNOWN)}
