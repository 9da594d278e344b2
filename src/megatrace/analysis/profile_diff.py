"""Compares two profiled runs: what became slower, what is new or gone, and which settings changed with it.

Times are brought to one rank and one step, because runs differ in how long and on how many ranks they were
the machine or a library, the second of the program.

Names are compared as they are. A library that renames its kernels makes new ones and gone ones; those that
the same operator launched are named together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from megatrace.model.profile_diff import (
    Change,
    Difference,
    Part,
    ProfileDiff,
    SettingChange,
    Subject,
)
from megatrace.model.profile_result import CriticalPath, ProfileResult, TimeKind
from megatrace.model.run_settings import Area, Setting

WORTH = 0.005
"""Share of a step below which a difference is not worth a word: two runs of one program differ by as much."""
CHANGED = 1.05
"""Times as long (or as often) from which a call is slower: medians of one kernel repeat within some per
cent."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One thing of one run: ns and calls a step and rank, and what launched it."""

    time: float
    count: float
    launched_by: str = ""


def compare(
    before: ProfileResult,
    after: ProfileResult,
    names: tuple[str, str] = ("before", "after"),
    settings: tuple[Sequence[Setting], Sequence[Setting]] = ((), ()),
) -> ProfileDiff:
    """The differences of two runs; ``names`` are how a person calls them."""
    stepped = bool(before.steps and after.steps)
    lengths = [_step(run, stepped) for run in (before, after)]
    shares = [_share(run, stepped) for run in (before, after)]
    found: list[Difference] = []
    for subject in Subject:
        items = [_items(run, subject, share) for run, share in zip((before, after), shares, strict=True)]
        found += _differences(subject, items[0], items[1], WORTH * max(lengths[0], 1.0))
    changes = _changes(*settings)
    return ProfileDiff(
        before=names[0],
        after=names[1],
        step_before=lengths[0],
        step_after=lengths[1],
        stepped=stepped,
        parts=_parts(before, after, shares),
        path=_paths(before, after, shares),
        differences=tuple(sorted(found, key=lambda item: -abs(item.delta))),
        settings=changes,
        recorded=tuple(area for area in Area if all(any(s.area is area for s in run) for run in settings)),
        notes=_notes(before, after),
    )


def _step(run: ProfileResult, stepped: bool) -> float:
    """ns of the median step, or of the mean span of the device."""
    if stepped:
        return float(np.median([step.end - step.start for step in run.steps]))
    return float(np.mean([one.span for one in run.ranks])) if run.ranks else 0.0


def _share(run: ProfileResult, stepped: bool) -> float:
    """What a sum over all ranks and steps is divided by."""
    ranks = len({one.rank for one in run.inputs} | {one.rank for one in run.ranks}) or 1
    return float(len(run.steps) or ranks) if stepped else float(ranks)


def _items(run: ProfileResult, subject: Subject, share: float) -> dict[str, _Item]:
    if subject is Subject.OPERATOR:
        return {one.name: _Item(one.own / share, one.count / share) for one in run.operators}
    if subject is Subject.KERNEL:
        return {
            one.name: _Item(one.total / share, one.count / share, next(iter(one.operators), ""))
            for one in run.kernels
            if one.kind is not TimeKind.COMMUNICATION or not run.collectives
        }
    summed: dict[str, _Item] = {}
    for one in run.collectives:
        size = f" of {one.nbytes:,} bytes" if one.nbytes is not None else ""
        members = f" in {one.group_size} ranks" if one.group_size else ""
        name = f"{one.op.name}{size}{members}"
        old = summed.get(name, _Item(0.0, 0.0))
        summed[name] = _Item(old.time + one.total / share, old.count + one.count / share)
    return summed


