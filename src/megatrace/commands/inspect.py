"""`megatrace inspect`: what is wrong with this machine, how bad, what to do.

Runs the passive checks of the catalogue here, or on a recording of another machine, and prints what they
found. It mends nothing. ``--record`` writes what was looked at as a bundle that gives the same verdict
anywhere.

Which checks there are, and what each looks at, is the catalogue's business (``bot.checks``).
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

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
from megatrace.commands.specimens import inspect_specimen, listing
from megatrace.commands.watching import watch_here
from megatrace.errors import UnknownName, UsageError
from megatrace.model.check import Cost, Inspection
from megatrace.reports import ReportOptions, inspection


class Format(str, Enum):
    """What is printed."""

    text = "text"
    json = "json"
    nagios = "nagios"
    npd = "npd"


class Around(str, Enum):
    """What is looked at."""

    node = "node"
    bmc = "BMC"
    switch = "switch"
    scheduler = "scheduler"


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
    check: Annotated[
        list[str] | None,
        typer.Option("--check", help="Only these checks, by id or its beginning; repeat it."),
    ] = None,
    format_name: Annotated[
        Format, typer.Option("--format", help="text, json, nagios or npd (node-problem-detector).")
    ] = Format.text,
    system: Annotated[
        Path | None, typer.Option("--system", help="Judge a recorded machine: a folder or an archive.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", help="Also write what was looked at: a folder, .tar or .tar.gz."),
    ] = None,
    disable: Annotated[
        list[str] | None, typer.Option("--disable", help="Do not run this check; repeat it.")
    ] = None,
    observe: Annotated[
        list[str] | None,
        typer.Option("--observe", help="Run it, but let it change no exit code; repeat it."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Where growth of counters is remembered between inspections.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Where faults are recorded by part (megatrace history); of a recording: nowhere."),
    ] = None,
    suspect: Annotated[
        str | None,
        typer.Option(
            help="Try one GPU alone (number, PCI address, UUID or serial number): a job of a minute on a GPU "
            "that nobody uses."
        ),
    ] = None,
    solo_python: Annotated[
        str, typer.Option("--solo-python", help="With --suspect: a Python that has PyTorch.")
    ] = "python3",
    host: Annotated[
        str, typer.Option(help="Where the machine's root is mounted, when this runs in a container.")
    ] = "/",
    specimen: Annotated[
        str | None,
        typer.Option(help="A made machine to practise on, as h100-ib or h100-ib:gpu_lost; list names them."),
    ] = None,
    active: Annotated[
        bool, typer.Option("--active", help="Also tests that load an idle machine (DCGM, NCCL, perftest).")
    ] = False,
    template_name: Annotated[
        str | None,
        typer.Option("--template", help="What the machine should look like (megatrace template)."),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option("--gate", help="May a job start here? 10 only for a definite fault and with a token."),
    ] = False,
    controller: Annotated[
        str | None, typer.Option(help="With --gate: http://HOST:PORT that hands out the tokens.")
    ] = None,
    scope: Annotated[
        Around,
        typer.Option(help="Ask a BMC, a switch or a scheduler from here; the template says where."),
    ] = Around.node,
    name: Annotated[str | None, typer.Option(help="With --scope: what is looked at, by name.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on looking, and tell what changes, until Ctrl-C.")
    ] = False,
    seconds: Annotated[float | None, typer.Option("--for", help="With --watch: end after so many s.")] = None,
    unmasked: Annotated[
        bool, typer.Option("--unmasked", help="Keep names and addresses in the recording.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="All evidence, and every check.")] = False,
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
