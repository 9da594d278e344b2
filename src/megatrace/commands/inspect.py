"""`megatrace inspect`: what is wrong with this machine, how bad, what to do.

Runs the passive checks of the catalogue here, or on a recording of another machine, and prints what they
found. It mends nothing. ``--record`` writes what was looked at as a bundle that gives the same verdict
anywhere.

Which checks there are, and what each looks at, is the catalogue's business (``bot.checks``).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from megatrace import __version__
from megatrace.bot.catalogue import CheckInfo, select
from megatrace.bot.check_runner import Switches
from megatrace.bot.inspecting import catalogue, inspect_here, inspect_recording
from megatrace.bot.ledger import default_ledger, remembered
from megatrace.bot.live_system import LiveSystem
from megatrace.bot.recorded_system import RecordedSystem, Recording
from megatrace.bot.recording import read_recording, write_recording
from megatrace.bot.templates import load as load_template
from megatrace.clock import SystemClock
from megatrace.commands import around, command, output
from megatrace.commands.fleet import Over, look_at
from megatrace.commands.inspect_options import (
    ActiveOption,
    Around,
    Checks,
    ControllerOption,
    DisableOption,
    Format,
    FormatOption,
    GateOption,
    HostOption,
    InventoryOption,
    LedgerOption,
    NameOption,
    NodesOption,
    ObserveOption,
    OverOption,
    ProgramOption,
    Recorded,
    RecordOption,
    ScopeOption,
    SecondsOption,
    SoloPythonOption,
    SpecimenOption,
    StateOption,
    SuspectOption,
    TemplateOption,
    UnmaskedOption,
    VerboseOption,
    WatchOption,
)
from megatrace.commands.specimens import inspect_specimen, listing
from megatrace.commands.watching import watch_here
from megatrace.errors import UnknownName, UsageError
from megatrace.model.check import Cost, Inspection
from megatrace.reports import ReportOptions, inspection


@command(
    "inspect",
    summary="says what is wrong with this machine, how bad, what to do",
    examples=[
        "megatrace inspect",
        "megatrace inspect --check GPU --check IB-01 --verbose",
        "megatrace inspect --record node188.tar.gz",
        "megatrace inspect --system node188.tar.gz --format json",
    ],
    order=12,
)
def inspect(
    check: Checks = None,
    format_name: FormatOption = Format.text,
    system: Recorded = None,
    record: RecordOption = None,
    disable: DisableOption = None,
    observe: ObserveOption = None,
    state: StateOption = None,
    ledger: LedgerOption = None,
    suspect: SuspectOption = None,
    solo_python: SoloPythonOption = "python3",
    host: HostOption = "/",
    specimen: SpecimenOption = None,
    active: ActiveOption = False,
    template_name: TemplateOption = None,
    gate: GateOption = False,
    controller: ControllerOption = None,
    scope: ScopeOption = Around.node,
    name: NameOption = None,
    nodes: NodesOption = None,
    over: OverOption = Over.ssh,
    program: ProgramOption = "megatrace",
    inventory: InventoryOption = None,
    watch: WatchOption = False,
    seconds: SecondsOption = None,
    unmasked: UnmaskedOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Runs the passive health checks of this machine.

    Works without root; checks that need it are skipped and say so. Growth of counters is judged from the
    second inspection on.
    """
    if specimen == "list":
        sys.stdout.write(listing())
        return 0
    wanted = _wanted(check, active, suspect, scope)
    template = load_template(template_name) if template_name is not None else {}
    template |= {} if suspect is None else {"suspect.gpu": suspect, "suspect.python": solo_python}
    switches = Switches(_known(disable), _known(observe))
    if nodes is not None:
        as_json = format_name is Format.json
        return look_at(nodes, over, program, check or [], inventory, as_json, verbose)
    if gate:
        return around.gate(template, switches, host, state, ledger, controller)
    if scope is not Around.node:
        found = around.look_around(scope.value, name, tuple(check or ()), template, switches, state)
        return _show(found, format_name, verbose)
    if watch:
        if system or record or suspect or specimen or template_name:
            raise UsageError(
                "--watch looks at this machine: it goes with no other machine, --record or --template"
            )
        return watch_here(wanted, switches, host, state, seconds, format_name is Format.json)
    if system is not None or specimen is not None:
        found = _elsewhere(system, specimen, record, wanted, template, switches, ledger)
    else:
        found, taken = inspect_here(
            wanted, host=host, template=template, switches=switches, state=state, record=record is not None
        )
        found = remembered(found, LiveSystem(host), ledger or default_ledger())
        if record is not None:
            _write(taken, record, unmasked)
    return _show(found, format_name, verbose)


def _elsewhere(
    system: Path | None,
    specimen: str | None,
    record: Path | None,
    wanted: tuple[CheckInfo, ...],
    template: dict[str, object],
    switches: Switches,
    ledger: Path | None,
) -> Inspection:
    """What the checks say of a recorded or a made machine."""
    if specimen is not None:
        found, made = inspect_specimen(specimen, wanted, switches)
        if record is not None:
            write_recording(made, record, masked=False)
        return found
    if record is not None or system is None:
        raise UsageError("--record takes what this machine shows; a recording is copied with cp")
    recording = read_recording(system)
    found = inspect_recording(recording, wanted, template=template, switches=switches)
    return found if ledger is None else remembered(found, RecordedSystem(recording), ledger)


def _write(recording: Recording, place: Path, unmasked: bool) -> None:
    masked = write_recording(recording, place, masked=not unmasked)
    said = ", ".join(f"{number} {what}" for what, number in masked.items()) or "nothing"
    print(f"wrote {place} (masked: {said})", file=sys.stderr)


def _wanted(
    names: list[str] | None, active: bool, suspect: str | None, scope: Around
) -> tuple[CheckInfo, ...]:
    if scope is not Around.node:
        return ()
    return _chosen(names, active) if suspect is None else _solo(names)


def _chosen(names: list[str] | None, active: bool) -> tuple[CheckInfo, ...]:
    every = catalogue()
    costs = (Cost.PASSIVE, Cost.ACTIVE) if active else (Cost.PASSIVE,)
    wanted = select(every, costs=costs, names=names or ())
    for name in names or ():
        if not select(every, costs=(Cost.PASSIVE, Cost.ACTIVE), names=(name,)):
            raise UnknownName("check", name, [item.id for item in every])
    return wanted


def _solo(names: list[str] | None) -> tuple[CheckInfo, ...]:
    if names:
        raise UsageError("--suspect runs one check, the solo run; leave --check out")
    return select(catalogue(), costs=(Cost.INTRUSIVE,), names=("SOLO-01",))


def _known(names: list[str] | None) -> frozenset[str]:
    known = [item.id for item in catalogue()]
    for name in names or ():
        if name not in known:
            raise UnknownName("check", name, known)
    return frozenset(names or ())


def _show(found: Inspection, format_name: Format, verbose: bool) -> int:
    if format_name is Format.nagios:
        text, code = inspection.nagios(found)
    elif format_name is Format.npd:
        text, code = inspection.node_problem_detector(found)
    elif format_name is Format.json:
        text, code = inspection.as_json(found, __version__), found.exit_code
    else:
        options = ReportOptions(verbose=verbose, generated_at=SystemClock().now())
        options = output.options_for(sys.stdout, options, os.environ)
        text, code = inspection.render(found, options), found.exit_code
    sys.stdout.write(text)
    return code