def _differences(
    subject: Subject, before: dict[str, _Item], after: dict[str, _Item], least: float
) -> list[Difference]:
    found = []
    none = _Item(0.0, 0.0)
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, none), after.get(name, none)
        change = _change(old, new)
        if change is None or abs(new.time - old.time) < least:
            continue
        instead = _replaced(new.launched_by, before, after) if change is Change.NEW else ""
        found.append(Difference(subject, name, change, old.time, new.time, old.count, new.count, instead))
    return found


def _change(old: _Item, new: _Item) -> Change | None:
    """What changed, None where nothing did that matters."""
    if not old.count or not new.count:
        return Change.NEW if new.count else Change.GONE
    each = (new.time / new.count) / max(old.time / old.count, 1e-9)
    often = new.count / old.count
    if each >= CHANGED or each <= 1 / CHANGED:
        return Change.SLOWER if each > 1 else Change.FASTER
    if often >= CHANGED or often <= 1 / CHANGED:
        return Change.MORE if often > 1 else Change.FEWER
    return None


def _replaced(launched_by: str, before: dict[str, _Item], after: dict[str, _Item]) -> str:
    """The kernel that the same operator launched before and no more, that with most time; "" for none."""
    gone = [
        (item.time, name)
        for name, item in before.items()
        if name not in after and item.launched_by == launched_by
    ]
    return max(gone)[1] if launched_by and gone else ""


def _parts(before: ProfileResult, after: ProfileResult, shares: Sequence[float]) -> tuple[Part, ...]:
    named = (
        ("computing", "compute"),
        ("exposed communication", "exposed"),
        ("hidden communication", "overlap"),
        ("only copies", "memory_only"),
        ("idle", "idle"),
    )
    if not before.ranks or not after.ranks:
        return ()
    return tuple(
        Part(
            name,
            sum(getattr(one, field) for one in before.ranks) / shares[0],
            sum(getattr(one, field) for one in after.ranks) / shares[1],
        )
        for name, field in named
    )


def _paths(
    before: ProfileResult, after: ProfileResult, shares: Sequence[float]
) -> tuple[tuple[TimeKind, float, float], ...]:
    """The critical paths of all ranks by kind, what changed most first."""
    sums = [_by_kind(run.paths, share) for run, share in zip((before, after), shares, strict=True)]
    if not all(sums):
        return ()
    rows = [(kind, sums[0].get(kind, 0.0), sums[1].get(kind, 0.0)) for kind in TimeKind]
    kept = [row for row in rows if row[1] or row[2]]
    return tuple(sorted(kept, key=lambda row: -abs(row[2] - row[1])))


def _by_kind(paths: Iterable[CriticalPath], share: float) -> dict[TimeKind, float]:
    total: dict[TimeKind, float] = {}
    for path in paths:
        for kind, time in path.by_kind:
            total[kind] = total.get(kind, 0.0) + time / share
    return total


def _changes(before: Sequence[Setting], after: Sequence[Setting]) -> tuple[SettingChange, ...]:
    old = {(one.area, one.key): one.value for one in before}
    new = {(one.area, one.key): one.value for one in after}
    known = [{area for area, _ in run} for run in (old, new)]
    return tuple(
        SettingChange(area, key, old.get((area, key)), new.get((area, key)))
        for area, key in sorted({*old, *new}, key=lambda what: (list(Area).index(what[0]), what[1]))
        # An area that one run did not record at all says nothing about it.
        if area in known[0] and area in known[1] and old.get((area, key)) != new.get((area, key))
    )


def _notes(before: ProfileResult, after: ProfileResult) -> tuple[str, ...]:
    notes = []
    if bool(before.steps) != bool(after.steps):
        notes.append("Only one of the runs marks its steps: whole recordings are compared, a rank each.")
    elif not before.steps:
        notes.append("The runs mark no steps: whole recordings are compared, a rank each.")
    counts = [len(run.ranks) for run in (before, after)]
    if counts[0] != counts[1]:
        notes.append(f"Ranks profiled: {counts[0]} before, {counts[1]} after; their means are compared.")
    return tuple(notes)
