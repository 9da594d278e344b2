"""The options of `megatrace inspect`, one name each: two dozen have no room in the signature of a verb."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from megatrace.commands.fleet import Over


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


Checks = Annotated[
    list[str] | None,
    typer.Option("--check", help="Only these checks, by id or its beginning; repeat it."),
]
FormatOption = Annotated[
    Format, typer.Option("--format", help="text, json, nagios or npd (node-problem-detector).")
]
Recorded = Annotated[
    Path | None, typer.Option("--system", help="Judge a recorded machine: a folder or an archive.")
]
RecordOption = Annotated[
    Path | None,
    typer.Option("--record", help="Also write what was looked at: a folder, .tar or .tar.gz."),
]
DisableOption = Annotated[
    list[str] | None, typer.Option("--disable", help="Do not run this check; repeat it.")
]
ObserveOption = Annotated[
    list[str] | None,
    typer.Option("--observe", help="Run it, but let it change no exit code; repeat it."),
]
StateOption = Annotated[
    Path | None, typer.Option(help="Where growth of counters is remembered between inspections.")
]
LedgerOption = Annotated[
    Path | None,
    typer.Option(help="Where faults are recorded by part (megatrace history); of a recording: nowhere."),
]
SuspectOption = Annotated[
    str | None,
    typer.Option(
        help="Try one GPU alone (number, PCI address, UUID or serial number): a job of a minute on a GPU "
        "that nobody uses."
    ),
]
SoloPythonOption = Annotated[
    str, typer.Option("--solo-python", help="With --suspect: a Python that has PyTorch.")
]
HostOption = Annotated[
    str, typer.Option(help="Where the machine's root is mounted, when this runs in a container.")
]
SpecimenOption = Annotated[
    str | None,
    typer.Option(help="A made machine to practise on, as h100-ib or h100-ib:gpu_lost; list names them."),
]
ActiveOption = Annotated[
    bool, typer.Option("--active", help="Also tests that load an idle machine (DCGM, NCCL, perftest).")
]
TemplateOption = Annotated[
    str | None,
    typer.Option("--template", help="What the machine should look like (megatrace template)."),
]
GateOption = Annotated[
    bool,
    typer.Option("--gate", help="May a job start here? 10 only for a definite fault and with a token."),
]
ControllerOption = Annotated[
    str | None, typer.Option(help="With --gate: http://HOST:PORT that hands out the tokens.")
]
ScopeOption = Annotated[
    Around,
    typer.Option(help="Ask a BMC, a switch or a scheduler from here; the template says where."),
]
NameOption = Annotated[str | None, typer.Option(help="With --scope: what is looked at, by name.")]
NodesOption = Annotated[
    str | None, typer.Option(help="Look at other machines, as node[001-128], and say what they share.")
]
OverOption = Annotated[Over, typer.Option(help="With --nodes: how they are reached.")]
ProgramOption = Annotated[str, typer.Option(help="With --nodes: how MegaTrace is called there.")]
InventoryOption = Annotated[
    Path | None,
    typer.Option(help="With --nodes: racks and switches (YAML, or scontrol show topology)."),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Go on looking, and tell what changes, until Ctrl-C.")
]
SecondsOption = Annotated[float | None, typer.Option("--for", help="With --watch: end after so many s.")]
UnmaskedOption = Annotated[
    bool, typer.Option("--unmasked", help="Keep names and addresses in the recording.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="All evidence, and every check.")]
