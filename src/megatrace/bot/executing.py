"""Runs one check against one machine, whatever it does short of never returning.

The one place where any exception of a check is caught: a check with a bug is UNKNOWN with the reason, and the
others go on. What cannot be caught in the same process (a hang, a killed process) is the business of
``check_runner``."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from megatrace.bot.catalogue import CheckInfo
from megatrace.bot.counters import Counters
from megatrace.bot.look import Look, Problem, Skipped, Unknown
from megatrace.model.check import CheckResult, Outcome
from megatrace.model.system import System, Unreadable, Why
from megatrace.registry import Registry, Unavailable

MAX_PROBLEMS = 64
"""Of one check: a node has at most 16 GPUs, 16 ports and 24 disks; more is a flood."""


@dataclass
class Bench:
    """What one round of checks shares."""

    registry: Registry[Any]
    system: System
    counters: Counters = field(default_factory=Counters)
    template: Mapping[str, object] = field(default_factory=dict)
    shared: dict[str, object] = field(default_factory=dict)
    rebooted: bool = False
    tell: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class Executed:
    """A result, and the counters that were read for it."""

    result: CheckResult
    readings: tuple[tuple[str, str, float | str], ...] = ()


def execute(info: CheckInfo, bench: Bench) -> Executed:
    """Runs a check; never raises."""
    begun = time.monotonic()
    look = Look(
        info,
        bench.system,
        bench.system.now(),
        bench.counters,
        bench.template,
        bench.shared,
        bench.rebooted,
        tell=bench.tell,
    )
    outcome, reason, problems = _outcome(info, bench, look)
    result = CheckResult(
        check=info.id,
        outcome=outcome,
        reason=reason,
        findings=tuple(problem.finding for problem in problems),
        steps=tuple(problem.step for problem in problems),
        seconds=round(time.monotonic() - begun, 4),
        measured=look.measured,
    )
    return Executed(result, tuple(look.readings))


def _outcome(info: CheckInfo, bench: Bench, look: Look) -> tuple[Outcome, str, list[Problem]]:
    problems: list[Problem] = []
    try:
        found = bench.registry.load(info.id)
        if isinstance(found, Unavailable):
            return Outcome.SKIPPED, found.reason, []
        for problem in found(look):
            problems.append(problem)
            if len(problems) >= MAX_PROBLEMS:
                break
    except Skipped as skipped:
        reason, outcome = str(skipped), Outcome.SKIPPED
    except Unknown as unknown:
        reason, outcome = str(unknown), Outcome.UNKNOWN
    except Unreadable as error:
        reason, outcome = str(error), _unreadable(error)
    except Exception as error:  # noqa: BLE001 - the boundary: a check with a bug must harm nobody
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rpartition('/')[2]} line {where.lineno}"
        reason, outcome = (
            f"the check crashed: {type(error).__name__}: {error} ({place})"[:400],
            Outcome.UNKNOWN,
        )
    else:
        reason, outcome = look.said, Outcome.OK
    if problems:
        failed = any(problem.outcome is Outcome.FAIL for problem in problems)
        outcome = Outcome.FAIL if failed else Outcome.WARN
    return outcome, reason, problems


def _unreadable(error: Unreadable) -> Outcome:
    """A file that needs root, or that an older recording lacks, says nothing of the machine."""
    return Outcome.SKIPPED if error.why in (Why.DENIED, Why.NOT_RECORDED) else Outcome.UNKNOWN
