"""Parts of `megatrace inspect`: a gate for jobs, and boards, switches and schedulers asked from here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from megatrace.bot.catalogue import CheckInfo, select
from megatrace.bot.check_runner import GRACE_S, Switches, run_inline
from megatrace.bot.checks import CHECKS
from megatrace.bot.counters import Counters, load, save
from megatrace.bot.gate import LOOK_S, completed, decide, fast, told, within
from megatrace.bot.inspecting import catalogue, inspect_here, state_file
from megatrace.bot.ledger import default_ledger, remembered
from megatrace.bot.live_system import LiveSystem
from megatrace.bot.targets import TargetSystem
from megatrace.errors import EXIT_FAULT_FOUND, EXIT_OK, UsageError
from megatrace.model.check import Inspection, Scope

JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID", "JOB_NAME")
"""Where a scheduler says for which job a gate is asked."""
AROUND = ("BMC", "switch", "scheduler")
"""Scopes that are asked from here rather than looked at in a node."""


def gate(
    template: Mapping[str, object],
    switches: Switches,
    host: str,
    state: Path | None,
    ledger: Path | None,
    controller: str | None,
) -> int:
    """10 where the job may not start here, else 0; says why in one line. Keeps what was found as any
    inspection does."""
    asked = fast(catalogue())
    checks = within(asked, LOOK_S, GRACE_S)
    found, _ = inspect_here(checks, host=host, template=template, switches=switches, state=state)
    found = completed(found, asked)
    job = next((os.environ[name] for name in JOB_VARIABLES if name in os.environ), "")
    verdict = decide(found, controller, job)
    remembered(found, LiveSystem(host), ledger or default_ledger())
    print(told(verdict, found), file=sys.stderr)
    return EXIT_FAULT_FOUND if verdict.closed else EXIT_OK


def look_around(
    scope: str,
    name: str | None,
    checks: tuple[str, ...],
    template: Mapping[str, object],
    switches: Switches,
    state: Path | None,
) -> Inspection:
    """Asks a board, a switch or a scheduler from here. Its counters are kept in a file of its own.

    Raises UsageError where it has no name: findings must accuse it and not this machine."""
    if name is None:
        raise UsageError(f"--scope {scope} needs --name: what is looked at is not this machine")
    wanted: tuple[CheckInfo, ...] = select(catalogue(), scopes=(Scope(scope),), names=checks)
    if not wanted:
        raise UsageError(f"no check of scope {scope} has such a name")
    place = _state_of(state, name)
    counters = load(place) if place is not None else Counters()
    system = TargetSystem(name)
    results = run_inline(wanted, system, CHECKS, counters=counters, template=template, switches=switches)
    kept = place is not None and save(counters, place)
    notes = () if kept else ("growth of counters is not judged: there is no place to keep them",)
    seconds = round(sum(result.seconds for result in results), 3)
    return Inspection(name, system.now(), scope, tuple(results), seconds, notes)


def _state_of(state: Path | None, name: str) -> Path | None:
    base = state or state_file()
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return None if base is None else base.with_name(f"{base.stem}-{safe}.json")
